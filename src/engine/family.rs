//! What all clones of a client share.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::failures::Failures;
use super::hold::{AtEnd, Hold, Setup};
use super::queue::Queues;
use super::release_all::release_all;
use super::undo::{LEFT, Undo};
use super::watcher::Watcher;
use crate::engine::options::{ClientOptions, Terms, default_labels};
use crate::engine::spec::{Callbacks, Granted, Noted};
use crate::engine::wakeups::Wakeups;
use crate::lease::{GrantId, Labels};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::key::{check_key, shown};
use crate::model::lock::{Lock, LockStatus};
use crate::store::{Attempt, Backend};
use crate::sys::cancel::CancelToken;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::drop_bound::{DropBound, DropBy, Owner, Together};
use crate::sys::log;
use crate::sys::observing::hurrying;
use crate::sys::pause::pause;
use crate::sys::process::ProcessId;
use crate::sys::thread::{expect_users_code, here};

/// The release of a grant that gets no guard has at least this long, however little time its call has left.
const LEAST_RELEASE: Duration = Duration::from_millis(100);

/// See the module.
pub struct Family {
    pub backend: Arc<dyn Backend>,
    pub clock: Arc<Clock>,
    pub options: ClientOptions,
    /// The waiters of this process.
    pub queues: Arc<Queues>,
    /// Wakes them when a lock may be free.
    pub wakeups: Arc<Wakeups>,
    labels: Labels,
    process: ProcessId,
    watcher: Arc<Watcher>,
    undo: Arc<Undo>,
    closing: Closing,
}

/// What a `close` ends, and what it waits for.
#[derive(Default)]
struct Closing {
    /// Wakes every waiter; nothing is acquired afterwards.
    token: CancelToken,
    /// The threads that are about to obtain a lock.
    obtaining: Mutex<Vec<usize>>,
    obtained: Condvar,
    ends_first: Mutex<Vec<Weak<dyn EndsFirst>>>,
    /// Bounds the drops of guards after it.
    guards: Together,
    /// The last field, so that it is dropped last: the bound of the client's drop then also covers the end of the
    /// store.
    drop_bound: DropBound,
}

/// Work that uses a lock and must end before `close` releases the lock.
pub trait EndsFirst: Send + Sync {
    /// Asks the work to end by `by`, without waiting for that.
    fn ask_to_end(&self, by: Instant);
    /// Waits for its end until `by`.
    fn wait_for_end(&self, by: Instant);
}

/// A call that may obtain a lock; `close` waits for it.
pub struct Obtaining(Arc<Family>);

impl Drop for Obtaining {
    fn drop(&mut self) {
        // The user's code may have forked: this may be the child.
        if !self.0.is_own_process() {
            return;
        }
        let mut obtaining = self.0.closing.obtaining.lock();
        if let Some(at) = obtaining.iter().position(|id| *id == here()) {
            obtaining.swap_remove(at);
        }
        self.0.closing.obtained.notify_all();
    }
}

