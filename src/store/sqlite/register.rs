//! Which lock files this process has open, and which ones the processes had open that this one was forked from.
//!
//! SQLite keeps a table of its open files, with the locks that it has on each, and a fork copies the table. The
//! system's locks stay with the parent. So if a child opens such a file again, SQLite takes no locks, and when the
//! parent closes the file, it finds nobody else and removes the log that the child uses. Also, whichever file the child
//! opens, a thread of the parent may have held a mutex of SQLite's at the fork, which nobody frees any more in the
//! child. So a child is refused every file if any was open at the fork. What a connection of the user's has open
//! through this SQLite is not known here.
//!
//! The register also owns [`OwnLocks`], one for each file, from after the first connection was opened until right
//! before the last one is closed; and the [`Mark`] of this copy of the library, all the time. Their descriptors must
//! not be closed while SQLite has locks on the file.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::error::SqliteError;
use super::file::{self, FileId, Log};
use super::own_locks::{Header, Idle, Mark, Marked, OwnLocks, Taken};
use crate::model::error::Error;
use crate::sys::deadline::Deadline;
use crate::sys::drop_bound::drop_by;
use crate::sys::log;
use crate::sys::process::{ForkGuard, ForkMutex, InUse, ProcessId};

const MARK: &str = "mark this copy of the library";
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the end of a connection waits for its turn, unless the drop that it is a part of has less time. A turn
/// takes microseconds.
const END: Duration = Duration::from_secs(1);

/// If a child finds this in use for ever, the parent was opening or closing a file at the fork.
static FILES: ForkMutex<Files> = ForkMutex::new(Files::new());
/// Connections that were closed without a turn: the next turn removes them from the counts. Locked for a moment only.
static UNSAID: Mutex<Vec<(FileId, IsCounted)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Files {
    /// The process that these files belong to.
    process: Option<ProcessId>,
    open: Vec<Open>,
    idle: Idle,
    /// The same for each process that this one was forked from. The descriptors are shared with that process, so they
    /// are left alone here.
    parents: Vec<(Vec<Open>, Idle)>,
}

#[derive(Debug)]
struct Open {
    file: FileId,
    /// Connections that use it.
    using: usize,
    /// Connections that are being closed.
    closing: usize,
    /// The log that the first connection found next to the file. SQLite has one index of the log for all connections of
    /// a process, so all of them use this log, whatever is at its path by now.
    log: Option<Log>,
    /// Each connection has a reference, too, and drops it before it is closed.
    locks: Option<Arc<OwnLocks>>,
    mark: Option<Mark>,
}

impl Open {
    /// An error unless another connection would find this same log next to `path`.
    fn check_place(&self, path: &Path) -> Result<(), SqliteError> {
        // On other systems one file can't be told from another.
        let Some(log) = self.log.as_ref().filter(|_| cfg!(unix)) else { return Ok(()) };
        let looking = |source| SqliteError::looking(path, source);
        if Log::of(path).map_err(looking)?.is_some_and(|there| there.is_same(log)) {
            return Ok(());
        }
        Err(match log.is_there().map_err(looking)? {
            true => SqliteError::OtherPath { path: path.to_owned(), who: "this process" },
            false => SqliteError::Moved { path: path.to_owned() },
        })
    }

    /// Removes one connection from those that use the file.
    fn end_one(&mut self, idle: &mut Idle) {
        self.using = self.using.saturating_sub(1);
        if self.using == 0 {
            self.log = None;
            if let Some(locks) = self.locks.take().and_then(Arc::into_inner) {
                locks.give_up(idle);
            }
        }
    }
}

impl Files {
    const fn new() -> Files {
        Files { process: None, open: Vec::new(), idle: Idle::new(), parents: Vec::new() }
    }

    /// Makes this the register of the current process: in a forked child, what is here is moved to `parents`.
    fn make_current(&mut self) {
        if !self.process.as_ref().is_some_and(ProcessId::is_current) {
            self.process = Some(ProcessId::current());
            self.parents.push((std::mem::take(&mut self.open), std::mem::replace(&mut self.idle, Idle::new())));
        }
    }

