//! The rows of version 0.1.0, including those of a table that dynamodb-lock-go uses, and the noted grace.

use std::collections::{BTreeMap, HashMap};

use leasehold::internals::store::Purpose;
use leasehold::internals::store::fleet::Fleet;
use leasehold::{ErrorKind, LockClient};
use serde_json::{Value as Json, json};

use super::mixed::of;
use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::upgrade::rows::{self, Restored};

/// The grace of a client that shares a table with dynamodb-lock-go. It is noted because it is more than the default.
const GRACE: Duration = Duration::from_secs(5);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl rows::Table for Table {
    const STORE: &'static str = "dynamodb";
    const FORM: &'static str = "DynamoDB JSON";

    fn open(&self) -> Arc<dyn Backend> {
        let clock = Clock::system();
        Arc::new(open(DynamodbOptions { grace: GRACE, ..options(&self.0, &clock) }, &clock))
    }

    fn rows(&self) -> Vec<Json> {
        let mut rows: Vec<Json> = Raw::new(self).all().iter().map(json).collect();
        rows.sort_by_key(|row| row["key"]["S"].as_str().unwrap().to_owned());
        rows
    }

    fn put(&self, row: &Json) {
        Raw::new(self).put(item(row));
    }

    /// A row with a time to live, and one that many gave up while the service's clock was ahead.
    fn fill(&self, _: &LockClient) {
        of(self, &Clock::system(), Fleet::Mixed).request("beside").acquire().unwrap();
        let clock = Clock::system();
        clock.advance(CENTURY);
        let ahead = open(DynamodbOptions { grace: GRACE, ..options(&self.0, &clock) }, &clock);
        for _ in 0..12 {
            ahead.release(&mut exclusive("crowded"), Purpose::GiveUp, &soon()).unwrap();
        }
    }
}

fn json(row: &HashMap<String, AttributeValue>) -> Json {
    let value = |value: &AttributeValue| match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::Ss(texts) => json!({ "SS": texts }),
        AttributeValue::M(map) => json!({ "M": json(map) }),
        other => panic!("{other:?}"),
    };
    let attributes: BTreeMap<&String, Json> = row.iter().map(|(name, of)| (name, value(of))).collect();
    json!(attributes)
}

fn item(row: &Json) -> HashMap<String, AttributeValue> {
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    let value = |value: &Json| {
        let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "S" => AttributeValue::S(text(value)),
            "N" => AttributeValue::N(text(value)),
            "SS" => AttributeValue::Ss(value.as_array().unwrap().iter().map(text).collect()),
            "M" => AttributeValue::M(item(value)),
            other => panic!("{other}"),
        }
    };
    row.as_object().unwrap().iter().map(|(name, of)| (name.clone(), value(of))).collect()
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    let table = needs_server!(Table::fresh());
    let Some(restored) = Restored::of(&table) else { return };
    let raw = Raw::new(&table);
    let number = |key: &str, name: &str| raw.get(key)[name].as_n().unwrap().parse::<u64>().unwrap();
    // A client that waits for less than the noted grace is refused.
    assert_eq!([number("\u{1}time", "graceMicros"), number("\u{1}time", "leastGraceMicros")], [5_000_000, 1_000_000]);
    let error = patient(config(), &table.0).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("grace=5000ms"), "{error}");
    // Before a purge deletes the row, it asks when somebody last gave up there.
    assert_eq!(get(&*restored.store, "unmade").record.gave_up_at, number("unmade", "givenUpAt"));
    let ends = number("beside", "ttl");
    let guard = of(&table, &Clock::system(), Fleet::Mixed).try_lock("beside").unwrap().expect("it is over");
    assert!(number("beside", "ttl") > ends && Some(guard.fencing_token()) > restored.told("beside")["token"].as_u64());
    guard.release().unwrap();
    restored.goes_on();

    // So many gave up that the next tokens are above a floor, even if it is ahead of the time.
    let floor = number("crowded", "floor");
    let crowded = restored.client.try_lock("crowded").unwrap().expect("nobody holds it");
    assert!(crowded.fencing_token() > floor && floor > 2 * restored.told("free")["token"].as_u64().unwrap());
    crowded.release().unwrap();
}
