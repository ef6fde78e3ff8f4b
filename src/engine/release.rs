//! The end of a hold: release and hand-over.

use std::time::{Duration, Instant};

use super::handover::PassedOn;
use super::hold::{Hold, Phase};
use super::undo::ends_hold;
use crate::lease::backoff;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::key::shown;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::{Loss, LossReason};
use crate::store::{Attempt, Released};
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::log;
use crate::sys::observing::later;

/// How long the first in line stands back for other processes, which are told at the same time as it is.
const OTHERS_TURN: Duration = Duration::from_millis(25);

impl Hold {
    /// Stops the heartbeat, then releases in the store, all within `bound`.
    ///
    /// An error of kind `Lost` is final; after any other one it can be called again.
    pub fn release(&self, bound: Duration) -> Result<()> {
        if self.setup.outlived_by_grant {
            self.hand_over(bound);
            return Ok(());
        }
        let by = far_from(Instant::now(), bound);
        let before = self.begin_release();
        if before == Phase::Over {
            return Ok(());
        }
        self.stop_heartbeat(bound / 2);
        let answer = self.send_end(before, by);
        self.ended(before, answer)
    }

    /// What the end of the hold takes in the store.
    pub(super) fn send_end(&self, before: Phase, by: Instant) -> Result<()> {
        let mut worth_a_look = true;
        let answer = match before {
            // Somebody else has it: there is nothing to release.
            Phase::Lost(false) => Ok(()),
            // One request, since the store may still have the grant; more where it has it for long.
            Phase::Lost(true) => self.send_release(by, self.is_expired(), false),
            // What was tried before may have been done in part: only a plain release is sure.
            Phase::Releasing | Phase::Over => self.send_release(by, false, true),
            Phase::Held => match self.pass_on(by) {
                PassedOn::Yes(answer) => {
                    worth_a_look = false;
                    answer
                }
                PassedOn::No { may_be_done } => self.send_release(by, false, may_be_done),
                PassedOn::OthersTurn => {
                    worth_a_look = false;
                    let stand_back = || {
                        let until = Instant::now() + OTHERS_TURN;
                        self.setup.queues.stand_back(&self.granted.key, until);
                    };
                    stand_back();
                    let answer = self.send_release(by, false, false);
                    // From when the others could know.
                    stand_back();
                    answer
                }
            },
        };
        if worth_a_look {
            // Whoever waits in this process need not wait for its next look.
            self.setup.queues.nudge(&self.granted.key);
        }
        answer
    }

    pub(super) fn ended(&self, before: Phase, answer: Result<()>) -> Result<()> {
        if matches!(before, Phase::Lost(_)) {
            if let Err(error) = answer {
                log::debug!(target: "leasehold::guard", key:? = self.granted.key; "releasing a lost lock: {error}");
            }
            self.finish();
            return Err(self.lost());
        }
        if answer.as_ref().is_ok_and(|()| self.finish()) {
            self.tell_end(|key, held_for| Event::Released { key, held_for });
        }
        answer.inspect_err(|error| {
            if error.kind() == ErrorKind::Lost {
                let by = error.holders().first().cloned();
                let reason = if by.is_some() { LossReason::TakenOver { by } } else { LossReason::ReleasedByOther };
                // The guard's own watch ends without a loss, as by any release: the answer tells.
                if self.finish() {
                    self.setup.observing.tell(&Event::Lost { loss: &self.loss_by(reason) });
                }
            }
        })
    }

    pub(super) fn loss_by(&self, reason: LossReason) -> Loss {
        Loss {
            reason,
            key: shown(&self.granted.key).into_owned(),
            fencing_token: self.granted.token,
            held_for: self.setup.clock.now().since(self.granted_at),
        }
    }

    /// Whether it was lost because its lease ended.
    fn is_expired(&self) -> bool {
        matches!(self.loss.get().map(|loss| loss.reason), Some(LossReason::Expired { .. }))
    }

    /// Whether another release of this very hold may have done it.
    pub(super) fn is_released_again(&self) -> bool {
        self.state.lock().released_again
    }

    /// Stops the heartbeat and leaves the lock as it stands in the store.
    pub fn hand_over(&self, bound: Duration) -> Lock {
        self.stop_holding(bound, |key, held_for| Event::HandedOver { key, held_for });
        self.info()
    }

    /// The same for nobody: the lock ends with its lease.
    pub fn leave(&self, bound: Duration) {
        self.stop_holding(bound, |key, held_for| Event::Left { key, held_for });
    }

    fn stop_holding(&self, bound: Duration, end: impl FnOnce(&str, Duration) -> Event<'_>) {
        self.begin_release();
        self.stop_heartbeat(bound);
        if self.finish() {
            self.tell_end(end);
        }
    }

