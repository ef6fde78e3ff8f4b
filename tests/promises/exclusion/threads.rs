//! At most one holder, whatever the store does to the requests; seen from inside the critical section.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::bench::{Bench, builder_over};
use crate::support::contract::release;
use crate::support::direct::get;
use crate::support::harness::{PATIENCE, millis, sent};
use crate::support::oracle::assert_rising;
use crate::support::seed::{seed, sow};
use crate::support::stores::{Store, for_each_store, soon};
use crate::support::wait::wait_until;
use leasehold::LockClient;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::{Acquired, Attempt};
use parking_lot::Mutex;

const THREADS: u64 = 8;
/// A server takes some milliseconds for each request.
const SERVER_ROUNDS: u64 = 4;

macro_rules! suite {
    ($store:ident) => {
        crate::support::stores::tests_of! { crate::support::stores::on, $store:
            threads_never_overlap
            threads_never_overlap_while_requests_are_lost_and_repeated
            shared_holders_are_never_inside_with_an_exclusive_one
        }
    };
}
for_each_store!(suite);

/// The rounds of each thread.
fn rounds(store: &Store, memory: u64, sqlite: u64) -> u64 {
    match store.module {
        "memory" => memory,
        "sqlite" => sqlite,
        _ => SERVER_ROUNDS,
    }
}

/// What only one thread may change at a time: an addition in two steps, with time for other threads in between.
#[derive(Default)]
struct Section {
    counter: AtomicU64,
    inside: AtomicI64,
    overlap: AtomicBool,
    tokens: Mutex<Vec<u64>>,
}

impl Section {
    fn enter(&self, token: u64) {
        if self.inside.fetch_add(1, Ordering::SeqCst) != 0 {
            self.overlap.store(true, Ordering::SeqCst);
        }
        let read = self.counter.load(Ordering::Relaxed);
        std::thread::yield_now();
        self.counter.store(read + 1, Ordering::Relaxed);
        self.tokens.lock().push(token);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    #[track_caller]
    fn assert_exclusive(&self, entries: u64) {
        assert!(!self.overlap.load(Ordering::SeqCst), "two were inside");
        assert_eq!(self.counter.load(Ordering::SeqCst), entries, "an addition was lost");
        assert_rising(&self.tokens.lock());
    }
}

/// Every other thread has a client of its own, and the rest share one: clones share what they know.
fn crowd(bench: &Bench, each: u64, work: impl Fn(&LockClient, u64) + Sync) {
    // The timeouts leave time to repeat a lost request, even if the machine stalls in between.
    let patient = || bench.builder().poll(millis(5)..=millis(20)).request_timeout(PATIENCE).drop_timeout(PATIENCE);
    let shared = patient().connect().expect("a client");
    let seed = seed();
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (shared, work) = (&shared, &work);
            let builder = patient();
            scope.spawn(move || {
                sow(seed, n);
                let own = if n % 2 == 0 { shared.clone() } else { builder.connect().expect("a client") };
                (0..each).for_each(|round| work(&own, round));
            });
        }
    });
}

fn threads_never_overlap(store: &Store) {
    let (bench, each) = (Bench::on(store), rounds(store, 500, 60));
    let section = Section::default();
    crowd(&bench, each, |client, round| {
        let guard = client.lock("job").expect("a lock");
        section.enter(guard.fencing_token());
        if round % 2 == 0 { drop(guard) } else { guard.release().expect("a release") }
    });
    section.assert_exclusive(THREADS * each);
}

/// The negative control: the section does notice a missing lock.
#[test]
fn threads_without_the_lock_do_overlap() {
    let section = Section::default();
    let together = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !section.overlap.load(Ordering::SeqCst) {
                    together.wait();
                    section.enter(1);
                    // Both must have seen the same before one of them leaves.
                    together.wait();
                }
            });
        }
    });
    assert!(section.overlap.load(Ordering::SeqCst));
}

/// Injects a fault into about every fifth call of each kind, at random places.
fn disturb(bench: &Bench) {
    for call in [Call::Acquire, Call::Renew, Call::Release, Call::Read] {
        if fastrand::u32(0..5) == 0 {
            let fault = match fastrand::u32(0..4) {
                0 => Fault::FailBefore,
                1 => Fault::ApplyThenFail,
                // A second copy of a release would find that the lock was released by somebody.
                2 if call != Call::Release => Fault::Twice,
                _ => Fault::Delay(millis(5)),
            };
            bench.faults.next(call, fault);
        }
    }
}

/// A client whose acquires reach the store only after they were given up, and how many of these the store refused.
struct Late(LockClient, FaultPlan, usize);

