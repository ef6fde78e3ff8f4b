//! A memory store with faults in front, and a client that meets none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::store::{Backend, Consistency, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{ClientBuilder, LockClient, LockGuard, Loss};

/// Long enough for any event on a busy machine; no test waits for it when all is well.
pub const LONG: Duration = Duration::from_secs(20);

/// A store that faults can be put in front of, and whose clock can be moved.
pub struct Bench {
    pub store: Arc<Memory>,
    pub clock: Arc<Clock>,
    pub faults: FaultPlan,
}

impl Default for Bench {
    fn default() -> Self {
        let clock = Clock::system();
        Bench { store: Arc::new(Memory::open("", clock.clone())), clock, faults: FaultPlan::default() }
    }
}

impl Bench {
    pub fn new() -> Self {
        Bench::default()
    }

    /// A client whose requests meet the faults.
    pub fn builder(&self) -> ClientBuilder {
        builder_over(Arc::new(Faulty::new(self.store.clone(), self.faults.clone())), self.clock.clone())
    }

    pub fn client(&self) -> LockClient {
        self.builder().connect().unwrap()
    }

    /// A client with short leases.
    pub fn hasty(&self) -> LockClient {
        self.builder().lease(Duration::from_secs(1)).connect().unwrap()
    }

    /// A client of the same store whose requests meet no faults and are not counted.
    pub fn rival(&self) -> LockClient {
        builder_over(self.store.clone(), self.clock.clone()).owner("rival").connect().unwrap()
    }

    /// How many acquisitions of the key were given up, so that no late copy of them can be granted.
    pub fn given_up(&self, key: &str) -> usize {
        let by = Deadline::after(LONG);
        self.store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &by).unwrap().records[0]
            .record
            .given_up
            .len()
    }

    /// Waits until a call of this kind was made more often than `before`.
    pub fn wait_for_call(&self, call: Call, before: usize) {
        wait_until(|| self.faults.count(call) > before);
    }
}

/// The loss of a guard that must be lost.
pub fn loss_of(guard: &LockGuard) -> Loss {
    guard.loss().wait_timeout(LONG).expect("the lock is not lost")
}

/// Waits for what no channel tells.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LONG, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
