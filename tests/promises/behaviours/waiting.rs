//! Waiting for a lock: how often a waiter looks, and when.

use std::time::Duration;

use leasehold::internals::store::fault::Call;

use crate::behaviours::{Bench, LONG, Store, waits_in_vain};

pub fn b17_a_waiter_reads_at_its_poll_rate_and_does_not_write(store: &Store) {
    let bench = Bench::on(store);
    let _held = bench.rival().lock("k").unwrap();
    // The poll is long enough for a server's first answer.
    let poll = Duration::from_millis(if bench.is_elsewhere { 300 } else { 50 });
    let client = bench.builder().poll(poll..=poll).connect().unwrap();
    let wait = 10 * poll;
    let counts = || [Call::Acquire, Call::Read].map(|call| bench.faults.count(call));
    // An acquire that a busy store does not answer in time is repeated: the first wait without such a repeat counts.
    let mut waits = (0..5).map(|_| {
        let [acquires, reads] = counts();
        bench.at.within(wait, || waits_in_vain(&client, "k", wait)).unwrap();
        [counts()[0] - acquires, counts()[1] - reads]
    });
    let [_, reads] = waits.find(|[acquires, _]| *acquires == 1).expect("it asks for the lock again and again");
    assert!(reads <= 10, "{reads} reads");
}

pub fn b17_a_poll_is_aimed_at_the_end_of_the_lease(store: &Store) {
    let bench = Bench::on(store);
    let lease = bench.min_lease().max(Duration::from_millis(300));
    bench.rival().request("k").lease(lease).acquire().unwrap();
    // Without that aim it would look only after an hour.
    let hour = Duration::from_secs(3600);
    let client = bench.builder().poll(hour..=hour).connect().unwrap();
    // At the end of its own time it would look once more. A server's answer may take some seconds.
    let soon = lease + bench.at.store.info().grace + bench.at.slack;
    let bound = if bench.is_elsewhere { soon.max(LONG / 2) } else { soon };
    drop(bench.at.within(bound, || client.try_lock_for("k", LONG)).unwrap().expect("it looks when the lease ends"));
}
