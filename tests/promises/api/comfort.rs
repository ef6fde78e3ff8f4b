//! What makes a user's program and its tests short: a store for tests, sleeps that end early, complete error texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::support::bench::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::testing::{Failure, MemoryStore};
use leasehold::{CancelToken, ErrorKind, Event, LossReason, Observer, Operation, Slept};

use crate::api::{LONG, MINUTE, on_every_store};

#[test]
fn a_lock_of_the_test_store_is_lost_on_order() {
    let store = MemoryStore::new();
    let client = store.client();
    let guard = client.lock("k").unwrap();
    store.lose("k");
    let loss = guard.loss().wait_timeout(LONG).expect("it is not lost");
    assert!(matches!(loss.reason, LossReason::ReleasedByOther), "{loss}");
    assert!(client.try_lock("k").unwrap().is_some());
}

/// This also works if the lease is so short that it may end before the library notices the order.
#[test]
fn a_lock_of_a_short_lease_is_lost_on_order() {
    let short = Duration::from_millis(200);
    // A machine that stalls for as long as the lease proves nothing: then the loss is an expiry.
    let mut reasons = (0..20).map(|_| {
        let store = MemoryStore::new();
        let guard = store.builder().lease(short).connect().unwrap().lock("k").unwrap();
        store.lose("k");
        guard.loss().wait_timeout(LONG).expect("it is not lost").reason
    });
    let reason = reasons.find(|reason| !matches!(reason, LossReason::Expired { .. }));
    assert!(matches!(reason, Some(LossReason::ReleasedByOther)), "{reason:?}");
}

#[test]
fn what_a_test_orders_says_whom_it_met() {
    let store = MemoryStore::new();
    let client = store.client();
    assert_eq!((store.lose("k"), store.expire("k")), (0, 0));
    assert!(client.get("k").unwrap().is_none(), "nothing is made of it");
    let request = || client.request("k").shared();
    let _held = [request().lock().unwrap(), request().lock().unwrap()];
    assert_eq!((store.expire("k"), store.expire("k")), (2, 0));
    assert_eq!(store.lose("k"), 2);
    store.fail_next(Operation::Read, Failure::NotSent);
    store.fail_next(Operation::Swap, Failure::NotSent);
    client.get("k").unwrap();
    assert_eq!((store.clear_failures(), store.clear_failures()), (1, 0));
}

/// As in a loop of short steps.
#[test]
fn however_little_time_passes_heartbeats_are_sent() {
    let (store, told) = (MemoryStore::new(), Arc::new(Renewals::default()));
    let client = store.builder().lease(60 * MINUTE).observer(told.clone()).connect().unwrap();
    let _guard = client.lock("k").unwrap();
    for renewals in 1..4 {
        store.advance(Duration::from_millis(1));
        crate::api::wait_until("it is renewed", || told.0.load(Ordering::SeqCst) >= renewals);
    }
}

#[derive(Default)]
struct Renewals(AtomicUsize);

impl Observer for Renewals {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Renewed { .. }) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_lock_without_an_end_has_none_by_a_tests_order() {
    let store = MemoryStore::new();
    let client = store.client();
    let guard = client.request("k").lease_forever().lock().unwrap();
    assert_eq!(store.expire("k"), 0);
    store.advance(60 * MINUTE);
    assert!(guard.is_held() && !client.get("k").unwrap().unwrap().is_free());
}

#[test]
fn a_client_of_the_test_store_connects_whatever_fails() {
    let store = MemoryStore::new();
    store.go_offline();
    store.fail_next(Operation::Schema, Failure::AnswerLost);
    let client = store.client();
    store.go_online();
    assert!(client.try_lock("k").unwrap().is_some());
    let error = store.builder().connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.to_string().contains("the answer was lost"), "{error}");
}

#[test]
fn time_that_passed_never_comes_back() {
    let store = MemoryStore::new();
    let client = store.client();
    client.request("k").lease(60 * MINUTE).acquire().unwrap();
    for by in [Duration::MAX, Duration::from_secs(1), Duration::MAX] {
        store.advance(by);
        assert!(client.get("k").unwrap().unwrap().is_free(), "after {by:?}");
    }
}

#[test]
fn however_much_time_has_passed_locks_are_granted_and_kept() {
    let store = MemoryStore::new();
    let client = store.client();
    let endless = client.request("endless").lease_forever().lock().unwrap();
    for _ in 0..3 {
        store.advance(Duration::MAX);
    }
    assert!(client.try_lock("k").unwrap().is_some());
    assert!(endless.is_held());
    endless.release().unwrap();
}

