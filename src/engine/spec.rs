//! What a caller wants, and what it gets.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use crate::engine::options::Terms;
use crate::lease::{Ask, GrantId, Holder, Labels, Mode, StoreTime, Wanted};
use crate::model::error::Result;
use crate::model::lock::LockStatus;
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::store::Attempt;
use crate::sys::cancel::CancelToken;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::Deadline;
use crate::sys::random;

/// A lock that was granted and not yet put into a guard.
pub struct Granted {
    /// The acquisition.
    pub attempt: Attempt,
    /// The entry in the store.
    pub holder: Holder,
    /// The store's now when it answered.
    pub now: StoreTime,
    /// The wall clock before that request was sent: whoever has the lock as data knows no other end than the one that
    /// is counted from here.
    pub wall: SystemTime,
    /// Until when the lock may count as held.
    pub held_until: BootTime,
    /// The hand-overs inside this process that led here.
    pub chain: Chain,
    /// Until there is a guard, this shows the client's other calls that the lock is granted here. The lease of a name
    /// has no such calls.
    pub noted: Option<Arc<Noted>>,
}

/// An acquisition of this client that was sent and has no guard yet. Others of its calls may see its grant in the store
/// before it is answered.
pub struct Noted {
    pub key: String,
    pub lock_id: String,
    pub grant: GrantId,
    /// It will get a guard, unlike a lock as data.
    pub gets_guard: bool,
    /// Its token, and since when that is known.
    pub granted: OnceLock<(u64, BootTime)>,
}

impl Noted {
    /// Notes the answer.
    pub fn is_granted(&self, token: u64, at: BootTime) {
        self.granted.get_or_init(|| (token, at));
    }
}

/// How often in a row, and since when, a lock was handed over without being free for others.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub times: u32,
    pub since: BootTime,
}

/// Called on the caller's thread while the wait goes on.
pub type OnWait<'a> = Box<dyn FnMut(&Waiting) + 'a>;

/// Runs when the lock is lost.
pub type OnLoss = Box<dyn FnOnce(Loss) + Send>;
/// Runs on the thread that finds the loss, so it runs even where no other thread can be started. Only the library's own
/// code sets it: it must not wait for anything.
pub type AtLoss = Box<dyn FnOnce(&Loss) + Send>;
/// Runs when heartbeats fail and the deadline is near; gets the time left.
pub type OnWarning = Box<dyn FnOnce(Duration) + Send>;

/// The callbacks for one hold, and how long it may last.
#[derive(Default)]
pub struct Callbacks {
    pub max_hold: Option<Duration>,
    pub warn_before: Option<Duration>,
    /// Whether a warning was given since the last heartbeat that was answered.
    pub has_warned: bool,
    pub on_warning: Option<OnWarning>,
    pub at_loss: Option<AtLoss>,
    pub on_loss: Option<OnLoss>,
}

impl Callbacks {
    /// When to warn that the loss is near, if the lock counts as held until `held_until`.
    pub fn warns_at(&self, held_until: BootTime) -> Option<BootTime> {
        self.warn_before.filter(|_| !self.has_warned).map(|before| held_until - before)
    }
}

/// When a call began, by the clock that counts suspends and by the one that doesn't.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    pub at: BootTime,
    pub instant: Instant,
}

impl Called {
    pub fn now(clock: &Clock) -> Called {
        Called { at: clock.now(), instant: Instant::now() }
    }
}

/// The lock that a caller asks for.
#[derive(Clone, Debug)]
pub struct LockSpec {
    pub key: String,
    pub mode: Mode,
    pub max_holders: Option<u32>,
    pub lock_id: Option<String>,
    pub labels: Labels,
    pub replace_same_owner: bool,
    /// A long wait is normal, as it is for a candidate behind an election's leader: it is not warned of while the store
    /// works.
    pub expects_to_wait: bool,
    /// This is a transfer: the new grant takes the place of this one (grant id and token).
    pub instead_of: Option<(GrantId, u64)>,
    /// When the call began, if that was before this wait.
    pub called: Option<Called>,
    pub terms: Terms,
}

