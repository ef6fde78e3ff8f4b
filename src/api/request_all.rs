//! A request for all of several locks, and the guard that holds them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::request::{AskedWait, LockRequest};
use crate::api::request_any::check_keys;
use crate::engine::options::AskedLease;
use crate::engine::release_all::release_all;
use crate::engine::spec::{Called, Obtained, Patience};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::loss::{Loss, LossReason};
use crate::sys::aside::TURN;
use crate::sys::caught::caught;
use crate::sys::deadline::Deadline;
use crate::sys::drop_bound::DropBound;
use crate::sys::observing::Contained;
use crate::sys::random;

/// The longest pause before a request begins again after one of its locks was lost. (The client's poll may be hours.)
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

type Each<'a> = Box<dyn Fn(LockRequest) -> LockRequest + Send + Sync + 'a>;

/// A request for all of several locks, made by [`LockClient::request_all`].
///
/// The locks are taken one after the other in the order of their keys, whatever order they are given in, so two
/// requests with crossed orders never wait for each other. Locks that were taken already are renewed meanwhile, and
/// keep others waiting; when one lock is not obtained, all are released.
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
    wait: Option<AskedWait>,
    max_hold: Option<Duration>,
}

impl<'a> LockAllRequest<'a> {
    pub(crate) fn new(client: &'a LockClient, keys: Vec<String>) -> Self {
        LockAllRequest { client, keys, each: None, lock_id: None, wait: None, max_hold: None }
    }

    /// Sets the options of each lock's request: owner, comment, lease, [`shared`](LockRequest::shared),
    /// [`cancel`](LockRequest::cancel), [`on_loss`](LockRequest::on_loss) and so on. The closure may be called more
    /// than once for each key. The wait and the lock id belong to all of the locks: set those here, and not in the
    /// closure, which may not set [`hold_at_least`](LockRequest::hold_at_least) either. A callback like
    /// [`on_loss`](LockRequest::on_loss) is also called for a lock that is lost while others are still waited for,
    /// before this request has returned a guard. With [`SameOwner::Replace`](crate::SameOwner::Replace) a lock may be
    /// taken from its holder, and be released again because another one is not obtained. Defaults to nothing.
    pub fn each(mut self, each: impl Fn(LockRequest) -> LockRequest + Send + Sync + 'a) -> Self {
        let each = Contained::new(each);
        self.each = Some(Box::new(move |request| match &each.0 {
            Some(each) => each(request),
            None => request,
        }));
        self
    }

