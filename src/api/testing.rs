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
//! store.advance(Duration::from_millis(1)); // as a suspend: heartbeats are sent at once
//! let loss = guard.loss().wait().expect("the lock is lost");
//! assert!(matches!(loss.reason, LossReason::TakenOver { .. }));
//! assert!(!guard.is_held());
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Which call simulates what
//! | in production | here |
//! |---|---|
//! | an operator releases the lock under its holder (`unlock`, `leasehold release --force`) | [`lose`](MemoryStore::lose): the guard is lost with [`ReleasedByOther`](crate::LossReason::ReleasedByOther), or with [`TakenOver`](crate::LossReason::TakenOver) where somebody waits for the lock |
//! | the same, and a rival is granted the lock before the holder learns of it; or the rival adopts it | [`take_over`](MemoryStore::take_over), then [`advance`](MemoryStore::advance) by a millisecond: lost with `TakenOver` |
//! | the machine was suspended for longer than the lease, whether a rival was granted the lock meanwhile or not | [`advance`](MemoryStore::advance) by more than the lease: lost with [`Expired`](crate::LossReason::Expired) |
//! | the holder's process died, and its lease ended | `std::mem::forget` of its guard would go on with heartbeats: end it with [`into_lock`](crate::LockGuard::into_lock), then [`expire`](MemoryStore::expire) |
//! | the store can't be reached for a while, or for good | [`go_offline`](MemoryStore::go_offline), [`go_online`](MemoryStore::go_online); heartbeats fail, and after the lease the lock is lost with `Expired` |
//! | the network goes silent | [`go_silent`](MemoryStore::go_silent), `go_online`; heartbeats hang, and after the lease the lock is lost with `Expired` |
//! | one node is cut off, and another one takes over | `go_silent`, and [`with_own_network`](MemoryStore::with_own_network) for the other node |
//! | the program is started again | a new [`client`](MemoryStore::client) of the same store. (A store with a URL, `memory:NAME`, is emptied when its last client is gone) |
//! | one request is lost, or its answer | [`fail_next`](MemoryStore::fail_next), taken back by [`clear_failures`](MemoryStore::clear_failures) |
//! | others hold the lock | a guard of another `client`, or `take_over` |
//! | time passes | [`advance`](MemoryStore::advance) |
//! | a guard lives for longer than its lease | `advance` by less than the guard's [`remaining`](crate::LockGuard::remaining), again and again, and before each [`ensure_held_for`](crate::LockGuard::ensure_held_for) more than that, which renews it where less is left |
//!
//! `advance` moves the time of leases, `max_hold` and `hold_at_least`, and what clients compute with them. Threads wait
//! in real time: the limits of calls (`try_lock_for`, `wait`, `request_timeout`, `campaign_for`),
//! [`sleep`](crate::LockGuard::sleep), pauses between checks of a lock and between health checks. The wall clock is not
//! moved: what was read before an `advance` keeps its dates (`created`, `leased_until`) and its
//! [`remaining_now`](crate::LockStatus::remaining_now), and to a purge, which does free the
//! locks whose leases are over by then, a row is no older.
//!
//! # What differs from a server
//! - It accepts leases from 100 ms on. Servers refuse those below a second, and DynamoDB and MongoDB also a margin that
//!   is too small.
//! - [`lose`](MemoryStore::lose), [`expire`](MemoryStore::expire) and [`take_over`](MemoryStore::take_over) are for
//!   locks: they never meet a lease that a name holds ([`Leases`](crate::Leases)).
//! - It belongs to the process that made it. In a forked child make a new one: the parent's is only a copy there, and
//!   may hang.

