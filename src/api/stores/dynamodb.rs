//! What only the DynamoDB store has.
//!
//! One table, with a string as its partition key and no sort key, holds the locks. ([`Table::sort_key`] is for a table
//! that has one, which may also contain other things.) It can be the table of dynamodb-lock-go, whose rows are read and
//! respected. Acquire, heartbeat, release and refusal are one request each.
//!
//! The service's clock decides; clients learn its time from the `Date` of the service's answers. A takeover waits a
//! grace (a second) after the end of a lease. A holder must count itself as lost at least 100 ms before that end, since
//! the time is not known more precisely: a smaller [`margin`](crate::ClientBuilder::margin) is refused. Reading by
//! prefix or lock id scans the table.
//!
//! A proxy on the way must pass on the service's `Date` and `Server` (nginx: `proxy_pass_header`). A proxy that says
//! `nginx` as `Server` is refused when connecting. If it hides `Server`, the log warns once, since some proxies write a
//! `Date` of their own. If the service's time is no longer known later on, the log warns once, and calls that want a
//! lock get a retryable error. Held locks go on for a thousand leases, or fewer while the host's clock is being
//! corrected; then their heartbeats fail with that error, and they are lost.
//!
//! # The table
//! [`create_schema`](crate::LockClient::create_schema) makes the table, waits until it serves, and may be repeated;
//! with [`Table::deletion_protection`] and [`Table::point_in_time_recovery`] it also turns these on, even for an
//! existing table. [`schema`](crate::LockClient::schema) returns the same as a command for a shell, with this region,
//! and with the endpoint if that is not the region's own. With CloudFormation:
//!
//! ```yaml
//! Resources:
//!   Locks:
//!     Type: AWS::DynamoDB::Table
//!     DeletionPolicy: Retain
//!     Properties:
//!       TableName: locks
//!       BillingMode: PAY_PER_REQUEST
//!       AttributeDefinitions: [{ AttributeName: key, AttributeType: S }]
//!       KeySchema: [{ AttributeName: key, KeyType: HASH }]
//!       DeletionProtectionEnabled: true
//!       PointInTimeRecoverySpecification: { PointInTimeRecoveryEnabled: true }
//! ```
//!
//! Credentials from the profile files (`~/.aws/credentials`) are read once, by the SDK: after they are replaced there,
//! clients must connect again. Those from an instance, a container, a process or single sign-on are requested again. A
//! profile of `aws login` (`login_session`) can't be used, since that needs more crates: use another profile with
//! `credential_process = aws configure export-credentials --profile NAME`.
//!
//! The table needs no time to live: rows are small, and a purge deletes those that are free and were last granted a
//! month ago. After a restore from a backup fencing tokens still rise, since they are made from the time; see the
//! guide's page on [operating](crate::guide::operating) for what a backup brings back.
//!
//! # Shared holders
//! All shared holders of a key are in one row, some 256 bytes each, and each renewal writes the whole row. The service
//! writes no more than 1,000 KB of a row in a second and stores at most 400 KB of it. With n holders and a heartbeat
//! every h seconds (a third of the lease) that is n x n x 256 bytes in h seconds, so n is at most the square root of
//! 4,000 h:
//!
//! | lease | holders |
//! |---|---|
//! | 5 s | 81 |
//! | 20 s | 163 |
//! | 60 s | 282 |
//! | 5 min | 632 |
//! | 30 min or more | 1,400 |
//!
//! With more holders, renewals are refused because of their rate, until holders lose the lock. A `max_holders` above
//! the bound is refused, and the log warns once of a row above 20 KB; long owners and comments make it larger. A holder
//! that would leave too little of the 400 KB for everybody's heartbeats is refused (`InvalidInput`). The cost of each
//! holder rises with their number, and so that of the key with its square: with 160 holders of 256 bytes each heartbeat
//! is 40 write units.
//!
//! # Cost
//! Every step of an exclusive lock writes a row of less than 1 KB, one write unit, also if it is refused; a check by a
//! waiter reads the row eventually consistent, half a read unit.
//!
//! | what | cost |
//! |---|---|
//! | a hold, however short | 2 write units: acquire, release; with a lease above a minute 3, since a renewal sets it |
//! | an hour held, lease 20 s | 540 write units: a heartbeat in 6.7 s |
//! | `try_lock` on what others hold | 1 write unit |
//! | the first hour waited | 1 write unit and at most 2160 read units: 4 looks a second, after a minute 2, after ten 1 |
//! | each further hour waited | at most 1800 read units |
//! | a takeover, a waiter's turn after a release | 1 write unit for each waiter that tries |
//! | listing, groups by lock id, purge | the whole table is read: a read unit for each 4 KB |
//!
//! A second request is needed by an acquire that finds a token ahead of this client's time, that comes after minutes
//! without any request (or seconds, while the host's clock is being corrected fast), or that is the first with a larger
//! grace than others have; by a shared holder that joins others, that releases while its lease ends last, or whose
//! renewed lease ends before another holder's; and once in ten minutes. Connecting takes two. All waiters of one client
//! and key cost what one does, since only the first in the queue sends requests. A wider
//! [`poll`](crate::ClientBuilder::poll) costs less. In a table with replicas in several regions each write is billed in
//! each of these regions. [`operating`](crate::guide::operating) has the sums in dollars.
//!
//! # Rights
//! The least that an IAM policy must allow on `arn:aws:dynamodb:REGION:ACCOUNT:table/locks`:
//!
//! | who | actions |
//! |---|---|
//! | locker: every lock, guard, wait and single look | `dynamodb:GetItem`, `dynamodb:UpdateItem` |
//! | observer: `get`, `list` | `dynamodb:GetItem`, `dynamodb:Scan` |
//! | operator: also groups by lock id, `purge`, `create_schema` | `dynamodb:GetItem`, `dynamodb:UpdateItem`, `dynamodb:Scan`, `dynamodb:DeleteItem`, `dynamodb:DescribeTable`, `dynamodb:CreateTable`; for the protections `dynamodb:UpdateTable`, `dynamodb:UpdateContinuousBackups` |
//!
//! A transaction with a [condition check](ConditionCheck) also needs `dynamodb:ConditionCheckItem`, and the actions for
//! its other parts.
//!
//! With `dynamodb:DescribeTable` each connecting client checks the table's key and refuses replicas without strong
//! consistency, where two regions could grant one lock. If this action is denied, the client goes on, and logs once
//! that these were not checked. The same as policies, of which each role gets the statement with its name:
//!
//! ```json
//! {
//!   "Version": "2012-10-17",
//!   "Statement": [
//!     {
//!       "Sid": "locker",
//!       "Effect": "Allow",
//!       "Action": ["dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:DescribeTable"],
//!       "Resource": "arn:aws:dynamodb:eu-central-1:123456789012:table/locks"
//!     },
//!     {
//!       "Sid": "observer",
//!       "Effect": "Allow",
//!       "Action": ["dynamodb:GetItem", "dynamodb:Scan", "dynamodb:DescribeTable"],
//!       "Resource": "arn:aws:dynamodb:eu-central-1:123456789012:table/locks"
//!     },
//!     {
//!       "Sid": "operator",
//!       "Effect": "Allow",
//!       "Action": [
//!         "dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:Scan", "dynamodb:DeleteItem", "dynamodb:DescribeTable",
//!         "dynamodb:CreateTable", "dynamodb:UpdateTable", "dynamodb:UpdateContinuousBackups"
//!       ],
//!       "Resource": "arn:aws:dynamodb:eu-central-1:123456789012:table/locks"
//!     }
//!   ]
//! }
//! ```

