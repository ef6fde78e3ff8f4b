//! The rows of version 0.1.0, including those of a table that nodes of spindle use.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::LockClient;
use leasehold::internals::store::Backend;
use leasehold::internals::store::fleet::Fleet;
use sdk::mutation::Mutation;
use sdk::statement::Statement;
use sdk::value::{Kind, Value};
use serde_json::Value as Json;

use super::mixed::client;
use crate::spanner::needs_server;
use crate::support::spanner::{Database, TABLE, sdk};
use crate::upgrade::rows::{Restored, Table};

impl Table for Database {
    const STORE: &'static str = "spanner";
    const FORM: &'static str = "the columns as the service's API writes them, JSON as a text";

    fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.open())
    }

    fn rows(&self) -> Vec<Json> {
        let rows = self.raw().query(Statement::builder(format!("SELECT * FROM {TABLE} ORDER BY name")).build());
        rows.iter().map(json).collect()
    }

    fn put(&self, row: &Json) {
        let mut mutation = Mutation::new_insert_builder(TABLE);
        for (column, value) in row.as_object().unwrap() {
            let set = mutation.set(column);
            mutation = match value {
                Json::String(text) => set.to(text),
                Json::Array(all) => set.to(all.iter().map(|text| text.as_str().unwrap()).collect::<Vec<_>>()),
                other => panic!("{column} is {other}"),
            };
        }
        self.raw().write(mutation.build());
    }

    /// A renewal that comes too late has a bound, and a takeover has a row of its own.
    fn fill(&self, _: &LockClient) {
        let mixed = client(self, Fleet::Mixed);
        mixed.lock("beside").unwrap().release().unwrap();
        let lock = mixed.request("beside").acquire().unwrap();
        mixed.heartbeat(&lock, super::mixed::DURATION).unwrap();
    }
}

/// The columns that are not null.
fn json(row: &BTreeMap<String, Value>) -> Json {
    let is_there = |(_, value): &(&String, &Value)| value.kind() != Kind::Null;
    let columns = row.iter().filter(is_there).map(|(column, value)| {
        let text = |value: &Value| Json::from(value.as_str().expect("a text"));
        let all = value.as_list().map(|all| all.iter().map(text).collect());
        (column.clone(), all.unwrap_or_else(|| text(value)))
    });
    Json::Object(columns.collect())
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    needs_server!();
    let database = Database::fresh();
    let Some(restored) = Restored::of(&database) else { return };
    let rows = database.rows();
    let beside = rows.iter().find(|row| row["name"] == "beside").unwrap();
    assert!(beside["not_after"].is_string());
    let takeovers = || -> Vec<Json> {
        let is_one = |row: &Json| row["name"].as_str().unwrap().starts_with("beside_");
        database.rows().into_iter().filter(is_one).collect()
    };
    let [old] = &takeovers()[..] else { panic!("{rows:?}") };
    // The lock is over, and nobody needs the row of its takeover any more.
    let mixed = client(&database, Fleet::Mixed);
    let guard = mixed.try_lock("beside").unwrap().expect("it is over");
    assert!(Some(guard.fencing_token()) > restored.told("beside")["token"].as_u64());
    assert!(matches!(&takeovers()[..], [new] if new["name"] != old["name"]), "{:?}", takeovers());
    guard.release().unwrap();
    restored.goes_on();
}
