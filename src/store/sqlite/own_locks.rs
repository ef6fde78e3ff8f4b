//! Locks of our own on SQLite's files, in addition to those that SQLite takes.
//!
//! SQLite's locks belong to the process. They end when anything in the process closes the file: a second copy of
//! SQLite, like the one that Python brings, or a program that reads the file. And two copies in one process do not see
//! each other's locks at all. Then a close takes itself for the last one and removes the log that we write to. A lock
//! of an open file description has neither fault. We have shared ones on the bytes that a last close must lock
//! exclusively, and on the byte that the first to open `-shm` must lock exclusively. There they are in nobody's way.
//!
//! Our descriptors have the first fault, too: closing one ends SQLite's locks in this process. So a descriptor is
//! closed only while nobody at all has a lock on its file. Only an exclusive lock on the whole file makes sure of that,
//! and a child that is forked at that moment keeps this lock for as long as it lives. So a descriptor of a file that
//! others can still find is closed only if there are many. Children of a process that was killed keep its shared locks:
//! as long as they live, no last close removes the log, and nobody opens it as the first.
//!
//! A third lock marks where the file is. SQLite keeps the log next to the name that it opened, so two processes would
//! each have a log that the other does not see if the file has two names, or is mounted alone into a container. All
//! that have the file open in the same folder by the same name share the lock; another path is refused.
//!
//! A fourth marks the SQLite of this copy of the library in this process, from before SQLite opens the file until it
//! has closed it. A copy with another SQLite does not see when this one writes, and both would grant one lock. So the
//! second copy is refused. (Not if somebody had locked the whole file before: the system reports only the first lock.)
//!
//! A fifth, on `-shm`, says that a holder waits to write, because SQLite's write lock has no queue.

#[cfg(all(test, target_os = "linux", any(target_pointer_width = "64", target_env = "musl")))]
pub(super) use linux::is_marked_here;
#[cfg(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl")))]
pub(super) use linux::{Idle, Mark, OwnLocks};
#[cfg(not(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl"))))]
pub(super) use other::{Idle, Mark, OwnLocks};

/// What became of an attempt to take the locks.
#[derive(Debug)]
pub(super) enum Taken {
    Locks(OwnLocks),
    /// Somebody else has an exclusive lock on the files.
    Busy,
    /// Somebody has the file open by another path.
    Elsewhere,
}

/// What became of an attempt to mark this copy of the library.
#[derive(Debug)]
pub(super) enum Marked {
    /// `None` if this copy can't be marked: a copy that could see the mark has no such locks, either.
    As(Option<Mark>),
    /// Another copy is being marked at this moment.
    Busy,
    /// Another copy has the file open in this process.
    Copied,
}

/// What SQLite writes at the beginning of `-shm`: versions, counters, sizes and checksums of the log.
pub(super) type Header = [u8; 48];

