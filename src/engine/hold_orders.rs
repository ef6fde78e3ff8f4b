//! Every order of steps of a hold's heartbeats, watcher, releases and rivals. What is one step here happens under one
//! mutex, or is one request; a heartbeat may hang between its request and its answer for as long as it likes.

use super::*;
use crate::engine::orders::{self, LEASE, World as _, all_orders, spec};
use crate::engine::queue::{Leaves, May, Ticket};
use crate::model::event::Observer;
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::store::{Acquired, Purpose, Released, read_key};
use crate::sys::deadline::Deadline;
use std::time::Instant;

/// Longer than any step takes.
const SLACK: Duration = Duration::from_secs(60);

/// What was reported.
#[derive(Default)]
struct Told {
    lost: Mutex<u32>,
    released: Mutex<u32>,
    left: Mutex<u32>,
}

impl Observer for Told {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Lost { .. } => *self.lost.lock() += 1,
            Event::Released { .. } => *self.released.lock() += 1,
            Event::Left { .. } => *self.left.lock() += 1,
            _ => {}
        }
    }
}

/// An actor, and what it does next.
#[derive(Clone)]
enum Actor {
    /// Sends a heartbeat, and this many more.
    Beats(u32),
    /// Has an answer of the store's, and this many heartbeats still to send.
    Answered(u32),
    /// The watcher's thread looks.
    Looks,
    /// A drop or a `close`.
    Releases,
    /// The end of a group of locks of which not all were granted.
    Abandons,
    /// It was given up in the background meanwhile.
    LetsGo,
    Sends(Phase),
    Ends(Phase),
    /// This much time passes.
    Passes(Duration),
    /// Asks for the lock once.
    Rival,
    /// Waits in the line of this process: takes what was handed over, or asks once, and goes.
    Waits,
    /// Ends the grant in the store, whoever holds it, also where only its place is kept.
    Operator,
    /// The guard is given to its user: from then on the lock must remain for `LEAST`.
    Given,
    /// The user asks for that.
    Asks,
    Done,
}

/// One field for each thing that the actors share or leave to be checked.
struct World {
    hold: Arc<Hold>,
    store: Arc<Memory>,
    told: Arc<Told>,
    clock: Arc<Clock>,
    actors: Vec<Actor>,
    /// The answers that wait to be looked at, by actor.
    answers: Vec<Option<BeatAnswer>>,
    sent: Vec<Option<Result<()>>>,
    outcomes: Vec<Result<()>>,
    was_held: bool,
    /// An operator has ended the grant: the holder learns of it at its next heartbeat.
    is_ordered: bool,
    rival: Option<Attempt>,
    ticket: Option<Ticket>,
    /// The lock must remain for `LEAST`.
    is_owed: bool,
    /// Time passes, or an operator is at work.
    may_be_lost: bool,
}

impl World {
    fn new(actors: &[Actor]) -> World {
        let clock = Clock::system();
        let store = Arc::new(Memory::open("", clock.clone()));
        let told = Arc::<Told>::default();
        let mut attempt = spec().attempt(store.info().grant_form.fresh(), LEASE);
        let sent = clock.now();
        attempt.sends = 1;
        let Ok(Acquired::Granted { holder, now, .. }) = store.acquire(&mut attempt, &Deadline::after(SLACK)) else {
            panic!("it is free")
        };
        let held_until = spec().terms.held_until(spec().terms.lease, sent, holder.until, now);
        let chain = Chain { times: 0, since: sent };
        let granted =
            Granted { attempt, holder, now, wall: std::time::SystemTime::now(), held_until, chain, noted: None };
        let queues = Arc::<Queues>::default();
        let undo = Arc::new(Undo::new(store.clone(), queues.clone(), clock.clone(), SLACK));
        let setup = Setup {
            backend: store.clone(),
            clock: clock.clone(),
            watcher: Arc::new(Watcher::new(clock.clone(), undo.clone())),
            queues,
            undo,
            observing: Observing::default().and(told.clone()),
            terms: spec().terms,
            request_timeout: SLACK,
            drop_timeout: SLACK,
            at_end: AtEnd::Release,
        };
        let waits = actors.iter().any(|actor| matches!(actor, Actor::Waits));
        let ticket = waits.then(|| setup.queues.enter(spec(), &Arc::default(), &Deadline::after(Duration::MAX)));
        let hold = Hold::new(granted, setup, Callbacks::default());
        let none = || actors.iter().map(|_| None).collect();
        World {
            hold,
            store,
            told,
            clock,
            actors: actors.to_vec(),
            answers: none(),
            sent: actors.iter().map(|_| None).collect(),
            outcomes: Vec::new(),
            was_held: true,
            is_ordered: false,
            rival: None,
            ticket,
            is_owed: false,
            may_be_lost: actors.iter().any(|actor| matches!(actor, Actor::Passes(_) | Actor::Operator)),
        }
    }

