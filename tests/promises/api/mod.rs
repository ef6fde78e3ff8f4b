//! The public API, the same on every store.

mod all;
mod all_together;
mod any;
mod closing;
mod comfort;
mod data;
mod drops;
mod expired_at_least;
mod groups;
mod guards;
mod hold_at_least;
mod lease_answers;
mod lease_model;
mod leases;
mod listing;
mod operators;
#[cfg(target_os = "linux")]
mod own;
mod readers;
mod slow;
mod told;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use crate::support::bench::{LONG, builder_over};
use crate::support::harness::connected;
use crate::support::stores::{Opened, on_each};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{FaultPlan, Faulty};
use leasehold::{ClientBuilder, Error, ErrorKind, LockClient};

const MINUTE: Duration = Duration::from_secs(60);
/// More rows than a page of any store has.
const ROWS: usize = 210;

impl Opened {
    /// A lease that a test waits for.
    fn short_lease(&self) -> Duration {
        self.store.info().bounds.min_lease.max(Duration::from_millis(300))
    }

    /// A wait that a test lets end: long enough for a store to answer before.
    fn short_wait(&self) -> Duration {
        Duration::from_secs(if self.store.info().clock.starts_with("this host's") { 1 } else { 3 })
    }

    fn builder(&self) -> ClientBuilder {
        builder_over(self.store.clone(), self.clock.clone())
    }

    fn client(&self) -> LockClient {
        self.builder().connect().unwrap()
    }

    /// Another client, as another process would have it.
    fn rival(&self) -> LockClient {
        builder_over(self.second.clone(), self.clock.clone()).owner("rival").connect().unwrap()
    }
}

/// How many extra swaps there are, on a store where what a read finds after an unanswered swap has to be confirmed.
fn confirms(store: &Opened) -> usize {
    usize::from(store.store.info().reads_what_may_be_undone)
}

/// A client whose store meets the faults of the returned plan.
fn faulty(store: &Opened) -> (LockClient, FaultPlan) {
    let faults = FaultPlan::default();
    let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
    (builder_over(faulty, store.clock.clone()).connect().unwrap(), faults)
}

fn on_every_store(case: impl Fn(&Opened) + Sync) {
    on_each(|store| case(&(store.open)()));
}

/// The outcome of a call that the store answered in time. A busy store may not answer (trouble with the store), and the
/// time may be over before it was asked (then no holder is known): such a call is repeated.
fn answered<T>(call: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let is_unanswered = |error: &Error| match error.kind() {
        ErrorKind::Store | ErrorKind::Ambiguous => true,
        kind => kind == ErrorKind::TimedOut && error.holders().is_empty(),
    };
    let mut answers = (0..20).map(|_| call());
    answers.find(|answer| !answer.as_ref().is_err_and(is_unanswered)).expect("an answer")
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<LockClient>();
    shared::<leasehold::LockGuard>();
    shared::<leasehold::LockRequest>();
    shared::<leasehold::LockAnyRequest>();
    shared::<leasehold::LockAllRequest<'static>>();
    shared::<leasehold::LockAllGuard>();
    shared::<leasehold::Filter>();
    shared::<leasehold::ClientBuilder>();
    shared::<leasehold::Lock>();
    shared::<leasehold::LossWatch>();
    shared::<leasehold::LossReceiver>();
    shared::<leasehold::CancelToken>();
    shared::<leasehold::Error>();
    shared::<leasehold::ReleaseError>();
    shared::<leasehold::WithLockError<String>>();
    assert_eq!(size_of::<leasehold::Error>(), size_of::<usize>());
}
