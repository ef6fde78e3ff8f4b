//! The table: made, completed, checked, refused.

use leasehold::{ErrorKind, Filter, LockClient};

use std::time::Instant;

use crate::spanner::*;
use crate::support::harness::within;
use crate::support::proxy::{Mode as Fault, Proxy, Rule};
use crate::support::servers::spanner_emulator;
use crate::support::spanner::{Database, TABLE, sdk, settings};
use leasehold::internals::store::Schema;
use leasehold::internals::store::spanner::SpannerOptions;
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
use sdk::statement::Statement;

fn connect(database: &Database) -> leasehold::Result<LockClient> {
    leasehold::spanner::builder(settings(&database.host), &database.path, TABLE).request_timeout(REQUEST).connect()
}

#[test]
fn a_missing_table_is_made_by_several_at_once() {
    needs_server!();
    let database = Database::empty();
    let client = connect(&database).unwrap();
    let error = client.lock("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    assert!(error.to_string().contains("create_schema") && error.to_string().contains(TABLE), "{error}");
    let said = std::thread::scope(|scope| {
        let makers = [(); 4].map(|()| scope.spawn(|| database.open().schema(Schema::Create, &soon()).unwrap()));
        makers.map(|maker| maker.join().unwrap())
    });
    assert_eq!(said.iter().filter(|said| said.contains("the table was made")).count(), 1, "{said:?}");
    client.lock("k").unwrap().release().unwrap();
    // A second time does nothing.
    assert!(database.open().schema(Schema::Create, &soon()).unwrap().contains("is there"));
    client.lock("k").unwrap().release().unwrap();
    let sql =
        "SELECT index_name FROM information_schema.indexes WHERE table_name = 'locks' AND index_name <> 'PRIMARY_KEY'";
    let indexes = database.raw().query(Statement::builder(sql).build());
    assert_eq!(indexes[0]["index_name"].as_str(), Some("locks_lock_id"));
}

#[test]
fn what_schema_prints_makes_the_table() {
    needs_server!();
    let database = Database::empty();
    let printed = connect(&database).unwrap().schema().unwrap();
    let docs = include_str!("../../../src/api/stores/spanner.rs");
    assert!(
        printed.lines().all(|line| docs.contains(&format!("//! {line}\n"))),
        "the docs say something else: {printed}"
    );
    for statement in printed.trim_end().trim_end_matches(';').split(";\n") {
        database.ddl(statement);
    }
    let store = database.open();
    assert!(store.schema(Schema::Check, &soon()).unwrap().contains("is there"));
    granted(&store, &mut exclusive("k"));
}

#[test]
fn a_table_of_spindle_is_completed() {
    needs_server!();
    let database = Database::empty();
    // As in spindle's README.
    database.ddl(
        "CREATE TABLE locks (name STRING(MAX) NOT NULL, heartbeat TIMESTAMP OPTIONS (allow_commit_timestamp=true), \
         token TIMESTAMP OPTIONS (allow_commit_timestamp=true), writer STRING(MAX)) PRIMARY KEY (name)",
    );
    let client = over(database.options(), REQUEST);
    let error = client.try_lock("k").unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{error}");
    let found = client.diagnose().unwrap().schema.unwrap_err();
    assert_eq!(found.kind(), ErrorKind::Schema);
    assert!(found.to_string().contains("grant_id, lock_id") && found.to_string().contains("create_schema"), "{found}");
    // The statements that a user without rights is shown add the same.
    let first = client.schema().unwrap();
    assert!(first.starts_with("ALTER TABLE `locks` ADD COLUMN grant_id"), "{first}");
    database.ddl(first.split(";\n").next().unwrap());
    let said = client.create_schema().unwrap();
    assert!(said.contains("got what it lacked: ALTER TABLE `locks` ADD COLUMN lock_id"), "{said}");
    client.lock("k").unwrap().release().unwrap();
    assert!(client.diagnose().unwrap().is_well());
    assert!(client.schema().unwrap().starts_with("CREATE TABLE"));
}

/// Such a name is unique in the whole database.
#[test]
fn an_index_whose_name_another_tables_index_has_is_told() {
    needs_server!();
    let database = Database::empty();
    database.ddl("CREATE TABLE others (id INT64, x INT64) PRIMARY KEY (id)");
    database.ddl("CREATE INDEX locks_lock_id ON others(x)");
    let error = over(database.options(), REQUEST).create_schema().unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("locks_lock_id"), "{error}");
    assert!(error.to_string().contains("one of the table others"), "{error}");
}

