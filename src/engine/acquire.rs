//! How a lock is obtained: attempts, repeats, and the wait between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::family::Family;
use super::queue::{May, Ticket};
use super::undo::give_up;
use crate::engine::options::MAX_ACQUIRE_LEASE;
use crate::engine::poll::{Begin, FIRST_WARNING};
use crate::engine::spec::{Chain, Granted, Obtained, Patience, Want};
use crate::lease::{Lease, backoff};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::lock::LockStatus;
use crate::store::{Acquired, Attempt, Renewal, Renewed, Seen};
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::observing::WaitSpan;

/// A store that takes longer than that to answer is in trouble.
const FAIR: Duration = Duration::from_secs(1);

/// Obtains the lock, or says who holds it.
pub fn obtain(family: &Arc<Family>, want: Want, patience: Patience) -> Result<Obtained> {
    let mut wait = Wait::new(family, want, patience);
    let key = wait.want.wanted.key.clone();
    let outcome = wait.run();
    wait.ends(&outcome);
    outcome.map_err(|error| error.with_key(&key).with_store(&family.backend.info().label))
}

/// The wait for one key.
pub(super) struct Wait<'a> {
    pub(super) family: &'a Arc<Family>,
    pub(super) want: Want,
    pub(super) patience: Patience,
    pub(super) started: Instant,
    pub(super) attempts: u32,
    /// Grants that came too late to be of use.
    voids: u32,
    /// The place in the line of this process, once it waits.
    pub(super) ticket: Option<Ticket>,
    /// It came to the head of the line, and somebody may hold the lock.
    look_first: bool,
    /// The store tells what has come since the last look: until then that look holds.
    pub(super) is_told: bool,
    /// When to look next at one of several keys.
    pub(super) look_at: Option<Instant>,
    /// The call waits for other keys, too, which trouble with this one must not hold up.
    pub(super) is_one_of_several: bool,
    /// Others of this process wait, and it did not ask.
    pub(super) stood_back: bool,
    pub(super) refusal: Option<Seen>,
    pub(super) last_error: Option<Error>,
    /// What was known of the lock before the trouble is no answer any more.
    is_out: bool,
    pub(super) warn_after: Duration,
    /// What the observer was told of the wait.
    pub(super) span: Option<WaitSpan>,
}

impl Drop for Wait<'_> {
    /// After a panic: what was handed over meanwhile is released, and the next in line has its turn.
    fn drop(&mut self) {
        if let Some(granted) = self.ticket.take().and_then(|ticket| ticket.leave(false)) {
            log::warn!(target: "leasehold::client", key:? = granted.attempt.key;
                "a waiter for lock {:?} panicked while it was handed over to it; it is released", granted.attempt.key);
            self.family.abandon(granted.attempt);
        }
    }
}

/// What a waiter may do next.
pub(super) enum Turn {
    Ask,
    Given(Granted),
    /// The call's time is over.
    Over,
}

/// How one round of a wait ended.
pub(super) enum Round {
    Done(Obtained),
    Refused,
    /// The store was in trouble, or answered too late. Asking again may help.
    Trouble,
}

/// How one attempt ended.
enum Settled {
    Granted(Granted),
    Refused(Seen),
    /// It was granted too late to be of use, and given up.
    Void,
    /// A transfer was given up without an answer. Whether it had happened nobody can say any more: to ask again would
    /// be to call lost what this very call has ended.
    GivenUp(Error),
}

impl<'a> Wait<'a> {
    pub(super) fn new(family: &'a Arc<Family>, want: Want, patience: Patience) -> Self {
        Wait {
            family,
            want,
            patience,
            started: Instant::now(),
            attempts: 0,
            voids: 0,
            ticket: None,
            look_first: false,
            is_told: false,
            look_at: None,
            is_one_of_several: false,
            stood_back: false,
            refusal: None,
            last_error: None,
            is_out: false,
            warn_after: FIRST_WARNING,
            span: None,
        }
    }

    fn run(&mut self) -> Result<Obtained> {
        let overall = self.overall();
        let asks_once = matches!(self.patience, Patience::Once) || self.want.instead_of.is_some();
        if self.family.queues.len(&self.want.wanted.key) > 0 {
            if asks_once && self.want.stands_back {
                return Ok(Obtained::Refused(None));
            }
            if !asks_once {
                self.enter();
            }
        }
        let outcome = self.go_on(&overall, asks_once);
        // What was handed over at the last moment comes along.
        let with_lock = matches!(outcome, Ok(Obtained::Granted(_)));
        let handed = self.ticket.take().and_then(|ticket| ticket.leave(with_lock));
        match (outcome, handed) {
            (outcome, None) => outcome,
            (Ok(refused), Some(granted)) => match self.in_time(*granted, &overall)? {
                Settled::Granted(granted) => self.granted(granted, &overall),
                Settled::Refused(_) | Settled::Void | Settled::GivenUp(_) => Ok(refused),
            },
            (Err(error), Some(granted)) => {
                self.give_back(granted, &overall);
                Err(error)
            }
        }
    }

