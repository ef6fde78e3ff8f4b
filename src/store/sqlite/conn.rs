//! Connections, and waiting for others: every wait ends with the call's deadline or its cancellation.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionState};

use super::error::SqliteError;
use super::file::{self, FileId, Log};
use super::own_locks::Header;
use super::register::Opened;
use crate::model::error::Error;
use crate::store::transactional::Durability;
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::thread::keeping_a_lock;

/// The pause after a busy answer. A transaction of ours takes less, and a process that writes all the time leaves no
/// longer gaps.
pub(super) const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// The pause of a longer wait, which is for a process that was stopped, or has much to write.
const LONG_PAUSE: Duration = Duration::from_millis(3);
/// A wait is a longer one after this many pauses.
const SHORT_PAUSES: usize = 400;
/// The longest pause between two tries of a call that holds no lock yet.
pub(super) const LAST_PAUSE: Duration = Duration::from_millis(10);
/// The slices in which a call waits for a connection, so that a cancelled call does not wait on.
pub(super) const SLICE: Duration = Duration::from_millis(10);
/// How many bytes of the log are kept when it restarts.
const KEPT_LOG: u64 = 4 << 20;
/// A log of more bytes is not copied by the last close.
const LONG_LOG: u64 = 64 << 20;
/// If no write has been seen by others yet, up to this many unseen ones in a row may be an accident.
const MOST_UNSEEN: u32 = 10;

/// A connection that is in the register until SQLite has closed it.
#[derive(Debug)]
pub(super) struct Conn {
    conn: Connection,
    /// `None` until it is open.
    log: Option<Log>,
    // Declared after the connection, and so dropped after it.
    opened: Opened,
}

impl Conn {
    /// Keeps the log from being removed by others, once it is open. Returns which log it is.
    pub(super) fn protect(&mut self, path: &Path, by: &Deadline) -> Result<Log, SqliteError> {
        // A connection that only reads can take no lock of our own, and writes to no log.
        let log = if self.conn.is_readonly("main").unwrap_or(false) {
            let log = Log::of(path).map_err(|source| SqliteError::looking(path, source))?;
            log.ok_or_else(|| SqliteError::Moved { path: path.to_owned() })?
        } else {
            self.opened.protect(path, by).inspect_err(|_| leave_log(&self.conn))?
        };
        self.log = Some(log.clone());
        Ok(log)
    }

    /// [`Opened::header`]
    pub(super) fn header(&self) -> Option<Header> {
        self.opened.header()
    }

    /// Whether its log, and the index by which it reads that, are those that others use now.
    fn has_the_log(&self) -> bool {
        let is_seen = || {
            // A connection that is at work will close the log later. If its process was stopped, SQLite would wait for
            // it for ten seconds.
            let begun = !self.opened.is_at_work() && self.conn.execute_batch("BEGIN IMMEDIATE").is_ok();
            let is_seen = begun && self.opened.is_seen_writing();
            is_seen && self.conn.execute_batch("ROLLBACK").is_ok()
        };
        self.log.as_ref().is_none_or(|log| !log.is_replaced() && is_seen())
    }
}

impl Deref for Conn {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // A log that others do not use must not be copied into the file. A long one, which a read kept from being
        // copied, would take longer than a drop may: the next write copies it.
        let is_long = || self.log.as_ref().is_some_and(|log| log.len() > LONG_LOG);
        if !self.has_the_log() || is_long() {
            leave_log(&self.conn);
        }
        self.opened.closing();
    }
}

/// Makes the close of this connection leave the log as it is, instead of copying it into the file.
fn leave_log(conn: &Connection) {
    // It can only fail if SQLite is too old to know this option.
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
}

/// Opens the file, which must be there.
pub(super) fn open(path: &Path, file: FileId, durability: Durability, by: &Deadline) -> Result<Conn, SqliteError> {
    let doing = "open the database";
    file::keep_off_standard_streams(path)?;
    let opened = Opened::new(path, file, by)?;
    let failed = |source| SqliteError::Engine { path: path.to_owned(), doing, source };
    // One thread at a time uses a connection: it is behind a mutex of ours.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Conn {
        conn: Connection::open_with_flags(path, flags).map_err(|source| explained(failed(source), path))?,
        log: None,
        opened,
    };
    // If SQLite can't open it for writing, it opens it for reading. This user may write, so then no descriptor was
    // free.
    if conn.is_readonly("main").map_err(failed)? && file::is_writable(path) {
        let source = file::exhausted().unwrap_or_else(|| io::ErrorKind::Interrupted.into());
        return Err(SqliteError::File { path: path.to_owned(), doing: "open the database to write to it", source });
    }
    // We wait by ourselves: SQLite's waiting knows neither deadline nor cancellation.
    conn.busy_timeout(Duration::ZERO).map_err(failed)?;
    // The first statement reads the file.
    promise(&conn, durability, path, doing, by).map_err(|error| explained(error, path))?;
    // SQLite restarts the log after 1,000 pages, but not while somebody reads. A log that grew longer is cut to about
    // that length when it restarts. On macOS, only a full sync reaches more than the cache of the disk.
    let settings =
        format!("PRAGMA journal_size_limit = {KEPT_LOG}; PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1");
    conn.execute_batch(&settings).map_err(failed)?;
    Ok(conn)
}