    fn at(&mut self, file: FileId) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.file == file)
    }

    /// Notes that SQLite has closed a connection to the file.
    fn closed(&mut self, file: FileId, is_counted: IsCounted) {
        let Files { open, idle, .. } = self;
        match (open.iter_mut().find(|open| open.file == file), is_counted) {
            (Some(open), IsCounted::AsClosing) => open.closing = open.closing.saturating_sub(1),
            (Some(open), IsCounted::AsUsing) => open.end_one(idle),
            (None, _) => {}
        }
        for mut over in open.extract_if(.., |open| open.using + open.closing == 0) {
            if let Some(mark) = over.mark.take() {
                mark.give_up(idle);
            }
        }
        idle.close();
    }
}

/// The register, locked for a moment.
type Turn = ForkGuard<'static, Files>;

impl Turn {
    /// An error if this process was forked from one that had a file open.
    fn take(path: &Path, by: &Deadline) -> Result<Turn, SqliteError> {
        let in_parent = || SqliteError::OpenInParent { path: path.to_owned() };
        let mut files = FILES.lock(by).map_err(|in_use| match in_use {
            InUse::ForEver => in_parent(),
            InUse::ForNow => SqliteError::NoTurn { path: path.to_owned() },
        })?;
        files.make_current();
        if files.parents.iter().any(|(open, _)| !open.is_empty()) {
            return Err(in_parent());
        }
        // In a child it may be locked for ever; what it holds is then the parent's.
        let unsaid = UNSAID.try_lock().map(|mut unsaid| std::mem::take(&mut *unsaid));
        unsaid.into_iter().flatten().for_each(|(file, is_counted)| files.closed(file, is_counted));
        Ok(files)
    }
}

fn other_process(path: &Path) -> SqliteError {
    SqliteError::OtherPath { path: path.to_owned(), who: "another process" }
}

/// Whether SQLite can be used here: an error if this process was forked from one that had a file open.
pub(super) fn check(path: &Path, by: &Deadline) -> Result<(), SqliteError> {
    Turn::take(path, by).map(drop)
}

/// One connection's place in the register: from before SQLite opens the file until it has closed it.
#[derive(Debug)]
pub(super) struct Opened {
    file: FileId,
    closing: Option<Closing>,
    locks: Option<Arc<OwnLocks>>,
}

#[derive(Debug)]
struct Closing {
    /// For both turns together: before the close and after it.
    by: Deadline,
    is_counted: IsCounted,
}

/// How the register counts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsCounted {
    AsUsing,
    AsClosing,
}

impl Opened {
    /// The errors of [`check`], and one if others have the file open with its log elsewhere.
    pub(super) fn new(path: &Path, file: FileId, by: &Deadline) -> Result<Opened, SqliteError> {
        loop {
            let mut files = Turn::take(path, by)?;
            // The first to open a database clears its `-shm`. Our locks for another database with this `-shm` would
            // prevent that.
            let others = files.open.iter().filter(|open| open.file != file);
            for locks in others.filter_map(|open| open.locks.as_ref()).filter(|locks| locks.stand_beside(path)) {
                locks.unlock();
            }
            if let Some(open) = files.at(file) {
                open.check_place(path)?;
                open.using += 1;
                return Ok(Opened { file, closing: None, locks: None });
            }
            let marked = match files.idle.is_elsewhere(path, file) {
                true => Err(other_process(path)),
                false => match files.idle.mark(path, file) {
                    Ok(Marked::Copied) => Err(SqliteError::OtherCopy { path: path.to_owned() }),
                    Err(source) if file::is_missing(&source) => Err(SqliteError::Moved { path: path.to_owned() }),
                    Err(source) => Err(SqliteError::File { path: path.to_owned(), doing: MARK, source }),
                    Ok(marked) => Ok(marked),
                },
            };
            if let Ok(Marked::As(mark)) = marked {
                files.open.push(Open { file, using: 1, closing: 0, log: None, locks: None, mark });
                return Ok(Opened { file, closing: None, locks: None });
            }
            files.idle.close();
            marked?;
            drop(files);
            if !by.wait_for(PAUSE) {
                return Err(SqliteError::NoTurn { path: path.to_owned() });
            }
        }
    }