    fn ask(&self) -> Option<Attempt> {
        let mut attempt = spec().attempt(self.store.info().grant_form.fresh(), LEASE);
        let answer = self.store.acquire(&mut attempt, &Deadline::after(SLACK)).expect("an answer");
        matches!(answer, Acquired::Granted { .. }).then_some(attempt)
    }

    fn seen(&self) -> Seen {
        read_key(&*self.store, "k", &Deadline::after(SLACK)).expect("an answer")
    }

    fn check(&mut self) {
        let is_held = self.hold.is_held();
        assert!(self.was_held || !is_held, "it is held again");
        self.was_held = is_held;
        let seen = self.seen();
        let stands = seen.live().any(|(_, holder)| holder.grant == self.hold.requests.spare.lock().ask.grant);
        assert!(!is_held || stands || self.is_ordered, "it counts itself as held, and the store does not");
        assert!(!is_held || self.hold.loss.get().is_none(), "it is held and lost");
        let ours = seen.live().find(|(_, holder)| holder.token == self.hold.grant.lock.token);
        let is_over = self.clock.now().since(self.hold.grant.at) > LEAST;
        assert!(!self.is_owed || self.is_ordered || is_over || ours.is_some(), "it stood for too short a time");
        let is_kept = ours.is_some_and(|(_, holder)| holder.grant == self.hold.requests.kept_as);
        assert!(!is_kept || self.is_owed, "it stands for nobody");
        if let Some(rival) = &self.rival {
            assert!(seen.record.standing(rival.grant()).is_some(), "the rival's grant was ended");
        }
    }
}

impl orders::World for World {
    type Choice = usize;

    fn choices(&self) -> Vec<usize> {
        let is_done = |at: &usize| matches!(self.actors[*at], Actor::Done);
        (0..self.actors.len()).filter(|at| !is_done(at)).collect()
    }

