//! Folders that need not wait for a disk.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::path::{Path, PathBuf};

/// In a container the memory file system may be small, and when it is full, a process that writes to a mapped file is
/// killed.
#[cfg(target_os = "linux")]
const LEAST_BYTES: u64 = 2 << 30;

/// Where the folders are: in memory where possible, if programs may run from there. Files of a process that is killed
/// stay there, too.
pub fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if is_fit(&memory) && tempfile::tempfile_in(&memory).is_ok() { memory } else { std::env::temp_dir() }
}

#[cfg(target_os = "linux")]
#[allow(clippy::useless_conversion)] // With 32 bits they are narrower.
fn is_fit(memory: &Path) -> bool {
    use nix::sys::statvfs::{FsFlags, statvfs};
    statvfs(memory).is_ok_and(|of| {
        let blocks = LEAST_BYTES / u64::from(of.fragment_size()).max(1);
        u64::from(of.blocks_available()) >= blocks && !of.flags().contains(FsFlags::ST_NOEXEC)
    })
}

#[cfg(not(target_os = "linux"))]
fn is_fit(_: &Path) -> bool {
    false
}

/// A folder that is removed with the value.
pub fn room() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in(place())
}
