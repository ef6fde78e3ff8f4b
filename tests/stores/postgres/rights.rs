//! Users with fewer rights or other defaults: what works, and what the errors say.

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Consistency, Purpose, Released, Schema};
use leasehold::{ErrorKind, LockClient};

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{LEASE, granted, refused, release, renewal, renewed};
use crate::support::postgres::{Rows, config, connected, opened, sql_at, told_of, unless_late, unless_unmade};

/// A user of the server, who is dropped with the test, and the user's table.
struct User {
    name: String,
    rows: Rows,
}

impl User {
    fn new(rows: Rows, rights: &str) -> User {
        let name = format!("u_{}", rows.0);
        sql_at(&config(), &format!("CREATE ROLE {name} LOGIN"));
        if !rights.is_empty() {
            rows.sql(&format!("GRANT {rights} ON {{T}} TO {name}"));
        }
        User { name, rows }
    }

    fn open(&self) -> Postgres {
        opened(PostgresOptions::new(self.config(), &self.rows.0).unwrap())
    }

    fn config(&self) -> leasehold::postgres::tokio_postgres::Config {
        let mut config = config();
        config.user(&self.name);
        config
    }
}

impl Drop for User {
    fn drop(&mut self) {
        sql_at(&config(), &format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name));
    }
}

#[test]
fn the_four_rights_are_enough() {
    needs_server!();
    let user = User::new(Rows::fresh(), "SELECT, INSERT, UPDATE, DELETE");
    let store = user.open();
    store.schema(Schema::Check, &soon()).unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, "k", mode);
        granted(&store, &mut a);
        refused(&store, &mut exclusive(&store, "k"));
        renewed(&store, &mut a, renewal(Lease::For(2 * LEASE)));
        release(&store, &mut a);
    }
    told_of(&store, "k");
    let seen = get(&store, "k");
    store.swap(&seen, None, &soon()).unwrap();
    assert!(!get(&store, "k").record.exists());
}

#[test]
fn a_right_that_is_missing_is_told_and_named() {
    needs_server!();
    let reader = User::new(Rows::fresh(), "SELECT");
    let store = reader.open();
    assert!(holders(&store, "k").is_empty(), "it may look");
    let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Permission, false), "{error}");
    assert!(error.to_string().contains("INSERT"), "{error}");
    let stranger = User::new(Rows::fresh(), "");
    let store = stranger.open();
    let read = store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon());
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Permission);
    let nobody = User::new(Rows::unmade(), "");
    // Before version 15 everybody may create tables there.
    sql_at(&config(), "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let error = nobody.open().schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Permission && error.to_string().contains("CREATE"), "{error}");
}

#[test]
fn a_diagnosis_says_of_no_right_that_was_not_tried_that_it_is_there() {
    needs_server!();
    let reader = User::new(Rows::fresh(), "SELECT");
    let client = connected(|| leasehold::postgres::builder(reader.config(), &reader.rows.0));
    let rights = client.diagnose().unwrap().rights;
    let allowed: Vec<&str> = rights.iter().filter(|right| right.outcome.is_ok()).map(|right| right.what).collect();
    assert_eq!(allowed, ["look at a lock", "list locks"], "{rights:?}");
}

