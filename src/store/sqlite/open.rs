//! Opening the file: both connections, and what must be true of it before and after.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::conn::{self, Writer};
use super::error::SqliteError;
use super::file::{self, Kernels, Log};
use super::wakeup::Watch;
use super::{Sqlite, Target, boot, identity, label, now, register, schema};
use crate::model::error::Result;
use crate::store::transactional::Durability;
use crate::store::url::{StoreUrl, config};
use crate::store::{Bounds, Missing, Opener, StoreInfo};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// What [`Sqlite::open`] needs to know.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file; made if it is missing.
    pub path: PathBuf,
    /// The mode of a file that is made. Defaults to 0600.
    pub mode: Option<u32>,
    /// Whether a file system that several kernels can share is allowed.
    pub unsafe_fs: bool,
    /// For tests: the identity of another boot's clock.
    pub clock_identity: Option<String>,
}

impl SqliteOptions {
    /// From a URL like `sqlite:PATH?mode=0600`.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        url.only(&["mode", "unsafe_fs"])?;
        if url.path == ":memory:" {
            return Err(config("sqlite::memory: would be another store for each connection; use memory: instead"));
        }
        // `sqlite:///a/b` is how other tools write an absolute path.
        let path = match url.path.strip_prefix("//") {
            Some(path) if !path.starts_with('/') => {
                // Here, too, a password may stand before an @, as in the URL of another store; then the path is not
                // shown.
                let right = if path.contains('@') { String::new() } else { format!("; write sqlite:{path}") };
                return Err(config(&format!("sqlite:// names a host, which SQLite has none of{right}")));
            }
            Some(path) => path,
            None => &url.path,
        };
        if path.is_empty() {
            return Err(config("sqlite: needs the path of a file, like sqlite:locks.db"));
        }
        let mode = url.option("mode").map(file_mode).transpose()?;
        Ok(SqliteOptions { mode, unsafe_fs: url.flag("unsafe_fs")?, ..SqliteOptions::new(path) })
    }

    /// The options of this file, the rest by default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions { path: path.into(), mode: None, unsafe_fs: false, clock_identity: None }
    }

    /// The store in this file.
    pub(crate) fn opener(self) -> Result<Opener> {
        check_version(rusqlite::version_number(), rusqlite::version())?;
        Ok(Opener::new(Bounds::of(Sqlite::MIN_LEASE), |clock, missing, by| {
            warn_of_lost_commits();
            Ok(Sqlite::connect(self, clock, missing, by)?)
        }))
    }
}

/// A build with `LIBSQLITE3_SYS_USE_PKG_CONFIG=1` uses the system's library, which may be of any age.
pub(super) fn check_version(number: i32, name: &str) -> Result<()> {
    if number < 3_037_000 {
        return Err(config(&format!(
            "the system's SQLite library is {name}, but must be 3.37 or later: update it, or build without \
             LIBSQLITE3_SYS_USE_PKG_CONFIG, which brings one along"
        )));
    }
    Ok(())
}

/// Whether this version has <https://sqlite.org/wal.html#walresetbug>: if a checkpoint begins while another connection
/// restarts the log, a later checkpoint may leave out what was committed, and nobody reads it any more.
pub(super) fn may_lose_commits(number: i32) -> bool {
    let is_mended = matches!(number, 3_044_006..3_045_000 | 3_050_007..3_051_000 | 3_051_003..);
    !is_mended
}

/// Warns once in a process. The version is not refused, because a system may have added the fix and kept the number.
fn warn_of_lost_commits() {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if may_lose_commits(rusqlite::version_number()) && !IS_TOLD.swap(true, Ordering::Relaxed) {
        log::warn!(
            target: "leasehold::sqlite",
            "SQLite {} can, rarely, lose what two processes write at once (https://sqlite.org/wal.html#walresetbug), and a lock \
             then has two holders, unless the distribution has put the fix into it: link 3.51.3, 3.50.7, 3.44.6 or a \
             later one of these lines, or build without LIBSQLITE3_SYS_USE_PKG_CONFIG, which brings one along",
            rusqlite::version()
        );
    }
}

fn file_mode(text: &str) -> Result<u32> {
    match u32::from_str_radix(text, 8) {
        // The owner has to read and write it.
        Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(config(&format!("the option mode is {text:?}, but must be an octal file mode like 0600 or 0660"))),
    }
}