/// Says what is denied, or used up, if SQLite only says that it failed.
pub(super) fn explained(error: SqliteError, path: &Path) -> SqliteError {
    use rusqlite::ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
    let SqliteError::Engine { doing, source, .. } = &error else { return error };
    let exhausted = || file::exhausted().map(|source| SqliteError::File { path: path.to_owned(), doing, source });
    match source.sqlite_error_code() {
        Some(CannotOpen) => file::denied(path).or_else(exhausted).unwrap_or(error),
        Some(PermissionDenied | ReadOnly) => file::denied(path).unwrap_or(error),
        _ => error,
    }
}

/// Sets the durability of the commits that follow.
fn promise(
    conn: &Connection,
    durability: Durability,
    path: &Path,
    doing: &'static str,
    by: &Deadline,
) -> Result<(), SqliteError> {
    let sql = match durability {
        Durability::PowerCut => "PRAGMA synchronous = FULL",
        Durability::Process => "PRAGMA synchronous = NORMAL",
    };
    let failed = |source| SqliteError::Engine { path: path.to_owned(), doing, source };
    busy_retried(path, by, doing, || conn.execute_batch(sql).map_err(failed))
}

/// The connection that writes.
#[derive(Debug)]
pub(super) struct Writer {
    conn: Conn,
    /// The durability of its commits; `None` if it is not known.
    promised: Option<Durability>,
    /// How many more writes may go unseen by others.
    unseen: Cell<u32>,
}

impl Writer {
    pub(super) fn open(path: &Path, file: FileId, by: &Deadline) -> Result<Writer, SqliteError> {
        let durability = Durability::PowerCut;
        Ok(Writer {
            conn: open(path, file, durability, by)?,
            promised: Some(durability),
            unseen: Cell::new(MOST_UNSEEN),
        })
    }

    /// [`Conn::protect`]
    pub(super) fn protect(&mut self, path: &Path, by: &Deadline) -> Result<Log, SqliteError> {
        self.conn.protect(path, by)
    }

    /// An error if the transaction writes and others do not see that. `LockEnded`: somebody's close may have ended the
    /// lock, so the transaction must begin anew. `Moved`: nobody ever saw it, so SQLite uses an index of the log that
    /// is not at its path.
    pub(super) fn check_seen(&self, path: &Path) -> Result<(), SqliteError> {
        if !self.writes() {
            return Ok(());
        }
        if self.conn.opened.is_seen_writing() {
            self.unseen.set(u32::MAX);
            return Ok(());
        }
        let left = self.unseen.get().checked_sub(1).ok_or_else(|| SqliteError::Moved { path: path.to_owned() })?;
        self.unseen.set(left);
        Err(SqliteError::LockEnded { path: path.to_owned() })
    }

    /// Begins a transaction of a holder: calls that want a lock let it pass.
    pub(super) fn begin<'a>(&'a self, how: Begin, path: &'a Path, by: &Deadline) -> Result<Tx<'a>, SqliteError> {
        let once = Tx::begin(self, how, path, &Deadline::at(Instant::now()));
        if !matches!(once, Err(SqliteError::Busy { .. })) {
            return once;
        }
        let _until_it_has = self.conn.opened.hurry();
        Tx::begin(self, how, path, by)
    }

    /// Whether the transaction writes, and so keeps out a holder that waits to write.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.writes() && self.conn.opened.is_in_a_hurry()
    }

    fn writes(&self) -> bool {
        matches!(self.conn.transaction_state(Some("main")), Ok(TransactionState::Write))
    }

    /// Reserves room in the file for the pages that a transaction has added. On a full disk, pages that only the log
    /// has would keep the log from being copied, and from restarting. (A process that copies the log at this very
    /// moment may cut the room off again.)
    pub(super) fn reserve(&self, tx: &Tx<'_>) -> Result<(), SqliteError> {
        let failed = |source| SqliteError::Engine { path: tx.path.to_owned(), doing: "make the file longer", source };
        let number = |sql| tx.prepare_cached(sql)?.query_row([], |row| row.get::<_, u32>(0));
        if !self.writes() {
            return Ok(());
        }
        let size = number("PRAGMA page_size").map_err(failed)?;
        let Some(before) = self.conn.opened.pages(size) else { return Ok(()) };
        let pages = number("PRAGMA page_count").map_err(failed)?;
        let [all, own] = [pages, pages.saturating_sub(before)].map(|pages| u64::from(pages) * u64::from(size));
        self.conn.opened.reserve(all, own).map_err(|error| {
            let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            let code = if is_full { rusqlite::ffi::SQLITE_FULL } else { rusqlite::ffi::SQLITE_IOERR };
            failed(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(error.to_string())))
        })
    }

    /// Sets the durability of the next commit. This can't be done inside a transaction.
    pub(super) fn promise(&mut self, durability: Durability, path: &Path, by: &Deadline) -> Result<(), SqliteError> {
        if self.promised != Some(durability) {
            self.promised = None;
            promise(&self.conn, durability, path, "set the durability", by)?;
            self.promised = Some(durability);
        }
        Ok(())
    }
}

