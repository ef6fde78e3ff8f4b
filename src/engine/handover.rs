//! A release that hands the lock to the next waiter of this process: one request, a new token, no gap.

use std::time::{Instant, SystemTime};

use super::hold::Hold;
use super::undo::give_up;
use crate::engine::spec::{Chain, Granted, LockSpec};
use crate::lease::Mode;
use crate::model::error::Result;
use crate::store::Acquired;
use crate::sys::deadline::Deadline;
use crate::sys::pause::pause;

/// After this many hand-overs in a row the lock is really released, so that other processes get a turn.
const MAX_IN_A_ROW: u32 = 8;

/// How a hand-over went.
pub(super) enum PassedOn {
    /// The hold is over, with this answer.
    Yes(Result<()>),
    /// The lock must be released, unless an unanswered hand-over has already ended the hold.
    No,
    /// The lock must be released, and the head of the line waits for one poll, so that other processes get a turn.
    OthersTurn,
}

impl Hold {
    /// Hands the lock over to the head of the line.
    pub(super) fn pass_on(&self, by: Instant) -> PassedOn {
        let (setup, now) = (&self.setup, self.setup.clock.now());
        let held_in_a_row = now.since(self.grant.chain.since);
        // Inside this process the lock may be handed over for one lease.
        let fair = self.grant.chain.times < MAX_IN_A_ROW && setup.terms.lease.longest() > held_in_a_row;
        // A copy of its acquire may still be on its way, unless it was sent once: only a release stops such a copy.
        if self.grant.lock.mode() != Mode::Exclusive || !self.grant.lock.sent_once {
            return PassedOn::No;
        }
        if !fair {
            return PassedOn::OthersTurn;
        }
        pause!("hand.chooses");
        let exclusive = |spec: &LockSpec| spec.mode == Mode::Exclusive;
        let Some(next) = setup.queues.reserve(self.grant.lock.key(), exclusive) else {
            return PassedOn::No;
        };
        pause!("hand.reserved");
        let terms = next.spec().terms;
        let lease = terms.first_lease_at(now);
        if !terms.leave_time_at(now) {
            return PassedOn::No;
        }
        let old = (self.grant.lock.grant.clone(), self.grant.lock.fencing_token());
        let mut attempt = next.spec().attempt(setup.backend.info().grant_form.fresh(), lease);
        attempt.ask.instead_of = Some(old);
        // Half of the time is left for a release, should this not be answered.
        let half = by.saturating_duration_since(Instant::now()) / 2;
        let deadline = Deadline::after(half.min(setup.request_timeout));
        let (sent, wall) = (setup.clock.now(), SystemTime::now());
        attempt.sends = 1;
        attempt.replaces_sent_once = true;
        let noted = setup.queues.note(&attempt, true);
        let _handing = self.requests.handing.lock();
        pause!("hand.sent");
        let hand_over = || setup.backend.acquire(&mut attempt, &deadline);
        let may_be_done = |answer: &Acquired| matches!(answer, Acquired::Granted { .. } | Acquired::Unknown(_));
        let (answer, by_another) = self.counted_end(hand_over, Acquired::Unknown, may_be_done);
        match answer {
            Ok(Acquired::Granted { holder, now, .. }) => {
                let held_until = terms.first_held_until((sent, lease), sent, holder.until, now);
                let chain = Chain { times: self.grant.chain.times + 1, ..self.grant.chain };
                noted.is_granted(holder.token, setup.clock.now());
                let granted = Granted { attempt, holder, now, wall, held_until, chain, noted: Some(noted) };
                pause!("hand.gives");
                match next.give(granted) {
                    Ok(()) => {
                        pause!("hand.given");
                        PassedOn::Yes(Ok(()))
                    }
                    // The waiter went away: its grant is given up.
                    Err(granted) => {
                        *self.requests.handed.lock() = Some(granted.attempt);
                        let given_up = self.give_up_hand_over(&Deadline::at(by));
                        setup.queues.nudge(self.grant.lock.key());
                        PassedOn::Yes(given_up)
                    }
                }
            }
            Ok(Acquired::Refused(_)) if by_another => PassedOn::Yes(Ok(())),
            // Its own release finds out whether the grant remains: near its end, a store may refuse to hand over one
            // that does.
            Ok(Acquired::Refused(_)) => PassedOn::No,
            Ok(Acquired::Unknown(_)) => {
                pause!("hand.unanswered");
                // If it happened, there is nothing left to release.
                *self.requests.handed.lock() = Some(attempt);
                PassedOn::No
            }
            Err(_) => PassedOn::No,
        }
    }