    /// Takes our own locks, once SQLite has the file and its log open. Returns which log it is.
    pub(super) fn protect(&mut self, path: &Path, by: &Deadline) -> Result<Log, SqliteError> {
        let doing = "keep the log from being removed";
        loop {
            let mut files = Turn::take(path, by)?;
            let Files { open, idle, .. } = &mut *files;
            let moved = || SqliteError::Moved { path: path.to_owned() };
            let open = open.iter_mut().find(|open| open.file == self.file).ok_or_else(moved)?;
            let there = Log::of(path).map_err(|source| SqliteError::looking(path, source))?.ok_or_else(moved)?;
            if !open.log.get_or_insert_with(|| there.clone()).is_same(&there) {
                return Err(moved());
            }
            if open.locks.is_some() {
                self.locks = open.locks.clone();
                return Ok(there);
            }
            match OwnLocks::take(path, self.file, open.mark.as_ref(), idle) {
                Ok(Taken::Locks(locks)) => {
                    self.locks = open.locks.insert(Arc::new(locks)).clone().into();
                    return Ok(there);
                }
                // Somebody is closing the file just now, or opening it as the first.
                Ok(Taken::Busy) => drop(files),
                Ok(Taken::Elsewhere) => return Err(other_process(path)),
                Err(source) if file::is_missing(&source) => return Err(moved()),
                Err(source) => {
                    let is_unknown = source.kind() == io::ErrorKind::Unsupported;
                    let error = SqliteError::File { path: path.to_owned(), doing, source };
                    if !is_unknown {
                        return Err(error);
                    }
                    // The logger is code of the user's: it must not run during the turn.
                    drop(files);
                    // The file system has no such locks: then nothing keeps the log, and only its loss is noticed.
                    log::debug!(target: "leasehold::sqlite", "{}", Error::from(error));
                    return Ok(there);
                }
            }
            if !by.wait_for(PAUSE) {
                return Err(SqliteError::NoTurn { path: path.to_owned() });
            }
        }
    }

    /// Whether others see that this process writes. Called while SQLite says that it has the write lock.
    pub(super) fn is_seen_writing(&self) -> bool {
        self.locks.as_ref().is_none_or(|locks| locks.see_the_writer())
    }

