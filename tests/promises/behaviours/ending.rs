//! Releasing, closing, handing over.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{Error, ErrorKind, LossReason};

use super::acquiring::SECONDS;
use crate::behaviours::{Bench, LONG, Store, connected, loss_of, renews, wait_until};

pub fn b04_a_heartbeat_in_flight_does_not_revive_a_released_lock(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().lease(LONG).heartbeat(Duration::from_millis(5)).connect().unwrap();
    let rival = bench.rival();
    for round in 0..100 {
        let guard = client.lock("k").unwrap();
        let renewals = bench.faults.count(Call::Renew);
        bench.faults.next(Call::Renew, Fault::Delay(Duration::from_millis(round % 7)));
        bench.wait_for_call(Call::Renew, renewals);
        guard.release().unwrap();
        assert!(rival.get("k").unwrap().unwrap().is_free(), "round {round}");
    }
}

pub fn b18_a_release_frees_nobody_elses_lock(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let old = client.request("k").owner("same").lease(Duration::from_secs(60)).acquire().unwrap();
    bench.outlast(Duration::from_secs(60));
    let new = client.request("k").owner("same").lock().unwrap();
    let error = client.release(&old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.holders()[0].fencing_token(), new.fencing_token());
    assert_eq!(client.heartbeat(&old, LONG).unwrap_err().kind(), ErrorKind::Lost);
    new.release().unwrap();
    client.release(&old).unwrap();
}

pub fn b19_a_release_that_failed_can_be_tried_again(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().drop_timeout(bench.wait().max(SECONDS)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    bench.faults.always(Call::Release, Fault::FailBefore);
    let failed = guard.release().unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Store);
    let guard = failed.into_guard();
    assert!(!guard.is_held(), "it is being released");
    bench.faults.heal();
    guard.release().unwrap();
    assert!(client.get("k").unwrap().unwrap().is_free());
}

pub fn b19_a_failed_release_that_is_passed_on_is_tried_again_in_the_background(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().drop_timeout(bench.wait()).connect().unwrap();
    let guard = client.lock("k").unwrap();
    bench.faults.always(Call::Release, Fault::FailBefore);
    let failed = guard.release().unwrap_err();
    bench.faults.heal();
    let error = Error::from(failed);
    assert_eq!(error.kind(), ErrorKind::Store);
    bench.wait_for_release("k");
}

pub fn b19_a_release_whose_answer_is_lost_is_repeated(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.faults.next(Call::Release, Fault::ApplyThenFail);
    guard.release().unwrap();
    assert_eq!(bench.faults.count(Call::Release), 2);
}

pub fn b19_a_release_is_repeated_until_it_is_answered_but_more_and_more_rarely(store: &Store) {
    let bench = Bench::on(store);
    let guard = bench.builder().drop_timeout(LONG).connect().unwrap().lock("k").unwrap();
    bench.faults.always(Call::Release, Fault::FailBefore);
    let since = Instant::now();
    let releasing = std::thread::spawn(move || guard.release().map_err(Error::from));
    bench.wait_for_call(Call::Release, 5);
    // Five waits, each of at least half of 40, 80, .. 640 ms.
    assert!(since.elapsed() >= Duration::from_millis(300), "the repeats do not get rarer");
    bench.faults.heal();
    releasing.join().unwrap().unwrap();
}

pub fn b19_a_release_that_the_store_refuses_is_not_repeated(store: &Store) {
    let bench = Bench::on(store);
    let guard = bench.client().lock("k").unwrap();
    bench.faults.next(Call::Release, Fault::Refuse);
    let failed = guard.release().unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Permission);
    assert_eq!(bench.faults.count(Call::Release), 1);
    failed.into_guard().release().unwrap();
}

pub fn b19_a_release_that_may_be_done_is_repeated_even_when_the_store_refuses_once(store: &Store) {
    let bench = Bench::on(store);
    let guard = bench.client().lock("k").unwrap();
    bench.faults.next(Call::Release, Fault::ApplyThenFail);
    bench.faults.next(Call::Release, Fault::Refuse);
    guard.release().unwrap();
    assert_eq!(bench.faults.count(Call::Release), 3);
}

pub fn b19_a_lost_lock_is_released_by_one_request_also_when_that_fails(store: &Store) {
    let bench = Bench::on(store);
    let guard = bench.client().lock("k").unwrap();
    bench.advance(Duration::from_secs(21));
    loss_of(&guard);
    bench.faults.always(Call::Release, Fault::FailBefore);
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    assert_eq!(bench.faults.count(Call::Release), 1);
}

pub fn b19_a_lock_that_is_lost_already_says_so_at_its_release(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.advance(Duration::from_secs(21));
    loss_of(&guard);
    bench.outlast(Duration::ZERO);
    // A renewal is waited for at most a third of the lease.
    let rival = bench.rival().request("k").lease(3 * LONG).lock().unwrap();
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    assert_eq!(bench.faults.count(Call::Release), 1, "the store may have it still: one request");
    renews(&rival);
}