    fn step(&mut self, at: usize) {
        let by = Instant::now() + SLACK;
        self.actors[at] = match self.actors[at].clone() {
            Actor::Beats(0) => Actor::Done,
            // As its thread would: it ends when it is stopped.
            Actor::Beats(_) if self.hold.beats.stop.is_cancelled() => Actor::Done,
            Actor::Beats(left) => {
                self.answers[at] = Some(self.hold.ask(Duration::ZERO, &Deadline::at(by)).expect("an answer"));
                Actor::Answered(left - 1)
            }
            Actor::Answered(left) => match self.hold.answered(self.answers[at].take().expect("an answer")) {
                Beat::Over => Actor::Done,
                Beat::Renewed | Beat::Failed(_) => Actor::Beats(left),
            },
            Actor::Looks => {
                self.hold.look(self.clock.now());
                let phase = self.hold.state.lock().phase;
                assert!(self.hold.is_held() || phase != Phase::Held, "it is over and nobody is told");
                Actor::Done
            }
            Actor::Releases => match self.hold.begin_release() {
                Phase::Over { .. } => Actor::Done,
                before => {
                    self.hold.beats.stop.cancel();
                    Actor::Sends(before)
                }
            },
            Actor::Abandons => {
                self.hold.begin_abandon();
                let grant = self.hold.requests.spare.lock().ask.grant.clone();
                while self.seen().record.standing(&grant).is_some() {
                    assert!(Instant::now() < by, "it is not given up");
                    std::thread::yield_now();
                }
                Actor::LetsGo
            }
            Actor::LetsGo => {
                self.hold.let_go();
                Actor::Done
            }
            Actor::Sends(before) => {
                self.sent[at] = Some(self.hold.send_end(before, by));
                Actor::Ends(before)
            }
            Actor::Ends(before) => {
                let sent = self.sent[at].take().expect("an answer");
                self.outcomes.push(self.hold.ended(before, sent));
                Actor::Done
            }
            Actor::Passes(time) => {
                self.clock.advance(time);
                Actor::Done
            }
            Actor::Rival => {
                self.rival = self.ask().or(self.rival.take());
                Actor::Done
            }
            Actor::Waits => {
                let ticket = self.ticket.take().expect("a place in the line");
                let got = match ticket.may() {
                    May::Ask => self.ask(),
                    May::Take(granted) => Some(granted.attempt),
                    May::Wait => panic!("a hand-over is one step"),
                };
                let leaves = if got.is_some() { Leaves::WithLock } else { Leaves::Without };
                assert!(ticket.leave(leaves).is_none(), "it was granted twice");
                self.rival = got.or(self.rival.take());
                Actor::Done
            }
            Actor::Operator => {
                let mut attempt = self.hold.requests.spare.lock().without_native();
                for grant in [attempt.ask.grant.clone(), self.hold.requests.kept_as.clone()] {
                    attempt.ask.grant = grant;
                    let ended = self.store.release(&mut attempt, Purpose::Release, &Deadline::at(by));
                    self.is_ordered |= matches!(ended.expect("an answer"), Released::Done);
                }
                Actor::Done
            }
            Actor::Given => {
                self.is_owed |= self.hold.stands_at_least(LEAST).is_ok();
                Actor::Done
            }
            Actor::Asks => {
                let beat = self.hold.hold_at_least(LEAST).expect("it may ask");
                self.is_owed |= matches!(beat, Beat::Renewed);
                Actor::Done
            }
            Actor::Done => Actor::Done,
        };
        self.check();
    }

    fn check_end(&self) {
        let by = Instant::now() + SLACK;
        self.hold.setup.undo.end(by, by);
        self.hold.setup.observing.wait_until_told(by);
        let grant = self.hold.requests.spare.lock().ask.grant.clone();
        let (lost, released, left) = (*self.told.lost.lock(), *self.told.released.lock(), *self.told.left.lock());
        assert!(!self.hold.is_held());
        // A grant that expired before its minimum time was over ends with its lease.
        let is_left = self.is_owed && lost == 1;
        assert!(is_left || self.seen().record.standing(&grant).is_none(), "its grant is left in the store");
        assert!(matches!(self.hold.state.lock().phase, Phase::Over { .. }));
        // A release that is the first to find the loss reports it to the observer alone.
        assert!(self.hold.loss.get().is_none() || lost == 1, "what is watched was not told");
        assert_eq!(lost + released + left, 1, "lost {lost} times, released {released} times, left {left} times");
        let went_well = self.outcomes.iter().any(Result::is_ok);
        // The second of two releases can't tell what the first did from what an operator did behind it.
        let is_unclear = self.is_ordered && self.outcomes.len() > 1;
        // The end of what was abandoned meanwhile is not reported a second time.
        assert!(went_well == (released == 1) || left == 1 || is_unclear, "{:?}", self.outcomes);
        assert!(self.outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|e| e.kind() == ErrorKind::Lost));
        assert!(lost == 0 || !went_well || is_unclear, "it was lost and released");
        assert!(lost == 0 || self.may_be_lost, "nobody but this process has ended it");
    }
}

/// A minimum hold that is longer than the lease.
const LEAST: Duration = Duration::from_secs(3650);
/// Past the local deadline, and not past the end in the store.
const MOST: Duration = Duration::from_secs(3400);
/// Together with `MOST` past both.
const REST: Duration = Duration::from_secs(300);

fn in_every_order(actors: &[Actor]) {
    let limit = 100_000;
    let runs = all_orders(|| World::new(actors), limit);
    assert!(runs < limit);
}

#[test]
fn in_every_order_of_heartbeat_release_and_close_nothing_is_left() {
    in_every_order(&[Actor::Beats(2), Actor::Releases, Actor::Releases]);
}

#[test]
fn in_every_order_of_heartbeat_release_and_loss_it_is_told_once() {
    in_every_order(&[Actor::Beats(2), Actor::Releases, Actor::Passes(MOST), Actor::Looks]);
}

