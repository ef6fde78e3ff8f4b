//! A table with a sort key, in which all locks have one value. The whole contract's suite runs on such a table, too.

use leasehold::dynamodb::{ConditionCheck, Table as Settled};
use leasehold::{ErrorKind, Filter, LockClient};

use crate::dynamodb::sdk::types::{AttributeValue, TransactWriteItem};
use crate::dynamodb::*;
use crate::support::dynamodb::{Table, sort_key};
use crate::support::stores::unique;

type Item = std::collections::HashMap<String, AttributeValue>;

/// A client for the rows with this value.
fn of(table: &Table, value: &str) -> LockClient {
    try_of(table, value).unwrap()
}

fn try_of(table: &Table, value: &str) -> leasehold::Result<LockClient> {
    let table = Settled::new(&table.0).sort_key(sort_key(value).name, value);
    patient(config(), table).connect()
}

/// A row that looks like a lock that is over.
fn row(key: &str, value: &str) -> Item {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |number: u32| AttributeValue::N(number.to_string());
    let past = "2001-01-01T00:00:00.000000000Z";
    [
        ("key".to_owned(), text(key)),
        (sort_key("").name, text(value)),
        ("leasedUntil".to_owned(), text(past)),
        ("createdAt".to_owned(), text(past)),
        ("owner".to_owned(), text("them")),
        ("grantId".to_owned(), text(&unique())),
        ("lockId".to_owned(), text(&unique())),
        ("fence".to_owned(), number(1)),
        ("version".to_owned(), number(1)),
        ("format".to_owned(), text("1.0")),
    ]
    .into()
}

#[test]
fn create_schema_makes_such_a_table_and_clients_with_other_values_share_nothing() {
    let table = needs_server!(Table(unique()));
    let (locks, others) = (of(&table, "lock"), of(&table, "other"));
    let command = locks.schema().unwrap();
    assert!(command.contains(r#"{"AttributeName":"sorted by","KeyType":"RANGE"}"#), "{command}");
    let error = locks.lock("k").unwrap_err();
    assert!(error.to_string().contains("create_schema"), "{error}");
    let (endpoint, name) = (crate::support::servers::dynamodb_local().unwrap(), &table.0);
    let endpoint = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let store = format!("dynamodb://{name}?region=us-east-1&endpoint={endpoint}&sort_key=sorted by:lock");
    assert_eq!(error.store(), Some(&*store));
    let said = locks.create_schema().unwrap();
    assert!(said.contains("was made, with the key HASH key (S), RANGE sorted by (S)"), "{said}");
    assert!(others.create_schema().unwrap().contains("is there"));

    let (guard, other) = (locks.lock("k").unwrap(), others.lock("k").unwrap());
    assert!(locks.try_lock("k").unwrap().is_none() && others.try_lock("k").unwrap().is_none());
    let listed = |client: &LockClient| client.list(&Filter::new()).unwrap();
    for (client, guard) in [(&locks, &guard), (&others, &other)] {
        let all = listed(client);
        assert_eq!(all.iter().map(|one| one.fencing_token()).collect::<Vec<_>>(), [guard.fencing_token()]);
    }
    // A lock as data of one client is not valid in the other.
    let data = guard.into_lock();
    assert_eq!(others.adopt(data.clone()).unwrap_err().kind(), ErrorKind::InvalidInput);
    locks.release(&data).unwrap();
    assert!(other.is_held() && listed(&locks).is_empty() && listed(&others).len() == 1);
}

#[test]
fn rows_of_others_are_neither_listed_nor_purged_over_all_pages() {
    let table = needs_server!(Table::sorted());
    let raw = Raw::new(&table);
    let locks = of(&table, "lock");
    // More than a page of rows, with the same keys before and behind ours.
    let theirs = || (0..130).flat_map(|n| ["a", "z"].map(|value| row(&format!("{n}"), value)));
    raw.put_all(theirs().collect());
    // The leases outlast all of them, even on a busy machine.
    let lock = |n: u32| locks.request(&format!("{n}")).lease(Duration::from_secs(600)).lock().unwrap();
    let guards: Vec<_> = (0..130).map(lock).collect();
    let mut keys: Vec<u32> = locks.list(&Filter::new()).unwrap().iter().map(|one| one.key().parse().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..130).collect::<Vec<_>>());
    guards.into_iter().for_each(|guard| guard.release().unwrap());
    raw.put(row("over", "lock"));
    let purged = locks.purge(Duration::ZERO).unwrap();
    assert_eq!(purged.freed.iter().map(|one| one.key()).collect::<Vec<_>>(), ["over"]);
    let of_others = raw.all().into_iter().filter(|row| row[&sort_key("").name].as_s().unwrap() != "lock");
    let as_they_were =
        of_others.filter(|row| row.get("leasedUntil").is_some_and(|end| end.as_s().unwrap().starts_with("2001-")));
    assert_eq!(as_they_were.count(), theirs().count());
}

#[test]
fn a_condition_check_is_about_the_row_of_this_value() {
    let table = needs_server!(Table::sorted());
    let (raw, guard, other) = (Raw::new(&table), of(&table, "lock").lock("k").unwrap(), of(&table, "other"));
    let _other = other.lock("k").unwrap();
    let send = || {
        let check = TransactWriteItem::builder().condition_check(guard.condition_check().unwrap()).build();
        let put = crate::dynamodb::sdk::types::Put::builder().table_name(&table.0).set_item(Some(row("data", "x")));
        let put = TransactWriteItem::builder().put(put.build().unwrap()).build();
        let sent = raw.client.transact_write_items().transact_items(check).transact_items(put);
        raw.runtime.block_on(sent.send()).is_ok()
    };
    assert!(send(), "it is held");
    of(&table, "lock").force_release("k").unwrap();
    assert!(!send(), "it was released");
}

#[test]
fn the_wrong_key_is_refused_with_the_option_that_would_be_right() {
    let sorted = needs_server!(Table::sorted());
    let refused = |answer: leasehold::Result<LockClient>, with: &str| {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains(with) && error.to_string().contains("sorted by"), "{error}");
    };
    refused(patient(config(), &sorted.0).connect(), "say sort_key=NAME:VALUE");
    let misnamed = Settled::new(&sorted.0).sort_key("another", "lock");
    refused(patient(config(), misnamed).connect(), "sort_key=NAME:VALUE if those");
    refused(try_of(&Table::fresh(), "lock"), "leave out sort_key=..");
}
