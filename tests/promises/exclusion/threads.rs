//! At most one, whatever the store does to the requests; seen from inside the critical section.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::harness::{PATIENCE, Store, millis, on_each_local, sent};
use crate::support::oracle::assert_rising;
use crate::support::seed::{seed, sow};
use leasehold::LockClient;
use leasehold::internals::store::fault::{Call, Fault};
use parking_lot::Mutex;

const THREADS: u64 = 8;

on_each_local! {
    together:
        threads_never_overlap,
        threads_never_overlap_while_requests_are_lost_and_repeated,
        shared_holders_are_never_inside_with_an_exclusive_one,
    ;
}

/// What only one may change at a time: an addition in two steps, with time for others in between.
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

/// Each thread has a client of its own every other time: clones share what they know.
fn crowd(store: &Store, each: u64, work: impl Fn(&LockClient, u64) + Sync) {
    // What was lost is sent again, also where the machine stands still in between.
    let patient = || store.builder().request_timeout(PATIENCE).drop_timeout(PATIENCE);
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

fn threads_never_overlap(store: Store) {
    let each = if store.name == "memory" { 500 } else { 60 };
    let section = Section::default();
    crowd(&store, each, |client, round| {
        let guard = client.lock("job").expect("a lock");
        section.enter(guard.fencing_token());
        if round % 2 == 0 { drop(guard) } else { guard.release().expect("a release") }
    });
    section.assert_exclusive(THREADS * each);
}

/// The negative control: the section does notice that the lock is missing.
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
                    // Both must see the same before one of them leaves.
                    together.wait();
                }
            });
        }
    });
    assert!(section.overlap.load(Ordering::SeqCst));
}

/// A fault for every fifth call of each kind, at random places.
fn disturb(store: &Store) {
    for call in [Call::Acquire, Call::Renew, Call::Release, Call::Read] {
        if fastrand::u32(0..5) == 0 {
            let fault = match fastrand::u32(0..4) {
                0 => Fault::FailBefore,
                1 => Fault::ApplyThenFail,
                // A second copy of a release would find that somebody has released it.
                2 if call != Call::Release => Fault::Twice,
                _ => Fault::Delay(millis(5)),
            };
            store.plan.next(call, fault);
        }
    }
}

fn threads_never_overlap_while_requests_are_lost_and_repeated(store: Store) {
    let each = if store.name == "memory" { 100 } else { 30 };
    let section = Section::default();
    crowd(&store, each, |client, _| {
        disturb(&store);
        // Half of the leases need a renewal at once, which meets faults, too.
        let lease = Duration::from_secs(if fastrand::bool() { 20 } else { 120 });
        let guard = client.request("job").lease(lease).lock().expect("a lock");
        disturb(&store);
        // It asks once, where two seconds were lost since the grant, and may meet a fault then.
        sent(|| guard.ensure_held_for(lease.mul_f64(0.8)));
        section.enter(guard.fencing_token());
        guard.release().expect("a release, repeated until it is answered");
    });
    store.plan.heal();
    section.assert_exclusive(THREADS * each);
    assert!(store.is_vacant("job"), "a row is left on {}", store.name);
}

fn shared_holders_are_never_inside_with_an_exclusive_one(store: Store) {
    let each = if store.name == "memory" { 150 } else { 25 };
    // Above zero: so many shared holders; below: exclusive ones.
    let (inside, most) = (AtomicI64::new(0), AtomicI64::new(0));
    crowd(&store, each, |client, _| {
        disturb(&store);
        if fastrand::u32(0..3) == 0 {
            let guard = client.lock("job").expect("a lock");
            let before = inside.fetch_sub(1000, Ordering::SeqCst);
            assert_eq!(before, 0, "an exclusive holder met others");
            std::thread::yield_now();
            inside.fetch_add(1000, Ordering::SeqCst);
            drop(guard);
        } else {
            let guard = client.request("job").max_holders(3).lock().expect("a lock");
            let before = inside.fetch_add(1, Ordering::SeqCst);
            assert!((0..3).contains(&before), "a shared holder met {before}");
            most.fetch_max(before + 1, Ordering::SeqCst);
            std::thread::sleep(millis(1));
            // On a busy machine the next one may come later.
            let began = Instant::now();
            while most.load(Ordering::SeqCst) < 2 && began.elapsed() < millis(50) {
                std::thread::sleep(millis(1));
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    });
    store.plan.heal();
    assert!(most.load(Ordering::SeqCst) > 1, "nobody ever shared it on {}", store.name);
}
