//! A transaction of the user's own is applied only while the lock is held.

use leasehold::dynamodb::{Canceled, ConditionCheck};
use leasehold::{ErrorKind, LockClient};
use sdk::operation::transact_write_items::TransactWriteItemsError;
use sdk::types::{AttributeValue, Put, TransactWriteItem};

use crate::common::dynamodb::Table;
use crate::*;

struct Data {
    raw: Raw,
    client: LockClient,
}

impl Data {
    fn new(lease: Duration) -> Data {
        let table = Table::fresh();
        let client = leasehold::dynamodb::builder(config(), &table.0).lease(lease).connect().unwrap();
        Data { raw: Raw::new(&table), client }
    }

    /// The user's item is in the same table, under a key that is no lock's.
    fn write(&self, held: &impl ConditionCheck, text: &str) -> Result<(), Canceled> {
        let check = TransactWriteItem::builder().condition_check(held.condition_check().unwrap()).build();
        let put = Put::builder()
            .table_name(&self.raw.table)
            .item("key", AttributeValue::S("data".into()))
            .item("text", AttributeValue::S(text.into()))
            .build()
            .unwrap();
        let put = TransactWriteItem::builder().put(put).build();
        let request = self.raw.client.transact_write_items().transact_items(check).transact_items(put);
        match self.raw.runtime.block_on(request.send()) {
            Ok(_) => Ok(()),
            Err(error) => match error.into_service_error() {
                TransactWriteItemsError::TransactionCanceledException(canceled) => {
                    Err(held.read_reason(&canceled.cancellation_reasons()[0]).unwrap())
                }
                other => panic!("{other:?}"),
            },
        }
    }

    fn text(&self) -> Option<String> {
        self.raw.get("data").get("text").map(|text| text.as_s().unwrap().clone())
    }
}

#[track_caller]
fn lost(answer: Result<(), Canceled>) -> Vec<String> {
    match answer {
        Err(Canceled::Lost(error)) => {
            assert_eq!(error.kind(), ErrorKind::Lost);
            error.holders().iter().map(|holder| holder.owner().to_owned()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_held_is_applied_and_what_is_lost_is_not() {
    needs_server!();
    let data = Data::new(LEASE);
    let guard = data.client.lock("a").unwrap();
    data.write(&guard, "held").unwrap();
    let next = data.client.request("a").owner("next").adopt(guard.info()).unwrap();
    assert_eq!(lost(data.write(&guard, "late")), ["next"], "it says who holds it");
    data.write(&next, "adopted").unwrap();
    let released = next.info();
    next.release().unwrap();
    assert!(lost(data.write(&data.client.fence(&released), "late")).is_empty());
    assert_eq!(data.text().as_deref(), Some("adopted"));
    let elsewhere = LockClient::connect("memory:").unwrap();
    let error = elsewhere.lock("a").unwrap().condition_check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn shared_holders_and_leases_can_be_checked() {
    needs_server!();
    let data = Data::new(LEASE);
    let (one, two) = (data.client.lock_shared("s").unwrap(), data.client.lock_shared("s").unwrap());
    data.write(&one, "one").unwrap();
    let gone = two.info();
    two.release().unwrap();
    lost(data.write(&data.client.fence(&gone), "late"));
    let leases = data.client.leases("space");
    let lease = leases.claim("app", "unit/0", LEASE).unwrap();
    data.write(&leases.fence(&lease), "claimed").unwrap();
    leases.extend("app", "unit/0", 2 * LEASE).unwrap();
    data.write(&leases.fence(&lease), "extended").unwrap();
    leases.revoke("app", "unit/0").unwrap();
    leases.claim("app", "unit/0", LEASE).unwrap();
    assert_eq!(lost(data.write(&leases.fence(&lease), "late")), ["unit/0"]);
    assert_eq!(data.text().as_deref(), Some("extended"));
}

/// Expired and taken by nobody: nobody else can have written.
#[test]
fn expired_and_not_taken_over_is_applied() {
    needs_server!();
    let data = Data::new(Duration::from_secs(1));
    let lock = data.client.request("a").acquire().unwrap();
    while !data.client.get("a").unwrap().unwrap().is_free() {
        std::thread::sleep(Duration::from_millis(20));
    }
    data.write(&data.client.fence(&lock), "nobody else did").unwrap();
    let _rival = data.client.lock("a").unwrap();
    lost(data.write(&data.client.fence(&lock), "late"));
}
