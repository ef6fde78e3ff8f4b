//! A held lock: what its guard, its heartbeat and the watcher share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::heartbeat;
use super::loss_watch::LossWatch;
use super::queue::Queues;
use super::undo::Undo;
use super::watcher::Watcher;
use crate::engine::options::Terms;
use crate::engine::spec::{Chain, Granted};
use crate::lease::{End, Lease, Mode, StoreTime};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::key::shown;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::{Loss, LossReason};
use crate::store::{Attempt, Backend, Renewal, Renewed, Seen, Which};
use crate::sys::cancel::CancelToken;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::observing::{Observing, later};
use crate::sys::process::ProcessId;
use crate::sys::thread::Thread;

/// The pause after a heartbeat thread could not be started.
const START_RETRY: Duration = Duration::from_millis(100);

/// Runs when the lock is lost.
pub type OnLoss = Box<dyn FnOnce(Loss) + Send>;
/// Runs when heartbeats fail and the deadline is near; gets what is left.
pub type OnWarning = Box<dyn FnOnce(Duration) + Send>;

/// What a hold is made of besides the grant.
pub struct Setup {
    pub backend: Arc<dyn Backend>,
    pub clock: Arc<Clock>,
    pub watcher: Arc<Watcher>,
    pub queues: Arc<Queues>,
    pub undo: Arc<Undo>,
    pub observing: Observing,
    pub terms: Terms,
    pub request_timeout: Duration,
    pub drop_timeout: Duration,
    /// Its end releases nothing.
    pub outlived_by_grant: bool,
}

/// What the user wants to be told of one hold.
#[derive(Default)]
pub struct Callbacks {
    pub max_hold: Option<Duration>,
    pub warn_before: Option<Duration>,
    pub on_warning: Option<OnWarning>,
    pub on_loss: Option<OnLoss>,
}

/// See the module.
pub struct Hold {
    pub(super) setup: Setup,
    /// The lock as it was granted; what never changes is read from here.
    pub(super) granted: Lock,
    pub(super) granted_at: BootTime,
    pub(super) chain: Chain,
    process: ProcessId,
    /// Until when the holder counts itself as such, in boot time; zero once it does not. Raised
    /// only under `state` and while it is still to come.
    held_until: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Held by whoever sends a request.
    pub(super) attempt: Mutex<Attempt>,
    /// For the release when a heartbeat hangs with `attempt`.
    pub(super) spare: Mutex<Attempt>,
    /// A hand-over of which nobody knows whether it happened, and which was not given up yet.
    pub(super) handed: Mutex<Option<Attempt>>,
    /// What the user sees. Never waited for.
    shown: Arc<Mutex<Lock>>,
    pub(super) loss: LossWatch,
    /// Ends the heartbeat and its request.
    pub(super) stop: CancelToken,
    beat_now: Sender<()>,
    pub(super) beats: Receiver<()>,
}

pub(super) struct State {
    pub phase: Phase,
    /// Released a second time, by a `close` at the same time or after a failure: either may have done it.
    pub released_again: bool,
    /// The guard's own copy of what it shows.
    pub lock: Lock,
    shown_is_behind: bool,
    last_error: Option<Error>,
    callbacks: Callbacks,
    /// When the heartbeat has to be started; `None` once it was.
    start_at: Option<BootTime>,
    pub heartbeat: Option<Thread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// Lost; `true`: by the clock alone, so that the store may still have the grant.
    Lost(bool),
    Releasing,
    /// Released or handed over: nothing is left to do.
    Over,
}

/// How a heartbeat went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lock is held on.
    Renewed,
    /// The store did not answer; try again.
    Failed,
    /// The lock is lost or being released.
    Over,
}

/// What the store said to a heartbeat.
enum Answer {
    Stands { held_until: BootTime, until: End, now: StoreTime },
    Lost(Seen),
}