impl Sqlite {
    /// Opens the file, and makes the file and the table if they are missing. Several processes may do so at
    /// the same time.
    pub fn open(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Sqlite> {
        Ok(Sqlite::connect(options, clock, Missing::IsAllowed, by)?)
    }

    /// The same, but a missing file is an error, and a file that this user can only read is opened for reading.
    pub fn open_existing(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Sqlite> {
        Ok(Sqlite::connect(options, clock, Missing::IsRefused, by)?)
    }

    fn connect(
        options: SqliteOptions,
        clock: Arc<Clock>,
        missing: Missing,
        by: &Deadline,
    ) -> Result<Sqlite, SqliteError> {
        // Absolute, so that a later change of the working directory does not lead to another file.
        let path = std::path::absolute(&options.path).map_err(|source| SqliteError::File {
            path: options.path.clone(),
            doing: "make the path absolute",
            source,
        })?;
        // Checked first, so that no file is created if the call is refused.
        now(&clock, &path)?;
        register::check(&path, by)?;
        let mode = Some(options.mode.unwrap_or(0o600)).filter(|_| missing == Missing::IsAllowed);
        file::prepare(&path, mode, if options.unsafe_fs { Kernels::Any } else { Kernels::One })?;
        let before = identity(&path)?.ok_or_else(|| SqliteError::Moved { path: path.clone() })?;
        let open = || {
            // A user who may only read would create the log and leave it behind, as a file of this user's that others
            // can't write.
            if !file::is_writable(&path)
                && !matches!(Log::of(&path), Ok(Some(_)))
                && let Some(denied) = file::denied(&path)
            {
                return Err(denied);
            }
            let mut writer = Writer::open(&path, before, by)?;
            let made = match missing {
                Missing::IsAllowed => schema::create(&writer, &path, by),
                Missing::IsRefused => schema::require(&writer, &path, by).map(|()| false),
            };
            // Explained while the file is still open: that takes descriptors, too, which may be what is used up.
            let made = made.map_err(|error| conn::explained(error, &path))?;
            if missing == Missing::IsAllowed
                && writer.is_readonly("main").unwrap_or(false)
                && let Some(denied) = file::denied(&path)
            {
                return Err(denied);
            }
            let log = writer.protect(&path, by)?;
            let mut reader = conn::open(&path, before, Durability::Process, by)?;
            match reader.protect(&path, by)? {
                of_reader if of_reader == log => Ok((writer, reader, log, made)),
                _ => Err(SqliteError::Moved { path: path.clone() }),
            }
        };
        let (writer, reader, log, made) = open()?;
        // If the same file is at the path before and after, both connections opened it.
        if identity(&path)? != Some(before) {
            return Err(SqliteError::Moved { path });
        }
        if made {
            // This gives the file the room for its table. Otherwise the log could not be copied on a full disk.
            conn::copy_log(&writer);
        }
        let info = StoreInfo::new(label(&path), "this host's boot-time clock", Bounds::of(Sqlite::MIN_LEASE));
        let asked = options.clock_identity.map_or_else(boot::clock_identity, Ok);
        let doing = "ask for the identity of this boot";
        let clock_identity = asked.map_err(|source| SqliteError::File { path: path.clone(), doing, source })?;
        if cfg!(target_os = "linux") && boot::is_drawn(&clock_identity) {
            log::warn!(
                target: "leasehold::sqlite",
                "{}: the system does not tell which boot this is (/proc/sys/kernel/random/boot_id, /proc/self/ns), so \
                 this process takes over what another one left only a whole lease after it first saw it, and never \
                 does where it tries once and ends",
                label(&path)
            );
        }
        let encoding = reader.query_row("PRAGMA encoding", [], |row| row.get::<_, String>(0));
        let is_utf8 = encoding.is_ok_and(|encoding| encoding == "UTF-8");
        let target = Target { path, file: before, log, clock, clock_identity, is_utf8 };
        let (writer, reader) = (Mutex::new(writer), Mutex::new(reader));
        Ok(Sqlite { info, target, writer, reader, watch: Watch::default(), made: AtomicBool::new(made) })
    }
}
