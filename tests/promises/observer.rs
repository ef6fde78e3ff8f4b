//! The events that an observer gets are a ledger: under random use and faults every beginning has exactly one end.
//!
//! `LEASEHOLD_TEST_OPS` says how many operations, `LEASEHOLD_TEST_SEED` repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::bench::Bench;
use crate::support::harness::connected;
use crate::support::seed::{seed, setting};
use crate::support::stores::{Opened, Store};
use crate::support::wait::wait_until;
use fastrand::Rng;
use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{
    CancelToken, ErrorKind, Event, LeaseKeeper, Lock, LockAllGuard, LockClient, LockGuard, LossReason, Mutex, Observer,
    Operation, WaitEnd,
};

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(5);
const CALLS: [Call; 5] = [Call::Acquire, Call::Renew, Call::Release, Call::Read, Call::Swap];

/// Gauges by key, and which beginnings and ends there were.
#[derive(Default)]
struct Ledger(Mutex<Book>);

#[derive(Default)]
struct Book {
    held: BTreeMap<String, i64>,
    waits: BTreeMap<String, i64>,
    seen: BTreeMap<String, u64>,
    wrong: Option<String>,
}

impl Ledger {
    fn held(&self) -> i64 {
        self.0.lock().held.values().sum()
    }

    fn is_balanced(&self) -> bool {
        let book = self.0.lock();
        book.held.values().chain(book.waits.values()).all(|n| *n == 0)
    }
}

impl Observer for Ledger {
    fn event(&self, event: &Event<'_>) {
        let Some(key) = event.key().map(str::to_owned) else { return };
        let book = &mut *self.0.lock();
        if key.contains(char::is_control) {
            book.wrong.get_or_insert(format!("a key as only the store has it: {event:?}"));
        }
        for (gauge, change) in [(&mut book.held, event.held_change()), (&mut book.waits, event.waits_change())] {
            let count = gauge.entry(key.clone()).or_default();
            *count += change;
            if *count < 0 {
                book.wrong.get_or_insert(format!("an end without a beginning: {event:?}"));
            }
        }
        let name = match event {
            Event::Granted { .. } => "granted".to_owned(),
            Event::Released { .. } => "released".to_owned(),
            Event::Lost { loss, .. } => format!("lost {}", loss.reason.name()),
            Event::HandedOver { .. } => "handed over".to_owned(),
            Event::Left { .. } => "left".to_owned(),
            Event::ReleasedData { .. } => "released data".to_owned(),
            Event::WaitEnded { end: WaitEnd::Failed(kind), .. } => format!("wait failed {}", kind.name()),
            Event::WaitEnded { end, .. } => format!("wait {}", end.name()),
            _ => return,
        };
        *book.seen.entry(name).or_default() += 1;
    }
}

struct Run {
    rng: Rng,
    opened: Opened,
    faults: FaultPlan,
    ledger: Arc<Ledger>,
    client: LockClient,
    /// No observer sees this client.
    rival: LockClient,
    guards: Vec<LockGuard>,
    keepers: Vec<LeaseKeeper>,
    data: Vec<Lock>,
}

/// Timeouts for requests and drops if each must be answered, even on a busy machine.
const PATIENT: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3)];
/// Timeouts for runs that are about answers that hang.
const HASTY: [Duration; 2] = [Duration::from_millis(40), Duration::from_millis(60)];

impl Run {
    fn new(store: &Store, seed: u64, [request_timeout, drop_timeout]: [Duration; 2]) -> Run {
        let (opened, faults, ledger) = ((store.open)(), FaultPlan::default(), Arc::new(Ledger::default()));
        let faulty = Arc::new(Faulty::new(opened.store.clone(), faults.clone()));
        let builder = |store| builder_over(store, opened.clock.clone());
        let client = connected(|| {
            builder(faulty.clone())
                .heartbeat(Duration::from_millis(20))
                .poll(Duration::from_millis(1)..=Duration::from_millis(3))
                .request_timeout(request_timeout)
                .drop_timeout(drop_timeout)
                .observer(ledger.clone())
        });
        let rival = builder(opened.second.clone()).owner("rival").connect().unwrap();
        let (guards, keepers, data) = (Vec::new(), Vec::new(), Vec::new());
        Run { rng: Rng::with_seed(seed), opened, faults, ledger, client, rival, guards, keepers, data }
    }

