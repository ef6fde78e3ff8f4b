//! What must do nothing where it comes too late: a server that stood still, or a network that did, may bring a request when
//! whoever sent it counts itself as lost, or is gone.

use std::time::Instant;

use parking_lot::Mutex;

use crate::lease::StoreTime;
use crate::sys::deadline::Deadline;

/// What the server's time was, and when that came.
#[derive(Debug)]
pub struct Clocked(Mutex<(StoreTime, Instant)>);

impl Clocked {
    pub fn just(now: StoreTime) -> Clocked {
        Clocked(Mutex::new((now, Instant::now())))
    }

    /// Notes the server's time that the answer to a request of then brought: it may be as old as the request, and what was
    /// known before stays as far as it can be right. So no slow answer makes the time seem earlier than it is.
    pub fn note(&self, now: StoreTime, sent: Instant) {
        let mut known = self.0.lock();
        let (time, at) = *known;
        let answered = Instant::now();
        let here = time.plus(answered.saturating_duration_since(at));
        *known = (here.clamp(now, now.plus(answered.saturating_duration_since(sent))), answered);
    }

    /// The server's time at the deadline, after which nobody waits for the answer. A clock of the server's that was set
    /// forward, or one of ours that stood still, makes it too early: the answer puts the time right, and the next one is
    /// right.
    pub fn not_after(&self, by: &Deadline) -> StoreTime {
        let (now, at) = *self.0.lock();
        now.plus(at.elapsed()).plus(by.remaining())
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
        // The server wrote it down as the request came, and the majority took half a minute.
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
