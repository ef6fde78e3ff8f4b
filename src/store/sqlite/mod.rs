//! A store in an SQLite file, for the processes of one host.
//!
//! Atomic: `BEGIN IMMEDIATE`, read, pure transition, write, `COMMIT`. An acquisition begins as a reader, so that a
//! refusal neither waits for a writer nor is one, and anew as a writer if another one came in between. Clock: the
//! host's boot-time clock, which all its processes share; `boot` says how holders of an earlier boot are dealt with.
//! What issues a token is on disk before the answer. Nothing is unanswered but a commit that failed with an I/O error.
//!
//! A file that was removed or replaced while it is open is no store any more: acquire and swap fail, renew
//! says lost, release and the reading of one key find nothing. Copying a backup *into* the open file is not
//! noticed; and who puts another file in its place has to remove the `-wal` and `-shm` files beside it, or SQLite
//! applies the old log to the new file, and takes its index for its own.
//!
//! Reads have a connection of their own and wait for no writer. `watch` tells waiters that a row has changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::transactional::{self, Transacted, Transactional};
use super::{
    Acquired, Attempt, Backend, GrantForm, Page, Released, Renewal, Renewed, Schema, Seen, StoreInfo, Swapped, Which,
};
use crate::lease::{GrantId, LockRecord, Step, StoreTime, Times};
use crate::model::error::Result;
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

mod boot;
mod conn;
mod error;
pub mod fence;
mod file;
mod holders;
mod notice;
mod own_locks;
mod read;
mod register;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod watch;

use boot::Here;
use conn::{Begin, Conn, Durability, Tx, Writer};
use error::SqliteError;
use file::{FileId, Log};
use row::Row;
use watch::Watch;

/// What [`Sqlite::open`] needs to know.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file; made if it is missing.
    pub path: PathBuf,
    /// The mode of a file that is made. Defaults to 0600.
    pub mode: Option<u32>,
    /// Also on file systems that several kernels can share.
    pub unsafe_fs: bool,
    /// For tests: the identity of another boot's clock.
    pub clock_identity: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Sqlite {
    info: StoreInfo,
    place: Place,
    /// One for all writes: two would each read again what the other one wrote.
    writer: Mutex<Writer>,
    /// Never waits for the other one.
    reader: Mutex<Conn>,
    watch: Watch,
}

/// The file, and the clock that its times are told by.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    file: FileId,
    log: Log,
    clock: Arc<Clock>,
    clock_identity: String,
}

impl Place {
    /// An error if the path does not lead to the opened file any more, or its log is another one.
    fn check(&self) -> Result<(), SqliteError> {
        let is_there = self.log.is_there().map_err(|source| SqliteError::looking(&self.path, source));
        match identity(&self.path)? == Some(self.file) && is_there? {
            true => Ok(()),
            false => Err(SqliteError::Moved { path: self.path.clone() }),
        }
    }

    /// Whatever SQLite finds in a log that is not its own any more, that is what is wrong.
    fn explained(&self, error: SqliteError) -> SqliteError {
        match self.check() {
            Err(moved @ SqliteError::Moved { .. }) => moved,
            _ => explained(error, &self.path),
        }
    }

    fn times(&self) -> Times {
        let now = StoreTime::from_nanos(i64::try_from(self.clock.now().as_nanos()).unwrap_or(i64::MAX));
        Times { now, cut: now, stamp: self.clock.wall_micros() }
    }

    fn here(&self, times: &Times) -> Here<'_> {
        Here { clock: &self.clock_identity, now: times.now, wall: times.stamp }
    }
}

