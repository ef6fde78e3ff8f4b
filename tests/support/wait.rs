//! The one way to wait for a condition that has no event of its own.

use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine, the start of a server included.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// The pause after a look is this many times as long as the look took, if that is longer, up to `LONGEST_REST`: a look
/// that asks a server leaves the machine to others.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(60);

/// Returns once `cond` is true; `what` is for the reader of a failure.
#[track_caller]
pub fn wait_until(what: &str, mut cond: impl FnMut() -> bool) {
    let started = Instant::now();
    loop {
        let looks = Instant::now();
        if cond() {
            return;
        }
        let rest = (looks.elapsed() * REST).min(LONGEST_REST);
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep((started.elapsed() / 20).clamp(PAUSES.0, PAUSES.1).max(rest));
    }
}