impl Family {
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<Clock>, options: ClientOptions) -> Arc<Family> {
        let (queues, closing) = (Arc::<Queues>::default(), Closing::default());
        if options.observing.is_on() {
            expect_users_code();
        }
        let wakeups = Wakeups::new(
            backend.clone(),
            queues.clone(),
            clock.clone(),
            closing.token.clone(),
            options.request_timeout,
        );
        let undo = Arc::new(Undo::new(backend.clone(), queues.clone(), clock.clone(), options.request_timeout));
        Arc::new(Family {
            wakeups: Arc::new(wakeups),
            watcher: Arc::new(Watcher::new(clock.clone(), undo.clone())),
            undo,
            labels: default_labels(std::process::id()),
            backend,
            clock,
            options,
            queues,
            process: ProcessId::current(),
            closing,
        })
    }

    /// Whether this is the process that connected, and not one forked from it.
    pub fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// Refuses every call after `close` and in a forked child.
    pub fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.closing.token.is_cancelled() {
            return Err(self.in_context(Error::new(ErrorKind::Closed, "the client was closed")));
        }
        Ok(())
    }

    /// Fails in a child after the user's code has forked during a call.
    pub fn check_process(&self) -> Result<()> {
        self.process.check().map_err(|error| self.in_context(error))
    }

    /// Begins a call that may obtain a lock, unless the client is closed.
    pub fn obtaining(self: &Arc<Self>) -> Result<Obtaining> {
        // Before the mutex, which may be held for ever in a forked child.
        self.check_open()?;
        self.undo.start_again();
        pause!("acquire.begins");
        self.closing.obtaining.lock().push(here());
        let call = Obtaining(self.clone());
        // Checked again: `close` may have looked at `obtaining` before this call was added.
        self.check_open().map(|()| call)
    }

    /// `close` ends this before it releases guards.
    pub fn ends_first(&self, first: Weak<dyn EndsFirst>) {
        let mut all = self.closing.ends_first.lock();
        all.retain(|first| first.strong_count() > 0);
        all.push(first);
    }

    /// Owner and host of a request.
    pub fn labels(&self, owner: Option<String>) -> Labels {
        let owner = owner.or_else(|| self.options.owner.clone()).unwrap_or_else(|| self.labels.owner.clone());
        Labels { host: self.labels.host.clone(), ..Labels::of(owner) }
    }

    /// Whether this owner is the default, which may repeat among threads and containers, and so names nobody.
    pub fn is_default_owner(&self, owner: &str) -> bool {
        owner == self.labels.owner
    }

    /// Whether a lock may have this key.
    pub fn check_key(&self, key: &str) -> Result<()> {
        check_key(key)?;
        self.backend.info().bounds.limits.map_or(Ok(()), |limits| limits.check_key(key))
    }

    /// The deadline of one request, where nobody has set a closer one.
    pub fn request_deadline(&self) -> Deadline {
        Deadline::after(self.options.request_timeout).or_cancel(&self.closing.token)
    }

    /// Repeats the request after each retryable failure, until `by` is over.
    pub fn repeated_until<T>(&self, by: &Deadline, mut request: impl FnMut(&Deadline) -> Result<T>) -> Result<T> {
        let mut failures = Failures::none();
        loop {
            let error = match request(&by.of_try()) {
                Err(error) => error,
                answer => return answer,
            };
            if let Err(error) = failures.wait_if_retryable(error, by) {
                return Err(self.or_closed(error));
            }
        }
    }

    /// The error of a call that failed: `Closed` if the client was closed meanwhile, unless the call may have been
    /// done.
    pub fn or_closed(&self, error: Error) -> Error {
        match self.check_open() {
            Err(_) if error.kind() == ErrorKind::Ambiguous => error.final_now(),
            Err(closed) => closed,
            Ok(()) => error,
        }
    }

    /// The error, with the store that it is about.
    pub fn in_context(&self, error: Error) -> Error {
        error.with_store(&self.backend.info().label)
    }

    /// By when the drop of something that belongs to this client must have returned.
    pub fn drop_by(&self) -> DropBy {
        DropBy::new(Owner::of(self), self.options.drop_timeout)
    }

    /// The same for guards: those that are dropped after a close, which has tried to release all, share the time of one.
    pub fn guard_drop_by(&self) -> DropBy {
        self.closing.guards.share(self.drop_by(), self.options.drop_timeout)
    }

    /// Becomes cancelled when the client is closed.
    pub fn closing(&self) -> &CancelToken {
        &self.closing.token
    }

    /// Every guard of this client that is still alive.
    pub fn holds(&self) -> Vec<Arc<Hold>> {
        if self.is_own_process() { self.watcher.holds() } else { Vec::new() }
    }

    /// Whether this holder is a guard of this client that has yet to be released, or will be one.
    pub fn holds_here(&self, holder: &LockStatus) -> bool {
        let token = holder.fencing_token();
        let is_it = |lock: &Lock| (lock.key(), lock.fencing_token()) == (holder.key(), token);
        self.gets_guard(holder.key(), |noted| noted.granted.get().is_some_and(|(its, _)| *its == token))
            || self.holds().iter().any(|hold| !hold.is_over() && is_it(hold.granted()))
    }

    /// The error of a call, with the holders of the lock, and whether one of them is a guard of this client.
    pub fn held_by(&self, error: Error, holders: Vec<LockStatus>) -> Error {
        self.held_here(error.with_holders(holders))
    }

    /// The error, which then says whether one of its holders is a guard of this client.
    pub fn held_here(&self, error: Error) -> Error {
        let is_here = error.holders().iter().any(|holder| self.holds_here(holder));
        if is_here { error.held_here() } else { error }
    }

    /// Whether this grant of the key is that of a guard of this client whose lock is still held, or will be.
    pub fn is_held_here(&self, key: &str, grant: &GrantId) -> bool {
        self.gets_guard(key, |noted| noted.grant == *grant)
            || self.holds().iter().any(|hold| hold.is_held() && hold.granted().grant == *grant)
    }

    /// Whether this client was granted the key with this lock id, and holds it.
    pub fn has_group(&self, key: &str, lock_id: &str) -> bool {
        let is_it = |lock: &Lock| (lock.key(), lock.lock_id()) == (key, lock_id);
        self.gets_guard(key, |noted| noted.lock_id == lock_id && noted.granted.get().is_some())
            || self.holds().iter().any(|hold| hold.is_held() && is_it(hold.granted()))
    }

    /// Whether an acquisition of the key that fits has no guard yet, and gets one. To be asked before the guards are
    /// looked at: it becomes one of them.
    fn gets_guard(&self, key: &str, fits: impl Fn(&Noted) -> bool) -> bool {
        let is_it = |noted: &Arc<Noted>| noted.gets_guard && noted.key == key && fits(noted);
        self.is_own_process() && self.queues.noted().iter().any(is_it)
    }

    /// Whether this client was granted this key after `since`, or may be at this moment, and the grant remains: it has
    /// no guard yet, or its guard is held or being released and the store has not answered the release. `fits` gets the
    /// grant, and its token where that is known.
    pub fn has_since(&self, since: BootTime, key: &str, fits: impl Fn(&GrantId, Option<u64>) -> bool) -> bool {
        if !self.is_own_process() {
            return false;
        }
        let is_noted = || {
            self.queues.noted().iter().any(|noted| {
                let granted = noted.granted.get();
                let is_newer = granted.is_none_or(|(_, at)| *at > since);
                noted.key == key && is_newer && fits(&noted.grant, granted.map(|(token, _)| *token))
            })
        };
        let is_held = || {
            self.holds().iter().any(|hold| {
                let lock = hold.granted();
                lock.key() == key && fits(&lock.grant, Some(lock.fencing_token())) && hold.stands_since(since)
            })
        };
        // What is noted becomes a guard, and a guard is handed over to what is noted: each may happen in between.
        is_noted() || is_held() || is_noted() || is_held()
    }

    /// What is given up in the background.
    #[cfg(test)]
    pub fn undo(&self) -> &Undo {
        &self.undo
    }

    /// Makes the hold of a lock that was just granted to a call with deadline `by`, and gives it to the watcher.
    pub fn hold(&self, granted: Granted, terms: Terms, callbacks: Callbacks, by: &Deadline) -> Result<Arc<Hold>> {
        self.hold_with(granted, terms, callbacks, AtEnd::Release, by)
    }

    /// The same for a grant that outlives its hold: the lease of a name.
    pub fn keep(&self, granted: Granted, terms: Terms, callbacks: Callbacks) -> Result<Arc<Hold>> {
        let (key, fencing_token) = (shown(&granted.attempt.key).into_owned(), granted.holder.token);
        let granted_now = Event::Granted { key: &key, fencing_token, waited: Duration::ZERO };
        hurrying(|| self.options.observing.tell(&granted_now));
        self.hold_with(granted, terms, callbacks, AtEnd::Keep, &Deadline::after(self.options.drop_timeout))
    }

    /// A grant as data: no guard ends it.
    pub fn as_data(&self, granted: Granted) -> Result<Lock> {
        let (key, fencing_token) = (&granted.attempt.key, granted.holder.token);
        let handed_over = Event::HandedOver { key, fencing_token, held_for: Duration::ZERO };
        hurrying(|| self.options.observing.tell(&handed_over));
        let Granted { attempt, holder, now, wall, .. } = self.unless_forked(granted)?;
        Ok(Lock::granted(&attempt, &holder, (now, wall), self.backend.info()))
    }

    /// The observer to which a grant was reported may have forked. A child leaves the grant alone: it is the parent's.
    fn unless_forked<T>(&self, granted: T) -> Result<T> {
        match self.check_process() {
            Ok(()) => Ok(granted),
            Err(forked) => {
                std::mem::forget(granted);
                Err(forked)
            }
        }
    }

    fn hold_with(
        &self,
        granted: Granted,
        terms: Terms,
        callbacks: Callbacks,
        at_end: AtEnd,
        by: &Deadline,
    ) -> Result<Arc<Hold>> {
        let (granted, callbacks) = self.unless_forked((granted, callbacks))?;
        let setup = Setup {
            backend: self.backend.clone(),
            clock: self.clock.clone(),
            watcher: self.watcher.clone(),
            queues: self.queues.clone(),
            undo: self.undo.clone(),
            observing: self.options.observing.clone(),
            terms,
            request_timeout: self.options.request_timeout,
            drop_timeout: self.options.drop_timeout,
            at_end,
        };
        let _until_watched = granted.noted.clone();
        let hold = Hold::new(granted, setup, callbacks);
        pause!("hold.made");
        // Without the watcher nothing would renew the lock. And `close` may have listed the guards before this one was
        // there, or may be releasing this one already.
        let made = hold.start().and_then(|()| self.check_open()).and_then(|()| hold.stands_at_least(terms.at_least));
        pause!("hold.started");
        if let Err(error) = made {
            let _ = hold.release(by.remaining().max(LEAST_RELEASE).min(self.options.drop_timeout));
            hold.abandon();
            hold.drop_callbacks();
            self.check_open()?;
            return Err(self.in_context(error.with_key(&shown(&hold.granted().key))));
        }
        Ok(hold)
    }

    /// Gives up an acquisition that was not answered, in the background.
    pub fn give_up_later(&self, attempt: Attempt) {
        if self.is_own_process() {
            self.undo.push(attempt);
        }
    }

    /// Makes a store call for a grant that no guard owns yet: if the store panics, the grant is given up, and the panic
    /// goes on.
    pub fn unowned<T>(&self, attempt: &mut Attempt, call: impl FnOnce(&mut Attempt) -> T) -> T {
        catch_unwind(AssertUnwindSafe(|| call(attempt))).unwrap_or_else(|panic| {
            self.give_up_later(attempt.without_native());
            resume_unwind(panic)
        })
    }

    /// Ends everything within one bound. Returns the first error.
    pub fn close(&self, bound: Duration) -> Result<()> {
        self.closing.token.cancel();
        let now = Instant::now();
        pause!("close.begun");
        let by = far_from(now, bound);
        // Work may go on until `soon`. What is asked to end then has the last tenth of the time for that.
        let soon = by - by.saturating_duration_since(now) / 10;
        let first: Vec<_> = { self.closing.ends_first.lock().iter().filter_map(Weak::upgrade).collect() };
        let half = by - by.saturating_duration_since(now) / 2;
        first.iter().for_each(|first| first.ask_to_end(half));
        first.iter().for_each(|first| first.wait_for_end(half));
        let released = self.release_all(soon, by);
        pause!("close.released");
        let obtained = self.wait_for_obtaining(soon);
        pause!("close.waited");
        let left = self.end_background(soon, by);
        pause!("close.ended");
        self.end_watch(by);
        self.closing.guards.begin();
        released.and(obtained).and(left)
    }

    /// Ends the watcher. Afterwards nothing is reported any more, unless the observer hangs.
    fn end_watch(&self, by: Instant) {
        self.watcher.close(by);
        self.options.observing.wait_until_told(by);
        log::write_rest(by);
    }

    /// Ends the background threads. Unanswered acquisitions can be given up until `soon`.
    fn end_background(&self, soon: Instant, by: Instant) -> Result<()> {
        let left = self.undo.end(soon, by);
        self.wakeups.close(by);
        if left == 0 {
            return Ok(());
        }
        Err(self.in_context(Error::new(ErrorKind::Store, format!("{left} {LEFT}")).retryable()))
    }

    /// Releases every guard until `soon`, and waits until `by`.
    fn release_all(&self, soon: Instant, by: Instant) -> Result<()> {
        let (holds, mut failed) = (self.holds(), Ok(()));
        let open = release_all(&holds, soon, by, |nth, released| {
            // A grant that has ended by itself is gone, whatever the store says: that is no failure.
            let error = released.err().filter(|error| error.kind() != ErrorKind::Lost && !holds[nth].has_ended());
            if let Some(error) = error.filter(|_| failed.is_ok()) {
                failed = Err(error);
            }
        });
        if open > 0 && failed.is_ok() {
            let error = Error::new(ErrorKind::Store, format!("{open} locks could not be released in time"));
            failed = Err(self.in_context(error.retryable()));
        }
        failed
    }

    /// Waits for the calls that may obtain a lock: closing has woken them, and they give up what they have sent. A call
    /// that closes the client itself, in a callback, is not waited for.
    fn wait_for_obtaining(&self, by: Instant) -> Result<()> {
        let here = here();
        let mut obtaining = self.closing.obtaining.lock();
        loop {
            let count = obtaining.iter().filter(|id| **id != here).count();
            if count == 0 {
                return Ok(());
            }
            if self.closing.obtained.wait_until(&mut obtaining, by).timed_out() {
                let message =
                    format!("{count} calls that obtain a lock did not end in time; what one is granted may stand");
                return Err(self.in_context(Error::new(ErrorKind::Store, message).retryable()));
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // In a forked child its threads and connections do not exist, so they must not be dropped.
            std::mem::forget((self.backend.clone(), self.watcher.clone(), self.wakeups.clone(), self.undo.clone()));
            return;
        }
        let was_closed = self.check_open().is_err();
        self.closing.token.cancel();
        pause!("client.dropped");
        let by = self.drop_by();
        self.closing.drop_bound.begin(by);
        let by = by.instant();
        // Work may go on until `soon`. What is asked to end then has the last tenth of the time for that.
        let soon = by - by.saturating_duration_since(Instant::now()) / 10;
        if !was_closed {
            // What is left is logged there.
            let _ = self.end_background(soon, by);
        }
        self.end_watch(by);
    }
}

#[cfg(test)]
#[path = "family_tests.rs"]
mod tests;
