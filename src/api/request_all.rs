//! A request for all of several locks, and the guard that holds them.

use std::fmt;
use std::time::{Duration, Instant};

use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::request::LockRequest;
use crate::api::request_any::check_keys;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::loss::{Loss, LossReason};
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::drop_bound::DropBound;

type Each<'a> = Box<dyn Fn(LockRequest) -> LockRequest + Send + Sync + 'a>;

/// A request for all of several locks, made by [`LockClient::request_all`].
///
/// The locks are taken one after the other in the order of their keys, whatever order they are given in, so two requests
/// with crossed orders never wait for each other. What was taken already is renewed meanwhile, and keeps others
/// waiting; when one is not obtained, all are released.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let guard = client
///     .request_all(["account/7", "account/3"])
///     .each(|request| request.comment("transfer").lease(Duration::from_secs(30)))
///     .wait(Duration::from_secs(5))
///     .lock()?;
/// assert_eq!(guard.guards()[0].key(), "account/3");
/// assert!(guard.is_held());
/// assert_eq!(client.unlock(guard.lock_id())?.len(), 2); // they are one group
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a request does nothing until it is ended by lock() or try_lock()"]
pub struct LockAllRequest<'a> {
    client: &'a LockClient,
    keys: Vec<String>,
    each: Option<Each<'a>>,
    lock_id: Option<String>,
    until: Option<Instant>,
}

impl<'a> LockAllRequest<'a> {
    pub(crate) fn new(client: &'a LockClient, keys: Vec<String>) -> Self {
        LockAllRequest { client, keys, each: None, lock_id: None, until: None }
    }

    /// Sets what each of the locks is asked for with: owner, comment, lease, [`shared`](LockRequest::shared),
    /// [`cancel`](LockRequest::cancel), [`on_loss`](LockRequest::on_loss) and so on. May be called more than once for each
    /// key. The wait and the lock id belong to all of them: set those here, and not in the closure. Defaults to nothing.
    pub fn each(mut self, each: impl Fn(LockRequest) -> LockRequest + Send + Sync + 'a) -> Self {
        self.each = Some(Box::new(each));
        self
    }

    /// The group that all of them belong to, for [`renew`](LockClient::renew) and [`unlock`](LockClient::unlock).
    /// Defaults to a random id.
    pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
        self.lock_id = Some(lock_id.into());
        self
    }

    /// How long [`lock`](Self::lock) waits for all of them together; zero tries once. Defaults to no limit.
    pub fn wait(self, wait: Duration) -> Self {
        self.wait_until(far_from(Instant::now(), wait))
    }

    /// The time until which [`lock`](Self::lock) waits. Defaults to no limit.
    pub fn wait_until(mut self, until: Instant) -> Self {
        self.until = Some(until);
        self
    }

    /// Waits for all of the locks and holds them.
    ///
    /// # Errors
    /// As [`LockRequest::lock`], for the first lock that was not obtained; `TimedOut` also when the time was over before all
    /// were asked for; `Lost` when one was lost while others were waited for, and no time was left to begin again, or by
    /// [`max_hold`](LockRequest::max_hold); `InvalidInput` for no key, or a key that is given twice. What was taken is then
    /// released in the background.
    pub fn lock(mut self) -> Result<LockAllGuard> {
        self.check()?;
        let pausing = Deadline::after(Duration::MAX).or_cancel(self.client.family.closing());
        loop {
            let held = self.each_in_turn(|request| match self.until {
                Some(until) => request.wait_until(until).lock().map(Some),
                None => request.lock().map(Some),
            })?;
            // A wait ends with the lock or with an error.
            let Some(held) = held else { continue };
            let Err(error) = held.ensure_held() else { return Ok(held) };
            let by_max_hold = held.lost().is_some_and(|loss| matches!(loss.reason, LossReason::MaxHold));
            held.abandon();
            let left = self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            // The store was away for longer than the lease bridges: it is not asked again at once.
            if by_max_hold || !pausing.wait_for(left.min(*self.client.family.options.poll.start())) || self.is_over() {
                return Err(error);
            }
        }
    }

    /// Tries once for each; `None` when others hold one of them. What was taken before is released first, which takes at
    /// most the client's `drop_timeout`.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`], for the first lock that was not obtained; `Lost` when one was lost before all were
    /// obtained; `InvalidInput` as for [`lock`](Self::lock), and when a wait is set.
    pub fn try_lock(mut self) -> Result<Option<LockAllGuard>> {
        self.check_no_wait("try_lock asks once")?;
        self.check()?;
        let Some(held) = self.each_in_turn(LockRequest::try_lock)? else { return Ok(None) };
        held.ensure_held().map(|()| Some(held))
    }

    /// Waits for all of them for at most `timeout`; `None` when others held one of them all that time.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub fn try_lock_for(self, timeout: Duration) -> Result<Option<LockAllGuard>> {
        self.check_no_wait("try_lock_for has one of its own")?;
        match self.wait(timeout).lock() {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            held => held.map(Some),
        }
    }

    fn check_no_wait(&self, why: &str) -> Result<()> {
        match self.until {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::InvalidInput, format!("a wait is set, but {why}"))),
        }
    }

    /// Whether every argument is within its bounds, before anything is sent; and the order.
    fn check(&mut self) -> Result<()> {
        check_keys(&self.client.family, &self.keys)?;
        self.keys.sort_unstable();
        self.lock_id.get_or_insert_with(|| uuid::Uuid::new_v4().to_string());
        self.keys.iter().try_for_each(|key| {
            let request = self.request(key);
            if request.spec.wait.is_some() {
                let message = "a wait is set for each lock, but is that of all of them: set it on the request_all";
                return Err(Error::new(ErrorKind::InvalidInput, message).with_key(key));
            }
            if request.spec.at_least.is_some() {
                let message = "hold_at_least is set for each lock, but what is had is freed where another one is not:                                call hold_at_least of the guards once all are held";
                return Err(Error::new(ErrorKind::InvalidInput, message).with_key(key));
            }
            request.check()
        })
    }

    fn request(&self, key: &str) -> LockRequest {
        let request = self.client.request(key);
        let request = match &self.each {
            Some(each) => each(request),
            None => request,
        };
        request.lock_id(self.lock_id.as_deref().unwrap_or_default())
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Takes one after the other; gives up what it has when one is not had.
    fn each_in_turn(&self, lock: impl Fn(LockRequest) -> Result<Option<LockGuard>>) -> Result<Option<LockAllGuard>> {
        let mut held = LockAllGuard { guards: Vec::with_capacity(self.keys.len()), drop_bound: DropBound::default() };
        let tries_once = self.is_over();
        for key in &self.keys {
            let locked = if tries_once || !self.is_over() {
                lock(self.request(key))
            } else {
                let message = "the time was over before it was asked for, as one of several";
                Err(self.client.error(ErrorKind::TimedOut, key, message))
            };
            match locked {
                Ok(Some(guard)) => held.guards.push(guard),
                // Whoever tries again at once must not meet what is still held by this try.
                Ok(None) => {
                    let _ = held.release_all();
                    return Ok(None);
                }
                Err(error) if tries_once && error.kind() == ErrorKind::TimedOut => {
                    let _ = held.release_all();
                    return Err(error);
                }
                Err(error) => {
                    held.abandon();
                    return Err(error);
                }
            }
        }
        Ok(Some(held))
    }
}

