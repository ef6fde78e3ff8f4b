//! What can go wrong here, with the file's path and what to do.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::{file, label};
use crate::lease::record::FORMAT_MAJOR;
use crate::model::error::{Error, ErrorKind};

/// `SQLITE_READONLY_DBMOVED`: SQLite noticed by itself that the file is not the one it opened.
const READONLY_DBMOVED: i32 = 1032;
/// `SQLITE_IOERR_SHORT_READ`: pages that the index of the log names are not in the log. (Pages that are missing in the
/// file itself SQLite takes for empty.)
const IOERR_SHORT_READ: i32 = 522;

macro_rules! rights {
    () => {
        "the file and its folder must be writable for this user or, only to look, somebody must have it open"
    };
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SqliteError {
    #[error(
        "another process or thread is writing to this database, or was stopped as it began to read, and did not finish in \
         the time that this call had; nothing was written, and the call may be repeated"
    )]
    Busy { path: PathBuf },

    #[error(
        "this call did not get its turn at the file in the time that it had; nothing was written, and it may be repeated"
    )]
    NoTurn { path: PathBuf },

    #[error(
        "something else in this process closed the file while this call was writing to it, which ends SQLite's locks; \
         nothing was written, and the call may be repeated"
    )]
    LockEnded { path: PathBuf },

    #[error("could not {doing}: {}", advice(source))]
    Engine { path: PathBuf, doing: &'static str, source: rusqlite::Error },

    #[error("could not {doing}: {}", io_advice(source))]
    File { path: PathBuf, doing: &'static str, source: io::Error },

    #[error(
        "{}; SQLite reads and writes the file and keeps two more beside it (-wal and -shm), so {}",
        denial(doing, source),
        rights!()
    )]
    Denied { path: PathBuf, doing: &'static str, source: io::Error },

    #[error("there is no such file; correct the path, or make it by create_schema()")]
    NoFile { path: PathBuf },

    #[error("the folder {} does not exist; {}", .folder.display(), folder_advice(path))]
    NoFolder { path: PathBuf, folder: PathBuf },

    #[error("this is {what}, not a file; name a file, which is created if it is missing")]
    NotAFile { path: PathBuf, what: &'static str },

    #[error(
        "it lies on {filesystem}, where SQLite's locks do not hold between kernels and two processes could \
         hold one lock; use a local disk, or say unsafe_fs=1 if only this kernel ever opens it"
    )]
    ForbiddenFileSystem { path: PathBuf, filesystem: &'static str },

    #[error("SQLite can't keep a write-ahead log here (the journal mode stays {mode:?}); use a local disk")]
    NoWriteAheadLog { path: PathBuf, mode: String },

    #[error(
        "the file, or its log beside it (-wal, -shm), was removed or replaced while it was open, so others do not see \
         what is written to it; drop this process's clients and connections on it, and connect again"
    )]
    Moved { path: PathBuf },

    #[error(
        "{who} has this file open by another path (a hard link, or a mount of the file alone), and keeps its log there, \
         so neither would see what the other one writes; use one path, and mount the folder (or the file was moved while \
         it is open there: close it, or end the process)"
    )]
    OtherPath { path: PathBuf, who: &'static str },

    #[error(
        "another copy of this library, with an SQLite of its own, has this file open in this process, and neither would see \
         when the other one writes; load one copy alone"
    )]
    OtherCopy { path: PathBuf },

    #[error(
        "this process was forked from one that had an SQLite file open, this one or another, and neither SQLite's locks \
         nor its mutexes outlive that; fork before you connect, or exec in the child"
    )]
    OpenInParent { path: PathBuf },

    #[error(
        "its user_version {found} means format {}.{}, and this version of leasehold reads up to \
         {FORMAT_MAJOR}.x; use a newer version of leasehold, or another file", found / 1000,
        found % 1000
    )]
    NewerFormat { path: PathBuf, found: i64 },

    #[error(
        "its user_version {found} belongs to another program, and leasehold keeps its format there; \
         use a file of its own for the locks"
    )]
    ForeignVersion { path: PathBuf, found: i64 },

    #[error(
        "it has a table `locks` that is not leasehold's ({what}); use another file for the locks, \
         or rename that table"
    )]
    OtherTable { path: PathBuf, what: String },

    #[error("the table `locks` is missing; create_schema() makes it")]
    NoTable { path: PathBuf },

    #[error(
        "the row of key {key:?} is damaged ({what}); it is left as it is: \
         correct or delete it with the sqlite3 shell once nobody holds it"
    )]
    Damaged { path: PathBuf, key: String, what: String },

    #[error(
        "nothing was written: a trigger that leasehold did not make keeps the rows of the table `locks` as they are; drop it"
    )]
    Unwritten { path: PathBuf },

    #[error(
        "this system's boot-time clock can't be read, by which all who use this file tell when a lease ends; allow it \
         (clock_gettime) in the sandbox that this process is in"
    )]
    NoClock { path: PathBuf },

    #[error("{what} is too large for SQLite's integers")]
    TooLarge { path: PathBuf, what: &'static str },
}

