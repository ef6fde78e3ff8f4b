//! What a wait makes of a lock that is handed over at the last moment or too late, and how it says why it ended.

use super::super::hold::Hold;
use super::super::queue::{Queues, SILENT};
use super::*;
use crate::engine::acquire_any::{AnyWait, Order, obtain_any};
use crate::engine::options::ClientOptions;
use crate::engine::orders::{LEASE, faulty, spec};
use crate::engine::spec::{Callbacks, Chain};
use crate::lease::{End, Lease, MAX_ACQUIRE_LEASE};
use crate::model::event::{Event, Observer};
use crate::model::waiting::Waiting;
use crate::store::fault::{Call, Fault, FaultPlan};
use crate::store::memory::Memory;
use crate::store::{Acquired, Backend, Purpose, Renewal, read_key};
use crate::sys::cancel::CancelToken;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::observing::Observing;

/// Longer than any step takes.
const SLACK: Duration = Duration::from_secs(60);

struct Bench {
    store: Arc<Memory>,
    faults: FaultPlan,
    family: Arc<Family>,
}

/// Calls no one while it waits.
fn asks<'a>(lock: LockSpec, stands_back: bool, cancel: Option<CancelToken>) -> WaitSpec<'a> {
    WaitSpec { lock, stands_back, gets_guard: true, cancel, on_wait: None, on_wait_every: None }
}

impl Bench {
    fn new() -> Bench {
        let (store, clock, faulty, faults) = faulty();
        Bench { store, faults, family: Family::new(faulty, clock, ClientOptions::default()) }
    }

    /// The lock, granted in the store for as long as the first request asks for.
    fn granted(&self, held_until: BootTime) -> Granted {
        self.granted_of("k", held_until)
    }

    fn granted_of(&self, key: &str, held_until: BootTime) -> Granted {
        let spec = LockSpec { key: key.to_owned(), ..spec() };
        let mut attempt = spec.attempt(self.store.info().grant_form.fresh(), MAX_ACQUIRE_LEASE);
        let Ok(Acquired::Granted { holder, now, .. }) = self.store.acquire(&mut attempt, &Deadline::after(SLACK))
        else {
            panic!("it is free")
        };
        let chain = Chain { times: 0, since: BootTime::PAST };
        Granted { attempt, holder, now, wall: std::time::SystemTime::now(), held_until, chain, noted: None }
    }

    fn held(&self, granted: Granted) -> Arc<Hold> {
        let by = Deadline::after(SLACK);
        self.family.hold(granted, spec().terms, Callbacks::default(), &by).expect("the hold")
    }

    fn stands(&self) -> bool {
        read_key(&*self.store, "k", &Deadline::after(SLACK)).expect("an answer").live().count() > 0
    }

    /// Whether nothing remains once the background has done what it was left to do.
    fn is_given_up(&self) -> bool {
        self.family.close(SLACK).expect("there are no guards");
        !self.stands()
    }

