//! Which file a path leads to.

use std::fs;
use std::path::Path;

/// Whether both paths lead to one file that is there.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Device and inode, which are the same by every link and mount.
#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> std::io::Result<std::path::PathBuf> {
    fs::canonicalize(path)
}
