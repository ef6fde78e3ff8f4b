//! The clock of all histories.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the host's boot, counting suspend; the same for all its processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the boot-time clock");
    nanos(Duration::from(now))
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