use std::time::Duration;

pub use aws_config;
use aws_config::SdkConfig;
pub use aws_sdk_dynamodb;
use aws_sdk_dynamodb::types::{self, CancellationReason};

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
pub use crate::store::dynamodb::fence::Canceled;
use crate::store::dynamodb::{DynamodbOptions, Settings, SortKey};
use crate::store::fleet::Fleet;
use crate::sys::clock::Clock;

/// A client of the locks in this table, with the region, endpoint and credentials of `config`. The retries, timeouts,
/// HTTP client, identity cache, time source and correction of clock skew of `config` are not used: the client makes its
/// own connections, on a thread of its own, and signs by the service's time. That thread also runs the credentials
/// provider of `config`, which must not block it: no heartbeat is sent meanwhile.
///
/// # Example
/// ```no_run
/// # use leasehold::dynamodb::{Table, aws_config};
/// # fn main() -> leasehold::Result<()> {
/// # let config = aws_config::SdkConfig::builder().build();
/// // let config = aws_config::load_defaults(..).await;
/// let table = Table::new("locks").deletion_protection(true);
/// let client = leasehold::dynamodb::builder(config, table).connect()?;
/// client.create_schema()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(config: SdkConfig, table: impl Into<Table>) -> ClientBuilder {
    let mut options = table.into().0;
    options.settings = Settings::Given(Box::new(config));
    ClientBuilder::with_opener(options.opener(), Clock::system())
}

/// A table: its name, and what differs from the defaults. A text converts into the table of this name.
#[derive(Clone, Debug)]
#[must_use = "a table does nothing until a client is built on it"]
pub struct Table(DynamodbOptions);

impl Table {
    /// The table of this name: 3 to 255 letters, digits, `_`, `-` and `.`.
    pub fn new(name: impl Into<String>) -> Self {
        Table(DynamodbOptions::new(name, Settings::Environment { region: None, endpoint: None }))
    }

    /// The name of its partition key, a string. Defaults to `key`.
    pub fn partition_key(mut self, name: impl Into<String>) -> Self {
        self.0.partition_key = name.into();
        self
    }

