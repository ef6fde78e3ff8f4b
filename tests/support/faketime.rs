//! The program `faketime`, which gives another process a wall clock of its own.

use std::process::Command;
use std::sync::OnceLock;

use super::servers::skip;

/// Whether it is installed. A test asks this first; if not, this reports that the test can't run.
#[track_caller]
pub fn is_there() -> bool {
    let is_there = Command::new("faketime").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip("no program `faketime`; install it (on Debian: faketime)");
    }
    is_there
}

/// The path of its library, for `LD_PRELOAD`. (The program itself would remain as a process between the test and the
/// process that it starts.)
pub fn library() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // It fails where its process id was that of a process that was killed while the library was loaded.
        let tries = (0..50).find_map(|_| {
            let told = Command::new("faketime").args(["-m", "-f", "+0s", "env"]).output().expect("faketime");
            let told = String::from_utf8(told.stdout).expect("a text");
            told.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=").map(str::to_owned))
        });
        tries.expect("its library")
    })
}

/// Removes what the library leaves in this machine's shared memory when its process is killed.
pub fn clean_up(process: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        let _ = std::fs::remove_file(format!("/dev/shm/{name}_{process}"));
    }
}
