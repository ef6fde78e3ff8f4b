//! A request for one lock, with everything that can be asked for.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::api::guard::LockGuard;
use crate::engine::acquire::obtain;
use crate::engine::family::Family;
use crate::engine::options::{AskedLease, Terms};
use crate::engine::spec::{Callbacks, LockSpec, Obtained, OnWait, Patience, WaitSpec};
use crate::lease::{Lease, Mode};
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
    pub(crate) spec: RequestSpec,
}

impl LockRequest {
    pub(crate) fn new(family: Arc<Family>, key: &str) -> Self {
        LockRequest { spec: RequestSpec::new(family, key) }
    }

    /// Waits for the lock and holds it.
    ///
    /// # Errors
    /// `TimedOut`, with the holders, when [`wait`](LockRequest::wait) is over, or `Store` if the store was in trouble
    /// then; `Cancelled`;
    /// `Closed`; `AlreadyHeld` when this client holds the key with the same lock id;
    /// `InvalidInput` for an argument out of bounds; else what the store says.
    pub fn lock(self) -> Result<LockGuard> {
        let patience = self.spec.patience();
        self.guard_or(patience, ErrorKind::TimedOut, "others held it until the wait was over")
    }

    /// Asks once; `None` when others hold it.
    ///
    /// # Errors
    /// As [`lock`](LockRequest::lock), but never `TimedOut`.
    pub fn try_lock(self) -> Result<Option<LockGuard>> {
        Ok(self.guard(Patience::Once)?.granted())
    }

    /// [`try_lock`](LockRequest::try_lock) with an error of kind `Held`, and the holders, in place of `None`.
    #[cfg(feature = "capi")]
    pub(crate) fn lock_once(self) -> Result<LockGuard> {
        self.guard_or(Patience::Once, ErrorKind::Held, "others hold it")
    }

    /// The same request once more, without its callbacks.
    #[cfg(feature = "capi")]
    pub(crate) fn again(&self) -> Self {
        LockRequest { spec: self.spec.again() }
    }

    pub(crate) fn try_lock_until(self, until: Instant) -> Result<Option<LockGuard>> {
        let patience = if until <= Instant::now() { Patience::Once } else { Patience::Until(until) };
        Ok(self.guard(patience)?.granted())
    }

    /// Asks once and gives the lock as data: no guard, no thread, nothing that renews or releases it.
    ///
    /// # Errors
    /// `Held`, with the holders, when others hold it; else as [`lock`](LockRequest::lock).
    pub fn acquire(self) -> Result<Lock> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        let _call = family.obtaining()?;
        let (mut spec, _) = self.checked()?;
        spec.stands_back = false;
        match obtain(&family, spec, Patience::Once)? {
            Obtained::Granted(granted) => Ok(family.as_data(&granted)),
            Obtained::Refused(seen) => Err(refusal(&family, &key, &seen, ErrorKind::Held, "others hold it")),
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
        let spec = &mut self.spec.lock;
        if lock.key != spec.key {
            let right = format!("the key of the lock to be adopted, {:?}", lock.key);
            return Err(Error::invalid("key", &spec.key, &right));
        }
        spec.mode = lock.mode;
        spec.max_holders = None;
        spec.lock_id = Some(lock.lock_id);
        spec.labels.comment = spec.labels.comment.take().or(lock.labels.comment);
        spec.instead_of = Some((lock.grant, lock.token));
        if lock.leased_until.is_none() {
            self.spec.lease.get_or_insert(AskedLease::Forever);
        }
        self.guard_or(Patience::Once, ErrorKind::Lost, "it does not stand any more")
    }

    fn guard_or(self, patience: Patience, kind: ErrorKind, message: &str) -> Result<LockGuard> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        match self.guard(patience)? {
            Obtained::Granted(guard) => Ok(guard),
            Obtained::Refused(seen) => Err(refusal(&family, &key, &seen, kind, message)),
        }
    }

    fn guard(self, patience: Patience) -> Result<Obtained<LockGuard>> {
        let family = self.spec.family.clone();
        let _call = family.obtaining()?;
        let (spec, callbacks) = self.checked()?;
        let terms = spec.lock.terms;
        obtain(&family, spec, patience)?.try_map(|granted| LockGuard::over(granted, &family, terms, callbacks))
    }

    /// Whether every argument is within its bounds.
    pub(crate) fn check(self) -> Result<()> {
        self.checked().map(drop)
    }

    fn checked(self) -> Result<(WaitSpec, Callbacks)> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        // A key that is out of bounds is not repeated at the head of the message.
        let checked = check_key(&key).and_then(|()| self.spec.checked().map_err(|error| error.with_key(&key)));
        checked.map_err(|error| family.in_context(error))
    }
}