/// What the docs say of `create_schema`.
#[test]
fn who_makes_the_table_needs_create_and_who_adds_to_it_must_own_it() {
    needs_server!();
    let schema = Rows::unmade().0.replace("t_", "s_");
    let rows = Rows(format!("{schema}.{}", Rows::unmade().0));
    let [maker, other] = ["m", "o"].map(|first| schema.replace("s_", &format!("{first}_")));
    let admin = |sql: &str| drop(sql_at(&config(), sql));
    admin(&format!("CREATE SCHEMA {schema}; CREATE ROLE {maker} LOGIN; CREATE ROLE {other} LOGIN"));
    admin(&format!("GRANT USAGE ON SCHEMA {schema} TO {maker}, {other}"));
    let open = |name: &str| {
        let mut config = config();
        config.user(name);
        opened(PostgresOptions::new(config, &rows.0).unwrap())
    };
    let makes =
        |name: &str| open(name).schema(Schema::Create, &soon()).map_err(|error| (error.kind(), error.to_string()));
    let mut answers = vec![makes(&maker)];
    admin(&format!("GRANT CREATE ON SCHEMA {schema} TO {maker}, {other}"));
    answers.push(makes(&maker));
    admin(&format!("GRANT ALL ON {} TO {other}; DROP INDEX {}_grant_id", rows.0, rows.0));
    answers.push(makes(&other));
    answers.push(makes(&maker));
    // Without DELETE, and without a right on anything else.
    admin(&format!("REVOKE DELETE ON {} FROM {other}; REVOKE CREATE ON SCHEMA {schema} FROM {other}", rows.0));
    let store = open(&other);
    let mut a = exclusive(&store, "k");
    let works = store.acquire(&mut a, &soon()).and_then(|_| {
        store.release(&mut a, Purpose::Release, &soon())?;
        let purged = store.swap(&get(&store, "k"), None, &soon());
        Ok(purged.map(drop).map_err(|error| error.kind()))
    });
    admin(&format!(
        "DROP SCHEMA {schema} CASCADE; DROP OWNED BY {maker}, {other}; DROP ROLE {maker}; DROP ROLE {other}"
    ));
    let [denied, made, stranger, owner] = &answers[..] else { panic!("{answers:?}") };
    let is_told = |answer: &Result<String, (ErrorKind, String)>, says: &str| {
        let (kind, text) = answer.as_ref().unwrap_err();
        assert!(*kind == ErrorKind::Permission && text.contains(says), "{text}");
    };
    is_told(denied, "CREATE");
    assert!(made.as_ref().unwrap().contains("was made"), "{made:?}");
    is_told(stranger, "must own");
    assert!(owner.as_ref().unwrap().contains("lacked"), "{owner:?}");
    assert_eq!(works.unwrap(), Err(ErrorKind::Permission));
}

