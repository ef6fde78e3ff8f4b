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
use aws_sdk_dynamodb::types::{self, CancellationReason};

use crate::backend::dynamodb::{DynamodbOptions, Settings};
use crate::builder::ClientBuilder;
use crate::connect::dynamodb_table;
use crate::error::{Error, Result};
use crate::fence::Fenced;
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

/// Lets a user's own transaction be applied only while a lock or lease is held.
///
/// # Example
/// ```no_run
/// use leasehold::dynamodb::{Canceled, ConditionCheck, aws_sdk_dynamodb as sdk};
/// use sdk::types::{Put, TransactWriteItem};
///
/// # async fn publish(sdk: sdk::Client, guard: leasehold::LockGuard, put: Put) -> Result<(), Box<dyn std::error::Error>> {
/// let check = TransactWriteItem::builder().condition_check(guard.condition_check()?).build();
/// let put = TransactWriteItem::builder().put(put).build();
/// let sent = sdk.transact_write_items().transact_items(check).transact_items(put).send().await;
/// if let Err(error) = sent {
///     let error = error.into_service_error();
///     if let sdk::operation::transact_write_items::TransactWriteItemsError::TransactionCanceledException(canceled) = &error
///         && let Some(reason) = canceled.cancellation_reasons().first()
///     {
///         match guard.read_reason(reason)? {
///             Canceled::Lost(lost) => return Err(lost.into()), // it was not applied
///             Canceled::Conflict => { /* nothing was applied: try again */ }
///             Canceled::Other => { /* another part of the transaction was refused */ }
///             _ => {}
///         }
///     }
///     return Err(error.into());
/// }
/// # Ok(())
/// # }
/// ```
pub trait ConditionCheck: Fenced {
    /// A part of `TransactWriteItems` that lets it be applied only while this is held. The row of one lock may stand
    /// only once in a transaction. The guard's own heartbeat and the transaction can meet: either is then refused as a
    /// conflict, and repeated; the guard repeats by itself.
    ///
    /// # Errors
    /// `InvalidInput` for a lock of another store; `Closed` in a forked child.
    fn condition_check(&self) -> Result<types::ConditionCheck>;

    /// What the reason that stands at the place of the check says, when the transaction was cancelled.
    ///
    /// # Errors
    /// As [`condition_check`](ConditionCheck::condition_check).
    fn read_reason(&self, reason: &CancellationReason) -> Result<Canceled>;
}

impl<T: Fenced> ConditionCheck for T {
    fn condition_check(&self) -> Result<types::ConditionCheck> {
        crate::backend::dynamodb::fence::condition_check(self.standing()?)
    }

    fn read_reason(&self, reason: &CancellationReason) -> Result<Canceled> {
        crate::backend::dynamodb::fence::read_reason(self.standing()?, reason)
    }
}

/// Why a transaction with a [`ConditionCheck`] was not applied, as far as the check can tell.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Canceled {
    /// The lock is not held any more: an error of kind `Lost` that tells who holds it.
    Lost(Error),
    /// Another write was under way on one of the items. Try again.
    Conflict,
    /// The check passed; another part was refused.
    Other,
}