    fn key(&mut self) -> &'static str {
        KEYS[self.rng.usize(..KEYS.len())]
    }

    fn take<T>(rng: &mut Rng, all: &mut Vec<T>) -> Option<T> {
        (!all.is_empty()).then(|| all.swap_remove(rng.usize(..all.len())))
    }

    fn guard(&mut self) -> Option<LockGuard> {
        Run::take(&mut self.rng, &mut self.guards)
    }

    fn keep(&mut self, answer: leasehold::Result<Option<LockGuard>>) {
        self.guards.extend(answer.ok().flatten());
    }

    fn step(&mut self) {
        if self.rng.u8(..3) == 0 {
            let call = CALLS[self.rng.usize(..CALLS.len())];
            let faults =
                [Fault::FailBefore, Fault::LostBefore, Fault::ApplyThenFail, Fault::Refuse, Fault::ApplyThenHang];
            self.faults.next(call, faults[self.rng.usize(..faults.len())].clone());
        }
        // Otherwise most keys would soon be held by data.
        if self.data.len() > 1 {
            let _ = self.rival.release(&self.data.swap_remove(0));
        }
        let key = self.key();
        match self.rng.u8(..21) {
            0..=2 => {
                let guard = self.client.try_lock(key);
                self.keep(guard);
            }
            3 => {
                let guard = self.client.try_lock_shared(key);
                self.keep(guard);
            }
            4 => {
                let guard = self.client.try_lock_for(key, MOMENT);
                self.keep(guard);
            }
            5 => {
                let others = KEYS.iter().filter(|other| **other != key);
                let guard = self.client.request_any(others).wait(MOMENT).lock();
                self.keep(guard.map(Some));
            }
            6 => self.cancelled(key, MOMENT),
            7 => drop(self.guard()),
            8 => {
                let released = self.guard().map(LockGuard::release);
                self.after(released);
            }
            9 => self.unanswered(),
            10 => {
                let lock = self.guard().map(LockGuard::into_lock);
                self.data.extend(lock);
            }
            11 => self.data.extend(self.client.request(key).acquire().ok()),
            12 => {
                let adopted = Run::take(&mut self.rng, &mut self.data).map(|lock| self.client.adopt(lock));
                self.guards.extend(adopted.and_then(Result::ok));
            }
            13 => {
                let lock = Run::take(&mut self.rng, &mut self.data);
                let _ = lock.map(|lock| self.client.release(&lock));
            }
            // Another client releases it, unknown to the guard.
            14 if !self.guards.is_empty() => {
                let client = if self.rng.bool() { &self.rival } else { &self.client };
                let _ = client.release(&self.guards[self.rng.usize(..self.guards.len())].info());
            }
            15 => self.lease(key),
            16 => self.handed_on(false),
            17 => self.handed_on(true),
            18 => {
                self.faults.always(Call::Acquire, Fault::FailBefore);
                let guard = self.client.request(key).wait(MOMENT).lock();
                self.faults.heal();
                self.keep(guard.map(Some));
            }
            19 => {
                let all = self.client.request_all(KEYS.iter().filter(|other| **other != key));
                match self.rng.u8(..3) {
                    0 => drop(all.try_lock()),
                    1 => drop(all.wait(MOMENT).lock()),
                    _ => drop(all.wait(MOMENT).lock().map(LockAllGuard::release)),
                }
            }
            _ if self.guards.len() > 1 => self.expire(),
            _ => {}
        }
        self.check();
    }

    /// A wait that is cancelled in the middle, or before it has begun if it does not begin within `begins`.
    fn cancelled(&mut self, key: &str, begins: Duration) {
        let (cancel, began) = (CancelToken::new(), crossbeam_channel::bounded(1));
        let request =
            self.client.request(key).cancel(&cancel).on_wait(move |_| began.0.try_send(()).unwrap_or_default());
        let guard = std::thread::scope(|scope| {
            let wait = scope.spawn(|| request.lock());
            // This fails early if the lock was granted at once.
            let _ = began.1.recv_timeout(begins);
            cancel.cancel();
            wait.join().unwrap()
        });
        self.keep(guard.map(Some));
    }

    /// All guards lose their locks.
    fn expire(&mut self) {
        self.faults.heal();
        self.guards.extend(self.client.try_lock("expires").ok().flatten());
        self.opened.advance(Duration::from_secs(21));
        self.check();
    }

    /// A release that gets no answer.
    fn unanswered(&mut self) {
        let Some(guard) = self.guard() else { return };
        self.faults.always(Call::Release, Fault::LostBefore);
        let failed = self.rng.bool().then(|| guard.release());
        if self.rng.bool() {
            self.faults.heal();
        }
        self.after(failed);
        self.faults.heal();
    }

    fn after(&mut self, released: Option<Result<(), leasehold::ReleaseError>>) {
        let Some(Err(failed)) = released else { return };
        match self.rng.u8(..3) {
            0 => drop(failed),
            1 => drop(leasehold::Error::from(failed)),
            // A guard that is kept is released by a later step.
            _ if failed.error().kind() != ErrorKind::Lost => self.guards.push(failed.into_guard()),
            _ => {}
        }
    }

    fn lease(&mut self, name: &str) {
        let leases = self.client.leases("n");
        match self.rng.u8(..3) {
            0 => drop(leases.claim(name, "h", Duration::from_secs(20))),
            1 => self.keepers.extend(leases.keep(name, "h", Duration::from_secs(20))),
            _ if self.rng.bool() => drop(Run::take(&mut self.rng, &mut self.keepers)),
            _ => drop(leases.revoke(name, "h")),
        }
    }

    /// Another call waits while a guard ends.
    fn handed_on(&mut self, for_any: bool) {
        let Some(guard) = self.guard() else { return };
        let (client, key) = (self.client.clone(), guard.key().to_owned());
        let wait = Duration::from_millis(100);
        let handed = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match for_any {
                true => client.request_any(KEYS).wait(wait).lock(),
                false => client.request(&key).wait(wait).lock(),
            });
            std::thread::sleep(Duration::from_millis(self.rng.u64(..8)));
            drop(guard);
            waiter.join().unwrap()
        });
        self.keep(handed.map(Some));
    }

    /// Asserts that the gauge equals the number of locks that are held.
    fn check(&self) {
        let (ledger, guards, keepers) = (&self.ledger, &self.guards, &self.keepers);
        let open = || {
            let losses = guards.iter().map(LockGuard::loss).chain(keepers.iter().map(LeaseKeeper::loss));
            i64::try_from(losses.filter(|loss| loss.get().is_none()).count()).unwrap()
        };
        wait_until("the ledger knows of all that is held", || ledger.held() == open());
        let wrong = ledger.0.lock().wrong.clone();
        assert_eq!(wrong, None);
    }

    /// Ends everything, half of it by the close, while another call waits.
    fn end(mut self) -> BTreeMap<String, u64> {
        self.faults.heal();
        self.guards.truncate(self.guards.len() / 2);
        self.keepers.truncate(self.keepers.len() / 2);
        self.check();
        let key = "last";
        self.guards.extend(self.client.lock(key));
        // On a busy machine each earlier wait may have been cancelled before it began.
        self.cancelled(key, MINUTE);
        let client = self.client.clone();
        let (begin, began) = crossbeam_channel::bounded(1);
        let request = client.request(key).on_wait(move |_| begin.try_send(()).unwrap_or_default());
        let waiter = std::thread::spawn(|| request.lock());
        began.recv().unwrap();
        let _ = self.client.close();
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        drop((self.guards, self.keepers));
        wait_until("what was counted up is counted down", || self.ledger.is_balanced());
        let book = self.ledger.0.lock();
        assert_eq!(book.wrong, None);
        book.seen.clone()
    }
}