impl Hold {
    /// The hold of a lock that was just granted. Nothing runs yet.
    pub fn new(granted: Granted, setup: Setup, callbacks: Callbacks) -> Arc<Hold> {
        let Granted { attempt, holder, now, held_until, chain } = granted;
        let lock = Lock::granted(&attempt, &holder, now);
        let (beat_now, beats) = crossbeam_channel::bounded(1);
        let granted_at = setup.clock.now();
        Arc::new(Hold {
            granted_at,
            chain,
            process: ProcessId::current(),
            held_until: AtomicU64::new(held_until.as_nanos()),
            shown: Arc::new(Mutex::new(lock.clone())),
            state: Mutex::new(State {
                phase: Phase::Held,
                released_again: false,
                lock: lock.clone(),
                shown_is_behind: false,
                last_error: None,
                callbacks,
                start_at: Some(granted_at + heartbeat::first_after(&setup.terms)),
                heartbeat: None,
            }),
            granted: lock,
            spare: Mutex::new(attempt.without_native()),
            attempt: Mutex::new(attempt),
            handed: Mutex::new(None),
            loss: LossWatch::new(),
            stop: CancelToken::new(),
            beat_now,
            beats,
            setup,
        })
    }

    /// Puts the watcher to work, which starts the heartbeat in time.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        self.setup.watcher.watch(self)
    }

    /// Starts the heartbeat if it is due at `now`; says when to try that. A thread that can't be started is
    /// tried again until the deadline, like a request that fails, and the loss then tells why.
    pub fn start_when_due(self: &Arc<Self>, now: BootTime) -> Option<BootTime> {
        let mut state = self.state.lock();
        let at = state.start_at.filter(|_| state.phase == Phase::Held)?;
        // After a suspend it is due at once.
        if now < at && self.beats.is_empty() {
            return Some(at);
        }
        match heartbeat::spawn(self.clone()) {
            Ok(thread) => {
                state.heartbeat = Some(thread);
                state.start_at = None;
                None
            }
            Err(error) => {
                let left = self.remaining();
                let at = now + START_RETRY.min(left / 3).max(START_RETRY / 100);
                state.start_at = Some(at);
                state.last_error = Some(error.clone());
                drop(state);
                self.warn_of_heartbeat(left, &error);
                Some(at)
            }
        }
    }

    /// What was granted; key, token, lock id and mode never change.
    pub fn granted(&self) -> &Lock {
        &self.granted
    }

    /// A copy of the lock as it is now.
    pub fn info(&self) -> Lock {
        // In a forked child another thread of the parent may have held the mutex for ever.
        if self.is_own_process() { self.state.lock().lock.clone() } else { self.granted.clone() }
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.setup.backend
    }

    /// How long a drop may take.
    pub fn drop_timeout(&self) -> Duration {
        self.setup.drop_timeout
    }

    pub fn shown(&self) -> &Arc<Mutex<Lock>> {
        &self.shown
    }

    pub fn loss(&self) -> &LossWatch {
        &self.loss
    }

    /// Whether this is the process that made it, and not one forked from it.
    pub fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// No I/O, no mutex, no thread: one clock and one number, right after a suspend, too.
    pub fn is_held(&self) -> bool {
        self.is_own_process() && self.is_running()
    }

    /// Whether the deadline is still to come. What was told to be over stays so, also for a renewal that is
    /// being answered just now.
    fn is_running(&self) -> bool {
        let mut until = self.held_until();
        while self.setup.clock.now() >= until {
            let over = BootTime::PAST.as_nanos();
            match self.held_until.compare_exchange(until.as_nanos(), over, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return false,
                Err(renewed) => until = BootTime::from_nanos(renewed),
            }
        }
        true
    }

    /// What is left until it counts itself as lost.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.held_until().since(self.setup.clock.now()) } else { Duration::ZERO }
    }

    fn held_until(&self) -> BootTime {
        BootTime::from_nanos(self.held_until.load(Ordering::SeqCst))
    }

    /// Nobody is a holder any more; call it under `state`.
    pub(super) fn hold_no_longer(&self) {
        self.held_until.store(BootTime::PAST.as_nanos(), Ordering::SeqCst);
    }

    /// Asks the heartbeat to send at once, as after a suspend.
    pub fn beat_soon(&self) {
        // A full channel holds such a wish already.
        let _ = self.beat_now.try_send(());
    }

    /// One renewal, by the heartbeat or by a caller who needs more time.
    pub fn beat(&self) -> Beat {
        let left = self.remaining();
        if left.is_zero() {
            self.expire();
            return Beat::Over;
        }
        // A third of what is left, so that two repeats fit.
        let by = Deadline::after((left / 3).min(self.setup.request_timeout)).or_cancel(&self.stop);
        let answer = self.ask(&by);
        self.answered(answer)
    }

    fn answered(&self, answer: Result<Answer>) -> Beat {
        match answer {
            Ok(Answer::Stands { held_until, until, now }) => self.renewed(held_until, until, now),
            Ok(Answer::Lost(seen)) => {
                self.lose(self.reason(&seen));
                Beat::Over
            }
            Err(error) => self.beat_failed(error),
        }
    }

    fn ask(&self, by: &Deadline) -> Result<Answer> {
        // Dropped after `attempt` is free again: an observer may call the guard.
        let _later = later();
        let Some(mut attempt) = self.attempt.try_lock_until(by.instant()) else {
            return Err(Error::new(ErrorKind::Store, "an earlier heartbeat is still under way").retryable());
        };
        let backend = &self.setup.backend;
        // The lease is counted from before the request.
        let sent = self.setup.clock.now();
        let terms = &self.setup.terms;
        let lease = terms.lease_at(sent);
        let (until, now) = match lease {
            Lease::Forever => {
                let which = Which::Key(attempt.key.clone());
                let Some(seen) = backend.read(&which, None, true, by)?.records.pop() else {
                    return Err(Error::new(ErrorKind::Store, "the store answered a read with nothing").retryable());
                };
                match seen.record.standing(attempt.grant()) {
                    Some((_, holder)) => (holder.until, seen.now),
                    None => return Ok(Answer::Lost(seen)),
                }
            }
            lease => match backend.renew(&mut attempt, Renewal { lease, may_end_endless: false }, by)? {
                Renewed::Until { until, now } => (until, now),
                Renewed::Lost(seen) => return Ok(Answer::Lost(seen)),
                Renewed::Unknown(error) => return Err(error),
            },
        };
        // A later end that stands seems far off to a store whose time has gone back.
        let held_until = terms.held_until(sent, until.min(lease.end(now)), now);
        Ok(Answer::Stands { held_until, until, now })
    }

    fn renewed(&self, held_until: BootTime, until: End, now: StoreTime) -> Beat {
        let left = self.remaining();
        if left.is_zero() {
            // The answer came too late: it has been false for a moment and stays so.
            self.expire();
            return Beat::Over;
        }
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Beat::Over;
            }
            if !self.extend(held_until) {
                drop(state);
                self.expire();
                return Beat::Over;
            }
            state.last_error = None;
            let wall = SystemTime::now();
            state.lock.renewed = Some(wall);
            state.lock.leased_until = until.left(now).and_then(|left| wall.checked_add(left));
            self.show(&mut state);
        }
        self.setup.observing.tell(&Event::Renewed { key: &shown(&self.granted.key), left });
        Beat::Renewed
    }

    /// Sets the deadline anew, unless it has passed. Call it under `state`.
    fn extend(&self, held_until: BootTime) -> bool {
        let extended = |before: u64| match self.setup.terms.lease {
            // A lock without end may have been given one by whoever knows it, and is not renewed.
            Lease::Forever => held_until.as_nanos(),
            Lease::For(_) => held_until.as_nanos().max(before),
        };
        let still_to_come = |before| self.setup.clock.now() < BootTime::from_nanos(before);
        let update = |before| still_to_come(before).then(|| extended(before));
        self.held_until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update).is_ok()
    }

    fn beat_failed(&self, error: Error) -> Beat {
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Beat::Over;
            }
            state.last_error = Some(error.clone());
        }
        // The logger is the user's: it may be slow, and may ask the guard.
        self.warn_of_heartbeat(self.remaining(), &error);
        // A warning may have been due already.
        self.setup.watcher.look_now();
        Beat::Failed
    }

    /// Copies the lock to where the user sees it, unless the user is just looking.
    fn show(&self, state: &mut State) {
        state.shown_is_behind = match self.shown.try_lock() {
            Some(mut shown) => {
                shown.clone_from(&state.lock);
                false
            }
            None => true,
        };
    }

    /// When the watcher has to look at it first.
    pub fn first_look(&self) -> BootTime {
        let state = self.state.lock();
        let max_hold = state.callbacks.max_hold.map(|d| self.granted_at + d);
        let warning = state.callbacks.warn_before.map(|before| self.held_until() - before);
        [max_hold, warning, state.start_at].into_iter().flatten().fold(self.held_until(), BootTime::min)
    }

    /// The watcher's look: declares what is due at `now` and says when to look again.
    pub fn look(&self, now: BootTime) -> Option<BootTime> {
        let mut state = self.state.lock();
        if state.phase != Phase::Held {
            return None;
        }
        if state.shown_is_behind {
            self.show(&mut state);
        }
        let held_until = self.held_until();
        let max_hold = state.callbacks.max_hold.map(|d| self.granted_at + d);
        if now >= held_until {
            drop(state);
            self.expire();
            return None;
        }
        if max_hold.is_some_and(|end| now >= end) {
            drop(state);
            self.lose(LossReason::MaxHold);
            return None;
        }
        let warning = state.callbacks.warn_before.map(|before| held_until - before);
        if warning.is_some_and(|at| now >= at) {
            // Without a failed heartbeat the next one is still under way: look again in a second.
            if state.last_error.is_some() {
                state.callbacks.warn_before = None;
                let on_warning = state.callbacks.on_warning.take();
                drop(state);
                self.warn(held_until.since(now), on_warning);
            }
            return Some(max_hold.map_or(held_until, |end| end.min(held_until)));
        }
        [Some(held_until), max_hold, warning].into_iter().flatten().min()
    }

    fn warn(&self, left: Duration, on_warning: Option<OnWarning>) {
        let key = &*shown(&self.granted.key);
        if let Some(on_warning) = on_warning {
            self.setup.watcher.run("warning callback", Box::new(move || on_warning(left)));
        }
        log::warn!(target: "leasehold::guard", key:?, left_ms = left.as_millis() as u64;
            "heartbeats of lock {key:?} fail; it will be lost in {:.1} s", left.as_secs_f64());
        self.setup.observing.tell(&Event::RenewalLate { key, left });
    }

    /// Declares the loss if the deadline has passed.
    pub(super) fn expire_when_due(&self) {
        let is_held = self.state.lock().phase == Phase::Held;
        if is_held && !self.is_running() {
            self.expire();
        }
    }

    fn expire(&self) {
        let last_error = self.state.lock().last_error.clone();
        self.lose(LossReason::Expired { last_error });
    }

    /// Declares the loss, once, and tells everyone. No mutex is held while code of the user's is told.
    pub fn lose(&self, reason: LossReason) {
        let by_clock = matches!(reason, LossReason::Expired { .. } | LossReason::MaxHold | LossReason::HeartbeatDied);
        let loss = self.loss_by(reason);
        let on_loss = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return;
            }
            state.phase = Phase::Lost(by_clock);
            self.hold_no_longer();
            // A release that comes next shall find it, and not end the watch without it.
            self.loss.settle(Some(loss.clone()));
            state.callbacks.on_loss.take()
        };
        self.stop.cancel();
        if let Some(on_loss) = on_loss {
            let loss = loss.clone();
            self.setup.watcher.run("loss callback", Box::new(move || on_loss(loss)));
        }
        log::warn!(target: "leasehold::guard", key:? = loss.key, token = loss.fencing_token;
            "lock {:?} lost: {loss}", loss.key);
        self.setup.observing.tell(&Event::Lost { loss: &loss });
    }

    /// How the lock was lost, from what stands in its place.
    pub(super) fn reason(&self, seen: &Seen) -> LossReason {
        if !seen.record.exists() {
            return LossReason::Gone;
        }
        let rival = seen.live().find(|(mode, _)| *mode == Mode::Exclusive || self.granted.mode == Mode::Exclusive);
        let by = rival.map(|(mode, h)| LockStatus::new(seen, mode, h));
        // Others may share with a shared holder that an operator has released.
        let granted_since = self.granted.mode == Mode::Exclusive && seen.record.token > self.granted.token;
        if by.is_some() || granted_since { LossReason::TakenOver { by } } else { LossReason::ReleasedByOther }
    }
}

#[cfg(test)]
#[path = "hold_orders.rs"]
mod orders;
