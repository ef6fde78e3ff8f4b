//! A request for whichever of several locks is free first.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::api::guard::LockGuard;
use crate::api::request::{LockRequest, SameOwner};
use crate::engine::acquire_any::{AnyObtained, obtain_any};
use crate::engine::family::Family;
use crate::engine::hold::Callbacks;
use crate::engine::options::Terms;
use crate::engine::spec::{OnWait, Patience};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::check_key;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::store::Seen;
use crate::sys::cancel::CancelToken;

/// So many holders are named in the message of an error; [`Error::holders`] has all.
const NAMED: usize = 5;
/// What the refusal of one look says.
const HELD: &str = "others hold each of them";

/// A request for whichever of several locks is free first, made by
/// [`LockClient::request_any`](crate::LockClient::request_any).
///
/// Everything but the keys is as in a [`LockRequest`]. Nothing is sent before
/// [`lock`](LockAnyRequest::lock), [`try_lock`](LockAnyRequest::try_lock) or
/// [`acquire`](LockAnyRequest::acquire), and nothing at all when an argument is out of bounds.
///
/// A wait looks at all keys in each of its rounds, which come as often as those of a wait for one
/// key, and once more at the moment when the first of the leases can have ended.
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
    in_order: bool,
    /// Everything but the key.
    request: LockRequest,
    // Never locked, as in `LockRequest`.
    on_wait: Mutex<Option<OnWait>>,
}

impl LockAnyRequest {
    pub(crate) fn new(family: &Arc<Family>, keys: Vec<String>) -> Self {
        let request = LockRequest::new(family.clone(), "");
        LockAnyRequest { keys, in_order: false, request, on_wait: Mutex::new(None) }
    }

    fn with(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.request = set(self.request);
        self
    }

    /// Tries the keys as they are given, each time from the first one on, so that the first free one
    /// of them is taken. Many clients that do so meet at the same key. Defaults to random order.
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Together with other shared holders. Defaults to exclusive.
    pub fn shared(self) -> Self {
        self.with(LockRequest::shared)
    }

    /// Shared, and only where fewer than `n` hold the key. Defaults to no limit.
    pub fn max_holders(self, n: u32) -> Self {
        self.with(|request| request.max_holders(n))
    }

    /// Who holds it, for people: 1 to 1,024 bytes. Defaults to the client's owner.
    pub fn owner(self, owner: impl Into<String>) -> Self {
        self.with(|request| request.owner(owner))
    }

    /// Whatever others should read about this hold: 1 to 1,024 bytes. Defaults to none.
    pub fn comment(self, comment: impl Into<String>) -> Self {
        self.with(|request| request.comment(comment))
    }

