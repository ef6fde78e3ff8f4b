//! A request for whichever of several locks is free first.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::api::guard::LockGuard;
#[cfg(feature = "capi")]
use crate::api::request::LockRequest;
use crate::api::request::{ACQUIRES_ONCE, AskedWait, NO_GUARD, OWN_WAIT, RequestSpec, SameOwner, of_holders};
use crate::api::setters::setters;
use crate::engine::acquire_any::{Order, obtain_any};
use crate::engine::family::Family;
use crate::engine::options::{AskedLease, Terms};
#[cfg(feature = "capi")]
use crate::engine::spec::LockSpec;
use crate::engine::spec::{Callbacks, Obtained, OnWait, Patience, WaitSpec};
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::sys::cancel::CancelToken;
use crate::sys::observing::Contained;

/// The message of a refusal after each lock was asked for once.
const HELD: &str = "others hold each of them";
/// The message of an error when a wait is over.
const WAITED: &str = "others held each of them until the wait was over";

/// A request for whichever of several locks is free first, made by
/// [`LockClient::request_any`](crate::LockClient::request_any).
///
/// Everything but the keys is as in a [`LockRequest`](crate::LockRequest). Nothing is sent before
/// [`lock`](LockAnyRequest::lock), [`try_lock`](LockAnyRequest::try_lock) or
/// [`acquire`](LockAnyRequest::acquire), and nothing at all when an argument is out of bounds.
///
/// A wait checks all keys in each of its rounds, which come as often as the checks of a wait for one key, and once more
/// at the moment when the first of the leases can have ended. Where the store reports releases, it checks only the keys
/// that were reported, or that are due.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let first = client.request_any(["gpu-0", "gpu-1"]).in_order().lock()?;
/// let second = client.request_any(["gpu-0", "gpu-1"]).in_order().comment("training").lock()?;
/// assert_eq!((first.key(), second.key()), ("gpu-0", "gpu-1"));
/// let busy = client.request_any(["gpu-0", "gpu-1"]).wait(Duration::ZERO).lock().unwrap_err();
/// assert_eq!(busy.holders().len(), 2);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a request does nothing until it is ended by lock(), try_lock() or acquire()"]
pub struct LockAnyRequest {
    keys: Vec<String>,
    order: Order,
    /// Everything but the keys.
    spec: RequestSpec,
}

setters!(LockAnyRequest);

impl LockAnyRequest {
    pub(crate) fn new(family: &Arc<Family>, keys: Vec<String>) -> Self {
        LockAnyRequest { keys, order: Order::Random, spec: RequestSpec::new(family.clone(), "") }
    }

    /// Takes everything but the keys from `request`.
    #[cfg(feature = "capi")]
    pub(crate) fn like(mut self, request: LockRequest) -> Self {
        self.spec = RequestSpec { lock: LockSpec { key: self.spec.lock.key, ..request.spec.lock }, ..request.spec };
        self
    }

    /// Tries the keys as they are given, each time from the first one on, so that the first free one
    /// of them is taken. Many clients that do so compete for the same key. Defaults to random order.
    pub fn in_order(mut self) -> Self {
        self.order = Order::AsGiven;
        self
    }

    /// Waits until one of the keys is free, and holds that one: its [`key`](LockGuard::key) says which.
    ///
    /// # Errors
    /// `TimedOut`, with the holders of every key, when [`wait`](LockAnyRequest::wait) is over (without
    /// holders when it was over before the store was asked for all);
    /// `Cancelled`; `Closed`; `AlreadyHeld` when this client holds all the keys with the same lock
    /// id; `InvalidInput` for an argument out of bounds, no key, or a key that is given twice; `Lost` as of
    /// [`LockRequest::lock`](crate::LockRequest::lock); otherwise the store's error.
    pub fn lock(self) -> Result<LockGuard> {
        let patience = self.spec.patience();
        self.guard_or(patience, None, ErrorKind::TimedOut, WAITED)
    }