    fn wait(&self, patience: Patience) -> Wait<'_> {
        Wait::new(&self.family, asks(spec(), false, None), patience)
    }

    /// What a waiter does (`does`) that has the turn because the one before it hangs, until it has read the lock. By
    /// then the first one has come back, and the waiter's call is over.
    fn passed_by<'a, T>(&'a self, does: impl FnOnce(Wait<'a>, &Deadline) -> T) -> T {
        let (users_code, cancel) = (Arc::<UsersCode>::default(), CancelToken::new());
        let _first = self.family.queues.enter(spec(), &users_code, &Deadline::after(SLACK));
        users_code.runs(Some(Instant::now() - HANGS));
        let mut wait = self.wait(Patience::Endless);
        wait.enter(&Deadline::after(SLACK));
        let reads = self.faults.count(Call::Read);
        self.faults.next(Call::Read, Fault::ApplyThenDelay(SLACK));
        let overall = Deadline::after(SLACK).or_cancel(&cancel);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while self.faults.count(Call::Read) == reads {
                    std::thread::yield_now();
                }
                users_code.runs(None);
                // This ends the read at once.
                cancel.cancel();
            });
            does(wait, &overall)
        })
    }

    /// What a call gets if the lock is handed over to it when its time is over, but it has not left the line yet.
    fn at_the_last_moment(&self, held_until: BootTime, cancels: bool) -> Result<Obtained> {
        let (queues, granted) = (self.family.queues.clone(), self.granted(held_until));
        let mut handed = Some((queues.enter(spec(), &Arc::default(), &Deadline::after(SLACK)), granted));
        let (cancel, users_code) = (CancelToken::new(), Arc::<UsersCode>::default());
        let (also_cancel, its_code) = (cancel.clone(), users_code.clone());
        let on_wait = move |_: &Waiting| {
            if let Some((first, granted)) = handed.take() {
                drop(first);
                // As if this callback had returned: nothing is handed over to a call while it runs the user's code.
                its_code.runs(None);
                assert!(queues.reserve("k", |_| true).expect("it waits").give(granted).is_ok());
                if cancels {
                    also_cancel.cancel();
                }
            }
        };
        let spec = WaitSpec { on_wait: Some(Box::new(on_wait)), ..asks(spec(), true, Some(cancel)) };
        let mut wait = Wait::new(&self.family, spec, Patience::Until(Instant::now()));
        wait.users_code = users_code;
        // With a longer deadline, as if it had been reserved before its time was over.
        wait.stand(&Deadline::after(SLACK));
        let outcome = wait.run();
        assert_eq!(self.family.queues.len("k"), 0);
        outcome
    }
}

#[test]
fn what_is_handed_over_at_the_last_moment_comes_along() {
    let bench = Bench::new();
    assert!(matches!(bench.at_the_last_moment(BootTime::NEVER, false), Ok(Obtained::Granted(_))));
    assert!(bench.stands());
}

#[test]
fn what_is_handed_over_at_the_last_moment_and_can_not_be_held_is_given_up() {
    // The end of the call cuts off the renewal that sets its lease; only a refusal by the store is trouble.
    let (late, in_time) = (BootTime::PAST, BootTime::NEVER);
    let faults = [Fault::FailBefore, Fault::ApplyThenHang, Fault::Refuse].map(|fault| (in_time, Some(fault)));
    for (held_until, fault) in [(late, None)].into_iter().chain(faults) {
        let (bench, is_trouble) = (Bench::new(), matches!(fault, Some(Fault::Refuse)));
        fault.into_iter().for_each(|fault| bench.faults.always(Call::Renew, fault));
        let outcome = bench.at_the_last_moment(held_until, false).map(|got| matches!(got, Obtained::Refused(_)));
        assert_eq!(outcome.ok(), (!is_trouble).then_some(true));
        assert!(bench.is_given_up());
    }
}

