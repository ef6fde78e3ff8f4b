//! What a waiter does between two requests for the lock: it sleeps, and reads the lock.

use std::time::{Duration, Instant};

use super::queue::{HANGS, Leaves, SILENT, Ticket};
use crate::engine::acquire::Wait;
use crate::engine::spec::Granted;
use crate::lease::{GrantId, backoff, transition};
use crate::model::error::Error;
use crate::model::lock::LockStatus;
use crate::store::{Consistency, Seen, Which};
use crate::sys::deadline::{Deadline, Waited, far_from};
use crate::sys::pause::pause;
use crate::sys::random;

/// How a pause begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// With a read: the turn has come, and nothing is known about the lock.
    Look,
    /// Without one: somebody in this process holds the lock.
    Wait,
    /// After a refusal: reports of the store since then were missed.
    Refused,
}

impl Wait<'_> {
    /// Reads the lock when woken or when it is time, until it seems free or is handed over; false when the call's time is
    /// over.
    pub(super) fn pause(&mut self, overall: &Deadline, mut begin: Begin) -> bool {
        // After a refusal the lock is not requested again at once, even if it looks free.
        let mut looked_free = true;
        self.line.is_woken = false;
        loop {
            if self.is_past_end() {
                return false;
            }
            if self.ticket().is_none_or(|ticket| !ticket.is_first() || ticket.is_handed()) {
                return true;
            }
            let begun = std::mem::replace(&mut begin, Begin::Wait);
            if begun != Begin::Look {
                self.report_if_due();
                // The report may have forked: in the child nobody answers this waiter, or wakes it.
                if !self.family.is_own_process() {
                    return false;
                }
                let delay = self.look_after(begun, std::mem::take(&mut looked_free), random::fraction());
                pause!("wait.sleeps");
                if !self.sleep(overall, delay) {
                    return false;
                }
                if self.ticket().is_some_and(Ticket::is_handed) {
                    return true;
                }
            }
            pause!("wait.woken");
            if self.look(overall) {
                return true;
            }
        }
    }

    /// Whether the fixed end of the lease leaves no time for it. The deadline of the call can't say so: it does not
    /// count a suspend.
    pub(super) fn is_past_end(&self) -> bool {
        !self.spec.lock.terms.leave_time_at(self.family.clock.now())
    }

    /// Whether it may ask, or take what is handed over. A waiter before it that hung may come back at any time, and is
    /// first again; but what was handed over to this one before that stays its own.
    pub(super) fn has_turn(&self) -> bool {
        let may = |ticket: &Ticket| ticket.is_first() || ticket.is_handed();
        self.family.is_own_process() && self.line.ticket.as_ref().is_none_or(may)
    }

    /// Its place in the line. The user's code may have forked: a child has no place, because mutexes that other threads
    /// had locked at the fork stay locked there.
    pub(super) fn ticket(&self) -> Option<&Ticket> {
        self.line.ticket.as_ref().filter(|_| self.family.is_own_process())
    }

    /// Leaves the line, with the lock if it was handed over meanwhile.
    pub(super) fn leave(&mut self, leaves: Leaves) -> Option<Box<Granted>> {
        let ticket = self.line.ticket.take()?;
        if self.family.is_own_process() {
            return ticket.leave(leaves);
        }
        std::mem::forget(ticket);
        None
    }

    /// When to look next if nothing wakes it, by a draw from 0 to 1; with `ignores_free` no sooner because the lock
    /// looks free.
    fn look_after(&self, begin: Begin, ignores_free: bool, drawn: f64) -> Duration {
        let poll = &self.family.options.poll;
        // What was seen before the store failed is out of date.
        let known = self.free_in().filter(|_| self.known.last_error.is_none());
        let is_free = known.is_some_and(|free| free.is_zero());
        let free_in = known.filter(|_| !(ignores_free && is_free));
        match self.is_covered() {
            true if begin == Begin::Refused && !is_free => Duration::ZERO,
            // After a failure the store does not repeat its reports, so the waiter polls.
            _ if self.known.last_error.is_some() => {
                backoff::failed_look_delay(poll, self.effort.started.elapsed(), drawn)
            }
            true if self.line.is_woken => backoff::woken_delay(poll, free_in, drawn),
            _ => backoff::poll_delay(poll, self.effort.started.elapsed(), free_in, drawn),
        }
    }

    /// Whether the store wakes it.
    fn is_covered(&self) -> bool {
        self.family.is_own_process() && self.family.wakeups.covers(&self.spec.lock.key)
    }

    /// When to read one of several keys next, if its turn has come. The time stays set until then: reports about the
    /// other keys must not delay it. `drawn`: for all keys of the next round, which comes as soon as one of them is due;
    /// of many draws the least would come sooner than a pause is meant to end.
    pub(super) fn next_look(&mut self, now: Instant, begin: Begin, drawn: f64) -> Option<Instant> {
        let Some(ticket) = self.ticket().filter(|ticket| ticket.is_first()) else {
            // A waiter before it that hung has come back. When this one looks is worked out anew, if its turn comes
            // again.
            self.line.look_at = None;
            return None;
        };
        let others_turn = ticket.others_turn();
        let at = self.line.look_at.unwrap_or_else(|| {
            let is_unknown = self.known.last_seen.is_none();
            // It stood back behind waiters that are gone, and nobody nudges it: it looks at once.
            let is_unasked = begin == Begin::Refused && is_unknown && self.known.last_error.is_none();
            let begin = if is_unknown { Begin::Wait } else { begin };
            // A key that the store watches is looked at by itself.
            let drawn = if self.line.is_woken { random::fraction() } else { drawn };
            let delay = if is_unasked { Duration::ZERO } else { self.look_after(begin, true, drawn) };
            others_turn.map_or(far_from(now, delay), |until| until.min(far_from(now, delay)))
        });
        self.line.look_at = Some(at);
        self.line.look_at
    }

    /// Whether it was nudged; takes the nudge.
    pub(super) fn take_nudge(&self) -> bool {
        self.ticket().is_some_and(|ticket| ticket.nudged().try_recv().is_ok())
    }

    /// When the wait is reported next, however seldom it looks: to a callback at each longest poll, to the log when a
    /// warning is due.
    pub(super) fn report_after(&self) -> Duration {
        // Nothing is reported while a lock is being handed over to it; it is nudged when that ends.
        if self.users_code.is_handed() {
            return HANGS;
        }
        let warning = self.effort.warn_after.saturating_sub(self.effort.started.elapsed());
        match (&self.spec.on_wait, self.spec.on_wait_every) {
            (None, _) => warning,
            (Some(_), None) => warning.min(*self.family.options.poll.end()),
            (Some(_), Some(every)) => warning.min(self.not_told_before(every)),
        }
    }

    /// How much is left of this time, counted from the last report to the caller.
    pub(super) fn not_told_before(&self, every: Duration) -> Duration {
        self.effort.told.map_or(Duration::ZERO, |told| every.saturating_sub(told.elapsed()))
    }

    /// Waits for this long or until it is worth looking; false when the call's time is over, or in a forked child,
    /// where nobody wakes it.
    fn sleep(&mut self, overall: &Deadline, delay: Duration) -> bool {
        let until = far_from(Instant::now(), delay);
        let mut due = far_from(Instant::now(), self.report_after());
        loop {
            // A callback may have forked.
            if !self.family.is_own_process() || self.is_past_end() {
                return false;
            }
            let Some(ticket) = &self.line.ticket else { return true };
            let left = until.min(due).saturating_duration_since(Instant::now());
            match overall.wait_for_event(left.min(HANGS), ticket.nudged()) {
                Waited::Over => return false,
                Waited::Event => break,
                // A waiter before it that hung has come back. This one waits for its turn again, and there it sees if
                // that one hangs again.
                Waited::Limit if !ticket.is_first() => return true,
                Waited::Limit if until <= Instant::now() => break,
                Waited::Limit if due <= Instant::now() => {
                    self.report_if_due();
                    due = far_from(Instant::now(), self.report_after());
                }
                Waited::Limit => {}
            }
        }
        // Other processes get their turn; this waiter looks after that.
        while let Some(ticket) = self.ticket().filter(|ticket| !ticket.is_handed())
            && let Some(until) = ticket.others_turn()
        {
            let left = until.saturating_duration_since(Instant::now());
            if !overall.wait_for_or(left, ticket.nudged()) {
                return false;
            }
        }
        true
    }

    /// Reads the lock; whether it is worth asking for.
    pub(super) fn look(&mut self, overall: &Deadline) -> bool {
        let is_covered = self.is_covered();
        let is_free = self.read(overall);
        pause!("wait.looked");
        self.line.is_woken = is_covered && self.known.last_error.is_none();
        is_free
    }

    fn read(&mut self, overall: &Deadline) -> bool {
        let by = overall.of_try().within(self.family.options.request_timeout);
        let which = Which::Key(self.spec.lock.key.clone());
        let asked = Instant::now();
        let answer = self.asking(asked, || self.family.backend.read(&which, None, Consistency::Eventual, &by));
        // A look that the end of the call cut off right after it began says nothing, and does not count: see `ended`.
        self.effort.attempts += u32::from(answer.is_ok() || !overall.cut_off(asked, SILENT));
        match answer {
            Ok(mut page) => {
                self.answered();
                page.records.pop().into_iter().for_each(|seen| self.saw(seen));
                self.free_in() == Some(Duration::ZERO)
            }
            // The attempt that follows will get the error, too.
            Err(error) if !error.is_retryable() => true,
            Err(error) => {
                self.failed(error, asked, overall);
                false
            }
        }
    }

    /// Notes what the store said of the lock, also for the waiters behind it.
    pub(super) fn saw(&mut self, seen: Seen) {
        self.ticket().into_iter().for_each(|ticket| ticket.saw(LockStatus::live(&seen)));
        self.known.last_seen = Some(seen);
    }

    pub(super) fn is_in_line(&self) -> bool {
        self.line.ticket.is_some() || self.line.stood_back
    }

    /// Who holds the lock, as far as is known. Only the head of the line asks; those behind it, and those that stood
    /// back, use what it saw.
    pub(super) fn holders(&self) -> Option<Vec<LockStatus>> {
        let heads = self.family.queues.holders(&self.spec.lock.key).filter(|_| self.is_in_line());
        heads.or_else(|| self.known.last_seen.as_ref().map(LockStatus::live))
    }

    /// The error of a failing store that the head of the line got.
    pub(super) fn heads_trouble(&self) -> Option<Error> {
        self.family.queues.trouble(&self.spec.lock.key).filter(|_| self.is_in_line())
    }

    /// How long until the lock can be free if nobody releases it.
    pub(super) fn free_in(&self) -> Option<Duration> {
        let seen = self.known.last_seen.as_ref()?;
        let mut wanted = self.spec.lock.wanted();
        // Otherwise waiting calls of one client would take the lock from each other, one after the other.
        let is_seen = |grant: &GrantId, token: Option<u64>| {
            seen.live().any(|(_, holder)| holder.grant == *grant || Some(holder.token) == token)
        };
        let is_here = || self.family.has_since(self.effort.called, &self.spec.lock.key, is_seen);
        wanted.replaces = wanted.replaces.filter(|_| !is_here());
        transition::free_in(&seen.record, &wanted, seen.times.expired_before)
    }
}
