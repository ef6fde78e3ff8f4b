//! Which file a path leads to.

use std::fs;
use std::io;
use std::path::Path;

/// Which file it is, whatever its path: device and inode, which are the same by every link and mount.
#[cfg(unix)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(pub u64, pub u64);

#[cfg(unix)]
impl FileId {
    pub fn of(meta: &fs::Metadata) -> FileId {
        use std::os::unix::fs::MetadataExt;
        FileId(meta.dev(), meta.ino())
    }
}

/// The file at `path`.
#[cfg(unix)]
pub fn identity(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|meta| FileId::of(&meta))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<std::path::PathBuf> {
    fs::canonicalize(path)
}

/// Whether both paths lead to one file; `None` if one of them can't be looked at here, and so may lead to any file.
pub fn is_same_file(one: &Path, other: &Path) -> Option<bool> {
    Some(identity(one).ok()? == identity(other).ok()?)
}
