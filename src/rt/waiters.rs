//! How a lock is obtained: attempts, repeats, and the wait between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::BootTime;
use super::deadline::Deadline;
use super::family::{Family, give_up};
use super::queue::{May, Ticket};
use crate::backend::{Acquired, Attempt, Renewal, Renewed, Seen, Which};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Ask, End, GrantId, Holder, Labels, Lease, Mode, StoreTime, backoff, transition};
use crate::lock::LockStatus;
use crate::observer::{Event, contained};
use crate::options::{MAX_ACQUIRE_LEASE, Terms};
use crate::waiting::Waiting;

/// A wait that is longer is told to the log, and again after each minute.
const FIRST_WARNING: Duration = Duration::from_secs(30);
const NEXT_WARNING: Duration = Duration::from_secs(60);

/// A lock that was granted and not yet put into a guard.
pub struct Granted {
    /// The acquisition.
    pub attempt: Attempt,
    /// The entry in the store.
    pub holder: Holder,
    /// The store's now when it answered.
    pub now: StoreTime,
    /// Until when the holder may count itself as such.
    pub held_until: BootTime,
    /// The hand-overs inside this process that led here.
    pub chain: Chain,
}

/// How often in a row, and since when, a lock was handed over without being free for others.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub times: u32,
    pub since: BootTime,
}

/// Runs on the caller's thread whenever a wait goes on.
pub type OnWait = Box<dyn FnMut(&Waiting) + Send>;

/// The lock that a caller wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub key: String,
    pub mode: Mode,
    pub lock_id: Option<String>,
    pub labels: Labels,
    pub max_holders: Option<u32>,
    pub replace_same_owner: bool,
    pub terms: Terms,
}

impl Wanted {
    /// An acquisition of it that was not sent yet.
    pub fn attempt(&self, grant: GrantId, lease: Duration, instead_of: Option<(GrantId, u64)>) -> Attempt {
        let ask = Ask {
            // A group of its own where the user names none.
            lock_id: self.lock_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            grant,
            mode: self.mode,
            labels: self.labels.clone(),
            lease,
            max_holders: self.max_holders,
            replace_same_owner: self.replace_same_owner,
            instead_of,
        };
        Attempt::new(&self.key, ask)
    }
}

/// What a caller wants, and what ends and tells its wait.
pub struct Want {
    pub wanted: Wanted,
    /// A transfer from this grant.
    pub instead_of: Option<(GrantId, u64)>,
    /// Asks nothing while others of this process wait for the lock.
    pub stands_back: bool,
    pub cancel: Option<CancelToken>,
    pub on_wait: Option<OnWait>,
}

/// How long to go on while others hold the lock.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Ask once.
    Once,
    /// Until then.
    Until(Instant),
    /// Without limit.
    Endless,
}

/// How a wait ended without an error.
pub enum Obtained {
    /// The lock is granted.
    Granted(Granted),
    /// Others hold it, or wait for it in this process, and the patience is over. Who was seen to
    /// hold it, if it came to a look.
    Refused(Option<Seen>),
}

/// The end of a lease on this host's clock: what the store says is left, counted from before the request was sent.
pub fn local_end(sent: BootTime, until: End, now: StoreTime) -> BootTime {
    until.left(now).map_or(BootTime::NEVER, |left| sent + left)
}

/// Obtains the lock, or says who holds it.
pub fn obtain(family: &Arc<Family>, want: Want, patience: Patience) -> Result<Obtained> {
    let mut wait = Wait {
        family,
        want,
        patience,
        started: Instant::now(),
        attempts: 0,
        ticket: None,
        look_first: false,
        refusal: None,
        last_error: None,
        warn_after: FIRST_WARNING,
    };
    let key = wait.want.wanted.key.clone();
    wait.run().map_err(|error| error.with_key(&key).with_store(&family.backend.info().label))
}

struct Wait<'a> {
    family: &'a Arc<Family>,
    want: Want,
    patience: Patience,
    started: Instant,
    attempts: u32,
    /// The place in the line of this process, once it waits.
    ticket: Option<Ticket>,
    /// It came to the head of the line, and somebody may hold the lock.
    look_first: bool,
    refusal: Option<Seen>,
    last_error: Option<Error>,
    warn_after: Duration,
}

/// What a waiter may do next.
enum Turn {
    Ask,
    Given(Granted),
    /// The call's time is over.
    Over,
}

/// How one attempt ended.
enum Settled {
    Granted(Granted),
    Refused(Seen),
    /// It was given up without an answer, or was granted too late to be of use.
    Void,
}