/// One of them sends its request late, and adds what the other has already added meanwhile.
#[test]
fn a_table_of_spindle_is_completed_by_two_at_once() {
    needs_server!();
    let database = Database::empty();
    // Whatever the case of its names, because the service ignores it.
    database.ddl(
        "CREATE TABLE locks (Name STRING(MAX) NOT NULL, Heartbeat TIMESTAMP OPTIONS (allow_commit_timestamp=true), \
         TOKEN TIMESTAMP OPTIONS (allow_commit_timestamp=true), writer STRING(MAX)) PRIMARY KEY (Name)",
    );
    let rest = Proxy::http(&database.options().admin_endpoint.unwrap());
    rest.add(Rule::next(1, Fault::Delay(Duration::from_secs(2))).on("PATCH"));
    let behind = SpannerOptions { admin_endpoint: Some(rest.url()), ..database.options() };
    let (late, other) = (over(behind, REQUEST), over(database.options(), REQUEST));
    let said = std::thread::scope(|scope| {
        let late = scope.spawn(|| late.create_schema());
        rest.wait_until("it is about to add them", |requests| requests.iter().any(|request| request.has("PATCH")));
        // On a machine that stalls this one may be the later one.
        [other.create_schema().unwrap(), late.join().unwrap().unwrap()]
    });
    assert!(said.iter().any(|said| said.contains("got what it lacked: ALTER TABLE `locks` ADD COLUMN")), "{said:?}");
    let guard = other.lock("k").unwrap();
    assert_eq!(other.list(&Filter::new().lock_id(guard.lock_id())).unwrap().len(), 1);
    guard.release().unwrap();
    assert!(other.diagnose().unwrap().is_well());
}

#[test]
fn an_index_that_was_dropped_stops_no_locks_and_is_made_again() {
    needs_server!();
    let database = Database::fresh();
    database.ddl("DROP INDEX locks_lock_id");
    let client = over(database.options(), REQUEST);
    let guard = client.lock("k").unwrap();
    let group = Filter::new().lock_id(guard.lock_id());
    let error = client.list(&group).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{error}");
    let diagnosis = client.diagnose().unwrap();
    let found = diagnosis.problem().expect("it is not well").to_string();
    assert!(found.contains("no index locks_lock_id; create_schema()"), "{found}");
    client.create_schema().unwrap();
    assert_eq!(client.list(&group).unwrap().len(), 1);
    assert!(client.diagnose().unwrap().is_well());
    guard.release().unwrap();
}

#[test]
fn another_table_is_refused_and_says_why() {
    needs_server!();
    let stamp = "TIMESTAMP OPTIONS (allow_commit_timestamp=true)";
    let cases = [
        (
            format!("name STRING(MAX), heartbeat {stamp}, token {stamp}, writer INT64) PRIMARY KEY (name"),
            "\"writer\" is INT64",
        ),
        (
            "name STRING(MAX), heartbeat TIMESTAMP) PRIMARY KEY (name".to_owned(),
            "heartbeat lacks allow_commit_timestamp",
        ),
        ("name INT64) PRIMARY KEY (name".to_owned(), "\"name\" is INT64"),
        ("name STRING(MAX), part INT64) PRIMARY KEY (name, part".to_owned(), "primary key is not name"),
        (format!("name STRING(MAX), token {stamp}, owner STRING(MAX)) PRIMARY KEY (name"), "a later spindle"),
        ("name STRING(MAX), price FLOAT64 NOT NULL) PRIMARY KEY (name".to_owned(), "\"price\" is NOT NULL"),
        // The column is null where nobody holds the lock.
        (
            "name STRING(MAX), owner STRING(MAX) NOT NULL DEFAULT ('me')) PRIMARY KEY (name".to_owned(),
            "\"owner\" is NOT NULL",
        ),
    ];
    for (columns, says) in cases {
        let database = Database::empty();
        database.ddl(&format!("CREATE TABLE {TABLE} ({columns})"));
        let error = connect(&database).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains(says) && error.to_string().contains(TABLE), "{error}");
        assert_eq!(database.open().schema(Schema::Create, &soon()).unwrap_err().kind(), ErrorKind::Schema);
    }
}