    /// Releases what was handed over in vain; the next in line hears of it.
    pub(super) fn give_back(&self, granted: Box<Granted>, overall: &Deadline) {
        self.undo(granted.attempt, overall);
        self.family.queues.nudge(&self.want.wanted.key);
    }

    /// Asks, or takes what was given, and settles that.
    pub(super) fn act(&mut self, turn: Turn, overall: &Deadline) -> Result<Round> {
        let settled = match turn {
            Turn::Over => return Ok(Round::Trouble),
            Turn::Ask => {
                let settled = self.attempt(overall);
                self.ticket.iter().for_each(Ticket::asked);
                settled
            }
            Turn::Given(granted) => self.in_time(granted, overall),
        };
        self.settle(settled, overall)
    }

    fn go_on(&mut self, overall: &Deadline, asks_once: bool) -> Result<Obtained> {
        loop {
            self.family.check_open()?;
            self.check_cancelled()?;
            let turn = self.turn(overall);
            if matches!(turn, Turn::Over) {
                break;
            }
            match self.act(turn, overall)? {
                Round::Done(obtained) => return Ok(obtained),
                Round::Refused if asks_once => break,
                Round::Refused => {
                    self.enter();
                    if !self.pause(overall, Begin::Refused) {
                        break;
                    }
                }
                Round::Trouble => {}
            }
            if overall.is_over() {
                break;
            }
        }
        self.ended()
    }

    /// Stands in the line of this process from now on.
    pub(super) fn enter(&mut self) {
        self.begins();
        if self.ticket.is_none() {
            self.ticket = Some(self.family.queues.enter(self.want.wanted.clone()));
        }
    }

    /// Waits for the turn to ask, or for what is handed over.
    fn turn(&mut self, overall: &Deadline) -> Turn {
        loop {
            let Some(ticket) = &self.ticket else { return Turn::Ask };
            if ticket.place() == 0 {
                if std::mem::take(&mut self.look_first) {
                    let begin = if ticket.is_held() { Begin::Wait } else { Begin::Look };
                    if !self.pause(overall, begin) {
                        return Turn::Over;
                    }
                }
                match self.ticket.as_ref().map(Ticket::may) {
                    None | Some(May::Ask) => return Turn::Ask,
                    Some(May::Take(granted)) => return Turn::Given(*granted),
                    // The one who hands over has a bound, and nudges.
                    Some(May::Wait) => {}
                }
            } else {
                self.look_first = true;
            }
            self.tell();
            let Some(ticket) = &self.ticket else { return Turn::Ask };
            if !overall.wait_for_or(self.tell_after(), ticket.nudged()) {
                return Turn::Over;
            }
        }
    }

    /// What was handed over, unless that took too long.
    fn in_time(&self, granted: Granted, overall: &Deadline) -> Result<Settled> {
        if self.family.clock.now() < granted.held_until {
            return Ok(Settled::Granted(granted));
        }
        self.undo(granted.attempt, overall);
        Ok(Settled::Void)
    }

    /// Asks until there is an answer, or the attempt gets too old.
    pub(super) fn round(&mut self, overall: &Deadline) -> Result<Round> {
        self.family.check_open()?;
        self.check_cancelled()?;
        self.act(Turn::Ask, overall)
    }

    /// What follows from the end of one attempt.
    fn settle(&mut self, settled: Result<Settled>, overall: &Deadline) -> Result<Round> {
        match settled {
            Ok(Settled::Granted(granted)) => match self.granted(granted, overall) {
                // It was granted and could not be had for as long as was asked: whoever refused it before does not hold it.
                Err(error) if error.is_retryable() => {
                    self.is_out |= error.kind() != ErrorKind::Lost;
                    self.last_error = Some(error);
                }
                settled => return settled.map(Round::Done),
            },
            Ok(Settled::Refused(seen)) => {
                self.answered();
                self.refused(seen)?;
                return Ok(Round::Refused);
            }
            Ok(Settled::GivenUp(error)) => return Err(error),
            Ok(Settled::Void) if self.want.instead_of.is_some() => {
                let message = "it was handed over too late to be held, and is released";
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            Ok(Settled::Void) => {
                self.voids += 1;
                overall.wait_for(backoff::retry_delay(self.voids, overall.remaining(), fastrand::f64()));
            }
            Err(error) if error.is_retryable() => self.last_error = Some(error),
            Err(error) => return Err(error),
        }
        Ok(Round::Trouble)
    }

    /// The store says how it stands with the lock.
    pub(super) fn answered(&mut self) {
        (self.last_error, self.is_out) = (None, false);
    }

    /// A request that began at `asked` failed. One that was cut off by the end of the call right after it began says
    /// nothing of the store.
    pub(super) fn failed(&mut self, error: Error, asked: Instant, overall: &Deadline) {
        self.is_out |= !overall.is_over() || asked.elapsed() >= FAIR;
        self.last_error = Some(error);
    }

    fn check_cancelled(&self) -> Result<()> {
        match &self.want.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")),
            _ => Ok(()),
        }
    }