impl LockSpec {
    /// The plain case: exclusive, and replacing nobody.
    pub fn exclusive(key: &str, labels: Labels, terms: Terms) -> Self {
        LockSpec {
            key: key.to_owned(),
            mode: Mode::Exclusive,
            max_holders: None,
            lock_id: None,
            labels,
            replace_same_owner: false,
            expects_to_wait: false,
            instead_of: None,
            called: None,
            terms,
        }
    }

    /// What decides which holders this lock must wait for.
    pub fn wanted(&self) -> Wanted<'_> {
        let replaces = self.replace_same_owner.then_some(self.labels.owner.as_str());
        Wanted { mode: self.mode, max_holders: self.max_holders, lock_id: self.lock_id.as_deref(), replaces }
    }

    /// A new attempt at this lock, not sent yet.
    pub fn attempt(&self, grant: GrantId, lease: Duration) -> Attempt {
        // If the user names no lock id, the lock is a group of its own.
        let lock_id = self.lock_id.clone().unwrap_or_else(|| random::uuid().to_string());
        let ask = Ask {
            mode: self.mode,
            max_holders: self.max_holders,
            replace_same_owner: self.replace_same_owner,
            instead_of: self.instead_of.clone(),
            ..Ask::exclusive(grant, lock_id, self.labels.clone(), lease)
        };
        Attempt::new(&self.key, ask)
    }
}

/// The lock that a caller asks for, and what ends and reports its wait.
pub struct WaitSpec<'a> {
    pub lock: LockSpec,
    /// The call does not ask the store while others of this process wait for the lock.
    pub stands_back: bool,
    /// What is granted gets a guard; else it is data.
    pub gets_guard: bool,
    pub cancel: Option<CancelToken>,
    pub on_wait: Option<OnWait<'a>>,
    /// The time between two calls of `on_wait`; `None`: it is called at each look.
    pub on_wait_every: Option<Duration>,
}

/// How long to go on while others hold the lock.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Ask once.
    Once,
    /// Go on until this time.
    Until(Instant),
    /// Without limit.
    Endless,
}

impl Patience {
    /// Until this time; if it has passed, ask once.
    pub fn until(until: Instant) -> Self {
        if until <= Instant::now() { Patience::Once } else { Patience::Until(until) }
    }

    /// The deadline of a call that begins now.
    pub fn deadline(self, request_timeout: Duration) -> Deadline {
        match self {
            Patience::Once => Deadline::after(request_timeout),
            Patience::Until(at) => Deadline::at(at),
            Patience::Endless => Deadline::after(Duration::MAX),
        }
    }
}

/// How a call for a lock, or for one of several, ended without an error.
pub enum Obtained<T = Granted, R = Vec<LockStatus>> {
    /// The lock is granted.
    Granted(T),
    /// Others hold the lock, or wait for it in this process, and the patience is over. Contains who held each lock when
    /// it was last seen, or what the caller made of that.
    Refused(R),
}

impl<T, R> Obtained<T, R> {
    /// Turns the grant into something else.
    pub fn try_map<U>(self, map: impl FnOnce(T) -> Result<U>) -> Result<Obtained<U, R>> {
        match self {
            Obtained::Granted(granted) => map(granted).map(Obtained::Granted),
            Obtained::Refused(holders) => Ok(Obtained::Refused(holders)),
        }
    }

    /// The refusal in the place of an error.
    pub fn or_refusal(self) -> Result<T, R> {
        match self {
            Obtained::Granted(granted) => Ok(granted),
            Obtained::Refused(refused) => Err(refused),
        }
    }

    /// `None` when it was refused.
    pub fn granted(self) -> Option<T> {
        self.or_refusal().ok()
    }
}