#[test]
fn a_lease_that_was_ended_on_order_can_be_taken_and_is_renewed_otherwise() {
    let store = MemoryStore::new();
    let (client, other) = (store.client(), store.builder().connect().unwrap());
    let kept = client.lock("kept").unwrap();
    store.expire("kept");
    kept.ensure_held_for(Duration::from_secs(17)).unwrap();
    store.advance(Duration::from_millis(500));
    crate::api::wait_until("it is renewed in the store", || {
        other.get("kept").unwrap().is_some_and(|status| !status.holders()[0].is_expired())
    });
    assert!(kept.is_held());
    let taken = client.lock("taken").unwrap();
    store.expire("taken");
    let rival = other.try_lock("taken").unwrap().expect("its lease is over");
    store.advance(Duration::from_millis(500));
    assert!(matches!(taken.loss().wait_timeout(LONG).unwrap().reason, LossReason::TakenOver { .. }));
    let error = taken.ensure_held().unwrap_err();
    assert_eq!(error.holders()[0].fencing_token(), rival.fencing_token(), "{error:?}");
}

#[test]
fn the_test_store_goes_offline_and_online_and_forgets_its_failures() {
    let store = MemoryStore::new();
    let client = store.builder().request_timeout(Duration::from_millis(50)).connect().unwrap();
    store.go_offline();
    assert_eq!(client.get("k").unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(client.try_lock("k").unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(store.builder().connect().unwrap_err().kind(), ErrorKind::Store);
    store.go_online();
    assert!(client.try_lock("k").unwrap().is_some());
    for _ in 0..100 {
        store.fail_next(Operation::Acquire, Failure::NotSent);
    }
    assert!(client.try_lock("k").is_err());
    store.clear_failures();
    assert!(client.try_lock("k").unwrap().is_some());
}

#[test]
fn a_silent_network_brings_no_request_and_no_answer() {
    let store = MemoryStore::new();
    let client = store.builder().request_timeout(Duration::from_millis(50)).connect().unwrap();
    store.go_silent();
    assert_eq!(client.try_lock("k").unwrap_err().kind(), ErrorKind::Ambiguous);
    assert_eq!(client.get("k").unwrap_err().kind(), ErrorKind::Store);
    assert!(store.with_own_network().client().get("k").unwrap().is_none(), "a request came through");
    store.go_online();
    assert!(client.get("k").is_ok());
}

#[test]
fn a_node_that_is_cut_off_loses_its_lock_to_another_node() {
    let store = MemoryStore::new();
    let other = store.with_own_network();
    let (guard, rival) = (store.client().lock("k").unwrap(), other.client());
    other.fail_next(Operation::Acquire, Failure::NotSent);
    assert!(store.client().try_lock("j").unwrap().is_some());
    assert_eq!((store.clear_failures(), other.clear_failures()), (0, 1));
    store.go_silent();
    assert!(rival.try_lock("k").unwrap().is_none());
    other.advance(MINUTE);
    assert!(!guard.is_held());
    assert!(rival.try_lock("k").unwrap().unwrap().fencing_token() > guard.fencing_token());
    assert!(matches!(guard.loss().wait_timeout(LONG).unwrap().reason, LossReason::Expired { .. }));
    store.go_online();
}

#[test]
fn the_reason_of_a_loss_is_told_by_whoever_asks_first() {
    for _ in 0..20 {
        let store = MemoryStore::new();
        let guard = store.client().lock("k").unwrap();
        store.advance(MINUTE);
        let error = guard.ensure_held().unwrap_err();
        assert!(error.to_string().contains("lost: expired after 20.0 s"), "{error}");
        assert!(guard.loss().get().is_some());
    }
}

/// The watcher, which declares the loss, may come to it later.
#[test]
fn no_lock_is_held_for_longer_than_max_hold() {
    for asks_before in [true, false].repeat(10) {
        let store = MemoryStore::new();
        let guard = store.client().request("k").lease(60 * MINUTE).max_hold(MINUTE).lock().unwrap();
        assert!(guard.is_held());
        store.advance(2 * MINUTE);
        assert!(!guard.is_held());
        let (loss, is_told) = (guard.loss(), |error: &str| error.contains("held for as long as max_hold allows"));
        assert!(!asks_before || is_told(&guard.ensure_held().unwrap_err().to_string()));
        let failed = guard.release().unwrap_err();
        assert!(failed.kind() == ErrorKind::Lost && is_told(&failed.to_string()), "{failed}");
        let loss = loss.get().unwrap();
        assert!(matches!(loss.reason, LossReason::MaxHold) && loss.held_for == MINUTE, "{loss:?}");
    }
}

#[test]
fn none_of_several_locks_is_held_for_longer_than_max_hold() {
    let store = MemoryStore::new();
    let client = store.builder().lease(60 * MINUTE).connect().unwrap();
    let guard = client.request_all(["a", "b"]).max_hold(MINUTE).lock().unwrap();
    assert!(guard.is_held() && guard.remaining() <= MINUTE);
    store.advance(MINUTE);
    assert!(!guard.is_held());
    assert!(matches!(guard.lost().unwrap().reason, LossReason::MaxHold));
}

/// After a suspend or a SIGSTOP the sleep may end before the watcher's next look.
#[test]
fn a_sleep_that_ends_after_the_lease_tells_of_the_loss() {
    for _ in 0..20 {
        let store = MemoryStore::new();
        let guard = store.client().lock("k").unwrap();
        store.advance(MINUTE);
        let slept = guard.sleep(Duration::ZERO, &CancelToken::new());
        assert!(matches!(slept, Slept::Lost(_)), "{slept:?}");
    }
}

#[test]
fn a_sleep_ends_with_the_lock_with_the_token_or_with_the_time() {
    on_every_store(|store| {
        let client = store.client();
        let (guard, cancel) = (client.lock("k").unwrap(), CancelToken::new());
        assert!(matches!(guard.sleep(Duration::from_millis(5), &cancel), Slept::TimeOver));
        let ended = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| guard.sleep(MINUTE, &cancel));
            drop(cancel.clone().drop_guard());
            sleeper.join().unwrap()
        });
        assert!(matches!(ended, Slept::Cancelled) && cancel.is_cancelled());
        store.advance(MINUTE);
        let slept = guard.sleep(MINUTE, &CancelToken::new());
        assert!(matches!(&slept, Slept::Lost(loss) if loss.key == "k"), "{slept:?}");
        // A loss has priority over the cancellation.
        assert!(matches!(guard.sleep(MINUTE, &cancel), Slept::Lost(_)));
        // So does a release: work that goes on would do so without the lock.
        let other = client.lock("l").unwrap();
        let _ = client.close();
        let slept = other.sleep(MINUTE, &cancel);
        assert!(matches!(slept, Slept::Released), "{slept:?}");
    });
}

