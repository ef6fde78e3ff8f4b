//! How a lock is obtained: attempts, repeats, and the wait between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::BootTime;
use super::deadline::Deadline;
use super::family::{Family, give_up};
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
}

/// Runs on the caller's thread whenever a wait goes on.
pub type OnWait = Box<dyn FnMut(&Waiting) + Send>;

/// What a caller wants.
pub struct Want {
    pub key: String,
    pub mode: Mode,
    pub lock_id: Option<String>,
    pub labels: Labels,
    pub max_holders: Option<u32>,
    pub replace_same_owner: bool,
    pub instead_of: Option<(GrantId, u64)>,
    pub terms: Terms,
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
    /// Others hold it, and the patience is over.
    Refused(Seen),
}

/// The end of a lease on this host's clock: what the store says is left, counted from before the request was sent.
pub fn local_end(sent: BootTime, until: End, now: StoreTime) -> BootTime {
    until.left(now).map_or(BootTime::NEVER, |left| sent + left)
}

/// Obtains the lock, or says who holds it.
pub fn obtain(family: &Arc<Family>, want: Want, patience: Patience) -> Result<Obtained> {
    let mut wait = Wait::new(family, want, patience);
    let key = wait.want.key.clone();
    wait.run().map_err(|error| error.with_key(&key).with_store(&family.backend.info().label))
}