/// The table as `schema` prints it, with one replacement. `parents` exists next to it.
fn altered(from: &str, to: &str) -> Database {
    let database = Database::empty();
    database.ddl("CREATE TABLE parents (name STRING(MAX) NOT NULL) PRIMARY KEY (name)");
    let printed = database.open().schema(Schema::Describe, &soon()).unwrap();
    assert!(printed.contains(from), "{printed}");
    for statement in printed.replace(from, to).trim_end_matches(';').split(";\n") {
        database.ddl(statement);
    }
    database
}

const COMMENT: &str = "comment STRING(MAX)";
const GENERATED: &str = "comment STRING(MAX) AS (LOWER(name)) STORED";
const LAST: &str = "\n) PRIMARY KEY (name)";
const INTERLEAVED: &str = "\n) PRIMARY KEY (name), INTERLEAVE IN PARENT parents";
const HOLDERS: &str = "holders JSON";
const DEFAULT: &str = "holders JSON DEFAULT (JSON '[]')";
const POLICY: &str = "\n) PRIMARY KEY (name), ROW DELETION POLICY (OLDER_THAN(token, INTERVAL 30 DAY))";
const CHECKED: &str = ",\n  CONSTRAINT nobody CHECK (owner = 'nobody')\n) PRIMARY KEY (name)";

