//! The table: made once by many, completed, refused; rows that others wrote or damaged.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::internals::lease::{End, Lease};
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Missing, Purpose, Schema};

use crate::postgres::*;
use crate::support::contract::{LEASE, granted, refused, release, renewal, renewed};
use crate::support::postgres::{Rows, config, connected, opened, sql_at};
use crate::support::wait::wait_until;

#[test]
fn many_make_it_at_once() {
    needs_server!();
    let rows = Rows::unmade();
    let stores: Vec<Postgres> = (0..6).map(|_| rows.open()).collect();
    let error = stores[0].schema(Schema::Check, &soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    stores[0].schema(Schema::Connect(Missing::IsAllowed), &soon()).unwrap();
    assert!(stores[0].schema(Schema::Connect(Missing::IsRefused), &soon()).is_err());
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| store.schema(Schema::Create, &soon()).unwrap());
        }
    });
    stores[0].schema(Schema::Check, &soon()).unwrap();
    granted(&stores[0], &mut exclusive(&stores[0], "k"));
}

#[test]
fn what_is_described_is_what_is_made() {
    needs_server!();
    let rows = Rows::unmade();
    let store = rows.open();
    let described = store.schema(Schema::Describe, &soon()).unwrap();
    rows.sql(&described);
    assert!(store.schema(Schema::Check, &soon()).unwrap().contains("is there"));
}

#[test]
fn what_it_lacks_is_added() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "k"));
    for lacks in [
        "ALTER TABLE {T} DROP COLUMN comment",
        "DROP INDEX {T}_grant_id",
        "DROP INDEX {T}_lock_id",
        "DROP INDEX {T}_shared",
    ] {
        rows.sql(lacks);
        let error = store.schema(Schema::Check, &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{lacks}: {error}");
        assert!(store.schema(Schema::Create, &soon()).unwrap().contains("lacked"), "{lacks}");
        store.schema(Schema::Check, &soon()).unwrap();
    }
    refused(&store, &mut exclusive(&store, "k"));
}

#[test]
fn another_table_is_refused() {
    needs_server!();
    // The error shows a column in quotes, as a name, because the command has an argument with the same name.
    for (wrong, says) in [
        ("key text COLLATE \"C\", owner text", "primary key"),
        ("key text COLLATE \"POSIX\" PRIMARY KEY", "collation"),
        ("key text COLLATE \"C\" PRIMARY KEY, fence integer", "\"fence\" is integer, not bigint"),
        ("key text COLLATE \"C\" PRIMARY KEY, owner varchar(20)", "\"owner\" is character varying(20), not text"),
    ] {
        let rows = Rows::unmade();
        rows.sql(&format!("CREATE TABLE {{T}} ({wrong})"));
        let error = rows.open().schema(Schema::Create, &soon()).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Schema && text.contains("no table of"), "{wrong}: {text}");
        assert!(text.contains(says), "{wrong}: {text}");
    }
}

#[test]
fn a_table_is_ours_however_the_server_quotes_names() {
    needs_server!();
    let rows = Rows::fresh();
    let mut quoting = config();
    quoting.options("-c quote_all_identifiers=on");
    let store = opened(PostgresOptions::new(quoting, &rows.0).unwrap());
    store.schema(Schema::Check, &soon()).unwrap();
}

/// A crash would empty such a table, and a standby would not have it.
#[test]
fn a_table_that_is_not_kept_is_refused() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    rows.sql("ALTER TABLE {T} SET UNLOGGED");
    let error = store.schema(Schema::Connect(Missing::IsAllowed), &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("UNLOGGED"), "{error}");
    rows.sql("ALTER TABLE {T} SET LOGGED");
    store.schema(Schema::Check, &soon()).unwrap();
    let name = format!("{}_v", rows.0);
    rows.sql(&format!("CREATE VIEW {name} AS SELECT * FROM {{T}}"));
    let store = opened(PostgresOptions::new(config(), &name).unwrap());
    let error = store.schema(Schema::Connect(Missing::IsAllowed), &soon()).unwrap_err();
    rows.sql(&format!("DROP VIEW {name}"));
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("no table of"), "{error}");
}

