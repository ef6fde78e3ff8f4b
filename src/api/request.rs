//! A request for one lock, with everything that can be asked for.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::api::guard::LockGuard;
use crate::engine::acquire::obtain;
use crate::engine::family::Family;
use crate::engine::hold::Callbacks;
use crate::engine::options::{AskedLease, Terms};
use crate::engine::spec::{Granted, Obtained, OnWait, Patience, Want, Wanted};
use crate::lease::{GrantId, Lease, Mode};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::{check_key, check_text};
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::store::Seen;
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::far_from;

/// What happens to a live exclusive holder with the same owner label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameOwner {
    /// It is respected like any other.
    #[default]
    Respect,
    /// It is replaced at once; it learns so at its next heartbeat, and until then only the fencing
    /// token protects the resource. Needs an explicit owner, since the default repeats among
    /// threads and containers.
    Replace,
}

/// How the end of a wait was given.
#[derive(Clone, Copy, Debug)]
enum AskedWait {
    For(Duration),
    Until(Instant),
}

/// A request for one lock, made by [`LockClient::request`](crate::LockClient::request).
///
/// Nothing is sent before [`lock`](LockRequest::lock), [`try_lock`](LockRequest::try_lock) or
/// [`acquire`](LockRequest::acquire), and nothing at all when an argument is out of bounds.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let guard = client
///     .request("nightly-report")
///     .owner("billing-7")
///     .comment("started by cron")
///     .lease(Duration::from_secs(30))
///     .wait(Duration::from_secs(5))
///     .lock()?;
/// assert_eq!(guard.info().owner(), "billing-7");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a request does nothing until it is ended by lock(), try_lock() or acquire()"]
pub struct LockRequest {
    pub(crate) family: Arc<Family>,
    key: String,
    mode: Mode,
    max_holders: Option<u32>,
    owner: Option<String>,
    comment: Option<String>,
    lock_id: Option<String>,
    instead_of: Option<(GrantId, u64)>,
    lease: Option<AskedLease>,
    same_owner: SameOwner,
    wait: Option<AskedWait>,
    cancel: Option<CancelToken>,
    // The mutexes are never locked: they make the request `Sync` without asking that of closures.
    on_wait: Mutex<Option<OnWait>>,
    callbacks: Mutex<Callbacks>,
}

impl LockRequest {
    pub(crate) fn new(family: Arc<Family>, key: &str) -> Self {
        LockRequest {
            family,
            key: key.to_owned(),
            mode: Mode::Exclusive,
            max_holders: None,
            owner: None,
            comment: None,
            lock_id: None,
            instead_of: None,
            lease: None,
            same_owner: SameOwner::Respect,
            wait: None,
            cancel: None,
            on_wait: Mutex::new(None),
            callbacks: Mutex::new(Callbacks::default()),
        }
    }

    /// Together with other shared holders. Defaults to exclusive.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Shared, and only while fewer than `n` hold the key. Defaults to no limit. On DynamoDB the lease bounds it, about
    /// 160 at 20 s: see `leasehold::dynamodb`.
    pub fn max_holders(mut self, n: u32) -> Self {
        self.mode = Mode::Shared;
        self.max_holders = Some(n);
        self
    }