    /// Asks once for each key until one is granted; `None` when others hold all, or other calls of this client wait for
    /// them already.
    ///
    /// # Errors
    /// As [`lock`](LockAnyRequest::lock), but `TimedOut` only when the store was too slow to be asked for all keys.
    /// Each key has one request timeout. Also `InvalidInput` when a [`wait`](LockAnyRequest::wait) is set.
    pub fn try_lock(mut self) -> Result<Option<LockGuard>> {
        self.spec.refuses.wait = Some("try_lock asks once");
        Ok(self.guard(Patience::Once, None)?.granted())
    }

    /// Asks once for each key until one is granted, and returns that lock as data: no guard, no thread,
    /// nothing that renews or releases it.
    ///
    /// # Errors
    /// `Held`, with the holders of every key, when others hold all; otherwise as
    /// [`try_lock`](LockAnyRequest::try_lock).
    pub fn acquire(mut self) -> Result<Lock> {
        self.spec.refuses.wait = Some(ACQUIRES_ONCE);
        self.spec.refuses.guard = Some(NO_GUARD);
        let (family, order, refusal) = (self.spec.family.clone(), self.order, self.refusal());
        let _call = family.obtaining()?;
        let (mut specs, ..) = self.checked(None)?;
        specs.iter_mut().for_each(|spec| (spec.stands_back, spec.gets_guard) = (false, false));
        let obtained = obtain_any(&family, specs, Patience::Once, order)?.or_refusal();
        family.as_data(obtained.map_err(|holders| refusal(ErrorKind::Held, HELD, holders))?)
    }

    /// Makes the error that says who holds each of the locks.
    fn refusal(&self) -> impl Fn(ErrorKind, &str, Vec<LockStatus>) -> Error + use<> {
        let (family, keys) = (self.spec.family.clone(), self.keys.len());
        move |kind, message, holders| {
            let message = format!("{keys} locks, and {message}");
            of_holders(&family, kind, message, holders, |h| format!("{:?} by {h}", h.key()))
        }
    }

    fn guard(self, patience: Patience, progress: Option<OnWait<'_>>) -> Result<Obtained<LockGuard>> {
        let (family, order) = (self.spec.family.clone(), self.order);
        let _call = family.obtaining()?;
        let (specs, terms, callbacks) = self.checked(progress)?;
        let by = patience.deadline(family.options.request_timeout);
        let obtained = obtain_any(&family, specs, patience, order)?;
        obtained.try_map(|granted| LockGuard::over(granted, &family, terms, callbacks, &by))
    }

    /// Checks the request, and returns what to ask for, for each key.
    fn checked<'a>(self, progress: Option<OnWait<'a>>) -> Result<(Vec<WaitSpec<'a>>, Terms, Callbacks)> {
        let family = self.spec.family.clone();
        let checked = check_keys(&family, &self.keys).and_then(|()| self.spec.checked());
        let (mut spec, callbacks) = checked.map_err(|error| family.in_context(error))?;
        let on_wait = progress.or(spec.on_wait.take()).map(|on_wait| Rc::new(RefCell::new(on_wait)));
        let told = || -> Option<OnWait<'a>> {
            let on_wait = on_wait.clone()?;
            Some(Box::new(move |waiting| (*on_wait.borrow_mut())(waiting)))
        };
        let specs = self.keys.into_iter().map(|key| spec.for_key(key, told())).collect();
        Ok((specs, spec.lock.terms, callbacks))
    }
}

/// Refuses an empty list, and a key that is wrong or given twice.
pub(crate) fn check_keys(family: &Family, keys: &[String]) -> Result<()> {
    if keys.is_empty() {
        return Err(Error::invalid("keys", keys, "at least one key"));
    }
    let mut known = BTreeSet::new();
    for key in keys {
        family.check_key(key)?;
        if !known.insert(key) {
            return Err(Error::new(ErrorKind::InvalidInput, "this key is given twice").with_key(key));
        }
    }
    Ok(())
}

impl fmt::Debug for LockAnyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAnyRequest").field("keys", &self.keys).field("order", &self.order).finish_non_exhaustive()
    }
}
