//! The file itself: how it is made, how it is identified, and on which file systems it must not be.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::SqliteError;
#[cfg(unix)]
pub(super) use crate::sys::file::FileId;

/// Says only that there is a file. That is enough, because on Windows an open file can't be replaced.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId;

/// The longest ending that SQLite adds to the name for the files that it keeps next to it.
const LONGEST_ENDING: &str = "-journal";
/// The longest name in bytes, on most file systems.
const LONGEST_NAME: usize = 255;
/// The longest whole path in bytes, for SQLite.
const LONGEST_PATH: usize = 512;

/// The path of a file that SQLite keeps beside the one at `path`.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).into();
    name.push(ending);
    name.into()
}

/// The files that SQLite keeps beside one that is open: its log, and the index of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Log([(PathBuf, FileId); 2]);

impl Log {
    /// Of the file at `path`; `None` when one of them is missing.
    pub(super) fn of(path: &Path) -> io::Result<Option<Log>> {
        let one = |ending| {
            let at = beside(path, ending);
            identity(&at).map(|file| file.map(|file| (at, file)))
        };
        Ok(one("-wal")?.zip(one("-shm")?).map(|(log, index)| Log([log, index])))
    }

    /// Whether it is the same, whatever its path.
    pub(super) fn is_same(&self, other: &Log) -> bool {
        let files = |log: &Log| log.0.each_ref().map(|(_, file)| *file);
        files(self) == files(other)
    }

    /// Whether both are still where they were.
    pub(super) fn is_there(&self) -> io::Result<bool> {
        let [log, index] = &self.0;
        Ok(identity(&log.0)? == Some(log.1) && identity(&index.0)? == Some(index.1))
    }

    /// The length of the log in bytes.
    pub(super) fn len(&self) -> u64 {
        fs::metadata(&self.0[0].0).map_or(0, |log| log.len())
    }

    /// Whether another file is now at one of the two paths.
    pub(super) fn is_replaced(&self) -> bool {
        self.0.iter().any(|(path, file)| identity(path).is_ok_and(|there| there.is_some_and(|there| there != *file)))
    }
}

/// The file at `path`; `None` when there is none.
#[cfg(unix)]
pub(super) fn identity(path: &Path) -> io::Result<Option<FileId>> {
    match crate::sys::file::identity(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
pub(super) fn identity(path: &Path) -> io::Result<Option<FileId>> {
    Ok(path.exists().then_some(FileId))
}

pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether this process, or the whole system, may open no more files for now.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    #[cfg(unix)]
    let numbers = [nix::errno::Errno::EMFILE, nix::errno::Errno::ENFILE].map(|errno| errno as i32);
    #[cfg(not(unix))]
    let numbers: [i32; 0] = [];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Whether symbolic links lead to each other.
pub(super) fn is_endless(error: &io::Error) -> bool {
    #[cfg(unix)]
    let number = Some(nix::errno::Errno::ELOOP as i32);
    #[cfg(not(unix))]
    let number = None;
    number.is_some() && error.raw_os_error() == number
}

/// The system's error if no more files may be opened, to explain an error of SQLite that does not say so.
pub(super) fn exhausted() -> Option<io::Error> {
    let opened = if cfg!(unix) { fs::File::open("/dev/null").map(drop) } else { Ok(()) };
    opened.err().filter(is_exhausted)
}

/// Called before files are opened, so that none of them becomes a standard stream that this process has closed.
pub(super) fn keep_off_standard_streams(path: &Path) -> Result<(), SqliteError> {
    let doing = "open /dev/null in the place of a standard stream that this process has closed";
    fill_standard_streams().map_err(|source| failed(path, doing, source))
}

/// Fills those of the lowest three descriptors that are free. Otherwise a file would get one of them, and what the
/// program prints next would go into the file. SQLite moves its own files away from there, but by a close, which ends
/// the locks that this process has on the file. Nothing helps if another thread closes a stream between this call and
/// the opening of the file.
#[cfg(unix)]
pub(super) fn fill_standard_streams() -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
    use nix::sys::stat::Mode;
    use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
    let is_any_free = || {
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
        streams.into_iter().any(|stream| fcntl(stream, FcntlArg::F_GETFD) == Err(Errno::EBADF))
    };
    while is_any_free() {
        // Child processes get it, too, like what the standard library opens there when a program begins.
        let null = open("/dev/null", OFlag::O_RDWR, Mode::empty())?;
        if null.as_raw_fd() > 2 {
            // Another thread was faster.
            break;
        }
        // It stays open for as long as the process lives.
        let _ = null.into_raw_fd();
    }
    Ok(())
}

#[cfg(not(unix))]
fn fill_standard_streams() -> io::Result<()> {
    Ok(())
}

/// How many kernels may share the file system. Locks on it hold on one kernel only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernels {
    One,
    Any,
}