#[test]
fn a_table_whose_form_keeps_locks_out_is_refused_and_says_why() {
    needs_server!();
    let cases = [
        (COMMENT, GENERATED, "\"comment\" is generated"),
        (LAST, INTERLEAVED, "it is interleaved in \"parents\""),
        (HOLDERS, DEFAULT, "\"holders\" has a DEFAULT"),
        (LAST, POLICY, "row deletion policy OLDER_THAN(token, INTERVAL 30 DAY)"),
    ];
    for (from, to, says) in cases {
        let error = connect(&altered(from, to)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn columns_of_others_that_the_service_fills_are_no_obstacle() {
    needs_server!();
    let more = "comment STRING(MAX),\n  tenant STRING(MAX) NOT NULL DEFAULT ('all'),\n  \
                loud STRING(MAX) NOT NULL AS (UPPER(name)) STORED";
    let database = altered(COMMENT, more);
    let client = connect(&database).unwrap();
    assert!(client.diagnose().unwrap().is_well());
    // A row is created, then written again.
    for _ in 0..2 {
        client.lock("k").unwrap().release().unwrap();
    }
    client.lock_shared("k").unwrap().release().unwrap();
    let sql = "SELECT tenant, loud FROM locks WHERE name = 'k'";
    let rows = database.raw().query(Statement::builder(sql).build());
    assert_eq!(["tenant", "loud"].map(|column| rows[0][column].as_str()), [Some("all"), Some("K")]);
}

/// As if the table was altered after the client had checked it at connect.
#[test]
fn no_default_of_the_table_stands_in_the_row_of_a_lock() {
    needs_server!();
    let database = altered(HOLDERS, DEFAULT);
    let (store, rival) = (database.open(), database.open());
    granted(&store, &mut exclusive("k"));
    refused(&rival, &mut exclusive("k"));
}

/// The error is the same however often it is tried.
#[test]
fn a_commit_that_the_table_refuses_for_good_is_a_wrong_schema() {
    needs_server!();
    for (from, to) in [(COMMENT, GENERATED), (LAST, INTERLEAVED), (LAST, CHECKED)] {
        // As if the table was altered after the client had checked it at connect.
        let store = altered(from, to).open();
        let mut refused = exclusive("k");
        refused.ask.labels.comment = Some("why".to_owned());
        let error = store.acquire(&mut refused, &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && !error.is_retryable(), "{to}: {error:?}");
        assert!(error.to_string().contains("refuses the rows of locks"), "{to}: {error}");
        assert!(!get(&store, "k").record.exists(), "{to}");
    }
}

/// The service ignores the case of names.
#[test]
fn a_table_whose_name_is_given_in_another_case_is_the_same() {
    needs_server!();
    let database = Database::fresh();
    let mut options = database.options();
    options.table = TABLE.to_uppercase();
    let client = over(options, REQUEST);
    let guard = client.lock("k").unwrap();
    assert!(client.diagnose().unwrap().is_well());
    assert_eq!(client.list(&Filter::new().lock_id(guard.lock_id())).unwrap().len(), 1);
    guard.release().unwrap();
    assert!(client.create_schema().unwrap().contains("is there"));
    database.ddl("DROP INDEX locks_lock_id");
    let found = client.diagnose().unwrap().schema.unwrap_err().to_string();
    assert!(found.contains("no index locks_lock_id; create_schema()"), "{found}");
    let said = client.create_schema().unwrap();
    assert!(said.contains("INDEX `locks_lock_id` ON `locks`(lock_id)"), "{said}");
    assert!(client.diagnose().unwrap().is_well());
}

#[test]
fn the_dialect_of_postgresql_is_refused_by_name() {
    needs_server!();
    let request = "{\"createStatement\": \"CREATE DATABASE \\\"locks\\\"\", \"databaseDialect\": \"POSTGRESQL\"}";
    let database = Database::made_by(&spanner_emulator().unwrap(), request);
    let error = connect(&database).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    assert!(error.to_string().contains("PostgreSQL"), "{error}");
}

/// A table whose columns are too short for what may be stored.
fn narrow() -> Database {
    let database = Database::fresh();
    database.ddl("ALTER TABLE locks ALTER COLUMN name STRING(20) NOT NULL");
    database.ddl("ALTER TABLE locks ALTER COLUMN comment STRING(1023)");
    database
}

#[test]
fn columns_that_are_too_short_are_named_and_made_longer() {
    needs_server!();
    let database = narrow();
    let client = over(database.options(), REQUEST);
    client.lock("short").unwrap().release().unwrap();
    let error = client.diagnose().unwrap().schema.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    let text = error.to_string();
    let says = ["\"name\" is STRING(20)", "\"comment\" is STRING(1023)", "STRING(MAX)", "create_schema()"];
    assert!(says.iter().all(|part| text.contains(part)), "{text}");
    client.create_schema().unwrap();
    client.lock(&"k".repeat(1024)).unwrap().release().unwrap();
    let store = database.open();
    store.schema(Schema::Check, &soon()).unwrap();
    // As long as anything that is stored there.
    database.ddl("ALTER TABLE locks ALTER COLUMN owner STRING(1024)");
    store.schema(Schema::Check, &soon()).unwrap();
}

#[test]
fn a_key_that_its_column_is_too_short_for_is_bad_input() {
    needs_server!();
    // Narrowed after the client had checked the table at connect.
    let (store, long) = (narrow().open(), "k".repeat(21));
    for mode in [Mode::Exclusive, Mode::Shared] {
        let error = store.acquire(&mut attempt(&long, mode), &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && !error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains("locks.name"), "{error}");
    }
    granted(&store, &mut exclusive(&long[1..]));
}

fn over(options: SpannerOptions, request_timeout: Duration) -> LockClient {
    try_over(options, request_timeout).unwrap()
}

fn try_over(options: SpannerOptions, request_timeout: Duration) -> leasehold::Result<LockClient> {
    let store = Spanner::open(options, &soon()).unwrap();
    let builder = leasehold::internals::builder_over(std::sync::Arc::new(store), Clock::system());
    builder.request_timeout(request_timeout).connect()
}

/// Runs `does` with a limit, then with one twice as long, and so on, while the emulator itself stalled for so long that
/// there was no answer.
fn with_time<T>(limit: Duration, does: impl FnMut(Duration) -> Option<T>) -> T {
    [1_u32, 2, 4, 8].map(|times| times * limit).into_iter().find_map(does).expect("an answer of the emulator")
}

#[test]
fn a_table_that_takes_longer_than_a_request_is_waited_for() {
    needs_server!();
    with_time(Duration::from_secs(4), |timeout| {
        let database = Database::empty();
        let rest = Proxy::http(&database.options().admin_endpoint.unwrap());
        // The operation has begun and goes on. When it ends it has made nothing, so that the next one makes the table.
        let begun = Fault::Say(200, r#"{"name": "projects/p/instances/i/operations/o"}"#);
        let done = Fault::Say(200, r#"{"name": "projects/p/instances/i/operations/o", "done": true}"#);
        rest.add(Rule::next(1, begun).on("PATCH"));
        rest.add(Rule::next(5 * timeout.as_secs(), begun).on("GET"));
        rest.add(Rule::next(1, done).on("GET"));
        let mut options = database.options();
        options.admin_endpoint = Some(rest.url());
        let client = try_over(options, timeout).map_err(|error| assert!(error.is_retryable(), "{error:?}")).ok()?;
        let started = Instant::now();
        client.create_schema().map_err(|error| assert!(error.is_retryable(), "{error:?}")).ok()?;
        assert!(started.elapsed() > timeout, "the proxy did not hold it up");
        over(database.options(), REQUEST).lock("k").unwrap().release().unwrap();
        Some(())
    });
}

#[test]
fn a_service_that_does_not_begin_to_make_the_table_is_waited_for_as_for_any_request() {
    needs_server!();
    let database = Database::empty();
    let rest = Proxy::http(&database.options().admin_endpoint.unwrap());
    rest.add(Rule::always(Fault::HoleToServer));
    let error = with_time(Duration::from_secs(2), |timeout| {
        let mut options = database.options();
        options.admin_endpoint = Some(rest.url());
        let client = try_over(options, timeout).map_err(|error| assert!(error.is_retryable(), "{error:?}")).ok()?;
        let error = within("it", timeout * 5 / 2, || client.create_schema()).unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        error.to_string().contains(&rest.url()).then_some(error)
    });
    assert!(error.to_string().contains("may have begun"), "{error}");
}

#[test]
fn a_service_that_stops_answering_while_it_makes_the_table_is_waited_for_as_for_any_request() {
    needs_server!();
    let database = Database::empty();
    for (dead, path) in [(Fault::HoleToServer, "hole"), (Fault::CutBefore, "cut")] {
        let rest = Proxy::http(&database.options().admin_endpoint.unwrap());
        rest.add(Rule::next(1, Fault::Say(200, r#"{"name": "projects/p/instances/i/operations/o"}"#)).on("PATCH"));
        rest.add(Rule::always(dead).on("GET"));
        let mut options = database.options();
        options.admin_endpoint = Some(rest.url());
        let store = Spanner::open(options, &soon()).unwrap();
        let error = with_time(Duration::from_secs(2), |timeout| {
            let by = Deadline::after(timeout).with_long(20 * timeout);
            // Each of its looks and requests may take that long, and the last one begins just before its time is over.
            let error = within(path, timeout * 9 / 2, || store.schema(Schema::Create, &by)).unwrap_err();
            assert!(error.is_retryable(), "{path}: {error:?}");
            error.to_string().contains(&rest.url()).then_some(error)
        });
        assert!(error.to_string().contains("may have begun"), "{path}: {error:?}");
    }
}