    /// The deadline of the whole call.
    pub(super) fn overall(&self) -> Deadline {
        let deadline = match self.patience {
            Patience::Once => Deadline::after(self.family.options.request_timeout),
            Patience::Until(at) => Deadline::at(at),
            Patience::Endless => Deadline::after(Duration::MAX),
        };
        // A lease with a fixed end can't be granted after it.
        let deadline = match self.want.wanted.terms.ends_at {
            Some(end) => deadline.within(end.since(self.family.clock.now())),
            None => deadline,
        };
        let deadline = deadline.or_cancel(self.family.closing());
        match &self.want.cancel {
            Some(cancel) => deadline.or_cancel(cancel),
            None => deadline,
        }
    }

    /// Why the call ended without the lock.
    pub(super) fn ended(&mut self) -> Result<Obtained> {
        self.family.check_open()?;
        self.check_cancelled()?;
        match (self.refusal.take(), self.last_error.take()) {
            // Whoever held it long ago is no reason.
            (Some(_), Some(error)) if self.is_out => Err(error),
            (Some(seen), _) => Ok(Obtained::Refused(Some(seen))),
            (None, Some(error)) => Err(error),
            // It never came to the head of the line.
            (None, None) if self.ticket.is_some() || self.stood_back => Ok(Obtained::Refused(None)),
            (None, None) => Err(Error::new(ErrorKind::TimedOut, "the time was over before the store was asked")),
        }
    }

    /// One acquisition with a grant id of its own: repeated until it is answered, given up when it gets too old.
    fn attempt(&mut self, overall: &Deadline) -> Result<Settled> {
        let family = self.family;
        let info = family.backend.info();
        let clock = &family.clock;
        let terms = self.want.wanted.terms;
        let asked_at = clock.now();
        let lease = terms.first_lease_at(asked_at);
        if !terms.leave_time_at(asked_at) {
            return Err(Error::new(ErrorKind::TimedOut, "the end of the lease came before the lock could be granted"));
        }
        let instead_of = self.want.instead_of.clone();
        let mut attempt = self.want.wanted.attempt(info.grant_form.fresh(), lease, instead_of);
        // That one try was not answered weighs more than how the last one failed: a copy may be on its way.
        let mut unanswered = None;
        let mut failures = 0;
        loop {
            // The lease is counted from before the request.
            let (sent, asked) = (clock.now(), Instant::now());
            let first_sent = *attempt.first_sent.get_or_insert(sent);
            attempt.sends += 1;
            self.attempts += 1;
            let by = overall.clone().within(family.options.request_timeout);
            let answer = family.unowned(&mut attempt, |attempt| family.backend.acquire(attempt, &by));
            let error = match answer {
                Ok(Acquired::Granted { holder, repeated, now }) => {
                    let mut held_until = terms.first_held_until(sent, holder.until, now);
                    if repeated {
                        let lease = Lease::For(lease).end(now);
                        held_until = held_until.min(terms.first_held_until(first_sent, lease, now));
                    }
                    if clock.now() >= held_until {
                        // It came so late that nobody could use it.
                        self.undo(attempt, overall);
                        return Ok(Settled::Void);
                    }
                    let chain = Chain { times: 0, since: sent };
                    return Ok(Settled::Granted(Granted { attempt, holder, now, held_until, chain }));
                }
                Ok(Acquired::Refused(seen)) => {
                    if unanswered.is_some() {
                        // An earlier copy may still arrive, after the present holder has gone.
                        self.undo(attempt, overall);
                    }
                    return Ok(Settled::Refused(seen));
                }
                Ok(Acquired::Unknown(error)) => {
                    unanswered = Some(error.clone());
                    error
                }
                Err(error) if !error.is_retryable() => {
                    if unanswered.is_some() {
                        family.abandon(attempt);
                    }
                    return Err(error);
                }
                Err(error) => error,
            };
            log::debug!(target: "leasehold::client", key:? = self.want.wanted.key; "an acquire failed and is repeated: {error}");
            failures += 1;
            self.begins();
            self.failed(error.clone(), asked, overall);
            // One repeat finds a lock whose grant was only not told, before a second one is taken.
            let others_turn =
                self.is_one_of_several && (failures > 1 || clock.now() >= first_sent + family.options.request_timeout);
            let too_old = others_turn || clock.now() >= first_sent + lease / 2;
            let delay = backoff::retry_delay(failures, overall.remaining(), fastrand::f64());
            if too_old || !overall.wait_for(delay) {
                if unanswered.is_some() && others_turn {
                    family.abandon(attempt);
                } else if unanswered.is_some() {
                    self.undo(attempt, overall);
                    if self.want.instead_of.is_some() {
                        return Ok(Settled::GivenUp(unanswered.unwrap_or(error).retryable()));
                    }
                }
                return Err(unanswered.unwrap_or(error).retryable());
            }
        }
    }