use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::client::LockClient;
use crate::model::event::Operation;
use crate::store::Backend;
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
    /// A new, empty store that shares nothing with others.
    pub fn new() -> Self {
        let clock = Clock::system();
        MemoryStore { memory: Arc::new(Memory::open("", clock.clone())), clock, faults: FaultPlan::without_notes() }
    }

    /// A client with default options. It connects even while the store is offline, and no fault hits its connecting,
    /// unlike that of a client of [`builder`](MemoryStore::builder).
    ///
    /// # Panics
    /// Never: a memory store can always be opened.
    pub fn client(&self) -> LockClient {
        match self.builder_over(Faulty::that_connects).connect() {
            Ok(client) => client,
            Err(error) => panic!("a memory store refused a client: {error}"),
        }
    }

    /// Makes a builder, for a client with other options than the defaults.
    pub fn builder(&self) -> ClientBuilder {
        self.builder_over(Faulty::new)
    }

    fn builder_over(&self, faulty: fn(Arc<dyn Backend>, FaultPlan) -> Faulty) -> ClientBuilder {
        let store = faulty(Arc::new(self.memory.for_another()), self.faults.clone());
        ClientBuilder::over(Arc::new(store), self.clock.clone())
    }

    /// The same locks and the same clock for another node, with a network of its own: what is ordered of one network, by
    /// [`go_offline`](MemoryStore::go_offline), [`go_silent`](MemoryStore::go_silent) or
    /// [`fail_next`](MemoryStore::fail_next), meets no client of the other.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use leasehold::testing::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let (node, other) = (store.client(), store.with_own_network().client());
    /// let guard = node.lock("job")?;
    /// store.go_silent(); // `node` is cut off
    /// assert!(other.try_lock("job")?.is_none());
    /// store.advance(Duration::from_secs(60)); // longer than the lease
    /// let taken = other.try_lock("job")?.expect("the other node takes over");
    /// assert!(!guard.is_held() && taken.fencing_token() > guard.fencing_token());
    /// store.go_online(); // otherwise the drop of `guard` takes all of `drop_timeout`
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_own_network(&self) -> Self {
        MemoryStore { faults: FaultPlan::without_notes(), ..self.clone() }
    }

    /// Ends the leases of the key's holders in the store, as if their time had passed: the next request is granted the
    /// lock. A lease without an end stays as it is: nothing but a release ends it in production. Returns how many leases it has
    /// ended: 0 where nobody holds this key.
    ///
    /// A live guard does not lose its lock by that alone: its next heartbeat renews the lease, as it would in
    /// production, unless somebody was granted the lock before. To end its lock use [`lose`](MemoryStore::lose).
    pub fn expire(&self, key: &str) -> usize {
        self.memory.expire(key)
    }

    /// Takes the key from its holders, as an operator does who releases it. Their guards learn of it by heartbeats that
    /// are sent at once; [`loss`](crate::LockGuard::loss) waits for it: `ReleasedByOther`, or `TakenOver` if somebody
    /// who waits was granted the lock before. Returns how many holders there were, including those whose lease is over:
    /// 0 where nobody holds this key.
    pub fn lose(&self, key: &str) -> usize {
        let holders = self.memory.end_holders(key);
        self.advance(Duration::ZERO);
        holders
    }

    /// No request reaches the store, connecting included, until [`go_online`](MemoryStore::go_online). Requests fail at
    /// once, with a retryable error of kind `Store`.
    pub fn go_offline(&self) {
        self.faults.go_offline();
    }

    /// The same, but requests do not fail: nobody answers them, as in a network that drops everything. A call ends when
    /// its time is over, such as `request_timeout`: with `Ambiguous` where a request that may have taken the lock or
    /// released it is not answered, otherwise with `Store`, as do calls that read first (`unlock`, `claim`) and
    /// `ensure_held_for`. A `lock` without a time limit goes on waiting. Heartbeats hang, and a drop of
    /// a guard takes `drop_timeout`. A request that hangs already gets no answer after
    /// [`go_online`](MemoryStore::go_online), either.
    pub fn go_silent(&self) {
        self.faults.go_silent();
    }

    /// Ends [`go_offline`](MemoryStore::go_offline) and [`go_silent`](MemoryStore::go_silent).
    pub fn go_online(&self) {
        self.faults.go_online();
    }

    /// Takes back every [`fail_next`](MemoryStore::fail_next) that no request has met yet. Returns how many there were:
    /// a test whose failure met no request proves nothing.
    pub fn clear_failures(&self) -> usize {
        self.faults.heal()
    }

    /// Grants the key to a stranger (owner `rival`, a lease of a minute), no matter who holds it.
    pub fn take_over(&self, key: &str) {
        self.memory.take_over(key);
    }

    /// The next request of this kind fails. If this is called again, the request after that one fails, too.
    ///
    /// Some calls make other requests than their name says:
    /// - A lock with a lease or a minimum hold of more than a minute, or without end, takes an `Acquire` and a `Renew`.
    /// - The heartbeats of a lock without end, and the looks of a waiter, are only `Read`s.
    /// - A release that hands the lock to a waiter of the same client is an `Acquire`, and one before the end of a minimum
    ///   hold is a `Read` and a `Swap`.
    /// - `claim`, `extend`, `unlock` and `force_release` are a `Read` and a `Swap`.
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

    /// Lets time pass at once for the store and its clients, as a suspend of the machine would. All heartbeats are sent
    /// at once after it, however short it is. All calls together let at most 146 years pass.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{TryRecvError, unbounded};

    use super::*;
    use crate::sys::deadline::Deadline;

    /// A user's test may make millions of requests.
    #[test]
    fn no_request_is_remembered() {
        let store = MemoryStore::new();
        for store in [store.with_own_network(), store] {
            let client = store.builder().request_timeout(Duration::from_millis(50)).connect().expect("a client");
            store.fail_next(Operation::Acquire, Failure::AnswerHangs);
            assert!(client.try_lock("k").is_err());
            client.close().expect("what was not answered is given up");
            assert_eq!((store.faults.calls(), store.faults.given_up("k")), (Vec::new(), 0));
        }
    }

    /// As when two nodes wait for the same key.
    #[test]
    fn each_client_is_told_of_the_keys_that_it_waits_for() {
        let (store, by) = (MemoryStore::new(), Deadline::after(Duration::from_secs(60)));
        let clients = [store.client(), store.client()];
        let watches = |client: &LockClient| {
            let (to, told) = unbounded();
            assert!(client.family.backend.wake(&["k".to_owned()], to, &by).expect("an answer"));
            told
        };
        let told = clients.each_ref().map(watches);
        store.take_over("k");
        assert!(told.iter().all(|told| told.try_recv() == Err(TryRecvError::Empty)), "one is told no more");
        store.lose("k");
        assert!(told.iter().all(|told| told.try_recv() == Ok("k".to_owned())));
    }
}
