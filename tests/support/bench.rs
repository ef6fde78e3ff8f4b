//! A store with faults in front, and a client that meets none.

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

/// Long enough for any event on a busy machine; no test waits for it when all is well.
pub const LONG: Duration = Duration::from_secs(20);

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A server has a part in what takes long, beside this machine.
pub fn is_server(store: &dyn Backend) -> bool {
    !store.info().clock.starts_with("this host's")
}

/// As the library's own, but a server on a busy machine has time to answer.
pub fn builder_over(store: Arc<dyn Backend>, clock: Arc<Clock>) -> ClientBuilder {
    let is_server = is_server(&*store);
    let builder = leasehold::internals::builder_over(store, clock);
    if is_server { builder.request_timeout(LONG).drop_timeout(LONG) } else { builder }
}

impl Opened {
    /// Runs `call`, which must be over within `bound`, and what this machine and a server may add, as measured meanwhile.
    #[track_caller]
    pub fn within<T>(&self, bound: Duration, call: impl FnOnce() -> T) -> T {
        self.measured().with_slack(1, bound, call)
    }

    /// From now on it is measured what this machine and a server may add to a bound.
    pub fn measured(&self) -> Measured {
        lateness::measure();
        let beside = || builder_over(self.second.clone(), self.clock.clone()).connect().unwrap();
        Measured(is_server(&*self.second).then(|| Slowness::of(beside())))
    }
}

/// What this machine and a server may add to a bound: measured for as long as this value lives.
pub struct Measured(Option<Slowness>);

impl Measured {
    /// Runs `call`, which must be over within `bound` and that: one of [many](lateness::AMONG_MANY).
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

/// A store that faults can be put in front of, and whose clock can be moved.
pub struct Bench {
    pub at: Opened,
    pub clock: Arc<Clock>,
    pub faults: FaultPlan,
    /// Not in the memory of this process: an answer takes its time.
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

    /// A client that looks only when somebody of its own process tells it something.
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
        self.at.store.info().min_lease
    }

    /// As short as a request timeout may be that nothing else than a fault should use up.
    pub fn brief(&self) -> Duration {
        millis(if self.is_elsewhere { 1000 } else { 100 })
    }

    /// Time for some such requests, and some polls.
    pub fn wait(&self) -> Duration {
        (4 * self.brief()).max(millis(1000))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.at.advance(by);
    }

    /// Lets a lease that ends in `lease` end, also for those who respect it for a grace longer.
    pub fn outlast(&self, lease: Duration) {
        self.at.outlast(lease);
    }

    /// Grants the key to a stranger, whoever holds it alone: the stranger's acquisition.
    pub fn take_over(&self, key: &str) -> Attempt {
        let holder = self.at.record(key).exclusive.expect("a holder");
        let mut stranger = calls::attempt(self.at.store.info().grant_form, key, Mode::Exclusive);
        stranger.ask.labels.owner = "rival".to_owned();
        stranger.ask.instead_of = Some((holder.grant, holder.token));
        calls::acquired(&*self.at.second, &mut stranger);
        stranger
    }

    /// Ends what somebody holds by this acquisition.
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

    /// Waits until nobody stands in the row: a holder whose lease has ended by itself would do so still.
    #[track_caller]
    pub fn wait_for_release(&self, key: &str) {
        wait_until("it is released", || self.at.record(key).holders().next().is_none());
    }
}

/// Waits so long in vain. A last look that began a second before the end and was not answered is an error: trouble. So
/// is a request for the lock that was not.
pub fn waits_in_vain(client: &LockClient, key: &str, wait: Duration) -> Result<()> {
    match client.try_lock_for(key, wait) {
        Err(error) if matches!(error.kind(), ErrorKind::Store | ErrorKind::Ambiguous) && error.is_retryable() => Ok(()),
        answer => {
            assert!(answer?.is_none(), "nobody held {key:?}");
            Ok(())
        }
    }
}

/// Renews a guard's lease, which is waited for a third of what is left of it.
pub fn renews(guard: &LockGuard) {
    // What it gives may be less than there was: that is an error, and no matter.
    let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
    assert!(guard.info().renewed().is_some() && guard.is_held());
}

/// The loss of a guard that must be lost.
pub fn loss_of(guard: &LockGuard) -> Loss {
    guard.loss().wait_timeout(LONG).expect("the lock is not lost")
}
