//! A held lock: what its guard, its heartbeat and the watcher share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::failures::tells_most;
use super::heartbeat;
use super::loss_watch::LossWatch;
use super::queue::{Queues, SILENT};
use super::undo::Undo;
use super::watcher::Watcher;
use crate::engine::options::Terms;
use crate::engine::spec::{Callbacks, Chain, Granted};
use crate::lease::{End, GrantId, Lease, StoreTime, Times};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::lock::Lock;
use crate::model::loss::LossReason;
use crate::store::{Attempt, Backend, Renewal, Renewed, Seen, read_held};
use crate::sys::cancel::CancelToken;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::Deadline;
use crate::sys::observing::{Observing, later};
use crate::sys::pause::pause;
use crate::sys::process::ProcessId;
use crate::sys::thread::{Thread, keeping_a_lock};

/// What a hold needs besides the grant.
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
    pub at_end: AtEnd,
}

/// What happens to the grant when its hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    Release,
    /// It stays in the store, like the lease of a name.
    Keep,
}

/// See the module.
pub struct Hold {
    pub(super) setup: Setup,
    pub(super) grant: Grant,
    process: ProcessId,
    /// Until when the lock counts as held, in boot time, unless `max_hold` ends it before; zero once it does not.
    /// Raised only under `state`, and only while it has not passed.
    held_until: AtomicU64,
    /// When `max_hold` ends it, in boot time. Never moved to later.
    pub(super) max_hold_end: AtomicU64,
    pub(super) state: Mutex<State>,
    pub(super) requests: Requests,
    /// The copy that the user sees. The library never blocks on its mutex, since the user may hold it.
    shown: Arc<Mutex<Lock>>,
    pub(super) loss: LossWatch,
    pub(super) beats: Beats,
}

/// The parts of a hold that never change.
pub(super) struct Grant {
    /// The lock as it was granted.
    pub lock: Lock,
    pub at: BootTime,
    /// Since when it was known: a call that began later may replace it.
    pub known_at: BootTime,
    /// When the store made it, by its clock; where clients estimate that clock, as late as it may have been.
    pub created: StoreTime,
    pub chain: Chain,
}

/// What is needed to send requests.
pub(super) struct Requests {
    /// Locked while a request is sent.
    pub attempt: Mutex<Attempt>,
    /// Used for the release while a heartbeat that hangs has locked `attempt`.
    pub spare: Mutex<Attempt>,
    /// An unanswered hand-over that may have happened, and that was not given up yet.
    pub handed: Mutex<Option<Attempt>>,
    /// Locked during a hand-over: before its end nobody knows whether a waiter has the grant or it must be given up.
    pub handing: Mutex<()>,
    /// When the grant will have ended by itself, according to the store's answers, in boot time.
    pub answered_until: AtomicU64,
    /// The same if every renewal that was sent has arrived, answered or not.
    pub asked_until: AtomicU64,
    /// The grant id that keeps the place of the grant, where the hold ends before its minimum time.
    pub kept_as: GrantId,
}

/// How the heartbeat is ended, or made to send at once.
pub(super) struct Beats {
    /// Ends the heartbeat and its request.
    pub stop: CancelToken,
    now: Sender<()>,
    /// A message makes it send at once.
    pub wishes: Receiver<()>,
    /// When a failed heartbeat was last logged as a warning; `None` again after one that was answered.
    pub warned: Mutex<Option<Instant>>,
}

pub(super) struct State {
    pub phase: Phase,
    pub ends: Ends,
    /// The lock as it is now; `shown` is a copy of it.
    pub lock: Lock,
    pub shown_is_behind: bool,
    pub last_error: Option<Error>,
    /// How long the grant must remain in the store at least, however the hold ends.
    pub at_least: Duration,
    /// The same for requests for a minimum hold that are under way, and may be answered at any moment.
    pub asked_least: Vec<Duration>,
    pub callbacks: Callbacks,
    /// When the heartbeat must be started; `None` once it was.
    pub start_at: Option<BootTime>,
    pub heartbeat: Option<Thread>,
}

