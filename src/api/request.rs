//! A request for one lock, and the options of every request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::api::guard::{LockGuard, WithLockError};
use crate::api::origin::{check_origin, told_origin};
use crate::api::setters::setters;
use crate::engine::acquire::obtain;
use crate::engine::failures::handed_over_in_vain;
use crate::engine::family::Family;
use crate::engine::options::{AskedLease, Terms, check_at_least};
use crate::engine::spec::{Callbacks, LockSpec, Obtained, OnWait, Patience, WaitSpec};
use crate::lease::{Lease, Mode};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::check_text;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::far_from;
use crate::sys::log;
use crate::sys::observing::Contained;
use crate::sys::pause::pause;

/// The message of a refusal after one try.
const HELD: &str = "others hold it";
/// The message of an error when a wait is over.
const WAITED: &str = "others held it until the wait was over";
/// At most this many holders are named in the message of an error; [`Error::holders`] has all.
const NAMED: usize = 5;
/// Why these calls refuse a wait that was set.
pub(crate) const OWN_WAIT: &str = "try_lock_for and try_lock_until have one of their own";
pub(crate) const ACQUIRES_ONCE: &str = "acquire asks once";
/// Why `acquire` refuses an option that only a guard carries out.
pub(crate) const NO_GUARD: &str = "acquire gives a lock without a guard";

