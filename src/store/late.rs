//! For requests that must do nothing if they come too late. A server or a network that stood still may deliver a
//! request when its sender already counts itself as lost, or is gone.

use std::time::Instant;

use parking_lot::Mutex;

use crate::lease::StoreTime;
use crate::sys::deadline::Deadline;

#[derive(Debug)]
pub struct Clocked(Mutex<Known>);

/// The server's time as it was last known.
#[derive(Debug)]
struct Known {
    time: StoreTime,
    /// The same, but never later than it was.
    over: StoreTime,
    /// The moment here when that was.
    at: Instant,
}

impl Clocked {
    pub fn just(now: StoreTime) -> Clocked {
        Clocked(Mutex::new(Known { time: now, over: now, at: Instant::now() }))
    }

    /// Notes the server's time from the answer to a request that was `sent` then. That time may be as old as the
    /// request, so what was known before is kept as far as the answer allows. So no slow answer makes the time seem
    /// earlier than it is.
    pub fn note(&self, now: StoreTime, sent: Instant) {
        let mut known = self.0.lock();
        let at = Instant::now();
        let most = now.plus(at.saturating_duration_since(sent));
        *known = Known { time: known.time_at(at).clamp(now, most), over: known.over_at(at).clamp(now, most), at };
    }

    /// The server's time at the deadline, after which nobody waits for the answer. It is too early if the server's
    /// clock was set forward, or if ours stood still. The answer then corrects the known time, so that the next result
    /// is right.
    pub fn not_after(&self, by: &Deadline) -> StoreTime {
        self.0.lock().time_at(Instant::now()).plus(by.remaining())
    }

    /// A time that is over by the server's clock, by what is known of it, unless that clock was set back.
    pub fn over(&self) -> StoreTime {
        self.0.lock().over_at(Instant::now())
    }
}

impl Known {
    fn time_at(&self, at: Instant) -> StoreTime {
        self.time.plus(at.saturating_duration_since(self.at))
    }

    /// Our clock may run too fast, by at most 500 parts in a million.
    fn over_at(&self, at: Instant) -> StoreTime {
        let since = at.saturating_duration_since(self.at);
        self.over.plus(since - since / 2000)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_answer_makes_the_time_no_earlier_and_a_clock_that_was_set_is_followed() {
        const S: Duration = Duration::from_secs(1);
        let start = StoreTime::from_nanos(0).plus(1000 * S);
        let clocked = Clocked::just(start);
        let known = || clocked.not_after(&Deadline::at(Instant::now()));
        let near = |time: StoreTime| known() >= time && known() < time.plus(20 * S);
        // The server took the time when the request came, and the majority took half a minute to confirm.
        let Some(sent) = Instant::now().checked_sub(30 * S) else { return };
        clocked.note(StoreTime::from_nanos(0).plus(970 * S), sent);
        assert!(near(start));
        clocked.note(start.plus(100 * S), Instant::now());
        assert!(near(start.plus(100 * S)), "it was set forward");
        clocked.note(start, Instant::now());
        assert!(near(start), "and back");
        assert!(clocked.not_after(&Deadline::after(50 * S)) >= start.plus(49 * S));
    }

    /// A slow answer says little of the time, so what our clock has run too fast since remains.
    #[test]
    fn what_is_over_allows_for_a_fast_clock_also_after_a_slow_answer() {
        const S: Duration = Duration::from_secs(1);
        let start = StoreTime::from_nanos(0).plus(1000 * S);
        let Some(at) = Instant::now().checked_sub(40 * S) else { return };
        let clocked = Clocked(Mutex::new(Known { time: start, over: start, at }));
        let is_before = || clocked.over().plus(10 * S / 1000) < clocked.not_after(&Deadline::at(Instant::now()));
        assert!(is_before());
        clocked.note(start.plus(35 * S), at);
        assert!(is_before() && clocked.over() >= start.plus(39 * S));
    }
}