/// A crash of the server empties such a partition, although the table itself is logged.
#[test]
fn a_partition_that_is_not_kept_is_refused() {
    needs_server!();
    let rows = Rows::fresh();
    let columns = "CREATE TABLE {T} (LIKE {T}_old INCLUDING ALL) PARTITION BY HASH (key); DROP TABLE {T}_old; \
                   CREATE UNLOGGED TABLE {T}_p PARTITION OF {T} FOR VALUES WITH (MODULUS 1, REMAINDER 0)";
    rows.sql("ALTER TABLE {T} RENAME TO {T}_old");
    rows.sql(columns);
    let error = rows.open().schema(Schema::Check, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("UNLOGGED"), "{error}");
}

/// The rows of such a table appear among those of the table of locks, but a unique key does not cover them.
#[test]
fn a_key_that_stands_in_a_table_which_inherits_is_granted_to_nobody() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    release(&store, &mut a);
    rows.sql("CREATE TABLE {T}_c (LIKE {T} INCLUDING ALL) INHERITS ({T}); INSERT INTO {T}_c SELECT * FROM ONLY {T}");
    rows.sql("DELETE FROM ONLY {T}");
    let mut granted = 0;
    for _ in 0..2 {
        granted +=
            u32::from(matches!(store.acquire(&mut exclusive(&store, "k"), &soon()), Ok(Acquired::Granted { .. })));
    }
    let checked = store.schema(Schema::Check, &soon());
    rows.sql("DROP TABLE {T}_c");
    assert!(granted <= 1, "two hold it");
    let error = checked.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("inherit"), "{error}");
}

/// As on Cloud Spanner, where defaults are refused: here every column is written.
#[test]
fn no_default_of_the_table_stands_in_the_row_of_a_lock() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for default in
        ["shared SET DEFAULT '{}'", "given_up SET DEFAULT '[]'", "pins SET DEFAULT '{x}'", "renewed SET DEFAULT now()"]
    {
        rows.sql(&format!("ALTER TABLE {{T}} ALTER {default}"));
    }
    granted(&store, &mut exclusive(&store, "k"));
    let kept = rows.one(
        "SELECT count(*)::text FROM {T} WHERE shared IS NULL AND given_up IS NULL AND pins IS NULL AND renewed IS NULL",
    );
    assert_eq!(kept.as_deref(), Some("1"));
}

/// A trigger that forgets to return the row makes the statement do nothing, and the server reports no error.
#[test]
fn a_trigger_that_lets_no_row_be_written_is_told() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let modes = [Mode::Exclusive, Mode::Shared];
    let mut held = modes.map(|mode| attempt(&store, &format!("held {mode}"), mode));
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let client = connected(|| leasehold::LockClient::builder(rows.url()));
    rows.sql(
        "CREATE FUNCTION {T}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
         CREATE TRIGGER f BEFORE INSERT OR UPDATE ON {T} FOR EACH ROW EXECUTE FUNCTION {T}_f()",
    );
    let told = |error: leasehold::Error| {
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("trigger"), "{error}");
    };
    for a in &mut held {
        told(unless_late(|| store.acquire(&mut attempt(&store, "new", a.ask.mode), &soon())).unwrap_err());
        told(unless_late(|| store.renew(a, renewal(Lease::For(Duration::from_secs(60))), &soon())).unwrap_err());
        told(unless_late(|| store.release(a, Purpose::Release, &soon())).unwrap_err());
        told(unless_late(|| client.force_release(&a.key)).unwrap_err());
    }
    rows.sql("DROP FUNCTION {T}_f() CASCADE");
    held.iter_mut().for_each(|a| drop(release(&store, a)));
}

/// For example because of a column that somebody's migration has added: on every store, such an error blames the
/// schema.
#[test]
fn what_the_table_itself_refuses_is_told() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for (adds, drops, says) in [
        ("ADD COLUMN extra integer NOT NULL", "DROP COLUMN extra", "extra"),
        ("ADD CONSTRAINT small CHECK (length(key) > 9)", "DROP CONSTRAINT small", "small"),
    ] {
        rows.sql(&format!("ALTER TABLE {{T}} {adds}"));
        let error = unless_late(|| store.acquire(&mut exclusive(&store, "k"), &soon())).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Schema, false), "{error}");
        assert!(crate::errors::text(&error).contains(says), "{error:?}");
        rows.sql(&format!("ALTER TABLE {{T}} {drops}"));
    }
    granted(&store, &mut exclusive(&store, "k"));
}

