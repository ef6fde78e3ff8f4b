//! How a lock is obtained: asking for it, and standing in the line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::family::Family;
use super::queue::{HANGS, Leaves, May, Ticket, UsersCode};
use crate::engine::poll::Begin;
use crate::engine::spec::{Called, Granted, LockSpec, Obtained, Patience, WaitSpec};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::lock::LockStatus;
use crate::store::Seen;
use crate::sys::clock::BootTime;
use crate::sys::deadline::{Deadline, Waited, far_from};
use crate::sys::log;
use crate::sys::observing::WaitSpan;
use crate::sys::pause::pause;

/// Obtains the lock, or says who holds it.
pub fn obtain(family: &Arc<Family>, spec: WaitSpec<'_>, patience: Patience) -> Result<Obtained> {
    let mut wait = Wait::new(family, spec, patience);
    let key = wait.spec.lock.key.clone();
    let outcome = wait.run();
    wait.ends(&outcome);
    outcome.map_err(|error| family.in_context(error.with_key(&key)))
}

/// The wait for one key.
pub(super) struct Wait<'a> {
    pub(super) family: &'a Arc<Family>,
    pub(super) spec: WaitSpec<'a>,
    pub(super) patience: Patience,
    /// The call also waits for other keys, which errors of this one must not delay.
    pub(super) is_one_of_several: bool,
    /// Shared by all waits of one call.
    pub(super) users_code: Arc<UsersCode>,
    pub(super) effort: Effort,
    pub(super) line: InLine,
    pub(super) known: Known,
    /// The wait, as reported to the observer.
    pub(super) span: Option<WaitSpan>,
}

/// How long the call has waited (since `called` by the clock that counts suspends), and how many tries this wait took.
pub(super) struct Effort {
    pub(super) started: Instant,
    pub(super) called: BootTime,
    pub(super) attempts: u32,
    /// Grants that came too late to be used.
    pub(super) voids: u32,
    pub(super) warn_after: Duration,
    /// When the caller was last told that the wait goes on.
    pub(super) told: Option<Instant>,
}

/// Its place among the waiters of this process, and when it looks.
#[derive(Default)]
pub(super) struct InLine {
    /// The place in the line, once it waits.
    pub(super) ticket: Option<Ticket>,
    /// It was not at the head of the line before. Somebody may hold the lock, so it reads before it asks.
    look_first: bool,
    /// The store has watched the key since the last look: what was seen then is valid until it wakes this waiter.
    pub(super) is_woken: bool,
    /// When to look next at one of several keys.
    pub(super) look_at: Option<Instant>,
    /// It did not ask, since others of this process wait.
    pub(super) stood_back: bool,
}

/// What the store has said.
#[derive(Default)]
pub(super) struct Known {
    pub(super) last_seen: Option<Seen>,
    pub(super) last_error: Option<Error>,
    /// The store has failed since then, so what was known about the lock is out of date.
    pub(super) is_out: bool,
}

/// Whether what was known about the lock before the store failed may still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Counts,
    IsOut,
}

impl Drop for Wait<'_> {
    /// After a panic: a lock that was handed over meanwhile is released, and the next in line gets its turn.
    fn drop(&mut self) {
        if let Some(granted) = self.leave(Leaves::Without) {
            // Before the log, which may hang.
            self.family.give_up_later(granted.attempt);
            let key = &self.spec.lock.key;
            log::warn!(target: "leasehold::client", key:?;
                "a waiter for lock {key:?} panicked while it was handed over to it; it is released");
        }
    }
}

/// What a waiter may do next.
pub(super) enum Turn {
    Ask,
    Given(Granted),
}

/// How one round of a wait ended: asking until there is an answer, or taking what was handed over.
pub(super) enum Round {
    Granted(Granted),
    Refused,
    /// The store failed, or answered too late. Asking again may help.
    Trouble,
}

impl<'a> Wait<'a> {
    pub(super) fn new(family: &'a Arc<Family>, spec: WaitSpec<'a>, patience: Patience) -> Self {
        let effort = Effort::begins(spec.lock.called.unwrap_or_else(|| Called::now(&family.clock)));
        let (line, known) = (InLine::default(), Known::default());
        let users_code = Arc::default();
        Wait { family, spec, patience, is_one_of_several: false, users_code, effort, line, known, span: None }
    }

