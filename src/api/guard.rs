//! The guard: a lock that is held for as long as the value lives.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::family::Family;
use crate::engine::hold::{Beat, Hold};
use crate::engine::loss_watch::LossWatch;
use crate::engine::options::Terms;
use crate::engine::spec::{Callbacks, Granted};
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::lock::Lock;
use crate::store::fence::Standing;
use crate::sys::caught::caught;
use crate::sys::deadline::Deadline;
use crate::sys::drop_bound::{DropBound, DropBy};
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::thread::Thread;

/// A lock that is held. Its own thread renews it; dropping it releases it.
///
/// Keep it in a named variable: `let _guard = client.lock(k)?;`. With `let _ = client.lock(k)?;` the guard would be
/// dropped, and the lock released, at once. In `if client.try_lock(k)?.is_some() { .. }` the guard is dropped before
/// the block runs.
///
/// A lease can be lost: when the store is away for longer than the lease, when the machine is
/// suspended, when an operator releases the lock. Ask [`is_held`](LockGuard::is_held) before each
/// step that must not overlap, and give [`fencing_token`](LockGuard::fencing_token) to the
/// resource if it can refuse an older one.
///
/// Dropping releases quietly: it logs what fails, never panics and takes no longer than the
/// client's `drop_timeout`. [`release`](LockGuard::release) reports what happened.
///
/// # Example
/// ```
/// let client = leasehold::LockClient::connect("memory:")?;
/// let guard = client.lock("nightly-report")?;
/// assert!(guard.is_held());
/// guard.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "dropping the guard releases the lock at once"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    pub(super) hold: Arc<Hold>,
    pub(super) family: Arc<Family>,
    /// One bound for the whole drop: for the release and for what the client has to clean up afterwards.
    drop_bound: DropBound,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>, family: Arc<Family>) -> Self {
        LockGuard { hold, family, drop_bound: DropBound::default() }
    }

    /// Makes the guard of a lock that was just granted to a call with this deadline.
    pub(crate) fn over(
        granted: Granted,
        family: &Arc<Family>,
        terms: Terms,
        callbacks: Callbacks,
        by: &Deadline,
    ) -> Result<Self> {
        Ok(LockGuard::new(family.hold(granted, terms, callbacks, by)?, family.clone()))
    }

    /// The name of the lock.
    pub fn key(&self) -> &str {
        self.hold.granted().key()
    }

    /// The fencing token: higher than that of every earlier grant of the key, and the same as long as this lock is
    /// held. A resource that refuses any token below the highest it has seen is safe even from a holder that does not
    /// know yet that it lost the lock, but only once the new holder has stored its token there: see
    /// [`fence`](crate::fence). The token fits into an `i64`.
    pub fn fencing_token(&self) -> u64 {
        self.hold.granted().fencing_token()
    }

    /// The group that the lock belongs to.
    pub fn lock_id(&self) -> &str {
        self.hold.granted().lock_id()
    }

    /// Exclusive or shared.
    pub fn mode(&self) -> Mode {
        self.hold.granted().mode()
    }

    /// Whether the lock is held. Does no I/O and never waits: it compares two numbers with a clock that also runs
    /// during suspend. It turns false before the lease can end, or at the end of
    /// [`max_hold`](crate::LockRequest::max_hold), and then stays false. So no rival is granted the lock while it is
    /// true, unless somebody takes the lock away by order: see the [guarantees](crate::guide::guarantees).
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// How long the lock stays held if no further heartbeat succeeds, but no longer than
    /// [`max_hold`](crate::LockRequest::max_hold) allows; zero when it is not held, `Duration::MAX` when its lease has
    /// no end.
    pub fn remaining(&self) -> Duration {
        let left = self.hold.remaining();
        self.hold.left_of_max_hold().map_or(left, |most| left.min(most))
    }

    /// [`is_held`](LockGuard::is_held), for use with `?`.
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more, also because its client was closed; `Closed` in a forked child.
    pub fn ensure_held(&self) -> Result<()> {
        if self.is_held() { Ok(()) } else { Err(self.not_held()) }
    }

    /// Makes sure that the lock is held for at least `needed`: renews it if less is left.
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more; `InvalidInput` when `needed` is more than a
    /// renewal can give (the lease less the margin), or than `max_hold` leaves; the store's error, such as
    /// `Store`, when it did not renew the lease.
    pub fn ensure_held_for(&self, needed: Duration) -> Result<()> {
        self.ensure_held()?;
        if self.remaining() >= needed {
            return Ok(());
        }
        let invalid = |right: String| Err(self.hold.in_context(Error::invalid("needed", needed, &right)));
        if let Some(left) = self.hold.left_of_max_hold().filter(|left| needed > *left) {
            return invalid(format!("at most {left:?}, after which max_hold ends it"));
        }
        let beat = self.hold.beat();
        if self.remaining() >= needed {
            return Ok(());
        }
        let most = self.hold.most_left();
        let too_short = || format!("it could not be renewed to last {needed:?}; {:?} are left", self.remaining());
        match beat {
            Beat::Over => Err(self.not_held()),
            _ if needed >= most => {
                invalid(format!("below {most:?}, for which a renewal holds (the lease less the margin)"))
            }
            // A renewal that took long leaves less time than `most`.
            Beat::Renewed => Err(self.hold.error(ErrorKind::Store, &too_short()).retryable()),
            Beat::Failed(error) => Err(self.not_renewed(&too_short(), error)),
        }
    }

    /// From now on the lock stays taken for at least this long, counted from its grant, whatever ends the hold; see
    /// [`hold_at_least`](crate::LockRequest::hold_at_least). The time can be made longer, not shorter. Sends a renewal,
    /// unless the time has passed already: then nothing changes.
    ///
    /// Called when the work is done, it keeps others from doing the same work again until then. If the process dies
    /// before the call, the lock becomes free when its lease ends, as always. The [recipe](crate::guide::recipes) for a
    /// job that runs once in a period repeats the call for as long as the lock is held.
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more; `InvalidInput` as for a request; the store's error, such as `Store`,
    /// when it did not renew the lease: the lock is still held, and this can be called again. After such an error the
    /// store may have noted the time all the same: if the lock is then lost and no release gets through, nobody gets it
    /// before that time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let guard = client.lock("nightly-report")?;
    /// // .. the report is made; had it failed, another host could try at once.
    /// guard.hold_at_least(Duration::from_secs(20 * 3600))?;
    /// guard.release()?;
    /// assert!(client.try_lock("nightly-report")?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn hold_at_least(&self, least: Duration) -> Result<()> {
        self.ensure_held()?;
        match self.hold.hold_at_least(least).map_err(|error| self.hold.in_context(error))? {
            Beat::Renewed => Ok(()),
            Beat::Over => Err(self.not_held()),
            Beat::Failed(error) => {
                let message = format!("that it is held for at least {least:?} could not be noted; it is still held");
                Err(self.not_renewed(&message, error))
            }
        }
    }

    /// A copy of the lock as data.
    pub fn info(&self) -> Lock {
        self.hold.info()
    }

    /// The lock as data, kept up to date by the heartbeat. The heartbeat never waits for this mutex: if it is locked,
    /// the value is updated later.
    pub fn shared_info(&self) -> Arc<Mutex<Lock>> {
        // A forked child may find the mutex locked for ever.
        if self.is_own_process() { self.hold.shown().clone() } else { Arc::new(Mutex::new(self.hold.info())) }
    }

    /// Reports the loss of the lock. A watch that is taken after the loss reports it as well.
    pub fn loss(&self) -> LossWatch {
        self.hold.loss().clone()
    }

    /// Stops the heartbeat and releases the lock, within the client's `drop_timeout`. It also succeeds after a close of
    /// the client, which has released the lock.
    ///
    /// # Errors
    /// The error contains the guard, so that the release can be tried again. An error of kind `Lost` is final: the lock
    /// was no longer held.
    pub fn release(mut self) -> Result<(), ReleaseError> {
        let by = self.drop_by();
        match self.release_within(self.hold.drop_timeout()) {
            Ok(()) => {
                self.drop_bound.begin(by);
                Ok(())
            }
            Err(error) => Err(ReleaseError { error, guard: self }),
        }
    }

    /// The same as [`release`](Self::release) within `bound`, also for a guard that is shared; after an error it can be
    /// called again.
    pub(crate) fn release_within(&self, bound: Duration) -> Result<()> {
        self.hold.release(bound).map_err(|error| self.family.held_here(error))
    }

    /// Returns a closure that declares the loss if it is due. The caller must not keep the guard meanwhile: declaring a
    /// loss calls code of the user's.
    #[cfg(feature = "capi")]
    pub(crate) fn expiry(&self) -> impl Fn() + Send + Sync + 'static {
        let hold = Arc::downgrade(&self.hold);
        move || hold.upgrade().iter().for_each(|hold| hold.expire_when_due())
    }

    /// What a drop does; a later drop does nothing.
    pub(crate) fn end_quietly(&self) {
        // A panic is a bug, but must not escape from a drop.
        let released = caught(|| self.hold.release(self.drop_by().remaining()));
        pause!("drop.released");
        // Before the log line, since the logger may hang.
        self.hold.abandon();
        if let Some(Err(error)) = released {
            self.warn_of_release(&error);
        }
    }

    /// Logs a failed release. Not a loss, which was logged already, and not in a forked child, which has nothing to
    /// release.
    pub(crate) fn warn_of_release(&self, error: &Error) {
        if error.kind() != ErrorKind::Lost && self.is_own_process() {
            log::warn!(target: "leasehold::guard", key:? = self.key();
                "lock {:?} could not be released yet and is given up in the background: {}", self.key(), error.with_causes());
        }
    }

    /// Declares the lock lost this long from now on, unless its request set an earlier time.
    pub(crate) fn end_in(&self, time: Duration) {
        self.hold.end_in(time);
    }

    /// Stops the heartbeat within `bound`, and lets the lease of the lock run out.
    pub(crate) fn leave(&self, bound: Duration) {
        self.hold.leave(bound);
    }

    /// Ends at once, without waiting for anything: the lock is given up in the background, and a later drop does nothing.
    pub(crate) fn abandon(&self) {
        self.hold.abandon();
    }

    /// Stops the heartbeat and returns the lock as data, without releasing it. Another client or process continues to
    /// hold it by calling [`adopt`](crate::LockClient::adopt) before the lease ends.
    pub fn into_lock(mut self) -> Lock {
        if !self.is_own_process() {
            return self.hold.info();
        }
        let by = self.drop_by();
        let lock = self.keep_as_data(self.hold.drop_timeout());
        self.drop_bound.begin(by);
        lock
    }

    /// The same as [`into_lock`](Self::into_lock) within `bound`, also for a guard that is shared.
    pub(crate) fn keep_as_data(&self, bound: Duration) -> Lock {
        self.hold.keep_as_data(bound)
    }

    /// By when the drop of this guard, and everything that it drops, must have returned.
    pub(crate) fn quiet_drop_by(&self) -> DropBy {
        // A guard that is over needs no time, and takes none from others.
        if self.is_over() { self.drop_by() } else { self.family.guard_drop_by() }
    }

    /// By when a drop must have returned.
    pub(crate) fn drop_by(&self) -> DropBy {
        self.family.drop_by()
    }

    pub(crate) fn standing(&self) -> Result<Standing<'_>> {
        if !self.is_own_process() {
            return Err(self.not_held());
        }
        Ok(Standing { lock: self.hold.granted(), backend: &**self.hold.backend() })
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.hold.is_own_process()
    }

    fn not_held(&self) -> Error {
        if self.is_own_process() { self.family.held_here(self.hold.lost()) } else { self.hold.forked() }
    }

    /// The error of a keeper whose lease nobody has lost.
    pub(crate) fn closed(&self) -> Error {
        self.hold.error(ErrorKind::Closed, "its client was closed, and the lease is not extended any more")
    }

    /// Whether nothing is left to release. In a forked child that is not known, so `false`.
    pub(crate) fn is_over(&self) -> bool {
        self.is_own_process() && self.hold.is_over()
    }

    /// The error of a release for which no time is left.
    pub(crate) fn too_late(&self) -> Error {
        self.hold.error(ErrorKind::Store, "no time is left to release it: it is given up in the background").retryable()
    }

    /// The error for a renewal that failed by `error`. It is never `Ambiguous`, since the lock is still held.
    fn not_renewed(&self, message: &str, error: Error) -> Error {
        let error = error.of_read();
        let (kind, is_retryable) = (error.kind(), error.is_retryable());
        let failed = self.hold.error(kind, message).caused_by(error);
        if is_retryable { failed.retryable() } else { failed }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // In a forked child the threads and connections of both do not exist, so they must not be dropped.
            std::mem::forget((self.hold.clone(), self.family.clone()));
            return;
        }
        self.drop_bound.begin(self.quiet_drop_by());
        pause!("drop.begun");
        self.end_quietly();
        self.hold.drop_callbacks();
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").field("lock", &self.info()).field("is_held", &self.is_held()).finish()
    }
}