impl Sqlite {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);

    /// Opens the file, and makes the file and the table if they are missing. Several processes may do so at
    /// the same time.
    pub fn open(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Sqlite> {
        Ok(Sqlite::connect(options, clock, by, false)?)
    }

    /// The same, but a missing file is an error, and one that can only be read is opened for that.
    pub fn open_existing(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Sqlite> {
        Ok(Sqlite::connect(options, clock, by, true)?)
    }

    fn connect(
        options: SqliteOptions,
        clock: Arc<Clock>,
        by: &Deadline,
        must_exist: bool,
    ) -> Result<Sqlite, SqliteError> {
        // Absolute, so that a later change of the working directory does not lead to another file.
        let path = std::path::absolute(&options.path).map_err(|source| SqliteError::File {
            path: options.path.clone(),
            doing: "make the path absolute",
            source,
        })?;
        // What is refused is not made.
        register::check(&path, by)?;
        let mode = Some(options.mode.unwrap_or(0o600)).filter(|_| !must_exist);
        file::prepare(&path, mode, options.unsafe_fs)?;
        let before = identity(&path)?.ok_or_else(|| SqliteError::Moved { path: path.clone() })?;
        let open = || {
            // Who may only read would make the log and leave it behind, as a file of its own that others can't write.
            if !file::is_writable(&path)
                && !matches!(Log::of(&path), Ok(Some(_)))
                && let Some(denied) = file::denied(&path)
            {
                return Err(denied);
            }
            let mut writer = Writer::open(&path, before, by)?;
            if must_exist {
                schema::require(&writer, &path, by)?;
            } else {
                schema::create(&writer, &path, by)?;
            }
            if !must_exist
                && writer.is_readonly("main").unwrap_or(false)
                && let Some(denied) = file::denied(&path)
            {
                return Err(denied);
            }
            let log = writer.protect(&path, by)?;
            let mut reader = conn::open(&path, before, Durability::Process, by)?;
            match reader.protect(&path, by)? {
                of_reader if of_reader == log => Ok((writer, reader, log)),
                _ => Err(SqliteError::Moved { path: path.clone() }),
            }
        };
        let (writer, reader, log) = open().map_err(|error| explained(error, &path))?;
        // Both opened the file that is there before and after.
        if identity(&path)? != Some(before) {
            return Err(SqliteError::Moved { path });
        }
        let info = StoreInfo {
            label: label(&path),
            clock: "this host's boot-time clock",
            grace: Duration::ZERO,
            min_lease: Sqlite::MIN_LEASE,
            min_margin: Duration::ZERO,
            grant_form: GrantForm::Uuid,
            most_shared: None,
        };
        let clock_identity = options.clock_identity.unwrap_or_else(boot::clock_identity);
        let place = Place { path, file: before, log, clock, clock_identity };
        let (writer, reader) = (Mutex::new(writer), Mutex::new(reader));
        Ok(Sqlite { info, place, writer, reader, watch: Watch::default() })
    }

    /// A record with the times that it was read at.
    fn seen(&self, record: LockRecord, times: &Times) -> Seen {
        Seen { record, now: times.now, cut: times.cut, stamp: times.stamp, native: None }
    }

    /// Runs `work` in a transaction on the file that stands at the path; again if it began as a reader and could
    /// not write, or if somebody's close has ended SQLite's write lock meanwhile.
    fn write<T>(
        &self,
        mut begin: Begin,
        durability: Durability,
        by: &Deadline,
        mut work: impl FnMut(&Tx<'_>) -> Result<T, SqliteError>,
    ) -> Result<Written<T>, SqliteError> {
        let mut run = |begin| {
            let mut writer = conn::lock(&self.writer, &self.place.path, by)?;
            writer.promise(durability, &self.place.path, by)?;
            let tx = Tx::begin(&writer, begin, &self.place.path, by)?;
            let done = work(&tx)?;
            // Now, when others wait for the end of what is written.
            self.place.check()?;
            writer.check_seen(&self.place.path)?;
            Ok(match tx.commit(by)? {
                None => Written::Done(done),
                Some(error) => Written::Unknown(error),
            })
        };
        let written = loop {
            match run(begin) {
                Err(SqliteError::Engine { source, .. }) if begin == Begin::Read && SqliteError::is_busy(&source) => {
                    begin = Begin::Write;
                }
                Err(SqliteError::Busy { .. }) if by.wait_for(conn::FIRST_PAUSE) => {}
                written => break written,
            }
        };
        written.map_err(|error| self.place.explained(error))
    }

    /// One transition on one key. A holder that stands with times of another clock and is spoken for by
    /// `claim` is written anew on ours even if the transition changes nothing: its end on our clock is
    /// later than on its own, so what its process is told must be what the others read.
    fn transition<A>(
        &self,
        key: &str,
        durability: Durability,
        claim: Option<&GrantId>,
        by: &Deadline,
        mut transition: impl FnMut(&LockRecord, &Times) -> Step<A>,
    ) -> Result<Transacted<A>> {
        // An acquisition is the one that others refuse.
        let begin = if durability == Durability::PowerCut { Begin::Read } else { Begin::Write };
        let written = self.write(begin, durability, by, |tx| {
            let (format, row) = Row::read(tx, &self.place.path, key)?;
            let times = self.place.times();
            let here = self.place.here(&times);
            let view = row.view(format, here);
            let step = transition(&view.record, &times);
            let claimed = claim.filter(|grant| row.is_foreign(grant, here.clock));
            let next = step.record.or_else(|| claimed.map(|_| raised(&view.record)));
            let record = match (next, &view.sightings) {
                (Some(next), _) => {
                    row.next(&view, &next, claimed, here.clock).write(tx, &self.place.path, here.clock)?;
                    next
                }
                (None, Some(sightings)) => {
                    row.write_sightings(tx, &self.place.path, sightings)?;
                    view.record
                }
                (None, None) => view.record,
            };
            Ok((step.answer, record, times))
        });
        match written {
            Ok(Written::Done((answer, record, times))) => Ok(Transacted::Done(answer, self.seen(record, &times))),
            Ok(Written::Unknown(error)) => Ok(Transacted::Unknown(error.into())),
            // A file that is gone holds nothing, and nothing can be granted in it.
            Err(SqliteError::Moved { .. }) if durability == Durability::Process => {
                let (record, times) = (LockRecord::missing(key), self.place.times());
                let answer = transition(&record, &times).answer;
                Ok(Transacted::Done(answer, self.seen(record, &times)))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What the store is called in errors.
fn label(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// How a write went.
enum Written<T> {
    Done(T),
    Unknown(SqliteError),
}

fn raised(record: &LockRecord) -> LockRecord {
    LockRecord { version: record.version + 1, ..record.clone() }
}

fn identity(path: &Path) -> Result<Option<FileId>, SqliteError> {
    file::identity(path).map_err(|source| SqliteError::looking(path, source))
}

/// Says what is denied where SQLite only says that it could not.
fn explained(error: SqliteError, path: &Path) -> SqliteError {
    use rusqlite::ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
    match &error {
        SqliteError::Engine { source, .. }
            if matches!(source.sqlite_error_code(), Some(CannotOpen | PermissionDenied | ReadOnly)) =>
        {
            file::denied(path).unwrap_or(error)
        }
        _ => error,
    }
}

/// The store for one grant, see [`Sqlite::transition`].
struct Claiming<'a>(&'a Sqlite, &'a GrantId);

impl Transactional for Claiming<'_> {
    fn transact<A>(
        &self,
        key: &str,
        issues_token: bool,
        by: &Deadline,
        transition: impl FnMut(&LockRecord, &Times) -> Step<A>,
    ) -> Result<Transacted<A>> {
        let durability = if issues_token { Durability::PowerCut } else { Durability::Process };
        self.0.transition(key, durability, Some(self.1), by, transition)
    }
}

impl Backend for Sqlite {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        if what == Schema::Describe {
            let version = schema::USER_VERSION;
            return Ok(format!("PRAGMA journal_mode = WAL;\n{};\nPRAGMA user_version = {version};", schema::TABLE));
        }
        let run = || {
            self.place.check()?;
            if what == Schema::Create {
                let mut writer = conn::lock(&self.writer, &self.place.path, by)?;
                writer.promise(Durability::PowerCut, &self.place.path, by)?;
                schema::create(&writer, &self.place.path, by)?;
            }
            let conn = conn::lock(&self.reader, &self.place.path, by)?;
            conn::busy_retried(&self.place.path, by, "read the database", || {
                let format = schema::format(&conn, &self.place.path)?;
                match schema::check_table(&conn, &self.place.path)? {
                    true => Ok(format),
                    false => Err(SqliteError::NoTable { path: self.place.path.clone() }),
                }
            })
        };
        let (major, minor) = run().map_err(|error| self.place.explained(error))?;
        Ok(format!("{}: the table `locks` is there, format {major}.{minor}", self.place.path.display()))
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        transactional::acquire(&Claiming(self, attempt.grant()), attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        transactional::renew(&Claiming(self, attempt.grant()), attempt, renewal, by)
    }

    /// To give up is to release: no copy of an acquisition is ever on its way.
    fn release(&self, attempt: &mut Attempt, _give_up: bool, by: &Deadline) -> Result<Released> {
        transactional::release(&Claiming(self, attempt.grant()), attempt, false, by)
    }

    /// A poll is as strong as any read.
    fn read(&self, which: &Which, from: Option<String>, _strong: bool, by: &Deadline) -> Result<Page> {
        self.read_page(which, from, by)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        let key = &seen.record.key;
        let issues_token = new.is_some_and(|new| new.token > seen.record.token);
        let durability = if issues_token { Durability::PowerCut } else { Durability::Process };
        let written = self.write(Begin::Write, durability, by, |tx| {
            let (format, stands) = Row::read(tx, &self.place.path, key)?;
            if stands.version != seen.record.version || stands.token != seen.record.token {
                return Ok(Swapped::Changed);
            }
            match new {
                Some(new) => {
                    let times = self.place.times();
                    let here = self.place.here(&times);
                    // Unchanged is what the caller left as it was when it read.
                    let view = row::View { record: seen.record.clone(), ..stands.view(format, here) };
                    stands.next(&view, new, None, here.clock).write(tx, &self.place.path, here.clock)?;
                }
                None => row::delete(tx, &self.place.path, key)?,
            }
            Ok(Swapped::Done)
        });
        match written {
            Ok(Written::Done(swapped)) => Ok(swapped),
            Ok(Written::Unknown(error)) => Ok(Swapped::Unknown(error.into())),
            Err(error) => Err(error.into()),
        }
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        self.watch(keys, to, by)
    }
}