#[test]
fn what_is_handed_over_to_a_call_that_was_cancelled_is_given_back() {
    let bench = Bench::new();
    let error = bench.at_the_last_moment(BootTime::NEVER, true).err().expect("it was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(bench.is_given_up());
}

/// Behind others of the process it would wait for itself, or for those that wait for the very holder that it replaces.
#[test]
fn who_waits_for_itself_or_replaces_the_holder_asks_though_others_wait() {
    let bench = Bench::new();
    let held = bench.granted(BootTime::NEVER);
    let labels = held.attempt.ask.labels.clone();
    let lock_id = Some(held.attempt.ask.lock_id.clone());
    let hold = bench.held(held);
    let _first = bench.family.queues.enter(spec(), &Arc::default(), &Deadline::after(SLACK));
    let obtain = |lock: LockSpec, stands_back, any: bool| {
        // Only a call that waits behind the first one uses all of its time.
        let is_answered = lock.lock_id.is_some() || lock.replace_same_owner;
        let time = if is_answered { SLACK } else { Duration::from_millis(200) };
        let patience = Patience::Until(Instant::now() + time);
        let spec = asks(lock, stands_back, None);
        match any {
            true => obtain_any(&bench.family, vec![spec], patience, Order::AsGiven),
            false => obtain(&bench.family, spec, patience),
        }
    };
    for any in [false, true] {
        let refused = obtain(LockSpec { lock_id: lock_id.clone(), ..spec() }, true, any);
        assert_eq!(refused.err().expect("it would wait for itself").kind(), ErrorKind::AlreadyHeld);
        assert!(matches!(obtain(spec(), true, any), Ok(Obtained::Refused(_))), "it waits behind the first");
    }
    let replacing = LockSpec { labels, replace_same_owner: true, ..spec() };
    assert!(matches!(obtain(replacing, false, false), Ok(Obtained::Granted(_))));
    hold.abandon();
}

/// The wall clock says nothing about how long the grant remains: somebody may set it.
#[test]
fn what_is_given_up_is_tried_for_as_long_as_it_stands_whatever_the_wall_clock_says() {
    let bench = Bench::new();
    let mut granted = bench.granted(BootTime::NEVER);
    // As after somebody has renewed its group.
    granted.holder.until = End::At(granted.now.plus(2 * MAX_ACQUIRE_LEASE));
    let hold = bench.held(granted);
    hold.state.lock().lock.leased_until = Some(std::time::SystemTime::UNIX_EPOCH);
    bench.faults.always(Call::Release, Fault::LostBefore);
    hold.abandon();
    let until = Instant::now() + Duration::from_secs(60);
    let stands_for = loop {
        // A grant that is being given up right now is not in the list.
        match bench.family.undo().longest() {
            Some(longest) => break longest,
            None => assert!(Instant::now() < until, "it is to be given up"),
        }
        std::thread::yield_now();
    };
    assert!(stands_for > MAX_ACQUIRE_LEASE, "{stands_for:?}");
    bench.faults.heal();
    assert!(bench.is_given_up());
}

/// Nothing renews it before it has a guard.
#[test]
fn a_lock_that_was_granted_does_not_wait_until_what_was_handed_over_beside_it_is_given_back() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    wait.enter(&Deadline::after(SLACK));
    let handed = bench.granted(BootTime::NEVER);
    assert!(bench.family.queues.reserve("k", |_| true).expect("it waits").give(handed).is_ok());
    let (goes_on, stuck) = crossbeam_channel::bounded(0);
    bench.faults.next(Call::Release, Fault::Stuck(stuck));
    let other = bench.granted_of("other", BootTime::NEVER);
    let mut any = AnyWait {
        family: &bench.family,
        waits: vec![wait],
        patience: Patience::Endless,
        order: Order::AsGiven,
        told: 0,
    };
    assert!(matches!(any.leave(Ok(Obtained::Granted(other)), &Deadline::after(SLACK)), Ok(Obtained::Granted(_))));
    drop(goes_on);
    assert!(bench.is_given_up());
}

/// Takes a while for each event, and notes how many wait then; the last one ends the call.
struct Slow {
    queues: std::sync::OnceLock<Arc<Queues>>,
    waiting: parking_lot::Mutex<Vec<usize>>,
    cancel: CancelToken,
}

impl Observer for Slow {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::WaitBegan { .. }) {
            let mut waiting = self.waiting.lock();
            waiting.push(self.queues.get().map_or(0, |queues| queues.len("k0")));
            if waiting.len() == 6 {
                self.cancel.cancel();
            } else {
                std::thread::sleep(HANGS * 2 / 5);
            }
        }
    }
}

