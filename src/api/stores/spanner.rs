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
//!   given_up STRING(MAX),
//!   not_after TIMESTAMP
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
//! Reading by lock id (`unlock`, `renew`) goes by the index: it reads the exclusive locks of that id, and every key
//! that is held by shared holders, whose lock ids stand in `holders`.
//!
//! # Roles
//! `roles/spanner.databaseUser` on the database for all but `create_schema`, which needs
//! `roles/spanner.databaseAdmin` (`spanner.databases.updateDdl`). Whoever only looks (`get`, `list`) needs
//! `roles/spanner.databaseReader`.
//!
//! # Making the table
//! [`create_schema`](crate::LockClient::create_schema) sends DDL by REST, to where Google's client looks, or ten ports
//! above `SPANNER_EMULATOR_HOST`. `admin_endpoint=http://HOST:PORT` in the URL, or else the environment variable
//! `LEASEHOLD_SPANNER_ADMIN_ENDPOINT`, names another place. It waits for up to ten minutes for what the service has
//! begun. Every column of texts must take at least 1,024 characters; it makes a shorter one `STRING(MAX)`. Other columns
//! may stand beside these if they are nullable, have a default or are generated; these may have no default, and the table
//! no row deletion policy.
//!
//! # Versions
//! Google's client is a preview, and so are the names in this module: they follow it and are exempt from semver.

use std::time::Duration;

pub use google_cloud_spanner;
use google_cloud_spanner::builder::SpannerBuilder;
use google_cloud_spanner::client::DatabaseClient;
use google_cloud_spanner::model::transaction_options::IsolationLevel;
use google_cloud_spanner::statement::Statement;
use google_cloud_spanner::transaction::ReadWriteTransaction;

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::fleet::Fleet;
use crate::store::spanner::fence::{assertion, in_context};
use crate::store::spanner::{Flight, Settings, SpannerOptions};
use crate::sys::clock::Clock;

/// A client of the locks in this table of the database `projects/P/instances/I/databases/D`, with the endpoint,
/// credentials and connections of `settings`. The SDK's client that they make lives on a thread of our own.
///
/// Credentials that you make yourself (`with_credentials`) get their tokens by a task of the runtime on which you made them.
/// It must go on running while calls of this crate block, as one of several threads does, and for as long as the client is
/// used. Without them ours are made on that thread, too, and once more where the service does not accept them any more. That is
/// no end of a wait, since it may be over soon: after a suspend, say. Of those that you make a token that has ended stays in use
/// until they renew it by themselves.
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
pub fn builder(settings: SpannerBuilder, database: impl Into<String>, table: impl Into<Table>) -> ClientBuilder {
    let Table { name, fleet, spindle_duration } = table.into();
    let options = SpannerOptions::new(database, name, Settings::Given(Box::new(settings)));
    let opener = options.of(fleet, spindle_duration).and_then(SpannerOptions::opener);
    ClientBuilder::with_opener(opener, Clock::system())
}

/// A table: its name, and what differs from the defaults. A text is the table of this name.
#[derive(Clone, Debug)]
#[must_use = "a table does nothing until a client is built on it"]
pub struct Table {
    name: String,
    fleet: Fleet,
    spindle_duration: Option<Duration>,
}

impl Table {
    /// The table of this name: 1 to 120 ASCII letters, digits and `_`, not beginning with a digit.
    pub fn new(name: impl Into<String>) -> Self {
        Table { name: name.into(), fleet: Fleet::Own, spindle_duration: None }
    }

    /// How long a node of spindle may go without a heartbeat: its rows are respected for that and a second. Defaults to
    /// 20 s, but must be set with [`mixed_fleet`](Table::mixed_fleet); the nodes' own default is 10 s.
    pub fn spindle_duration(mut self, duration: Duration) -> Self {
        self.spindle_duration = Some(duration);
        self
    }

