//! What only the DynamoDB store has.
//!
//! One table, with a string as its partition key and no sort key, holds the locks ([`Table::sort_key`] is for one that has
//! one, which other things may share); it can be the table of dynamodb-lock-go, whose rows are read and respected. Acquire,
//! heartbeat, release and refusal are one request each.
//!
//! The service's clock decides, as the `Date` of its answers tells it: a takeover waits a grace (a second) after
//! the end of a lease. A holder must count itself as lost at least 100 ms before its end, since that time is known no
//! better: a smaller [`margin`](crate::ClientBuilder::margin) is refused. Reading by prefix or lock id scans the table.
//!
//! A proxy on the way must pass on the service's `Date` and `Server` (nginx: `proxy_pass_header`): one that says `nginx` is
//! refused when connecting, and of one that hides `Server` the log warns once, since some write a `Date` of their own.
//! Where the time is told no more later, the log warns once, and who wants a lock gets an error, which may be repeated. Held
//! locks go on for a thousand leases, or fewer while the host's clock is being corrected; then their heartbeats fail with
//! that error, and they are lost.
//!
//! # The table
//! [`create_schema`](crate::LockClient::create_schema) makes the table, waits until it serves, and may be repeated;
//! with [`Table::deletion_protection`] and [`Table::point_in_time_recovery`] it sees to these, also for a table that is
//! there. [`schema`](crate::LockClient::schema) gives the same as a command of this region, and of the endpoint if it is another one, to be pasted into a
//! shell. With CloudFormation:
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
//! Keys from the profile files (`~/.aws/credentials`) are read once, by the SDK: after they were replaced there, clients must
//! connect anew. What an instance, a container, a process or single sign-on gives is asked for again.
//!
//! No time to live: rows are small, and a purge deletes those that are free and were last granted a month ago. After a
//! restore from a backup fencing tokens still rise, since they are made from the time; see
//! the guide's page on [operating](crate::guide::operating) for what a backup brings back.
//!
//! # Shared holders
//! They stand in one row, some 256 bytes each, and each renewal writes the whole row. The service writes no more than
//! 1,000 KB of a row in a second and keeps 400 KB of it. With n holders and a heartbeat each h seconds (a third of the
//! lease) that is n x n x 256 bytes in h seconds, so n is at most the square root of 4,000 h:
//!
//! | lease | holders |
//! |---|---|
//! | 5 s | 81 |
//! | 20 s | 163 |
//! | 60 s | 282 |
//! | 5 min | 632 |
//! | 30 min or more | 1,400 |
//!
//! More than that and renewals are refused for their rate, until holders lose the lock. A `max_holders` above it is
//! refused, and a row above 20 KB is warned of once in the log; long owners and comments make it larger. Whoever would
//! leave too little of the 400 KB for everybody's heartbeats is refused (`InvalidInput`). What a holder costs rises with
//! their number: at 160 of 256 bytes each heartbeat is 40 write units.
//!
//! # Cost
//! Every step writes a row of less than 1 KB, one write unit, also where it is refused; a look of a waiter reads it eventually
//! consistent, half a read unit.
//!
//! | what | cost |
//! |---|---|
//! | a hold, however short | 2 write units: acquire, release |
//! | an hour held, lease 20 s | 540 write units: a heartbeat in 6.7 s |
//! | `try_lock` on what others hold | 1 write unit |
//! | the first hour waited | 1 write unit and at most 2160 read units: 4 looks a second, after a minute 2, after ten 1 |
//! | each further hour waited | at most 1800 read units |
//! | a takeover, a waiter's turn after a release | 1 write unit for each waiter that tries |
//! | listing, groups by lock id, purge | the whole table is read: a read unit for each 4 KB |
//!
//! A second request is needed by an acquire that finds a token ahead of this client's time, that comes after minutes without
//! any request (or seconds, while the host's clock is being corrected fast), or that is the first with a larger grace than
//! others have; by a shared holder that joins others, that releases while it ends last, or that renews below another's end;
//! and once in ten minutes. Connecting takes two. All
//! waiters of one client and key cost what one does, since only the first in line asks. A wider
//! [`poll`](crate::ClientBuilder::poll) costs less. [`operating`](crate::guide::operating) has the sums in dollars.
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
//! A transaction with a [condition check](ConditionCheck) also needs `dynamodb:ConditionCheckItem`, and what the rest of
//! it does.
//!
//! With `dynamodb:DescribeTable` each connecting client checks the table's key and refuses replicas without strong
//! consistency, where two regions could grant one lock. Where that is denied it goes on, and logs once that they were
//! not checked. As policies, of which each role gets the statement with its name:
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

/// A client of the locks in this table, with the region, endpoint and credentials of `config`. Its retries and
/// timeouts are not used, nor its HTTP client: connections are our own, on a thread of our own.
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

/// A table: its name, and what differs from the defaults. A text is the table of this name.
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

    /// For a table that also has a sort key, a string: its name, and the value that all rows of this client's locks have
    /// in it, as `sort_key=NAME:VALUE` in the URL. Clients with different values share no locks, rows with other values
    /// are never touched, and the grace is agreed on among those with the same one. [Listing](crate::LockClient::list)
    /// reads the whole table all the same. Not with [`mixed_fleet`](Table::mixed_fleet), whose tables have none.
    /// Defaults to a table without a sort key.
    pub fn sort_key(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.sort_key = Some(SortKey { name: name.into(), value: value.into() });
        self
    }

    /// For how long after its end a lease is respected, since two clients know the service's time a little
    /// differently: at most a minute. A client that knows the time less well than that waits for longer: by less than half a
    /// second where answers are quick. Defaults to 1 s.
    ///
    /// All clients of a table must have the same, since whoever waits for less would take over too early: the table notes
    /// the largest with which a lock was ever acquired, and connecting with less is an error that says what to do. Who is
    /// connected already waits for as long from then on, at the latest after ten minutes. Less than the default is for a
    /// table that [`create_schema`](crate::LockClient::create_schema) made with it.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.0.grace = grace;
        self
    }

    /// For a table that processes of dynamodb-lock-go use, too: as `fleet=mixed` in the URL.
    /// [Its guide](crate::guide::moving_dynamodb_lock_go) says what that changes and how to move. With it the grace is
    /// at least 5 s, and shared locks, locks without end and leases of names are refused. Defaults to a table of
    /// leasehold's own.
    pub fn mixed_fleet(mut self) -> Self {
        self.0 = self.0.of(Fleet::Mixed);
        self
    }

    /// Whether [`create_schema`](crate::LockClient::create_schema) sees to it that the service refuses to delete the
    /// table. It never takes that protection away. Defaults to false.
    pub fn deletion_protection(mut self, wanted: bool) -> Self {
        self.0.protection.deletion = wanted;
        self
    }

    /// Whether [`create_schema`](crate::LockClient::create_schema) turns on that the table can be restored as it was
    /// at any moment of the last 35 days, which the service charges for. It never turns that off. Defaults to false.
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
///             Canceled::Other => { /* another part was refused, if the code is "None" */ }
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
    /// conflict, and repeated; the guard repeats by itself. DynamoDB has no transactions in global tables with multi-region
    /// strong consistency: there only the token fences.
    ///
    /// # Errors
    /// `InvalidInput` for a lock of another kind of store; `Closed` in a forked child.
    fn condition_check(&self) -> Result<types::ConditionCheck>;

    /// What the reason that stands at the place of the check says, when the transaction was cancelled.
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