/// The requests that end the hold.
#[derive(Default)]
pub(super) struct Ends {
    /// How many are under way: a `close` may send one at the same time as the guard.
    pub under_way: u32,
    /// One was done, or may have been done, since it was not answered.
    pub may_be_done: bool,
    /// The hold has no owner any more, but the background thread has not been asked yet to give it up.
    pub is_owed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    Lost(LostBy),
    Releasing,
    /// Released, handed over, or `lost` before that was done: nothing is left to do.
    Over {
        lost: bool,
    },
}

/// Who noticed that the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostBy {
    /// This host only: the grant may still be in the store.
    Clock,
    /// The store, where the grant no longer is.
    Store,
}

/// How a heartbeat went.
#[derive(Debug)]
pub enum Beat {
    /// The lock is still held.
    Renewed,
    /// The lock is still held, but the store did not renew it.
    Failed(Error),
    /// The lock is lost or being released.
    Over,
}

/// What the store said to a heartbeat.
enum BeatAnswer {
    Stands { held_until: BootTime, until: End, now: StoreTime, wall: SystemTime },
    Lost(Seen),
}

impl Hold {
    /// The hold of a lock that was just granted. Nothing runs yet.
    pub fn new(granted: Granted, setup: Setup, callbacks: Callbacks) -> Arc<Hold> {
        let Granted { attempt, holder, now, wall, held_until, chain, noted } = granted;
        let lock = Lock::granted(&attempt, &holder, (now, wall), setup.backend.info());
        let created = if setup.backend.info().grace.is_zero() { holder.created } else { holder.created.max(now) };
        let granted_at = setup.clock.now();
        let known_at = noted.and_then(|noted| noted.granted.get().map(|(_, at)| *at)).unwrap_or(granted_at);
        let answered_until = end_of(holder.until, now, granted_at);
        let (now, wishes) = crossbeam_channel::bounded(1);
        Arc::new(Hold {
            process: ProcessId::current(),
            held_until: AtomicU64::new(held_until.as_nanos()),
            max_hold_end: AtomicU64::new(callbacks.max_hold.map_or(BootTime::NEVER, |d| granted_at + d).as_nanos()),
            shown: Arc::new(Mutex::new(lock.clone())),
            state: Mutex::new(State {
                phase: Phase::Held,
                ends: Ends::default(),
                lock: lock.clone(),
                shown_is_behind: false,
                last_error: None,
                // The minimum hold applies only once the user can get the guard: see `stands_at_least`.
                at_least: Duration::ZERO,
                asked_least: Vec::new(),
                callbacks,
                start_at: Some(
                    granted_at + heartbeat::next_after(&setup.terms, held_until.since(granted_at), granted_at),
                ),
                heartbeat: None,
            }),
            grant: Grant { lock, at: granted_at, known_at, created, chain },
            requests: Requests {
                spare: Mutex::new(attempt.without_native()),
                attempt: Mutex::new(attempt),
                handed: Mutex::default(),
                handing: Mutex::default(),
                answered_until: AtomicU64::new(answered_until.as_nanos()),
                asked_until: AtomicU64::default(),
                kept_as: setup.backend.info().grant_form.fresh(),
            },
            loss: LossWatch::new(),
            beats: Beats { stop: CancelToken::new(), now, wishes, warned: Mutex::default() },
            setup,
        })
    }

