//! What a waiter does between two requests for the lock: it reads the lock, and reports that it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hold::Hold;
use super::queue::{HANGS, Leaves, Ticket};
use crate::engine::acquire::{Effort, Wait};
use crate::engine::options::utc;
use crate::engine::spec::{Granted, Obtained, Patience};
use crate::lease::{backoff, transition};
use crate::model::error::{Error, Result};
use crate::model::event::{Event, WaitEnd};
use crate::model::lock::{Lock, LockStatus};
use crate::model::waiting::Waiting;
use crate::store::{Attempt, Consistency, Seen, Which};
use crate::sys::clock::BootTime;
use crate::sys::deadline::{Deadline, Waited, far_from};
use crate::sys::log;
use crate::sys::observing::{WaitSpan, contained, hurrying};
use crate::sys::pause::pause;
use crate::sys::thread::keeping_a_lock;

/// A wait that is longer is logged, and again after each minute.
pub(super) const FIRST_WARNING: Duration = Duration::from_secs(30);
const NEXT_WARNING: Duration = Duration::from_secs(60);

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

impl Effort {
    pub(super) fn begins(called: BootTime) -> Self {
        Effort { started: Instant::now(), called, attempts: 0, voids: 0, warn_after: FIRST_WARNING, told: None }
    }
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
                self.tell();
                // That may have forked: here is nobody who answers, or wakes it.
                if !self.family.is_own_process() {
                    return false;
                }
                // What was seen before the store failed is out of date.
                let known = self.free_in().filter(|_| self.known.last_error.is_none());
                let free_in = known.filter(|free| !(looked_free && free.is_zero()));
                looked_free = false;
                let is_free = known.is_some_and(|free| free.is_zero());
                let delay = self.look_after(if is_free { Begin::Wait } else { begun }, free_in);
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

    /// Whether the end that the lease must have leaves it no time. The deadline of the call does not count a suspend.
    pub(super) fn is_past_end(&self) -> bool {
        !self.spec.lock.terms.leave_time_at(self.family.clock.now())
    }

    /// Whether it may ask, or take what is handed over. One that hung before it may come back at any time, and is first
    /// again; what was handed over until then stays.
    pub(super) fn has_turn(&self) -> bool {
        let may = |ticket: &Ticket| ticket.is_first() || ticket.is_handed();
        self.family.is_own_process() && self.line.ticket.as_ref().is_none_or(may)
    }

    /// Its place in the line. Code of the user's may have forked: the child has none, since what other threads had locked
    /// just then stays so there.
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

    /// When to look next if nothing wakes it.
    pub(super) fn look_after(&self, begin: Begin, free_in: Option<Duration>) -> Duration {
        let poll = &self.family.options.poll;
        match self.is_covered() {
            true if begin == Begin::Refused => Duration::ZERO,
            // After a failure the store does not repeat its reports, so the waiter polls.
            true if self.line.is_woken && self.known.last_error.is_none() => {
                backoff::woken_delay(poll, free_in, fastrand::f64())
            }
            _ => backoff::poll_delay(poll, self.effort.started.elapsed(), free_in, fastrand::f64()),
        }
    }

    /// Whether the store wakes it.
    fn is_covered(&self) -> bool {
        self.family.is_own_process() && self.family.wakeups.covers(&self.spec.lock.key)
    }

