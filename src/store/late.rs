//! For requests that must do nothing if they come too late. A server or a network that stood still may deliver a
//! request when its sender already counts itself as lost, or is gone.

use std::time::Instant;

use parking_lot::Mutex;

use crate::lease::StoreTime;
use crate::sys::deadline::Deadline;

/// The server's time as it was last known, and the moment here when that was.
#[derive(Debug)]
pub struct Clocked(Mutex<(StoreTime, Instant)>);

impl Clocked {
    pub fn just(now: StoreTime) -> Clocked {
        Clocked(Mutex::new((now, Instant::now())))
    }

    /// Notes the server's time from the answer to a request that was `sent` then. That time may be as old as the
    /// request, so what was known before is kept as far as the answer allows. So no slow answer makes the time seem
    /// earlier than it is.
    pub fn note(&self, now: StoreTime, sent: Instant) {
        let mut known = self.0.lock();
        let (time, at) = *known;
        let answered = Instant::now();
        let here = time.plus(answered.saturating_duration_since(at));
        *known = (here.clamp(now, now.plus(answered.saturating_duration_since(sent))), answered);
    }

    /// The server's time at the deadline, after which nobody waits for the answer. It is too early if the server's
    /// clock was set forward, or if ours stood still. The answer then corrects the known time, so that the next result
    /// is right.
    pub fn not_after(&self, by: &Deadline) -> StoreTime {
        let (now, at) = *self.0.lock();
        now.plus(at.elapsed()).plus(by.remaining())
    }

    /// A time that is over by the server's clock, by what is known of it, unless that clock was set back. Since the last
    /// answer ours may have run too fast, by at most 500 parts in a million.
    pub fn over(&self) -> StoreTime {
        let (now, at) = *self.0.lock();
        let since = at.elapsed();
        now.plus(since - since / 2000)
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
        let near = |time: StoreTime| known() >= time && known() < time.plus(20 * S) && clocked.over() <= known();
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
}