/// How many wait for the first of ten keys at each report.
fn waiting_at_slow_reports() -> Vec<usize> {
    let (clock, cancel) = (Clock::system(), CancelToken::new());
    let slow = Arc::new(Slow { queues: Default::default(), waiting: Default::default(), cancel: cancel.clone() });
    let options = ClientOptions { observing: Observing::default().and(slow.clone()), ..ClientOptions::default() };
    let family = Family::new(Arc::new(Memory::open("", clock.clone())), clock, options);
    assert!(slow.queues.set(family.queues.clone()).is_ok());
    let specs = (0..10).map(|key| {
        let lock = LockSpec { key: format!("k{key}"), ..spec() };
        let mut held = lock.attempt(family.backend.info().grant_form.fresh(), MAX_ACQUIRE_LEASE);
        assert!(matches!(family.backend.acquire(&mut held, &Deadline::after(SLACK)), Ok(Acquired::Granted { .. })));
        asks(lock, false, Some(cancel.clone()))
    });
    let error =
        obtain_any(&family, specs.collect(), Patience::Endless, Order::AsGiven).err().expect("it was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let waiting = slow.waiting.lock();
    waiting.clone()
}

/// No single report takes as long as one that hangs.
#[test]
fn many_slow_reports_that_a_wait_begins_hold_up_neither_others_nor_its_end() {
    // The call is first in its line at the second report, and passed over at the last. On a busy machine the second may
    // come so late that the call counts as hanging by then: so this is tried up to three times.
    let is_first = (0..3).any(|_| {
        let waiting = waiting_at_slow_reports();
        assert_eq!((waiting.len(), waiting[5]), (6, 0), "{waiting:?}");
        waiting[1] == 1
    });
    assert!(is_first, "it is passed over at the second report");
}

#[test]
fn a_grant_that_comes_too_late_is_given_up_and_asked_for_again() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    let round = wait.act(Turn::Given(bench.granted(BootTime::PAST)), &Deadline::after(SLACK));
    assert!(matches!(round, Ok(Round::Trouble)));
    assert!(!bench.stands());
    // The holder that it replaced has given the lock up already: there is nothing to ask for again.
    wait.spec.lock.instead_of = Some((bench.store.info().grant_form.fresh(), 1));
    let round = wait.act(Turn::Given(bench.granted(BootTime::PAST)), &Deadline::after(SLACK));
    assert_eq!(round.err().expect("an error").kind(), ErrorKind::TimedOut);
    assert!(!bench.stands());
}

#[test]
fn a_wait_says_why_it_ended() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    let kind = |wait: &mut Wait<'_>| wait.ended().err().map(|error| error.kind());
    assert_eq!(kind(&mut wait), Some(ErrorKind::TimedOut), "nobody is in its way");
    wait.enter(&Deadline::after(SLACK));
    assert_eq!(kind(&mut wait), None, "it waits behind others");
    wait.effort.attempts = 1;
    assert_eq!(kind(&mut wait), Some(ErrorKind::TimedOut), "it asked and had no answer");
    let cut_off = Error::new(ErrorKind::Store, "cut off").retryable();
    let says_nothing = (0..5).any(|_| {
        wait.answered();
        wait.failed(cut_off.clone(), Instant::now(), &Deadline::at(Instant::now()));
        bench.family.queues.trouble("k").is_none()
    });
    assert!(says_nothing, "the end of the call says nothing of the store");
    wait.failed(cut_off, Instant::now() - 2 * SILENT, &Deadline::at(Instant::now()));
    assert!(bench.family.queues.trouble("k").is_some());
    assert_eq!(kind(&mut wait), Some(ErrorKind::Store));
    wait.answered();
    assert!(bench.family.queues.trouble("k").is_none());
}

#[test]
fn what_its_end_cut_off_right_after_it_began_hides_no_error() {
    // If the machine pauses for more than `SILENT` in the last one, that one is reported.
    let told = |last: &dyn Fn() -> String, text: &str| assert!((0..5).any(|_| last().contains(text)), "{}", last());
    let failed = |message: &str| Error::new(ErrorKind::Store, message.to_owned()).retryable();
    let none_is_done = || {
        let bench = Bench::new();
        let mut wait = bench.wait(Patience::Endless);
        wait.effort.attempts = 2;
        wait.failed(failed("it refuses connections"), Instant::now(), &Deadline::after(SLACK));
        wait.failed(failed("no answer in 3 ms"), Instant::now(), &Deadline::at(Instant::now()));
        bench.faults.next(Call::Acquire, Fault::FailBefore);
        assert!(matches!(wait.attempt(&Deadline::at(Instant::now())), Ok(Round::Trouble)));
        wait.ended().expect_err("an error").to_string()
    };
    told(&none_is_done, "it refuses connections");
    let both_may_be_done = || {
        let bench = Bench::new();
        let mut wait = bench.wait(Patience::Endless);
        bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
        bench.faults.next(Call::Acquire, Fault::ApplyThenHang);
        assert!(matches!(wait.attempt(&Deadline::after(Duration::from_millis(80))), Ok(Round::Trouble)));
        wait.ended().expect_err("an error").to_string()
    };
    told(&both_may_be_done, "the answer was lost");
}