    /// For how long the lock is held without a renewal. Defaults to the client's lease.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|request| request.lease(lease))
    }

    /// See [`LockRequest::lease_until`]. Defaults to the client's lease.
    pub fn lease_until(self, at: SystemTime) -> Self {
        self.with(|request| request.lease_until(at))
    }

    /// See [`LockRequest::lease_forever`]. Defaults to the client's lease.
    pub fn lease_forever(self) -> Self {
        self.with(LockRequest::lease_forever)
    }

    /// Puts the lock into a group. A key that this client holds with the same lock id counts as held,
    /// like any other. Defaults to a random one.
    pub fn lock_id(self, lock_id: impl Into<String>) -> Self {
        self.with(|request| request.lock_id(lock_id))
    }

    /// What happens to a live exclusive holder with the same owner: with `Replace` the first key that
    /// this owner holds is as good as a free one. Defaults to `Respect`.
    pub fn same_owner(self, same_owner: SameOwner) -> Self {
        self.with(|request| request.same_owner(same_owner))
    }

    /// How long [`lock`](LockAnyRequest::lock) waits while others hold all; zero asks once. Defaults
    /// to no limit.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|request| request.wait(wait))
    }

    /// Until when [`lock`](LockAnyRequest::lock) waits. Defaults to no limit.
    pub fn wait_until(self, until: Instant) -> Self {
        self.with(|request| request.wait_until(until))
    }

    /// Ends the wait with an error of kind `Cancelled`. Defaults to none.
    pub fn cancel(self, cancel: &CancelToken) -> Self {
        self.with(|request| request.cancel(cancel))
    }

    /// Called on this thread whenever the wait goes on, once for each key. Defaults to nothing.
    pub fn on_wait(mut self, on_wait: impl FnMut(&Waiting) + Send + 'static) -> Self {
        *self.on_wait.get_mut() = Some(Box::new(on_wait));
        self
    }

    /// See [`LockRequest::max_hold`]. Defaults to no limit.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|request| request.max_hold(max_hold))
    }

    /// See [`LockRequest::warn_before`]. Defaults to no warning.
    pub fn warn_before(self, left: Duration) -> Self {
        self.with(|request| request.warn_before(left))
    }

    /// See [`LockRequest::on_warning`]. Defaults to nothing.
    pub fn on_warning(self, on_warning: impl FnOnce(Duration) + Send + 'static) -> Self {
        self.with(|request| request.on_warning(on_warning))
    }

    /// See [`LockRequest::on_loss`]. Defaults to nothing.
    pub fn on_loss(self, on_loss: impl FnOnce(Loss) + Send + 'static) -> Self {
        self.with(|request| request.on_loss(on_loss))
    }

    /// Waits until one of the keys is free, and holds that one: its [`key`](LockGuard::key) says which.
    ///
    /// # Errors
    /// `TimedOut`, with the holders of every key, when [`wait`](LockAnyRequest::wait) is over (without
    /// holders when it was over before the store was asked for all);
    /// `Cancelled`; `Closed`; `AlreadyHeld` when this client holds all the keys with the same lock
    /// id; `InvalidInput` for an argument out of bounds, no key, or a key that is given twice; else
    /// what the store says.
    pub fn lock(self) -> Result<LockGuard> {
        let patience = self.request.patience();
        let message = "others held each of them until the wait was over";
        self.guard(patience)?.map_err(|refused| refusal(&refused.family, &refused.seen, ErrorKind::TimedOut, message))
    }

    /// Asks once for each key until one is granted; `None` when others hold all.
    ///
    /// # Errors
    /// As [`lock`](LockAnyRequest::lock), but `TimedOut` only when the store was too slow to be asked
    /// for all. Each key has one request timeout.
    pub fn try_lock(self) -> Result<Option<LockGuard>> {
        Ok(self.guard(Patience::Once)?.ok())
    }

    /// [`try_lock`](LockAnyRequest::try_lock) with an error of kind `Held`, and the holders, in place of `None`.
    #[cfg(feature = "capi")]
    pub(crate) fn lock_once(self) -> Result<LockGuard> {
        let held = |refused: Refused| refusal(&refused.family, &refused.seen, ErrorKind::Held, HELD);
        self.guard(Patience::Once)?.map_err(held)
    }

    /// Asks once for each key until one is granted, and gives that lock as data: no guard, no thread,
    /// nothing that renews or releases it.
    ///
    /// # Errors
    /// `Held`, with the holders of every key, when others hold all; else as
    /// [`try_lock`](LockAnyRequest::try_lock).
    pub fn acquire(self) -> Result<Lock> {
        let _call = self.request.family.obtaining()?;
        let (family, _, _, obtained) = self.obtain(Patience::Once, false)?;
        match obtained {
            AnyObtained::Granted(granted) => Ok(family.as_data(&granted)),
            AnyObtained::Refused(seen) => Err(refusal(&family, &seen, ErrorKind::Held, HELD)),
        }
    }

    /// The outer error is one; the inner one says that others hold all.
    fn guard(self, patience: Patience) -> Result<Result<LockGuard, Refused>> {
        let _call = self.request.family.obtaining()?;
        let stands_back = self.request.stands_back();
        let (family, terms, callbacks, obtained) = self.obtain(patience, stands_back)?;
        match obtained {
            AnyObtained::Granted(granted) => {
                let hold = family.hold(granted, terms, callbacks)?;
                Ok(Ok(LockGuard::new(hold, family)))
            }
            AnyObtained::Refused(seen) => Ok(Err(Refused { family, seen })),
        }
    }

    /// Checks everything, then asks.
    fn obtain(mut self, patience: Patience, stands_back: bool) -> Result<(Arc<Family>, Terms, Callbacks, AnyObtained)> {
        let family = self.request.family.clone();
        family.check_open()?;
        let in_context = |error: Error| error.with_store(&family.backend.info().label);
        check_keys(&self.keys).map_err(in_context)?;
        let terms = self.request.check_rest().map_err(in_context)?;
        let (want, callbacks) = self.request.want(terms, stands_back);
        let on_wait = self.on_wait.into_inner().map(|on_wait| Arc::new(Mutex::new(on_wait)));
        let told = || -> Option<OnWait> {
            let on_wait = on_wait.clone()?;
            Some(Box::new(move |waiting| (*on_wait.lock())(waiting)))
        };
        let wants = self.keys.into_iter().map(|key| want.for_key(key, told())).collect();
        let obtained = obtain_any(&family, wants, patience, self.in_order)?;
        Ok((family, terms, callbacks, obtained))
    }
}

/// Others hold all.
struct Refused {
    family: Arc<Family>,
    seen: Vec<Seen>,
}

fn check_keys(keys: &[String]) -> Result<()> {
    if keys.is_empty() {
        return Err(Error::invalid("keys", keys, "at least one key"));
    }
    let mut known = BTreeSet::new();
    for key in keys {
        check_key(key)?;
        if !known.insert(key) {
            return Err(Error::invalid("keys", keys, "without a duplicate").with_key(key));
        }
    }
    Ok(())
}

/// The error that says who holds each of the locks.
fn refusal(family: &Family, seen: &[Seen], kind: ErrorKind, message: &str) -> Error {
    let holders: Vec<LockStatus> = seen.iter().flat_map(LockStatus::live).collect();
    let named: Vec<String> = holders.iter().take(NAMED).map(|h| format!("{:?} by {h}", h.key())).collect();
    let mut message = format!("{} locks, and {message}", seen.len());
    if !named.is_empty() {
        message = format!("{message}: {}", named.join(", "));
    }
    if holders.len() > NAMED {
        message = format!("{message}, and {} more", holders.len() - NAMED);
    }
    Error::new(kind, message).with_store(&family.backend.info().label).with_holders(holders)
}

impl fmt::Debug for LockAnyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAnyRequest")
            .field("keys", &self.keys)
            .field("in_order", &self.in_order)
            .finish_non_exhaustive()
    }
}
