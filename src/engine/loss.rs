//! The end of a hold that its holder did not want: how it is found, and how it is reported.

use parking_lot::MutexGuard;

use super::hold::{Hold, LostBy, Phase, State};
use crate::lease::{Holder, Lease, Mode};
use crate::model::error::{Error, ErrorKind};
use crate::model::event::Event;
use crate::model::key::shown;
use crate::model::lock::{Lock, LockStatus};
use crate::model::loss::{Loss, LossReason};
use crate::store::Seen;
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::thread::keeping_a_lock;

impl Hold {
    /// Declares the loss if the deadline has passed, or the time of `max_hold`.
    pub fn expire_when_due(&self) {
        if !self.is_own_process() {
            return;
        }
        let is_held = self.state.lock().phase == Phase::Held;
        if is_held && !self.is_held() {
            self.expire();
        }
    }

    /// Declares the loss of a lock that is over by the clock. Another thread reports it, whoever calls this (in the C
    /// library this one): so the report is queued before anybody can be granted the key.
    pub(super) fn expire(&self) {
        if !self.is_own_process() {
            return;
        }
        // A heartbeat may have moved the end of the lease since the caller looked.
        let is_by_max_hold = self.is_running() && self.left_of_max_hold().is_some_and(|left| left.is_zero());
        let last_error = self.state.lock().last_error.clone();
        let reason = if is_by_max_hold { LossReason::MaxHold } else { LossReason::Expired { last_error } };
        keeping_a_lock(|| self.lose(reason));
    }

    /// Declares the loss, once, and reports it. No mutex is held while code of the user's is called.
    pub fn lose(&self, reason: LossReason) {
        // A forked child does not hold the lock, but has not lost it: what it shares with the parent must not report a
        // loss.
        if !self.is_own_process() {
            return;
        }
        let by = match reason {
            LossReason::Expired { .. } | LossReason::MaxHold | LossReason::HeartbeatDied => LostBy::Clock,
            LossReason::TakenOver { .. } | LossReason::ReleasedByOther | LossReason::Gone => LostBy::Store,
        };
        let loss = self.loss_by(reason);
        let is_told_by_another = self.setup.observing.is_told_by_another();
        pause!("loss.found");
        let (at_loss, on_loss) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return;
            }
            state.phase = Phase::Lost(by);
            self.hold_no_longer();
            // What another thread reports must be queued before anybody can see the loss and be granted the key.
            if is_told_by_another {
                self.setup.observing.tell(&Event::Lost { loss: &loss });
            }
            // Before any later release, which must not end the watch without a loss.
            self.loss.end(Some(loss.clone()));
            (state.callbacks.at_loss.take(), state.callbacks.on_loss.take())
        };
        pause!("loss.declared");
        self.beats.stop.cancel();
        // A waiter behind a guard of its own process does not know when the lease ends, and a release may never come.
        self.setup.queues.nudge(&self.grant.lock.key);
        at_loss.into_iter().for_each(|at_loss| at_loss(&loss));
        if let Some(on_loss) = on_loss {
            let loss = loss.clone();
            self.setup.watcher.run("loss callback", Box::new(move || on_loss(loss)));
        }
        // If its user hangs, the guard is never dropped: then only the end that it gets here frees the lock.
        if by == LostBy::Clock && self.setup.terms.lease == Lease::Forever && !self.is_expired() {
            self.end_later();
        }
        // Before the log, which may hang.
        if !is_told_by_another {
            self.setup.observing.tell(&Event::Lost { loss: &loss });
        }
        warn_of(&loss);
    }

    /// Reports an event before anything that ends the hold. What another thread reports is queued while `state` is
    /// locked; otherwise the event is reported once `state` is free.
    pub(super) fn tell_before_its_end(&self, event: impl FnOnce(&str, u64) -> Event<'_>, state: MutexGuard<'_, State>) {
        let kept = self.setup.observing.is_told_by_another().then_some(state);
        self.tell(event);
        drop(kept);
    }

    /// Reports what became of this grant.
    pub(super) fn tell(&self, event: impl FnOnce(&str, u64) -> Event<'_>) {
        self.setup.observing.tell(&event(&shown(&self.grant.lock.key), self.grant.lock.token));
    }

    /// How the lock was lost, by the record that was found.
    pub(super) fn reason(&self, seen: &Seen) -> LossReason {
        if !seen.record.exists() {
            return LossReason::Gone;
        }
        // The grant is still there, but its lease is over, and others may be about to take the lock: so it was not
        // renewed.
        let own = |h: &Holder| h.token == self.grant.lock.token && h.lock_id == self.grant.lock.lock_id;
        if seen.record.holders().any(|(_, h)| own(h)) {
            return LossReason::Expired { last_error: None };
        }
        // A client that adopts a shared lock keeps its lock id, which a key has only once.
        let Lock { mode: ours, lock_id, .. } = &self.grant.lock;
        let takes = |mode: Mode, h: &Holder| [mode, *ours].contains(&Mode::Exclusive) || h.lock_id == *lock_id;
        let rival = seen.live().find(|(mode, h)| takes(*mode, h));
        let by = rival.map(|(mode, h)| LockStatus::new(seen, mode, h));
        // A higher token shows a takeover only of an exclusive lock. Beside a shared one others get tokens, too: it may
        // have been released by an operator.
        let granted_since = self.grant.lock.mode == Mode::Exclusive && seen.record.token > self.grant.lock.token;
        if by.is_some() || granted_since {
            return LossReason::TakenOver { by };
        }
        // After its end, another client may have removed the grant, and have gone since.
        if self.is_running() { LossReason::ReleasedByOther } else { LossReason::Expired { last_error: None } }
    }

    /// The error that says how the lock was lost.
    pub fn lost(&self) -> Error {
        // The watcher may not have looked yet.
        self.expire_when_due();
        match self.loss.get() {
            Some(loss) => {
                let error = self.error(ErrorKind::Lost, &format!("lost: {loss}"));
                match loss.reason {
                    LossReason::TakenOver { by: Some(by) } => error.with_holders(vec![by]),
                    _ => error,
                }
            }
            None => self.error(ErrorKind::Lost, "it is not held any more"),
        }
    }

    pub(super) fn loss_by(&self, reason: LossReason) -> Loss {
        Loss {
            reason,
            key: shown(&self.grant.lock.key).into_owned(),
            fencing_token: self.grant.lock.token,
            held_for: self.held_for(),
        }
    }

    /// Whether it was lost because its lease ended.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self.loss.get().map(|loss| loss.reason), Some(LossReason::Expired { .. }))
    }
}

pub(super) fn warn_of(loss: &Loss) {
    log::warn!(target: "leasehold::guard", key:? = loss.key, token = loss.fencing_token;
        "lock {:?} lost: {loss}", loss.key);
}