    /// For a table that nodes of spindle use, too: as `fleet=mixed` in the URL.
    /// [Its guide](crate::guide::moving_spindle) says what that changes and how to move. Needs
    /// [`spindle_duration`](Table::spindle_duration), the same for all nodes: it is the lease of all locks then.
    /// Defaults to a table of leasehold's own.
    pub fn mixed_fleet(mut self) -> Self {
        self.fleet = Fleet::Mixed;
        self
    }
}

named_by_text!(Table: &str, String, &String);

/// Lets a user's own read-write transaction be committed only while a lock or lease [stands](Fenced).
pub trait AssertIn: Fenced {
    /// Asserts in `transaction`, which must be serializable. A rival's takeover and the transaction exclude each other
    /// from then on.
    ///
    /// **Pass the error on** out of the closure of the SDK's runner, so that it rolls back: a commit after an error
    /// that was dropped would go through. [`run_fenced`] leaves no way to forget that.
    ///
    /// # Errors
    /// The SDK's own, with the code `OUT_OF_RANGE`, when it is not held any more; for a lock of another store, and in a
    /// forked child, an error without a code.
    fn assert_in(
        &self,
        transaction: &ReadWriteTransaction,
    ) -> impl Future<Output = Result<(), google_cloud_spanner::Error>>;
}

impl<T: Fenced> AssertIn for T {
    async fn assert_in(&self, transaction: &ReadWriteTransaction) -> Result<(), google_cloud_spanner::Error> {
        let statement = self.standing().and_then(assertion).map_err(google_cloud_spanner::Error::ser)?;
        assert_by(statement, transaction).await
    }
}

async fn assert_by(
    statement: Statement,
    transaction: &ReadWriteTransaction,
) -> Result<(), google_cloud_spanner::Error> {
    let mut rows = transaction.execute_query(statement).await?;
    // The answer to a query comes with its rows.
    while rows.next().await.transpose()?.is_some() {}
    Ok(())
}

/// Runs `work` in a serializable read-write transaction, asserts that the lock or lease is held, and commits; again
/// from the start where the service aborts it. So `work` may run several times. The commit is repeated as the SDK does by
/// default, without a limit: a retry policy that `database` was given is not used for it, since repeats must be seen.
/// Whoever must not wait so long drops the future; then it is not known whether it was committed. The future can go from thread
/// to thread, as in `tokio::spawn`, if `work` has what it uses (`async move`): the compiler takes one that borrows for one
/// that can't.
///
/// # Errors
/// `Lost` when it is not held any more: nothing was committed. `Ambiguous` when no answer settled whether it was
/// committed, as when a repeat of the commit failed. Else an error of kind `Store` whose source is what the SDK or `work`
/// gave; `InvalidInput` for a lock of another kind of store; `Closed` in a forked child.
///
/// # Example
/// ```no_run
/// use leasehold::spanner::{google_cloud_spanner as sdk, run_fenced};
///
/// # async fn publish(database: sdk::client::DatabaseClient, guard: leasehold::LockGuard) -> leasehold::Result<()> {
/// let update = sdk::statement::Statement::builder("UPDATE report SET text = 'new' WHERE id = 1").build();
/// run_fenced(&guard, &database, async move |transaction| transaction.execute_update(update.clone()).await).await?;
/// # Ok(())
/// # }
/// ```
pub async fn run_fenced<T, W>(fenced: &impl Fenced, database: &DatabaseClient, mut work: W) -> Result<T>
where
    W: AsyncFnMut(ReadWriteTransaction) -> Result<T, google_cloud_spanner::Error>,
{
    let standing = fenced.standing()?;
    let (asserts, flight) = (assertion(standing)?, Flight::default());
    let follows = flight.clone();
    let runner = database.read_write_transaction().set_isolation_level(IsolationLevel::Serializable);
    // It has all that it uses: a future that borrows through such a closure can't be sent.
    let run = runner.with_commit_retry_policy(flight.repeats()).build().run(async move |transaction| {
        follows.read()?;
        let done = work(transaction.clone()).await?;
        assert_by(asserts.clone(), &transaction).await?;
        follows.commit()?;
        Ok(done)
    });
    let done = run.await.map(|result| result.into_inner());
    done.map_err(|error| in_context(error, standing, &flight))
}