/// A repeat would not help: the server lets nobody change a row that it must publish without an identity.
#[test]
fn a_table_whose_rows_may_not_be_changed_is_no_conflict() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    rows.sql("ALTER TABLE {T} REPLICA IDENTITY NOTHING");
    rows.sql("CREATE PUBLICATION {T} FOR TABLE {T}");
    let answer = store.renew(&mut a, renewal(Lease::For(Duration::from_secs(600))), &soon());
    rows.sql("DROP PUBLICATION {T}");
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false), "{error}");
}

/// The indexes of a table that is renamed keep their names.
#[test]
fn an_index_whose_name_is_taken_is_told() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    rows.sql("ALTER TABLE {T} RENAME TO {T}_old");
    let made = store.schema(Schema::Create, &soon());
    rows.sql("DROP TABLE {T}_old");
    let error = made.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("_grant_id"), "{error}");
    assert!(store.schema(Schema::Create, &soon()).unwrap().contains("lacked"));
}

/// An index whose key is not both columns keeps no rival out of a fenced transaction.
#[test]
fn only_an_index_that_protects_the_fence_will_do() {
    needs_server!();
    let rows = Rows::fresh();
    let client = connected(|| leasehold::LockClient::builder(rows.url()));
    let guard = client.lock("k").unwrap();
    let asserted = || {
        crate::support::postgres::block_on(async {
            let mut theirs = crate::support::postgres::connect(&config()).await;
            let transaction = theirs.transaction().await.unwrap();
            leasehold::postgres::AssertIn::assert_in(&guard, &transaction).await
        })
    };
    asserted().unwrap();
    rows.sql("DROP INDEX {T}_grant_id");
    for index in
        ["UNIQUE INDEX {T}_x ON {T} (key) INCLUDE (grant_id)", "UNIQUE INDEX {T}_x ON {T} (key, grant_id, lower(key))"]
    {
        rows.sql(&format!("CREATE {index}"));
        assert_eq!(asserted().map_err(|error| error.kind()), Err(ErrorKind::Schema), "{index}");
        let store = rows.open();
        assert!(store.schema(Schema::Check, &soon()).is_err(), "{index}");
        store.schema(Schema::Create, &soon()).unwrap();
        asserted().unwrap();
        rows.sql("DROP INDEX {T}_x; DROP INDEX {T}_grant_id");
    }
}

#[test]
fn a_table_may_have_a_schema() {
    needs_server!();
    let rows = Rows::unmade();
    let schema = rows.0.replace("t_", "s_");
    sql_at(&config(), &format!("CREATE SCHEMA {schema}"));
    let named = Rows(format!("{schema}.{}", rows.0));
    let store = named.open();
    store.schema(Schema::Create, &soon()).unwrap();
    store.schema(Schema::Check, &soon()).unwrap();
    granted(&store, &mut exclusive(&store, "k"));
    sql_at(&config(), &format!("DROP SCHEMA {schema} CASCADE"));
}

/// A heartbeat is the most frequent write, so it must leave the indexes alone.
#[test]
fn a_renewal_touches_no_index() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    for _ in 0..20 {
        renewed(&store, &mut a, renewal(Lease::For(Duration::from_secs(60))));
    }
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{T}'";
    drop(store);
    wait_until("the statistics come", || rows.one(counts).as_deref() == Some("20"));
    assert_eq!(rows.sql(counts)[0][1].as_deref(), Some("20"));
    let store = rows.open();
    let said = || store.schema(Schema::Check, &soon()).unwrap();
    assert!(!said().contains("heartbeat"), "{}", said());
    for (index, columns) in [("(owner, until)", "owner,until"), ("(renewed) INCLUDE (host)", "renewed,host")] {
        rows.sql(&format!("CREATE INDEX {{T}}_slow ON {{T}} {index}"));
        assert!(said().contains(&format!("the index on {columns:?}")), "{}", said());
        rows.sql("DROP INDEX {T}_slow");
    }
}

