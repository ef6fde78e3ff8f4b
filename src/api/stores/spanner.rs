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
//! Acquire, heartbeat, release and refusal are one read-write transaction of two requests each; a check by a waiter is
//! one request. So a lock of 20 s that is held for a minute costs about a dozen transactions. All transactions on one
//! key write one row, and the service commits those one after the other: across regions, where a commit takes some ten
//! milliseconds, that is at most about a hundred a second for one key. Keys do not slow each other down.
//!
//! Reading by lock id (`unlock`, `renew`) uses the index: it reads the exclusive locks of that id, and every key that
//! is held by shared holders, whose lock ids are in `holders`.
//!
//! # Roles
//! `roles/spanner.databaseUser` on the database for all but `create_schema`, which needs `roles/spanner.databaseAdmin`
//! (`spanner.databases.updateDdl`). A user that only reads (`get`, `list`) needs `roles/spanner.databaseReader`.
//!
//! # Making the table
//! [`create_schema`](crate::LockClient::create_schema) sends DDL by REST, to the default endpoint of Google's client,
//! or to the port ten above that of `SPANNER_EMULATOR_HOST`. `admin_endpoint=http://HOST:PORT` in the URL, or else the
//! environment variable `LEASEHOLD_SPANNER_ADMIN_ENDPOINT`, names another endpoint. `create_schema` waits for up to ten
//! minutes for what the service has begun. Every text column must take at least 1,024 characters; `create_schema` makes
//! a shorter one `STRING(MAX)`. The table may have other columns if they are nullable, have a default or are generated.
//! The columns above may have no default, and the table may have no row deletion policy.
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
use crate::store::spanner::fence::{assertion, in_context, unsettled};
use crate::store::spanner::{Flight, Settings, SpannerOptions};
use crate::sys::clock::Clock;

/// A client of the locks in this table of the database `projects/P/instances/I/databases/D`, with the endpoint,
/// credentials and connections of `settings`. The SDK's client that is made from them lives on a thread of its own.
///
/// Credentials that you make yourself (`with_credentials`) get their tokens by a task of the runtime on which you made
/// them. That runtime must go on running while calls of this crate block, as one with several threads does, and for as
/// long as the client is used. Without `with_credentials` the client makes its own credentials on its own thread, and
/// makes them again if the service does not accept them any more. Such a refusal does not end a wait, since it may be
/// over soon: after a suspend, for example. If you made the credentials, a token that has expired stays in use until
/// they renew it by themselves.
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

/// A table: its name, and what differs from the defaults. A text converts into the table of this name.
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

    /// How long a node of spindle may go without a heartbeat: its rows are respected for that time and a second.
    /// Defaults to 20 s, but must be set with [`mixed_fleet`](Table::mixed_fleet); the nodes' own default is 10 s.
    pub fn spindle_duration(mut self, duration: Duration) -> Self {
        self.spindle_duration = Some(duration);
        self
    }

    /// For a table that nodes of spindle use, too: as `fleet=mixed` in the URL.
    /// [The guide](crate::guide::moving_spindle) says what that changes and how to move. Needs
    /// [`spindle_duration`](Table::spindle_duration), the same for all nodes: it is then the lease of all locks.
    /// Defaults to a table that only leasehold uses.
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
    /// **Pass the error on** out of the closure of the SDK's runner, so that it rolls back: if the error is dropped,
    /// the commit succeeds. And a result without `commit_timestamp()` is not settled: it may not have been committed.
    /// [`run_fenced`] sees to both.
    ///
    /// # Errors
    /// The SDK's error, with the code `OUT_OF_RANGE`, when the lock is not held any more; for a lock of another store,
    /// and in a forked child, an error without a code.
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
    // The result of a query, or its error, comes with its rows.
    while rows.next().await.transpose()?.is_some() {}
    Ok(())
}

/// Runs `work` in a serializable read-write transaction, asserts that the lock or lease is held, and commits. If the
/// service aborts the transaction, it begins again from the start. So `work` may run several times. The commit is
/// repeated as the SDK does by default, without a limit. A retry policy of `database` is not used for the commit, since
/// this function must see the repeats. If you must not wait so long, drop the future; then it is not known whether the
/// transaction was committed. The future is `Send`, as `tokio::spawn` requires, if `work` owns what it uses
/// (`async move`): a `work` that borrows is refused by the compiler there.
///
/// # Errors
/// `Lost` when the lock is not held any more: nothing was committed. `Ambiguous` when no answer settled whether it was
/// committed, as when a repeat of the commit failed. Otherwise an error of kind `Store` whose source is the error of
/// the SDK or of `work`; `InvalidInput` for a lock of another kind of store; `Closed` in a forked child.
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
    // The closure owns all that it uses: the compiler can't prove that a future which borrows through it is `Send`.
    let run = runner.with_commit_retry_policy(flight.repeats()).build().run(async move |transaction| {
        follows.read()?;
        let done = work(transaction.clone()).await?;
        assert_by(asserts.clone(), &transaction).await?;
        follows.commit()?;
        Ok(done)
    });
    let result = run.await.map_err(|error| in_context(error, standing, &flight))?;
    // The SDK also takes the answer that asks for the commit once more for a success, if it comes a second time.
    if result.commit_timestamp().is_none() { Err(unsettled(standing)) } else { Ok(result.into_inner()) }
}
