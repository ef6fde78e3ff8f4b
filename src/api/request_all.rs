//! A request for all of several locks, and the guard that holds them.

use std::fmt;
use std::time::{Duration, Instant};

use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::request::LockRequest;
use crate::api::request_any::check_keys;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::loss::Loss;
use crate::sys::deadline::far_from;
use crate::sys::drop_bound::DropBound;
use crate::sys::thread::Thread;

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
    /// key. The lock id and the wait of the request are replaced by those of this one. Defaults to nothing.
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
    /// As [`LockRequest::lock`], for the first lock that was not obtained; `Lost` when one was lost while another was
    /// waited for, and no time was left to begin again; `InvalidInput` for no key, or a key that is given twice. What was
    /// taken is released then, and where the time is over that is done behind the call.
    pub fn lock(mut self) -> Result<LockAllGuard> {
        self.check()?;
        loop {
            let lock = |request: LockRequest| match self.until {
                Some(until) => request.wait_until(until).lock().map(Some),
                None => request.lock().map(Some),
            };
            // A wait ends with the lock or with an error.
            let Some(held) = self.each_in_turn(lock)? else { continue };
            match held.ensure_held() {
                Ok(()) => return Ok(held),
                Err(error) if self.until.is_some_and(|until| until <= Instant::now()) => return Err(error),
                Err(_) => self.give_up(held),
            }
        }
    }

    /// Tries once for each; `None` when others hold one of them, and then none is held.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`], for the first lock that was not obtained; `Lost` when one was lost before all were
    /// obtained; `InvalidInput` as for [`lock`](Self::lock), and when a wait is set.
    pub fn try_lock(mut self) -> Result<Option<LockAllGuard>> {
        if self.until.is_some() {
            let message = "a wait is set, but try_lock asks once; only lock waits for as long as that says";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        self.check()?;
        let held = self.each_in_turn(LockRequest::try_lock)?;
        held.map(|held| held.ensure_held().map(|()| held)).transpose()
    }

    /// Waits for all of them for at most `timeout`; `None` when others held one of them then.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub fn try_lock_for(self, timeout: Duration) -> Result<Option<LockAllGuard>> {
        match self.wait(timeout).lock() {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            held => held.map(Some),
        }
    }

    /// Whether every argument is within its bounds, before anything is sent; and the order.
    fn check(&mut self) -> Result<()> {
        check_keys(&self.client.family, &self.keys)?;
        self.keys.sort_unstable();
        self.lock_id.get_or_insert_with(|| uuid::Uuid::new_v4().to_string());
        self.keys.iter().try_for_each(|key| self.request(key).check())
    }

    fn request(&self, key: &str) -> LockRequest {
        let request = self.client.request(key);
        let request = match &self.each {
            Some(each) => each(request),
            None => request,
        };
        request.lock_id(self.lock_id.as_deref().unwrap_or_default())
    }

    /// Takes one after the other; gives up what it has when one is not had.
    fn each_in_turn(&self, lock: impl Fn(LockRequest) -> Result<Option<LockGuard>>) -> Result<Option<LockAllGuard>> {
        let mut held = LockAllGuard { guards: Vec::with_capacity(self.keys.len()), drop_bound: DropBound::default() };
        for key in &self.keys {
            match lock(self.request(key)) {
                Ok(Some(guard)) => held.guards.push(guard),
                refused => {
                    self.give_up(held);
                    return refused.map(|_| None);
                }
            }
        }
        Ok(Some(held))
    }

    /// Releases what was taken, on another thread: a store that is slow then must not keep the call past its end.
    fn give_up(&self, held: LockAllGuard) {
        // Without a thread it is dropped here.
        if let Ok(thread) = Thread::spawn("leasehold-release", move || drop(held)) {
            thread.join_by(self.until.unwrap_or_else(|| far_from(Instant::now(), Duration::MAX)));
        }
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
    /// same, and what could not be is tried once more, or ends with its lease.
    pub fn release(mut self) -> Result<()> {
        self.begin_drop();
        let mut outcome = Ok(());
        for guard in &self.guards {
            let released = guard.release_within(guard.drop_by().remaining());
            outcome = outcome.and(released);
        }
        outcome
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
        self.begin_drop();
    }
}

impl fmt::Debug for LockAllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllGuard").field("guards", &self.guards).finish_non_exhaustive()
    }
}
