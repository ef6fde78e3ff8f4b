//! The end of a hold by its holder: release and hand-over.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::failures::Failures;
use super::handover::PassedOn;
use super::heartbeat::NEAREST_END;
use super::hold::{AtEnd, Hold, LostBy, Phase};
use super::hold_at_least::Kept;
use super::loss::warn_of;
use super::undo::ends_hold;
use crate::lease::Lease;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::key::shown;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::LossReason;
use crate::store::{Attempt, Purpose, Released, Renewal};
use crate::sys::clock::BootTime;
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::log;
use crate::sys::observing::later;
use crate::sys::pause::pause;
use crate::sys::thread::keeping_a_lock;

/// How long the first in line waits before it asks, so that other processes, which are woken at the same time, get a turn.
const OTHERS_TURN: Duration = Duration::from_millis(25);
/// Why a hold ended without its holder's doing, where nobody else was granted the lock.
const ENDED: &str = "it was released by another, or its row, table or file was deleted or replaced";
/// What remains of a lease for no longer than this is left to end by itself.
pub(super) const SHORT_REST: Duration = Duration::from_secs(60);

/// How often a release is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tries {
    One,
    UntilAnswered,
}

impl Hold {
    /// Stops the heartbeat, then releases in the store, all within `bound`.
    ///
    /// An error of kind `Lost` is final; after any other one it can be called again.
    pub fn release(&self, bound: Duration) -> Result<()> {
        if !self.is_own_process() {
            return Err(self.forked());
        }
        if self.setup.at_end == AtEnd::Keep {
            self.keep_as_data(bound);
            return Ok(());
        }
        let by = far_from(Instant::now(), bound);
        // A hold that is over is lost, even if nobody has looked yet: otherwise an unanswered release would hide the
        // loss.
        self.expire_when_due();
        let before = self.begin_release();
        // A `close` that came first may have found a loss, which was not reported to this caller.
        match before {
            Phase::Over { lost: true } => return Err(self.lost()),
            Phase::Over { .. } if self.state.lock().ends.is_owed => return Err(self.other_release()),
            Phase::Over { .. } => return Ok(()),
            _ => {}
        }
        pause!("release.begun");
        self.stop_heartbeat(bound / 2);
        pause!("release.stopped");
        let answer = self.send_end(before, by);
        pause!("release.ends");
        self.ended(before, answer)
    }

    /// Ends the hold in the store.
    pub(super) fn send_end(&self, before: Phase, by: Instant) -> Result<()> {
        // Observers get their reports once the lock is free, and so are `handing` and `attempt`: they may call the
        // guard.
        let _later = later();
        let mut worth_a_look = true;
        let answer = match self.keep(before, by) {
            Kept::Yes(answer) => answer,
            Kept::No(before) => self.give_away(before, by, &mut worth_a_look),
        };
        if worth_a_look {
            pause!("release.wakes");
            // Waiters of this process look at once.
            self.setup.queues.nudge(&self.grant.lock.key);
        }
        answer
    }

    /// Frees the lock for others.
    fn give_away(&self, before: Phase, by: Instant, worth_a_look: &mut bool) -> Result<()> {
        match before {
            // The grant is no longer in the store: there is nothing to release.
            Phase::Lost(LostBy::Store) => Ok(()),
            // More than one request only if the grant may stay in the store for long.
            Phase::Lost(LostBy::Clock) if self.is_expired() => self.send_release(by, Tries::One),
            Phase::Lost(LostBy::Clock) => self.send_release(by, Tries::UntilAnswered),
            // An earlier try may have been done in part: no hand-over, only a plain release.
            Phase::Releasing | Phase::Over { .. } => self.send_release(by, Tries::UntilAnswered),
            Phase::Held => match self.pass_on(by) {
                PassedOn::Yes(answer) => {
                    *worth_a_look = false;
                    answer
                }
                PassedOn::No => self.send_release(by, Tries::UntilAnswered),
                PassedOn::OthersTurn => {
                    *worth_a_look = false;
                    let stand_back = || {
                        let until = Instant::now() + OTHERS_TURN;
                        self.setup.queues.stand_back(&self.grant.lock.key, until);
                    };
                    stand_back();
                    let answer = self.send_release(by, Tries::UntilAnswered);
                    // Again, now counted from when others can know of the release.
                    stand_back();
                    answer
                }
            },
        }
    }

