//! A store in an SQLite file, for the processes of one host.
//!
//! Atomic: `BEGIN IMMEDIATE`, read, pure transition, write, `COMMIT`. An acquisition begins as a reader, so that a
//! refusal neither waits for a writer nor is one. It begins anew as a writer if another writer came in between. Clock:
//! the host's boot-time clock, which all its processes share; see `boot` for holders of an earlier boot. What issues a
//! token is on disk before the answer. Nothing is unanswered, except a commit that failed with an I/O error.
//!
//! A file that was removed or replaced while it is open is no store any more: a renewal is answered as lost, a release
//! finds nothing, and every other call fails. If only its log was removed or replaced, the rows are still in the file
//! that all others use, so a release fails, too. Copying a backup *into* the open file is not noticed. A user who puts
//! another file in its place must remove the `-wal` and `-shm` files next to it. Otherwise SQLite applies the old log
//! to the new file, and uses the old index.
//!
//! Reads have a connection of their own and wait for no writer. `wakeup` wakes waiters when a row has changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::transactional;
use super::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which,
};
use crate::lease::{LockRecord, StoreTime, Times};
use crate::model::error::Result;
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

mod boot;
mod conn;
mod error;
pub mod fence;
mod file;
mod holders;
mod open;
mod own_locks;
mod read;
mod register;
mod row;
mod schema;
mod swap;
#[cfg(test)]
mod tests;
mod transact;
mod wakeup;

use boot::Here;
use conn::{Conn, Writer};
use error::SqliteError;
use file::{FileId, Log};
pub use open::SqliteOptions;
use transact::Claiming;
use wakeup::Watch;

/// What this store reads in a row that a test made up, as the columns of the table.
#[cfg(feature = "_internals")]
pub fn decoded(columns: &rusqlite::Row<'_>) -> std::result::Result<crate::lease::LockRecord, String> {
    let row = row::Row::decode(columns, std::path::Path::new("made-up")).map_err(|error| error.to_string())?;
    let now = crate::lease::StoreTime::from_nanos(1_000_000_000);
    let view = row.view((1, 0), Here { clock: "boot:0", now, wall: 1_790_000_000_000_000 });
    let _ = row.next(&view, &view.record, None, "here");
    Ok(view.record)
}

/// See the module.
#[derive(Debug)]
pub struct Sqlite {
    info: StoreInfo,
    target: Target,
    /// One connection for all writes: with two, each would have to read again what the other one wrote.
    writer: Mutex<Writer>,
    /// For reads; never waits for `writer`.
    reader: Mutex<Conn>,
    watch: Watch,
    /// This client made the table, and `create_schema` has not reported it yet.
    made: AtomicBool,
}

/// The file, and the clock of its times.
#[derive(Clone, Debug)]
struct Target {
    path: PathBuf,
    file: FileId,
    log: Log,
    clock: Arc<Clock>,
    clock_identity: String,
    /// The file stores texts as the bytes that they have here (UTF-8).
    #[cfg_attr(not(feature = "capi"), allow(dead_code))]
    is_utf8: bool,
}

impl Target {
    /// An error if the path does not lead to the opened file any more, or its log is another one.
    fn check(&self) -> Result<(), SqliteError> {
        let is_there = self.log.is_there().map_err(|source| SqliteError::looking(&self.path, source));
        match identity(&self.path)? == Some(self.file) && is_there? {
            true => Ok(()),
            false => Err(SqliteError::Moved { path: self.path.clone() }),
        }
    }

    /// Whether the path leads to another file, or to none, for certain.
    fn is_elsewhere(&self) -> bool {
        identity(&self.path).is_ok_and(|there| there != Some(self.file))
    }

    /// If the file or its log was removed or replaced, `Moved` is what is wrong, whatever SQLite found in the old log.
    fn explained(&self, error: SqliteError) -> SqliteError {
        match self.check() {
            Err(moved @ SqliteError::Moved { .. }) => moved,
            _ => conn::explained(error, &self.path),
        }
    }

    fn times(&self) -> Result<Times, SqliteError> {
        Ok(Times::without_grace(now(&self.clock, &self.path)?, self.clock.wall_micros()))
    }

    fn here(&self, times: &Times) -> Here<'_> {
        Here { clock: &self.clock_identity, now: times.now, wall: times.stamp }
    }
}

impl Sqlite {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
}

/// An error if the clock can't be read: its time would say that every lease is over, also one of a process that can
/// read the clock.
fn now(clock: &Clock, path: &Path) -> Result<StoreTime, SqliteError> {
    let nanos = i64::try_from(clock.now().as_nanos());
    nanos.map(StoreTime::from_nanos).map_err(|_| SqliteError::NoClock { path: path.to_owned() })
}

/// The store's name in errors and in the data of locks. Two files whose paths are not UTF-8 have different names.
fn label(path: &Path) -> String {
    let parts = path.as_os_str().as_encoded_bytes().utf8_chunks();
    parts.fold("sqlite:".to_owned(), |name, part| format!("{name}{}{}", part.valid(), part.invalid().escape_ascii()))
}

fn identity(path: &Path) -> Result<Option<FileId>, SqliteError> {
    file::identity(path).map_err(|source| SqliteError::looking(path, source))
}

impl Backend for Sqlite {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        self.run_schema(what, by)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        transactional::acquire(&Claiming(self, attempt.grant()), attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        match transactional::renew(&Claiming(self, attempt.grant()), attempt, renewal, by) {
            // Nobody would see what is written here.
            Err(error) if error.is_gone() => {
                Ok(Renewed::Lost(Seen::new(LockRecord::missing(&attempt.key), self.target.times()?, None)))
            }
            renewed => renewed,
        }
    }

    /// To give up is to release: no copy of an acquisition is ever on its way.
    fn release(&self, attempt: &mut Attempt, _purpose: Purpose, by: &Deadline) -> Result<Released> {
        match transactional::release(&Claiming(self, attempt.grant()), attempt, Purpose::Release, by) {
            // If only its log is gone, it is still the file of all others, and the row is in it.
            Err(error) if error.is_gone() && self.target.is_elsewhere() => Ok(Released::Free),
            released => released,
        }
    }

    /// Ignores the consistency: a poll is as strong as any other read.
    fn read(&self, which: &Which, from: Option<String>, _consistency: Consistency, by: &Deadline) -> Result<Page> {
        self.read_page(which, from, by)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.swap_row(seen, new, by)
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        self.wake_keys(keys, to, by)
    }
}
