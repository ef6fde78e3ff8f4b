//! The clock that counts suspend and that nobody can set: leases are counted by it.

use std::time::Duration;

use nix::time::ClockId;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// It counts sleep on macOS.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Equal for all processes of this host, but those of another time namespace.
pub fn since_boot() -> Duration {
    // The clock exists wherever this compiles.
    CLOCK.now().map(Duration::from).unwrap_or_default()
}