/// What happens to a live exclusive holder with the same owner label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameOwner {
    /// It keeps the lock, like any other holder.
    #[default]
    Respect,
    /// That holder is replaced at once. It learns of that at its next heartbeat; until then only the fencing token
    /// protects the resource. Needs an explicit owner, since threads and containers can share the default one. A call
    /// that is already waiting does not replace a guard that its own client has obtained meanwhile (but a try of
    /// the call that is under way by then does); a new call does. A lock as data, without a guard, is replaced.
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
    /// `TimedOut`, with the holders, when [`wait`](LockRequest::wait) is over, or `Store` instead if the store was
    /// failing then; `TimedOut` also when the end that [`lease_until`](LockRequest::lease_until) sets came first;
    /// `Cancelled`; `Closed`; `AlreadyHeld` when this client holds the key with the same lock id; `InvalidInput` for an
    /// argument out of bounds; `Lost` when the lock was taken away before its lease of more than a minute was set;
    /// otherwise the store's error.
    pub fn lock(self) -> Result<LockGuard> {
        let patience = self.spec.patience();
        self.guard_or(patience, None, ErrorKind::TimedOut, WAITED)
    }

    /// Runs `work` while the lock is held, as [`LockClient::with_lock`](crate::LockClient::with_lock) does, with the
    /// options of this request: for example with a limit to its [`wait`](LockRequest::wait), or with a token that
    /// [ends](LockRequest::cancel) the wait.
    ///
    /// # Errors
    /// As that function.
    pub fn with_lock<T>(self, work: impl FnOnce(&LockGuard) -> T) -> Result<T, WithLockError<T>> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        let guard = self.lock().map_err(|error| WithLockError::new(error, None))?;
        let value = work(&guard);
        if let Err(forked) = family.check_process() {
            return Err(WithLockError::new(forked, Some(value)));
        }
        // A close has released the lock, and then `release` succeeds even if a rival was granted the lock since.
        if family.closing().is_cancelled()
            && let Err(error) = guard.ensure_held()
        {
            return Err(WithLockError::new(error, Some(value)));
        }
        match guard.release() {
            Ok(()) => Ok(value),
            Err(failed) if failed.error().kind() == ErrorKind::Lost => {
                Err(WithLockError::new(failed.error().clone(), Some(value)))
            }
            // The lock was held to the end of the work, as the caller asked. Dropping the guard tries the release
            // again.
            Err(failed) => {
                let error = Error::from(failed);
                log::warn!(target: "leasehold::client", key:?; "lock {key:?} could not be released at once: {}", error.with_causes());
                Ok(value)
            }
        }
    }

    /// Tries once; `None` when others hold the lock, or other calls of this client wait for it already.
    ///
    /// # Errors
    /// As [`lock`](LockRequest::lock), but `TimedOut` only when the store answered too late for the lock to be held, or
    /// the end that [`lease_until`](LockRequest::lease_until) sets came first; also `InvalidInput` when a
    /// [`wait`](LockRequest::wait) is set.
    pub fn try_lock(mut self) -> Result<Option<LockGuard>> {
        self.spec.refuses.wait = Some("try_lock asks once");
        Ok(self.guard(Patience::Once, None)?.granted())
    }

    /// A copy of the request, without its callbacks.
    #[cfg(feature = "capi")]
    pub(crate) fn again(&self) -> Self {
        LockRequest { spec: self.spec.again() }
    }

    /// Removes the wait, for a call that tries once: C programs use the same request for several calls.
    #[cfg(feature = "capi")]
    pub(crate) fn without_wait(mut self) -> Self {
        self.spec.wait = None;
        self
    }

    /// Removes the wait, the callbacks, `max_hold` and `warn_before`, for a call that gives no guard: C programs use
    /// the same request for several calls.
    #[cfg(feature = "capi")]
    pub(crate) fn without_guard(mut self) -> Self {
        self.spec.callbacks = Mutex::default();
        self.without_wait()
    }

    /// Tries once, and returns the lock as data: there is no guard and no thread, and nothing renews or releases it.
    ///
    /// # Errors
    /// `Held`, with the holders, when others hold it; `InvalidInput` also when an option is set that only a guard
    /// carries out, like [`max_hold`](LockRequest::max_hold); otherwise as [`try_lock`](LockRequest::try_lock).
    pub fn acquire(mut self) -> Result<Lock> {
        self.spec.refuses.wait = Some(ACQUIRES_ONCE);
        self.spec.refuses.guard = Some(NO_GUARD);
        let (family, refusal) = (self.spec.family.clone(), self.refusal());
        let _call = family.obtaining()?;
        let (mut spec, _) = self.checked()?;
        (spec.stands_back, spec.gets_guard) = (false, false);
        let obtained = obtain(&family, spec, Patience::Once)?.or_refusal();
        family.as_data(obtained.map_err(|holders| refusal(ErrorKind::Held, HELD, holders))?)
    }

    /// Continues to hold a lock that was handed over as data, without a gap. Tries once.
    ///
    /// Mode and lock id are those of the lock. So are its comment and an endless lease, unless the request sets others.
    /// If the lock was granted under another name of the store, the store is first asked whether it has the lock, for
    /// at most another request timeout.
    ///
    /// # Errors
    /// `Lost` when the lock is no longer held, or was already adopted; `InvalidInput` when it is a lock of another key,
    /// or of another store; `Ambiguous` when no answer came in time, or when the lock was taken over and could not be
    /// held for its whole lease: then it was given up, and a second adopt works if the first never reached the store,
    /// and fails with `Lost` otherwise; `TimedOut` when the answer came too late for the lock to be held; otherwise as
    /// [`try_lock`](LockRequest::try_lock). After `Cancelled` and `Closed`, too, the lock may no longer be held.
    pub fn adopt(mut self, lock: Lock) -> Result<LockGuard> {
        self.spec.refuses.wait = Some("adopt asks once");
        let (family, spec) = (&self.spec.family, &mut self.spec.lock);
        family.check_open()?;
        if lock.key != spec.key {
            let right = format!("the key of the lock to be adopted, {:?}", lock.key);
            return Err(family.in_context(Error::invalid("key", &spec.key, &right).with_key(&spec.key)));
        }
        check_origin(&self.spec.family, &lock, &self.spec.family.request_deadline())?;
        pause!("adopt.checked");
        let lost = format!(
            "this grant of it is no longer held, was adopted already, or was purged after its end{}",
            told_origin(&self.spec.family, &lock)
        );
        spec.mode = lock.mode;
        spec.max_holders = None;
        spec.lock_id = Some(lock.lock_id);
        spec.labels.comment = spec.labels.comment.take().or(lock.labels.comment);
        spec.instead_of = Some((lock.grant, lock.token));
        if lock.leased_until.is_none() {
            self.spec.lease.get_or_insert(AskedLease::Forever);
        }
        self.guard_or(Patience::Once, None, ErrorKind::Lost, &lost)
    }

    /// Waits for as long as `patience` says; the error inside names those who held the lock all that time. It is of
    /// kind `TimedOut`, also after one try.
    pub(crate) fn guard_or_refusal(self, patience: Patience) -> Result<Obtained<LockGuard, Error>> {
        let refusal = self.refusal();
        let message = if matches!(patience, Patience::Once) { HELD } else { WAITED };
        Ok(match self.guard(patience, None)? {
            Obtained::Granted(guard) => Obtained::Granted(guard),
            Obtained::Refused(holders) => Obtained::Refused(refusal(ErrorKind::TimedOut, message, holders)),
        })
    }

    /// Makes the error that says who holds the lock, as far as that was seen.
    fn refusal(&self) -> impl Fn(ErrorKind, &str, Vec<LockStatus>) -> Error + use<> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        move |kind, message, holders| {
            of_holders(&family, kind, message.to_owned(), holders, LockStatus::to_string).with_key(&key)
        }
    }

    fn guard(self, patience: Patience, progress: Option<OnWait<'_>>) -> Result<Obtained<LockGuard>> {
        let family = self.spec.family.clone();
        let _call = family.obtaining()?;
        let (spec, callbacks) = self.checked()?;
        let spec = WaitSpec { on_wait: progress.or(spec.on_wait), ..spec };
        let terms = spec.lock.terms;
        let by = patience.deadline(family.options.request_timeout);
        let (key, is_transfer) = (spec.lock.key.clone(), spec.lock.instead_of.is_some());
        let guarded = obtain(&family, spec, patience)?;
        let guarded = guarded.try_map(|granted| LockGuard::over(granted, &family, terms, callbacks, &by));
        guarded.map_err(|error| match is_transfer && error.is_retryable() {
            true => family.in_context(handed_over_in_vain(error).with_key(&key)),
            false => error,
        })
    }

    /// Whether every argument is within its bounds.
    pub(crate) fn check(self) -> Result<()> {
        self.checked().map(drop)
    }

    fn checked(self) -> Result<(WaitSpec<'static>, Callbacks)> {
        let (family, key) = (self.spec.family.clone(), self.spec.lock.key.clone());
        // An error about a key that is out of bounds does not repeat the key at the head of its message.
        let checked = family.check_key(&key).and_then(|()| self.spec.checked().map_err(|error| error.with_key(&key)));
        checked.map_err(|error| family.in_context(error))
    }
}

