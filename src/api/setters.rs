//! What can be asked for is the same for one lock and for the first of several.

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

            /// How long [`lock`](Self::lock) waits while others hold the lock, or each of several; zero asks once.
            /// [`try_lock`](Self::try_lock) and whatever else asks once refuses it. Defaults to no limit.
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

            /// Called on the thread that waits, at each of its looks, once for each key. A request can be sent to
            /// another thread before it waits, and so must be what it calls; what must not or can't be sent is for
            /// [`lock_with_progress`](Self::lock_with_progress). Defaults to nothing.
            pub fn on_wait(mut self, on_wait: impl FnMut(&Waiting) + Send + 'static) -> Self {
                *self.spec.on_wait.get_mut() = Some(Box::new(on_wait));
                self
            }

            /// The time between two calls of [`on_wait`](Self::on_wait) for one key, the first of which comes when
            /// the wait begins; at least 10 ms, and not zero. Defaults to as often as the wait looks.
            pub fn on_wait_every(mut self, every: Duration) -> Self {
                let least = Duration::from_millis(10);
                self.spec.on_wait_every = Some(if every.is_zero() { every } else { every.max(least) });
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
            /// [`warn_before`](Self::warn_before) is due, without which it is refused. Defaults to nothing.
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