    /// [`OwnLocks::see_work`]
    pub(super) fn is_at_work(&self) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.see_work())
    }

    /// [`OwnLocks::header`]
    pub(super) fn header(&self) -> Option<Header> {
        self.locks.as_ref()?.header()
    }

    /// How many pages of this size the database has after the last commit.
    pub(super) fn pages(&self, size: u32) -> Option<u32> {
        let header = self.header()?;
        let pages = u32::from_ne_bytes([header[20], header[21], header[22], header[23]]);
        // The header of an empty log does not have this number.
        let of_file = || u32::try_from(self.locks.as_ref()?.len()? / u64::from(size)).ok();
        if pages == 0 { of_file() } else { Some(pages) }
    }

    /// [`OwnLocks::hurry`], until what is returned is dropped.
    pub(super) fn hurry(&self) -> impl Sized {
        self.locks.as_ref().map(|locks| locks.hurry())
    }

    /// Whether somebody who holds a lock waits to write.
    pub(super) fn is_in_a_hurry(&self) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.see_hurry())
    }

    /// [`OwnLocks::reserve`]
    pub(super) fn reserve(&self, size: u64, most: u64) -> io::Result<()> {
        self.locks.as_ref().map_or(Ok(()), |locks| locks.reserve(size, most))
    }

    /// Called right before SQLite closes the connection. The last one gives up our locks, because they would keep
    /// SQLite from removing the log.
    pub(super) fn closing(&mut self) {
        if self.closing.is_none() {
            self.closing_by(Deadline::at(drop_by(END)));
        }
    }

    fn closing_by(&mut self, by: Deadline) {
        self.locks = None;
        let turn = Turn::take(Path::new(""), &by);
        let is_counted = if turn.is_ok() { IsCounted::AsClosing } else { IsCounted::AsUsing };
        self.closing = Some(Closing { by, is_counted });
        if let Ok(mut files) = turn {
            let Files { open, idle, .. } = &mut *files;
            if let Some(open) = open.iter_mut().find(|open| open.file == self.file) {
                open.end_one(idle);
                open.closing += 1;
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.closing();
        let Some(Closing { by, is_counted }) = self.closing.take() else { return };
        match Turn::take(Path::new(""), &by) {
            Ok(mut files) => files.closed(self.file, is_counted),
            Err(_) => UNSAID.lock().push((self.file, is_counted)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::tests::soon;

    #[test]
    fn a_connection_that_had_no_turn_before_it_was_closed_leaves_nothing_behind() {
        let (folder, store) = crate::store::sqlite::tests::store();
        drop(store);
        let path = folder.join("locks.db");
        let file = file::identity(&path).unwrap().unwrap();
        let mut opened = Opened::new(&path, file, &soon()).unwrap();
        let turn = Turn::take(&path, &soon()).unwrap();
        opened.closing_by(Deadline::after(Duration::ZERO));
        drop(turn);
        // Other tests have turns in this process, too.
        opened.closing.as_mut().unwrap().by = soon();
        drop(opened);
        assert!(Turn::take(&path, &soon()).unwrap().at(file).is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// SQLite opens and closes the file between these, and its close ends the locks of another copy.
    #[test]
    #[cfg(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl")))]
    fn the_copy_is_marked_from_before_sqlite_opens_a_file_until_after_it_has_closed_it() {
        use crate::store::sqlite::own_locks::is_marked_here;
        let (folder, store) = crate::store::sqlite::tests::store();
        drop(store);
        let path = folder.join("locks.db");
        let file = file::identity(&path).unwrap().unwrap();
        // The next turn counts off connections that were closed without a turn.
        let is_marked = || {
            drop(Turn::take(&path, &soon()).unwrap());
            is_marked_here(&path)
        };
        assert!(!is_marked());
        let mut first = Opened::new(&path, file, &soon()).unwrap();
        let second = Opened::new(&path, file, &soon()).unwrap();
        assert!(is_marked());
        first.closing();
        drop(second);
        assert!(is_marked());
        drop(first);
        assert!(!is_marked());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Without the bound, each of its connections would wait for as long as one connection may.
    #[test]
    fn the_drop_of_a_client_keeps_its_bound_while_the_register_is_taken() {
        let bound = Duration::from_millis(100);
        let drop_took = || {
            let (folder, store) = crate::store::sqlite::tests::store();
            let over = crate::ClientBuilder::over(Arc::new(store), crate::sys::clock::Clock::system());
            let client = over.drop_timeout(bound).connect().unwrap();
            let files = |turn: &Turn| turn.open.iter().map(|open| open.file).collect::<Vec<_>>();
            let turn = Turn::take(&folder, &soon()).unwrap();
            let ours = file::identity(&folder.join("locks.db")).unwrap().unwrap();
            assert!(files(&turn).contains(&ours));
            let started = std::time::Instant::now();
            drop(client);
            let took = started.elapsed();
            drop(turn);
            assert!(!files(&Turn::take(&folder, &soon()).unwrap()).contains(&ours), "it stays open for good");
            std::fs::remove_dir_all(folder).unwrap();
            took
        };
        // Without the bound, each connection would wait for a second. A busy machine may take that long, but not each
        // time.
        let took = (0..10).map(|_| drop_took()).find(|took| *took < END);
        assert!(took.is_some_and(|took| took >= bound / 2), "{took:?}");
    }
}
