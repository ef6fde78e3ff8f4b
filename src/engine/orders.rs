//! A small scheduler for tests: goes through every order in which some actors can take their steps, or through many random
//! ones.

#[path = "seed.rs"]
pub mod seed;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::options::Terms;
use crate::engine::spec::LockSpec;
use crate::lease::{Labels, Lease};
use crate::store::fault::{FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::sys::clock::Clock;

/// Longer than any test runs.
pub const LEASE: Duration = Duration::from_secs(3600);

/// An exclusive lock that the actors ask for.
pub fn spec() -> LockSpec {
    let labels = Labels::of("o");
    let (lease, at_least) = (Lease::For(LEASE), Duration::ZERO);
    let terms = Terms { lease, heartbeat: LEASE / 3, margin: LEASE / 10, ends_at: None, at_least };
    LockSpec::exclusive("k", labels, terms)
}

/// A store, its clock, and the same store with the faults of the plan.
pub fn faulty() -> (Arc<Memory>, Arc<Clock>, Arc<Faulty>, FaultPlan) {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Arc::new(Memory::open("", clock.clone()));
    (store.clone(), clock, Arc::new(Faulty::new(store, faults.clone())), faults)
}

/// Actors and what they share.
pub trait World {
    /// What can happen next.
    type Choice: Clone;

    /// Empty: nothing more happens.
    fn choices(&self) -> Vec<Self::Choice>;
    /// Lets it happen, and checks what has to hold at any time.
    fn step(&mut self, choice: Self::Choice);
    /// Checks what has to hold in the end.
    fn check_end(&self);
}

/// Goes through the orders of steps, each from the start, up to `limit`; how many there were.
pub fn all_orders<W: World>(start: impl Fn() -> W, limit: usize) -> usize {
    let (mut path, mut runs) = (Vec::<usize>::new(), 0);
    loop {
        let mut world = start();
        let (mut at, mut widths) = (0, Vec::new());
        loop {
            let choices = world.choices();
            if choices.is_empty() {
                break;
            }
            if at == path.len() {
                path.push(0);
            }
            widths.push(choices.len());
            world.step(choices[path[at]].clone());
            at += 1;
            assert!(at < 200, "it goes round in circles: {path:?}");
        }
        world.check_end();
        runs += 1;
        // The next order: the last step that has another choice takes it.
        while let Some(last) = path.pop() {
            if last + 1 < widths[path.len()] {
                path.push(last + 1);
                break;
            }
        }
        if path.is_empty() || runs == limit {
            return runs;
        }
    }
}

/// Random histories, on all processors: `LEASEHOLD_TEST_HISTORIES` says how many, or `usual`. `run` runs one, which draws
/// from `fastrand`. How many there were, and for how many of them it returned true.
pub fn in_random_histories(usual: u64, run: impl Fn() -> bool + Sync) -> (u64, u64) {
    let first = seed::seed();
    let histories = seed::setting("LEASEHOLD_TEST_HISTORIES").unwrap_or(usual);
    assert!(histories > 0, "LEASEHOLD_TEST_HISTORIES asks for none");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let test = std::thread::current().name().unwrap_or("this test").to_owned();
    let run = |history: &u64| {
        seed::sow(first, *history);
        // The seed that repeats it as the first one.
        let told = Told(&test, first.wrapping_add(*history));
        let is_counted = run();
        std::mem::forget(told);
        is_counted
    };
    let counted: usize = std::thread::scope(|scope| {
        let share = |n: usize| (n as u64..histories).step_by(threads);
        let shares: Vec<_> = (0..threads).map(|n| scope.spawn(move || share(n).filter(run).count())).collect();
        shares.into_iter().map(|share| share.join().expect("no history fails")).sum()
    });
    (histories, counted as u64)
}

/// Prints the seed if a panic unwinds.
struct Told<'a>(&'a str, u64);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let Told(test, seed) = self;
        println!("LEASEHOLD_TEST_SEED={seed} LEASEHOLD_TEST_HISTORIES=1 with {test} alone repeats it");
    }
}
