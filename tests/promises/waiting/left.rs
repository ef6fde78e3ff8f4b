//! The waiter before it in the line took the lock, and nobody releases it. The end of that lease is no event, so the
//! next waiter must look when the lease can have ended.

use std::thread::JoinHandle;
use std::time::Duration;

use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{LockGuard, Result};

use crate::support::bench::Bench;
use crate::support::wait::wait_until;
use crate::waiting::queue::waiter;

const HOUR: Duration = Duration::from_secs(3600);

/// The lock of the first waiter, and a second waiter behind it that polls only once an hour.
fn behind_one_that_has_it() -> (Bench, LockGuard, JoinHandle<Result<LockGuard>>) {
    let bench = Bench::new();
    bench.faults.never_wakes();
    let client = bench.builder().lease(Duration::from_secs(1)).poll(HOUR..=HOUR).connect().unwrap();
    let held = client.lock("k").unwrap();
    let first = waiter(&client, 0, |request| request.on_wait_every(HOUR));
    let second = waiter(&client, 1, |request| request.on_wait_every(HOUR));
    drop(held);
    let first = first.join().unwrap().unwrap();
    (bench, first, second)
}

#[test]
fn the_end_of_a_lock_as_data_is_looked_for() {
    let (_bench, first, second) = behind_one_that_has_it();
    let lock = first.into_lock();
    wait_until("its lease is over", || second.is_finished());
    assert!(second.join().unwrap().unwrap().fencing_token() > lock.fencing_token());
}

/// Its guard still exists, because its user hangs.
#[test]
fn the_end_of_a_lock_that_was_lost_is_looked_for() {
    let (bench, first, second) = behind_one_that_has_it();
    bench.faults.always(Call::Renew, Fault::FailBefore);
    wait_until("its lease is over", || second.is_finished());
    assert!(second.join().unwrap().unwrap().fencing_token() > first.fencing_token());
    assert!(!first.is_held());
}
