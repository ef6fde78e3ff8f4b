//! How long to wait before the next try. Randomness is an argument: a fraction from 0 to 1.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The first repeat after a store error comes this soon.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest wait before a repeat after a store error; a renewal may wait longer.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait before a renewal is repeated, however much time is left.
const LAST_RENEWAL: Duration = Duration::from_secs(30);
/// The same for a lock without end, whose heartbeat only looks at it.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// Longer than anybody waits, and short enough that the sums below can't overflow.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a waiter looks again: at random within `range`, since a release may come at any time,
/// but at the latest when the lock can be free (`free_in`).
///
/// There is no backoff in the first minute; then the range doubles, after ten minutes again.
pub fn poll_delay(
    range: &RangeInclusive<Duration>,
    waited: Duration,
    free_in: Option<Duration>,
    random: f64,
) -> Duration {
    let slower = match waited.as_secs() {
        0..60 => 1,
        60..600 => 2,
        _ => 4,
    };
    let (low, high) = ((*range.start()).min(LONGEST_POLL), (*range.end()).min(LONGEST_POLL));
    let drawn = (low + high.saturating_sub(low).mul_f64(random)) * slower;
    free_in.map_or(drawn, |free| drawn.min(free))
}

/// The same after a look that failed. It is repeated as soon as any other request, since the lock may be free by then.
pub fn failed_look_delay(range: &RangeInclusive<Duration>, waited: Duration, random: f64) -> Duration {
    poll_delay(range, waited, None, random).min(retry_delay(u32::MAX, Duration::MAX, random))
}

/// When a waiter looks again if the store wakes it for everything but the end of a lease: when the lock can be free,
/// but at least a hundredth as often as a waiter that polls, since a wakeup may be lost on its way.
pub fn woken_delay(range: &RangeInclusive<Duration>, free_in: Option<Duration>, random: f64) -> Duration {
    let drawn = poll_delay(range, Duration::ZERO, None, random).saturating_mul(100);
    free_in.map_or(drawn, |free| drawn.min(free))
}

/// The wait before repeat number `failures` of a request that the store did not answer: doubled
/// each time up to a second, the upper half at random, and never more than a third of `left`, so
/// that two more repeats fit.
pub fn retry_delay(failures: u32, left: Duration, random: f64) -> Duration {
    delay(failures, LAST_RETRY, left, random)
}

/// The same for a renewal. While a lease has much time left, repeats come less often, so that not all guards ask at
/// once when a store comes back. A lock without end may get an end meanwhile, of which its guard must learn in time.
pub fn renewal_delay(failures: u32, left: Duration, random: f64) -> Duration {
    let most = if left == Duration::MAX { LAST_LOOK } else { (left / 30).clamp(LAST_RETRY, LAST_RENEWAL) };
    delay(failures, most, left, random)
}

fn delay(failures: u32, most: Duration, left: Duration, random: f64) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << failures.min(11));
    let capped = doubled.min(most);
    capped.mul_f64(0.5 + random / 2.0).min(left / 3)
}

/// A heartbeat interval with 10 % of jitter to either side.
pub fn with_jitter(interval: Duration, random: f64) -> Duration {
    interval.mul_f64(0.9 + random / 5.0)
}