/// The options of a request, whether for one lock or for several.
pub(crate) struct RequestSpec {
    pub(crate) family: Arc<Family>,
    pub(crate) lock: LockSpec,
    pub(crate) lease: Option<AskedLease>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) wait: Option<AskedWait>,
    pub(crate) refuses: Refuses,
    pub(crate) cancel: Option<CancelToken>,
    pub(crate) on_wait_every: Option<Duration>,
    // No call waits for these mutexes. They make the request `Sync` without requiring that of the closures, which must
    // only be `Send`: the request may be sent to the thread that waits.
    pub(crate) on_wait: Mutex<Option<SentOnWait>>,
    pub(crate) callbacks: Mutex<Callbacks>,
}

/// Which options the call that ends the request refuses, because they would have no effect there; and why.
#[derive(Clone, Copy, Default)]
pub(crate) struct Refuses {
    pub(crate) wait: Option<&'static str>,
    /// The options that only a guard carries out.
    pub(crate) guard: Option<&'static str>,
}

/// An [`OnWait`] that can go to the thread that waits.
type SentOnWait = Box<dyn FnMut(&Waiting) + Send>;

/// How the end of a wait was given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AskedWait {
    For(Duration),
    Until(Instant),
}

impl AskedWait {
    /// The patience of a wait that begins now; `None` waits without limit.
    pub(crate) fn patience(wait: Option<AskedWait>) -> Patience {
        match wait {
            None => Patience::Endless,
            // Not `Patience::until`: if this thread is stopped here until the wait is over, that would give one try,
            // which may take a whole request timeout, longer than the wait.
            Some(AskedWait::For(wait)) if !wait.is_zero() => Patience::Until(far_from(Instant::now(), wait)),
            Some(AskedWait::For(_)) => Patience::Once,
            Some(AskedWait::Until(until)) => Patience::until(until),
        }
    }
}

impl RequestSpec {
    pub(crate) fn new(family: Arc<Family>, key: &str) -> Self {
        // `check` sets the real terms.
        let lock = LockSpec::exclusive(key, family.labels(None), Terms::by_default(family.options.lease));
        let (on_wait, callbacks) = (Mutex::default(), Mutex::default());
        let (lease, at_least, wait, cancel, on_wait_every) = (None, None, None, None, None);
        let refuses = Refuses::default();
        RequestSpec { family, lock, lease, at_least, wait, refuses, cancel, on_wait_every, on_wait, callbacks }
    }

    /// A copy without the closures.
    #[cfg(feature = "capi")]
    fn again(&self) -> Self {
        let Callbacks { max_hold, warn_before, .. } = *self.callbacks.lock();
        RequestSpec {
            family: self.family.clone(),
            lock: self.lock.clone(),
            lease: self.lease,
            at_least: self.at_least,
            wait: self.wait,
            refuses: self.refuses,
            cancel: self.cancel.clone(),
            on_wait_every: self.on_wait_every,
            on_wait: Mutex::default(),
            callbacks: Mutex::new(Callbacks { max_hold, warn_before, ..Callbacks::default() }),
        }
    }

