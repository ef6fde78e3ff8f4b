//! What only the DynamoDB store has.
//!
//! One table, with a string as its partition key and no sort key, holds the locks; it can be the table of
//! dynamodb-lock-go, whose rows are read and respected. [`create_schema`](crate::LockClient::create_schema) makes
//! the table. Acquire, heartbeat, release and refusal are one request each.
//!
//! The service's clock decides, as the `Date` of its answers tells it: a takeover waits a grace (a second) after
//! the end of a lease. Reading by prefix or lock id scans the table.

use std::time::Duration;

pub use aws_config;
use aws_config::SdkConfig;
pub use aws_sdk_dynamodb;

use crate::backend::dynamodb::{DynamodbOptions, Settings};
use crate::builder::ClientBuilder;
use crate::connect::dynamodb_table;
use crate::rt::clock::Clock;

/// A client of the locks in this table, with the region, endpoint and credentials of `config`. Its retries and
/// timeouts are not used, nor its HTTP client: connections are our own, on a thread of our own.
///
/// # Example
/// ```no_run
/// # use leasehold::dynamodb::aws_config;
/// # fn main() -> leasehold::Result<()> {
/// # let config = aws_config::SdkConfig::builder().build();
/// // let config = aws_config::load_defaults(..).await;
/// let client = leasehold::dynamodb::builder(config, "locks").connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(config: SdkConfig, table: impl Into<String>) -> ClientBuilder {
    let options = DynamodbOptions::new(table, Settings::Given(Box::new(config)));
    ClientBuilder::with_opener(dynamodb_table(options), Clock::system())
}

/// The same with another partition key than `key`, and another grace than a second.
pub fn builder_with(
    config: SdkConfig,
    table: impl Into<String>,
    partition_key: impl Into<String>,
    grace: Duration,
) -> ClientBuilder {
    let settings = Settings::Given(Box::new(config));
    let options =
        DynamodbOptions { partition_key: partition_key.into(), grace, ..DynamodbOptions::new(table, settings) };
    ClientBuilder::with_opener(dynamodb_table(options), Clock::system())
}