    /// For a table that also has a sort key, a string: its name, and the value that all rows of this client's locks
    /// have there, as `sort_key=NAME:VALUE` in the URL. Clients with different values share no locks, and rows with
    /// other values are never touched. Clients with the same value must have the same grace.
    /// [Listing](crate::LockClient::list) reads the whole table all the same. Refused with
    /// [`mixed_fleet`](Table::mixed_fleet), whose tables have no sort key. Defaults to a table without a sort key.
    pub fn sort_key(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.sort_key = Some(SortKey { name: name.into(), value: value.into() });
        self
    }

    /// For how long after its end a lease is respected, since two clients know the service's time a little differently:
    /// at most a minute. A client that knows the time less precisely than that waits longer: by less than half a second
    /// if answers are quick. Defaults to 1 s.
    ///
    /// All clients of a table must have the same grace, since a client that waits for less would take over too early.
    /// The table notes the largest grace with which a lock was ever acquired, and connecting with less is an error that
    /// says what to do. Clients that are connected already wait for as long from then on, at the latest after ten
    /// minutes. A grace below the default is for a table that [`create_schema`](crate::LockClient::create_schema) made
    /// with it.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.0.grace = grace;
        self
    }

    /// For a table that processes of dynamodb-lock-go use, too: as `fleet=mixed` in the URL.
    /// [The guide](crate::guide::moving_dynamodb_lock_go) says what that changes and how to move. The grace is then at
    /// least 5 s, and shared locks, locks without end and leases of names are refused. Defaults to a table that only
    /// leasehold uses.
    pub fn mixed_fleet(mut self) -> Self {
        self.0 = self.0.of(Fleet::Mixed);
        self
    }

    /// Whether [`create_schema`](crate::LockClient::create_schema) makes the service refuse to delete the table. It
    /// never takes that protection away. Defaults to false.
    pub fn deletion_protection(mut self, wanted: bool) -> Self {
        self.0.protection.deletion = wanted;
        self
    }

    /// Whether [`create_schema`](crate::LockClient::create_schema) turns on point-in-time recovery: the table can be
    /// restored as it was at any moment of the last 35 days, which the service charges for. It never turns that off.
    /// Defaults to false.
    pub fn point_in_time_recovery(mut self, wanted: bool) -> Self {
        self.0.protection.recovery = wanted;
        self
    }
}

named_by_text!(Table: &str, String, &String);

/// Lets a user's own transaction be applied only while a lock or lease [stands](Fenced).
///
/// # Example
/// ```no_run
/// use leasehold::dynamodb::{Canceled, ConditionCheck, aws_sdk_dynamodb as sdk};
/// use sdk::types::{Put, TransactWriteItem};
///
/// # async fn publish(sdk: sdk::Client, guard: leasehold::LockGuard, put: Put) -> Result<(), Box<dyn std::error::Error>> {
/// loop {
///     let check = TransactWriteItem::builder().condition_check(guard.condition_check()?).build();
///     let put = TransactWriteItem::builder().put(put.clone()).build();
///     let sent = sdk.transact_write_items().transact_items(check).transact_items(put).send().await;
///     let Err(error) = sent else { return Ok(()) };
///     let error = error.into_service_error();
///     if let sdk::operation::transact_write_items::TransactWriteItemsError::TransactionCanceledException(canceled) = &error
///         && let Some(reason) = canceled.cancellation_reasons().first() // in the order of the items
///     {
///         match guard.read_reason(reason)? {
///             Canceled::Lost(lost) => return Err(lost.into()), // it was not applied
///             Canceled::Conflict => {
///                 // Nothing was applied: again, a moment later.
///                 tokio::time::sleep(std::time::Duration::from_millis(20)).await;
///                 continue;
///             }
///             Canceled::Other => { /* another part was refused, if the code is "None" */ }
///             _ => {}
///         }
///     }
///     return Err(error.into());
/// }
/// # }
/// ```
pub trait ConditionCheck: Fenced {
    /// A part of `TransactWriteItems` that lets the transaction be applied only while the lock or lease
    /// [stands](Fenced). A transaction may contain the row of one lock only once. The guard's own heartbeat and the
    /// transaction can conflict: one of them is then refused, and has to be repeated; the guard repeats by itself.
    /// DynamoDB has no transactions in global tables with multi-region strong consistency: there only the token fences.
    ///
    /// # Errors
    /// `InvalidInput` for a lock of another kind of store; `Closed` in a forked child.
    fn condition_check(&self) -> Result<types::ConditionCheck>;

    /// When the transaction was cancelled: what the cancellation reason at the position of the check means.
    ///
    /// # Errors
    /// As [`condition_check`](ConditionCheck::condition_check).
    fn read_reason(&self, reason: &CancellationReason) -> Result<Canceled>;
}

impl<T: Fenced> ConditionCheck for T {
    fn condition_check(&self) -> Result<types::ConditionCheck> {
        crate::store::dynamodb::fence::condition_check(self.standing()?)
    }

    fn read_reason(&self, reason: &CancellationReason) -> Result<Canceled> {
        crate::store::dynamodb::fence::read_reason(self.standing()?, reason)
    }
}
