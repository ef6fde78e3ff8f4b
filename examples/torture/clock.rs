//! The clock of all histories.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::checker::history::Line;

const TICK: Duration = Duration::from_millis(10);
/// Whoever is later than this is a fault of its own, also for a long lease.
const LATE: Duration = Duration::from_millis(200);
/// A heartbeat that is due after a third of the lease passes through so many threads, and each may be as late.
const HOPS: u32 = 5;

/// Nanoseconds since the host's boot, counting suspend; the same for all its processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the boot-time clock");
    nanos(Duration::from(now))
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Tells when this process is so late that nothing can be said of it, from now on.
pub fn measure_lateness(lease: Duration, told: impl Fn(Line) + Send + 'static) {
    let most = LATE.min(lease / 3 / HOPS);
    std::thread::spawn(move || {
        loop {
            let from = now();
            std::thread::sleep(TICK);
            let to = now();
            if to - from > nanos(most) {
                told(Line::Late { from, to });
            }
        }
    });
}