    fn run(&mut self) -> Result<Obtained> {
        let overall = self.overall();
        let asks_once = self.asks_once();
        if self.yields_to_line() {
            if asks_once {
                self.line.stood_back = true;
                return self.ended().map(Obtained::Refused);
            }
            self.enter(&overall);
        }
        let outcome = self.go_on(&overall);
        pause!("acquire.leaves");
        // It may have been given the lock at the last moment.
        let leaves = if matches!(outcome, Ok(Obtained::Granted(_))) { Leaves::WithLock } else { Leaves::Without };
        let handed = self.leave(leaves);
        match (outcome, handed) {
            (outcome, None) => outcome,
            (Ok(refused), Some(granted)) => match self.act(Turn::Given(*granted), &overall)? {
                Round::Granted(granted) => Ok(Obtained::Granted(granted)),
                Round::Trouble if self.known.last_error.is_some() => self.ended().map(Obtained::Refused),
                Round::Refused | Round::Trouble => Ok(refused),
            },
            (Err(error), Some(granted)) => {
                self.give_back(granted, &overall);
                Err(error)
            }
        }
    }

    /// Whether others of this process that wait for the lock come first. Not so if this client holds the lock with the
    /// same lock id: behind them the call would wait for itself, so it asks the store, whose answer says so. In a forked
    /// child nobody comes first: the lines may be locked there for ever.
    pub(super) fn yields_to_line(&self) -> bool {
        let LockSpec { key, lock_id, .. } = &self.spec.lock;
        let others_wait = || self.spec.stands_back && self.family.queues.len(key) > 0;
        let is_mine = || lock_id.as_ref().is_some_and(|lock_id| self.family.has_group(key, lock_id));
        self.family.is_own_process() && others_wait() && !is_mine()
    }

    pub(super) fn asks_once(&self) -> bool {
        matches!(self.patience, Patience::Once) || self.spec.lock.instead_of.is_some()
    }

    /// Releases a lock that was handed over too late, and wakes the next in line.
    pub(super) fn give_back(&self, granted: Box<Granted>, overall: &Deadline) {
        self.give_up(granted.attempt, overall);
        // The observer to which that was reported may have forked.
        if self.family.is_own_process() {
            self.family.queues.nudge(&self.spec.lock.key);
        }
    }

    /// Asks the store, or takes a lock that was handed over.
    pub(super) fn act(&mut self, turn: Turn, overall: &Deadline) -> Result<Round> {
        let round = match turn {
            Turn::Ask => self.attempt(overall),
            Turn::Given(granted) if self.family.clock.now() < granted.held_until => self.granted(granted, overall),
            Turn::Given(granted) => self.void(granted.attempt, overall),
        };
        self.ticket().into_iter().for_each(Ticket::asked);
        round
    }

    fn go_on(&mut self, overall: &Deadline) -> Result<Obtained> {
        loop {
            self.check_goes_on()?;
            let Some(turn) = self.turn(overall) else { break };
            match self.act(turn, overall)? {
                Round::Granted(granted) => return Ok(Obtained::Granted(granted)),
                Round::Refused if self.asks_once() => break,
                Round::Refused => {
                    self.enter(overall);
                    if !self.pause(overall, Begin::Refused) {
                        break;
                    }
                }
                Round::Trouble if overall.is_over() => break,
                Round::Trouble => self.report_trouble(),
            }
            if overall.is_over() {
                break;
            }
        }
        self.ended().map(Obtained::Refused)
    }

    /// Waits in the line of this process from now on.
    pub(super) fn enter(&mut self, overall: &Deadline) {
        self.mark_users_code(Some(Instant::now()));
        self.begins();
        self.mark_users_code(None);
        self.stand(overall);
    }