    /// Tells the observer of the end, which the caller has just finished.
    fn tell_end(&self, end: impl FnOnce(&str, Duration) -> Event<'_>) {
        let held_for = self.setup.clock.now().since(self.granted_at);
        self.setup.observing.tell(&end(&shown(&self.granted.key), held_for));
    }

    /// Marks it, so that no heartbeat that follows can say "held" again. What it was before.
    pub(super) fn begin_release(&self) -> Phase {
        let mut state = self.state.lock();
        let before = state.phase;
        if before == Phase::Held {
            state.phase = Phase::Releasing;
        }
        state.released_again |= before == Phase::Releasing;
        self.hold_no_longer();
        before
    }

    /// Cancels the heartbeat's request and waits for its thread; one that hangs is left behind.
    fn stop_heartbeat(&self, bound: Duration) {
        self.stop.cancel();
        let heartbeat = self.state.lock().heartbeat.take();
        if let Some(heartbeat) = heartbeat
            && !heartbeat.join_by(far_from(Instant::now(), bound))
        {
            let key = shown(&self.granted.key);
            log::warn!(target: "leasehold::guard", key:?; "a heartbeat of lock {key:?} that hangs is left behind");
        }
    }

    /// Nobody can release it any more, nor hear that it is lost.
    pub fn let_go(&self) {
        if self.finish() {
            self.tell_end(|key, held_for| Event::Left { key, held_for });
        }
    }

    /// Nothing is left to do. Whether the hold is over by this, and not by a loss or an earlier end: then the caller
    /// tells how.
    fn finish(&self) -> bool {
        let before = std::mem::replace(&mut self.state.lock().phase, Phase::Over);
        // Nobody else knows of it any more.
        let handed = self.handed.lock().take();
        handed.into_iter().for_each(|attempt| self.setup.undo.push(attempt));
        self.loss.settle(None);
        matches!(before, Phase::Held | Phase::Releasing)
    }

    fn send_release(&self, by: Instant, once: bool, may_be_done: bool) -> Result<()> {
        let half = || Instant::now() + by.saturating_duration_since(Instant::now()) / 2;
        // What may have been granted to a waiter that does not know comes first: it would stand for a lease.
        let given_up = self.give_up_hand_over(&Deadline::at(half()));
        // Dropped after `attempt` is free again: an observer may call the guard.
        let _later = later();
        // A heartbeat that hangs keeps the attempt: then a copy has to do.
        let released = match self.attempt.try_lock_until(half()) {
            Some(mut attempt) => self.repeat_release(&mut attempt, by, once, may_be_done),
            None => self.repeat_release(&mut self.spare.lock(), by, once, may_be_done),
        };
        released.and(given_up)
    }

    /// Repeats the release until it is answered.
    fn repeat_release(&self, attempt: &mut Attempt, by: Instant, once: bool, mut may_be_done: bool) -> Result<()> {
        let mut failures = 0;
        loop {
            let deadline = Deadline::at(by).within(self.setup.request_timeout);
            let give_up = attempt.sends > 1;
            let backend = &self.setup.backend;
            let error = match ends_hold(|| backend.release(attempt, give_up, &deadline), Released::Unknown) {
                Ok(Released::Done) => return Ok(()),
                // An unanswered release of ours may have done it.
                Ok(Released::Free | Released::HeldByOther(_)) if may_be_done || self.is_released_again() => {
                    return Ok(());
                }
                Ok(Released::Free) => return Err(self.error(ErrorKind::Lost, "it was released by another")),
                Ok(Released::HeldByOther(seen)) => {
                    return Err(self.error(ErrorKind::Lost, "it was taken over").with_holders(LockStatus::live(&seen)));
                }
                Ok(Released::Unknown(error)) => {
                    may_be_done = true;
                    error
                }
                Err(error) if !error.is_retryable() && !may_be_done => return Err(error),
                Err(error) => error,
            };
            failures += 1;
            let left = by.saturating_duration_since(Instant::now());
            if once || !Deadline::at(by).wait_for(backoff::retry_delay(failures, left, fastrand::f64())) {
                return Err(error);
            }
        }
    }

    /// The error that tells how the lock was lost.
    pub fn lost(&self) -> Error {
        // Whoever asks before the watcher has looked hears the reason, too.
        self.expire_when_due();
        match self.loss.get() {
            Some(loss) => self.error(ErrorKind::Lost, &format!("lost: {loss}")),
            None => self.error(ErrorKind::Lost, "it is not held any more"),
        }
    }

    pub(super) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message).with_key(&self.granted.key).with_store(&self.setup.backend.info().label)
    }
}