    pub(super) fn ended(&self, before: Phase, answer: Result<()>) -> Result<()> {
        if matches!(before, Phase::Lost(_)) {
            if let Err(error) = &answer {
                // The grant may remain in the store for long, or for ever, and nobody else knows of it. For an expired
                // guard that is so where somebody renewed its group, or the margin is wide.
                let stands_long = !self.is_expired() || self.stands_for() > SHORT_REST;
                if before == Phase::Lost(LostBy::Clock) && stands_long && error.kind() != ErrorKind::Lost {
                    self.give_up_later();
                }
            }
            self.finish(true);
            // Last, because the logger may hang.
            if let Err(error) = answer {
                log::debug!(target: "leasehold::guard", key:? = self.grant.lock.key; "releasing a lost lock: {error}");
            }
            return Err(self.lost());
        }
        if answer.as_ref().is_ok_and(|()| self.finish(false)) {
            let held_for = self.held_for();
            self.tell(|key, fencing_token| Event::Released { key, fencing_token, held_for });
        }
        answer.inspect_err(|error| {
            if error.kind() == ErrorKind::Lost {
                let by = error.holders().first().cloned();
                let reason = if by.is_some() { LossReason::TakenOver { by } } else { LossReason::ReleasedByOther };
                // The guard's own watch ends without a loss, as with any release: the caller has the error.
                if self.finish(true) {
                    let loss = self.loss_by(reason);
                    self.setup.observing.tell(&Event::Lost { loss: &loss });
                    // A drop of the guard has no error to return, and does not report a lost lock itself. Of several
                    // guards the others are still to be released: that must not wait for the logger.
                    keeping_a_lock(|| warn_of(&loss));
                }
            }
        })
    }

    /// Whether it was granted after `since`, and is held or being released: until the store has answered, its grant
    /// remains. One that `max_hold` has ended stands until that is declared: its loss comes before the next grant.
    pub fn stands_since(&self, since: BootTime) -> bool {
        self.grant.known_at > since && (self.is_running() || self.state.lock().phase == Phase::Releasing)
    }

    /// How long the lock was held, at most until the end of its lease or of `max_hold`: a process that was stopped, for
    /// example, notices that end much later, and others may have had the lock since.
    pub(super) fn held_for(&self) -> Duration {
        let max_hold = self.ends_by_max_hold().unwrap_or(BootTime::NEVER);
        self.setup.clock.now().min(self.answered_until()).min(max_hold).since(self.grant.at)
    }

    /// Sends a request that ends the hold. Returns its answer, and whether another request of this hold may have ended
    /// it.
    pub(super) fn counted_end<T>(
        &self,
        request: impl FnOnce() -> Result<T>,
        unknown: impl FnOnce(Error) -> T,
        may_be_done: impl FnOnce(&T) -> bool,
    ) -> (Result<T>, bool) {
        self.state.lock().ends.under_way += 1;
        let answer = ends_hold(request, unknown);
        let ends = &mut self.state.lock().ends;
        ends.under_way -= 1;
        let by_another = ends.may_be_done || ends.under_way > 0;
        ends.may_be_done |= answer.as_ref().is_ok_and(may_be_done);
        (answer, by_another)
    }

    /// Stops the heartbeat and leaves the lock as it is in the store.
    pub fn keep_as_data(&self, bound: Duration) -> Lock {
        self.stop_holding(bound, |key, fencing_token, held_for| Event::HandedOver { key, fencing_token, held_for });
        self.info()
    }

    /// The same when nobody continues the hold: the lock ends with its lease.
    pub fn leave(&self, bound: Duration) {
        self.stop_holding(bound, |key, fencing_token, held_for| Event::Left { key, fencing_token, held_for });
    }

    /// Ends the hold without waiting for anything: its heartbeat is asked to stop, and its grant is given up in the
    /// background, like that of an unanswered acquire.
    pub fn abandon(&self) {
        if self.is_own_process() {
            self.begin_abandon();
            self.let_go();
        }
    }

    pub(super) fn begin_abandon(&self) {
        let before = self.begin_release();
        pause!("abandon.begun");
        self.beats.stop.cancel();
        if matches!(before, Phase::Held | Phase::Releasing | Phase::Lost(LostBy::Clock)) {
            self.give_up_later();
        }
    }

    /// Gives the grant up in the background.
    pub(super) fn give_up_later(&self) {
        {
            let ends = &mut self.state.lock().ends;
            // If the background thread ends the grant, a concurrent release must not take that for a loss.
            (ends.may_be_done, ends.is_owed) = (true, true);
        }
        self.give_up_owed();
    }

    /// Gives up the grant if that is owed, unless another release is under way: that one does so if it fails.
    fn give_up_owed(&self) {
        let Some(attempt) = self.for_background() else { return };
        let is_owed = self.state.lock().ends.is_owed;
        if is_owed {
            self.setup.undo.push_after(attempt, self.must_stand_for());
            // Not before the push: a close in between would find the grant in neither place.
            self.state.lock().ends.is_owed = false;
        }
    }

