//! Items in the table of the locks, under keys that are no lock's.

use leasehold::Error;
use leasehold::dynamodb::aws_config::SdkConfig;
use leasehold::dynamodb::{Canceled, ConditionCheck, aws_sdk_dynamodb as sdk};
use leasehold::fence::Fenced;
use sdk::operation::transact_write_items::TransactWriteItemsError;
use sdk::types::{AttributeValue, Put, TransactWriteItem};
use tokio::runtime::Runtime;

use super::{Change, Data};

pub struct Items {
    runtime: Runtime,
    client: sdk::Client,
    table: String,
}

impl Items {
    pub fn new(config: &SdkConfig, table: &str) -> Items {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Items { runtime, client: sdk::Client::new(config), table: table.to_owned() }
    }

    fn key(key: &str) -> AttributeValue {
        AttributeValue::S(format!("data of {key}"))
    }
}

impl Data for Items {
    /// A transaction of DynamoDB is one request. What its decision rests on was read before.
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error> {
        let Change { key, text, meanwhile } = change;
        for begun in 1.. {
            self.text(key);
            meanwhile();
            let put = Put::builder()
                .table_name(&self.table)
                .item("key", Items::key(key))
                .item("text", AttributeValue::S(text.to_owned()));
            let put = TransactWriteItem::builder().put(put.build().unwrap()).build();
            let mut request = self.client.transact_write_items();
            if let Some(held) = held {
                let check = held.condition_check()?;
                request = request.transact_items(TransactWriteItem::builder().condition_check(check).build());
            }
            let Err(error) = self.runtime.block_on(request.transact_items(put).send()) else { return Ok(begun) };
            let TransactWriteItemsError::TransactionCanceledException(canceled) = error.into_service_error() else {
                panic!("not cancelled, but failed")
            };
            let reasons = canceled.cancellation_reasons();
            match held.map(|held| held.read_reason(&reasons[0])).transpose()? {
                Some(Canceled::Lost(error)) => return Err(error),
                Some(Canceled::Conflict) => {}
                // The put itself is in conflict.
                _ => assert_eq!(reasons.last().unwrap().code(), Some("TransactionConflict")),
            }
        }
        unreachable!("it is begun for ever")
    }

    fn text(&self, key: &str) -> Option<String> {
        let request = self.client.get_item().table_name(&self.table).key("key", Items::key(key)).consistent_read(true);
        let item = self.runtime.block_on(request.send()).unwrap().item?;
        Some(item["text"].as_s().unwrap().clone())
    }
}
