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
//!
//! # Which call simulates what
//! | in production | here |
//! |---|---|
//! | an operator releases the lock under its holder (`unlock`, `leasehold release --force`) | [`lose`](MemoryStore::lose): the guard is lost with [`ReleasedByOther`](crate::LossReason::ReleasedByOther) |
//! | a rival was granted the lock while the holder slept | [`take_over`](MemoryStore::take_over), then [`advance`](MemoryStore::advance) by a second: lost with [`TakenOver`](crate::LossReason::TakenOver) |
//! | the machine was suspended for longer than the lease | [`advance`](MemoryStore::advance) by more than the lease: lost with [`Expired`](crate::LossReason::Expired) |
//! | the holder's process died, and its lease ended | `std::mem::forget` of its guard would go on with heartbeats: end it with [`into_lock`](crate::LockGuard::into_lock), then [`expire`](MemoryStore::expire) |
//! | the store can't be reached for a while, or for good | [`go_offline`](MemoryStore::go_offline), [`go_online`](MemoryStore::go_online); heartbeats fail, and after the lease the lock is lost with `Expired` |
//! | one request is lost, or its answer | [`fail_next`](MemoryStore::fail_next), taken back by [`clear_failures`](MemoryStore::clear_failures) |
//! | others hold the lock | a guard of [`client`](MemoryStore::client), or `take_over` |
//! | time passes | [`advance`](MemoryStore::advance); not the wall clock, so that a purge finds no row older than before |

use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::client::LockClient;
use crate::model::event::Operation;
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::sys::clock::Clock;

/// So short a suspend is noticed: heartbeats are sent at once.
const SHORT_SUSPEND: Duration = Duration::from_millis(250);

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

    /// Ends the leases of the key's holders in the store, as if their time had passed: the next request is granted the
    /// lock.
    ///
    /// A guard that lives does not lose its lock by that alone, since its next heartbeat renews the lease, as it would
    /// in production, unless somebody was granted the lock before. [`lose`](MemoryStore::lose) ends its lock.
    pub fn expire(&self, key: &str) {
        self.memory.expire(key);
    }

    /// Takes the key from its holders, as an operator does who releases it. Their guards learn of it by heartbeats that
    /// are sent at once, for which time passes by a quarter of a second; [`loss`](crate::LockGuard::loss) waits for it.
    pub fn lose(&self, key: &str) {
        self.memory.end_holders(key);
        self.advance(SHORT_SUSPEND);
    }

    /// No request reaches the store, connecting included, until [`go_online`](MemoryStore::go_online). They fail at
    /// once, with an error of kind `Store` that is worth a repeat.
    pub fn go_offline(&self) {
        self.faults.go_offline();
    }

    /// Ends [`go_offline`](MemoryStore::go_offline).
    pub fn go_online(&self) {
        self.faults.go_online();
    }

    /// Takes back every [`fail_next`](MemoryStore::fail_next) that no request has met yet.
    pub fn clear_failures(&self) {
        self.faults.heal();
    }

    /// Grants the key to a stranger (owner `rival`, a lease of a minute), no matter who holds it.
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
            Operation::Schema => Call::Schema,
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