/// The wait for one key.
pub(super) struct Wait<'a> {
    family: &'a Arc<Family>,
    pub(super) want: Want,
    patience: Patience,
    pub(super) started: Instant,
    attempts: u32,
    voids: u32,
    refusal: Option<Seen>,
    pub(super) last_error: Option<Error>,
    warn_after: Duration,
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
    /// It was given up without an answer, or was granted too late to be of use.
    Void,
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
            refusal: None,
            last_error: None,
            warn_after: FIRST_WARNING,
        }
    }

    fn run(&mut self) -> Result<Obtained> {
        let overall = self.overall();
        loop {
            match self.round(&overall)? {
                Round::Done(obtained) => return Ok(obtained),
                Round::Refused if matches!(self.patience, Patience::Once) || self.want.instead_of.is_some() => break,
                Round::Refused if !self.pause(&overall) => break,
                Round::Refused | Round::Trouble => {}
            }
            if overall.is_over() {
                break;
            }
        }
        self.ended()
    }

    /// Asks until there is an answer, or the attempt gets too old.
    pub(super) fn round(&mut self, overall: &Deadline) -> Result<Round> {
        self.family.check_open()?;
        self.check_cancelled()?;
        match self.attempt(overall) {
            Ok(Settled::Granted(granted)) => match self.granted(granted, overall) {
                Err(error) if error.is_retryable() => self.last_error = Some(error),
                settled => return settled.map(Round::Done),
            },
            Ok(Settled::Refused(seen)) => {
                self.last_error = None;
                self.refused(seen)?;
                return Ok(Round::Refused);
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
        let deadline = match self.want.terms.ends_at {
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
            (Some(seen), _) => Ok(Obtained::Refused(seen)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::new(ErrorKind::TimedOut, "the time was over before the store was asked")),
        }
    }

    /// One acquisition with a grant id of its own: repeated until it is answered, given up when it gets too old.
    fn attempt(&mut self, overall: &Deadline) -> Result<Settled> {
        let family = self.family;
        let info = family.backend.info();
        let clock = &family.clock;
        let lease = self.want.terms.first_lease_at(clock.now());
        if lease <= self.want.terms.first_margin() {
            return Err(Error::new(ErrorKind::TimedOut, "the end of the lease came before the lock could be granted"));
        }
        let ask = self.ask(info.grant_form.fresh(), lease);
        let mut attempt = Attempt::new(&self.want.key, ask);
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
                    let held_until = end - self.want.terms.first_margin();
                    if clock.now() >= held_until {
                        // It came so late that nobody could use it.
                        self.undo(attempt, overall);
                        return Ok(Settled::Void);
                    }
                    return Ok(Settled::Granted(Granted { attempt, holder, now, held_until }));
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
            log::debug!(target: "leasehold::client", key:? = self.want.key; "an acquire failed and is repeated: {error}");
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

    fn ask(&self, grant: GrantId, lease: Duration) -> Ask {
        Ask {
            // A group of its own where the user names none.
            lock_id: self.want.lock_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            grant,
            mode: self.want.mode,
            labels: self.want.labels.clone(),
            lease,
            max_holders: self.want.max_holders,
            replace_same_owner: self.want.replace_same_owner,
            instead_of: self.want.instead_of.clone(),
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
            let lease = self.want.terms.lease_at(sent);
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
                    granted.held_until = local_end(sent, until, now) - self.want.terms.margin;
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
        log::debug!(target: "leasehold::client", key:? = self.want.key, token = fencing_token; "granted");
        self.family.options.observing.tell(&Event::Granted { key: &self.want.key, fencing_token, waited });
        Ok(Obtained::Granted(granted))
    }

    /// Tells of a refusal; an error when waiting would be for oneself.
    fn refused(&mut self, seen: Seen) -> Result<()> {
        let holders = LockStatus::live(&seen);
        self.family.options.observing.tell(&Event::Refused { key: &self.want.key, holders: &holders });
        let mine = |holder: &LockStatus| {
            Some(holder.lock_id()) == self.want.lock_id.as_deref() && self.held_here(holder.fencing_token())
        };
        let is_mine = self.want.instead_of.is_none() && holders.iter().any(mine);
        self.refusal = Some(seen);
        if is_mine {
            let message = "this client holds it already with the same lock id";
            return Err(Error::new(ErrorKind::AlreadyHeld, message).with_holders(holders));
        }
        Ok(())
    }

    fn held_here(&self, token: u64) -> bool {
        let is_it = |lock: &crate::lock::Lock| lock.key() == self.want.key && lock.fencing_token() == token;
        self.family.holds().iter().any(|hold| is_it(hold.granted()))
    }

    /// Looks at the lock from time to time until it seems free; false when the call's time is over.
    fn pause(&mut self, overall: &Deadline) -> bool {
        // What was just refused is not asked for again at once, however free it looks.
        let mut looked_free = true;
        loop {
            self.tell();
            let free_in = self.free_in().filter(|free| !(looked_free && free.is_zero()));
            looked_free = false;
            let delay =
                backoff::poll_delay(&self.family.options.poll, self.started.elapsed(), free_in, fastrand::f64());
            if !overall.wait_for(delay) {
                return false;
            }
            if self.look(overall) {
                return true;
            }
        }
    }

    /// Reads the lock once; true when it is worth asking for.
    pub(super) fn look(&mut self, overall: &Deadline) -> bool {
        self.attempts += 1;
        let by = overall.clone().within(self.family.options.request_timeout);
        let which = Which::Key(self.want.key.clone());
        match self.family.backend.read(&which, None, false, &by) {
            Ok(mut page) => {
                self.last_error = None;
                self.refusal = page.records.pop().or(self.refusal.take());
            }
            Err(error) if !error.is_retryable() => return true,
            Err(error) => self.last_error = Some(error),
        }
        self.last_error.is_none() && self.free_in() == Some(Duration::ZERO)
    }

    /// In what time the lock can be free if nobody releases it.
    pub(super) fn free_in(&self) -> Option<Duration> {
        let seen = self.refusal.as_ref()?;
        let cut = seen.now.minus(self.family.backend.info().grace);
        transition::free_in(&seen.record, self.want.mode, self.want.max_holders, cut)
    }

    /// Tells everyone who wants to know that the wait goes on.
    pub(super) fn tell(&mut self) {
        let waited = self.started.elapsed();
        let key = &self.want.key;
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
            last_error: self.last_error.clone(),
        };
        if let Some(on_wait) = &mut self.want.on_wait {
            contained("wait callback", || on_wait(&waiting));
        }
    }
}