#[test]
fn what_a_later_version_wrote_of_a_shared_holder_stays() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    granted(&store, &mut shared(&store, "k"));
    rows.sql("UPDATE {T} SET format = '1.7', shared = jsonb_set(shared, '{0, later}', '7')");
    let mut other = shared(&store, "k");
    granted(&store, &mut other);
    release(&store, &mut other);
    let stored = rows.sql("SELECT shared #>> '{0, later}', jsonb_array_length(shared)::text, format FROM {T}");
    assert_eq!(stored[0].iter().map(Option::as_deref).collect::<Vec<_>>(), [Some("7"), Some("1"), Some("1.7")]);
}

#[test]
fn who_gave_up_is_forgotten_after_a_while() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for _ in 0..3 {
        store.release(&mut exclusive(&store, "k"), Purpose::GiveUp, &soon()).unwrap();
    }
    let count = "SELECT count(*) FROM {T}, jsonb_object_keys(given_up)";
    assert_eq!(rows.one(count).as_deref(), Some("3"));
    let age =
        "UPDATE {T} SET given_up = (SELECT jsonb_object_agg(key, value::bigint - 61000000) FROM jsonb_each(given_up))";
    rows.sql(age);
    granted(&store, &mut exclusive(&store, "k"));
    assert_eq!(rows.one(count).as_deref(), Some("0"), "by the statement");
    rows.sql("DELETE FROM {T}");
    store.release(&mut shared(&store, "k"), Purpose::GiveUp, &soon()).unwrap();
    rows.sql(age);
    store.release(&mut shared(&store, "k"), Purpose::GiveUp, &soon()).unwrap();
    assert_eq!(rows.one(count).as_deref(), Some("1"), "by the pure rule");
}

#[test]
fn a_damaged_row_is_named_and_left_as_it_is() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "good"));
    for damage in [
        "kind = 'x'",
        "fence = -1",
        "version = 0",
        "format = 'x'",
        "shared = '7'",
        "shared = '[7]'",
        "given_up = '[]'",
        "given_up = '{\"a\": []}'",
        "given_up = '{\"a\": 1.0}'",
        "given_up = '{\"a\": 1e30}'",
        "pins = ARRAY[['a', 'b']]",
        "until = NULL",
        "lock_id = NULL",
        "owner = NULL",
        "token = NULL",
        "created = NULL",
        "shared = '[{\"grant_id\": \"a\"}]'",
        "shared = '[{\"grant_id\":\"a\",\"lock_id\":\"b\",\"owner\":\"c\",\"token\":1,\"created\":1,\"until\":null,\"host\":7}]'",
    ] {
        rows.sql("DELETE FROM {T} WHERE key = 'bad'");
        let mut a = exclusive(&store, "bad");
        granted(&store, &mut a);
        rows.sql(&format!("UPDATE {{T}} SET {damage} WHERE key = 'bad'"));
        let row = rows.sql("SELECT * FROM {T} WHERE key = 'bad'");
        let error = store.acquire(&mut exclusive(&store, "bad"), &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("damaged"), "{damage}: {error}");
        let error = store.acquire(&mut shared(&store, "bad"), &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{damage}: {error}");
        for error in [
            store.renew(&mut a, renewal(Lease::For(Duration::from_secs(60))), &soon()).unwrap_err(),
            store.release(&mut a, Purpose::Release, &soon()).unwrap_err(),
            store.release(&mut a, Purpose::GiveUp, &soon()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Schema, "{damage}: {error}");
        }
        assert_eq!(rows.sql("SELECT * FROM {T} WHERE key = 'bad'"), row, "{damage}");
        let all = store.read(&Which::Prefix(String::new()), None, Consistency::Strong, &soon()).unwrap();
        assert_eq!(all.records.iter().map(|seen| seen.record.key.as_str()).collect::<Vec<_>>(), ["good"], "{damage}");
    }
}

