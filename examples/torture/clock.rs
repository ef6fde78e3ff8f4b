//! The clock of all histories.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::checker::history::Line;

const TICK: Duration = Duration::from_millis(10);
/// A process that is later than this counts as a fault of its own, even if the lease is long.
const LATE: Duration = Duration::from_millis(200);
/// A heartbeat that is due after a third of the lease passes through this many threads, and each may be as late.
const HOPS: u32 = 5;

/// Nanoseconds since the host's boot, counting suspend; the same for all its processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the boot-time clock");
    nanos(Duration::from(now))
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// From now on, reports when this process is so late that its history can't be judged.
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