    /// How long `lock` waits.
    pub(crate) fn patience(&self) -> Patience {
        AskedWait::patience(self.wait)
    }

    /// Checks everything but the key, and returns what to ask for.
    pub(crate) fn checked(mut self) -> Result<(WaitSpec<'static>, Callbacks)> {
        self.lock.terms = self.check()?;
        // One try is in vain while other calls of this client wait for the lock. A transfer and a replacement are for
        // the holder itself, whoever waits.
        let stands_back = self.lock.instead_of.is_none() && !self.lock.replace_same_owner;
        let on_wait = self.on_wait.into_inner().map(|on_wait| on_wait as OnWait<'_>);
        let (cancel, on_wait_every) = (self.cancel, self.on_wait_every);
        let spec = WaitSpec { lock: self.lock, stands_back, gets_guard: true, cancel, on_wait, on_wait_every };
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
        if let Some(why) = self.refuses.wait.filter(|_| self.wait.is_some()) {
            let message = format!("a wait is set, but {why}; only lock waits for as long as that says");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let callbacks = self.callbacks.get_mut();
        let of_callbacks = [("max_hold", callbacks.max_hold), ("warn_before", callbacks.warn_before)];
        for (field, d) in of_callbacks.into_iter().chain([("on_wait_every", self.on_wait_every)]) {
            if d.is_some_and(|d| d.is_zero()) {
                return Err(Error::invalid(field, Duration::ZERO, "above zero"));
            }
        }
        if callbacks.on_warning.is_some() && callbacks.warn_before.is_none() {
            let message = "on_warning is set, but warn_before is not, which says when it is called";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let of_guards = [
            ("hold_at_least", self.at_least.is_some()),
            ("max_hold", callbacks.max_hold.is_some()),
            ("warn_before", callbacks.warn_before.is_some()),
            ("on_loss", callbacks.on_loss.is_some()),
        ];
        if let Some(why) = self.refuses.guard
            && let Some((what, _)) = of_guards.into_iter().find(|(_, is_set)| *is_set)
        {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{what} is set, but {why}")));
        }
        let (lease, ends_at) = match self.lease {
            None => (None, None),
            Some(asked) => {
                let (lease, ends_at) = asked.counted_from(self.family.clock.now())?;
                (Some(lease), ends_at)
            }
        };
        let info = self.family.backend.info();
        info.bounds.limits.map_or(Ok(()), |limits| limits.check_mode(lock.mode))?;
        let mut terms = self.family.options.terms(lease, ends_at)?;
        if let Some(least) = self.at_least {
            check_at_least(least, &terms, info.bounds.limits)?;
            terms.at_least = least;
        }
        if let Some(d) = callbacks.warn_before.filter(|d| terms.renewal_gives().is_some_and(|held| *d >= held)) {
            let right = format!(
                "below {:?}, for which a renewal holds (the lease less the margin)",
                terms.renewal_gives().unwrap_or_default()
            );
            return Err(Error::invalid("warn_before", d, &right));
        }
        let interval = if terms.lease == Lease::Forever { Duration::MAX } else { terms.heartbeat };
        if let Some((n, most)) = lock.max_holders.zip(info.most_shared.map(|most| most(interval)))
            && n > most.holders
        {
            let right =
                format!("at most {} on this store with a heartbeat in {interval:?}: {}", most.holders, most.why);
            return Err(Error::invalid("max_holders", n, &right));
        }
        Ok(terms)
    }
}

/// The error that carries the holders, names some of them, and says so when this client is one of them.
pub(crate) fn of_holders(
    family: &Family,
    kind: ErrorKind,
    mut message: String,
    holders: Vec<LockStatus>,
    name: impl Fn(&LockStatus) -> String,
) -> Error {
    let named: Vec<String> = holders.iter().take(NAMED).map(name).collect();
    if !named.is_empty() {
        let joint = if kind == ErrorKind::Lost { "; now it is held by" } else { ":" };
        message = format!("{message}{joint} {}", named.join(", "));
    }
    if holders.len() > NAMED {
        message = format!("{message}, and {} more", holders.len() - NAMED);
    }
    let is_here = holders.iter().any(|holder| family.holds_here(holder));
    // A lost lock stays lost, whoever releases it.
    if is_here && kind != ErrorKind::Lost {
        message.push_str("; a guard of this very client is among them, and must be released first");
    }
    family.held_by(family.in_context(Error::new(kind, message)), holders)
}

setters!(LockRequest);

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = &self.spec.lock;
        f.debug_struct("LockRequest").field("key", &lock.key).field("mode", &lock.mode).finish_non_exhaustive()
    }
}
