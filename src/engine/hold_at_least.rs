//! A minimum hold: the grant remains in the store for at least that long, whatever ends its hold.
//!
//! From the start its lease lasts at least that long, so a release only has to make it shorter. A release that is not
//! answered, or a process that dies, leaves the lock held for longer, never for less. One exception: on DynamoDB a
//! process that dies may leave it for less, by up to half of what was not known of the time, since the end in the row
//! counts from the middle.

use std::time::{Duration, Instant};

use super::failures::Failures;
use super::hold::{Beat, Hold, LostBy, Phase};
use super::release::SHORT_REST;
use crate::engine::options::check_at_least;
use crate::lease::transition::{KeepAnswer, Least, keep_standing};
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::{Swapped, read_held};
use crate::sys::deadline::Deadline;
use crate::sys::pause::pause;

/// Whether the place of the grant was kept.
pub(super) enum Kept {
    /// The hold is over, with this answer.
    Yes(Result<()>),
    /// The lock must be released, from this phase on.
    No(Phase),
}

/// What one look at the record led to.
enum Look {
    Is(KeepAnswer),
    /// It was changed by others.
    Changed(Error),
    /// It may have been written.
    Unanswered(Error),
}

impl Hold {
    /// From now on the grant must remain for `least`, counted from its beginning. Any answer but `Renewed` promises
    /// nothing, but a concurrent release may have kept the grant for that time.
    pub fn hold_at_least(&self, least: Duration) -> Result<Beat> {
        check_at_least(least, &self.setup.terms, self.setup.backend.info().bounds.limits)?;
        if self.setup.clock.now() >= self.grant.at + least {
            // It was held for that long already.
            return Ok(Beat::Renewed);
        }
        // Before the renewal, since a release may begin as soon as it is answered.
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Ok(Beat::Over);
            }
            state.asked_least.push(least);
        }
        // What is left and a tenth of `least`, but never more than `least`: enough also for a store whose clock was put
        // back meanwhile.
        let beat = self.renew_for(self.left_of(least).min(least));
        let mut state = self.state.lock();
        if let Some(at) = state.asked_least.iter().position(|asked| *asked == least) {
            state.asked_least.swap_remove(at);
        }
        if matches!(beat, Beat::Renewed) {
            state.at_least = state.at_least.max(least);
        }
        Ok(beat)
    }

    /// The same for a grant whose first lease is long enough, now that its guard can be given to its user. An error
    /// once a `close` has begun to release it, because then nobody gets the guard.
    pub fn stands_at_least(&self, least: Duration) -> Result<()> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Releasing | Phase::Over { .. }) {
            return Err(self.error(ErrorKind::Lost, "it is released already"));
        }
        state.at_least = least;
        Ok(())
    }

    fn least(&self) -> Duration {
        let state = self.state.lock();
        state.asked_least.iter().copied().fold(state.at_least, Duration::max)
    }

    /// What is left of its least time by any clock whose rate differs from this one's by up to a tenth. It is counted from
    /// when the grant was answered, which is later than when the store began to count.
    pub(super) fn must_stand_for(&self) -> Duration {
        self.left_of(self.least())
    }

    fn left_of(&self, least: Duration) -> Duration {
        (self.grant.at + least + least / 10).since(self.setup.clock.now())
    }

    /// Ends the hold before its minimum time is over; until then an entry that nobody holds keeps the grant's place.
    pub(super) fn keep(&self, before: Phase, by: Instant) -> Kept {
        let least = match before {
            Phase::Lost(LostBy::Store) => Duration::ZERO,
            _ => self.least(),
        };
        if least.is_zero() {
            return Kept::No(before);
        }
        let is_expired = matches!(before, Phase::Lost(_)) && self.is_expired();
        // No request is needed: the grant remains until its lease ends, which is later than its minimum time.
        if is_expired && self.setup.clock.now() < self.grant.at + least {
            if self.stands_for() > self.must_stand_for() + SHORT_REST {
                self.give_up_later();
            }
            return Kept::Yes(Ok(()));
        }
        let (mut phase, mut failures) = (before, Failures::none());
        loop {
            // Checked before each read: once the minimum time is over a release needs no read, which the store may not
            // answer.
            if self.must_stand_for().is_zero() {
                return Kept::No(phase);
            }
            // An expired grant does not remain for long: one try, which may take all of the time.
            let all = Deadline::at(by).within(self.setup.request_timeout);
            let deadline = if is_expired { all } else { all.of_try() };
            let may_be_done = |look: &Look| matches!(look, Look::Is(KeepAnswer::Kept) | Look::Unanswered(_));
            let (answer, _) = self.counted_end(|| self.keep_once(least, &deadline), Look::Unanswered, may_be_done);
            let is_last = is_expired && !matches!(answer, Ok(Look::Changed(_)));
            let error = match answer {
                Ok(Look::Is(KeepAnswer::Kept)) => return Kept::Yes(Ok(())),
                Ok(Look::Is(KeepAnswer::Over)) => return Kept::No(phase),
                Ok(Look::Changed(error)) => error,
                Ok(Look::Unanswered(error)) => {
                    // A later request that finds no grant can't tell whether this one ended it.
                    if phase == Phase::Held {
                        phase = Phase::Releasing;
                    }
                    error
                }
                // The release finds out what became of it.
                Err(error) if error.is_gone() => return Kept::No(phase),
                Err(error) => error,
            };
            if is_last {
                return Kept::Yes(Err(error));
            }
            if let Err(error) = failures.wait_if_retryable(error, &Deadline::at(by)) {
                return Kept::Yes(Err(error));
            }
        }
    }

    fn keep_once(&self, least: Duration, by: &Deadline) -> Result<Look> {
        let (backend, key) = (&self.setup.backend, self.grant.lock.key());
        // Computed before the read, since the new end counts from the store's time in the answer: later, `left` would
        // lack the time since then, and the end would come too early.
        let left = self.left_of(least);
        let seen = read_held(&**backend, key, by)?;
        let least = Least { granted: self.grant.created, time: least, left };
        let step = keep_standing(&seen.record, &self.grant.lock.grant, &self.requests.kept_as, least, &seen.times);
        let may_be_undone = step.answer == KeepAnswer::Kept && backend.info().reads_what_may_be_undone;
        let step = step.settled(&seen.record, may_be_undone);
        let Some(next) = step.record else { return Ok(Look::Is(step.answer)) };
        pause!("keep.looked");
        Ok(match backend.swap(&seen, Some(&next), by)? {
            Swapped::Done => Look::Is(KeepAnswer::Kept),
            Swapped::Changed => {
                Look::Changed(self.error(ErrorKind::Store, "it was changed by others each time").retryable())
            }
            Swapped::Unknown(error) => Look::Unanswered(error),
        })
    }
}
