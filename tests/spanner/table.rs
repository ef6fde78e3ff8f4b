//! The table: made, completed, checked, refused.

use leasehold::{ErrorKind, LockClient};

use crate::common::servers::spanner_emulator;
use crate::common::spanner::{Database, TABLE, sdk, settings};
use crate::*;
use leasehold::internals::backend::Schema;
use sdk::statement::Statement;

fn connect(database: &Database) -> leasehold::Result<LockClient> {
    leasehold::spanner::builder(settings(&database.host), &database.path, TABLE).connect()
}

#[test]
fn a_missing_table_is_made_by_several_at_once() {
    needs_server!();
    let database = Database::empty();
    let client = connect(&database).unwrap();
    let error = client.lock("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    assert!(error.to_string().contains("create_schema") && error.to_string().contains(TABLE), "{error}");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| database.open().schema(Schema::Create, &soon()).unwrap());
        }
    });
    client.lock("k").unwrap().release().unwrap();
    // Once more does nothing.
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
    let docs = include_str!("../../src/spanner.rs");
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
    // As spindle's README has it.
    database.ddl(
        "CREATE TABLE locks (name STRING(MAX) NOT NULL, heartbeat TIMESTAMP OPTIONS (allow_commit_timestamp=true), \
         token TIMESTAMP OPTIONS (allow_commit_timestamp=true), writer STRING(MAX)) PRIMARY KEY (name)",
    );
    let error = connect(&database).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("grant_id, lock_id") && error.to_string().contains("create_schema"), "{error}");
    let store = database.open();
    store.schema(Schema::Create, &soon()).unwrap();
    granted(&store, &mut exclusive("k"));
}

#[test]
fn another_table_is_refused_and_says_why() {
    needs_server!();
    let stamp = "TIMESTAMP OPTIONS (allow_commit_timestamp=true)";
    let cases = [
        (
            format!("name STRING(MAX), heartbeat {stamp}, token {stamp}, writer INT64) PRIMARY KEY (name"),
            "writer is INT64",
        ),
        (
            "name STRING(MAX), heartbeat TIMESTAMP) PRIMARY KEY (name".to_owned(),
            "heartbeat lacks allow_commit_timestamp",
        ),
        ("name INT64) PRIMARY KEY (name".to_owned(), "name is INT64"),
        ("name STRING(MAX), part INT64) PRIMARY KEY (name, part".to_owned(), "primary key is not name"),
        ("name STRING(MAX), price FLOAT64 NOT NULL) PRIMARY KEY (name".to_owned(), "price is NOT NULL"),
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

#[test]
fn the_dialect_of_postgresql_is_refused_by_name() {
    needs_server!();
    let request = "{\"createStatement\": \"CREATE DATABASE \\\"locks\\\"\", \"databaseDialect\": \"POSTGRESQL\"}";
    let database = Database::made_by(&spanner_emulator().unwrap(), request);
    let error = connect(&database).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    assert!(error.to_string().contains("PostgreSQL"), "{error}");
}