/// Everything that can be asked for, whether of one lock or of several.
pub(crate) struct RequestSpec {
    pub(crate) family: Arc<Family>,
    pub(crate) lock: LockSpec,
    pub(crate) lease: Option<AskedLease>,
    pub(crate) wait: Option<AskedWait>,
    pub(crate) cancel: Option<CancelToken>,
    // The mutexes are never waited for: they make the request `Sync` without asking that of closures.
    pub(crate) on_wait: Mutex<Option<OnWait>>,
    pub(crate) callbacks: Mutex<Callbacks>,
}

/// How the end of a wait was given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AskedWait {
    For(Duration),
    Until(Instant),
}

impl RequestSpec {
    pub(crate) fn new(family: Arc<Family>, key: &str) -> Self {
        // The terms are set by the check.
        let lock = LockSpec::exclusive(key, family.labels(None, None), Terms::of_lease(family.options.lease));
        let (on_wait, callbacks) = (Mutex::default(), Mutex::default());
        RequestSpec { family, lock, lease: None, wait: None, cancel: None, on_wait, callbacks }
    }

    /// The same once more, without the closures.
    #[cfg(feature = "capi")]
    fn again(&self) -> Self {
        let Callbacks { max_hold, warn_before, .. } = *self.callbacks.lock();
        RequestSpec {
            family: self.family.clone(),
            lock: self.lock.clone(),
            lease: self.lease,
            wait: self.wait,
            cancel: self.cancel.clone(),
            on_wait: Mutex::default(),
            callbacks: Mutex::new(Callbacks { max_hold, warn_before, ..Callbacks::default() }),
        }
    }

    /// How long `lock` goes on.
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

    /// What is asked for, once everything but the key is checked.
    pub(crate) fn checked(mut self) -> Result<(WaitSpec, Callbacks)> {
        self.lock.terms = self.check()?;
        // To ask once is in vain while others of this process wait. A transfer and a replacement are for the holder
        // itself, whoever waits.
        let stands_back = self.lock.instead_of.is_none() && !self.lock.replace_same_owner;
        let spec = WaitSpec { lock: self.lock, stands_back, cancel: self.cancel, on_wait: self.on_wait.into_inner() };
        Ok((spec, self.callbacks.into_inner()))
    }

