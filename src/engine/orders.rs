//! A small scheduler for tests: goes through every order in which some actors can take their steps.

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