#[test]
fn in_every_order_a_rival_gets_it_only_after_its_end() {
    let passes = [Actor::Passes(MOST), Actor::Passes(REST)];
    let others = [Actor::Beats(1), Actor::Releases, Actor::Rival, Actor::Looks];
    in_every_order(&[&others[..], &passes[..]].concat());
}

#[test]
fn in_every_order_of_an_operators_release_the_holder_learns_of_it() {
    in_every_order(&[Actor::Beats(2), Actor::Operator, Actor::Rival, Actor::Releases]);
}

#[test]
fn in_every_order_of_a_release_a_loss_and_what_is_abandoned_it_has_one_end() {
    in_every_order(&[Actor::Beats(1), Actor::Releases, Actor::Abandons, Actor::Passes(MOST), Actor::Looks]);
    in_every_order(&[Actor::Beats(1), Actor::Abandons, Actor::Abandons, Actor::Operator, Actor::Rival]);
    in_every_order(&[Actor::Beats(1), Actor::Releases, Actor::Abandons, Actor::Waits]);
}

#[test]
fn in_every_order_of_two_releases_what_is_handed_over_stands() {
    in_every_order(&[Actor::Beats(1), Actor::Releases, Actor::Releases, Actor::Waits]);
}

#[test]
fn in_every_order_of_a_loss_and_a_hand_over_it_is_one_of_them() {
    in_every_order(&[Actor::Releases, Actor::Passes(MOST), Actor::Looks, Actor::Waits, Actor::Operator]);
}

#[test]
fn in_every_order_a_lock_stands_for_the_least_time_that_it_is_given_for() {
    in_every_order(&[Actor::Given, Actor::Releases, Actor::Releases, Actor::Operator, Actor::Waits]);
    in_every_order(&[Actor::Given, Actor::Beats(0), Actor::Releases, Actor::Releases, Actor::Waits]);
    in_every_order(&[Actor::Given, Actor::Beats(1), Actor::Releases, Actor::Operator]);
}

#[test]
fn in_every_order_a_lock_stands_for_the_least_time_that_it_is_asked_for() {
    in_every_order(&[Actor::Asks, Actor::Beats(1), Actor::Releases, Actor::Operator, Actor::Waits]);
    // Also where its lease ends, and then its least time.
    let passes = [Actor::Passes(MOST), Actor::Passes(REST)];
    let others = [Actor::Asks, Actor::Releases, Actor::Looks, Actor::Rival];
    in_every_order(&[&others[..], &passes[..]].concat());
}

/// The unanswered one may still arrive.
#[test]
fn what_a_renewal_without_an_answer_may_have_left_is_not_forgotten_at_another_answer() {
    let World { hold, clock, .. } = World::new(&[]);
    let answer = hold.ask(Duration::ZERO, &Deadline::after(SLACK)).expect("an answer");
    let _unanswered = hold.ask(10 * LEASE, &Deadline::after(SLACK));
    assert!(matches!(hold.answered(answer), Beat::Renewed));
    assert!(hold.stands_until().since(clock.now()) > 9 * LEASE);
}

/// Otherwise the background would try for ever to give it up, once it is lost.
#[test]
fn a_lock_without_end_that_was_given_one_stands_until_then() {
    let World { mut hold, clock, .. } = World::new(&[]);
    Arc::get_mut(&mut hold).expect("nobody else has it").setup.terms.lease = Lease::Forever;
    hold.requests.answered_until.store(BootTime::NEVER.as_nanos(), Ordering::SeqCst);
    let answer = hold.ask(Duration::ZERO, &Deadline::after(SLACK)).expect("an answer");
    assert!(matches!(hold.answered(answer), Beat::Renewed));
    assert!(hold.stands_until().since(clock.now()) <= LEASE);
}

#[test]
fn a_release_beside_a_heartbeat_that_hangs_uses_the_spare_attempt() {
    let mut world = World::new(&[]);
    let hangs = world.hold.requests.attempt.lock();
    let released = world.hold.release(Duration::from_millis(200));
    drop(hangs);
    world.outcomes.push(released);
    world.check_end();
}