#[test]
fn who_comes_to_the_head_of_the_line_just_before_its_end_was_refused() {
    let bench = Bench::new();
    let ended = |left: Duration| {
        let mut wait = bench.wait(Patience::Endless);
        wait.enter(&Deadline::after(SLACK));
        bench.faults.next(Call::Read, Fault::FailBefore);
        assert!(!wait.look(&Deadline::after(left)));
        wait.ended()
    };
    assert!(matches!(ended(Duration::ZERO), Ok(holders) if holders.is_empty()));
    // This store had time to answer.
    assert_eq!(ended(SLACK).expect_err("an error").kind(), ErrorKind::Store);
}

#[test]
fn those_behind_see_how_long_a_request_takes() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    wait.enter(&Deadline::after(SLACK));
    wait.asks(Some(Instant::now() - 2 * SILENT));
    let trouble = bench.family.queues.trouble("k").expect("the store is silent");
    assert!(trouble.to_string().contains("no answer for 2."), "{trouble}");
    wait.asks(None);
    assert!(bench.family.queues.trouble("k").is_none());
}

#[test]
fn those_behind_know_what_the_first_saw_until_it_has_the_lock() {
    let bench = Bench::new();
    let _held = bench.granted(BootTime::NEVER);
    let [mut first, mut next, mut third, mut last] = [(); 4].map(|()| bench.wait(Patience::Endless));
    for asks in [&mut first, &mut third] {
        assert!(matches!(asks.attempt(&Deadline::after(SLACK)), Ok(Round::Refused)));
    }
    for wait in [&mut first, &mut next, &mut third, &mut last] {
        assert_eq!(wait.holders().is_some(), wait.known.last_seen.is_some(), "it stands nowhere");
        wait.enter(&Deadline::after(SLACK));
        assert_eq!(wait.holders().expect("the first has asked").len(), 1);
    }
    drop(first);
    assert_eq!([&next, &last].map(|wait| wait.holders().map(|holders| holders.len())), [Some(1); 2]);
    next.line.ticket.take().and_then(|ticket| ticket.leave(Leaves::WithLock));
    assert!(last.holders().is_none(), "another holds it by now");
}

#[test]
fn others_have_their_turn_before_the_first_in_line_looks() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    wait.enter(&Deadline::after(SLACK));
    let until = Instant::now() + Duration::from_millis(100);
    bench.family.queues.stand_back("k", until);
    bench.family.queues.nudge("k");
    assert!(wait.pause(&Deadline::after(SLACK), Begin::Wait), "it is free");
    assert!(Instant::now() >= until, "it took the others' turn");
    // Longer than the pause may take.
    bench.family.queues.stand_back("k", Instant::now() + 2 * SLACK);
    assert!(bench.family.queues.reserve("k", |_| true).expect("it waits").give(bench.granted(BootTime::NEVER)).is_ok());
    assert!(wait.pause(&Deadline::after(SLACK), Begin::Wait), "what was handed over needs no turn");
}

#[test]
fn a_long_wait_is_told_now_and_then() {
    let bench = Bench::new();
    let _held = bench.granted(BootTime::NEVER);
    let told = Arc::new(parking_lot::Mutex::new(0));
    let count = told.clone();
    let mut wait = bench.wait(Patience::Until(Instant::now() + Duration::from_millis(300)));
    wait.spec.on_wait = Some(Box::new(move |_| *count.lock() += 1));
    assert!(matches!(wait.run(), Ok(Obtained::Refused(_))));
    // It polls every 150 ms at most, and reports at each poll.
    assert!((1..10).contains(&*told.lock()), "told {} times", told.lock());
}

