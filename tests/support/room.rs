//! Folders without a disk to wait for.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::path::PathBuf;

/// In a container it may be small, and a full one kills who writes to what is mapped.
const LEAST_BYTES: u64 = 2 << 30;

/// Where they are: in memory where that can be. A process that is killed leaves its files as they are there, too.
pub fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let free = |of: nix::sys::statvfs::Statvfs| of.blocks_available() as u64 * of.fragment_size() as u64;
    let is_there = || nix::sys::statvfs::statvfs(&memory).is_ok_and(|of| free(of) >= LEAST_BYTES);
    if is_there() && tempfile::tempfile_in(&memory).is_ok() { memory } else { std::env::temp_dir() }
}

/// One that is removed with the value.
pub fn room() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in(place())
}