    /// Who holds it, for people: 1 to 1,024 bytes. Defaults to the client's owner.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Whatever others should read about this hold: 1 to 1,024 bytes. Defaults to none.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// For how long the lock is held without a renewal. Defaults to the client's lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(AskedLease::For(lease));
        self
    }

    /// The lease ends at this time and the guard does not renew past it. It is turned into a
    /// duration once, by the local wall clock. Defaults to the client's lease.
    pub fn lease_until(mut self, at: SystemTime) -> Self {
        self.lease = Some(AskedLease::Until(at));
        self
    }

    /// The lock is held until it is released: when the process dies, an operator has to do that.
    /// The guard sends no heartbeats and looks twice a minute whether it still stands. Defaults to
    /// the client's lease.
    pub fn lease_forever(mut self) -> Self {
        self.lease = Some(AskedLease::Forever);
        self
    }

    /// Puts the lock into a group: one lock id may stand on several keys, and whoever knows it can
    /// renew and release them all. Defaults to a random one.
    pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
        self.lock_id = Some(lock_id.into());
        self
    }

    /// What happens to a live exclusive holder with the same owner. Defaults to `Respect`.
    pub fn same_owner(mut self, same_owner: SameOwner) -> Self {
        self.same_owner = same_owner;
        self
    }

    /// How long [`lock`](LockRequest::lock) waits while others hold it; zero asks once. Defaults
    /// to no limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(AskedWait::For(wait));
        self
    }

    /// Until when [`lock`](LockRequest::lock) waits. Defaults to no limit.
    pub fn wait_until(mut self, until: Instant) -> Self {
        self.wait = Some(AskedWait::Until(until));
        self
    }

    /// Ends the wait with an error of kind `Cancelled`. Defaults to none.
    pub fn cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Called on this thread whenever the wait goes on. Defaults to nothing.
    pub fn on_wait(mut self, on_wait: impl FnMut(&Waiting) + Send + 'static) -> Self {
        *self.on_wait.get_mut() = Some(Box::new(on_wait));
        self
    }

    /// The lock is lost after this time, for a worker that hangs while its process lives. Defaults
    /// to no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.callbacks.get_mut().max_hold = Some(max_hold);
        self
    }

    /// Warns once when heartbeats fail and no more than this is left until the loss: to the log,
    /// the observer and [`on_warning`](LockRequest::on_warning). Defaults to no warning.
    pub fn warn_before(mut self, left: Duration) -> Self {
        self.callbacks.get_mut().warn_before = Some(left);
        self
    }

    /// Called once, on a thread of its own, with what is left when
    /// [`warn_before`](LockRequest::warn_before) is due. Defaults to nothing.
    pub fn on_warning(mut self, on_warning: impl FnOnce(Duration) + Send + 'static) -> Self {
        self.callbacks.get_mut().on_warning = Some(Box::new(on_warning));
        self
    }

    /// Called once, on a thread of its own, when the lock is lost; never after a release. Dropping
    /// or releasing the guard inside it is fine, and a panic in it is contained. Defaults to nothing.
    pub fn on_loss(mut self, on_loss: impl FnOnce(Loss) + Send + 'static) -> Self {
        self.callbacks.get_mut().on_loss = Some(Box::new(on_loss));
        self
    }

    /// Waits for the lock and holds it.
    ///
    /// # Errors
    /// `TimedOut`, with the holders, when [`wait`](LockRequest::wait) is over, or `Store` if the store was in trouble
    /// then; `Cancelled`;
    /// `Closed`; `AlreadyHeld` when this client holds the key with the same lock id;
    /// `InvalidInput` for an argument out of bounds; else what the store says.
    pub fn lock(self) -> Result<LockGuard> {
        let patience = self.patience();
        let message = "others held it until the wait was over";
        self.guard(patience)?.map_err(|refused| refused.error(ErrorKind::TimedOut, message))
    }

    /// Asks once; `None` when others hold it.
    ///
    /// # Errors
    /// As [`lock`](LockRequest::lock), but never `TimedOut`.
    pub fn try_lock(self) -> Result<Option<LockGuard>> {
        Ok(self.guard(Patience::Once)?.ok())
    }

    /// [`try_lock`](LockRequest::try_lock) with an error of kind `Held`, and the holders, in place of `None`.
    #[cfg(feature = "capi")]
    pub(crate) fn lock_once(self) -> Result<LockGuard> {
        self.guard(Patience::Once)?.map_err(|refused| refused.error(ErrorKind::Held, "others hold it"))
    }

    pub(crate) fn try_lock_until(self, until: Instant) -> Result<Option<LockGuard>> {
        let patience = if until <= Instant::now() { Patience::Once } else { Patience::Until(until) };
        Ok(self.guard(patience)?.ok())
    }

    /// Asks once and gives the lock as data: no guard, no thread, nothing that renews or releases it.
    ///
    /// # Errors
    /// `Held`, with the holders, when others hold it; else as [`lock`](LockRequest::lock).
    pub fn acquire(self) -> Result<Lock> {
        let _call = self.family.obtaining()?;
        match self.obtain(Patience::Once, false)? {
            Ok(Obtaining { family, granted, .. }) => Ok(family.as_data(&granted)),
            Err(refused) => Err(refused.error(ErrorKind::Held, "others hold it")),
        }
    }

    /// Takes up a lock that was handed over as data, by a transfer without a gap. Asks once.
    ///
    /// Mode and lock id are the lock's; so are its comment and an endless lease where the request
    /// sets no other.
    ///
    /// # Errors
    /// `Lost` when the lock does not stand any more, or was adopted before; `InvalidInput` when it
    /// is a lock of another key; `Ambiguous` when no answer came in time: then it was given up, and a
    /// second adopt works if the first never reached the store, and is `Lost` otherwise; `TimedOut` when
    /// it came too late to be held; else as [`lock`](LockRequest::lock).
    pub fn adopt(mut self, lock: Lock) -> Result<LockGuard> {
        if lock.key != self.key {
            let right = format!("the key of the lock to be adopted, {:?}", lock.key);
            return Err(Error::invalid("key", self.key, &right));
        }
        self.mode = lock.mode;
        self.max_holders = None;
        self.lock_id = Some(lock.lock_id);
        self.comment = self.comment.or(lock.labels.comment);
        if lock.leased_until.is_none() {
            self.lease.get_or_insert(AskedLease::Forever);
        }
        self.instead_of = Some((lock.grant, lock.token));
        let message = "it does not stand any more";
        self.guard(Patience::Once)?.map_err(|refused| refused.error(ErrorKind::Lost, message))
    }

    /// The outer error is one; the inner one says that others hold it.
    fn guard(self, patience: Patience) -> Result<Result<LockGuard, Refused>> {
        let _call = self.family.obtaining()?;
        let stands_back = self.stands_back();
        match self.obtain(patience, stands_back)? {
            Ok(Obtaining { family, granted, terms, callbacks }) => {
                let hold = family.hold(granted, terms, callbacks)?;
                Ok(Ok(LockGuard::new(hold, family)))
            }
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// Checks everything, then asks.
    fn obtain(mut self, patience: Patience, stands_back: bool) -> Result<Result<Obtaining, Refused>> {
        let family = self.family.clone();
        family.check_open()?;
        let terms = self.check().map_err(|error| error.with_store(&family.backend.info().label))?;
        let key = self.key.clone();
        let (want, callbacks) = self.want(terms, stands_back);
        Ok(match obtain(&family, want, patience)? {
            Obtained::Granted(granted) => Ok(Obtaining { family, granted, terms, callbacks }),
            Obtained::Refused(seen) => Err(Refused { family, key, seen }),
        })
    }

    /// How long [`lock`](LockRequest::lock) goes on.
    pub(crate) fn patience(&self) -> Patience {
        let until = self.wait.map(|wait| match wait {
            AskedWait::For(wait) => far_from(Instant::now(), wait),
            AskedWait::Until(until) => until,
        });
        match until {
            None => Patience::Endless,
            Some(until) if until <= Instant::now() => Patience::Once,
            Some(until) => Patience::Until(until),
        }
    }

    /// Whether asking once is in vain while others of this process wait. A transfer and a replacement are for the
    /// holder itself, whoever waits.
    pub(crate) fn stands_back(&self) -> bool {
        self.instead_of.is_none() && self.same_owner == SameOwner::Respect
    }

    /// What is asked for, once it is checked.
    pub(crate) fn want(self, terms: Terms, stands_back: bool) -> (Want, Callbacks) {
        let family = self.family;
        let want = Want {
            wanted: Wanted {
                labels: family.labels(self.owner, self.comment),
                key: self.key,
                mode: self.mode,
                lock_id: self.lock_id,
                max_holders: self.max_holders,
                replace_same_owner: self.same_owner == SameOwner::Replace,
                terms,
            },
            instead_of: self.instead_of,
            stands_back,
            cancel: self.cancel,
            on_wait: self.on_wait.into_inner(),
        };
        (want, self.callbacks.into_inner())
    }

    pub(crate) fn check(&mut self) -> Result<Terms> {
        // A key that is out of bounds is not repeated at the head of the message.
        check_key(&self.key)?;
        self.check_rest().map_err(|error| error.with_key(&self.key))
    }

    /// Everything but the key.
    pub(crate) fn check_rest(&mut self) -> Result<Terms> {
        for (field, text) in [("owner", &self.owner), ("comment", &self.comment), ("lock_id", &self.lock_id)] {
            text.iter().try_for_each(|text| check_text(field, text))?;
        }
        if self.max_holders == Some(0) {
            return Err(Error::invalid("max_holders", 0, "at least 1"));
        }
        if self.same_owner == SameOwner::Replace {
            if self.owner.is_none() && self.family.options.owner.is_none() {
                let right = "used with an explicit owner, since the default repeats among threads";
                return Err(Error::invalid("same_owner", self.same_owner, right));
            }
            if self.mode == Mode::Shared {
                return Err(Error::invalid("same_owner", self.same_owner, "used with an exclusive request"));
            }
        }
        let callbacks = self.callbacks.get_mut();
        for (field, d) in [("max_hold", callbacks.max_hold), ("warn_before", callbacks.warn_before)] {
            if d.is_some_and(|d| d.is_zero()) {
                return Err(Error::invalid(field, Duration::ZERO, "above zero"));
            }
        }
        let (lease, ends_at) = match self.lease {
            None => (None, None),
            Some(asked) => {
                let (lease, ends_at) = asked.counted_from(self.family.clock.now())?;
                (Some(lease), ends_at)
            }
        };
        let info = self.family.backend.info();
        let terms = self.family.options.terms(lease, ends_at, info.min_lease)?;
        if let Some(d) = callbacks.warn_before.filter(|d| terms.held_for().is_some_and(|held| *d >= held)) {
            let right = format!(
                "below {:?}, for which a renewal holds (the lease less the margin)",
                terms.held_for().unwrap_or_default()
            );
            return Err(Error::invalid("warn_before", d, &right));
        }
        let interval = if terms.lease == Lease::Forever { Duration::MAX } else { terms.heartbeat };
        let most = info.most_shared.map_or(u32::MAX, |most| most(interval));
        if let Some(n) = self.max_holders.filter(|n| *n > most) {
            let right = format!(
                "at most {most} on this store with a heartbeat in {interval:?}: each renewal writes the holders of the \
                 key all over, 256 bytes each, and the store writes 1,000 KB of a key in a second ({most} x {most} x \
                 256 bytes in a heartbeat) and keeps 400 KB; a longer lease allows more"
            );
            return Err(Error::invalid("max_holders", n, &right));
        }
        Ok(terms)
    }
}

/// A grant, with what its guard needs.
struct Obtaining {
    family: Arc<Family>,
    granted: Granted,
    terms: Terms,
    callbacks: Callbacks,
}

/// Others hold the lock, or wait for it in this process.
struct Refused {
    family: Arc<Family>,
    key: String,
    seen: Option<Seen>,
}

impl Refused {
    /// The error that says who holds the lock, as far as that was seen.
    fn error(self, kind: ErrorKind, message: &str) -> Error {
        let holders = self.seen.as_ref().map(LockStatus::live).unwrap_or_default();
        let named: Vec<String> = holders.iter().map(ToString::to_string).collect();
        let message = if named.is_empty() { message.to_owned() } else { format!("{message}: {}", named.join(", ")) };
        Error::new(kind, message)
            .with_key(&self.key)
            .with_store(&self.family.backend.info().label)
            .with_holders(holders)
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest").field("key", &self.key).field("mode", &self.mode).finish_non_exhaustive()
    }
}
