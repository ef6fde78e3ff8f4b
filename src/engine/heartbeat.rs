//! The thread that renews one guard's lease. The watcher starts it when the first heartbeat is due. This thread only
//! sends; it is the watcher that declares a loss by the lease's end or by `max_hold`, unless somebody looks before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::select;

use super::hold::{Beat, Hold};
use crate::engine::options::Terms;
use crate::lease::{Lease, backoff};
use crate::model::error::{Error, Result};
use crate::model::key::shown;
use crate::model::loss::LossReason;
use crate::sys::caught::caught;
use crate::sys::clock::BootTime;
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::random;
use crate::sys::thread::{self, Thread};

/// How often the guard of a lock without end checks whether it was released or replaced, or has an end by now.
const ENDLESS_LOOK: Duration = Duration::from_secs(30);
/// The shortest time between two such checks, where it has an end that is near.
const LEAST_LOOK: Duration = Duration::from_secs(1);
/// A lock without end is given no end that is nearer than this, so that its guard finds out before.
pub const NEAREST_END: Duration = ENDLESS_LOOK.saturating_mul(2);
/// While heartbeats fail one after the other, one failure in this time is logged as a warning.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// The shortest time between repeats, however little of the lease is left: in less than that hardly any answer comes.
const MIN_RETRY: Duration = Duration::from_millis(5);

/// How long to wait for the next heartbeat, when the lock counts as held for `left` from `now` on. (A hold that ends
/// before its first heartbeat needs no thread.) A third of `left` is kept for the renewal and its repeats, even if an
/// answer that came late, or a wide margin, leaves less than the interval. It is not kept where a renewal gives next to
/// nothing, because the lock is held almost to its fixed end.
pub(super) fn next_after(terms: &Terms, left: Duration, now: BootTime) -> Duration {
    let usual = backoff::with_jitter(interval(terms), random::fraction());
    let gives_more = |end: BootTime| end.since(now).saturating_sub(terms.margin) > left.saturating_add(left / 8);
    match terms.lease {
        Lease::For(_) if terms.ends_at.is_none_or(gives_more) => usual.min(left / 3 * 2),
        Lease::For(_) => usual,
        // Others may move the end that it was given, and this guard finds that out only by looking.
        Lease::Forever => usual.min((left / 3 * 2).max(LEAST_LOOK)),
    }
}

fn interval(terms: &Terms) -> Duration {
    match terms.lease {
        Lease::For(_) => terms.heartbeat,
        Lease::Forever => ENDLESS_LOOK,
    }
}

impl Hold {
    pub(super) fn warn_of_heartbeat(&self, left: Duration, error: &Error) {
        let (key, error) = (shown(&self.grant.lock.key), error.with_causes());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        // A lock without end has no time that is left.
        let left = if left == Duration::MAX { String::new() } else { format!(", {:.1} s left", left.as_secs_f64()) };
        let said = format!("a heartbeat of lock {key:?} failed and is repeated{left}: {error}");
        let is_news = {
            let mut warned = self.beats.warned.lock();
            let is_news = warned.is_none_or(|at| at.elapsed() >= SAY_AGAIN);
            *warned = if is_news { Some(Instant::now()) } else { *warned };
            is_news
        };
        match is_news {
            true => log::warn!(target: "leasehold::heartbeat", key:?, left_ms; "{said}"),
            false => log::debug!(target: "leasehold::heartbeat", key:?, left_ms; "{said}"),
        }
    }
}

/// Starts the heartbeat of `hold`, which sends at once; it ends with the hold.
pub(super) fn spawn(hold: Arc<Hold>) -> Result<Thread> {
    Thread::spawn("leasehold-beat", move || {
        thread::begin_to_keep_a_lock();
        pause!("heartbeat.begins");
        if caught(|| run(&hold)).is_none() {
            hold.lose(LossReason::HeartbeatDied);
            let key = hold.grant.lock.key();
            log::error!(target: "leasehold::heartbeat", key:?; "the heartbeat thread of lock {key:?} panicked");
        }
    })
}

fn run(hold: &Hold) {
    let mut failures = 0;
    let mut wait = Duration::ZERO;
    loop {
        select! {
            recv(hold.beats.stop.cancelled()) -> _ => return,
            recv(hold.beats.wishes) -> _ => {}
            default(wait) => {}
        }
        pause!("heartbeat.woken");
        wait = match hold.beat() {
            Beat::Over => return,
            Beat::Renewed => {
                failures = 0;
                next_after(&hold.setup.terms, hold.remaining(), hold.setup.clock.now())
            }
            Beat::Failed(_) => {
                failures += 1;
                backoff::renewal_delay(failures, hold.remaining(), random::fraction()).max(MIN_RETRY)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::orders::{LEASE, spec};

    #[test]
    fn the_next_heartbeat_leaves_time_for_its_repeats() {
        let terms = spec().terms;
        let now = BootTime::from_nanos(1);
        let usual = |after: Duration| after >= LEASE / 3 * 9 / 10 && after <= LEASE / 3 * 11 / 10;
        assert!(usual(next_after(&terms, LEASE / 10 * 9, now)));
        // The answer came late, or the margin is wide.
        assert_eq!(next_after(&terms, LEASE / 3, now), LEASE / 9 * 2);
        assert_eq!(next_after(&terms, Duration::ZERO, now), Duration::ZERO);
        // No renewal gives more.
        let left = LEASE / 100;
        let ending = Terms { ends_at: Some(now + left + terms.margin), ..terms };
        assert!(usual(next_after(&ending, left, now)));
        let later = Terms { ends_at: Some(now + 2 * left + terms.margin), ..terms };
        assert_eq!(next_after(&later, left, now), left / 3 * 2);
        let endless = Terms { lease: Lease::Forever, ..terms };
        assert!(next_after(&endless, Duration::MAX, now) > ENDLESS_LOOK / 2);
        // It was given an end, which others may move.
        assert_eq!(next_after(&endless, LEAST_LOOK * 21, now), LEAST_LOOK * 14);
        assert_eq!(next_after(&endless, LEAST_LOOK / 2, now), LEAST_LOOK);
    }
}