/// Checks where the file lies and makes an empty one with exactly this mode, if one is given, where there is none.
pub(super) fn prepare(path: &Path, mode: Option<u32>, kernels: Kernels) -> Result<(), SqliteError> {
    keep_off_standard_streams(path)?;
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            return Err(SqliteError::NotAFile { path: path.to_owned(), what: "a folder" });
        }
        // Opening a pipe would wait for its other end.
        Ok(meta) if !meta.is_file() => {
            return Err(SqliteError::NotAFile { path: path.to_owned(), what: "a device, pipe or socket" });
        }
        Ok(_) => return check_file_system(path, path, kernels),
        Err(error) if is_missing(&error) => {}
        Err(source) => return Err(failed(path, "look at the file", source)),
    }
    let mode = mode.ok_or_else(|| SqliteError::NoFile { path: path.to_owned() })?;
    let target = follow(path).map_err(|source| failed(path, "follow the symbolic link", source))?;
    let folder = target.parent().filter(|folder| folder.is_dir()).ok_or_else(|| SqliteError::NoFolder {
        path: path.to_owned(),
        folder: target.parent().unwrap_or(&target).to_owned(),
    })?;
    check_file_system(path, folder, kernels)?;
    // Checked here, because SQLite would only say that it can't open something.
    let name = target.file_name().unwrap_or_default();
    let whole = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()).join(name);
    let is_long = |name: &OsStr, most| name.len() + LONGEST_ENDING.len() > most;
    if is_long(name, LONGEST_NAME) || (cfg!(unix) && is_long(whole.as_os_str(), LONGEST_PATH)) {
        return Err(failed(path, "create the file", io::ErrorKind::InvalidFilename.into()));
    }
    match create(&target, folder, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(failed(path, "create the file", source)),
        Ok(()) => Ok(()),
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> SqliteError {
    SqliteError::File { path: path.to_owned(), doing, source }
}

/// Where symbolic links lead, also when there is nothing yet.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    // As many as the kernel follows.
    for _ in 0..40 {
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_symlink() => {
                let target = fs::read_link(&at)?;
                at = at.parent().unwrap_or(Path::new("")).join(target);
            }
            _ => return Ok(at),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Makes an empty file under another name and links it to its place, so that nobody ever sees it with
/// another mode. Also, no handle on the file at its place is ever closed by us: that would drop every
/// lock that SQLite has on it in this process.
fn create(path: &Path, folder: &Path, mode: u32) -> io::Result<()> {
    let draft = folder.join(format!(".leasehold-{}", crate::sys::random::uuid()));
    empty(&draft, mode)?;
    let placed = match fs::hard_link(&draft, path) {
        Ok(()) => return fs::remove_file(&draft),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // A file system without hard links, as on USB sticks: it has no modes either.
        Err(_) => match rename(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => empty(path, mode),
            renamed => renamed,
        },
    };
    // The draft does not exist any more if it was renamed.
    let _ = fs::remove_file(&draft);
    placed
}

/// Renames unless there is a file at `to`. An error of kind `Unsupported` if the system can't promise that.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE).map_err(|errno| match errno {
        Errno::EINVAL | Errno::ENOSYS => io::ErrorKind::Unsupported.into(),
        errno => errno.into(),
    })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn rename(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn empty(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // Once more, since the umask may have taken from it. By its handle: at the path others may have put a link by now.
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn empty(path: &Path, _mode: u32) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

/// What access the system denies, to explain an error of SQLite that does not say so.
#[cfg(unix)]
pub(super) fn denied(path: &Path) -> Option<SqliteError> {
    use nix::unistd::AccessFlags;
    let refused = |at: &Path| may(at, AccessFlags::R_OK | AccessFlags::W_OK).err();
    let denied = |doing, source: nix::errno::Errno| {
        let source = io::Error::from(source);
        let is_denied = matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
        is_denied.then(|| SqliteError::Denied { path: path.to_owned(), doing, source })
    };
    let folder = fs::canonicalize(path).ok().and_then(|real| real.parent().map(Path::to_owned));
    let beside = || ["-wal", "-shm"].iter().find_map(|end| refused(&beside(path, end)));
    refused(path)
        .and_then(|source| denied("read and write the file", source))
        .or_else(|| beside().and_then(|source| denied("read and write the log beside the file", source)))
        .or_else(|| refused(&folder?).and_then(|source| denied("write in the file's folder", source)))
}

/// Whether the system lets this process write to the file.
#[cfg(unix)]
pub(super) fn is_writable(path: &Path) -> bool {
    may(path, nix::unistd::AccessFlags::W_OK).is_ok()
}

/// Checks for the user that the process acts as. In a setuid program, that is not the user who started it.
#[cfg(unix)]
fn may(at: &Path, how: nix::unistd::AccessFlags) -> nix::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{AT_FDCWD, AtFlags};
    use nix::unistd::{access, faccessat};
    // Android has neither the flag nor such programs.
    #[cfg(not(target_os = "android"))]
    let by = AtFlags::AT_EACCESS;
    #[cfg(target_os = "android")]
    let by = AtFlags::empty();
    match faccessat(AT_FDCWD, at, how, by) {
        // Old container runtimes answer `EPERM` to a call that they do not know (`faccessat2`).
        Err(Errno::EPERM) => access(at, how),
        answer => answer,
    }
}

#[cfg(not(unix))]
pub(super) fn is_writable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.permissions().readonly())
}