    /// In the background, gives a lock without end an end, which leaves its holder time to stop.
    pub(super) fn end_later(&self) {
        let end = Renewal { lease: Lease::For(NEAREST_END), may_end_endless: true };
        self.for_background().into_iter().for_each(|attempt| self.setup.undo.push_end(attempt, end));
    }

    /// What the background needs for its requests; `None`: another release that is under way has it locked.
    fn for_background(&self) -> Option<Attempt> {
        let mut attempt = self.requests.spare.try_lock()?.without_native();
        attempt.ask.lease = attempt.ask.lease.max(self.stands_for());
        Some(attempt)
    }

    /// How long the grant may remain in the store, as far as is known. That may be longer than the guard's own lease:
    /// somebody may have renewed its group.
    pub(super) fn stands_for(&self) -> Duration {
        self.stands_until().since(self.setup.clock.now())
    }

    /// Whether nothing of the hold can remain in the store any more.
    pub(super) fn has_ended(&self) -> bool {
        // A hand-over that is under way may have granted the lock to another, for longer.
        let handing = self.requests.handing.try_lock();
        self.stands_for().is_zero() && handing.is_some() && self.requests.handed.lock().is_none()
    }

    /// Until when the grant may remain in the store. An unanswered renewal may still arrive, and may have asked for
    /// more than the last one that was answered.
    pub(super) fn stands_until(&self) -> BootTime {
        self.answered_until().max(BootTime::from_nanos(self.requests.asked_until.load(Ordering::SeqCst)))
    }

    fn answered_until(&self) -> BootTime {
        BootTime::from_nanos(self.requests.answered_until.load(Ordering::SeqCst))
    }

    fn stop_holding(&self, bound: Duration, end: impl FnOnce(&str, u64, Duration) -> Event<'_>) {
        if !self.is_own_process() {
            return;
        }
        // As in a release, a hold that is over is lost.
        self.expire_when_due();
        self.begin_release();
        pause!("data.begun");
        self.stop_heartbeat(bound);
        pause!("data.stopped");
        if self.finish(false) {
            // As after a loss: a waiter behind a guard of its own process does not know when the lease ends.
            self.setup.queues.nudge(&self.grant.lock.key);
            self.tell(|key, fencing_token| end(key, fencing_token, self.held_for()));
        }
    }

    /// Drops the callbacks that were not called. What they own is the user's, and its drop may take long: so the caller
    /// that ends the guard does this, not the last owner of the hold, such as the watcher.
    pub fn drop_callbacks(&self) {
        let callbacks = std::mem::take(&mut self.state.lock().callbacks);
        drop(callbacks);
    }

    /// Marks the hold as ending, so that no later heartbeat can report it as held. Returns the state before.
    pub(super) fn begin_release(&self) -> Phase {
        let mut state = self.state.lock();
        let before = state.phase;
        self.hold_no_longer();
        if before == Phase::Held {
            state.phase = Phase::Releasing;
            // Now, since the store may not answer: a caller that waits for the loss may have the guard.
            self.loss.end(None);
        }
        before
    }

    /// Cancels the heartbeat's request and waits for its thread; one that hangs is left behind.
    fn stop_heartbeat(&self, bound: Duration) {
        self.beats.stop.cancel();
        let heartbeat = self.state.lock().heartbeat.take();
        // It is not waited for if `bound` is zero, nor on its own thread, where an event handler of the C library may
        // end the hold.
        if let Some(heartbeat) = heartbeat.filter(|beat| !bound.is_zero() && !beat.is_here())
            && !heartbeat.join_by(far_from(Instant::now(), bound))
        {
            let key = shown(&self.grant.lock.key);
            // Without waiting for the logger: the lock is still to be released.
            keeping_a_lock(
                || log::warn!(target: "leasehold::guard", key:?; "a heartbeat of lock {key:?} that hangs is left behind"),
            );
        }
    }

    /// If this is the heartbeat's thread, which closes the client in an event handler of the C library, no release may
    /// wait for it. The release of an election's lock may have begun by then.
    pub(super) fn leave_own_heartbeat(&self) {
        drop(self.state.lock().heartbeat.take_if(|beat| beat.is_here()));
    }

    /// The hold is gone: nobody can release it or learn of its loss any more.
    pub fn let_go(&self) {
        if self.finish(false) {
            let held_for = self.held_for();
            self.tell(|key, fencing_token| Event::Left { key, fencing_token, held_for });
        }
    }

