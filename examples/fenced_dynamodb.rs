//! The locks and the data are in DynamoDB. A holder is stopped past its lease, a rival takes the lock and writes; when
//! the first one wakes, its `TransactWriteItems` checks the lock, and so its late write is not applied.
//!
//! ```sh
//! cargo run --features dynamodb --example fenced_dynamodb TABLE
//! ```
//! The table is made if it is missing. Region, credentials and `AWS_ENDPOINT_URL` are found as by any program that
//! uses the AWS SDK.

mod stopped;

use std::error::Error;
use std::time::Duration;

use leasehold::dynamodb::aws_config::{BehaviorVersion, load_defaults};
use leasehold::dynamodb::{Canceled, ConditionCheck, aws_sdk_dynamodb as sdk};
use leasehold::{ErrorKind, LockGuard};
use sdk::operation::transact_write_items::TransactWriteItemsError;
use sdk::types::{AttributeValue, Put, TransactWriteItem};

/// The report is an item in the table of the locks here. It may be in any other table of the account and region.
struct Report {
    runtime: tokio::runtime::Runtime,
    sdk: sdk::Client,
    table: String,
}

impl Report {
    /// One transaction: the write, and the check that the lock is held.
    fn write(&self, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
        let put = Put::builder()
            .table_name(&self.table)
            .item("key", AttributeValue::S("the report".to_owned()))
            .item("text", AttributeValue::S(text.to_owned()))
            .build()?;
        loop {
            let check = TransactWriteItem::builder().condition_check(guard.condition_check()?).build();
            let put = TransactWriteItem::builder().put(put.clone()).build();
            let request = self.sdk.transact_write_items().transact_items(check).transact_items(put);
            let Err(error) = self.runtime.block_on(request.send()) else { return Ok(()) };
            let error = error.into_service_error();
            let TransactWriteItemsError::TransactionCanceledException(canceled) = &error else {
                return Err(error.into());
            };
            // The reasons are in the order of the items.
            let Some(reason) = canceled.cancellation_reasons().first() else { return Err(error.into()) };
            match guard.read_reason(reason)? {
                Canceled::Lost(lost) => return Err(lost.into()),
                // In conflict with a heartbeat of the guard, or too many requests: again, a moment later.
                Canceled::Conflict => std::thread::sleep(Duration::from_millis(20)),
                _ => return Err(error.into()),
            }
        }
    }

    fn text(&self) -> Result<String, Box<dyn Error>> {
        let key = AttributeValue::S("the report".to_owned());
        let request = self.sdk.get_item().table_name(&self.table).key("key", key).consistent_read(true);
        let item = self.runtime.block_on(request.send())?.item.ok_or("there is no report")?;
        Ok(item["text"].as_s().map_err(|_| "the report is no text")?.clone())
    }
}

fn holder(report: &Report, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    report.write(guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    stopped::stop()?; // the next line runs when this process is woken
    let late = report.write(guard, "too late").unwrap_err();
    let kind = late.downcast_ref::<leasehold::Error>().map(leasehold::Error::kind);
    println!("holder: awake, refused: {}", kind == Some(ErrorKind::Lost));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let table = args.next().ok_or("name a table: fenced_dynamodb TABLE, with AWS_REGION and so on as usual")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = runtime.block_on(load_defaults(BehaviorVersion::latest()));
    // Short, so that the rival need not wait long: a service leaves it out.
    let client = leasehold::dynamodb::builder(config.clone(), &table).lease(Duration::from_secs(1)).connect()?;
    client.create_schema()?;
    let report = Report { runtime, sdk: sdk::Client::new(&config), table };
    if args.next().is_some() {
        return holder(&report, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&[&report.table, "as the holder"])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    report.write(&rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    assert!(woken == "holder: awake, refused: true" && report.text()? == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