impl Deref for Writer {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        &self.conn
    }
}

/// Locks a connection, in slices of this length: see [`SLICE`].
pub(super) fn lock<'a, C>(
    conn: &'a Mutex<C>,
    path: &Path,
    by: &Deadline,
    slice: Duration,
) -> Result<MutexGuard<'a, C>, SqliteError> {
    loop {
        let left = by.remaining();
        if left.is_zero() {
            return Err(SqliteError::NoTurn { path: path.to_owned() });
        }
        if let Some(conn) = conn.try_lock_for(left.min(slice)) {
            return Ok(conn);
        }
    }
}

/// Repeats `what` while others have the file locked.
pub(super) fn busy_retried<T>(
    path: &Path,
    by: &Deadline,
    doing: &'static str,
    mut what: impl FnMut() -> Result<T, SqliteError>,
) -> Result<T, SqliteError> {
    let mut pauses = std::iter::repeat_n(FIRST_PAUSE, SHORT_PAUSES).chain(std::iter::repeat(LONG_PAUSE));
    loop {
        match what() {
            Err(SqliteError::Engine { source, .. }) if SqliteError::is_busy(&source) => {
                // The writer may be locked here while heartbeats wait for it, so this thread must not wait for the
                // logger, which may hang.
                keeping_a_lock(|| log::trace!(target: "leasehold::sqlite", "busy, waiting to {doing}"));
                if !pauses.next().is_some_and(|pause| by.wait_for(pause)) {
                    return Err(SqliteError::Busy { path: path.to_owned() });
                }
            }
            done => return done,
        }
    }
}

/// How a transaction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// As the one writer, which waits for the others.
    Write,
    /// As a reader, which waits for nobody and holds up nobody. Its first write is busy when somebody else
    /// writes, or has written since it read: then all of it has to begin anew, to write.
    Read,
}

/// A transaction; rolled back when dropped.
#[derive(Debug)]
pub(super) struct Tx<'a> {
    conn: &'a Connection,
    path: &'a Path,
}

impl<'a> Tx<'a> {
    pub(super) fn begin(
        conn: &'a Connection,
        how: Begin,
        path: &'a Path,
        by: &Deadline,
    ) -> Result<Tx<'a>, SqliteError> {
        let sql = match how {
            Begin::Write => "BEGIN IMMEDIATE",
            Begin::Read => "BEGIN",
        };
        let doing = "begin a transaction";
        busy_retried(path, by, doing, || run(conn, path, doing, sql))?;
        Ok(Tx { conn, path })
    }

    /// Commits. `Some`: it failed in a way that leaves open whether it happened.
    pub(super) fn commit(self, by: &Deadline) -> Result<Option<SqliteError>, SqliteError> {
        let doing = "commit";
        let commit = || match run(self.conn, self.path, doing, "COMMIT") {
            // The whole transaction must begin anew: SQLite has rolled it back.
            Err(SqliteError::Engine { source, .. }) if SqliteError::is_busy(&source) && self.conn.is_autocommit() => {
                Err(SqliteError::Busy { path: self.path.to_owned() })
            }
            done => done,
        };
        let committed = busy_retried(self.path, by, doing, commit);
        match committed {
            Ok(()) => Ok(None),
            // Not even the last frame of the log was written.
            Err(error) if is_disk_full(&error) => Err(error),
            // The last frame may be on disk although its sync failed: a recovery would find it.
            Err(error @ SqliteError::Engine { .. }) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn is_disk_full(error: &SqliteError) -> bool {
    let SqliteError::Engine { source, .. } = error else { return false };
    source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// Copies the log into the file, as far as nobody reads it or copies it, too. A log that was copied completely restarts
/// at the next write, in the room that it has. Call it only where file and log were just seen to be those that others
/// use.
pub(super) fn copy_log(conn: &Connection) {
    // If it fails, the log stays as it is.
    let _ = conn.execute_batch("PRAGMA wal_checkpoint");
}

fn run(conn: &Connection, path: &Path, doing: &'static str, sql: &str) -> Result<(), SqliteError> {
    let done = conn.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
    done.map(drop).map_err(|source| SqliteError::Engine { path: path.to_owned(), doing, source })
}

impl Deref for Tx<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.conn
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.conn.is_autocommit()
            && let Err(error) = run(self.conn, self.path, "roll back", "ROLLBACK")
        {
            keeping_a_lock(|| log::warn!(target: "leasehold::sqlite", "{}", Error::from(error)));
        }
    }
}