#[cfg(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl")))]
mod linux {
    use std::fs::{self, File};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;
    use std::sync::Arc;

    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};
    use nix::libc::{self, c_short, off_t};
    use parking_lot::Mutex;

    use super::{Header, Marked, Taken};
    use crate::store::sqlite::file::{self, FileId};

    /// First byte and length.
    type Bytes = (off_t, off_t);
    /// Where a connection to a database has its shared lock. The last close locks it exclusively.
    const SHARED: Bytes = (0x4000_0002, 510);
    /// Where a connection to `-shm` has its shared lock. The first opening locks it exclusively.
    const DEAD_MAN: Bytes = (128, 1);
    /// Where the one connection that writes has an exclusive lock on `-shm`.
    const WRITE: Bytes = (120, 1);
    /// All bytes of `-shm` that SQLite locks for its work.
    const WORK: Bytes = (120, 8);
    /// Where on `-shm` a holder says that it waits to write; behind SQLite's own bytes.
    const HURRY: Bytes = (1 << 20, 1);
    /// The first of the bytes that each mean one place of the database; far behind SQLite's own.
    const PLACES: off_t = 1 << 61;
    /// The first of the bytes that each mean one copy of this library in one process, up to those of the places.
    const COPIES: off_t = 1 << 60;
    /// How many of them belong to one process: the first half to copies that still try, the second half to marks.
    const OF_PROCESS: off_t = 1 << 20;
    /// At most this many descriptors without locks stay open, in addition to those of files that anybody has locked.
    const KEPT: usize = 64;
    /// The whole file, however long it gets.
    const ALL: Bytes = (0, 0);

    #[derive(Debug)]
    pub struct OwnLocks {
        /// Shared with the mark, if there is one.
        database: Arc<File>,
        shm: File,
        /// How many holders in this process wait to write.
        hurried: Mutex<u32>,
    }

    /// Says that a holder waits to write, until this is dropped.
    #[derive(Debug)]
    pub struct Hurry<'a>(&'a OwnLocks);

    impl Drop for Hurry<'_> {
        fn drop(&mut self) {
            let mut hurried = self.0.hurried.lock();
            *hurried -= 1;
            if *hurried == 0 {
                // Ignored as in `unlock`.
                let _ = lock(&self.0.shm, libc::F_UNLCK, HURRY);
            }
        }
    }

    impl OwnLocks {
        /// An error of kind `Unsupported` where the system has no such locks.
        pub fn take(path: &Path, database: FileId, mark: Option<&Mark>, idle: &mut Idle) -> io::Result<Taken> {
            if idle.are_refused_beside(database) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let (shm, place) = (file::beside(path, "-shm"), PLACES + place(path)?);
            let database = match mark {
                Some(mark) => mark.0.clone(),
                None => Arc::new(idle.open(path, Some(database))?),
            };
            let shm = match idle.open(&shm, None) {
                Ok(shm) => shm,
                Err(error) => {
                    idle.0.extend(Arc::into_inner(database));
                    return Err(error);
                }
            };
            let locks = OwnLocks { database, shm, hurried: Mutex::new(0) };
            let take = || {
                lock(&locks.database, libc::F_RDLCK, SHARED)?;
                lock(&locks.shm, libc::F_RDLCK, DEAD_MAN)?;
                match lock(&locks.database, libc::F_RDLCK, (place, 1)) {
                    Ok(()) => Ok(is_elsewhere(&locks.database, place)),
                    // If offsets can't be that large, two places can't be told apart.
                    Err(error) if is_refusal(error) || error == Errno::EOVERFLOW => Ok(false),
                    Err(error) => Err(error),
                }
            };
            match take() {
                Ok(false) => Ok(Taken::Locks(locks)),
                Ok(true) => {
                    locks.give_up(idle);
                    Ok(Taken::Elsewhere)
                }
                Err(error) => {
                    locks.give_up(idle);
                    match error {
                        error if is_taken(error) => Ok(Taken::Busy),
                        error if is_refusal(error) => Err(io::Error::new(io::ErrorKind::Unsupported, error)),
                        error => Err(error.into()),
                    }
                }
            }
        }

        /// Whether a database at `path` has the same `-shm`, like one that replaced ours.
        pub fn stand_beside(&self, path: &Path) -> bool {
            let there = file::identity(&file::beside(path, "-shm")).ok().flatten();
            there.is_some() && there == self.shm.metadata().ok().map(|meta| FileId::of(&meta))
        }

        /// Whether the write lock that SQLite says it has is really on this `-shm`. It is not if SQLite still uses a
        /// `-shm` that was removed, or if a close by somebody in this process has ended the lock.
        pub fn see_the_writer(&self) -> bool {
            let mut found = flock(libc::F_WRLCK, WRITE);
            let is_known = fcntl(&self.shm, FcntlArg::F_OFD_GETLK(&mut found)).is_ok();
            !is_known || is_perhaps_ours(found.l_type, found.l_pid)
        }

        /// Whether anybody, in this process or another, is at work on `-shm` with an exclusive lock.
        pub fn see_work(&self) -> bool {
            let mut found = flock(libc::F_RDLCK, WORK);
            fcntl(&self.shm, FcntlArg::F_OFD_GETLK(&mut found)).is_ok() && found.l_type != libc::F_UNLCK as c_short
        }

        /// The beginning of `-shm`, which says which state of the file a reader sees. Every state is written there before
        /// it can be seen, and reading it takes no lock.
        pub fn header(&self) -> Option<Header> {
            let mut header = [0; 48];
            self.shm.read_exact_at(&mut header, 0).ok().map(|()| header)
        }

        /// Shows to calls that want a lock, here and in other processes, that a holder waits to write.
        pub fn hurry(&self) -> Hurry<'_> {
            let mut hurried = self.hurried.lock();
            *hurried += 1;
            if *hurried == 1 {
                // Without this lock, the holder only writes later.
                let _ = lock(&self.shm, libc::F_RDLCK, HURRY);
            }
            Hurry(self)
        }

        pub fn see_hurry(&self) -> bool {
            *self.hurried.lock() > 0 || is_locked(&self.shm, HURRY).unwrap_or(false)
        }

        pub fn len(&self) -> Option<u64> {
            self.database.metadata().ok().map(|meta| meta.len())
        }

        /// Makes the database longer, up to `size` and by at most `most` bytes, with room on the disk. An error only if
        /// there is none, or the file must not grow; a file system that can't do it finds a full disk later.
        pub fn reserve(&self, size: u64, most: u64) -> io::Result<()> {
            let Some(len) = self.len() else { return Ok(()) };
            let lacks = size.saturating_sub(len).min(most);
            let (Ok(len), Ok(lacks @ 1..)) = (off_t::try_from(len), off_t::try_from(lacks)) else { return Ok(()) };
            // Only for the new bytes: for existing ones, some file systems want that much to be free once more.
            let longer = || fallocate(&*self.database, FallocateFlags::empty(), len, lacks);
            let refused = |error: &Errno| matches!(error, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG);
            // A signal may interrupt it.
            let tries = (0..3).map(|_| longer()).find(|tried| *tried != Err(Errno::EINTR));
            tries.and_then(Result::err).filter(refused).map_or(Ok(()), |error| Err(error.into()))
        }

        /// Ends the locks of the descriptions, so that a forked child, which shares them, does not keep the locks.
        pub fn unlock(&self) {
            let database = [SHARED, (PLACES, 0)].map(|bytes| (&*self.database, bytes));
            for (file, bytes) in database.into_iter().chain([(&self.shm, ALL)]) {
                // There is nothing to do about an error: the locks then end with the process.
                let _ = lock(file, libc::F_UNLCK, bytes);
            }
        }

        pub fn give_up(self, idle: &mut Idle) {
            self.unlock();
            idle.0.extend(Arc::into_inner(self.database));
            idle.0.push(self.shm);
        }
    }

    /// Has the lock that marks this copy of the library.
    #[derive(Debug)]
    pub struct Mark(Arc<File>);

    impl Mark {
        pub fn give_up(self, idle: &mut Idle) {
            // Ignored as in `OwnLocks::unlock`.
            let _ = lock(&self.0, libc::F_UNLCK, ALL);
            idle.0.extend(Arc::into_inner(self.0));
        }
    }

    /// Descriptors without locks.
    #[derive(Debug)]
    pub struct Idle(Vec<File>);

    impl Idle {
        pub const fn new() -> Idle {
            Idle(Vec::new())
        }

        /// Whether somebody has the file open by another path. Called before SQLite opens the file, which may begin a
        /// log. An error here is ignored, because it comes again when the locks are taken.
        pub fn is_elsewhere(&mut self, path: &Path, file: FileId) -> bool {
            if self.are_refused_beside(file) {
                return false;
            }
            let Ok(database) = self.open(path, Some(file)) else { return false };
            let found = place(path).map(|place| is_elsewhere(&database, PLACES + place));
            self.0.push(database);
            found.unwrap_or(false)
        }

        /// Marks this copy of the library, unless another copy is marked. Called before SQLite opens the file, because
        /// closing the file would end the other copy's locks.
        pub fn mark(&mut self, path: &Path, file: FileId) -> io::Result<Marked> {
            let copy = if self.are_refused_beside(file) { None } else { copy()? };
            let Some(copy) = copy else { return Ok(Marked::As(None)) };
            let database = match self.open(path, Some(file)) {
                Ok(database) => Arc::new(database),
                // A process that may only read takes none of our locks.
                Err(error) if is_denied(&error) => return Ok(Marked::As(None)),
                Err(error) => return Err(error),
            };
            // The locks are shared ones, because a program that copies the file may have one on all of it. Each copy
            // first says that it tries, so that of two at once the later one sees the other. Then it looks for marks,
            // which are set before a try ends.
            let try_once = || {
                lock(&database, libc::F_RDLCK, (copy.trying, 1))?;
                if copy.others(&database, copy.trying) {
                    return Ok(Marked::Busy);
                }
                if copy.others(&database, copy.own) {
                    return Ok(Marked::Copied);
                }
                lock(&database, libc::F_RDLCK, (copy.own, 1))?;
                lock(&database, libc::F_UNLCK, (copy.trying, 1))?;
                Ok(Marked::As(Some(Mark(database.clone()))))
            };
            let marked = match try_once() {
                Ok(marked @ Marked::As(_)) => return Ok(marked),
                Ok(marked) => Ok(marked),
                Err(error) if is_taken(error) => Ok(Marked::Busy),
                Err(error) if is_refusal(error) || error == Errno::EOVERFLOW => Ok(Marked::As(None)),
                Err(error) => Err(error.into()),
            };
            Mark(database).give_up(self);
            marked
        }

        /// Whether a descriptor here shows that the file system of `file` refuses locks of descriptions. It stays open,
        /// so that no other file system gets its number. No more are opened there, which could not be closed either.
        fn are_refused_beside(&self, file: FileId) -> bool {
            let on_it = |idle: &&File| idle.metadata().is_ok_and(|meta| FileId::of(&meta).0 == file.0);
            self.0.iter().filter(on_it).any(|idle| is_locked(idle, ALL).is_err_and(is_refusal))
        }

        /// A descriptor of the file at `path`: one of these or a new one. An error of kind `NotFound` if the file is
        /// not the `wanted` one.
        fn open(&mut self, path: &Path, wanted: Option<FileId>) -> io::Result<File> {
            let there = file::identity(path)?.filter(|there| wanted.is_none_or(|wanted| wanted == *there));
            let there = there.ok_or(io::ErrorKind::NotFound)?;
            let is_it = |file: &File| file.metadata().is_ok_and(|meta| FileId::of(&meta) == there);
            if let Some(at) = self.0.iter().position(is_it) {
                return Ok(self.0.swap_remove(at));
            }
            // For reading and writing, because an exclusive lock needs a descriptor that can write.
            let opened = File::options().read(true).write(true).open(path)?;
            if is_it(&opened) {
                return Ok(opened);
            }
            self.0.push(opened);
            Err(io::ErrorKind::NotFound.into())
        }

        /// Closes those of files that nobody can find any more, and others beyond [`KEPT`], if nobody has a lock on the
        /// file.
        pub fn close(&mut self) {
            let mut kept = Vec::new();
            for file in self.0.drain(..) {
                // A removed file, such as `-shm` after a last close, has no links.
                let is_found = !file.metadata().is_ok_and(|meta| meta.nlink() == 0);
                if is_locked(&file, ALL).unwrap_or(true) || (is_found && kept.len() < KEPT) {
                    kept.push(file);
                    continue;
                }
                if !is_found {
                    continue;
                }
                // A lock on `file` itself would be kept for ever by a child that was forked since it was opened.
                let again = format!("/proc/self/fd/{}", file.as_raw_fd());
                let opened =
                    file::fill_standard_streams().and_then(|()| File::options().read(true).write(true).open(again));
                match opened {
                    Ok(alone) if lock(&alone, libc::F_WRLCK, ALL).is_ok() => {
                        drop(file);
                        drop(alone);
                    }
                    Ok(other) => kept.extend([file, other]),
                    Err(_) => kept.push(file),
                }
            }
            self.0 = kept;
        }
    }

    /// Whether a lock that was found there may be this process's. File systems of several hosts (Ceph) report the
    /// process as a negative number, whosever the lock is; -1 is a lock of no process.
    fn is_perhaps_ours(l_type: c_short, l_pid: libc::pid_t) -> bool {
        let is_ours = l_pid < -1 || u32::try_from(l_pid) == Ok(std::process::id());
        l_type != libc::F_UNLCK as c_short && is_ours
    }

    #[test]
    fn a_lock_whose_process_is_not_told_may_be_ours() {
        let own = std::process::id() as libc::pid_t;
        let [write, none] = [libc::F_WRLCK, libc::F_UNLCK].map(|kind| kind as c_short);
        let found = [(write, own), (write, -own), (write, -1), (write, own + 1), (none, own), (none, 0)];
        let ours = found.map(|(kind, process)| is_perhaps_ours(kind, process));
        assert_eq!(ours, [true, true, false, false, false, false]);
    }

    fn flock(kind: i32, (start, len): Bytes) -> libc::flock {
        // The casts lose nothing: in the system's header these are small numbers.
        let (l_type, l_whence) = (kind as c_short, libc::SEEK_SET as c_short);
        libc::flock { l_type, l_whence, l_start: start, l_len: len, l_pid: 0 }
    }

    fn lock(file: &File, kind: i32, bytes: Bytes) -> nix::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&flock(kind, bytes))).map(drop)
    }

    /// Whether anybody has a lock there, this process by another description included.
    fn is_locked(file: &File, bytes: Bytes) -> nix::Result<bool> {
        Ok(locked(file, bytes)?.is_some())
    }

    fn locked(file: &File, bytes: Bytes) -> nix::Result<Option<libc::flock>> {
        let mut found = flock(libc::F_WRLCK, bytes);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(Some(found).filter(|found| found.l_type != libc::F_UNLCK as c_short))
    }

    /// A number, not 0, for a file's folder and its name there, whichever path leads to it.
    fn place(path: &Path) -> io::Result<off_t> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let FileId(device, folder) = FileId::of(&fs::metadata(real.parent().unwrap_or(&real))?);
        let name = real.file_name().unwrap_or_default().as_encoded_bytes();
        // FNV: the same in every process and version. If two places have one number, they are only not told apart.
        let bytes = device.to_le_bytes().into_iter().chain(folder.to_le_bytes()).chain(name.iter().copied());
        let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Ok(off_t::from(hash.max(1)))
    }

    /// Whether somebody is seen to have the lock of another place.
    fn is_elsewhere(database: &File, place: off_t) -> bool {
        is_marked(database, [(PLACES, place - PLACES), (place + 1, 0)], PLACES)
    }

    /// Whether somebody has a mark there: a lock of one byte, from `first` on, not of the whole file as in `close`.
    fn is_marked(file: &File, bytes: impl IntoIterator<Item = Bytes>, first: off_t) -> bool {
        let is_mark = |found: libc::flock| found.l_start >= first && found.l_len == 1;
        bytes.into_iter().any(|bytes| matches!(locked(file, bytes), Ok(Some(found)) if is_mark(found)))
    }

    /// The bytes that a copy of this library in this process locks: while it tries, and as its mark.
    #[derive(Clone, Copy)]
    struct Copied {
        trying: off_t,
        own: off_t,
    }

    impl Copied {
        /// Whether another copy in this process has locked its byte of the same kind as `such`.
        fn others(self, database: &File, such: off_t) -> bool {
            let half = OF_PROCESS / 2;
            let first = such - such % half;
            is_marked(database, [(first, such - first), (such + 1, first + half - such - 1)], COPIES)
        }
    }

    /// The bytes of this copy. Copies that share one SQLite have the same ones, because each sees when another one
    /// writes. `None` if there is no `/proc` for it.
    fn copy() -> io::Result<Option<Copied>> {
        let is_absent = |error: &io::Error| is_denied(error) || error.kind() == io::ErrorKind::NotFound;
        let (process, thread) = match (fs::read("/proc/self/stat"), fs::read("/proc/thread-self/stat")) {
            (Err(error), _) | (_, Err(error)) if is_absent(&error) => return Ok(None),
            (process, thread) => (process?, thread?),
        };
        // A field by its number. Counted from behind the second field, which is a name in brackets.
        let field = |stat: &[u8], number: usize| {
            let stat = String::from_utf8_lossy(stat);
            let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
            behind.split_whitespace().nth(number - 3).unwrap_or_default().to_owned()
        };
        // When the process began, and where its program and its stack are. An `exec` changes these places (unless
        // addresses are not random): locks of a child from before it are not this program's. A change of user does not.
        let which = [field(&process, 22), field(&thread, 26), field(&thread, 28), std::process::id().to_string()];
        let (process, own) = (fnv(which.join(" ").as_bytes()), fnv(&rusqlite::version().as_ptr().addr().to_le_bytes()));
        let first = COPIES + (process >> 24) as off_t * OF_PROCESS;
        // At least one byte remains on both sides, since a range of length 0 would reach to the end.
        let trying = first + 1 + (own >> 24) as off_t % (OF_PROCESS / 2 - 2);
        Ok(Some(Copied { trying, own: trying + OF_PROCESS / 2 }))
    }

    /// Whether another copy of the library in this process would see a mark.
    #[cfg(test)]
    pub fn is_marked_here(path: &Path) -> bool {
        let (Ok(Some(copy)), Ok(file)) = (copy(), File::open(path)) else { return false };
        let another = if copy.own % 2 == 0 { copy.own + 1 } else { copy.own - 1 };
        copy.others(&file, another)
    }

    /// FNV: the same in every version.
    fn fnv(bytes: &[u8]) -> u64 {
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash)
    }

    /// Whether this user may not do it.
    fn is_denied(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    }

    /// Whether somebody else has the lock.
    fn is_taken(error: Errno) -> bool {
        matches!(error, Errno::EAGAIN | Errno::EACCES)
    }

    /// Whether the system or the file system does not know such locks.
    fn is_refusal(error: Errno) -> bool {
        matches!(error, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP)
    }
}

#[cfg(not(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl"))))]
#[path = "no_own_locks.rs"]
mod other;