    /// The group that all of them belong to, for [`renew`](LockClient::renew) and [`unlock`](LockClient::unlock). Each
    /// key has at most one holder with this id: see [`LockRequest::lock_id`]. Defaults to a random id.
    pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
        self.lock_id = Some(lock_id.into());
        self
    }

    /// How long [`lock`](Self::lock) waits for all of them together, counted from its call; zero tries once. Defaults
    /// to no limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(AskedWait::For(wait));
        self
    }

    /// The time until which [`lock`](Self::lock) waits; one that has passed tries once. Defaults to no limit.
    pub fn wait_until(mut self, until: Instant) -> Self {
        self.wait = Some(AskedWait::Until(until));
        self
    }

    /// Declares the locks lost after this time, counted from when all of them are held, in case the worker hangs while its
    /// process lives. ([`LockRequest::max_hold`] in [`each`](Self::each) counts from the grant of each lock, so also while
    /// others are still waited for.) Defaults to no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Waits for all of the locks and holds them.
    ///
    /// # Errors
    /// As [`LockRequest::lock`], for the first lock that was not obtained; `TimedOut` also when the time was over, or
    /// the end that [`lease_until`](LockRequest::lease_until) sets too near, before all were asked for; `Lost` when one was lost while others were waited for, and either no time was left to
    /// begin again or [`LockRequest::max_hold`] ended it; `InvalidInput` for no key, a key that is given twice, a wait
    /// or lock id that is set in [`each`](Self::each), or if `each` returns a request for another lock. Locks that were
    /// taken are then released in the background: a program that ends at once by `process::exit` must call
    /// [`close`](LockClient::close) first.
    pub fn lock(self) -> Result<LockAllGuard> {
        self.obtain()?.or_refusal()
    }

    /// Tries once for each; `None` when others hold one of them: what was taken before is released first, which takes
    /// at most the client's `drop_timeout`. After an error it is released in the background, as after an error of
    /// [`lock`](Self::lock). Each key has one request timeout.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`], for the first lock that was not obtained; `Lost` when one was lost before all were
    /// obtained; `InvalidInput` as for [`lock`](Self::lock), and when a wait is set.
    pub fn try_lock(self) -> Result<Option<LockAllGuard>> {
        self.check_no_wait("try_lock asks once")?;
        self.wait(Duration::ZERO).obtain().map(Obtained::granted)
    }

    /// [`try_lock`](Self::try_lock), but with the error that names the holders instead of `None`.
    #[cfg(feature = "capi")]
    pub(crate) fn lock_once(self) -> Result<Result<LockAllGuard, Error>> {
        self.wait(Duration::ZERO).obtain().map(Obtained::or_refusal)
    }

    /// Waits for all of them for at most `timeout`; `None` when others held one of them all that time. What was taken
    /// before may still be held then: it is released in the background, as after an error of [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `TimedOut` only when the time was over, or the end that
    /// [`lease_until`](LockRequest::lease_until) sets too near, before all were asked for. `InvalidInput` also when a wait
    /// is set.
    pub fn try_lock_for(self, timeout: Duration) -> Result<Option<LockAllGuard>> {
        self.check_no_wait("try_lock_for has one of its own")?;
        self.wait(timeout).obtain().map(Obtained::granted)
    }

    /// The error inside names those who held one of them all that time.
    fn obtain(mut self) -> Result<Obtained<LockAllGuard, Error>> {
        let family = self.client.family.clone();
        self.check().map_err(|error| family.in_context(error))?;
        let patience = AskedWait::patience(self.wait);
        let pausing = self.pausing();
        let called = Called::now(&family.clock);
        loop {
            let held = match self.each_in_turn(patience, called)? {
                Obtained::Granted(held) => held,
                refused @ Obtained::Refused(_) => return Ok(refused),
            };
            let Err(error) = held.ensure_held() else {
                self.max_hold.into_iter().for_each(|d| held.guards.iter().for_each(|guard| guard.end_in(d)));
                return Ok(Obtained::Granted(held));
            };
            let by_max_hold = held.lost().is_some_and(|loss| matches!(loss.reason, LossReason::MaxHold));
            held.abandon();
            let pause = (*self.client.family.options.poll.start()).min(LONGEST_PAUSE);
            let left = match patience {
                Patience::Once => Duration::ZERO,
                Patience::Until(until) => until.saturating_duration_since(Instant::now()),
                Patience::Endless => Duration::MAX,
            };
            if by_max_hold || left <= pause {
                // A close may have released them.
                return Err(family.or_closed(error));
            }
            // The store was away for longer than the lease bridges, so it is not asked again at once. If a close or a
            // cancel token ends the pause early, the next request returns the error.
            pausing.wait_for(pause);
        }
    }

    /// A pause that `close` ends, and each cancel token of one of the requests.
    fn pausing(&self) -> Deadline {
        let all = Deadline::after(Duration::MAX).or_cancel(self.client.family.closing());
        let cancels = self.keys.iter().filter_map(|key| self.without_group(key).spec.cancel);
        cancels.fold(all, |all, cancel| all.or_cancel(&cancel))
    }

    fn check_no_wait(&self, why: &str) -> Result<()> {
        match self.wait {
            None => Ok(()),
            Some(_) => {
                let error = Error::new(ErrorKind::InvalidInput, format!("a wait is set, but {why}"));
                Err(self.client.family.in_context(error))
            }
        }
    }

    /// Checks that every argument is within its bounds, before anything is sent; and sorts the keys.
    fn check(&mut self) -> Result<()> {
        check_keys(&self.client.family, &self.keys)?;
        if self.max_hold.is_some_and(|d| d.is_zero()) {
            return Err(Error::invalid("max_hold", Duration::ZERO, "above zero"));
        }
        self.keys.sort_unstable();
        self.keys.iter().try_for_each(|key| {
            let request = self.without_group(key);
            let of_all = [("wait", request.spec.wait.is_some()), ("lock_id", request.spec.lock.lock_id.is_some())];
            if let Some((what, _)) = of_all.into_iter().find(|(_, is_set)| *is_set) {
                let message =
                    format!("{what} is set for each lock, but is that of all of them: set it on the request_all");
                return Err(Error::new(ErrorKind::InvalidInput, message).with_key(key));
            }
            if request.spec.at_least.is_some() {
                let message = "hold_at_least is set for each lock, but what is had is freed where another one is not: call \
                               hold_at_least of the guards once all are held";
                return Err(Error::new(ErrorKind::InvalidInput, message).with_key(key));
            }
            self.request(key, self.lock_id.as_deref().unwrap_or("random")).check()?;
            let (asked, is_ours) = (&request.spec.lock.key, Arc::ptr_eq(&request.spec.family, &self.client.family));
            if asked != key || !is_ours {
                let of = if is_ours { "" } else { " of another client" };
                let message = format!("each made a request for {asked:?}{of} of it, but must give back the one it got");
                return Err(Error::new(ErrorKind::InvalidInput, message).with_key(key));
            }
            Ok(())
        })
    }

    fn without_group(&self, key: &str) -> LockRequest {
        let request = self.client.request(key);
        self.each.iter().fold(request, |request, each| each(request))
    }

    fn request(&self, key: &str, lock_id: &str) -> LockRequest {
        self.without_group(key).lock_id(lock_id)
    }

    /// Takes one lock after the other; gives up those that it has when one is not obtained.
    fn each_in_turn(&self, patience: Patience, called: Called) -> Result<Obtained<LockAllGuard, Error>> {
        // Each round has an id of its own, so that whoever frees what is left of an earlier round does not free this
        // one.
        let lock_id = self.lock_id.clone().unwrap_or_else(|| random::uuid().to_string());
        let mut held = LockAllGuard { guards: Vec::with_capacity(self.keys.len()), drop_bound: DropBound::default() };
        for key in &self.keys {
            let is_over = matches!(patience, Patience::Until(until) if until <= Instant::now());
            let timed_out = |message| self.client.error(ErrorKind::TimedOut, key, message);
            let locked = if is_over {
                Err(timed_out("the time was over before it was asked for, as one of several"))
            } else {
                let mut request = self.request(key, &lock_id);
                // The wait is counted from then. And a guard that this client got since then is not replaced, even if
                // this is not the first round.
                request.spec.lock.called = Some(called);
                let has_end = matches!(request.spec.lease, Some(AskedLease::Until(_)));
                request.guard_or_refusal(patience).map_err(|error| match error.kind() {
                    // Everything was checked when the call began, but since then the end has come nearer.
                    ErrorKind::InvalidInput if has_end => {
                        timed_out("the end of its lease was too near when it was asked for, as one of several")
                            .caused_by(error)
                    }
                    _ => error,
                })
            };
            match locked {
                Ok(Obtained::Granted(guard)) => held.guards.push(guard),
                Ok(Obtained::Refused(refused)) => {
                    match patience {
                        // A caller that tries again at once must not be refused because of what this try still holds.
                        Patience::Once => drop(held.release_all()),
                        Patience::Until(_) | Patience::Endless => held.abandon(),
                    }
                    return Ok(Obtained::Refused(refused));
                }
                Err(error) => {
                    held.abandon();
                    return Err(error);
                }
            }
        }
        Ok(Obtained::Granted(held))
    }
}