/// Whatever a policy hides or refuses, nobody is granted what a rival holds, and the error says what is wrong.
#[test]
fn a_policy_on_rows_breaks_no_lock_and_what_it_refuses_is_told() {
    needs_server!();
    for (policies, may_release) in [
        ("CREATE POLICY p ON {T} USING (owner = 'mine' OR owner IS NULL)", true),
        (
            "CREATE POLICY p ON {T} FOR SELECT USING (true); CREATE POLICY w ON {T} USING (true) WITH CHECK (owner = 'mine')",
            false,
        ),
    ] {
        let user = User::new(Rows::fresh(), "SELECT, INSERT, UPDATE, DELETE");
        user.rows.sql("ALTER TABLE {T} ENABLE ROW LEVEL SECURITY");
        user.rows.sql(policies);
        let (all, store) = (user.rows.open(), user.open());
        let mine = |key: &str, mode| {
            let mut a = attempt(&store, key, mode);
            a.ask.labels.owner = "mine".to_owned();
            a
        };
        granted(&all, &mut exclusive(&all, "theirs"));
        for mode in [Mode::Exclusive, Mode::Shared] {
            let answer = unless_late(|| store.acquire(&mut mine("theirs", mode), &soon()));
            let is_told = |error: &leasehold::Error| [ErrorKind::Schema, ErrorKind::Permission].contains(&error.kind());
            assert!(matches!(&answer, Ok(Acquired::Refused(_))) || answer.as_ref().is_err_and(is_told), "{answer:?}");
        }
        let mut a = mine("mine", Mode::Exclusive);
        granted(&store, &mut a);
        renewed(&store, &mut a, renewal(Lease::For(LEASE)));
        match unless_late(|| store.release(&mut a, Purpose::Release, &soon())) {
            Ok(Released::Done) => assert!(may_release),
            Err(error) => {
                assert_eq!((error.kind(), may_release), (ErrorKind::Permission, false), "{error}");
                assert!(text(&error).contains("row-level security"), "{error:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(holders(&all, "mine").is_empty(), may_release);
    }
}

/// For a user that may not make it: statements for what exists already would be refused.
#[test]
fn what_is_described_of_a_table_that_lacks_something_completes_it() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    rows.sql("ALTER TABLE {T} DROP COLUMN comment");
    let missing = store.schema(Schema::Describe, &soon()).unwrap();
    assert!(!missing.contains("CREATE TABLE"), "{missing}");
    rows.sql(&missing);
    store.schema(Schema::Check, &soon()).unwrap();
    assert!(store.schema(Schema::Describe, &soon()).unwrap().contains("CREATE TABLE"));
}

/// This gives no error: the server finds no row that may be deleted.
#[test]
fn a_row_that_no_policy_lets_be_deleted_is_no_right() {
    needs_server!();
    let user = User::new(Rows::fresh(), "SELECT, INSERT, UPDATE, DELETE");
    user.rows.sql("ALTER TABLE {T} ENABLE ROW LEVEL SECURITY");
    user.rows.sql("CREATE POLICY s ON {T} FOR SELECT USING (true); CREATE POLICY u ON {T} FOR UPDATE USING (true)");
    user.rows.sql("CREATE POLICY i ON {T} FOR INSERT WITH CHECK (true)");
    let client = connected(|| leasehold::postgres::builder(user.config(), &user.rows.0));
    let rights = unless_late(|| {
        let diagnosis = client.diagnose()?;
        diagnosis.round_trip.clone().map(|_| diagnosis.rights)
    });
    for right in rights.unwrap() {
        let is_denied = right.outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Schema);
        assert_eq!(is_denied, right.what == "purge: delete a row", "{right:?}");
    }
}

#[test]
fn defaults_of_the_user_that_would_break_locks_are_not_used() {
    needs_server!();
    let user = User::new(Rows::fresh(), "SELECT, INSERT, UPDATE, DELETE");
    let set = |what: &str| drop(sql_at(&config(), &format!("ALTER ROLE {} SET {what}", user.name)));
    set("default_transaction_isolation = serializable");
    set("statement_timeout = 1000");
    // Since version 14.
    if !sql_at(&config(), "SELECT FROM pg_settings WHERE name = 'idle_session_timeout'").is_empty() {
        set("idle_session_timeout = 200");
    }
    set("\"DateStyle\" = 'German'");
    set("\"TimeZone\" = 'Asia/Kathmandu'");
    let (one, two) = (user.open(), user.open());
    std::thread::scope(|scope| {
        for store in [&one, &two] {
            scope.spawn(move || {
                for _ in 0..100 {
                    let mut a = exclusive(store, "k");
                    let _ = unless_unmade(|| store.acquire(&mut a, &soon())).unwrap();
                    unless_unmade(|| store.release(&mut a, Purpose::Release, &soon())).unwrap();
                }
            });
        }
    });
    set("default_transaction_read_only = on");
    let url = format!("{}?table={}", crate::support::servers::postgres_server().unwrap(), user.rows.0);
    let url = url.replace("leasehold@", &format!("{}@", user.name));
    let error = unless_late(|| LockClient::connect(&url)).unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.to_string().contains("primary"), "{error}");
}

/// No statement was sent, so none waited for a row.
#[test]
fn a_database_that_lets_nobody_in_is_told() {
    needs_server!();
    let user = User::new(Rows::unmade(), "");
    let database = format!("d_{}", user.rows.0);
    let admin = |sql: &str| drop(sql_at(&config(), &sql.replace("{D}", &database)));
    let connect = || {
        let mut config = user.config();
        config.dbname(&database);
        let options = PostgresOptions::new(config, "locks").unwrap();
        unless_late(|| Postgres::open(options.clone(), &soon())).map(drop)
    };
    admin("CREATE DATABASE {D}");
    admin("REVOKE CONNECT ON DATABASE {D} FROM PUBLIC");
    let denied = connect();
    admin("ALTER DATABASE {D} ALLOW_CONNECTIONS false");
    let closed = connect();
    admin("DROP DATABASE {D}");
    for (answer, kind, says) in [
        (denied, (ErrorKind::Permission, false), "CONNECT"),
        (closed, (ErrorKind::Store, true), "takes no connection now"),
    ] {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
