//! What a request for one lock and one for any of several locks share: the setters, and the final calls that are the
//! same.

/// The setters of a request, which change its `spec`, and those of its final calls that need only its `guard` and its
/// `refusal`.
macro_rules! setters {
    ($request:ty) => {
        impl $request {
            /// Takes a shared lock, which several holders can have at once. Defaults to exclusive.
            pub fn shared(mut self) -> Self {
                self.spec.lock.mode = Mode::Shared;
                self
            }

            /// Takes a shared lock, which at most `n` holders can have at once. Defaults to no limit. The limit is
            /// checked when this request is granted: a later request with a larger limit, or with none, is granted all
            /// the same, so all users of the key must set the same `n`. On DynamoDB the lease sets a bound, about 160
            /// at 20 s: see `leasehold::dynamodb`.
            pub fn max_holders(mut self, n: u32) -> Self {
                self.spec.lock.mode = Mode::Shared;
                self.spec.lock.max_holders = Some(n);
                self
            }

            /// The holder's name, for people to read: 1 to 1,024 bytes. Defaults to the client's owner.
            pub fn owner(mut self, owner: impl Into<String>) -> Self {
                self.spec.lock.labels.owner = owner.into();
                self
            }

            /// A note that others see in the lock's status: 1 to 1,024 bytes. Defaults to none.
            pub fn comment(mut self, comment: impl Into<String>) -> Self {
                self.spec.lock.labels.comment = Some(comment.into());
                self
            }

            /// How long the lock is held without a renewal. Defaults to the client's lease.
            pub fn lease(mut self, lease: Duration) -> Self {
                self.spec.lease = Some(AskedLease::For(lease));
                self
            }

            /// Ends the lease at this time; the guard does not renew past it. The time is turned into a duration once, by
            /// the local wall clock. Defaults to the client's lease.
            pub fn lease_until(mut self, at: SystemTime) -> Self {
                self.spec.lease = Some(AskedLease::Until(at));
                self
            }

            /// Holds the lock until it is released; if the process dies, an operator must release it. The guard sends no
            /// heartbeats, but checks twice a minute that the lock is still held. Defaults to the client's lease.
            pub fn lease_forever(mut self) -> Self {
                self.spec.lease = Some(AskedLease::Forever);
                self
            }

            /// How long the lock stays taken at least, counted from its grant by the store's clock: at most 30 days.
            /// After a release, a drop or a close before that, and after the death of the process, it stays taken until
            /// then, and nobody renews it; others are refused and see the owner. So a job that takes a second does not
            /// run again on a host that starts it a little later. (On DynamoDB, if the process dies, the time can be
            /// shorter by up to half of what an answer takes beyond a second.) If the lease is shorter, it lasts this
            /// long at first, and a release is a read and a write. A caller that must have the lock sooner calls
            /// [`force_release`](crate::LockClient::force_release), or requests it with
            /// [`SameOwner::Replace`](crate::SameOwner::Replace). What a release leaves in the store for the rest of
            /// the time has a lock id of its own, so that no group renews or releases it;
            /// [`unlock_key`](crate::LockClient::unlock_key) with the id that it shows does.
            ///
            /// Each hold of a [shared](Self::shared) lock leaves an entry of its own in the row until its time is over,
            /// and each write carries all of them: with many short holds choose a short time, or set
            /// [`max_holders`](Self::max_holders).
            ///
            /// The guard keeps this time, not the lock as data: after [`into_lock`](crate::LockGuard::into_lock) the
            /// caller that adopts the lock must set it again, and [`release`](crate::LockClient::release) of a lock as
            /// data frees it at once. In SQLite the time is counted anew after a reboot, from when somebody first
            /// looks; and outside Linux by each process from when it first sees the lock, so that a process that tries
            /// only once never finds the time over.
            ///
            /// Refused with [`lease_until`](Self::lease_until) and [`lease_forever`](Self::lease_forever), by
            /// [`acquire`](Self::acquire), which gives no guard, and in
            /// [`LockAllRequest::each`](crate::LockAllRequest::each): there call
            /// [`LockGuard::hold_at_least`](crate::LockGuard::hold_at_least) on the guards once all are held. (If one
            /// of these calls fails, the locks whose call succeeded keep their time; to free them at once, call
            /// [`unlock_key`](crate::LockClient::unlock_key) before the release.) On Cloud Spanner with `fleet=mixed`
            /// only the lease itself, `spindle_duration`, is accepted. Defaults to nothing.
            pub fn hold_at_least(mut self, least: Duration) -> Self {
                self.spec.at_least = Some(least);
                self
            }

            /// Puts the lock into a group: several keys can have the same lock id, and anyone who knows it can renew
            /// and release them all. On one key at most one holder has this id, shared holders included: other requests
            /// with the same id are refused, or wait. In a request for several keys, a key that this client already
            /// holds with this lock id counts as held. Defaults to a random id.
            pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
                self.spec.lock.lock_id = Some(lock_id.into());
                self
            }

            /// What happens to a live exclusive holder with the same owner. With `Replace`, a request for several keys
            /// treats a key that this owner holds like a free one. `Replace` is refused with [`shared`](Self::shared), and
            /// without an owner that was set. Defaults to `Respect`.
            pub fn same_owner(mut self, same_owner: SameOwner) -> Self {
                self.spec.lock.replace_same_owner = same_owner == SameOwner::Replace;
                self
            }

            /// How long [`lock`](Self::lock) waits while others hold the lock, or each of several; zero tries once.
            /// [`try_lock`](Self::try_lock), like every call that tries once, refuses it. Defaults to no limit.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.spec.wait = Some(AskedWait::For(wait));
                self
            }

            /// The time until which [`lock`](Self::lock) waits; one that has passed tries once, which may take a request
            /// timeout. Defaults to no limit.
            pub fn wait_until(mut self, until: Instant) -> Self {
                self.spec.wait = Some(AskedWait::Until(until));
                self
            }

            /// A token that ends the wait with an error of kind `Cancelled`. A later call replaces it. Defaults to
            /// none.
            pub fn cancel(mut self, cancel: &CancelToken) -> Self {
                self.spec.cancel = Some(cancel.clone());
                self
            }

            /// Called on the waiting thread, once for each key, after each check of the lock, and between two checks at
            /// least once per longest [poll](crate::ClientBuilder::poll), by default 350 ms;
            /// [`on_wait_every`](Self::on_wait_every) sets another time. If the closure takes more than three
            /// seconds, its wait loses its turn until the closure returns: other waiters of this client come first. The
            /// closure must be `Send`, since the request may be sent to another thread before it waits; for closures
            /// that are not, see [`lock_with_progress`](Self::lock_with_progress). Defaults to nothing.
            pub fn on_wait(mut self, on_wait: impl FnMut(&Waiting) + Send + 'static) -> Self {
                let mut on_wait = Contained::new(on_wait);
                let on_wait = move |waiting: &Waiting| on_wait.0.iter_mut().for_each(|on_wait| on_wait(waiting));
                *self.spec.on_wait.get_mut() = Some(Box::new(on_wait));
                self
            }

            /// The time between two calls of [`on_wait`](Self::on_wait) for one key; the first call is made when the wait
            /// begins. At least 10 ms; zero is refused. Defaults to a call after each check, and between two checks at
            /// least one per longest poll.
            pub fn on_wait_every(mut self, every: Duration) -> Self {
                let least = Duration::from_millis(10);
                self.spec.on_wait_every = Some(if every.is_zero() { every } else { every.max(least) });
                self
            }

            /// Declares the lock lost after this time, in case the worker hangs while its process lives. The lock is
            /// not renewed any more: others get it when its lease ends, or a minute later if the lease has no end.
            /// Defaults to no limit.
            pub fn max_hold(mut self, max_hold: Duration) -> Self {
                self.spec.callbacks.get_mut().max_hold = Some(max_hold);
                self
            }

            /// Warns if heartbeats fail and only this much time is left until the loss: in the log, to the observer,
            /// and the first time by [`on_warning`](Self::on_warning). It warns again only after a heartbeat has
            /// succeeded. The time must be less than a renewal gives: the lease less the margin. Defaults to no
            /// warning.
            pub fn warn_before(mut self, left: Duration) -> Self {
                self.spec.callbacks.get_mut().warn_before = Some(left);
                self
            }

            /// Called once, on its own thread, with the time left by then, when [`warn_before`](Self::warn_before) is
            /// first due; refused without that. Like [`on_loss`](Self::on_loss) it may wait for a thread, and must not
            /// own its guard. Defaults to nothing.
            pub fn on_warning(mut self, on_warning: impl FnOnce(Duration) + Send + 'static) -> Self {
                let mut on_warning = Contained::new(on_warning);
                let on_warning = move |left| on_warning.0.take().map_or((), |on_warning| on_warning(left));
                self.spec.callbacks.get_mut().on_warning = Some(Box::new(on_warning));
                self
            }

            /// Called once, on its own thread, when the lock is lost; never after a release. It may drop or release the
            /// guard, which it must reach by a [`Weak`](std::sync::Weak): see the [pitfalls](crate::guide::pitfalls). A panic in
            /// it is caught. Where no thread can be started it waits for one, unlike
            /// [`is_held`](crate::LockGuard::is_held) and [`loss`](crate::LockGuard::loss). Defaults to nothing.
            pub fn on_loss(mut self, on_loss: impl FnOnce(Loss) + Send + 'static) -> Self {
                let mut on_loss = Contained::new(on_loss);
                let on_loss = move |loss| on_loss.0.take().map_or((), |on_loss| on_loss(loss));
                self.spec.callbacks.get_mut().on_loss = Some(Box::new(on_loss));
                self
            }

            /// Like [`lock`](Self::lock), but calls `progress` whenever [`on_wait`](Self::on_wait) would be called, and
            /// instead of it. The closure may borrow and need not be `Send`, since it stays on this thread.
            ///
            /// # Errors
            /// As [`lock`](Self::lock).
            ///
            /// # Example
            /// ```
            /// use std::time::Duration;
            ///
            /// let client = leasehold::LockClient::connect("memory:")?;
            /// let _held = client.lock("nightly-report")?;
            /// let mut seen = Vec::new();
            /// let request = client.request("nightly-report").wait(Duration::from_millis(20));
            /// request.lock_with_progress(|waiting| seen.push(waiting.held_by_this_client)).unwrap_err();
            /// assert!(seen.contains(&true));
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn lock_with_progress(self, progress: impl FnMut(&Waiting)) -> Result<LockGuard> {
                let patience = self.spec.patience();
                let mut progress = Contained::new(progress);
                let progress = move |waiting: &Waiting| progress.0.iter_mut().for_each(|progress| progress(waiting));
                self.guard_or(patience, Some(Box::new(progress)), ErrorKind::TimedOut, WAITED)
            }

            /// Waits for at most `timeout`; `None` when others held the lock, or all of several, all that time. Zero tries once.
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock).
            pub fn try_lock_for(self, timeout: Duration) -> Result<Option<LockGuard>> {
                self.try_lock_within(AskedWait::For(timeout))
            }

            /// Waits until `deadline` at the latest; `None` when others held the lock, or all of several, all that time. A
            /// deadline that has passed tries once.
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock).
            pub fn try_lock_until(self, deadline: Instant) -> Result<Option<LockGuard>> {
                self.try_lock_within(AskedWait::Until(deadline))
            }

            fn try_lock_within(mut self, wait: AskedWait) -> Result<Option<LockGuard>> {
                self.spec.refuses.wait = Some(OWN_WAIT);
                Ok(self.guard(AskedWait::patience(Some(wait)), None)?.granted())
            }

            /// [`try_lock`](Self::try_lock) with an error of kind `Held`, and the holders, in place of `None`.
            #[cfg(feature = "capi")]
            pub(crate) fn lock_once(self) -> Result<LockGuard> {
                self.guard_or(Patience::Once, None, ErrorKind::Held, HELD)
            }

            fn guard_or(
                self,
                patience: Patience,
                progress: Option<OnWait<'_>>,
                kind: ErrorKind,
                message: &str,
            ) -> Result<LockGuard> {
                let refusal = self.refusal();
                self.guard(patience, progress)?.or_refusal().map_err(|holders| refusal(kind, message, holders))
            }
        }
    };
}
pub(crate) use setters;
