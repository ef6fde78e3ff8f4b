//! Opening the file: both connections, and what must be true of it before and after.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::at_rest::Visitor;
use super::conn::{self, Access, Conn, Writer};
use super::error::SqliteError;
use super::file::{self, FileId, Kernels, Log};
use super::wakeup::Watch;
use super::{Sqlite, Target, boot, identity, label, register, schema};
use crate::model::error::Result;
use crate::store::transactional::Durability;
use crate::store::url::{StoreUrl, config};
use crate::store::{Backend, Missing, Opener, StoreInfo};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

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
                return Err(config(&format!("sqlite:// names a host, which SQLite has none of; write sqlite:{path}")));
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
        Ok(Opener::new(Sqlite::MIN_LEASE, |clock, missing, by| match missing {
            Missing::IsAllowed => Ok(Arc::new(Sqlite::open(self, clock, by)?)),
            Missing::IsRefused => Sqlite::open_existing(self, clock, by),
        }))
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

    /// The same, but a missing file is an error, and one that can only be read is opened for that.
    pub fn open_existing(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Arc<dyn Backend>> {
        match Sqlite::connect(options.clone(), clock.clone(), Missing::IsRefused, by) {
            Err(SqliteError::Denied { .. }) => Ok(Arc::new(Visitor::open(options, clock, by)?)),
            opened => Ok(Arc::new(opened?)),
        }
    }

    pub(super) fn connect(
        options: SqliteOptions,
        clock: Arc<Clock>,
        missing: Missing,
        by: &Deadline,
    ) -> Result<Sqlite, SqliteError> {
        let place = Place::find(&options, missing, by)?;
        let Place { path, file: before } = &place;
        // Who may only read would make the log and leave it behind, as a file of its own that others can't write.
        if !file::is_writable(path)
            && !matches!(Log::of(path), Ok(Some(_)))
            && let Some(denied) = file::denied(path)
        {
            return Err(denied);
        }
        let mut writer = Writer::open(path, *before, Access::Shared, by)?;
        let made = match missing {
            Missing::IsAllowed => schema::create(&writer, path, by),
            Missing::IsRefused => schema::require(&writer, path, by).map(|()| false),
        };
        // While it is open, which takes descriptors, too.
        let made = made.map_err(|error| conn::explained(error, path))?;
        if missing == Missing::IsAllowed
            && writer.is_readonly("main").unwrap_or(false)
            && let Some(denied) = file::denied(path)
        {
            return Err(denied);
        }
        let log = writer.protect(path, by)?;
        let mut reader = conn::open(path, *before, Access::Shared, Durability::Process, by)?;
        if reader.protect(path, by)? != log {
            return Err(SqliteError::Moved { path: path.clone() });
        }
        place.opened(options, clock, (writer, reader, log), made)
    }

    /// To read a file that nobody writes to meanwhile: see `at_rest`.
    pub(super) fn connect_at_rest(
        options: SqliteOptions,
        clock: Arc<Clock>,
        place: Place,
        log: Log,
        by: &Deadline,
    ) -> Result<Sqlite, SqliteError> {
        let Place { path, file } = &place;
        let writer = Writer::open(path, *file, Access::AtRest, by)?;
        schema::require_at_rest(&writer, path)?;
        let reader = conn::open(path, *file, Access::AtRest, Durability::Process, by)?;
        place.opened(options, clock, (writer, reader, log), false)
    }
}

/// A file that is there, and lies where it may.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) file: FileId,
}

impl Place {
    pub(super) fn find(options: &SqliteOptions, missing: Missing, by: &Deadline) -> Result<Place, SqliteError> {
        // Absolute, so that a later change of the working directory does not lead to another file.
        let path = std::path::absolute(&options.path).map_err(|source| SqliteError::File {
            path: options.path.clone(),
            doing: "make the path absolute",
            source,
        })?;
        // What is refused is not made.
        register::check(&path, by)?;
        let mode = Some(options.mode.unwrap_or(0o600)).filter(|_| missing == Missing::IsAllowed);
        file::prepare(&path, mode, if options.unsafe_fs { Kernels::Any } else { Kernels::One })?;
        let file = identity(&path)?.ok_or_else(|| SqliteError::Moved { path: path.clone() })?;
        Ok(Place { path, file })
    }

    /// The store that these connections make.
    fn opened(
        self,
        options: SqliteOptions,
        clock: Arc<Clock>,
        (writer, reader, log): (Writer, Conn, Log),
        made: bool,
    ) -> Result<Sqlite, SqliteError> {
        let Place { path, file } = self;
        // Both opened the file that is there before and after.
        if identity(&path)? != Some(file) {
            return Err(SqliteError::Moved { path });
        }
        let info = StoreInfo::new(label(&path), "this host's boot-time clock", Sqlite::MIN_LEASE);
        let asked = options.clock_identity.map_or_else(boot::clock_identity, Ok);
        let doing = "ask for the identity of this boot";
        let clock_identity = asked.map_err(|source| SqliteError::File { path: path.clone(), doing, source })?;
        let target = Target { path, file, log, clock, clock_identity };
        let (writer, reader) = (Mutex::new(writer), Mutex::new(reader));
        Ok(Sqlite { info, target, writer, reader, watch: Watch::default(), made: AtomicBool::new(made) })
    }
}
