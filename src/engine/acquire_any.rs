//! How one of several locks is obtained, the first that is free: the caller waits in the line of each key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::family::Family;
use super::queue::{HANGS, Leaves, May, Ticket};
use crate::engine::acquire::{Round, Turn, Wait};
use crate::engine::poll::Begin;
use crate::engine::report::FIRST_WARNING;
use crate::engine::spec::{Granted, LockSpec, Obtained, OnWait, Patience, WaitSpec};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::WaitEnd;
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::pause::pause;
use crate::sys::random;

/// At most this many keys are named by an error.
const MOST_NAMED: usize = 5;

/// In which order the keys are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Random,
    /// Always from the first key on.
    AsGiven,
}

impl WaitSpec<'_> {
    /// The same for another key.
    pub fn for_key<'a>(&self, key: String, on_wait: Option<OnWait<'a>>) -> WaitSpec<'a> {
        WaitSpec {
            lock: LockSpec { key, ..self.lock.clone() },
            stands_back: self.stands_back,
            gets_guard: self.gets_guard,
            cancel: self.cancel.clone(),
            on_wait,
            on_wait_every: self.on_wait_every,
        }
    }
}

/// Obtains the first of the locks that is free, or says who holds each of them.
pub fn obtain_any(
    family: &Arc<Family>,
    specs: Vec<WaitSpec<'_>>,
    patience: Patience,
    order: Order,
) -> Result<Obtained> {
    let is_one_of_several = specs.len() > 1 && !matches!(patience, Patience::Once);
    let mut waits: Vec<_> = specs.into_iter().map(|spec| Wait::new(family, spec, patience)).collect();
    let users_code = Arc::default();
    for wait in &mut waits {
        wait.is_one_of_several = is_one_of_several;
        wait.users_code = Arc::clone(&users_code);
    }
    let mut any = AnyWait { family, waits, patience, order, told: 0 };
    any.run().map_err(|error| family.in_context(any.cancelled(error)))
}

pub(super) struct AnyWait<'a> {
    pub(super) family: &'a Arc<Family>,
    pub(super) waits: Vec<Wait<'a>>,
    pub(super) patience: Patience,
    pub(super) order: Order,
    /// How many reports were made so far.
    pub(super) told: usize,
}