macro_rules! suite {
    ($store:ident) => {
        crate::support::stores::tests_of! { crate::support::stores::on, $store:
            every_beginning_has_one_end_under_random_use_and_faults
            each_way_to_end_is_told_once
            whoever_stands_behind_another_is_counted_too
        }
    };
}
// Only the stores that answer within `HASTY`.
suite!(memory);
#[cfg(feature = "sqlite")]
suite!(sqlite);

fn every_beginning_has_one_end_under_random_use_and_faults(store: &Store) {
    let ops: u64 = setting("LEASEHOLD_TEST_OPS").unwrap_or(600);
    let seed = seed();
    println!("{}: LEASEHOLD_TEST_OPS={ops}", store.module);
    let mut run = Run::new(store, seed, HASTY);
    (0..ops).for_each(|_| run.step());
    run.expire();
    let seen = run.end();
    println!("{}: {seen:?}", store.module);
    // A run that never had an end of some kind proves nothing about it.
    for name in SEEN {
        assert!(ops < 600 || seen.keys().any(|seen| seen.starts_with(name)), "{}: never {name}", store.module);
    }
}

const SEEN: [&str; 6] = ["granted", "released", "wait timed_out", "wait cancelled", "wait closed", "wait failed"];

fn each_way_to_end_is_told_once(store: &Store) {
    let mut run = Run::new(store, 1, PATIENT);
    let (client, rival) = (run.client.clone(), run.rival.clone());
    let seen = |run: &Run, names: &[&str]| {
        // Another thread reports what a heartbeat did or found, and what follows while that is being reported.
        let all = || names.iter().all(|name| run.ledger.0.lock().seen.contains_key(*name));
        wait_until(&format!("{names:?}, counted up and down"), || all() && run.ledger.is_balanced());
        let all = std::mem::take(&mut run.ledger.0.lock().seen);
        let names: BTreeMap<String, u64> = names.iter().map(|name| ((*name).to_owned(), 1)).collect();
        assert_eq!(all, names);
    };
    client.lock("k").unwrap().release().unwrap();
    seen(&run, &["granted", "released"]);
    let lock = client.lock("k").unwrap().into_lock();
    seen(&run, &["granted", "handed over"]);
    client.release(&lock).unwrap();
    seen(&run, &["released data"]);
    client.request("k").acquire().unwrap();
    seen(&run, &["granted", "handed over"]);
    assert!(client.try_lock_for("k", PATIENT[1]).unwrap().is_none());
    seen(&run, &["wait timed_out"]);
    run.cancelled("k", MINUTE);
    seen(&run, &["wait cancelled"]);
    let waiter = client.clone();
    let waiter = std::thread::spawn(move || waiter.lock("k").unwrap_err().kind());
    wait_until("it waits", || run.ledger.0.lock().waits.values().sum::<i64>() == 1);
    // The waiter learns of the release, and its next acquire is refused.
    run.faults.always(Call::Acquire, Fault::Refuse);
    rival.force_release("k").unwrap();
    assert_eq!(waiter.join().unwrap(), ErrorKind::Permission);
    run.faults.heal();
    seen(&run, &["wait failed permission"]);
    let guard = client.lock("other").unwrap();
    run.faults.always(Call::Release, Fault::LostBefore);
    let failed = guard.release().unwrap_err();
    assert_eq!(run.ledger.held(), 1, "it may be released yet");
    drop(failed);
    run.faults.heal();
    seen(&run, &["granted", "left"]);
    let guard = client.lock("third").unwrap();
    run.faults.always(Call::Renew, Fault::FailBefore);
    rival.release(&guard.info()).unwrap();
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    seen(&run, &["granted", "lost released_by_other"]);
    let guard = client.lock("fourth").unwrap();
    run.opened.advance(Duration::from_secs(21));
    wait_until("what was counted up is counted down", || run.ledger.is_balanced());
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    seen(&run, &["granted", "lost expired"]);
    client.leases("n").claim("name", "h", MINUTE).unwrap();
    drop(client.leases("n").keep("name", "h", MINUTE).unwrap());
    seen(&run, &["granted", "handed over"]);
}