/// Of locks that are held exclusively, shared, and (written by hand) both.
#[test]
fn a_lock_id_finds_each_of_its_rows_once_and_in_order() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    rows.sql(
        "INSERT INTO {T} (key, kind, fence, grant_id, lock_id, owner, token, created, until, shared, version, format) \
         SELECT to_char(n, 'FM000'), 'lock', 1, alone, CASE WHEN alone = 'g' THEN 'id' END, 'o', 1, now(), 'infinity', \
         CASE WHEN n % 3 < 2 THEN jsonb_build_array(jsonb_build_object('grant_id', 's', 'lock_id', 'id', 'owner', 'o', \
         'token', 1, 'created', 1, 'until', NULL)) END, 1, '1.0' \
         FROM (SELECT n, CASE WHEN n % 3 > 0 THEN 'g' END AS alone FROM generate_series(1, 500) AS n) AS x",
    );
    let (mut keys, mut from) = (Vec::new(), None);
    loop {
        let page = store.read(&Which::LockId("id".to_owned()), from, Consistency::Strong, &soon()).unwrap();
        keys.extend(page.records.into_iter().map(|seen| seen.record.key));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(keys, (1..=500).map(|n| format!("{n:03}")).collect::<Vec<_>>());
}

#[test]
fn a_row_of_a_newer_form_is_told_as_that() {
    needs_server!();
    let rows = Rows::fresh();
    crate::newer::its_version_is_told(rows.open(), |key| {
        rows.sql(&format!("UPDATE {{T}} SET format = '2.0', kind = 'x' WHERE key = '{key}'"));
    });
}

/// However the table is named in the URL, a lost lock of it is not called a lock of another store.
#[test]
fn a_lock_that_was_lost_is_lost_by_every_name_of_its_table() {
    needs_server!();
    let rows = Rows::fresh();
    let urls = [rows.url(), rows.url().replace("table=", "table=public.")];
    let clients = urls.map(|url| connected(|| leasehold::LockClient::builder(&url)));
    for [granted, asked] in [[0, 1], [1, 0]] {
        let lock = clients[granted].request("k").acquire().unwrap();
        assert_eq!(clients[granted].unlock(lock.lock_id()).unwrap().len(), 1);
        let other = &clients[asked];
        for error in [other.heartbeat(&lock, LEASE).unwrap_err(), other.adopt(lock.clone()).unwrap_err()] {
            assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("k")), "{error}");
        }
        other.release(&lock).unwrap();
    }
}

/// A row that could not be read afterwards must be granted to nobody.
#[test]
fn a_free_row_that_is_damaged_is_not_granted() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for damage in [
        "kind = 'x'",
        "version = 0",
        "fence = -2",
        "format = '1.x'",
        "pins = ARRAY[NULL]::text[]",
        "given_up = '[]'",
        "given_up = '{\"a\": []}'",
        "given_up = '{\"a\": 1.0}'",
        "given_up = '{\"a\": 1e30}'",
        "pins = ARRAY[['a', 'b']]",
        "given_up = '{\"a\": \"soon\"}'",
        "given_up = '{\"a\": 1.5}'",
        "grant_id = 'old', lock_id = '', owner = '', created = now(), until = now(), token = -1",
        "grant_id = 'old', lock_id = '', owner = '', created = now(), token = 1, until = NULL",
    ] {
        rows.sql("DELETE FROM {T}");
        let mut a = exclusive(&store, "bad");
        granted(&store, &mut a);
        release(&store, &mut a);
        rows.sql(&format!("UPDATE {{T}} SET {damage}"));
        let row = rows.sql("SELECT * FROM {T}");
        let error = store.acquire(&mut exclusive(&store, "bad"), &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("damaged"), "{damage}: {error}");
        assert_eq!(rows.sql("SELECT * FROM {T}"), row, "{damage}");
    }
}

#[test]
fn times_of_any_size_come_back() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, "k", mode);
        granted(&store, &mut a);
        let long = renewed(&store, &mut a, renewal(Lease::For(Duration::from_secs(100 * 366 * 86_400))));
        assert!(matches!(long, End::At(_)), "{long:?}");
        renewed(&store, &mut a, renewal(Lease::For(Duration::MAX)));
        assert_eq!(renewed(&store, &mut a, renewal(Lease::Forever)), End::Never);
        release(&store, &mut a);
    }
}
