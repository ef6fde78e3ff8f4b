//! Every order of steps of a holder and its waiters. Each step is one call, as in `acquire` and `release`; a
//! waiter takes one only when it was nudged, so that a lost nudge ends in a standstill.

use super::*;
use crate::engine::orders::{World as _, all_orders, in_random_histories, spec};
use crate::engine::spec::Chain;
use crate::lease::{End, GrantId, Holder, StoreTime};
use crate::store::Attempt;
use crate::sys::cancel::CancelToken;
use crate::sys::clock::BootTime;
use std::time::{Duration, SystemTime};

fn granted(number: u64) -> Granted {
    let attempt: Attempt = spec().attempt(GrantId::from_text(number.to_string()), Duration::from_secs(1));
    let holder = Holder {
        grant: attempt.ask.grant.clone(),
        lock_id: attempt.ask.lock_id.clone(),
        labels: attempt.ask.labels.clone(),
        token: number,
        created: StoreTime::from_nanos(0),
        renewed: None,
        until: End::Never,
    };
    let chain = Chain { times: 0, since: BootTime::PAST };
    let (now, wall) = (StoreTime::from_nanos(0), SystemTime::UNIX_EPOCH);
    Granted { attempt, holder, now, wall, held_until: BootTime::NEVER, chain, noted: None }
}

fn never_over() -> Deadline {
    Deadline::after(Duration::MAX)
}

/// What somebody is about to do.
enum State {
    Outside,
    /// It is in the line and sleeps until it is nudged.
    Waits(Ticket),
    /// It may ask the store.
    Asks(Ticket),
    /// It was refused and has not called `asked` yet.
    Refused(Ticket),
    Holds,
    /// It hands over.
    Gives(Reservation),
    /// It has released in the store and has nudged nobody.
    Released,
    Done,
}

struct World {
    queues: Arc<Queues>,
    states: Vec<State>,
    /// Whose grant is in the store.
    stands: Option<u64>,
    grants: u64,
    waiters: Waiters,
}

/// Whether a waiter may go away before it has the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiters {
    Stay,
    MayGo,
}

impl World {
    /// The first one holds; the others want to.
    fn new(all: usize, waiters: Waiters) -> World {
        let states = (0..all).map(|at| if at == 0 { State::Holds } else { State::Outside }).collect();
        World { queues: Arc::default(), states, stands: Some(0), grants: 0, waiters }
    }

    fn next_grant(&mut self) -> u64 {
        self.grants += 1;
        self.grants
    }

    /// Leaves the line: it then holds the lock, or is done, or has to release what was handed over in vain.
    fn leave(&mut self, ticket: Ticket, leaves: Leaves) -> State {
        match ticket.leave(leaves) {
            None if leaves == Leaves::WithLock => State::Holds,
            None => State::Done,
            Some(handed) => {
                assert_eq!(self.stands, Some(handed.holder.token), "what was handed over does not stand");
                assert_eq!(leaves, Leaves::Without, "granted twice");
                self.stands = None;
                State::Released
            }
        }
    }
}

impl crate::engine::orders::World for World {
    /// Which actor, and whether it goes away instead of taking its step.
    type Choice = (usize, bool);

    fn choices(&self) -> Vec<(usize, bool)> {
        let mut choices = Vec::new();
        for (at, state) in self.states.iter().enumerate() {
            match state {
                State::Waits(ticket) => {
                    if !ticket.nudged().is_empty() {
                        choices.push((at, false));
                    }
                    if self.waiters == Waiters::MayGo {
                        choices.push((at, true));
                    }
                }
                State::Done => {}
                _ => choices.push((at, false)),
            }
        }
        choices
    }

    fn step(&mut self, (at, goes): (usize, bool)) {
        let state = std::mem::replace(&mut self.states[at], State::Done);
        self.states[at] = match state {
            State::Outside => {
                let ticket = self.queues.enter(spec(), &Arc::default(), &never_over());
                // As after a refusal: the wakeups, or the first poll, make it look.
                let _ = ticket.place.nudge.0.try_send(());
                State::Waits(ticket)
            }
            State::Waits(ticket) if goes => self.leave(ticket, Leaves::Without),
            State::Waits(ticket) => {
                let _ = ticket.nudged().try_recv();
                match ticket.place() {
                    0 => match ticket.may() {
                        May::Ask => State::Asks(ticket),
                        May::Wait => State::Waits(ticket),
                        May::Take(granted) => {
                            assert_eq!(self.stands, Some(granted.holder.token));
                            self.leave(ticket, Leaves::WithLock)
                        }
                    },
                    _ => State::Waits(ticket),
                }
            }
            State::Asks(ticket) if self.stands.is_none() => {
                self.stands = Some(self.next_grant());
                self.leave(ticket, Leaves::WithLock)
            }
            State::Asks(ticket) => State::Refused(ticket),
            State::Refused(ticket) => {
                ticket.asked();
                State::Waits(ticket)
            }
            State::Holds => match self.queues.reserve("k", |_| true) {
                Some(reservation) => State::Gives(reservation),
                None => {
                    self.stands = None;
                    State::Released
                }
            },
            State::Gives(reservation) => {
                let number = self.next_grant();
                self.stands = Some(number);
                match reservation.give(granted(number)) {
                    Ok(()) => State::Done,
                    Err(_) => {
                        self.stands = None;
                        State::Released
                    }
                }
            }
            State::Released => {
                self.queues.nudge("k");
                State::Done
            }
            State::Done => State::Done,
        };
        let holds = self.states.iter().filter(|state| matches!(state, State::Holds | State::Gives(_))).count();
        assert!(holds <= 1, "two hold it");
    }

