//! A tiny file system for one test, which the test can fill.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::servers::skip;

const PLACE: &str = "LEASEHOLD_SMALL_DISK_OF";

/// Runs `body` in a new process of this test binary, with a file system of this size, in a mount namespace that ends
/// with the process; `test` is the full name of the calling test. Skips the test where no file system can be mounted.
#[track_caller]
pub fn on_a_small_disk(test: &str, size: &str, body: impl FnOnce(&Path)) {
    if let Some(place) = std::env::var_os(PLACE) {
        return body(Path::new(&place));
    }
    let room = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let is_root = std::fs::metadata(room.path()).unwrap().uid() == 0;
    let flags = if is_root { "-m" } else { "-rm" };
    let script = format!("mount -t tmpfs -o size={size} tmpfs \"$0\" || exit 99; exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args([flags, "sh", "-c", &script]).arg(room.path()).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored"]).env(PLACE, room.path());
    let output = command.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if matches!(output.status.code(), Some(99 | 1)) && !told.contains("running 1 test") {
        return skip(&format!("no tiny file system can be mounted here: {told}"));
    }
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

/// Writes a file until the disk is full. Removing the file makes room again.
pub fn fill(place: &Path) -> PathBuf {
    let path = place.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 16, 512] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
    path
}
