//! Random histories of several processes at one key: real holds and lines of waiters, over a network that loses, doubles
//! and holds back requests, with clocks that are up to 4% wrong. One thread takes all steps, so a seed repeats them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::hold::{AtEnd, Hold, Setup};
use super::network_orders::{Clocks, Network, at_once, one_in};
use super::options::Terms;
use super::orders::in_random_histories;
use super::queue::{Leaves, May, Queues, Ticket};
use super::spec::{Callbacks, Chain, Granted, LockSpec};
use super::undo::Undo;
use super::watcher::Watcher;
use crate::lease::{GrantId, Labels, Lease, Mode};
use crate::model::error::ErrorKind;
use crate::store::{Acquired, Attempt, Backend, Purpose, Released};
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::Deadline;
use crate::sys::observing::Observing;

/// As long as an acquire may ask for.
pub const LEASE: Duration = Duration::from_secs(60);
const HISTORIES: u64 = 10_000;
const PROCESSES: usize = 3;
/// Per process.
const WORKERS: usize = 2;
/// How often a worker wants the lock.
const ROUNDS: u32 = 3;
/// A process: what its workers share.
struct Process {
    clock: Arc<Clock>,
    queues: Arc<Queues>,
    undo: Arc<Undo>,
    watcher: Arc<Watcher>,
}

/// Where a worker is.
enum At {
    Outside,
    InLine(Ticket),
    /// Its acquire was first sent at this time, and not answered.
    Asks(Attempt, BootTime, Option<Ticket>),
    GivesUp(Attempt),
    Holds(Arc<Hold>),
    /// Its release was not answered.
    Releases(Arc<Hold>),
}

struct Worker {
    process: usize,
    spec: LockSpec,
    at: At,
    rounds: u32,
}

struct World {
    network: Arc<Network>,
    processes: Vec<Process>,
    workers: Vec<Worker>,
    /// The highest token of a grant that was held, and of a write.
    granted: u64,
    written: u64,
    /// Grants of holds that were lost: they may remain until their lease ends.
    lost: HashSet<GrantId>,
}

impl World {
    fn new() -> World {
        let store = Clock::system();
        let speed = || 1.0 + (fastrand::f64() - 0.5) * 0.08;
        let processes = (0..PROCESSES).map(|_| (Clock::system(), speed())).collect();
        let network = Arc::new(Network::new(Clocks { store, processes }));
        let process = |(clock, _): &(Arc<Clock>, f64)| {
            let queues = Arc::<Queues>::default();
            let undo = Arc::new(Undo::new(network.clone(), queues.clone(), clock.clone(), LEASE));
            let watcher = Arc::new(Watcher::new(clock.clone(), undo.clone()));
            Process { clock: clock.clone(), queues, undo, watcher }
        };
        let processes: Vec<_> = network.clocks.processes.iter().map(process).collect();
        let shares = one_in(3);
        let worker = |n: usize| {
            let mut spec = LockSpec::exclusive("k", Labels::of("o"), terms());
            if shares && one_in(2) {
                (spec.mode, spec.max_holders) = (Mode::Shared, Some(2));
            }
            Worker { process: n % PROCESSES, spec, at: At::Outside, rounds: ROUNDS }
        };
        let workers = (0..PROCESSES * WORKERS).map(worker).collect();
        World { network, processes, workers, granted: 0, written: 0, lost: HashSet::new() }
    }

    fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.at, At::Outside) && worker.rounds == 0)
    }

    /// Somebody takes a step, time passes, or a request arrives late.
    fn step(&mut self) {
        if one_in(8) {
            let part = *fastrand::choice([0.01, 0.1, 0.3, 0.7, 1.1].iter()).expect("one of them");
            self.network.clocks.pass(LEASE.mul_f64(part));
        } else if one_in(6) && !self.network.is_silent() {
            self.network.deliver();
        } else {
            let at = fastrand::usize(..self.workers.len());
            let before = std::mem::replace(&mut self.workers[at].at, At::Outside);
            self.workers[at].at = self.act(at, before);
        }
        self.check();
    }

    fn act(&mut self, n: usize, at: At) -> At {
        let process = &self.processes[self.workers[n].process];
        match at {
            At::Outside if self.workers[n].rounds == 0 => At::Outside,
            At::Outside => {
                self.workers[n].rounds -= 1;
                // As a waiter that was refused once, or as a caller that asks before it joins the line.
                if one_in(2) {
                    let ticket = process.queues.enter(
                        self.workers[n].spec.clone(),
                        &Arc::default(),
                        &Deadline::after(Duration::MAX),
                    );
                    ticket.asked();
                    return At::InLine(ticket);
                }
                let attempt = self.attempt(n);
                self.ask(n, attempt, None, None)
            }
            At::InLine(ticket) if one_in(10) => leave(ticket),
            At::InLine(ticket) if ticket.place() > 0 => At::InLine(ticket),
            At::InLine(ticket) => match ticket.may() {
                May::Wait => At::InLine(ticket),
                May::Take(granted) => {
                    assert!(ticket.leave(Leaves::WithLock).is_none(), "it was granted twice");
                    self.granted(n, *granted)
                }
                May::Ask => {
                    let attempt = self.attempt(n);
                    self.ask(n, attempt, None, Some(ticket))
                }
            },
            At::Asks(attempt, first_sent, ticket) => {
                if one_in(4) || process.clock.now() >= first_sent + LEASE / 2 {
                    drop(ticket.map(leave).filter(|at| matches!(at, At::GivesUp(_))));
                    return At::GivesUp(attempt);
                }
                self.ask(n, attempt, Some(first_sent), ticket)
            }
            At::GivesUp(mut attempt) => match self.network.release(&mut attempt, Purpose::GiveUp, &at_once()) {
                Ok(Released::Unknown(_)) => At::GivesUp(attempt),
                answer => {
                    answer.expect("an answer");
                    process.queues.nudge("k");
                    At::Outside
                }
            },
            At::Holds(hold) => {
                match fastrand::u32(..5) {
                    0 => return self.release(hold),
                    1 => drop(hold.look(process.clock.now())),
                    2 => drop(hold.beat()),
                    _ => {}
                }
                At::Holds(hold)
            }
            At::Releases(hold) => self.release(hold),
        }
    }

    fn attempt(&self, n: usize) -> Attempt {
        self.workers[n].spec.attempt(self.network.info().grant_form.fresh(), LEASE)
    }

    /// Sends an acquire, as [`acquire`](super::acquire) does; not for the first time if it was sent at `first_sent`.
    fn ask(&mut self, n: usize, mut attempt: Attempt, first_sent: Option<BootTime>, ticket: Option<Ticket>) -> At {
        let clock = &self.processes[self.workers[n].process].clock;
        let sent = clock.now();
        let first_sent = first_sent.unwrap_or(sent);
        attempt.sends += 1;
        let terms = terms();
        match self.network.acquire(&mut attempt, &at_once()).expect("an answer, or none") {
            Acquired::Granted { holder, now, .. } => {
                let held_until = terms.first_held_until((first_sent, LEASE), sent, holder.until, now);
                let handed = ticket.and_then(|ticket| ticket.leave(Leaves::WithLock));
                assert!(handed.is_none(), "it was granted twice");
                if clock.now() >= held_until {
                    return At::GivesUp(attempt);
                }
                let chain = Chain { times: 0, since: sent };
                self.granted(
                    n,
                    Granted {
                        attempt,
                        holder,
                        now,
                        wall: std::time::SystemTime::now(),
                        held_until,
                        chain,
                        noted: None,
                    },
                )
            }
            Acquired::Refused(_) => {
                let at = match ticket {
                    Some(ticket) if attempt.sends == 1 => {
                        ticket.asked();
                        return At::InLine(ticket);
                    }
                    Some(ticket) => leave(ticket),
                    None => At::Outside,
                };
                assert!(matches!(at, At::Outside), "handed over to one that asks");
                if attempt.sends > 1 { At::GivesUp(attempt) } else { At::Outside }
            }
            Acquired::Unknown(_) => At::Asks(attempt, first_sent, ticket),
        }
    }

    fn granted(&mut self, n: usize, granted: Granted) -> At {
        let token = granted.holder.token;
        let process = &self.processes[self.workers[n].process];
        let setup = Setup {
            backend: self.network.clone(),
            clock: process.clock.clone(),
            watcher: process.watcher.clone(),
            queues: process.queues.clone(),
            undo: process.undo.clone(),
            observing: Observing::default(),
            terms: terms(),
            request_timeout: LEASE,
            drop_timeout: LEASE,
            at_end: AtEnd::Release,
        };
        let hold = Hold::new(granted, setup, Callbacks::default());
        // What was handed over long ago may be over; and of several shared holders, one may learn late of its grant.
        if hold.is_held() {
            let above = if is_exclusive(&hold) { self.granted } else { self.written };
            assert!(token > above, "token {token} after {above}");
            self.granted = self.granted.max(token);
        }
        At::Holds(hold)
    }

    fn release(&mut self, hold: Arc<Hold>) -> At {
        match hold.release(Duration::ZERO) {
            Ok(()) => At::Outside,
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.lost.insert(hold.granted().grant.clone());
                At::Outside
            }
            Err(_) => At::Releases(hold),
        }
    }

    /// The holds that count themselves as held.
    fn held(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.workers.iter().filter_map(|worker| match &worker.at {
            At::Holds(hold) if hold.is_held() => Some(hold),
            _ => None,
        })
    }

    fn check(&mut self) {
        let (all, exclusive) = (self.held().count(), self.held().filter(|hold| is_exclusive(hold)).count());
        assert!(exclusive == 0 || all == 1, "{exclusive} hold it exclusively, {all} in all");
        assert!(all <= 2, "{all} share it");
        // A write of an exclusive holder: no later one may carry a lower token.
        let token = self.held().find(|hold| is_exclusive(hold)).map(|hold| hold.granted().fencing_token());
        if let Some(token) = token {
            assert!(token >= self.written, "a write with token {token} after one with {}", self.written);
            self.written = token;
        }
    }

    /// From now on everything is answered, and what was held back arrives: nothing may be left.
    fn end(&mut self) {
        self.network.heal();
        for steps in 0.. {
            assert!(steps < 20_000, "it goes on for ever");
            let is_silent = self.network.is_silent();
            if self.is_over() && is_silent {
                break;
            }
            self.step();
        }
        let seen = self.network.record();
        let is_left = seen.live().any(|(_, holder)| !self.lost.contains(&holder.grant));
        assert!(!is_left, "a grant of nobody is left: {:?}", seen.record);
        assert!(self.processes.iter().all(|process| process.queues.len("k") == 0), "somebody is left in line");
    }
}

fn is_exclusive(hold: &Hold) -> bool {
    hold.granted().mode() == Mode::Exclusive
}

fn terms() -> Terms {
    let (lease, at_least) = (Lease::For(LEASE), Duration::ZERO);
    Terms { lease, heartbeat: LEASE / 3, margin: LEASE / 10, ends_at: None, at_least }
}

/// Leaves the line; what was handed over meanwhile is given up.
fn leave(ticket: Ticket) -> At {
    ticket.leave(Leaves::Without).map_or(At::Outside, |granted| At::GivesUp(granted.attempt))
}

#[test]
fn in_random_histories_nobody_holds_what_another_holds() {
    let (histories, held) = in_random_histories(HISTORIES, || {
        let mut world = World::new();
        for _ in 0..fastrand::u32(20..200) {
            world.step();
        }
        world.end();
        world.granted > 0
    });
    assert!(held * 10 > histories * 9, "only {held} of {histories} histories had a holder");
}
