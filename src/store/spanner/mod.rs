//! A store in a table of Cloud Spanner. The table has the columns of spindle's table and more; rows that spindle wrote
//! are read and respected.
//!
//! Atomic: each call that writes is one serializable read-write transaction of two requests: a query of the row and of
//! the service's time, which also begins the transaction, and a commit of what the pure transition makes of the row.
//! Clock: the service's. An exclusive grant is stamped by the commit: its timestamp, in microseconds, is the token. The
//! token of a shared grant is made from the time of the query. Aborted transactions are repeated until the deadline.
//! Unanswered: a commit that was sent, and whose fate neither its answer nor a repeat of it by the SDK settled. Giving
//! up writes the row. So each transaction that has read the row and is still on its way aborts at its commit; no set of
//! grant ids is kept.
//!
//! The SDK lives on one thread, the `driver`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::transactional;
use super::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which,
};
use crate::lease::LockRecord;
use crate::model::error::Result;
use crate::store::fleet::{Fleet, Watch};
use crate::sys::deadline::Deadline;
use crate::sys::driver::{Driver, Stopped};

mod error;
pub mod fence;
mod made;
mod mixed;
mod open;
mod read;
mod row;
mod schema;
mod swap;
mod transact;

use error::{Own, SpannerError};
pub use open::{Settings, SpannerOptions};
pub(crate) use transact::Flight;

/// Decodes a row that a test made up, given by its columns, as this store reads it. Also makes the rows that writes
/// over it would send.
#[cfg(feature = "_internals")]
pub fn decoded(columns: &serde_json::Value) -> std::result::Result<crate::lease::LockRecord, String> {
    let (_, row) = row::Row::made_up(columns);
    let record = row.decode("k", Duration::from_secs(20))?;
    let next = crate::lease::LockRecord { version: record.version.saturating_add(1), ..record.clone() };
    for stamps in [row::Stamps::Commits, row::Stamps::Records] {
        let _ = row.next(&record, &next, stamps);
    }
    Ok(record)
}

/// See the module.
pub struct Spanner {
    info: StoreInfo,
    target: Arc<Target>,
    driver: Driver<open::Handles>,
}

/// The table, and how its rows are read.
#[derive(Debug)]
struct Target {
    database: String,
    table: String,
    /// For how long after its heartbeat a row of spindle is respected.
    foreign_lease: Duration,
    fleet: Fleet,
    watch: Watch,
    /// Whether the service has answered this client. If so, the client has credentials.
    has_worked: AtomicBool,
}

impl fmt::Debug for Spanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spanner").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Spanner {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);

    /// Connects, and checks whether the database can be used. The table may be missing.
    pub fn open(options: SpannerOptions, by: &Deadline) -> Result<Spanner> {
        let label = options.label();
        Spanner::connect(options, by).map_err(|error| error.with_store(&label))
    }

    fn connect(options: SpannerOptions, by: &Deadline) -> Result<Spanner> {
        options.validate()?;
        let info = StoreInfo {
            beside: Some(mixed::LIBRARY),
            ..StoreInfo::new(options.label(), "Spanner's", options.bounds())
        };
        let target = Arc::new(Target {
            database: options.database.clone(),
            table: options.table.clone(),
            foreign_lease: options.spindle_duration.saturating_add(mixed::DRIFT),
            fleet: options.fleet,
            watch: Watch::default(),
            has_worked: AtomicBool::new(false),
        });
        let over = |stopped| match stopped {
            Stopped::Over => SpannerError::Own(Own::NotConnected, None).into(),
            stopped => SpannerError::unconnected(stopped),
        };
        let driver = Driver::start(by, move || open::handles(options), over)?;
        let store = Spanner { info, target, driver };
        store.check_dialect(by)?;
        store.target.has_worked.store(true, Ordering::Relaxed);
        Ok(store)
    }
}

impl Backend for Spanner {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        Ok(self.table_schema(what, by)?)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        transactional::acquire(self, attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        transactional::renew(self, attempt, renewal, by)
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        transactional::release(self, attempt, purpose, by)
    }

    /// A poll is a strong read, like any other: a stale read would not give the service's time.
    fn read(&self, which: &Which, from: Option<String>, _consistency: Consistency, by: &Deadline) -> Result<Page> {
        Ok(self.read_page(which, from, by)?)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        Ok(self.swap_record(seen, new, by)?)
    }
}