impl fmt::Debug for LockAllRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllRequest").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Several locks that are held together. Each is renewed by its own thread; dropping the value releases all of them,
/// within the client's `drop_timeout` together.
#[must_use = "dropping the guard releases the locks at once"]
#[clippy::has_significant_drop]
pub struct LockAllGuard {
    /// In the order of their keys; never empty.
    guards: Vec<LockGuard>,
    drop_bound: DropBound,
}

impl LockAllGuard {
    /// Each lock, in the order of their keys: with its fencing token, for what that key protects.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// The group that they belong to.
    pub fn lock_id(&self) -> &str {
        self.guards.first().map_or("", LockGuard::lock_id)
    }

    /// Whether all of them are held. No I/O and no waiting, as [`LockGuard::is_held`].
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// How long all of them stay held if no further heartbeat succeeds; zero when one is not held.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::remaining).min().unwrap_or_default()
    }

    /// [`is_held`](Self::is_held), for use with `?`.
    ///
    /// # Errors
    /// As [`LockGuard::ensure_held`], for the first one that is not held.
    pub fn ensure_held(&self) -> Result<()> {
        self.guards.iter().try_for_each(LockGuard::ensure_held)
    }

    /// The first loss, if one of them was lost. The others stay held until the guard is dropped.
    pub fn lost(&self) -> Option<Loss> {
        self.guards.iter().find_map(|guard| guard.loss().get())
    }

    /// Releases all of them, within the client's `drop_timeout` together.
    ///
    /// # Errors
    /// That of the first release that failed; `Lost` when that lock was no longer held. All others are released all the
    /// same; what could not be is given up in the background.
    pub fn release(mut self) -> Result<()> {
        self.release_all()
    }

    /// Within one bound; what is not released by then is given up in the background.
    fn release_all(&mut self) -> Result<()> {
        self.begin_drop();
        let mut outcome = Ok(());
        for guard in &self.guards {
            let left = guard.drop_by().remaining();
            let released = match left {
                Duration::ZERO => Err(guard.too_late()),
                left => guard.release_within(left),
            };
            if released.is_err() {
                guard.abandon();
            }
            outcome = outcome.and(released);
        }
        outcome
    }

    /// Ends at once; what is held is given up in the background. No call outlives its end by what it gives up.
    fn abandon(&self) {
        self.guards.iter().for_each(LockGuard::abandon);
    }

    /// What follows on this thread has one bound.
    fn begin_drop(&mut self) {
        if let Some(guard) = self.guards.first() {
            self.drop_bound.begin(guard.drop_by());
        }
    }
}

impl Drop for LockAllGuard {
    fn drop(&mut self) {
        // In a forked child there is nothing to release, and no guard does.
        let _ = self.release_all();
    }
}

impl fmt::Debug for LockAllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllGuard").field("guards", &self.guards).finish_non_exhaustive()
    }
}
