//! The client of one store.

use std::env::VarError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::api::builder::ClientBuilder;
use crate::api::guard::{LockGuard, WithLockError};
use crate::api::origin::{check_gone, check_origin, told_origin};
use crate::api::request::LockRequest;
use crate::api::request_all::{LockAllGuard, LockAllRequest};
use crate::api::request_any::LockAnyRequest;
use crate::engine::family::Family;
use crate::engine::heartbeat::NEAREST_END;
use crate::lease::Ask;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::key::check_key;
use crate::model::lock::{KeyStatus, Lock, LockStatus};
use crate::store::observed::Unknowable;
use crate::store::{self, Attempt, Purpose, Released, Renewal, Renewed, Schema};
use crate::sys::deadline::Deadline;

/// The environment variable that [`LockClient::from_env`] reads.
pub(crate) const STORE_VARIABLE: &str = "LEASEHOLD_STORE";

/// How long a store may take to make a table.
const MAKING: Duration = Duration::from_secs(600);

/// A client of one store. Cheap to clone; clones share connections, threads and guards.
///
/// Every call blocks, and none outlives its deadline. Calling and dropping inside someone's async
/// task works, and blocks that task's thread.
///
/// # Example
/// ```
/// let client = leasehold::LockClient::connect("memory:")?;
/// let _guard = client.lock("nightly-report")?;
/// assert!(client.try_lock("nightly-report")?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct LockClient {
    pub(crate) family: Arc<Family>,
}

impl LockClient {
    pub(crate) fn new(family: Arc<Family>) -> Self {
        LockClient { family }
    }

    /// Connects to the store that `url` names, with default options, and checks it once.
    ///
    /// # Errors
    /// `Config` for a URL that is wrong, naming the part; otherwise the store's error.
    pub fn connect(url: &str) -> Result<LockClient> {
        LockClient::builder(url).connect()
    }

    /// Connects to the store that the environment variable `LEASEHOLD_STORE` names.
    ///
    /// # Errors
    /// `Config` when it is not set or not UTF-8; otherwise as [`connect`](LockClient::connect).
    pub fn from_env() -> Result<LockClient> {
        match std::env::var(STORE_VARIABLE) {
            Ok(url) => LockClient::connect(&url),
            Err(error) => {
                let wrong = match error {
                    VarError::NotPresent => "is not set",
                    VarError::NotUnicode(_) => "is not UTF-8",
                };
                let message = format!("{STORE_VARIABLE} {wrong}, but must be a store URL like sqlite:locks.db");
                Err(Error::new(ErrorKind::Config, message))
            }
        }
    }

