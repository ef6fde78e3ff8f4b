//! Releasing, closing, handing over.

use std::time::Duration;

use leasehold::internals::backend::fault::{Call, Fault};
use leasehold::{Error, ErrorKind, LossReason};

use crate::{Bench, LONG, loss_of, wait_until};

#[test]
fn b04_a_heartbeat_in_flight_does_not_revive_a_released_lock() {
    let bench = Bench::new();
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

#[test]
fn b18_a_release_frees_nobody_elses_lock() {
    let bench = Bench::new();
    let client = bench.client();
    let old = client.request("k").owner("same").lease(Duration::from_secs(60)).acquire().unwrap();
    bench.clock.advance(Duration::from_secs(60));
    let new = client.request("k").owner("same").lock().unwrap();
    let error = client.release(&old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.holders()[0].fencing_token(), new.fencing_token());
    assert_eq!(client.heartbeat(&old, LONG).unwrap_err().kind(), ErrorKind::Lost);
    new.release().unwrap();
    client.release(&old).unwrap();
}

#[test]
fn b19_a_release_that_failed_can_be_tried_again() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(200)).connect().unwrap();
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

#[test]
fn b19_a_failed_release_that_is_passed_on_is_tried_again_in_the_background() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(200)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    bench.faults.always(Call::Release, Fault::FailBefore);
    let failed = guard.release().unwrap_err();
    bench.faults.heal();
    let error = Error::from(failed);
    assert_eq!(error.kind(), ErrorKind::Store);
    wait_until(|| client.get("k").unwrap().unwrap().is_free());
}

#[test]
fn b19_a_release_whose_answer_is_lost_is_repeated() {
    let bench = Bench::new();
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.faults.next(Call::Release, Fault::ApplyThenFail);
    guard.release().unwrap();
    assert_eq!(bench.faults.count(Call::Release), 2);
}

#[test]
fn b19_a_lock_that_is_lost_already_says_so_at_its_release() {
    let bench = Bench::new();
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.clock.advance(Duration::from_secs(21));
    loss_of(&guard);
    let rival = bench.rival().lock("k").unwrap();
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    assert_eq!(bench.faults.count(Call::Release), 1, "the store may have it still: one request");
    assert!(rival.is_held());
    rival.ensure_held_for(Duration::from_secs(17)).unwrap();
}

#[test]
fn b19_a_lock_that_was_taken_over_is_not_released() {
    let bench = Bench::new();
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.store.take_over("k");
    bench.clock.advance(Duration::from_secs(1));
    let LossReason::TakenOver { by: Some(by) } = loss_of(&guard).reason else { panic!() };
    assert_eq!(by.owner(), "rival");
    drop(guard);
    assert_eq!(bench.faults.count(Call::Release), 0);
}

#[test]
fn b20_one_release_that_fails_at_close_skips_no_other() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(500)).connect().unwrap();
    let guards: Vec<_> = (0..40).map(|n| client.lock(&format!("k{n}")).unwrap()).collect();
    bench.faults.next(Call::Release, Fault::HangBefore);
    let closed = client.close();
    assert!(closed.is_err());
    let rival = bench.rival();
    let held = (0..40).filter(|n| !rival.get(&format!("k{n}")).unwrap().unwrap().is_free()).count();
    assert!(held <= 1, "{held} are still held");
    assert!(guards.iter().all(|guard| !guard.is_held()));
    client.close().unwrap();
    assert_eq!(client.lock("new").unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn b20_close_wakes_waiters() {
    let bench = Bench::new();
    let _held = bench.rival().lock("k").unwrap();
    let hour = Duration::from_secs(3600);
    let client = bench.builder().poll(hour..=hour).connect().unwrap();
    let waiting = client.clone();
    let waiter = std::thread::spawn(move || waiting.lock("k").unwrap_err().kind());
    bench.wait_for_call(Call::Acquire, 0);
    client.close().unwrap();
    assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
}

#[test]
fn b20_a_close_without_a_bound_releases() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::MAX).connect().unwrap();
    let guard = client.lock("k").unwrap();
    // The first try fails, so that there has to be time for another.
    bench.faults.next(Call::Release, Fault::FailBefore);
    client.close().unwrap();
    guard.release().unwrap();
    assert!(bench.rival().get("k").unwrap().unwrap().is_free());
}

#[test]
fn b03_an_unanswered_hand_over_is_given_up_with_the_next_try_of_the_release() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(200)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    let (before, waiting) = (bench.faults.count(Call::Acquire), client.clone());
    let waiter = std::thread::spawn(move || waiting.try_lock_for("k", LONG).unwrap().is_some());
    bench.wait_for_call(Call::Acquire, before);
    std::thread::sleep(Duration::from_millis(50));
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    bench.faults.always(Call::Release, Fault::FailBefore);
    let failed = guard.release().unwrap_err();
    bench.faults.heal();
    // What was granted to the waiter without its knowing would keep it out for a lease.
    failed.into_guard().release().unwrap();
    assert!(waiter.join().unwrap(), "nobody holds the lock and the waiter does not get it");
}