    /// Gives up a hand-over that was not answered, so that no grant is left in the store that nobody knows of.
    pub(super) fn give_up_hand_over(&self, by: &Deadline) -> Result<()> {
        let Some(mut attempt) = ({ self.requests.handed.lock().take() }) else { return Ok(()) };
        pause!("hand.undoes");
        let given_up = give_up(&*self.setup.backend, &mut attempt, by, self.setup.request_timeout);
        if given_up.is_err() {
            *self.requests.handed.lock() = Some(attempt);
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::engine::acquire::obtain;
    use crate::engine::family::Family;
    use crate::engine::hold::Beat;
    use crate::engine::options::ClientOptions;
    use crate::engine::orders::{LEASE, faulty, spec};
    use crate::engine::queue::May;
    use crate::engine::spec::{Callbacks, Obtained, OnWait, Patience, WaitSpec};
    use crate::model::error::ErrorKind;
    use crate::store::Backend;
    use crate::store::fault::Call;
    use crate::sys::cancel::CancelToken;

    /// During these calls a mutex is locked that the heartbeat, or a waiter, waits for.
    #[test]
    fn where_a_logger_hangs_at_what_the_store_says_no_renewal_and_no_hand_over_does() {
        let (store, clock, faulty, faults) = faulty();
        let family = Family::new(faulty, clock.clone(), ClientOptions::default());
        let (by, sent, spec) = (Deadline::after(Duration::from_secs(60)), clock.now(), spec());
        let mut attempt = spec.attempt(store.info().grant_form.fresh(), LEASE);
        attempt.sends = 1;
        let Ok(Acquired::Granted { holder, now, .. }) = store.acquire(&mut attempt, &by) else { panic!("it is free") };
        let held_until = spec.terms.held_until(spec.terms.lease, sent, holder.until, now);
        let chain = Chain { times: 0, since: sent };
        let granted = Granted { attempt, holder, now, wall: SystemTime::now(), held_until, chain, noted: None };
        let hold = family.hold(granted, spec.terms, Callbacks::default(), &by).expect("a hold");
        assert!(matches!(hold.beat(), Beat::Renewed));
        let ticket = family.queues.enter(spec, &Arc::default(), &Deadline::after(Duration::MAX));
        hold.release(Duration::from_secs(60)).expect("it is handed over");
        assert!(matches!(ticket.may(), May::Take(_)));
        assert_eq!([Call::Renew, Call::Acquire].map(|call| faults.count(call)), [1, 1]);
        // Those behind a waiter would not pass it over.
        drop(ticket);
        faults.never_wakes();
        let cancel = CancelToken::new();
        let (ends, looks) = (cancel.clone(), faults.clone());
        let on_wait: OnWait<'_> = Box::new(move |_| {
            if looks.count(Call::Read) > 0 {
                ends.cancel();
            }
        });
        let asks = |key: &str, on_wait| {
            let lock = LockSpec { key: key.to_owned(), ..crate::engine::orders::spec() };
            WaitSpec {
                lock,
                stands_back: false,
                gets_guard: true,
                cancel: Some(cancel.clone()),
                on_wait,
                on_wait_every: None,
            }
        };
        // A lock of such a lease is renewed once before anybody has it.
        assert!(matches!(obtain(&family, asks("free", None), Patience::Once), Ok(Obtained::Granted(_))));
        assert_eq!(faults.count(Call::Renew), 2);
        let ended = obtain(&family, asks("k", Some(on_wait)), Patience::Endless).err().expect("it is held");
        assert_eq!((ended.kind(), faults.count(Call::Acquire)), (ErrorKind::Cancelled, 3));
        assert!(faults.loose().is_empty(), "{:?}", faults.loose());
    }
}
