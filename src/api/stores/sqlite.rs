//! What only the SQLite store has.

use std::path::PathBuf;

pub use rusqlite;
use rusqlite::Transaction;

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::sqlite::SqliteOptions;
use crate::sys::clock::Clock;

/// A client of the locks in this file, whatever characters its path has: in a store URL some of
/// them mean something else. The file is created if it is missing. The options `mode` and `unsafe_fs` exist in URLs only,
/// where a path has `%25` for `%` and `%3F` for `?`.
///
/// # Example
/// ```
/// # let room = tempfile::tempdir().unwrap();
/// # let folder = room.path();
/// let client = leasehold::sqlite::builder(folder.join("100%?.db")).connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn builder(path: impl Into<PathBuf>) -> ClientBuilder {
    ClientBuilder::with_opener(SqliteOptions::new(path).opener(), Clock::system())
}

/// Makes a transaction in the lock file commit only while a lock or lease [stands](Fenced).
///
/// # Example
/// ```
/// use leasehold::sqlite::{AssertIn, rusqlite};
///
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("app.db");
/// let client = leasehold::sqlite::builder(&file).connect()?;
/// let guard = client.lock("report")?;
///
/// let mut db = rusqlite::Connection::open(&file)?; // in the same file: the tables that such transactions write
/// let transaction = db.transaction()?;
/// transaction.execute_batch("CREATE TABLE report (text TEXT); INSERT INTO report VALUES ('done')")?;
/// guard.assert_in(&transaction)?; // an error when the lock was lost: the transaction is rolled back
/// transaction.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait AssertIn: Fenced {
    /// Asserts that the lock or lease is held, and keeps rivals out until the transaction ends: it takes the write lock
    /// of the lock file, though it writes nothing. What this transaction has written, or writes afterwards, also to an
    /// attached file, is committed only if nobody was granted the lock before the commit: a rival waits for the
    /// transaction, or has made the assertion fail.
    ///
    /// Pass the error on, so that the transaction is rolled back. Keep the transaction short: once it has asserted or
    /// written, no heartbeat of any lock in the file can be sent until it ends. A transaction that reads first fails
    /// with `SQLITE_BUSY` if anything was written to the file in between, for example by a heartbeat: begin it again,
    /// or begin it with `TransactionBehavior::Immediate`, for which heartbeats wait.
    ///
    /// The lock file must be the connection's main database, not an attached one, and the connection must be able to
    /// write to it.
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more; `InvalidInput` for a transaction in another file; `Closed` in a
    /// forked child; a retryable `Store` error when the transaction has to be begun again; otherwise SQLite's error.
    fn assert_in(&self, transaction: &Transaction<'_>) -> Result<()>;
}

impl<T: Fenced> AssertIn for T {
    fn assert_in(&self, transaction: &Transaction<'_>) -> Result<()> {
        crate::store::sqlite::fence::assert_in(self.standing()?, transaction)
    }
}