#[test]
fn a_release_beside_another_one_that_hangs_ends_in_time_and_can_be_repeated() {
    let mut world = World::new(&[]);
    let hangs = (world.hold.requests.attempt.lock(), world.hold.requests.spare.lock());
    let error = world.hold.release(Duration::from_millis(50)).expect_err("both attempts are taken");
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.is_retryable() && error.to_string().contains("another release of it is under way"), "{error}");
    assert!(!world.hold.is_held());
    drop(hangs);
    let repeated = world.hold.release(SLACK);
    world.outcomes.push(repeated);
    world.check_end();
}

/// For example after a suspend, when the release is quicker than the watcher, and its first request may not be
/// answered.
#[test]
fn what_is_over_when_it_is_released_is_lost_whoever_has_looked() {
    for is_answered in [true, false] {
        let mut world = World::new(&[]);
        let faults = FaultPlan::default();
        let faulty: Arc<dyn Backend> = Arc::new(Faulty::new(world.store.clone(), faults.clone()));
        Arc::get_mut(&mut world.hold).expect("nobody else has it").setup.backend = faulty;
        world.clock.advance(MOST + REST);
        world.rival = world.ask();
        assert!(world.rival.is_some());
        world.may_be_lost = true;
        if !is_answered {
            faults.next(Call::Release, Fault::LostBefore);
        }
        let released = world.hold.release(SLACK);
        assert!(released.is_err(), "{released:?}");
        world.outcomes.push(released);
        world.check();
        world.check_end();
        assert_eq!(*world.told.lost.lock(), 1);
    }
}

#[test]
fn what_is_over_when_it_is_handed_over_is_lost() {
    let World { hold, clock, told, .. } = World::new(&[]);
    clock.advance(MOST + REST);
    hold.keep_as_data(SLACK);
    assert!(hold.loss.get().is_some());
    hold.setup.observing.wait_until_told(Instant::now() + SLACK);
    assert_eq!(*told.lost.lock(), 1);
}

/// A heartbeat may move its end between the look that found it over and the declaration.
#[test]
fn what_has_no_max_hold_is_not_lost_by_it() {
    let World { hold, .. } = World::new(&[]);
    hold.expire();
    assert!(matches!(hold.loss.get().expect("it is lost").reason, LossReason::Expired { .. }));
}

/// For example a shared one that was cleared away by a writer that came after its end and has gone.
#[test]
fn what_is_not_there_any_more_after_its_end_was_released_by_nobody() {
    let mut world = World::new(&[Actor::Operator]);
    orders::World::step(&mut world, 0);
    let World { hold, clock, .. } = &world;
    assert!(matches!(hold.reason(&world.seen()), LossReason::ReleasedByOther));
    clock.advance(MOST);
    assert!(matches!(hold.reason(&world.seen()), LossReason::Expired { .. }));
}

#[test]
fn what_hinders_a_heartbeat_names_lock_and_store() {
    let World { hold, .. } = World::new(&[]);
    let hangs = hold.requests.attempt.lock();
    let Err(error) = hold.ask(Duration::ZERO, &Deadline::after(Duration::ZERO)) else { panic!("it is locked") };
    assert_eq!((error.key(), error.store()), (Some("k"), Some("memory")), "{error}");
    drop(hangs);
}

/// Otherwise the tries in the last moments of a lease would hide why it ends.
#[test]
fn what_its_end_cut_off_right_after_it_began_hides_no_error() {
    assert!((0..10).any(|_| is_known_in_the_end()), "it hides what was known");
}

/// False also where this machine was paused in one of the two tries.
fn is_known_in_the_end() -> bool {
    let World { hold, clock, .. } = World::new(&[]);
    let last_error = || hold.state.lock().last_error.as_ref().map(ToString::to_string).unwrap_or_default();
    let hangs = hold.requests.attempt.lock();
    let fails = || {
        hold.held_until.store((clock.now() + Duration::from_secs(1)).as_nanos(), Ordering::SeqCst);
        matches!(hold.beat(), Beat::Failed(_))
    };
    let has_own = fails() && last_error().contains("under way");
    hold.state.lock().last_error = Some(Error::new(ErrorKind::Permission, "access is denied"));
    let is_kept = has_own && fails() && last_error() == "access is denied";
    drop(hangs);
    is_kept
}