/// A failed release. It contains the guard, which no longer counts as held but whose release can be tried again.
///
/// Dropping this error drops the guard, which tries once more, for up to the client's `drop_timeout`. `?` into an
/// [`Error`] does not wait for that: another thread makes that try. `?` into a `Box<dyn Error>` or the like keeps this
/// error with its guard inside the box; to avoid that, turn it into an [`Error`] first:
/// `guard.release().map_err(leasehold::Error::from)?`.
pub struct ReleaseError {
    error: Error,
    guard: LockGuard,
}

impl ReleaseError {
    /// What went wrong. `Lost` is final; after anything else another try makes sense.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The guard, so that it can be released again.
    pub fn into_guard(self) -> LockGuard {
        self.guard
    }
}

impl fmt::Debug for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<ReleaseError> for Error {
    fn from(failed: ReleaseError) -> Error {
        let ReleaseError { error, guard } = failed;
        // The caller of `?` must not wait for the second try. This thread makes it only if no thread can be started.
        let _ = Thread::spawn_for_user("leasehold-release", move || drop(guard));
        error
    }
}

/// The error of [`with_lock`](crate::LockClient::with_lock).
pub struct WithLockError<T> {
    error: Error,
    value: Option<T>,
}

impl<T> WithLockError<T> {
    pub(crate) fn new(error: Error, value: Option<T>) -> Self {
        WithLockError { error, value }
    }

    /// What went wrong: `Lost` when the lock was lost while the closure ran.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error without the value: for `?` into an error type that must be `'static` or `Send`, which the value may
    /// not be.
    ///
    /// # Example
    /// ```
    /// use leasehold::WithLockError;
    ///
    /// fn longest(client: &leasehold::LockClient, words: &str) -> Result<usize, Box<dyn std::error::Error>> {
    ///     let work = |_: &leasehold::LockGuard| words.split(' ').max_by_key(|word| word.len());
    ///     // Its value borrows from `words`.
    ///     let word = client.with_lock("words", work).map_err(WithLockError::into_error)?;
    ///     Ok(word.map_or(0, str::len))
    /// }
    /// # let client = leasehold::LockClient::connect("memory:")?;
    /// # assert_eq!(longest(&client, "a bcd ef")?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_error(self) -> Error {
        self.error
    }

    /// What the closure returned, if it ran.
    pub fn into_value(self) -> Option<T> {
        self.value
    }
}

impl<T> fmt::Debug for WithLockError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLockError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for WithLockError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for WithLockError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> From<WithLockError<T>> for Error {
    fn from(failed: WithLockError<T>) -> Error {
        failed.error
    }
}