impl SqliteError {
    /// Whether somebody else has the file locked for the moment. For the last of these codes, the file stayed locked
    /// through all the tries that SQLite makes by itself, for ten seconds.
    pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
        matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
    }

    /// The error if the system can't be asked about the file.
    pub(super) fn looking(path: &Path, source: io::Error) -> SqliteError {
        SqliteError::File { path: path.to_owned(), doing: "look at the file", source }
    }

    fn path(&self) -> &Path {
        match self {
            SqliteError::Busy { path }
            | SqliteError::NoTurn { path }
            | SqliteError::LockEnded { path }
            | SqliteError::Engine { path, .. }
            | SqliteError::File { path, .. }
            | SqliteError::Denied { path, .. }
            | SqliteError::NoFile { path }
            | SqliteError::NoFolder { path, .. }
            | SqliteError::NotAFile { path, .. }
            | SqliteError::ForbiddenFileSystem { path, .. }
            | SqliteError::NoWriteAheadLog { path, .. }
            | SqliteError::Moved { path }
            | SqliteError::OtherPath { path, .. }
            | SqliteError::OtherCopy { path }
            | SqliteError::OpenInParent { path }
            | SqliteError::NewerFormat { path, .. }
            | SqliteError::ForeignVersion { path, .. }
            | SqliteError::OtherTable { path, .. }
            | SqliteError::NoTable { path }
            | SqliteError::Damaged { path, .. }
            | SqliteError::Unwritten { path }
            | SqliteError::NoClock { path }
            | SqliteError::TooLarge { path, .. } => path,
        }
    }

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            SqliteError::Busy { .. } | SqliteError::NoTurn { .. } | SqliteError::LockEnded { .. } => {
                (ErrorKind::Store, true)
            }
            SqliteError::Engine { source, .. } => engine_kind(source),
            SqliteError::File { source, .. } => io_kind(source),
            SqliteError::Denied { .. } => (ErrorKind::Permission, false),
            SqliteError::NoFile { .. }
            | SqliteError::NoFolder { .. }
            | SqliteError::NotAFile { .. }
            | SqliteError::NoWriteAheadLog { .. }
            | SqliteError::OtherPath { .. }
            | SqliteError::OtherCopy { .. }
            | SqliteError::OpenInParent { .. }
            | SqliteError::NoClock { .. }
            | SqliteError::ForbiddenFileSystem { .. } => (ErrorKind::Config, false),
            SqliteError::Moved { .. } => (ErrorKind::Store, false),
            SqliteError::NewerFormat { .. }
            | SqliteError::ForeignVersion { .. }
            | SqliteError::OtherTable { .. }
            | SqliteError::NoTable { .. }
            | SqliteError::Damaged { .. }
            | SqliteError::Unwritten { .. } => (ErrorKind::Schema, false),
            SqliteError::TooLarge { .. } => (ErrorKind::InvalidInput, false),
        }
    }
}

