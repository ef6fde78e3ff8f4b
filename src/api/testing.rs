//! A store for users' own tests: in memory, with a clock that can be moved and faults on order.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use leasehold::LossReason;
//! use leasehold::testing::MemoryStore;
//!
//! let store = MemoryStore::new();
//! let guard = store.client().lock("job")?;
//! store.take_over("job");
//! store.advance(Duration::from_secs(1)); // as a suspend: heartbeats are sent at once
//! let loss = guard.loss().wait().expect("the lock is lost");
//! assert!(matches!(loss.reason, LossReason::TakenOver { .. }));
//! assert!(!guard.is_held());
//! # Ok::<(), leasehold::Error>(())
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::client::LockClient;
use crate::model::event::Operation;
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::sys::clock::Clock;

/// A store inside the process; clones and all its clients share it.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    memory: Arc<Memory>,
    clock: Arc<Clock>,
    faults: FaultPlan,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The store never sees it.
    NotSent,
    /// The store does it, and the answer is lost.
    AnswerLost,
    /// The store does it, and no answer comes before the request's timeout.
    AnswerHangs,
}

impl MemoryStore {
    /// A store of its own, empty.
    pub fn new() -> Self {
        let clock = Clock::system();
        MemoryStore { memory: Arc::new(Memory::open("", clock.clone())), clock, faults: FaultPlan::default() }
    }

    /// A client with default options.
    ///
    /// # Panics
    /// Never: a memory store can always be opened.
    pub fn client(&self) -> LockClient {
        match self.builder().connect() {
            Ok(client) => client,
            Err(error) => panic!("a memory store refused a client: {error}"),
        }
    }

    /// A client with options of its own.
    pub fn builder(&self) -> ClientBuilder {
        let store = Faulty::new(self.memory.clone(), self.faults.clone());
        ClientBuilder::over(Arc::new(store), self.clock.clone())
    }

    /// Ends the leases of the key's holders, as if their time had passed.
    pub fn expire(&self, key: &str) {
        self.memory.expire(key);
    }

    /// Grants the key to a stranger (owner `rival`, a lease of a minute), whoever holds it.
    pub fn take_over(&self, key: &str) {
        self.memory.take_over(key);
    }

    /// The next request of this kind fails. Called again, the one after it fails, too.
    pub fn fail_next(&self, operation: Operation, failure: Failure) {
        let call = match operation {
            Operation::Acquire => Call::Acquire,
            Operation::Renew => Call::Renew,
            Operation::Release => Call::Release,
            Operation::Read => Call::Read,
            Operation::Swap => Call::Swap,
            // A memory store has none that could fail.
            Operation::Schema => return,
        };
        let fault = match failure {
            Failure::NotSent => Fault::FailBefore,
            Failure::AnswerLost => Fault::ApplyThenFail,
            Failure::AnswerHangs => Fault::ApplyThenHang,
        };
        self.faults.next(call, fault);
    }

    /// Lets time pass at once for the store and its clients, as a suspend of the machine would.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}
