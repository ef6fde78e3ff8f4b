//! The table: made, checked, refused.

use leasehold::internals::backend::Schema;
use leasehold::{ErrorKind, LockClient};

use crate::common::dynamodb::Table;
use crate::common::stores::unique;
use crate::sdk::types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType};
use crate::*;

fn make(raw: &Raw, keys: &[(&str, KeyType, ScalarAttributeType)]) {
    let mut request = raw.client.create_table().table_name(&raw.table).billing_mode(BillingMode::PayPerRequest);
    for (name, kind, of) in keys {
        let key = KeySchemaElement::builder().attribute_name(*name).key_type(kind.clone()).build().unwrap();
        let of = AttributeDefinition::builder().attribute_name(*name).attribute_type(of.clone()).build().unwrap();
        request = request.key_schema(key).attribute_definitions(of);
    }
    raw.runtime.block_on(request.send()).unwrap();
}

fn connect(table: &Table) -> leasehold::Result<LockClient> {
    leasehold::dynamodb::builder(config(), &table.0).connect()
}

#[test]
fn a_missing_table_is_made_by_several_at_once() {
    needs_server!();
    let table = Table(unique());
    let client = connect(&table).unwrap();
    let error = client.lock("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("create_schema") && error.to_string().contains(&table.0), "{error}");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| connect(&table).unwrap().create_schema().unwrap());
        }
    });
    client.lock("k").unwrap().release().unwrap();
    client.create_schema().unwrap();
    assert!(client.schema().unwrap().contains("create-table"));
}

#[test]
fn another_key_schema_is_refused_at_connect() {
    needs_server!();
    let (hash, range) = (KeyType::Hash, KeyType::Range);
    let cases = [
        vec![("key", hash.clone(), ScalarAttributeType::N)],
        vec![("id", hash.clone(), ScalarAttributeType::S)],
        vec![("key", hash, ScalarAttributeType::S), ("part", range, ScalarAttributeType::S)],
    ];
    for keys in cases {
        let table = Table(unique());
        make(&Raw::new(&table), &keys);
        let error = connect(&table).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{keys:?}: {error}");
        assert!(error.to_string().contains(&table.0), "{error}");
    }
}

#[test]
fn another_name_of_the_partition_key_is_used() {
    needs_server!();
    let table = Table(unique());
    let grace = Duration::from_secs(1);
    let client = leasehold::dynamodb::builder_with(config(), &table.0, "lock name", grace).connect().unwrap();
    client.create_schema().unwrap();
    let guard = client.request("k").lock_id("group").lock().unwrap();
    assert!(client.try_lock("k").unwrap().is_none());
    assert_eq!(client.get("k").unwrap().unwrap().holders()[0].lock_id(), "group");
    guard.release().unwrap();
    let clock = Clock::system();
    let mut all = options(&table.0, &clock);
    all.partition_key = "lock name".to_owned();
    let store = open(all, &clock);
    assert_eq!(store.read(&Which::Prefix("k".to_owned()), None, true, &soon()).unwrap().records.len(), 1);
    store.schema(Schema::Check, &soon()).unwrap();
}

#[test]
fn a_url_leads_to_it() {
    needs_server!();
    let table = Table::fresh();
    let endpoint = common::servers::dynamodb_local().unwrap();
    // The environment of a test can't be changed safely, so another process connects.
    let url = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}&grace=2s", table.0);
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "table::connects_to_the_url_of_the_environment"])
        .env("LEASEHOLD_TEST_URL", url)
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
}

#[test]
fn connects_to_the_url_of_the_environment() {
    // Only as the other process of a_url_leads_to_it.
    if std::env::var_os("LEASEHOLD_TEST_URL").is_none() {
        return;
    }
    let client = LockClient::connect(&std::env::var("LEASEHOLD_TEST_URL").unwrap()).unwrap();
    let guard = client.lock("k").unwrap();
    assert!(guard.is_held());
    guard.release().unwrap();
}