impl Wait<'_> {
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
            (Ok(_), Some(granted)) => self.granted(*granted, &overall),
            (Err(error), Some(granted)) => {
                self.undo(granted.attempt, &overall);
                Err(error)
            }
        }
    }

    fn go_on(&mut self, overall: &Deadline, asks_once: bool) -> Result<Obtained> {
        let mut voids = 0;
        loop {
            self.family.check_open()?;
            self.check_cancelled()?;
            let settled = match self.turn(overall) {
                Turn::Over => break,
                Turn::Ask => {
                    let settled = self.attempt(overall);
                    self.ticket.iter().for_each(Ticket::asked);
                    settled
                }
                Turn::Given(granted) => self.in_time(granted, overall),
            };
            match settled {
                Ok(Settled::Granted(granted)) => match self.granted(granted, overall) {
                    Err(error) if error.is_retryable() => self.last_error = Some(error),
                    settled => return settled,
                },
                Ok(Settled::Refused(seen)) => {
                    self.last_error = None;
                    self.refused(seen)?;
                    if asks_once {
                        break;
                    }
                    self.enter();
                    if !self.pause(overall, false) {
                        break;
                    }
                }
                Ok(Settled::Void) => {
                    voids += 1;
                    overall.wait_for(backoff::retry_delay(voids, overall.remaining(), fastrand::f64()));
                }
                Err(error) if error.is_retryable() => self.last_error = Some(error),
                Err(error) => return Err(error),
            }
            if overall.is_over() {
                break;
            }
        }
        self.ended()
    }

    /// Stands in the line of this process from now on.
    fn enter(&mut self) {
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
                    let at_once = !ticket.is_held();
                    if !self.pause(overall, at_once) {
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
            let told = if self.want.on_wait.is_some() { *self.family.options.poll.end() } else { FIRST_WARNING };
            if !overall.wait_for_or(told, ticket.nudged()) {
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

    fn check_cancelled(&self) -> Result<()> {
        match &self.want.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")),
            _ => Ok(()),
        }
    }

    /// The deadline of the whole call.
    fn overall(&self) -> Deadline {
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
    fn ended(&mut self) -> Result<Obtained> {
        self.family.check_open()?;
        self.check_cancelled()?;
        match (self.refusal.take(), self.last_error.take()) {
            (Some(seen), _) => Ok(Obtained::Refused(Some(seen))),
            (None, Some(error)) => Err(error),
            // It never came to the head of the line.
            (None, None) if self.ticket.is_some() => Ok(Obtained::Refused(None)),
            (None, None) => Err(Error::new(ErrorKind::TimedOut, "the time was over before the store was asked")),
        }
    }

    /// One acquisition with a grant id of its own: repeated until it is answered, given up when it gets too old.
    fn attempt(&mut self, overall: &Deadline) -> Result<Settled> {
        let family = self.family;
        let info = family.backend.info();
        let clock = &family.clock;
        let terms = self.want.wanted.terms;
        let lease = terms.first_lease_at(clock.now());
        if lease <= terms.first_margin() {
            return Err(Error::new(ErrorKind::TimedOut, "the end of the lease came before the lock could be granted"));
        }
        let instead_of = self.want.instead_of.clone();
        let mut attempt = self.want.wanted.attempt(info.grant_form.fresh(), lease, instead_of);
        let mut unanswered = false;
        let mut failures = 0;
        loop {
            // The lease is counted from before the request.
            let sent = clock.now();
            let first_sent = *attempt.first_sent.get_or_insert(sent);
            attempt.sends += 1;
            self.attempts += 1;
            let by = overall.clone().within(family.options.request_timeout);
            let error = match family.backend.acquire(&mut attempt, &by) {
                Ok(Acquired::Granted { holder, repeated, now }) => {
                    let end = local_end(sent, holder.until, now);
                    let end = if repeated { end.min(first_sent + lease) } else { end };
                    let held_until = end - terms.first_margin();
                    if clock.now() >= held_until {
                        // It came so late that nobody could use it.
                        self.undo(attempt, overall);
                        return Ok(Settled::Void);
                    }
                    let chain = Chain { times: 0, since: sent };
                    return Ok(Settled::Granted(Granted { attempt, holder, now, held_until, chain }));
                }
                Ok(Acquired::Refused(seen)) => {
                    if unanswered {
                        // An earlier copy may still arrive, after the present holder has gone.
                        self.undo(attempt, overall);
                    }
                    return Ok(Settled::Refused(seen));
                }
                Ok(Acquired::Unknown(error)) => {
                    unanswered = true;
                    error
                }
                Err(error) if !error.is_retryable() => {
                    if unanswered {
                        family.abandon(attempt);
                    }
                    return Err(error);
                }
                Err(error) => error,
            };
            log::debug!(target: "leasehold::client", key:? = self.want.wanted.key; "an acquire failed and is repeated: {error}");
            failures += 1;
            let too_old = clock.now() >= first_sent + lease / 2;
            let delay = backoff::retry_delay(failures, overall.remaining(), fastrand::f64());
            if too_old || !overall.wait_for(delay) {
                if unanswered {
                    self.undo(attempt, overall);
                }
                return Err(error.retryable());
            }
            self.last_error = Some(error);
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
            let left = granted.held_until.since(sent);
            let by = overall.clone().within(self.family.options.request_timeout.min(left));
            let renewal = Renewal { lease, may_end_endless: false };
            let error = match self.family.backend.renew(&mut granted.attempt, renewal, &by) {
                Ok(Renewed::Until { until, now }) => {
                    granted.holder.until = until;
                    granted.now = now;
                    granted.held_until = local_end(sent, until, now) - self.want.wanted.terms.margin;
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
        if self.want.instead_of.is_none() && holders.iter().any(mine) {
            let message = "this client holds it already with the same lock id";
            return Err(Error::new(ErrorKind::AlreadyHeld, message).with_holders(holders));
        }
        self.refusal = Some(seen);
        Ok(())
    }

    fn held_here(&self, token: u64) -> bool {
        let is_it = |lock: &crate::lock::Lock| lock.key() == self.want.wanted.key && lock.fencing_token() == token;
        self.family.holds().iter().any(|hold| is_it(hold.granted()))
    }

    /// Looks at the lock from time to time until it seems free or is handed over; false when the call's time is
    /// over. `at_once`: begins with a look.
    fn pause(&mut self, overall: &Deadline, at_once: bool) -> bool {
        // What was just refused is not asked for again at once, however free it looks.
        let mut looked_free = true;
        let mut look_now = at_once;
        loop {
            let Some(ticket) = &self.ticket else { return true };
            if ticket.place() > 0 || ticket.is_handed() {
                return true;
            }
            if !std::mem::take(&mut look_now) {
                self.tell();
                let free_in = self.free_in().filter(|free| !(looked_free && free.is_zero()));
                looked_free = false;
                let poll = &self.family.options.poll;
                let delay = backoff::poll_delay(poll, self.started.elapsed(), free_in, fastrand::f64());
                let Some(ticket) = &self.ticket else { return true };
                if !overall.wait_for_or(delay, ticket.nudged()) {
                    return false;
                }
                if ticket.is_handed() {
                    return true;
                }
            }
            if self.look(overall) {
                return true;
            }
        }
    }

    /// Reads the lock; whether it is worth asking for.
    fn look(&mut self, overall: &Deadline) -> bool {
        self.attempts += 1;
        let by = overall.clone().within(self.family.options.request_timeout);
        let which = Which::Key(self.want.wanted.key.clone());
        match self.family.backend.read(&which, None, false, &by) {
            Ok(mut page) => {
                self.last_error = None;
                self.refusal = page.records.pop().or(self.refusal.take());
                self.free_in() == Some(Duration::ZERO)
            }
            // The attempt that follows tells what is wrong.
            Err(error) if !error.is_retryable() => true,
            Err(error) => {
                self.last_error = Some(error);
                false
            }
        }
    }

    /// In what time the lock can be free if nobody releases it.
    fn free_in(&self) -> Option<Duration> {
        let seen = self.refusal.as_ref()?;
        let cut = seen.now.minus(self.family.backend.info().grace);
        transition::free_in(&seen.record, self.want.wanted.mode, self.want.wanted.max_holders, cut)
    }

    /// Tells everyone who wants to know that the wait goes on.
    fn tell(&mut self) {
        let waited = self.started.elapsed();
        let key = &self.want.wanted.key;
        self.family.options.observing.tell(&Event::Waited { key, waited });
        let warn = waited >= self.warn_after;
        if !warn && self.want.on_wait.is_none() {
            return;
        }
        let holders = self.refusal.as_ref().map(LockStatus::live).unwrap_or_default();
        if warn {
            self.warn_after = waited + NEXT_WARNING;
            let holder = holders.first().map(ToString::to_string).unwrap_or_default();
            let last_error = self.last_error.as_ref().map(ToString::to_string).unwrap_or_default();
            log::warn!(
                target: "leasehold::client",
                key:?, waited_s = waited.as_secs(), attempts = self.attempts, holder:%, last_error:%;
                "still waiting for the lock"
            );
        }
        let held_by_this_client = holders.iter().any(|holder| self.held_here(holder.fencing_token()));
        let waiting = Waiting {
            key: key.clone(),
            held_by_this_client,
            holders,
            waited,
            until: match self.patience {
                Patience::Until(at) => Some(at),
                _ => None,
            },
            attempts: self.attempts,
            place: self.ticket.as_ref().map_or(0, Ticket::place),
            last_error: self.last_error.clone(),
        };
        if let Some(on_wait) = &mut self.want.on_wait {
            contained("wait callback", || on_wait(&waiting));
        }
    }
}
