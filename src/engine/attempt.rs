//! One attempt to obtain a lock: its requests, and what is made of their answers.

use std::time::{Instant, SystemTime};

use super::acquire::{Before, Round, Wait};
use super::failures::{refused_at_last, tells_most};
use super::queue::SILENT;
use super::undo;
use crate::engine::spec::{Chain, Granted, LockSpec};
use crate::lease::{GrantId, Holder, Mode};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::model::lock::LockStatus;
use crate::store::{Acquired, Attempt, Seen};
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::observing::later;
use crate::sys::pause::pause;
use crate::sys::thread::keeping_a_lock;

impl Wait<'_> {
    /// One acquisition with a grant id of its own: repeated until it is answered, given up when it gets too old.
    pub(super) fn attempt(&mut self, overall: &Deadline) -> Result<Round> {
        let family = self.family;
        let (info, clock, terms) = (family.backend.info(), &family.clock, self.spec.lock.terms);
        let asked_at = clock.now();
        let lease = terms.first_lease_at(asked_at);
        if !terms.leave_time_at(asked_at) {
            return Err(Error::new(ErrorKind::TimedOut, "the end of the lease came before the lock could be granted"));
        }
        let mut attempt = self.spec.lock.attempt(info.grant_form.fresh(), lease);
        // The error of an unanswered try. It is preferred to the last error, since that try may still be granted.
        let mut unanswered = None;
        let mut failures = 0;
        let mut first_sent = None;
        loop {
            // The lease is counted from before the request.
            let (sent, asked, wall) = (clock.now(), Instant::now(), SystemTime::now());
            let first_sent = *first_sent.get_or_insert(sent);
            let noted = family.queues.note(&attempt, self.spec.gets_guard);
            self.begins_try(&mut attempt);
            let by = overall.of_try().within(family.options.request_timeout);
            let answer = self.asking(asked, || {
                pause!("acquire.sent");
                let answer = family.unowned(&mut attempt, |attempt| family.backend.acquire(attempt, &by));
                pause!("acquire.answered");
                answer
            });
            // The observer to which the request was reported may have forked.
            family.check_process()?;
            // Before more code of the user's: what is not granted is in nobody's way.
            let noted = matches!(answer, Ok(Acquired::Granted { .. })).then_some(noted);
            let error = match answer {
                Ok(Acquired::Granted { holder, repeated, now }) => {
                    // An earlier try without an answer may have been granted, and this may be a new grant after that
                    // one's end. Others act on that end, so the lease counts from the first try.
                    let from = if repeated || unanswered.is_some() { first_sent } else { sent };
                    let held_until = terms.first_held_until((from, lease), sent, holder.until, now);
                    if clock.now() >= held_until {
                        drop(noted);
                        return self.void(attempt, overall);
                    }
                    pause!("acquire.timed");
                    let chain = Chain { times: 0, since: sent };
                    noted.iter().for_each(|noted| noted.is_granted(holder.token, clock.now()));
                    return self.granted(Granted { attempt, holder, now, wall, held_until, chain, noted }, overall);
                }
                Ok(Acquired::Refused(seen)) => {
                    if unanswered.is_some() {
                        // An earlier copy may still arrive, after the present holder has gone.
                        self.give_up(attempt, overall);
                    }
                    return self.refused(seen);
                }
                Ok(Acquired::Unknown(error)) => {
                    unanswered = Some(tells_most(unanswered, error.clone(), overall.cut_off(asked, SILENT)));
                    error
                }
                Err(error) if !error.is_retryable() => {
                    if unanswered.is_some() {
                        family.give_up_later(attempt);
                    }
                    // That try is given up; but it may have ended the hold of another.
                    let LockSpec { instead_of, replace_same_owner, .. } = &self.spec.lock;
                    let matters = instead_of.is_some() || *replace_same_owner;
                    return Err(refused_at_last(unanswered.filter(|_| matters), error));
                }
                Err(error) => error,
            };
            self.in_users_code(|| log::debug!(target: "leasehold::client", key:? = self.spec.lock.key; "an acquire failed and is repeated: {}", error.with_causes()));
            family.check_process()?;
            pause!("acquire.failed");
            failures += 1;
            self.begins();
            self.failed(error.clone(), asked, overall);
            // One repeat comes before the call asks for another key: it finds a grant whose answer was lost.
            let others_turn =
                self.is_one_of_several && (failures > 1 || clock.now() >= first_sent + family.options.request_timeout);
            let too_old = others_turn || clock.now() >= first_sent + lease / 2;
            if too_old || !overall.wait_to_repeat(failures) {
                if unanswered.is_some() && others_turn {
                    family.give_up_later(attempt);
                } else if unanswered.is_some() {
                    self.give_up(attempt, overall);
                    if self.spec.lock.instead_of.is_some() {
                        // It can no longer be known whether the transfer happened. Asking again could report as lost a
                        // lock that this very call has transferred.
                        return Err(unanswered.unwrap_or(error).retryable());
                    }
                }
                // Without an unanswered try, `last_error` stays as `failed` has set it.
                if let Some(unanswered) = unanswered {
                    self.known.last_error = Some(unanswered.retryable());
                }
                return Ok(Round::Trouble);
            }
            // Not while a try may still be granted: it must be given up before `on_wait` can hang or close the client.
            unanswered.is_none().then(|| self.report_trouble());
            family.check_process()?;
        }
    }

    /// Gives up an attempt, now if there is time, else in the background.
    pub(super) fn give_up(&self, mut attempt: Attempt, overall: &Deadline) {
        pause!("acquire.undoes");
        let timeout = self.family.options.request_timeout;
        let now = overall.clone().within(timeout);
        let later = later();
        if now.is_over() || undo::give_up(&*self.family.backend, &mut attempt, &now, timeout).is_err() {
            self.family.give_up_later(attempt);
        }
        self.in_users_code(|| drop(later));
    }

    /// Reports a refusal; an error if this client would wait for itself.
    pub(super) fn refused(&mut self, seen: Seen) -> Result<Round> {
        self.answered();
        let holders = LockStatus::live(&seen);
        let event = Event::Refused { key: &self.spec.lock.key, holders: &holders };
        self.in_users_code(|| self.family.options.observing.tell(&event));
        let LockSpec { key, lock_id, .. } = &self.spec.lock;
        let mine = |(_, holder): (Mode, &Holder)| {
            lock_id.as_ref() == Some(&holder.lock_id) && self.family.is_held_here(key, &holder.grant)
        };
        pause!("acquire.refused");
        let is_mine = self.spec.lock.instead_of.is_none() && seen.live().any(mine);
        self.saw(seen);
        if is_mine {
            let message = "this client holds it already with the same lock id";
            return Err(Error::new(ErrorKind::AlreadyHeld, message).with_holders(holders).held_here());
        }
        Ok(Round::Refused)
    }

    /// Begins a try of this acquisition. It replaces no guard that this client was granted since the call began.
    pub(super) fn begins_try(&mut self, attempt: &mut Attempt) {
        let (key, called) = (&self.spec.lock.key, self.effort.called);
        // A guard learns late that another process took its lock: that process has a higher token.
        let known = self.known.last_seen.iter().flat_map(|seen| seen.live()).map(|(_, holder)| holder.token).max();
        // A call that asks once may replace one that is under way; a call that waits looks again instead.
        let (own, waits) = (attempt.ask.grant.clone(), !self.asks_once());
        let fits = |grant: &GrantId, token: Option<u64>| match token {
            Some(token) => known.is_none_or(|known| known <= token),
            None => waits && *grant != own,
        };
        let replaces = self.spec.lock.replace_same_owner;
        attempt.ask.replace_same_owner = replaces && !self.family.has_since(called, key, fits);
        attempt.sends += 1;
        self.effort.attempts += 1;
    }

    /// Sends a request, and shows the waiters behind it since when. What the request has to report to the observer
    /// comes once it is answered, so that a waiter whose observer hangs is passed over.
    pub(super) fn asking<T>(&self, since: Instant, request: impl FnOnce() -> T) -> T {
        let later = later();
        self.asks(Some(since));
        // Nor does a logger hold it up, at what the store itself logs: the waiter would not be passed over then.
        let answer = keeping_a_lock(request);
        self.asks(None);
        self.in_users_code(|| drop(later));
        answer
    }

    /// Shows the waiters behind it when its request began; `None`: no request is under way.
    pub(super) fn asks(&self, at: Option<Instant>) {
        self.ticket().into_iter().for_each(|ticket| ticket.asks(at));
    }

    /// The store answered, so it works.
    pub(super) fn answered(&mut self) {
        (self.known.last_error, self.known.is_out) = (None, false);
        self.ticket().into_iter().for_each(|ticket| ticket.is_in_trouble(None));
    }

    /// A request that began at `asked` failed. If the end of the call cut it off right after it began, that says nothing
    /// about the store.
    pub(super) fn failed(&mut self, error: Error, asked: Instant, overall: &Deadline) {
        let is_cut_off = overall.cut_off(asked, SILENT);
        let told = tells_most(self.known.last_error.take(), error, is_cut_off);
        self.is_in_trouble(told, if is_cut_off { Before::Counts } else { Before::IsOut });
    }

    pub(super) fn is_in_trouble(&mut self, error: Error, before: Before) {
        self.known.is_out |= before == Before::IsOut;
        if self.known.is_out {
            self.ticket().into_iter().for_each(|ticket| ticket.is_in_trouble(Some(error.clone())));
        }
        self.known.last_error = Some(error);
    }
}