    /// Marks the hold as over: nothing is left to do. Returns whether this ended it, and not a loss or an earlier end;
    /// if so, the caller reports how.
    fn finish(&self, lost: bool) -> bool {
        let mut state = self.state.lock();
        let before = state.phase;
        state.phase = Phase::Over { lost: lost || matches!(before, Phase::Lost(_) | Phase::Over { lost: true }) };
        drop(state);
        // Only this hold knows of a hand-over that was not given up yet.
        let handed = self.requests.handed.lock().take();
        handed.into_iter().for_each(|attempt| self.setup.undo.push(attempt));
        self.loss.end(None);
        matches!(before, Phase::Held | Phase::Releasing)
    }

    fn send_release(&self, by: Instant, tries: Tries) -> Result<()> {
        let half = || Instant::now() + by.saturating_duration_since(Instant::now()) / 2;
        // An unanswered hand-over comes first: its grant would last a whole lease, and no waiter knows of it. The same
        // goes for one that another release has under way.
        let settled = |by| match self.requests.handing.try_lock_until(by) {
            Some(_handing) => self.give_up_hand_over(&Deadline::at(by)),
            None => Err(self.error(ErrorKind::Store, "a hand-over of it is under way").retryable()),
        };
        let mut given_up = settled(half());
        // A heartbeat that hangs keeps `attempt` locked; then a copy is used.
        let released = match self.requests.attempt.try_lock_until(half()) {
            Some(mut attempt) => self.repeat_release(&mut attempt, by, tries),
            None => match self.requests.spare.try_lock_until(by) {
                Some(mut spare) => {
                    let released = self.repeat_release(&mut spare, by, tries);
                    drop(spare);
                    // If the guard was abandoned meanwhile, the rest was left to this release.
                    match released {
                        Ok(()) => self.state.lock().ends.is_owed = false,
                        Err(_) => self.give_up_owed(),
                    }
                    released
                }
                None => Err(self.other_release()),
            },
        };
        if released.is_ok() && given_up.is_err() {
            given_up = settled(by);
        }
        released.and(given_up)
    }

    fn other_release(&self) -> Error {
        self.error(ErrorKind::Store, "another release of it is under way").retryable()
    }

    /// Repeats the release until it is answered.
    fn repeat_release(&self, attempt: &mut Attempt, by: Instant, tries: Tries) -> Result<()> {
        let mut failures = Failures::none();
        loop {
            let all = Deadline::at(by);
            let deadline = if tries == Tries::One { all } else { all.of_try() }.within(self.setup.request_timeout);
            // A copy of its acquire may still be on its way.
            let purpose = if attempt.sends > 1 { Purpose::GiveUp } else { Purpose::Release };
            let backend = &self.setup.backend;
            pause!("release.sent");
            let release = || backend.release(attempt, purpose, &deadline);
            let may_be_done = |released: &Released| matches!(released, Released::Done | Released::Unknown(_));
            let (answer, by_another) = self.counted_end(release, Released::Unknown, may_be_done);
            let error = match answer {
                Ok(Released::Done) => {
                    pause!("release.answered");
                    return Ok(());
                }
                Ok(Released::Free | Released::HeldByOther(_)) if by_another => return Ok(()),
                Ok(Released::Free) => return Err(self.error(ErrorKind::Lost, ENDED)),
                Ok(Released::HeldByOther(seen)) => {
                    let LossReason::TakenOver { by } = self.reason(&seen) else {
                        return Err(self.error(ErrorKind::Lost, ENDED));
                    };
                    let (by, mut holders) = (by.map(|by| by.fencing_token()), LockStatus::live(&seen));
                    // The one that took it over comes first, before those that share the lock with it.
                    holders.sort_by_key(|holder| Some(holder.fencing_token()) != by);
                    return Err(self.error(ErrorKind::Lost, "it was taken over").with_holders(holders));
                }
                Ok(Released::Unknown(error)) => error,
                Err(error) if !error.is_retryable() && !by_another => return Err(error),
                Err(error) => error,
            };
            if tries == Tries::One {
                return Err(error);
            }
            failures.wait(error, &Deadline::at(by))?;
        }
    }

    pub fn forked(&self) -> Error {
        self.error(ErrorKind::Closed, "the guard belongs to the process that this one was forked from")
    }

    pub fn error(&self, kind: ErrorKind, message: &str) -> Error {
        self.in_context(Error::new(kind, message))
    }

    pub fn in_context(&self, error: Error) -> Error {
        error.with_key(&self.grant.lock.key).with_store(&self.setup.backend.info().label)
    }
}