    fn check(&mut self) -> Result<Terms> {
        let lock = &self.lock;
        for (field, text) in [
            ("owner", Some(&lock.labels.owner)),
            ("comment", lock.labels.comment.as_ref()),
            ("lock_id", lock.lock_id.as_ref()),
        ] {
            text.map_or(Ok(()), |text| check_text(field, text))?;
        }
        if lock.max_holders == Some(0) {
            return Err(Error::invalid("max_holders", 0, "at least 1"));
        }
        if lock.replace_same_owner {
            if self.family.is_default_owner(&lock.labels.owner) {
                let right = "used with an explicit owner, since the default repeats among threads";
                return Err(Error::invalid("same_owner", SameOwner::Replace, right));
            }
            if lock.mode == Mode::Shared {
                return Err(Error::invalid("same_owner", SameOwner::Replace, "used with an exclusive request"));
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
        if let Some(n) = lock.max_holders.filter(|n| *n > most) {
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

/// The error that says who holds the lock, as far as that was seen.
fn refusal(family: &Family, key: &str, seen: &[Seen], kind: ErrorKind, message: &str) -> Error {
    let holders: Vec<LockStatus> = seen.iter().flat_map(LockStatus::live).collect();
    let named: Vec<String> = holders.iter().map(ToString::to_string).collect();
    let message = if named.is_empty() { message.to_owned() } else { format!("{message}: {}", named.join(", ")) };
    family.in_context(Error::new(kind, message).with_key(key).with_holders(holders))
}

/// The setters of every request, which go to its `spec`.
macro_rules! setters {
    ($request:ty) => {
        impl $request {
            /// Together with other shared holders. Defaults to exclusive.
            pub fn shared(mut self) -> Self {
                self.spec.lock.mode = Mode::Shared;
                self
            }

            /// Shared, and only while fewer than `n` hold the key. Defaults to no limit. On DynamoDB the lease bounds it, about
            /// 160 at 20 s: see `leasehold::dynamodb`.
            pub fn max_holders(mut self, n: u32) -> Self {
                self.spec.lock.mode = Mode::Shared;
                self.spec.lock.max_holders = Some(n);
                self
            }

            /// Who holds it, for people: 1 to 1,024 bytes. Defaults to the client's owner.
            pub fn owner(mut self, owner: impl Into<String>) -> Self {
                self.spec.lock.labels.owner = owner.into();
                self
            }

            /// Whatever others should read about this hold: 1 to 1,024 bytes. Defaults to none.
            pub fn comment(mut self, comment: impl Into<String>) -> Self {
                self.spec.lock.labels.comment = Some(comment.into());
                self
            }

            /// For how long the lock is held without a renewal. Defaults to the client's lease.
            pub fn lease(mut self, lease: Duration) -> Self {
                self.spec.lease = Some(AskedLease::For(lease));
                self
            }

            /// The lease ends at this time and the guard does not renew past it. It is turned into a
            /// duration once, by the local wall clock. Defaults to the client's lease.
            pub fn lease_until(mut self, at: SystemTime) -> Self {
                self.spec.lease = Some(AskedLease::Until(at));
                self
            }

            /// The lock is held until it is released: when the process dies, an operator has to do that.
            /// The guard sends no heartbeats and looks twice a minute whether it still stands. Defaults to
            /// the client's lease.
            pub fn lease_forever(mut self) -> Self {
                self.spec.lease = Some(AskedLease::Forever);
                self
            }

            /// Puts the lock into a group: one lock id may stand on several keys, and whoever knows it can
            /// renew and release them all. One of several keys that this client holds with the same lock id
            /// counts as held, like any other. Defaults to a random one.
            pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
                self.spec.lock.lock_id = Some(lock_id.into());
                self
            }

            /// What happens to a live exclusive holder with the same owner. With `Replace` the first of several
            /// keys that this owner holds is as good as a free one. Defaults to `Respect`.
            pub fn same_owner(mut self, same_owner: SameOwner) -> Self {
                self.spec.lock.replace_same_owner = same_owner == SameOwner::Replace;
                self
            }

            /// How long [`lock`](Self::lock) waits while others hold the lock, or each of several; zero asks once. Defaults to no
            /// limit.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.spec.wait = Some(AskedWait::For(wait));
                self
            }

            /// Until when [`lock`](Self::lock) waits. Defaults to no limit.
            pub fn wait_until(mut self, until: Instant) -> Self {
                self.spec.wait = Some(AskedWait::Until(until));
                self
            }

            /// Ends the wait with an error of kind `Cancelled`. Defaults to none.
            pub fn cancel(mut self, cancel: &CancelToken) -> Self {
                self.spec.cancel = Some(cancel.clone());
                self
            }

            /// Called on this thread whenever the wait goes on, once for each key. Defaults to nothing.
            pub fn on_wait(mut self, on_wait: impl FnMut(&Waiting) + Send + 'static) -> Self {
                *self.spec.on_wait.get_mut() = Some(Box::new(on_wait));
                self
            }

            /// The lock is lost after this time, for a worker that hangs while its process lives. Defaults
            /// to no limit.
            pub fn max_hold(mut self, max_hold: Duration) -> Self {
                self.spec.callbacks.get_mut().max_hold = Some(max_hold);
                self
            }

            /// Warns once when heartbeats fail and no more than this is left until the loss: to the log,
            /// the observer and [`on_warning`](Self::on_warning). Defaults to no warning.
            pub fn warn_before(mut self, left: Duration) -> Self {
                self.spec.callbacks.get_mut().warn_before = Some(left);
                self
            }

            /// Called once, on a thread of its own, with what is left when
            /// [`warn_before`](Self::warn_before) is due. Defaults to nothing.
            pub fn on_warning(mut self, on_warning: impl FnOnce(Duration) + Send + 'static) -> Self {
                self.spec.callbacks.get_mut().on_warning = Some(Box::new(on_warning));
                self
            }

            /// Called once, on a thread of its own, when the lock is lost; never after a release. Dropping
            /// or releasing the guard inside it is fine, and a panic in it is contained. Defaults to nothing.
            pub fn on_loss(mut self, on_loss: impl FnOnce(Loss) + Send + 'static) -> Self {
                self.spec.callbacks.get_mut().on_loss = Some(Box::new(on_loss));
                self
            }
        }
    };
}
pub(crate) use setters;

setters!(LockRequest);

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = &self.spec.lock;
        f.debug_struct("LockRequest").field("key", &lock.key).field("mode", &lock.mode).finish_non_exhaustive()
    }
}
