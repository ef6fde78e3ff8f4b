//! Runs a test in a process of its own: for tests that others in the same process would disturb, and so that a hang
//! becomes a failure.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ALONE: &str = "LEASEHOLD_TEST_ALONE";
/// Hardly any test takes longer. Longer than `wait_until` waits, because its failure says more about a hang.
const LIMIT: Duration = Duration::from_secs(150);

/// Runs `body` in a new process of this very test binary; `test` is the full name of the calling test.
#[track_caller]
pub fn alone(test: &str, body: impl FnOnce()) {
    alone_for(test, LIMIT, body);
}

/// The same, for a test that may take as long as `limit`.
#[track_caller]
pub fn alone_for(test: &str, limit: Duration, body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return body();
    }
    let binary = std::env::current_exe().expect("this test binary");
    let mut child = Command::new(binary)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, test)
        // Otherwise the stacks of ended threads are kept, and a limit on memory does not prevent a new thread.
        .env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("this test binary again");
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the state of the child") {
            return assert!(status.success(), "{test} failed in its own process, see above: {status}");
        }
        if started.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{test} hung in its own process");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