    /// The same, where the beginning of the wait is reported elsewhere.
    pub(super) fn stand(&mut self, overall: &Deadline) {
        if !self.family.is_own_process() {
            return;
        }
        let enter = || self.family.queues.enter(self.spec.lock.clone(), &self.users_code, overall);
        self.line.ticket.get_or_insert_with(enter);
        // What it saw when it asked, before it joined the line: the waiters behind it may use that.
        self.known.last_seen.take().into_iter().for_each(|seen| self.saw(seen));
        pause!("acquire.entered");
    }

    /// Waits for the turn to ask, or for a hand-over; `None` when the call's time is over.
    fn turn(&mut self, overall: &Deadline) -> Option<Turn> {
        loop {
            // A callback may have forked: in the child nothing nudges this waiter.
            if !self.family.is_own_process() || self.is_past_end() {
                return None;
            }
            let Some(ticket) = &self.line.ticket else { return Some(Turn::Ask) };
            if self.has_turn() {
                if std::mem::take(&mut self.line.look_first) {
                    let begin = if ticket.take_left_with_lock() { Begin::Wait } else { Begin::Look };
                    if !self.pause(overall, begin) {
                        return None;
                    }
                    if !self.has_turn() {
                        continue;
                    }
                }
                pause!("acquire.turn");
                match self.ticket().map(Ticket::may) {
                    None | Some(May::Ask) => return Some(Turn::Ask),
                    Some(May::Take(granted)) => return Some(Turn::Given(*granted)),
                    // A hand-over is under way: it ends within its bound, and then nudges.
                    Some(May::Wait) => {}
                }
            } else {
                self.line.look_first = true;
            }
            self.report_if_due();
            let due = far_from(Instant::now(), self.report_after());
            while let Some(ticket) = self.ticket() {
                let left = due.saturating_duration_since(Instant::now());
                match overall.wait_for_event(left.min(HANGS), ticket.nudged()) {
                    Waited::Over => return None,
                    // If all before it hang, nobody nudges it: so it checks. If they do not, there is nothing to report
                    // yet.
                    Waited::Limit if left > HANGS && !ticket.is_first() && !self.is_past_end() => {}
                    Waited::Limit | Waited::Event => break,
                }
            }
        }
    }

    /// Asks for this key, one of several that are asked for in turn, unless the client was closed or the call was
    /// cancelled.
    pub(super) fn round(&mut self, overall: &Deadline) -> Result<Round> {
        self.check_goes_on()?;
        self.act(Turn::Ask, overall)
    }

    /// An error if the client was closed, or the call was cancelled.
    pub(super) fn check_goes_on(&self) -> Result<()> {
        self.family.check_open()?;
        match &self.spec.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")),
            _ => Ok(()),
        }
    }

    /// The deadline of the whole call.
    pub(super) fn overall(&self) -> Deadline {
        let deadline = self.patience.deadline(self.family.options.request_timeout);
        // A lease with a fixed end can't be granted after that end.
        let deadline = match self.spec.lock.terms.ends_at {
            Some(end) => deadline.within(end.since(self.family.clock.now())),
            None => deadline,
        };
        let deadline = deadline.or_cancel(self.family.closing());
        match &self.spec.cancel {
            Some(cancel) => deadline.or_cancel(cancel),
            None => deadline,
        }
    }

    /// Why the call ended without the lock: others hold it, or an error.
    pub(super) fn ended(&mut self) -> Result<Vec<LockStatus>> {
        self.check_goes_on()?;
        if let Some(trouble) = self.heads_trouble() {
            self.known.is_out = true;
            self.known.last_error.get_or_insert(trouble);
        }
        // Both are taken: if a lock that is handed over after this can't be held, only that is to be reported.
        let (holders, _) = (self.holders(), self.known.last_seen.take());
        match (holders, self.known.last_error.take()) {
            // A refusal from before the store failed is out of date.
            (Some(_), Some(error)) if self.known.is_out => Err(error),
            (Some(holders), _) => Ok(holders),
            // It never came to the head of the line, or its end cut off its first look there.
            (None, _) if self.is_in_line() && self.effort.attempts == 0 && !self.known.is_out => Ok(Vec::new()),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let error = |message| Error::new(ErrorKind::TimedOut, message);
                match self.effort.voids {
                    0 => Err(error("the time was over before the store was asked")),
                    _ => Err(error("it was granted too late to be held, and was given up").retryable()),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