    /// When to read one of several keys next, if its turn has come. The time stays set until then: reports about the
    /// other keys must not delay it.
    pub(super) fn next_look(&mut self, now: Instant, begin: Begin) -> Option<Instant> {
        let Some(ticket) = self.ticket().filter(|ticket| ticket.is_first()) else {
            // One that hung before it came back: when it looks is worked out anew, should its turn come again.
            self.line.look_at = None;
            return None;
        };
        let others_turn = ticket.stands_back();
        let at = self.line.look_at.unwrap_or_else(|| {
            let free_in = self.free_in().filter(|_| self.known.last_error.is_none());
            let is_free = free_in.is_some_and(|free| free.is_zero());
            let begin = if self.known.refusal.is_none() || is_free { Begin::Wait } else { begin };
            let delay = self.look_after(begin, free_in.filter(|_| !is_free));
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
    pub(super) fn tell_after(&self) -> Duration {
        // Nothing is said while a lock is handed over to it, and the end of that is told.
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
    fn not_told_before(&self, every: Duration) -> Duration {
        self.effort.told.map_or(Duration::ZERO, |told| every.saturating_sub(told.elapsed()))
    }

    /// Waits for this long or until it is worth looking; false when the call's time is over, and where nobody wakes it.
    fn sleep(&mut self, overall: &Deadline, delay: Duration) -> bool {
        let until = far_from(Instant::now(), delay);
        let mut due = far_from(Instant::now(), self.tell_after());
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
                // One that hung before it came back. Whoever waits for its turn sees whether that one hangs again.
                Waited::Limit if !ticket.is_first() => return true,
                Waited::Limit if until <= Instant::now() => break,
                Waited::Limit if due <= Instant::now() => {
                    self.tell();
                    due = far_from(Instant::now(), self.tell_after());
                }
                Waited::Limit => {}
            }
        }
        // Other processes get their turn; this waiter looks after that.
        while let Some(ticket) = self.ticket().filter(|ticket| !ticket.is_handed())
            && let Some(until) = ticket.stands_back()
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
        self.effort.attempts += 1;
        let by = overall.of_try().within(self.family.options.request_timeout);
        let which = Which::Key(self.spec.lock.key.clone());
        let asked = Instant::now();
        let answer = self.asking(asked, || self.family.backend.read(&which, None, Consistency::Eventual, &by));
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

    /// What the store said of the lock, for those behind it, too.
    pub(super) fn saw(&mut self, seen: Seen) {
        self.ticket().into_iter().for_each(|ticket| ticket.saw(LockStatus::live(&seen)));
        self.known.refusal = Some(seen);
    }

    pub(super) fn is_in_line(&self) -> bool {
        self.line.ticket.is_some() || self.line.stood_back
    }

    /// Who holds the lock, as far as is known: only the head of the line asks, for whoever stands behind it, or stood back.
    pub(super) fn holders(&self) -> Option<Vec<LockStatus>> {
        let heads = self.family.queues.holders(&self.spec.lock.key).filter(|_| self.is_in_line());
        heads.or_else(|| self.known.refusal.as_ref().map(LockStatus::live))
    }

    /// The error of a failing store that the head of the line got.
    pub(super) fn heads_trouble(&self) -> Option<Error> {
        self.family.queues.trouble(&self.spec.lock.key).filter(|_| self.is_in_line())
    }

    /// How long until the lock can be free if nobody releases it.
    pub(super) fn free_in(&self) -> Option<Duration> {
        let seen = self.known.refusal.as_ref()?;
        let mut wanted = self.spec.lock.wanted();
        // Else the calls of one client that wait would take the lock from each other, one after the other.
        let is_here = || LockStatus::live(seen).iter().any(|holder| self.family.is_held_here(holder));
        wanted.replaces = wanted.replaces.filter(|_| !is_here());
        transition::free_in(&seen.record, &wanted, seen.times.expired_before)
    }

    /// A try of this acquisition begins, which replaces no guard that its own client has got since the call began.
    pub(super) fn begins_try(&mut self, attempt: &mut Attempt) {
        let (key, called) = (&self.spec.lock.key, self.effort.called);
        // A guard learns late that another process took its lock.
        let known = self.known.refusal.iter().flat_map(|seen| seen.live()).map(|(_, holder)| holder.token).max();
        let has = |lock: &Lock| lock.key() == key && known.is_none_or(|known| known <= lock.fencing_token());
        let is_newer = |hold: &Arc<Hold>| has(hold.granted()) && hold.is_held() && hold.grant.at > called;
        let replaces = self.spec.lock.replace_same_owner;
        attempt.ask.replace_same_owner = replaces && !self.family.holds().iter().any(is_newer);
        attempt.sends += 1;
        self.effort.attempts += 1;
    }

    /// Reports to the observer, once, that the call waits; a call that asks once never does.
    pub(super) fn begins(&mut self) {
        if self.span.is_none() && !matches!(self.patience, Patience::Once) {
            let observing = &self.family.options.observing;
            self.span = Some(WaitSpan::new(observing, &self.spec.lock.key, self.effort.started));
        }
    }

    /// Reports to the observer how the wait ended, if its begin was reported.
    pub(super) fn ends(&mut self, outcome: &Result<Obtained>) {
        self.ends_by(match outcome {
            Ok(Obtained::Granted(_)) => WaitEnd::Granted,
            Ok(Obtained::Refused(_)) => WaitEnd::TimedOut,
            Err(error) => WaitEnd::by(error),
        });
    }

    pub(super) fn ends_by(&mut self, end: WaitEnd) {
        self.span.take().into_iter().for_each(|mut span| span.end = end);
    }

    /// Reports to observer, log and callback that the wait goes on. Whoever hangs there is passed over in the line.
    pub(super) fn tell(&mut self) {
        if !self.has_to_say() {
            return;
        }
        self.tells(Some(Instant::now()));
        if !self.users_code.is_handed() {
            self.say();
        }
        self.tells(None);
    }

    /// The same of a request that failed, or came too late. Who asks for several keys tells of each in its turn.
    pub(super) fn tell_of_trouble(&mut self) {
        if !self.is_one_of_several && !self.asks_once() {
            self.begins();
            self.tell();
        }
    }

    /// Whether there is anybody to be told now.
    pub(super) fn has_to_say(&self) -> bool {
        let is_told = self.family.options.observing.is_on() || self.is_due();
        (is_told || self.effort.started.elapsed() >= self.effort.warn_after) && self.family.is_own_process()
    }

    fn is_due(&self) -> bool {
        self.spec.on_wait.is_some() && self.not_told_before(self.spec.on_wait_every.unwrap_or_default()).is_zero()
    }

    /// Shows in each line since when this waiter runs code of the user's.
    pub(super) fn tells(&self, since: Option<Instant>) {
        if self.family.is_own_process() {
            self.users_code.runs(since);
        }
    }

    /// The same for one of many reports that began then. Each counts alone, but many of them hold up the others as one that
    /// hangs does.
    pub(super) fn tells_since(&self, begun: Instant) {
        if begun.elapsed() < HANGS || !self.family.is_own_process() || !self.users_code.is_running() {
            self.tells(Some(Instant::now()));
        }
    }

    /// Runs this, which may call code of the user's. Where a lock was handed over meanwhile, which nobody renews yet, another
    /// thread does so. Nor does anybody renew one that is granted just now: so nothing is waited for.
    pub(super) fn running(&self, run: impl FnOnce()) {
        self.tells(Some(Instant::now()));
        if self.users_code.is_handed() {
            keeping_a_lock(run);
        } else {
            hurrying(run);
        }
        self.tells(None);
    }

    /// The same as [`tell`](Self::tell), for one that shows it.
    pub(super) fn say(&mut self) {
        let waited = self.effort.started.elapsed();
        let key = &self.spec.lock.key;
        self.family.options.observing.tell(&Event::Waited { key, waited });
        if !self.family.is_own_process() {
            return;
        }
        let is_expected = self.spec.lock.expects_to_wait && self.known.last_error.is_none();
        let is_long = waited >= self.effort.warn_after;
        if is_long {
            self.effort.warn_after = waited + NEXT_WARNING;
        }
        let warn = is_long && !is_expected;
        let is_due = self.is_due();
        if !warn && !is_due {
            return;
        }
        let holders = self.holders().unwrap_or_default();
        let last_error = self.known.last_error.clone().or_else(|| self.heads_trouble());
        if warn {
            let but =
                |before: &str, text: &str| if text.is_empty() { String::new() } else { format!("{before}{text}") };
            let holder = holders.first().map(ToString::to_string).unwrap_or_default();
            let since = holders.first().map(|holder| utc(holder.created())).unwrap_or_default();
            let last_error = last_error.as_ref().map(ToString::to_string).unwrap_or_default();
            log::warn!(
                target: "leasehold::client",
                key:?, waited_s = waited.as_secs(), attempts = self.effort.attempts, holder:%, last_error:%;
                "still waiting for lock {key:?} after {} s{}{}{}", waited.as_secs(), but(", held by ", &holder),
                but(" since ", &since), but("; the store: ", &last_error)
            );
        }
        let held_by_this_client = holders.iter().any(|holder| self.family.holds_here(holder));
        let waiting = Waiting {
            key: key.clone(),
            held_by_this_client,
            holders,
            waited,
            until: match self.patience {
                Patience::Until(at) => Some(at),
                _ => None,
            },
            attempts: self.effort.attempts,
            place: self.ticket().map_or(0, Ticket::place),
            last_error,
        };
        if let Some(on_wait) = self.spec.on_wait.as_mut().filter(|_| is_due) {
            self.effort.told = Some(Instant::now());
            contained("wait callback", || on_wait(&waiting));
        }
    }
}