    fn check_end(&self) {
        assert!(self.states.iter().all(|state| matches!(state, State::Done)), "somebody waits for ever");
        assert_eq!(self.stands, None, "a grant that nobody owns is left");
        assert_eq!(self.queues.len("k"), 0, "somebody is left in the line");
    }
}

#[test]
fn only_a_head_that_waits_and_fits_is_reserved() {
    let queues = Arc::<Queues>::default();
    let (ticket, second) =
        (queues.enter(spec(), &Arc::default(), &never_over()), queues.enter(spec(), &Arc::default(), &never_over()));
    assert!(queues.reserve("k", |_| false).is_none());
    assert!(matches!(ticket.may(), May::Ask));
    assert!(queues.reserve("k", |_| true).is_none(), "it may be granted by itself");
    ticket.asked();
    assert!(queues.reserve("k", |_| true).is_some_and(|reserved| Arc::ptr_eq(&reserved.0, &ticket.place)));
    drop(ticket);
    assert_eq!((queues.len("k"), second.place()), (1, 0));
}

/// It would give the lock back, but its process may end before that.
#[test]
fn who_does_not_wait_any_more_is_handed_nothing() {
    let (queues, cancel) = (Arc::<Queues>::default(), CancelToken::new());
    let _ticket = queues.enter(spec(), &Arc::default(), &never_over().or_cancel(&cancel));
    assert!(queues.reserve("k", |_| true).is_some());
    cancel.cancel();
    assert!(queues.reserve("k", |_| true).is_none());
}

#[test]
fn who_hangs_in_code_of_its_users_is_passed_over() {
    let queues = Arc::<Queues>::default();
    let code = Arc::<UsersCode>::default();
    let (first, second) =
        (queues.enter(spec(), &code, &never_over()), queues.enter(spec(), &Arc::default(), &never_over()));
    code.runs(Some(Instant::now()));
    assert_eq!(second.place(), 1, "most code returns soon");
    code.runs(Some(Instant::now() - HANGS));
    assert_eq!((first.place(), second.place()), (0, 0));
    queues.nudge("k");
    assert_eq!((first.nudged().len(), second.nudged().len()), (0, 1));
    let reserved = queues.reserve("k", |_| true).expect("the second waits");
    // The first may come back before the second has taken what is handed over.
    code.runs(None);
    assert!(second.place() == 1 && second.is_handed());
    assert!(reserved.give(granted(1)).is_ok());
    assert!(matches!(second.may(), May::Take(_)));
    drop(second);
    // Nobody is behind it.
    code.runs(Some(Instant::now() - HANGS));
    assert!(queues.reserve("k", |_| true).is_none());
    queues.nudge("k");
    assert_eq!(first.nudged().len(), 1);
    code.runs(None);
    assert!(queues.reserve("k", |_| true).is_some());
}

#[test]
fn the_head_stands_back_until_it_is_time() {
    let queues = Arc::<Queues>::default();
    let ticket = queues.enter(spec(), &Arc::default(), &never_over());
    assert_eq!(ticket.others_turn(), None);
    let later = Instant::now() + Duration::from_secs(3600);
    queues.stand_back("k", later);
    assert_eq!(ticket.others_turn(), Some(later));
    queues.stand_back("k", Instant::now());
    assert_eq!(ticket.others_turn(), None);
}

#[test]
fn trouble_is_left_to_the_next_in_line_but_not_by_who_got_the_lock() {
    for (leaves, is_left) in [(Leaves::Without, true), (Leaves::WithLock, false)] {
        let queues = Arc::<Queues>::default();
        let (first, _second) = (
            queues.enter(spec(), &Arc::default(), &never_over()),
            queues.enter(spec(), &Arc::default(), &never_over()),
        );
        first.is_in_trouble(Some(Error::new(ErrorKind::Store, "it is down")));
        assert!(queues.trouble("k").is_some_and(|error| error.to_string().contains("it is down")));
        first.leave(leaves);
        assert_eq!(queues.trouble("k").is_some(), is_left, "left {leaves:?}");
    }
}

#[test]
fn trouble_that_the_next_in_line_knows_of_is_not_replaced() {
    let queues = Arc::<Queues>::default();
    let (first, second) =
        (queues.enter(spec(), &Arc::default(), &never_over()), queues.enter(spec(), &Arc::default(), &never_over()));
    first.is_in_trouble(Some(Error::new(ErrorKind::Store, "the first's")));
    second.is_in_trouble(Some(Error::new(ErrorKind::Store, "the second's")));
    drop(first);
    assert!(queues.trouble("k").is_some_and(|error| error.to_string().contains("the second's")));
    second.is_in_trouble(None);
    assert!(queues.trouble("k").is_none());
}

#[test]
fn in_every_order_all_get_the_lock_or_go_and_nothing_is_left() {
    let limit = 400_000;
    assert!(all_orders(|| World::new(2, Waiters::MayGo), limit) < limit);
    assert!(all_orders(|| World::new(3, Waiters::Stay), limit) < limit);
}

#[test]
fn in_random_orders_so_do_many() {
    in_random_histories(5_000, || {
        let mut world = World::new(5, Waiters::MayGo);
        for steps in 0.. {
            assert!(steps < 2_000, "it goes round in circles");
            let mut choices = world.choices();
            // Most waiters stay.
            choices.retain(|(_, goes)| !goes || fastrand::u8(..) < 40);
            let Some(choice) = fastrand::choice(choices) else {
                if world.choices().iter().any(|(_, goes)| *goes) && world.stands.is_some() {
                    continue;
                }
                break;
            };
            world.step(choice);
        }
        assert!(world.choices().is_empty(), "they stand still although the lock is free");
        world.check_end();
        true
    });
}