#[test]
fn a_token_can_be_waited_for_and_is_cancelled_by_a_drop() {
    let cancel = CancelToken::new();
    assert!(!cancel.wait_timeout(Duration::from_millis(1)));
    let on_drop = cancel.clone().drop_guard();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cancel.wait_timeout(LONG));
        drop(on_drop);
        assert!(waiter.join().unwrap());
    });
    let kept = CancelToken::new();
    assert!(!kept.clone().drop_guard().disarm().is_cancelled());
    assert!(!kept.is_cancelled() && cancel.wait_timeout(Duration::ZERO));
}

#[test]
fn a_builder_makes_the_schema_where_that_is_asked_for() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let builder = || builder_over(Arc::new(Faulty::new(store.store.clone(), faults.clone())), store.clock.clone());
        builder().connect().unwrap();
        assert_eq!(faults.count(Call::Schema), 1);
        drop(builder().create_schema(true).connect().unwrap().lock("k").unwrap());
        // With `create_schema` the client does not first ask whether something is missing, which it would warn of.
        assert_eq!(faults.count(Call::Schema), 2);
        let error = builder().create_schema(true).must_exist(true).connect().unwrap_err();
        assert_eq!((error.kind(), faults.count(Call::Schema)), (ErrorKind::InvalidInput, 2));
        faults.always(Call::Schema, Fault::Refuse);
        assert_eq!(builder().create_schema(true).connect().unwrap_err().kind(), ErrorKind::Permission);
    });
}

#[test]
fn a_renewal_that_takes_long_is_no_wrong_argument() {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = leasehold::internals::builder_over(Arc::new(store), clock.clone()).connect().unwrap();
    let guard = client.lock("k").unwrap();
    // Set before the time passes, because a heartbeat is sent then.
    faults.always(Call::Renew, Fault::ApplyThenDelay(Duration::from_secs(1)));
    clock.advance(Duration::from_secs(5));
    // A renewal gives eighteen seconds, one of which has passed when it is answered.
    let error = guard.ensure_held_for(Duration::from_millis(17_500)).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
    let error = guard.ensure_held_for(Duration::from_millis(18_001)).unwrap_err();
    assert!(error.to_string().contains("below 18s"), "{error}");
}

#[test]
fn errors_name_the_store_the_keys_and_the_date() {
    on_every_store(|store| {
        let client = store.client();
        let label = store.store.info().label.clone();
        let guard = client.lock("k").unwrap();
        let error = guard.ensure_held_for(MINUTE).unwrap_err();
        assert_eq!((error.kind(), error.store()), (ErrorKind::InvalidInput, Some(&*label)), "{error}");
        let cancel = CancelToken::new();
        cancel.cancel();
        let _other = client.lock("l").unwrap();
        let error = client.request_any(["k", "l"]).cancel(&cancel).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(error.to_string().contains("the wait for \"k\", \"l\" was cancelled"), "{error}");
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_400);
        let error = client.request("m").lease_until(past).lock().unwrap_err();
        assert!(error.to_string().contains("lease_until is 2000-02-29 00:00:00 UTC, but must be"), "{error}");
    });
}

#[test]
fn a_warning_that_would_come_before_the_first_heartbeat_is_refused() {
    on_every_store(|store| {
        let lease = Duration::from_secs(20);
        let request = || store.client().request("k").lease(lease);
        let error = request().warn_before(lease).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("warn_before is 20s, but must be below 18s"), "{error}");
        drop(request().warn_before(Duration::from_secs(17)).lock().unwrap());
        let error = request().on_warning(|_| ()).lock().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("warn_before is not"), "{error}");
        let client = store.client();
        store.within(LONG / 2, || drop(client.request("k").lease_forever().warn_before(MINUTE).lock().unwrap()));
    });
}