    /// Makes a builder, for a client with other options than the defaults.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(url.into())
    }

    /// Waits for the lock, without limit, and holds it until the guard is dropped.
    ///
    /// A lock is not reentrant: a thread that locks a key which it already holds waits for itself.
    ///
    /// # Errors
    /// Contention and errors of the store do not end the wait; a wrong argument or configuration does.
    /// See [`LockRequest::lock`].
    pub fn lock(&self, key: &str) -> Result<LockGuard> {
        self.request(key).lock()
    }

    /// Tries once; `None` when others hold the lock, or other calls of this client wait for it already.
    ///
    /// # Errors
    /// See [`LockRequest::try_lock`].
    pub fn try_lock(&self, key: &str) -> Result<Option<LockGuard>> {
        self.request(key).try_lock()
    }

    /// Waits for at most `timeout`; `None` when others held the lock all that time. Zero tries once.
    ///
    /// # Errors
    /// `Store` or `Ambiguous` when the store did not answer in that time, which can happen on a busy store if `timeout`
    /// is only a few milliseconds; otherwise see [`LockRequest::try_lock`].
    pub fn try_lock_for(&self, key: &str, timeout: Duration) -> Result<Option<LockGuard>> {
        self.request(key).try_lock_for(timeout)
    }

    /// Waits until `deadline` at the latest; `None` when others held the lock all that time. A deadline that has passed
    /// tries once.
    ///
    /// # Errors
    /// See [`LockRequest::try_lock`].
    pub fn try_lock_until(&self, key: &str, deadline: Instant) -> Result<Option<LockGuard>> {
        self.request(key).try_lock_until(deadline)
    }

    /// Like [`lock`](LockClient::lock), but shared: several shared holders can have the lock at once.
    ///
    /// # Errors
    /// See [`LockRequest::lock`].
    ///
    /// # A writer behind readers
    /// An exclusive request is granted when no shared holder is left. Within a process the waiters form a queue, and a
    /// writer gets its turn. Readers in other processes do not know of the writer: if they overlap without end, it
    /// waits without end. If that can happen, put a gate before the lock: another key, which a writer holds until it
    /// has the lock, and which readers check first.
    /// ```
    /// use leasehold::{LockClient, LockGuard, LockStatus, Mode, Result};
    ///
    /// fn reader(client: &LockClient) -> Result<LockGuard> {
    ///     let is_writer = |holder: &LockStatus| holder.mode() == Mode::Exclusive && !holder.is_expired();
    ///     let waits = match client.get("report.gate") {
    ///         Ok(gate) => gate.is_some_and(|gate| gate.holders().iter().any(is_writer)),
    ///         Err(error) if error.is_retryable() => true, // the next call waits for the store, too
    ///         Err(error) => return Err(error),
    ///     };
    ///     if waits {
    ///         drop(client.lock_shared("report.gate")?); // waits until the writer is in
    ///     }
    ///     client.lock_shared("report")
    /// }
    ///
    /// fn writer(client: &LockClient) -> Result<LockGuard> {
    ///     let _gate = client.lock("report.gate")?; // if it is lost, readers pass again: see below
    ///     client.lock("report")
    /// }
    /// # let client = LockClient::connect("memory:")?;
    /// # drop((reader(&client)?, reader(&client)?));
    /// # writer(&client)?.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    /// So the first writer at the gate waits only for the readers that had the lock, or had checked the gate, before it
    /// came. The gate only decides who goes first: a reader that does not check it breaks no promise of the lock. The
    /// price is one read of the store for each reader, and an acquire and a release for each writer and for each reader
    /// that finds a writer at the gate. (If `get` alone goes on failing, all readers take the gate, and may keep a
    /// writer from it.) A reader that holds the lock already must not pass the gate again: it would wait for a writer
    /// that waits for it. Inside one client there is a queue already: a reader that comes after a writer of the same
    /// client waits behind it, also while that writer waits for readers elsewhere. So a thread that holds the lock
    /// shared and requests it shared again waits for itself once a writer has come. The example `readers_and_writer`
    /// shows the gate with two processes, and what a writer does when it loses the gate while it waits.
    pub fn lock_shared(&self, key: &str) -> Result<LockGuard> {
        self.request(key).shared().lock()
    }

    /// [`try_lock`](LockClient::try_lock), together with other shared holders.
    ///
    /// # Errors
    /// See [`LockRequest::try_lock`].
    pub fn try_lock_shared(&self, key: &str) -> Result<Option<LockGuard>> {
        self.request(key).shared().try_lock()
    }

    /// [`try_lock_for`](LockClient::try_lock_for), together with other shared holders.
    ///
    /// # Errors
    /// See [`LockRequest::try_lock`].
    pub fn try_lock_shared_for(&self, key: &str, timeout: Duration) -> Result<Option<LockGuard>> {
        self.request(key).shared().try_lock_for(timeout)
    }

    /// [`try_lock_until`](LockClient::try_lock_until), together with other shared holders.
    ///
    /// # Errors
    /// See [`LockRequest::try_lock`].
    pub fn try_lock_shared_until(&self, key: &str, deadline: Instant) -> Result<Option<LockGuard>> {
        self.request(key).shared().try_lock_until(deadline)
    }

    /// Runs `work` while the lock is held, releases it and returns the value of `work`.
    ///
    /// # Errors
    /// As [`lock`](LockClient::lock); also `Lost`, with the value, when the lock was lost while `work` ran or was
    /// released by a [`close`](LockClient::close): what `work` did may have overlapped with a rival. If your error type
    /// must be `'static` or `Send` and the value is not, use
    /// [`map_err(WithLockError::into_error)?`](WithLockError::into_error).
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let answer = client.with_lock("sum", |guard| {
    ///     assert!(guard.is_held());
    ///     40 + 2
    /// })?;
    /// assert_eq!(answer, 42);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<T>(&self, key: &str, work: impl FnOnce(&LockGuard) -> T) -> Result<T, WithLockError<T>> {
        self.request(key).with_lock(work)
    }

    /// A request for `key`, on which every option can be set.
    pub fn request(&self, key: &str) -> LockRequest {
        LockRequest::new(self.family.clone(), key)
    }

    /// Waits, without limit, until one of the keys is free, and holds that one:
    /// [`key`](LockGuard::key) of the guard says which. They are tried in random order.
    ///
    /// # Errors
    /// See [`LockAnyRequest::lock`].
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let _busy = client.lock("gpu-0")?;
    /// let guard = client.lock_any(["gpu-0", "gpu-1"])?;
    /// assert_eq!(guard.key(), "gpu-1");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock_any(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Result<LockGuard> {
        self.request_any(keys).lock()
    }

    /// Asks once for each key, in random order, until one is granted; `None` when others hold all.
    ///
    /// # Errors
    /// See [`LockAnyRequest::try_lock`].
    pub fn try_lock_any(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Option<LockGuard>> {
        self.request_any(keys).try_lock()
    }

    /// A request for whichever of the keys is free first, on which every option can be set.
    pub fn request_any(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> LockAnyRequest {
        LockAnyRequest::new(&self.family, keys.into_iter().map(|key| key.as_ref().to_owned()).collect())
    }

    /// Waits, without limit, until this client holds all of the keys at once. They are taken in the order of their names,
    /// whatever order they are given in, so that calls with crossed orders do not wait for each other.
    ///
    /// # Errors
    /// See [`LockAllRequest::lock`].
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let guard = client.lock_all(["account/7", "account/3"])?;
    /// assert!(client.try_lock("account/7")?.is_none());
    /// guard.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Result<LockAllGuard> {
        self.request_all(keys).lock()
    }

    /// Tries once for each of the keys; `None` when others hold one of them, and then none is held.
    ///
    /// # Errors
    /// See [`LockAllRequest::try_lock`].
    pub fn try_lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Option<LockAllGuard>> {
        self.request_all(keys).try_lock()
    }

    /// A request for all of the keys, on which every option can be set.
    pub fn request_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> LockAllRequest<'_> {
        LockAllRequest::new(self, keys.into_iter().map(|key| key.as_ref().to_owned()).collect())
    }

    /// Continues to hold a lock that another guard handed over with
    /// [`into_lock`](LockGuard::into_lock), or that [`acquire`](LockRequest::acquire) returned: a
    /// transfer without a gap, with a new fencing token.
    ///
    /// Mode, lock id, comment and an endless lease are kept; owner and lease are this client's.
    /// [`LockRequest::adopt`] can set another owner, comment and lease.
    ///
    /// Adopt the newest data: a lock that was endless when the data was made is endless again, although a
    /// [`heartbeat`](LockClient::heartbeat) gave it an end.
    ///
    /// # Errors
    /// `Lost` when the lock is no longer held, or was already adopted; `InvalidInput` when it is a lock of another
    /// store. See [`LockRequest::adopt`].
    pub fn adopt(&self, lock: Lock) -> Result<LockGuard> {
        self.request(&lock.key).adopt(lock)
    }

    /// Renews a lock that is held as data, also an expired one, unless somebody was granted it, or a purge freed it,
    /// since. With `fleet=mixed` on MongoDB and Cloud Spanner an expired lock counts as lost: the Go library may be
    /// about to take it. An endless lock gets an end by this call, in a minute or later; its guard learns of that
    /// within 35 seconds while the store answers it. The end of any other lock never moves backwards.
    ///
    /// Keep the returned `Lock` and throw the old one away: to adopt the old one of an endless lock makes it endless
    /// again. The [end](Lock::leased_until) in the answer counts from before the request. It is no proof, since the
    /// store decides by its own clock: stop a margin earlier.
    ///
    /// # Errors
    /// `Lost` when the lock is no longer held; `InvalidInput` when it is a lock of another store, when the lease is out of
    /// bounds, or when a lock without end would end within a minute; `Ambiguous` or `Store` when the store did not
    /// answer, even after repeats within the request timeout.
    pub fn heartbeat(&self, lock: &Lock, lease: Duration) -> Result<Lock> {
        self.family.check_open()?;
        let by = self.family.request_deadline();
        check_origin(&self.family, lock, &by)?;
        let in_context = |error: Error| self.family.in_context(error.with_key(&lock.key));
        let asked = self.family.options.lease_of_data(lease).map_err(in_context)?;
        let renewal = Renewal { lease: asked, may_end_endless: true };
        if lock.leased_until.is_none() && lease < NEAREST_END {
            let least = NEAREST_END.as_secs();
            let message =
                format!("lease: {lease:?} is below {least} s: the guard of a lock without end looks twice a minute");
            return Err(in_context(Error::new(ErrorKind::InvalidInput, message)));
        }
        let mut attempt = attempt_of(lock);
        let renewed = self.family.repeated_until(&by, |by| {
            // The end counts from before the request: who has the lock as data knows no other.
            let wall = SystemTime::now();
            Ok((wall, self.family.backend.renew(&mut attempt, renewal, by)?.known()?))
        })?;
        match renewed {
            (wall, Renewed::Until { until, now }) => {
                let leased_until = until.left(now).and_then(|left| wall.checked_add(left));
                Ok(Lock { renewed: Some(wall), leased_until, ..lock.clone() })
            }
            (_, Renewed::Lost(seen)) => {
                let lost = format!("the lock is no longer held{}", told_origin(&self.family, lock));
                Err(self.family.held_by(self.error(ErrorKind::Lost, &lock.key, &lost), LockStatus::live(&seen)))
            }
            (_, Renewed::Unknown(error)) => Err(error),
        }
    }

    /// Releases a lock that is held as data. Succeeds also when nobody holds it. Stores with the same path or host name
    /// can't be told apart: if such a one granted the lock (a file of the same path on another host, another server
    /// that is `localhost` there), it is still held, although this succeeds.
    ///
    /// # Errors
    /// `Held`, with the holders, when others hold it; `InvalidInput` when it is a lock of another store, or when this
    /// store does not hold it and it was granted elsewhere: on MongoDB and PostgreSQL by none of the hosts that this
    /// client has, on DynamoDB in another region or at another endpoint, on SQLite by a path that leads to no file
    /// here; `Ambiguous` or `Store` when the store did not answer, even after repeats within the request timeout: then it
    /// may still be held.
    pub fn release(&self, lock: &Lock) -> Result<()> {
        self.family.check_open()?;
        let by = self.family.request_deadline();
        check_origin(&self.family, lock, &by)?;
        let mut attempt = attempt_of(lock);
        let mut unanswered = None;
        let answer = self.family.repeated_until(&by, |by| {
            match self.family.backend.release(&mut attempt, Purpose::Release, by)? {
                Released::Unknown(error) => {
                    unanswered = Some(error.clone());
                    Err(error)
                }
                answer => Ok(answer),
            }
        })?;
        match answer {
            Released::HeldByOther(seen) if unanswered.is_none() => {
                let held = format!("others hold it{}", told_origin(&self.family, lock));
                Err(self.family.held_by(self.error(ErrorKind::Held, &lock.key, &held), LockStatus::live(&seen)))
            }
            answer => {
                if !matches!(answer, Released::Done) {
                    check_gone(&self.family, lock).map_err(|elsewhere| unanswered.unwrap_or(elsewhere))?;
                }
                let (key, fencing_token) = (&lock.key, lock.token);
                self.family.options.observing.tell(&Event::ReleasedData { key, fencing_token });
                Ok(())
            }
        }
    }

    /// What the store knows of a key; `None` when nobody ever held it or its row was deleted. (An acquire that was given up
    /// may leave a row as well, with the token 0.)
    ///
    /// Use it to find out who holds a lock, not as a check before taking it.
    ///
    /// # Errors
    /// `InvalidInput` for a key out of bounds; otherwise the store's error.
    pub fn get(&self, key: &str) -> Result<Option<KeyStatus>> {
        self.family.check_open()?;
        check_key(key).map_err(|error| self.family.in_context(error))?;
        let found = self.look(key, &self.family.request_deadline())?;
        Ok(Some(&found.seen).filter(|seen| seen.record.exists()).map(KeyStatus::new))
    }

    /// The locks that guards of this client and its clones hold now. A lease of a name that a
    /// [keeper](crate::LeaseKeeper) extends is not among them.
    pub fn held(&self) -> Vec<Lock> {
        if !self.family.is_own_process() {
            return Vec::new();
        }
        self.family.holds().iter().filter(|hold| hold.is_guarded() && hold.is_held()).map(|hold| hold.info()).collect()
    }

    /// Makes what the store needs (tables, indexes) where it is missing. Returns a text for people that says whether it
    /// was there, was completed, or was made. (For SQLite connecting makes it, which the first call reports.)
    ///
    /// Some stores take minutes for that: this call then waits for up to ten minutes, and the log says so. If the store
    /// does not answer, the call ends after the request timeout.
    ///
    /// # Errors
    /// `Permission` when this user may not do that: [`schema`](LockClient::schema) says what to ask for.
    pub fn create_schema(&self) -> Result<String> {
        self.ask_schema(Schema::Create, &self.family.request_deadline().with_long(MAKING))
    }

    /// What [`create_schema`](LockClient::create_schema) would do, for users who may not call it. On PostgreSQL and
    /// Cloud Spanner that is what an existing table lacks; where it lacks nothing, and on the other stores, it is the
    /// whole schema.
    ///
    /// # Errors
    /// The store's error.
    pub fn schema(&self) -> Result<String> {
        self.ask_schema(Schema::Describe, &self.family.request_deadline())
    }

    fn ask_schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        self.family.check_open()?;
        self.family.backend.schema(what, by).map_err(|error| self.family.or_closed(error))
    }

    /// Ends everything: wakes waiters with an error of kind `Closed`, releases every guard of this
    /// client and its clones, in parallel, and joins threads, all within one `drop_timeout`. A server's driver and its
    /// connections end when the last handle of the client is dropped.
    /// A second close tries again only what has failed. The drops of guards whose release failed try it again, too; those
    /// that follow each other have one `drop_timeout` together. Call `close` before
    /// `process::exit`, which runs no drop. If the closure of a leader ([`Election::lead`](crate::Election::lead)) has
    /// not returned within half of the `drop_timeout`, its lock is left to its lease, without an error.
    ///
    /// # Errors
    /// The error of the first release that was not answered; all others are made all the same. Otherwise an error that
    /// says how many calls that obtain a lock have not ended by then, or how many grants that nobody holds any more,
    /// such as those of lost locks, could not be given up. What has ended meanwhile, by itself or by others, is no
    /// error of a later close.
    pub fn close(&self) -> Result<()> {
        if !self.family.is_own_process() {
            return self.family.check_open();
        }
        self.family.close(self.family.options.drop_timeout)
    }

    pub(crate) fn error(&self, kind: ErrorKind, key: &str, message: &str) -> Error {
        self.family.in_context(Error::new(kind, message).with_key(key))
    }
}

/// The acquisition of a lock that is known only as data. Copies of its request may still be on their way to the store,
/// unless the data says that it was sent once.
pub(crate) fn attempt_of(lock: &Lock) -> Attempt {
    // How long the grant remains in the store if nothing ends it.
    let left =
        |until: SystemTime| until.duration_since(SystemTime::now()).unwrap_or_default().max(store::DEFAULT_LEASE);
    let lease = lock.leased_until.map_or(Duration::MAX, left);
    let ask = Ask::exclusive(lock.grant.clone(), lock.lock_id.clone(), lock.labels.clone(), lease);
    let ask = Ask { mode: lock.mode, ..ask };
    Attempt { sends: if lock.sent_once { 1 } else { 2 }, ..Attempt::new(&lock.key, ask) }
}

impl Drop for LockClient {
    fn drop(&mut self) {
        if !self.family.is_own_process() {
            // The family's threads and connections do not exist in a forked child, so it must never be dropped there.
            std::mem::forget(self.family.clone());
        }
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("store", &self.family.backend.info().label).finish_non_exhaustive()
    }
}