fn whoever_stands_behind_another_is_counted_too(store: &Store) {
    let run = Run::new(store, 1, PATIENT);
    let held = run.rival.lock("k").unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let client = run.client.clone();
            std::thread::spawn(move || client.lock("k").unwrap().release().unwrap())
        })
        .collect();
    wait_until("three wait", || run.ledger.0.lock().waits.values().sum::<i64>() == 3);
    held.release().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    wait_until("nobody waits, and nothing is held", || run.ledger.is_balanced());
}

#[test]
fn labels_for_metrics_are_plain_words() {
    let names = [Operation::Acquire.name(), ErrorKind::TimedOut.name(), WaitEnd::OtherGranted.name()];
    assert_eq!(names, ["acquire", "timed_out", "other_granted"]);
    let reasons = [LossReason::MaxHold.name(), LossReason::TakenOver { by: None }.name()];
    assert_eq!(reasons, ["max_hold", "taken_over"]);
}

struct Looks(crossbeam_channel::Sender<()>);

impl Observer for Looks {
    fn event(&self, event: &Event<'_>) {
        if let Event::Waited { .. } = event {
            self.0.send(()).unwrap_or_default();
        }
    }
}

/// It wakes now and then, in case the waiters before it hang in a user's code. That is no look at the lock.
#[test]
fn who_stands_behind_another_tells_of_no_look() {
    let (bench, (to, looks), cancel) = (Bench::new(), crossbeam_channel::unbounded(), CancelToken::new());
    let client = bench.builder().poll(60 * MINUTE..=60 * MINUTE).observer(Arc::new(Looks(to))).connect().unwrap();
    let _held = bench.rival().request("k").lease(60 * MINUTE).lock().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| client.request("k").cancel(&cancel).lock().unwrap_err());
            looks.recv_timeout(MINUTE).unwrap();
        }
        // The first in line looks once more when the store wakes it.
        while looks.recv_timeout(Duration::from_secs(2)).is_ok() {}
        // On a busy machine that look may come only now, once.
        let is_silent = (0..2).any(|_| looks.recv_timeout(Duration::from_secs(4)).is_err());
        cancel.cancel();
        assert!(is_silent, "it tells again and again");
    });
}