impl From<SqliteError> for Error {
    fn from(error: SqliteError) -> Error {
        let (kind, retryable) = error.kind();
        let mut failed = Error::new(kind, error.to_string()).with_store(&label(error.path()));
        if retryable {
            failed = failed.retryable();
        }
        match error {
            SqliteError::Engine { source, .. } => failed.caused_by(source),
            SqliteError::File { source, .. } | SqliteError::Denied { source, .. } => failed.caused_by(source),
            SqliteError::Damaged { key, .. } => failed.with_key(&key),
            SqliteError::Moved { .. } => failed.gone(),
            _ => failed,
        }
    }
}

fn engine_kind(error: &rusqlite::Error) -> (ErrorKind, bool) {
    let Some(cause) = error.sqlite_error() else {
        return (ErrorKind::Schema, false);
    };
    match cause.code {
        ErrorCode::ReadOnly if cause.extended_code == READONLY_DBMOVED => (ErrorKind::Store, false),
        ErrorCode::SystemIoFailure if cause.extended_code == IOERR_SHORT_READ => (ErrorKind::Store, false),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => (ErrorKind::Permission, false),
        ErrorCode::NotADatabase
        | ErrorCode::DatabaseCorrupt
        | ErrorCode::ConstraintViolation
        | ErrorCode::TypeMismatch
        | ErrorCode::Unknown => (ErrorKind::Schema, false),
        // Disk full, I/O errors, no more file handles or memory: these pass.
        _ => (ErrorKind::Store, true),
    }
}

/// What to do, by what SQLite says.
fn advice(error: &rusqlite::Error) -> &'static str {
    let Some(cause) = error.sqlite_error() else {
        return "the table `locks` is not as leasehold made it";
    };
    match cause.code {
        ErrorCode::ReadOnly if cause.extended_code == READONLY_DBMOVED => {
            "the file was removed or replaced while it was open; connect again"
        }
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            "it is read-only for this user; the file, its -wal and -shm, and its folder must be writable"
        }
        ErrorCode::NotADatabase => "the file is not an SQLite database; name another file",
        ErrorCode::DatabaseCorrupt => {
            "the database is damaged; stop every process that uses it and restore or delete it"
        }
        ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::Unknown => {
            "the table `locks` is not as leasehold made it; create the schema, or use another file"
        }
        ErrorCode::DiskFull => "the disk is full; make room on it",
        ErrorCode::SystemIoFailure if cause.extended_code == IOERR_SHORT_READ => {
            "its log (-wal) is shorter than the index of the log (-shm) says: the log was removed, or the file has a second \
             name; end everything that has it open, and connect again"
        }
        ErrorCode::SystemIoFailure => {
            "the disk failed or is full, or a file must not grow (ulimit -f); see what the system's log says about it"
        }
        ErrorCode::CannotOpen => {
            "a file could not be opened; check the folder, its permissions and the limit of open files"
        }
        _ if SqliteError::is_busy(error) => "another process is writing to it; repeat the call",
        _ => "SQLite failed; repeat the call",
    }
}

fn denial(doing: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => format!("the file system is read-only, so nobody can {doing}"),
        _ => format!("no permission to {doing}"),
    }
}

fn io_kind(error: &io::Error) -> (ErrorKind, bool) {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (ErrorKind::Permission, false),
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename => (ErrorKind::Config, false),
        _ if file::is_endless(error) => (ErrorKind::Config, false),
        _ => (ErrorKind::Store, true),
    }
}

fn folder_advice(path: &Path) -> &'static str {
    match path.components().any(|part| part.as_os_str() == "~") {
        true => "nobody replaces the ~ here: write the whole path, or $HOME where a shell reads it",
        false => "create it, or correct the path",
    }
}

fn io_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if file::is_exhausted(error) => "too many open files: raise the limit (ulimit -n)",
        io::ErrorKind::PermissionDenied => concat!("no permission; ", rights!()),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; use another one, or mount it for writing",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full; make room on it",
        io::ErrorKind::InvalidFilename => {
            "the name is too long, also for the files that SQLite makes beside it; shorten it"
        }
        _ if file::is_endless(error) => "the symbolic links lead nowhere; correct them",
        // This one does not come from the system: Rust refuses a path with a NUL before it asks the system.
        io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => "a path has no NUL (%00 in a URL); correct it",
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            "there is no such path; correct it"
        }
        _ => "the system refused; see the cause",
    }
}
