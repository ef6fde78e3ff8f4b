//! What only the Cloud Spanner store has.
//!
//! One table holds the locks. [`create_schema`](crate::LockClient::create_schema) makes it, or adds to a table of
//! spindle what it lacks; [`schema`](crate::LockClient::schema) prints the DDL. Rows that spindle wrote are read and
//! respected. The service's clock decides, and the token of a grant is the timestamp of its commit in microseconds.
//!
//! # The table
//! ```sql
//! CREATE TABLE `locks` (
//!   name STRING(MAX) NOT NULL,
//!   heartbeat TIMESTAMP OPTIONS (allow_commit_timestamp = true),
//!   token TIMESTAMP OPTIONS (allow_commit_timestamp = true),
//!   writer STRING(MAX),
//!   grant_id STRING(MAX),
//!   lock_id STRING(MAX),
//!   lease_ms INT64,
//!   owner STRING(MAX),
//!   host STRING(MAX),
//!   comment STRING(MAX),
//!   holders JSON,
//!   kind STRING(MAX),
//!   pins ARRAY<STRING(MAX)>,
//!   format STRING(MAX),
//!   given_up STRING(MAX)
//! ) PRIMARY KEY (name);
//! CREATE NULL_FILTERED INDEX `locks_lock_id` ON `locks`(lock_id);
//! ```
//!
//! # Cost
//! Acquire, heartbeat, release and refusal are one read-write transaction of two requests each; a look of a waiter
//! is one request. So a lock of 20 s that is held for a minute costs about a dozen transactions. All transactions on
//! one key write one row, and the service commits those one after the other: across regions, where a commit takes
//! some ten milliseconds, that is at most about a hundred a second for one key. Keys do not slow down each other.
//!
//! Reading by lock id reads the whole table, since the lock ids of shared holders stand in `holders`.
//!
//! # Roles
//! `roles/spanner.databaseUser` on the database for all but `create_schema`, which needs
//! `roles/spanner.databaseAdmin` (`spanner.databases.updateDdl`).
//!
//! # Versions
//! Google's client is a preview, and so are the names in this module: they follow it and are exempt from semver.

pub use google_cloud_spanner;
use google_cloud_spanner::builder::SpannerBuilder;

use crate::backend::spanner::{Settings, SpannerOptions};
use crate::builder::ClientBuilder;
use crate::connect::spanner_table;
use crate::rt::clock::Clock;

/// A client of the locks in this table of the database `projects/P/instances/I/databases/D`, with the endpoint,
/// credentials and connections of `settings`. The SDK's client that they make lives on a thread of our own.
///
/// # Example
/// ```no_run
/// use leasehold::spanner::google_cloud_spanner::client::Spanner;
/// # fn main() -> leasehold::Result<()> {
/// let database = "projects/my-project/instances/my-instance/databases/my-database";
/// let client = leasehold::spanner::builder(Spanner::builder(), database, "locks").connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(settings: SpannerBuilder, database: impl Into<String>, table: impl Into<String>) -> ClientBuilder {
    let options = SpannerOptions::new(database, table, Settings::Given(Box::new(settings)));
    ClientBuilder::with_opener(spanner_table(options), Clock::system())
}