impl AnyWait<'_> {
    fn run(&mut self) -> Result<Obtained> {
        let mut overall = self.overall();
        let outcome = self.go_on(&mut overall);
        pause!("any.leaves");
        let outcome = self.leave(outcome, &overall);
        for wait in &mut self.waits {
            wait.ends_by(match &outcome {
                Ok(Obtained::Granted(granted)) if granted.attempt.key == wait.spec.lock.key => WaitEnd::Granted,
                Ok(Obtained::Granted(_)) => WaitEnd::OtherGranted,
                Ok(Obtained::Refused(_)) => WaitEnd::TimedOut,
                Err(error) => WaitEnd::by(error),
            });
        }
        outcome
    }

    /// The error of a cancelled wait names the keys.
    fn cancelled(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Cancelled {
            return error;
        }
        let mut keys: Vec<_> = self.waits.iter().map(|wait| format!("{:?}", wait.spec.lock.key)).collect();
        keys.sort();
        let more =
            if keys.len() > MOST_NAMED { format!(" and {} more", keys.len() - MOST_NAMED) } else { String::new() };
        keys.truncate(MOST_NAMED);
        Error::new(ErrorKind::Cancelled, format!("the wait for {}{more} was cancelled", keys.join(", ")))
    }

    fn go_on(&mut self, overall: &mut Deadline) -> Result<Obtained> {
        if self.order == Order::Random {
            random::shuffle(&mut self.waits);
        }
        if let Some(granted) = self.ask_each(overall)? {
            return Ok(Obtained::Granted(granted));
        }
        if matches!(self.patience, Patience::Once) {
            return self.ended();
        }
        self.enter(overall);
        let mut begin = Begin::Refused;
        while self.pause(overall, std::mem::replace(&mut begin, Begin::Wait)) {
            self.family.check_open()?;
            if self.order == Order::Random {
                random::shuffle(&mut self.waits);
            }
            if let Some(granted) = self.look_at_each(overall)? {
                return Ok(Obtained::Granted(granted));
            }
        }
        self.ended()
    }

    /// Waits in the line of each key from now on. Reports each wait that begins, until the call's time is over.
    fn enter(&mut self, overall: &Deadline) {
        let (begun, mut is_late) = (Instant::now(), false);
        for wait in &mut self.waits {
            if !is_late {
                // It may be in other lines already: the waiters behind it there must see that the user's code runs.
                wait.mark_users_code_of_many(begun);
                wait.begins();
                is_late = overall.is_over();
            }
            wait.stand(overall);
        }
        self.waits.iter().take(1).for_each(|wait| wait.mark_users_code(None));
    }

    /// Leaves all lines. A lock that was handed over at the last moment is taken if there is no other, else released.
    pub(super) fn leave(&mut self, mut outcome: Result<Obtained>, overall: &Deadline) -> Result<Obtained> {
        for wait in &mut self.waits {
            let is_it = |granted: &Granted| granted.attempt.key == wait.spec.lock.key;
            let leaves = match &outcome {
                Ok(Obtained::Granted(granted)) if is_it(granted) => Leaves::WithLock,
                _ => Leaves::Without,
            };
            let Some(handed) = wait.leave(leaves) else { continue };
            if !matches!(outcome, Ok(Obtained::Refused(_))) {
                // In the background: nothing renews a lock that was granted before it has a guard, so it must not wait
                // for this.
                self.family.give_up_later(handed.attempt);
                continue;
            }
            match wait.act(Turn::Given(*handed), overall) {
                Ok(Round::Granted(granted)) => outcome = Ok(Obtained::Granted(granted)),
                Ok(_) => {}
                // After an error, what is handed over in the other lines is given back, too.
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    fn overall(&self) -> Deadline {
        self.waits.first().map_or_else(|| self.family.request_deadline(), Wait::overall)
    }

    /// Asks for one key after the other, except those that others of this process wait for.
    fn ask_each(&mut self, overall: &mut Deadline) -> Result<Option<Granted>> {
        let mut own = 0;
        let all = self.waits.len();
        for at in 0..all {
            if overall.is_over() {
                break;
            }
            let wait = &mut self.waits[at];
            if wait.yields_to_line() {
                wait.line.stood_back = true;
                continue;
            }
            match ask(wait, self.patience, overall) {
                Ok(Some(granted)) => return Ok(Some(granted)),
                Ok(None) => {}
                // Another key may be free. Only if this client holds all of them the wait would never end.
                Err(error) if error.kind() == ErrorKind::AlreadyHeld => {
                    own += 1;
                    if own == all {
                        return Err(in_context(wait, error));
                    }
                }
                Err(error) => return Err(in_context(wait, error)),
            }
            if matches!(self.patience, Patience::Once) && !overall.is_over() {
                // A call that asks once has a request's full time for each key.
                *overall = self.overall();
            }
        }
        Ok(None)
    }

    /// Takes what was handed over, or else looks at the keys that were reported or are due, and asks for those that
    /// look free. It looks at a key only while it is at the head of that line.
    pub(super) fn look_at_each(&mut self, overall: &Deadline) -> Result<Option<Granted>> {
        let now = Instant::now();
        let is_due = |wait: &Wait<'_>| wait.line.look_at.is_some_and(|at| at <= now);
        let is_round = self.waits.iter().any(is_due);
        let nudged: Vec<bool> = self.waits.iter().map(Wait::take_nudge).collect();
        for (wait, is_nudged) in self.waits.iter_mut().zip(nudged) {
            // Keys that the store does not watch are looked at in one round, so that their order counts.
            let looks = is_nudged || is_due(wait) || (is_round && !wait.line.is_woken);
            let others_turn = wait.ticket().and_then(Ticket::others_turn);
            if looks {
                // When others have their turn first, it looks after that: the report does not come again.
                wait.line.look_at = others_turn;
            }
            let Some(ticket) = wait.ticket().filter(|_| !overall.is_over()) else { continue };
            if looks && wait.users_code.is_given() && !ticket.is_handed() {
                // Nothing renews a lock that was handed over before it has a guard, so it is taken before any read.
                wait.line.look_at = others_turn.or(Some(now));
                continue;
            }
            let may_look = looks && ticket.is_first() && others_turn.is_none() && !ticket.take_left_with_lock();
            if !(ticket.is_handed() || may_look && wait.look(overall) && wait.has_turn()) {
                continue;
            }
            pause!("any.turn");
            let turn = match wait.ticket().map(Ticket::may) {
                None | Some(May::Wait) => continue,
                Some(May::Ask) => Turn::Ask,
                Some(May::Take(granted)) => Turn::Given(*granted),
            };
            match wait.act(turn, overall) {
                Ok(Round::Granted(granted)) => return Ok(Some(granted)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyHeld => {}
                Err(error) => return Err(in_context(wait, error)),
            }
        }
        Ok(None)
    }

    /// Waits until it is time to look at a key again, or one is reported; false when the call's time is over.
    fn pause(&mut self, overall: &Deadline, begin: Begin) -> bool {
        pause!("any.sleeps");
        self.report_each(overall);
        let (now, drawn) = (Instant::now(), random::fraction());
        let next = self.waits.iter_mut().filter_map(|wait| wait.next_look(now, begin, drawn)).min();
        let until = far_from(now, next.map_or(Duration::MAX, |at| at.saturating_duration_since(now)));
        loop {
            let report_after = self.waits.iter().map(Wait::report_after).min().unwrap_or(FIRST_WARNING);
            let tell_at = far_from(Instant::now(), report_after);
            // At least once, however long the reports take.
            loop {
                let left = until.min(tell_at).saturating_duration_since(Instant::now());
                // A callback may have forked: in the child nothing nudges this waiter.
                if !self.family.is_own_process() {
                    return true;
                }
                if self.waits.iter().any(Wait::is_past_end) {
                    return false;
                }
                // If all before it hang, nobody nudges it: so it checks. It does so twice within `HANGS`, to see also
                // that one of those has come back: that one is first for at least `HANGS` before it counts as hanging
                // again.
                if !overall.wait_for_any(left.min(HANGS / 2), self.tickets().map(Ticket::nudged)) {
                    return false;
                }
                if self.is_nudged() || until <= Instant::now() || self.finds_turn() {
                    return true;
                }
                if tell_at <= Instant::now() {
                    break;
                }
            }
            self.report_each(overall);
        }
    }

    fn is_nudged(&self) -> bool {
        self.tickets().any(|ticket| !ticket.nudged().is_empty())
    }

    fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.waits.iter().filter_map(Wait::ticket)
    }

    /// Whether it has become the first of a line without a nudge, since all before it hang: it looks at that key now.
    /// Where it is not the first (one that hung has come back), it does not look: the first has the turn, and gets all
    /// reports.
    fn finds_turn(&mut self) -> bool {
        let mut finds = false;
        for wait in &mut self.waits {
            let is_first = wait.ticket().is_some_and(Ticket::is_first);
            let is_new = is_first && wait.line.look_at.is_none();
            finds |= is_new;
            wait.line.look_at = if is_new { Some(Instant::now()) } else { wait.line.look_at.filter(|_| is_first) };
        }
        finds
    }

    /// Reports for each key that the wait goes on, until there is something else to do; the next round continues from
    /// there.
    fn report_each(&mut self, overall: &Deadline) {
        let begun = Instant::now();
        for _ in 0..self.waits.len() {
            let at = self.told % self.waits.len();
            if self.waits[at].has_to_report() {
                self.waits[at].mark_users_code_of_many(begun);
                if self.waits[at].users_code.is_handed() {
                    break;
                }
                self.waits[at].report();
            }
            self.told = self.told.wrapping_add(1);
            if !self.family.is_own_process() || self.is_nudged() || overall.is_over() {
                break;
            }
        }
        self.waits.iter().take(1).for_each(|wait| wait.mark_users_code(None));
    }

    /// Why the call ended without a lock. It reports that others hold the locks only if that is known for all.
    fn ended(&mut self) -> Result<Obtained> {
        let mut refused = Vec::new();
        for wait in &mut self.waits {
            refused.extend(wait.ended().map_err(|error| in_context(wait, error))?);
        }
        Ok(Obtained::Refused(refused))
    }
}

/// Asks for one key. A call that waits goes on to the next key if the store fails.
fn ask(wait: &mut Wait<'_>, patience: Patience, by: &Deadline) -> Result<Option<Granted>> {
    loop {
        match wait.round(by)? {
            Round::Granted(granted) => return Ok(Some(granted)),
            Round::Trouble if matches!(patience, Patience::Once) && !by.is_over() => {}
            Round::Refused | Round::Trouble => return Ok(None),
        }
    }
}

/// Names the key, except in an error that ends the whole call.
fn in_context(wait: &Wait<'_>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Cancelled | ErrorKind::Closed => error,
        _ => error.with_key(&wait.spec.lock.key),
    }
}

#[cfg(test)]
#[path = "acquire_any_tests.rs"]
mod tests;