#[cfg(not(unix))]
pub(super) fn denied(_path: &Path) -> Option<SqliteError> {
    None
}

#[cfg(target_os = "linux")]
fn check_file_system(path: &Path, at: &Path, kernels: Kernels) -> Result<(), SqliteError> {
    if kernels == Kernels::Any {
        return Ok(());
    }
    let stat = nix::sys::statfs::statfs(at)
        .map_err(|errno| failed(path, "ask for the file system", io::Error::from(errno)))?;
    // The type of the number differs between architectures; its low 32 bits are the magic.
    let magic = stat.filesystem_type().0 as u32;
    match forbidden(magic) {
        Some(filesystem) => Err(SqliteError::ForbiddenFileSystem { path: path.to_owned(), filesystem }),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn check_file_system(_path: &Path, _at: &Path, _kernels: Kernels) -> Result<(), SqliteError> {
    Ok(())
}

/// The name of a file system that several kernels can share, by its number in `statfs`.
#[cfg(target_os = "linux")]
fn forbidden(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0xFF53_4D42 => "CIFS",
        0x0000_517B => "SMB",
        0xFE53_4D42 => "SMB2",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE or virtiofs",
        0x00C3_6400 => "Ceph",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x0BD0_0BD0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x4750_4653 => "GPFS",
        0x6163_6673 => "Oracle ACFS",
        0x0131_11A8 => "IBRIX",
        // One number, whether other hosts share it or not.
        0xA501_FCF5 => "VxFS",
        0x1983_0326 => "BeeGFS",
        0xAAD7_AAEA => "PanFS",
        0xBEEF_DEAD => "StorNext",
        0x2003_0528 => "OrangeFS",
        0x7375_7245 => "Coda",
        0x786F_4256 => "a VirtualBox shared folder",
        0xBACB_ACBC => "a VMware shared folder",
        0x7C7C_6673 => "a Parallels shared folder",
        _ => return None,
    })
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::statfs as magic;

    #[cfg(target_env = "gnu")]
    #[test]
    fn a_rename_takes_nobody_elses_place() {
        let folder = std::env::temp_dir().join(format!("leasehold-unit-{}", crate::sys::random::uuid()));
        fs::create_dir(&folder).unwrap();
        let [draft, place] = ["draft", "place"].map(|name| folder.join(name));
        for (text, fails) in [("first", false), ("second", true)] {
            fs::write(&draft, text).unwrap();
            let error = rename(&draft, &place).err().map(|error| error.kind());
            assert_eq!(error, fails.then_some(io::ErrorKind::AlreadyExists));
        }
        assert_eq!(fs::read_to_string(&place).unwrap(), "first");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_used_up_descriptors_are_told_as_that() {
        use nix::errno::Errno;
        for (errno, used_up) in [(Errno::EMFILE, true), (Errno::ENFILE, true), (Errno::ENOENT, false)] {
            let error = io::Error::from(errno);
            assert_eq!(is_exhausted(&error), used_up, "{errno}");
            let told = SqliteError::looking(Path::new("f"), error).to_string();
            assert_eq!(told.contains("too many open files"), used_up, "{told}");
        }
        assert!(!is_exhausted(&io::ErrorKind::NotFound.into()) && exhausted().is_none());
    }

    #[test]
    fn a_file_that_somebody_else_made_first_is_left_as_it_is() {
        let folder = std::env::temp_dir().join(format!("leasehold-unit-{}", crate::sys::random::uuid()));
        fs::create_dir(&folder).unwrap();
        let place = folder.join("place");
        create(&place, &folder, 0o600).unwrap();
        fs::write(&place, "theirs").unwrap();
        assert_eq!(create(&place, &folder, 0o644).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&place).unwrap(), "theirs");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a draft is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn shared_file_systems_are_known_and_local_ones_pass() {
        let named = |of: magic::FsType| forbidden(of.0 as u32);
        assert_eq!(named(magic::NFS_SUPER_MAGIC), Some("NFS"));
        assert_eq!(named(magic::SMB_SUPER_MAGIC), Some("SMB"));
        assert_eq!(forbidden(0x0102_1997), Some("9p"));
        assert_eq!(named(magic::FUSE_SUPER_MAGIC), Some("FUSE or virtiofs"));
        assert_eq!(forbidden(0xFF53_4D42), Some("CIFS"));
        assert_eq!(forbidden(0xFE53_4D42), Some("SMB2"));
        assert_eq!(named(magic::CODA_SUPER_MAGIC), Some("Coda"));
        assert_eq!(forbidden(u32::from_be_bytes(*b"GPFS")), Some("GPFS"));
        assert_eq!(forbidden(0x1983_0326), Some("BeeGFS"));
        assert_eq!(forbidden(u32::from_be_bytes(*b"acfs")), Some("Oracle ACFS"));
        assert_eq!(forbidden(0x0131_11A8), Some("IBRIX"));
        assert_eq!(forbidden(0xA501_FCF5), Some("VxFS"));
        for local in [magic::EXT4_SUPER_MAGIC, magic::BTRFS_SUPER_MAGIC, magic::TMPFS_MAGIC] {
            assert_eq!(named(local), None);
        }
        // XFS, for which not every target has a constant.
        assert_eq!(forbidden(u32::from_be_bytes(*b"XFSB")), None);
        assert_eq!(named(magic::OVERLAYFS_SUPER_MAGIC), None);
    }
}