    /// Gives the hold to the watcher, which starts the heartbeat in time.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        self.setup.watcher.watch(self)
    }

    /// The lock as it was granted; key, token, lock id and mode never change.
    pub fn granted(&self) -> &Lock {
        &self.grant.lock
    }

    /// A copy of the lock as it is now.
    pub fn info(&self) -> Lock {
        // In a forked child the mutex may be locked for ever: by a thread of the parent that does not exist here.
        if self.is_own_process() { self.state.lock().lock.clone() } else { self.grant.lock.clone() }
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

    /// Uses no I/O, mutex or thread, only a clock and two numbers, so it is also right directly after a suspend.
    pub fn is_held(&self) -> bool {
        self.is_own_process() && self.left_of_max_hold().is_none_or(|left| !left.is_zero()) && self.is_running()
    }

    /// Whether nothing is left to do: it was released, or let go.
    pub fn is_over(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Over { .. })
    }

    /// Whether the user has a guard for it; the lease of a name has none.
    pub fn is_guarded(&self) -> bool {
        self.setup.at_end == AtEnd::Release
    }

    /// Whether the deadline has not passed. Once this was false it stays false, even if a renewal is answered at that
    /// moment.
    pub(super) fn is_running(&self) -> bool {
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

    /// The time until the lock counts as lost.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.held_until().since(self.setup.clock.now()) } else { Duration::ZERO }
    }

    pub(super) fn held_until(&self) -> BootTime {
        BootTime::from_nanos(self.held_until.load(Ordering::SeqCst))
    }

    /// From now on the lock is not held. The caller must have locked `state`.
    pub(super) fn hold_no_longer(&self) {
        self.held_until.store(BootTime::PAST.as_nanos(), Ordering::SeqCst);
    }

    /// How much time a renewal can give now, at most.
    pub fn most_left(&self) -> Duration {
        self.setup.terms.most_left(self.setup.clock.now())
    }

    /// Asks the heartbeat to send at once, as after a suspend.
    pub fn beat_soon(&self) {
        // A full channel already contains such a message.
        let _ = self.beats.now.try_send(());
    }

    /// One renewal, by the heartbeat or by a caller who needs more time.
    pub fn beat(&self) -> Beat {
        self.renew_for(Duration::ZERO)
    }

    /// One renewal of the lease, or for `least` where that is longer.
    pub(super) fn renew_for(&self, least: Duration) -> Beat {
        let left = self.remaining();
        if left.is_zero() {
            self.expire();
            return Beat::Over;
        }
        // A third of the time left, so that there is time for two repeats.
        let end = Deadline::after(left / 3).or_cancel(&self.beats.stop);
        let asked = Instant::now();
        let answer = self.ask(least, &end.clone().within(self.setup.request_timeout));
        // The observer to which the request was reported may have forked.
        if !self.is_own_process() {
            return Beat::Over;
        }
        match answer {
            Ok(answer) => self.answered(answer),
            // Only a lock without end comes here, since it is only read: any other is answered as lost.
            Err(error) if error.is_gone() => {
                self.lose(LossReason::Gone);
                Beat::Over
            }
            Err(error) => self.beat_failed(error, end.cut_off(asked, SILENT)),
        }
    }

    fn answered(&self, answer: BeatAnswer) -> Beat {
        match answer {
            BeatAnswer::Stands { held_until, until, now, wall } => self.renewed(held_until, until, (now, wall)),
            BeatAnswer::Lost(seen) => {
                self.lose(self.reason(&seen));
                Beat::Over
            }
        }
    }

    fn ask(&self, least: Duration, by: &Deadline) -> Result<BeatAnswer> {
        // Dropped after `attempt` is free again: the observer then gets its reports, and may call the guard.
        let _later = later();
        let Some(mut attempt) = self.requests.attempt.try_lock_until(by.instant()) else {
            return Err(self.error(ErrorKind::Store, "an earlier heartbeat is still under way").retryable());
        };
        // Any thread may ask. It must not wait for the logger while it has locked `attempt`: the heartbeat needs that.
        keeping_a_lock(|| self.ask_by(&mut attempt, least, by))
    }

    fn ask_by(&self, attempt: &mut Attempt, least: Duration, by: &Deadline) -> Result<BeatAnswer> {
        let backend = &self.setup.backend;
        let is_doubtful = |times: &Times| times.ends_are_bounds || backend.info().reads_what_may_be_undone;
        // The lease is counted from before the request.
        let (sent, wall) = (self.setup.clock.now(), SystemTime::now());
        pause!("renew.sent");
        let terms = Terms { at_least: least, ..self.setup.terms };
        let lease = terms.granted_lease_at(sent);
        if let Lease::For(time) = lease {
            // The grant may remain that long, if the request arrives but its answer does not.
            let by = sent + time + by.remaining();
            self.requests.asked_until.fetch_max(by.as_nanos(), Ordering::SeqCst);
        }
        let (until, now) = match lease {
            Lease::Forever => {
                let seen = read_held(&**backend, &attempt.key, by)?;
                match seen.record.standing(attempt.grant()) {
                    // Its end may be by a clock that can't be compared, or a failover may undo it: write it anew.
                    Some((_, holder)) if holder.until != End::Never && is_doubtful(&seen.times) => {
                        let left = holder.until.left(seen.times.now).unwrap_or_default();
                        match backend.renew(attempt, Renewal::heartbeat(Lease::For(left)), by)? {
                            Renewed::Until { until, now } => (until, now),
                            Renewed::Lost(seen) => return Ok(BeatAnswer::Lost(seen)),
                            Renewed::Unknown(error) => return Err(error),
                        }
                    }
                    Some((_, holder)) => (holder.until, seen.times.now),
                    None => return Ok(BeatAnswer::Lost(seen)),
                }
            }
            lease => match backend.renew(attempt, Renewal::heartbeat(lease), by)? {
                Renewed::Until { until, now } => (until, now),
                Renewed::Lost(seen) => return Ok(BeatAnswer::Lost(seen)),
                Renewed::Unknown(error) => return Err(error),
            },
        };
        pause!("renew.answered");
        let held_until = terms.held_until(lease, sent, until, now);
        Ok(BeatAnswer::Stands { held_until, until, now, wall })
    }

    fn renewed(&self, held_until: BootTime, until: End, (now, wall): (StoreTime, SystemTime)) -> Beat {
        let left = self.remaining();
        if left.is_zero() {
            // The answer came too late: for a moment the lock was not held, and so it is lost.
            self.expire();
            return Beat::Over;
        }
        pause!("renew.publishes");
        // A lock without end was not renewed: this only read whether its grant remains.
        let is_renewed = self.setup.terms.lease != Lease::Forever;
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
            state.callbacks.has_warned = false;
            *self.beats.warned.lock() = None;
            let end = end_of(until, now, self.setup.clock.now()).as_nanos();
            if is_renewed {
                self.requests.answered_until.fetch_max(end, Ordering::SeqCst);
                state.lock.renewed = Some(wall);
            } else {
                // May be earlier than before: others may have given this lock, which is only read, an end.
                self.requests.answered_until.store(end, Ordering::SeqCst);
            }
            state.lock.leased_until = until.left(now).and_then(|left| wall.checked_add(left));
            self.show(&mut state);
            if is_renewed {
                self.tell_before_its_end(|key, fencing_token| Event::Renewed { key, fencing_token, left }, state);
            }
        }
        pause!("renew.published");
        Beat::Renewed
    }

    /// Moves the deadline, unless it has passed. The caller must have locked `state`.
    fn extend(&self, held_until: BootTime) -> bool {
        let extended = |before: u64| match self.setup.terms.lease {
            // Others may have given a lock without end an end: nothing renews it, so the deadline moves back.
            Lease::Forever => held_until.as_nanos(),
            Lease::For(_) => held_until.as_nanos().max(before),
        };
        let still_to_come = |before| self.setup.clock.now() < BootTime::from_nanos(before);
        let update = |before| still_to_come(before).then(|| extended(before));
        self.held_until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update).is_ok()
    }

    /// What the end of the lease cut off right after it began must not replace an error that is already known.
    fn beat_failed(&self, error: Error, is_cut_off: bool) -> Beat {
        pause!("renew.failed");
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Beat::Over;
            }
            state.last_error = Some(tells_most(state.last_error.take(), error.clone(), is_cut_off));
            // A warning may be due already, which has waited for an error.
            if state.callbacks.warns_at(self.held_until()).is_some() {
                self.setup.watcher.look_now();
            }
        }
        // The logger is the user's: it may be slow, and may call the guard.
        self.warn_of_heartbeat(self.remaining(), &error);
        Beat::Failed(error)
    }

    /// Updates the copy that the user sees, unless the user has locked it.
    pub(super) fn show(&self, state: &mut State) {
        state.shown_is_behind = match self.shown.try_lock() {
            Some(mut shown) => {
                shown.clone_from(&state.lock);
                false
            }
            None => true,
        };
    }
}

/// The end of a lease in boot time, if the store's time was `now` at boot time `at` or earlier.
fn end_of(until: End, now: StoreTime, at: BootTime) -> BootTime {
    until.left(now).map_or(BootTime::NEVER, |left| at + left)
}

#[cfg(test)]
#[path = "hold_orders.rs"]
mod orders;