    /// Gives up an attempt, now if there is time, else in the background.
    fn undo(&self, mut attempt: Attempt, overall: &Deadline) {
        let timeout = self.family.options.request_timeout;
        let now = overall.clone().within(timeout);
        if now.is_over() || give_up(&*self.family.backend, &mut attempt, &now, timeout).is_err() {
            self.family.abandon(attempt);
        }
    }

    /// A lease of more than a minute, or without end, is set by a first renewal, so that no
    /// unanswered acquire leaves more than a minute.
    fn granted(&mut self, mut granted: Granted, overall: &Deadline) -> Result<Obtained> {
        let clock = &self.family.clock;
        let mut failures = 0;
        loop {
            let sent = clock.now();
            let lease = self.want.wanted.terms.lease_at(sent);
            if matches!(lease, Lease::For(d) if d <= MAX_ACQUIRE_LEASE) {
                break;
            }
            // For so long it may stand should this be given up.
            granted.attempt.ask.lease = match lease {
                Lease::For(d) => d,
                Lease::Forever => Duration::MAX,
            };
            let left = granted.held_until.since(sent);
            let by = overall.clone().within(self.family.options.request_timeout.min(left));
            let renewal = Renewal { lease, may_end_endless: false };
            let backend = &self.family.backend;
            let renewed = self.family.unowned(&mut granted.attempt, |attempt| backend.renew(attempt, renewal, &by));
            let error = match renewed {
                Ok(Renewed::Until { until, now }) => {
                    granted.holder.until = until;
                    granted.now = now;
                    granted.held_until = self.want.wanted.terms.held_until(sent, until, now);
                    if clock.now() >= granted.held_until {
                        self.undo(granted.attempt, overall);
                        return Err(Error::new(ErrorKind::TimedOut, "it was granted too late to be held").retryable());
                    }
                    break;
                }
                Ok(Renewed::Lost(_)) => {
                    let message = "it was taken over before its lease could be set";
                    return Err(Error::new(ErrorKind::Lost, message).retryable());
                }
                Ok(Renewed::Unknown(error)) | Err(error) => error,
            };
            failures += 1;
            let delay = backoff::retry_delay(failures, left, fastrand::f64());
            if !error.is_retryable() || left.is_zero() || !overall.wait_for(delay) {
                self.undo(granted.attempt, overall);
                return Err(error);
            }
        }
        let waited = self.started.elapsed();
        let fencing_token = granted.holder.token;
        log::debug!(target: "leasehold::client", key:? = self.want.wanted.key, token = fencing_token; "granted");
        self.family.options.observing.tell(&Event::Granted { key: &self.want.wanted.key, fencing_token, waited });
        Ok(Obtained::Granted(granted))
    }

    /// Tells of a refusal; an error when waiting would be for oneself.
    fn refused(&mut self, seen: Seen) -> Result<()> {
        let holders = LockStatus::live(&seen);
        self.family.options.observing.tell(&Event::Refused { key: &self.want.wanted.key, holders: &holders });
        let mine = |holder: &LockStatus| {
            Some(holder.lock_id()) == self.want.wanted.lock_id.as_deref() && self.held_here(holder.fencing_token())
        };
        let is_mine = self.want.instead_of.is_none() && holders.iter().any(mine);
        self.refusal = Some(seen);
        if is_mine {
            let message = "this client holds it already with the same lock id";
            return Err(Error::new(ErrorKind::AlreadyHeld, message).with_holders(holders));
        }
        Ok(())
    }

    pub(super) fn held_here(&self, token: u64) -> bool {
        let is_it =
            |lock: &crate::model::lock::Lock| lock.key() == self.want.wanted.key && lock.fencing_token() == token;
        self.family.holds().iter().any(|hold| is_it(hold.granted()))
    }
}