pub fn b19_a_lock_that_was_taken_over_is_not_released(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.take_over("k");
    bench.advance(Duration::from_secs(1));
    let LossReason::TakenOver { by: Some(by) } = loss_of(&guard).reason else { panic!() };
    assert_eq!(by.owner(), "rival");
    drop(guard);
    assert_eq!(bench.faults.count(Call::Release), 0);
}

pub fn b19_only_an_acquire_that_was_sent_more_than_once_is_given_up_at_its_release(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    for sends in 1..=3 {
        let key = format!("sent {sends} times");
        for _ in 1..sends {
            bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
        }
        client.lock(&key).unwrap().release().unwrap();
        assert_eq!(bench.given_up(&key), usize::from(sends > 1), "{key}");
    }
}

pub fn b20_a_release_waits_for_a_renewal_that_ends_in_time(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().request_timeout(LONG).drop_timeout(LONG).connect().unwrap();
    let guard = client.lock("k").unwrap();
    let (stuck, until) = crossbeam_channel::bounded::<()>(0);
    bench.faults.next(Call::Renew, Fault::Stuck(until));
    std::thread::scope(|scope| {
        let renewing = scope.spawn(|| guard.ensure_held_for(guard.remaining() + Duration::from_secs(1)));
        bench.wait_for_call(Call::Renew, 0);
        let closing = scope.spawn(|| client.close());
        wait_until("the guard knows of its loss", || !guard.is_held());
        // Gives a wrong close the time to release with a copy of the attempt.
        std::thread::sleep(Duration::from_millis(50));
        drop(stuck);
        assert_eq!(renewing.join().unwrap().unwrap_err().kind(), ErrorKind::Lost);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(bench.given_up("k"), 0, "it was released with a copy");
}

pub fn b20_one_release_that_fails_at_close_skips_no_other(store: &Store) {
    let bench = Bench::on(store);
    let bound = bench.wait().max(SECONDS);
    let client = connected(|| bench.builder().request_timeout(bound).drop_timeout(bound));
    let guards: Vec<_> = (0..40).map(|n| client.lock(&format!("k{n}")).unwrap()).collect();
    // A release that its deadline ends would be sent again.
    let (unstick, stuck) = crossbeam_channel::bounded(0);
    bench.faults.next(Call::Release, Fault::Stuck(stuck));
    let closed = client.close();
    assert!(closed.is_err());
    drop(unstick);
    let rival = bench.rival();
    let held = (0..40).filter(|n| !rival.get(&format!("k{n}")).unwrap().unwrap().is_free()).count();
    assert!(held <= 1, "{held} are still held");
    assert!(guards.iter().all(|guard| !guard.is_held()));
    client.close().unwrap();
    assert_eq!(client.lock("new").unwrap_err().kind(), ErrorKind::Closed);
}

pub fn b20_close_wakes_waiters(store: &Store) {
    let bench = Bench::on(store);
    let _held = bench.rival().lock("k").unwrap();
    let hour = Duration::from_secs(3600);
    // The close has time for a waiter that a busy machine does not run for seconds.
    let client = bench.builder().poll(hour..=hour).drop_timeout(LONG).connect().unwrap();
    let waiting = client.clone();
    let waiter = std::thread::spawn(move || waiting.lock("k").unwrap_err().kind());
    bench.wait_for_call(Call::Acquire, 0);
    client.close().unwrap();
    assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
}

pub fn b20_a_close_without_a_bound_releases(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().drop_timeout(Duration::MAX).connect().unwrap();
    let guard = client.lock("k").unwrap();
    // The first try fails, so the close must leave time for another one.
    bench.faults.next(Call::Release, Fault::FailBefore);
    client.close().unwrap();
    guard.release().unwrap();
    assert!(bench.rival().get("k").unwrap().unwrap().is_free());
}

pub fn b03_an_unanswered_hand_over_is_given_up_with_the_next_try_of_the_release(store: &Store) {
    let bench = Bench::on(store);
    // Without wake-ups the waiter looks only after the hand-over: nothing is handed over to a waiter that is reporting
    // a look.
    bench.faults.never_wakes();
    let poll = LONG / 2;
    let builder = bench.builder().poll(poll..=poll).drop_timeout(bench.wait().max(SECONDS));
    let client = builder.connect().unwrap();
    let guard = client.lock("k").unwrap();
    let (told, tells) = mpsc::channel();
    let request = client.request("k").on_wait(move |_| told.send(()).unwrap_or_default()).on_wait_every(LONG);
    let waiter = std::thread::spawn(move || request.try_lock_for(LONG).unwrap().is_some());
    tells.recv_timeout(LONG).expect("it waits");
    wait_until("it has said so", || in_users_code(&client, "k") == 0);
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    bench.faults.always(Call::Release, Fault::FailBefore);
    let failed = guard.release().unwrap_err();
    bench.faults.heal();
    // The waiter does not know of the hand-over, which would keep it out for a lease.
    failed.into_guard().release().unwrap();
    assert!(bench.given_up("k") > 0, "nothing was handed over");
    assert!(waiter.join().unwrap(), "nobody holds the lock and the waiter does not get it");
}