impl fmt::Debug for LockAllRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllRequest").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Several locks that are held together. Each is renewed by its own thread; dropping the value releases all of them at
/// the same time, within one `drop_timeout` of the client.
#[must_use = "dropping the guard releases the locks at once"]
#[clippy::has_significant_drop]
pub struct LockAllGuard {
    /// In the order of their keys; never empty.
    guards: Vec<LockGuard>,
    drop_bound: DropBound,
}

impl LockAllGuard {
    /// Each lock, in the order of their keys. Each has its own fencing token, for what its key protects.
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

    /// How long all of them stay held if no further heartbeat succeeds; zero when one is not held, `Duration::MAX` when no
    /// lease has an end.
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
        self.guards.iter().find_map(|guard| {
            // The watcher may not have looked yet.
            guard.hold.expire_when_due();
            guard.loss().get()
        })
    }

    /// Releases all of them at the same time, within one `drop_timeout` of the client. It also succeeds after a close of
    /// the client, which has released them.
    ///
    /// # Errors
    /// `Lost` when one of them was no longer held; otherwise the error of the first release that failed. All others are
    /// released all the same; a lock whose release failed is given up in the background.
    pub fn release(mut self) -> Result<()> {
        self.release_all()
    }

    /// The same as [`release`](Self::release) for a guard that is shared; the caller has begun the bound.
    #[cfg(feature = "capi")]
    pub(crate) fn release_shared(&self) -> Result<()> {
        self.release_each()
    }

    fn release_all(&mut self) -> Result<()> {
        // The one bound for everything that is dropped on this thread afterwards.
        self.guards.first().into_iter().for_each(|guard| self.drop_bound.begin(guard.drop_by()));
        self.release_each()
    }

    /// Releases all within one bound; what is not released by then is given up in the background.
    fn release_each(&self) -> Result<()> {
        let (mut lost, mut outcome, mut failed) = (Ok(()), Ok(()), Vec::new());
        let were_held: Vec<_> = self.guards.iter().map(LockGuard::is_held).collect();
        for ((guard, was_held), released) in self.guards.iter().zip(were_held).zip(self.release_together()) {
            if let Err(error) = &released {
                guard.abandon();
                failed.push((guard, error.clone()));
            }
            // A lock whose time ran out after this release began was held to the end of the work.
            let ran_out = |loss: Loss| matches!(loss.reason, LossReason::Expired { .. } | LossReason::MaxHold);
            let was_safe = was_held && guard.loss().get().is_some_and(ran_out);
            match released {
                Err(error) if error.kind() == ErrorKind::Lost && !was_safe => lost = lost.and(Err(error)),
                released => outcome = outcome.and(released),
            }
        }
        // After all releases, since the logger may hang. The caller gets at most one of these errors, and a drop none.
        failed.iter().for_each(|(guard, error)| guard.warn_of_release(error));
        // A loss is the worse news: the work was not safe. A failed release only means that a lock may still be held.
        lost.and(outcome)
    }

    /// Releases all at the same time. Returns an answer for each, in the order of the guards.
    fn release_together(&self) -> Vec<Result<()>> {
        // What is over needs no time: the drop after a release finds all of them over. A forked child can only refuse.
        let at_once = |guard: &LockGuard| {
            let is_at_once = guard.is_over() || !guard.is_own_process();
            is_at_once.then(|| guard.release_within(Duration::ZERO))
        };
        let mut answers: Vec<_> = self.guards.iter().map(at_once).collect();
        let open: Vec<_> = (0..answers.len()).filter(|nth| answers[*nth].is_none()).collect();
        let (now, by) = (Instant::now(), self.guards.first().map(|guard| guard.drop_by().instant()));
        match (open.as_slice(), by.filter(|by| *by > now)) {
            ([], _) | (_, None) => {}
            (&[one], Some(by)) => answers[one] = Some(self.guards[one].release_within(by - now)),
            (several, Some(by)) => {
                let holds: Vec<_> = several.iter().map(|nth| self.guards[*nth].hold.clone()).collect();
                // A tenth of the time is left for the answers.
                release_all(&holds, by - (by - now) / 10, by, |nth, released| {
                    let guard = &self.guards[several[nth]];
                    answers[several[nth]] = Some(released.map_err(|error| guard.family.held_here(error)));
                });
                // Other threads have reported it to the observers. One that hangs is not waited for.
                let told_by = by.min(Instant::now() + TURN);
                self.guards.iter().take(1).for_each(|guard| guard.family.options.observing.wait_until_told(told_by));
            }
        }
        self.guards.iter().zip(answers).map(|(guard, answer)| answer.unwrap_or_else(|| Err(guard.too_late()))).collect()
    }

    /// Ends at once; the locks are given up in the background, so that no call takes longer because of what it gives
    /// up.
    fn abandon(&self) {
        self.guards.iter().for_each(LockGuard::abandon);
    }
}

impl Drop for LockAllGuard {
    fn drop(&mut self) {
        // In a forked child there is nothing to release, and each guard refuses it.
        if let Some(guard) = self.guards.iter().find(|guard| !guard.is_over() && guard.is_own_process()) {
            self.drop_bound.begin(guard.quiet_drop_by());
        }
        // A panic is a bug, but must not leave a drop.
        let _ = caught(|| self.release_all());
    }
}

impl fmt::Debug for LockAllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllGuard").field("guards", &self.guards).finish_non_exhaustive()
    }
}
