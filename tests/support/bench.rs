//! A store with a layer in front that injects faults, and a client of the same store that meets none.

use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::lease::Mode;
use leasehold::internals::store::fault::{Call, FaultPlan, Faulty};
use leasehold::internals::store::{Attempt, Backend, Purpose};
use leasehold::internals::sys::clock::Clock;
use leasehold::{ClientBuilder, ErrorKind, LockClient, LockGuard, Loss, Result};

use super::calls;
use super::lateness::{self, Slowness};
use super::stores::{Opened, Store, enrolled, soon};
use super::wait::wait_until;

/// Long enough for any event on a busy machine; a test waits this long only when something is wrong.
pub const LONG: Duration = Duration::from_secs(20);

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Whether the store is a server. A server can be slow, too, in addition to this machine.
pub fn is_server(store: &dyn Backend) -> bool {
    !store.info().clock.starts_with("this host's")
}

/// The library's own builder, but with long timeouts for a server, which may answer late on a busy machine.
pub fn builder_over(store: Arc<dyn Backend>, clock: Arc<Clock>) -> ClientBuilder {
    let is_server = is_server(&*store);
    let builder = leasehold::internals::builder_over(store, clock);
    if is_server { builder.request_timeout(LONG).drop_timeout(LONG) } else { builder }
}

impl Opened {
    /// Runs `call`, which must end within `bound` plus the delay of this machine and the server, measured meanwhile.
    #[track_caller]
    pub fn within<T>(&self, bound: Duration, call: impl FnOnce() -> T) -> T {
        self.measured().with_slack(1, bound, call)
    }

    /// Measures from now on how much this machine and a server may add to a bound.
    pub fn measured(&self) -> Measured {
        lateness::measure();
        let beside = || builder_over(self.second.clone(), self.clock.clone()).connect().unwrap();
        Measured(is_server(&*self.second).then(|| Slowness::of(beside())))
    }
}

/// How much this machine and a server may add to a bound: measured for as long as this value lives.
pub struct Measured(Option<Slowness>);

impl Measured {
    /// Runs `call`, one of [many](lateness::AMONG_MANY), which must end within `bound` plus that delay.
    #[track_caller]
    pub fn within_among_many<T>(&self, bound: Duration, call: impl FnOnce() -> T) -> T {
        self.with_slack(lateness::AMONG_MANY, bound, call)
    }

    #[track_caller]
    fn with_slack<T>(&self, times: u32, bound: Duration, call: impl FnOnce() -> T) -> T {
        let server = |since| self.0.as_ref().map_or(Duration::ZERO, |server| server.slack(since));
        lateness::within("it", bound, |since| times * lateness::slack(since) + server(since), call)
    }
}

/// A store that faults can be put in front of, and whose clock a test can move.
pub struct Bench {
    pub at: Opened,
    pub clock: Arc<Clock>,
    pub faults: FaultPlan,
    /// The store is not in this process's memory, so that an answer takes time.
    pub is_elsewhere: bool,
}

impl Default for Bench {
    fn default() -> Self {
        Bench::on(&enrolled("memory").expect("it is always there"))
    }
}

impl Bench {
    /// On a memory store.
    pub fn new() -> Self {
        Bench::default()
    }

    pub fn on(store: &Store) -> Self {
        let at = (store.open)();
        let (clock, is_elsewhere) = (at.clock.clone(), store.module != "memory");
        Bench { at, clock, faults: FaultPlan::default(), is_elsewhere }
    }

    /// A client that looks at a lock only when something in its own process wakes it.
    pub fn patient() -> (Bench, LockClient) {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let hour = Duration::from_secs(3600);
        let client = bench.builder().poll(hour..=hour).connect().unwrap();
        (bench, client)
    }

    /// A client whose requests meet the faults.
    pub fn builder(&self) -> ClientBuilder {
        builder_over(Arc::new(Faulty::new(self.at.store.clone(), self.faults.clone())), self.clock.clone())
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
        builder_over(self.at.second.clone(), self.clock.clone()).owner("rival").connect().unwrap()
    }

    /// The shortest lease of the store.
    pub fn min_lease(&self) -> Duration {
        self.at.store.info().bounds.min_lease
    }

    /// The shortest request timeout that only a fault should use up.
    pub fn brief(&self) -> Duration {
        millis(if self.is_elsewhere { 1000 } else { 100 })
    }

    /// Long enough for some requests of that length and some polls.
    pub fn wait(&self) -> Duration {
        (4 * self.brief()).max(millis(1000))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.at.advance(by);
    }

    /// Lets a lease that ends in `lease` end, also for clients that respect it for a grace longer.
    pub fn outlast(&self, lease: Duration) {
        self.at.outlast(lease);
    }

    /// Grants the key to a stranger although somebody holds it exclusively. Returns the stranger's acquisition.
    pub fn take_over(&self, key: &str) -> Attempt {
        let holder = self.at.record(key).exclusive.expect("a holder");
        let mut stranger = calls::attempt(self.at.store.info().grant_form, key, Mode::Exclusive);
        stranger.ask.labels.owner = "rival".to_owned();
        stranger.ask.instead_of = Some((holder.grant, holder.token));
        calls::acquired(&*self.at.second, &mut stranger);
        stranger
    }

    /// Releases what was acquired by this attempt.
    pub fn end(&self, mut held: Attempt) {
        self.at.second.release(&mut held, Purpose::Release, &soon()).unwrap();
    }

    /// How many acquisitions of the key were given up, so that no late copy of them can be granted.
    pub fn given_up(&self, key: &str) -> usize {
        self.faults.given_up(key)
    }

    /// Waits until a call of this kind was made more often than `before`.
    pub fn wait_for_call(&self, call: Call, before: usize) {
        wait_until("the call is made", || self.faults.count(call) > before);
    }

    /// Waits until the row has no holder. (A holder whose lease merely ended would still be in the row.)
    #[track_caller]
    pub fn wait_for_release(&self, key: &str) {
        wait_until("it is released", || self.at.record(key).holders().next().is_none());
    }
}

/// Waits for this long in vain. The wait may also end in a store error: a look at the lock that began a second before
/// the end, or a request for the lock, was not answered.
pub fn waits_in_vain(client: &LockClient, key: &str, wait: Duration) -> Result<()> {
    match client.try_lock_for(key, wait) {
        Err(error) if matches!(error.kind(), ErrorKind::Store | ErrorKind::Ambiguous) && error.is_retryable() => Ok(()),
        answer => {
            assert!(answer?.is_none(), "nobody held {key:?}");
            Ok(())
        }
    }
}

/// Renews a guard's lease. The call waits for the answer for a third of what is left of the lease.
pub fn renews(guard: &LockGuard) {
    // The renewal may give less than was asked for. That is an error, which does not matter here.
    let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
    assert!(guard.info().renewed().is_some() && guard.is_held());
}

/// The loss of a guard that must be lost.
pub fn loss_of(guard: &LockGuard) -> Loss {
    guard.loss().wait_timeout(LONG).expect("the lock is not lost")
}