impl Late {
    fn on(bench: &Bench) -> Late {
        let faults = FaultPlan::default();
        faults.always(Call::Acquire, Fault::Late);
        let store = Arc::new(Faulty::new(bench.at.store.clone(), faults.clone()));
        Late(builder_over(store, bench.clock.clone()).connect().expect("a client"), faults, 0)
    }

    /// Whether or not somebody holds the lock when it arrives, such an acquire must be granted to nobody.
    fn comes(&mut self, bench: &Bench) {
        let Late(client, faults, refused) = self;
        let (sent, given_up) = (faults.count(Call::Acquire), faults.given_up("job"));
        assert!(!matches!(client.try_lock_for("job", millis(50)), Ok(Some(_))), "nobody answers");
        // On a busy machine the time may be over before the acquire is sent.
        if faults.count(Call::Acquire) > sent {
            wait_until("it is given up", || faults.given_up("job") > given_up);
        }
        // If many were given up, DynamoDB has a floor under the tokens instead of their grant ids. It stops copies, but
        // not the new requests that this test makes of them.
        let is_named = |attempt: &Attempt| {
            let store = &*bench.at.store;
            !store.info().label.starts_with("dynamodb:") || get(store, "job").record.given_up.contains(attempt.grant())
        };
        for (store, mut attempt) in faults.take_late() {
            if !is_named(&attempt) {
                continue;
            }
            let answer = store.acquire(&mut attempt, &soon());
            if matches!(answer, Ok(Acquired::Granted { .. })) {
                assert!(!is_named(&attempt), "{answer:?}");
                // The floor replaced the grant id in between.
                release(&*store, &mut attempt);
            }
            *refused += usize::from(matches!(answer, Ok(Acquired::Refused(_))));
        }
    }
}

fn threads_never_overlap_while_requests_are_lost_and_repeated(store: &Store) {
    let (bench, each) = (Bench::on(store), rounds(store, 100, 30));
    let section = Section::default();
    // Only on stores that remember given-up grants: on the others, what the fault switch delivers late counts as a new
    // request.
    let late = store.remembers_who_gave_up.then(|| Mutex::new(Late::on(&bench)));
    crowd(&bench, each, |client, round| {
        // One thread at a time does this, among the others.
        if round.is_multiple_of(3)
            && let Some(mut late) = late.as_ref().and_then(Mutex::try_lock)
        {
            late.comes(&bench);
        }
        disturb(&bench);
        // Half of the leases need a renewal at once, which may also meet faults.
        let lease = Duration::from_secs(if fastrand::bool() { 20 } else { 120 });
        let guard = client.request("job").lease(lease).lock().expect("a lock");
        disturb(&bench);
        // If two seconds were lost since the grant, this asks the store, and may meet a fault.
        sent(|| guard.ensure_held_for(lease.mul_f64(0.8)));
        section.enter(guard.fencing_token());
        guard.release().expect("a release, repeated until it is answered");
    });
    bench.faults.heal();
    section.assert_exclusive(THREADS * each);
    assert!(late.is_none_or(|late| late.into_inner().2 > 0), "no request was late on {}", store.module);
    let left = bench.rival().get("job").expect("a look").is_some_and(|status| !status.holders().is_empty());
    assert!(!left, "a row is left on {}", store.module);
}

fn shared_holders_are_never_inside_with_an_exclusive_one(store: &Store) {
    let (bench, each) = (Bench::on(store), rounds(store, 150, 25));
    // How long the first holders wait for company, at least: on a server the next one comes later, and on a slow server
    // only after about as long as this one's own grant took.
    let company = millis(if each == SERVER_ROUNDS { 500 } else { 50 });
    // Above zero: the number of shared holders; below: exclusive ones.
    let (inside, most) = (AtomicI64::new(0), AtomicI64::new(0));
    crowd(&bench, each, |client, _| {
        disturb(&bench);
        if fastrand::u32(0..3) == 0 {
            let guard = client.lock("job").expect("a lock");
            let before = inside.fetch_sub(1000, Ordering::SeqCst);
            assert_eq!(before, 0, "an exclusive holder met others");
            std::thread::yield_now();
            inside.fetch_add(1000, Ordering::SeqCst);
            drop(guard);
        } else {
            let asked = Instant::now();
            let guard = client.request("job").max_holders(3).lock().expect("a lock");
            let company = asked.elapsed().clamp(company, millis(3000));
            let before = inside.fetch_add(1, Ordering::SeqCst);
            assert!((0..3).contains(&before), "a shared holder met {before}");
            most.fetch_max(before + 1, Ordering::SeqCst);
            std::thread::sleep(millis(1));
            let began = Instant::now();
            while most.load(Ordering::SeqCst) < 2 && began.elapsed() < company {
                std::thread::sleep(millis(1));
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    });
    bench.faults.heal();
    assert!(most.load(Ordering::SeqCst) > 1, "nobody ever shared it on {}", store.module);
}