#[test]
fn a_long_wait_is_logged_after_its_time_and_then_each_minute() {
    let bench = Bench::new();
    let mut wait = bench.wait(Patience::Endless);
    wait.effort.warn_after = SLACK;
    wait.report_if_due();
    assert_eq!(wait.effort.warn_after, SLACK, "it was logged too early");
    wait.effort.warn_after = Duration::ZERO;
    wait.report_if_due();
    let next = wait.effort.warn_after;
    assert!(next >= Duration::from_secs(60) && next < Duration::from_secs(90), "{next:?}");
}

/// It was first only for as long as the one before it hung, which has come back.
#[test]
fn who_is_not_first_any_more_once_it_has_looked_does_not_ask() {
    let mut bench = Bench::new();
    // Nothing else cuts its read off.
    Arc::get_mut(&mut bench.family).expect("nobody else has it").options.request_timeout = SLACK;
    let turn = bench.passed_by(|mut wait, overall| {
        wait.line.look_first = true;
        wait.turn(overall)
    });
    assert!(turn.is_none());
    let (family, patience, order) = (&bench.family, Patience::Endless, Order::AsGiven);
    let granted = bench.passed_by(|mut wait, overall| {
        wait.line.look_at = Some(Instant::now());
        AnyWait { family, waits: vec![wait], patience, order, told: 0 }.look_at_each(overall)
    });
    assert!(matches!(granted, Ok(None)), "by one of several keys");
    assert_eq!(bench.faults.count(Call::Acquire), 0);
}

/// As with a heartbeat: where the store's time has gone back, an end that was set before is too far in the future.
#[test]
fn a_first_renewal_counts_for_no_longer_than_it_asks_for() {
    let (bench, by) = (Bench::new(), Deadline::after(SLACK));
    let mut granted = bench.granted(BootTime::NEVER);
    let longer = Renewal::heartbeat(Lease::For(2 * LEASE));
    let _ = bench.store.renew(&mut granted.attempt, longer, &by).expect("an answer");
    let (mut wait, asked) = (bench.wait(Patience::Endless), bench.family.clock.now());
    let Ok(Round::Granted(granted)) = wait.act(Turn::Given(granted), &by) else { panic!("it stands") };
    let held_for = granted.held_until.since(asked);
    assert!(held_for < LEASE, "{held_for:?}");
}

/// The holder that it replaced is gone: asking again would report as lost a lock that it has transferred itself.
#[test]
fn a_transfer_whose_lease_is_not_set_is_not_asked_for_again() {
    let (bench, by) = (Bench::new(), Deadline::after(SLACK));
    let mut wait = bench.wait(Patience::Endless);
    wait.spec.lock.instead_of = Some((bench.store.info().grant_form.fresh(), 1));
    let mut gone = bench.granted(BootTime::NEVER);
    let _ = bench.store.release(&mut gone.attempt, Purpose::Release, &by).expect("an answer");
    let lost = wait.act(Turn::Given(gone), &by).err().expect("it is gone");
    assert_eq!((lost.kind(), lost.is_retryable()), (ErrorKind::Lost, false), "a second one would be lost, too");
    // A margin that is longer than the lease: each grant comes too late.
    wait.spec.lock.terms.margin = 2 * LEASE;
    let late = |wait: &mut Wait<'_>| {
        let late = wait.act(Turn::Given(bench.granted(BootTime::NEVER)), &by).err().expect("it comes too late");
        assert!(!bench.stands() && !late.is_retryable());
        late.kind()
    };
    assert_eq!(late(&mut wait), ErrorKind::TimedOut);
    wait.spec.cancel = Some(CancelToken::new());
    wait.spec.cancel.iter().for_each(CancelToken::cancel);
    assert_eq!(late(&mut wait), ErrorKind::Cancelled);
    bench.family.close(SLACK).expect("there are no guards");
    assert_eq!(late(&mut wait), ErrorKind::Closed);
}
