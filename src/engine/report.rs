//! What a wait reports: to the observer, to the log, and to the callback of its user.

use std::time::{Duration, Instant};

use super::acquire::{Effort, Wait};
use super::queue::{HANGS, Ticket};
use crate::engine::options::utc;
use crate::engine::spec::{Called, Obtained, Patience};
use crate::model::error::{Error, Result};
use crate::model::event::{Event, WaitEnd};
use crate::model::waiting::Waiting;
use crate::sys::log;
use crate::sys::observing::{WaitSpan, contained, hurrying};
use crate::sys::thread::keeping_a_lock;

/// A wait that is longer is logged, and again after each minute.
pub(super) const FIRST_WARNING: Duration = Duration::from_secs(30);
const NEXT_WARNING: Duration = Duration::from_secs(60);

impl Effort {
    pub(super) fn begins(called: Called) -> Self {
        let (started, called) = (called.instant, called.at);
        let warn_after = next_warning(started.elapsed());
        Effort { started, called, attempts: 0, voids: 0, warn_after, told: None }
    }
}

/// When the next warning is due in a call that has waited for this long. If it waits for one lock after the other, each
/// of these waits continues from there.
fn next_warning(waited: Duration) -> Duration {
    let Some(since_first) = waited.checked_sub(FIRST_WARNING) else { return FIRST_WARNING };
    let every = NEXT_WARNING.as_secs();
    FIRST_WARNING + Duration::from_secs((since_first.as_secs() / every + 1) * every)
}

impl Wait<'_> {
    /// Reports to the observer, once, that the call waits; a call that asks once never does.
    pub(super) fn begins(&mut self) {
        if self.span.is_none() && !matches!(self.patience, Patience::Once) {
            let observing = &self.family.options.observing;
            // Of this key alone: the waits of a call for several would count the same time again and again.
            let began = self.spec.lock.called.map_or(self.effort.started, |_| Instant::now());
            self.span = Some(WaitSpan::new(observing, &self.spec.lock.key, began));
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

    /// Reports to observer, log and callback that the wait goes on. A waiter that hangs there is passed over in the
    /// line.
    pub(super) fn report_if_due(&mut self) {
        if !self.has_to_report() {
            return;
        }
        self.mark_users_code(Some(Instant::now()));
        if !self.users_code.is_handed() {
            self.report();
        }
        self.mark_users_code(None);
    }

    /// The same after a request that failed, or came too late. A call for several keys reports each in its turn
    /// instead.
    pub(super) fn report_trouble(&mut self) {
        if !self.is_one_of_several && !self.asks_once() {
            self.begins();
            self.report_if_due();
        }
    }

    /// Whether the observer, the callback or the log is due for a report now.
    pub(super) fn has_to_report(&self) -> bool {
        let is_told = self.family.options.observing.is_on() || self.is_due();
        (is_told || self.effort.started.elapsed() >= self.effort.warn_after) && self.family.is_own_process()
    }

    fn is_due(&self) -> bool {
        self.spec.on_wait.is_some() && self.not_told_before(self.spec.on_wait_every.unwrap_or_default()).is_zero()
    }

    /// Shows in each line since when this waiter runs code of the user's.
    pub(super) fn mark_users_code(&self, since: Option<Instant>) {
        if self.family.is_own_process() {
            self.users_code.runs(since);
        }
    }

    /// The same for one of many reports, the first of which began at `begun`. Each has a time of its own, but once all
    /// together have taken as long as one that hangs, the time is not set anew: so the call can be passed over, too.
    pub(super) fn mark_users_code_of_many(&self, begun: Instant) {
        if begun.elapsed() < HANGS || !self.family.is_own_process() || !self.users_code.is_running() {
            self.mark_users_code(Some(Instant::now()));
        }
    }

    /// Runs this, which may call the user's code. Where a lock was handed over meanwhile, another thread calls that
    /// code, because nothing renews the lock yet. Nothing renews a lock that is granted just now either, so this does
    /// not wait for what other threads report of its key.
    pub(super) fn in_users_code(&self, run: impl FnOnce()) {
        self.mark_users_code(Some(Instant::now()));
        if self.users_code.is_handed() {
            keeping_a_lock(run);
        } else {
            hurrying(run);
        }
        self.mark_users_code(None);
    }

    /// The same as [`report_if_due`](Self::report_if_due), where the caller has checked that it is due, and shows it in
    /// the line.
    pub(super) fn report(&mut self) {
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
            let last_error = last_error.as_ref().map(Error::with_causes).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_the_next_key_warns_when_the_one_before_it_would_have() {
        let next = [0, 29, 30, 89, 90, 600].map(|waited| next_warning(Duration::from_secs(waited)).as_secs());
        assert_eq!(next, [30, 30, 90, 90, 150, 630]);
    }
}
