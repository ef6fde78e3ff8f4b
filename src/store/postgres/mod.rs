//! A store in a table of PostgreSQL.
//!
//! Atomic: an exclusive acquire, its renewal and its release are one statement each with the meaning of the pure
//! transition. For what such a statement can't say (shared holders, acquisitions that were given up,
//! `SameOwner::Replace`), the row is read, and what the pure transition makes of it is written if the row's version is
//! still the same. Clock: the server's, `clock_timestamp()` after the wait for the row's lock, never the time when a
//! transaction began; there is no grace. Unanswered: the connection is lost after a statement may have left, the server
//! ends the session, or the commit did not wait for its standby. Giving up: the grant id stays in the row for half a
//! minute, and no copy of an acquire does anything ten seconds after it was sent, by the server's clock.
//!
//! Every write waits until its commit is on the server's disk, whatever the user's default of `synchronous_commit` is.
//! The exception is the release of a lease that ends within a minute: if it is lost in a crash, the lease that remains
//! ends by itself. tokio-postgres lives on one thread, the `driver`.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::{
    Acquired, Attempt, Backend, Bounds, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen,
    StoreInfo, Swapped, Which,
};
use crate::lease::LockRecord;
use crate::model::error::Result;
use crate::store::late::Clocked;
use crate::sys::deadline::Deadline;
use crate::sys::driver::Driver;

mod acquire;
mod direct;
mod error;
pub mod fence;
mod making;
mod open;
mod read;
mod release;
mod renew;
mod row;
mod schema;
mod send;
mod session;
mod statements;
mod swap;
mod tls;
mod transact;
mod turns;
mod wakeup;

use error::PostgresError;
pub use open::PostgresOptions;
use open::Table;
use statements::Statements;

/// Decodes an answer that a test made up, given by its columns, as this store reads it.
#[cfg(feature = "_internals")]
pub fn decoded(columns: &serde_json::Value) -> std::result::Result<LockRecord, String> {
    row::made_up(columns)
}

/// See the module.
pub struct Postgres {
    info: StoreInfo,
    table: Table,
    pooled: bool,
    statements: Statements,
    clocked: Clocked,
    driver: Driver<send::Owned>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Postgres {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);

    /// Connects and learns what kind of server it is. The table may be missing.
    pub fn open(options: PostgresOptions, by: &Deadline) -> Result<Postgres> {
        let label = options.label();
        Postgres::connect(options, by).map_err(|error| error.with_store(&label))
    }

    fn connect(options: PostgresOptions, by: &Deadline) -> Result<Postgres> {
        let (table, hosts, tls) = (options.table(), options.hosts(), options.tls()?);
        let pooled = options.is_pooled();
        let (said, hears) = crossbeam_channel::bounded(1);
        let (theirs, limit) = (table.clone(), by.remaining());
        let init = move || async move {
            let (owned, server) = send::Owned::new(hosts, tls, theirs, pooled, limit).await?;
            let _ = said.send(server);
            Ok(owned)
        };
        let driver = Driver::start(by, init, PostgresError::unconnected)?;
        let server = hears.try_recv().map_err(|_| PostgresError::NotSent)?;
        let clocked = Clocked::just(server.now.time());
        let table = table.within(&server.schema);
        let info = StoreInfo {
            // A commit whose wait for the standby was cut off can be read, and a failover may undo it.
            reads_what_may_be_undone: true,
            ..StoreInfo::new(
                options.label_of(&table.full),
                "the PostgreSQL server's, clock_timestamp()",
                Bounds::of(Postgres::MIN_LEASE),
            )
        };
        let statements = Statements::of(&table.quoted, pooled);
        Ok(Postgres { info, table, pooled, statements, clocked, driver })
    }
}

impl Backend for Postgres {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        Ok(self.table_schema(what, by)?)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        self.acquire_key(attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        self.renew_grant(attempt, renewal, by)
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        self.release_grant(attempt, purpose, by)
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        Ok(self.read_page(which, from, consistency, by)?)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        Ok(self.swap_record(seen, new, by)?)
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        Ok(self.wake_keys(keys, to, by)?)
    }
}
