//! What a `close` reports if its time is over before all is done, and what a later `close` reports.

use std::sync::Arc;
use std::thread::scope;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::{ErrorKind, LockClient};

use crate::api::LONG;
use crate::support::alone::alone;
use crate::support::bench::{Bench, builder_over};
use crate::support::between::{Between, When};
use crate::support::harness::{Store, acquire_unanswered, millis};
use crate::support::wait::wait_until;

/// A client whose close gives up soon.
fn client(store: &Store, lease: Duration) -> LockClient {
    store.builder().lease(lease).drop_timeout(millis(300)).connect().unwrap()
}

/// Repeats the close: on a busy machine the time of one may be over before anything could be sent.
pub(super) fn closes_well(client: &LockClient) {
    wait_until("a close leaves nothing", || client.close().is_ok());
}

#[test]
fn a_close_that_leaves_a_call_behind_which_obtains_a_lock_says_so() {
    let store = Store::memory();
    let client = client(&store, LONG);
    let (unstick, stuck) = bounded(0);
    store.plan.next(Call::Acquire, Fault::Stuck(stuck));
    scope(|scope| {
        let call = scope.spawn(|| client.try_lock("k").unwrap_err().kind());
        wait_until("it asks", || store.plan.count(Call::Acquire) > 0);
        let error = client.close().expect_err("it may be granted the lock");
        assert!(error.to_string().contains("1 calls that obtain a lock"), "{error}");
        assert!(error.is_retryable());
        drop(unstick);
        assert_eq!(call.join().unwrap(), ErrorKind::Closed);
    });
    closes_well(&client);
    assert!(store.is_vacant("k"));
}

/// What it has is released by the close, and not lost.
#[test]
fn a_call_for_several_locks_that_a_close_overtakes_ends_as_closed() {
    alone("api::closing::a_call_for_several_locks_that_a_close_overtakes_ends_as_closed", || {
        let bench = Bench::new();
        let client = bench.builder().drop_timeout(LONG).connect().unwrap();
        scope(|scope| {
            let mut stop = Stop::at("hold.started");
            let call = scope.spawn(|| client.request_all(["k"]).try_lock().unwrap_err().kind());
            wait_until("it has its last lock", || stop.is_reached());
            let close = scope.spawn(|| client.close());
            bench.wait_for_release("k");
            stop.let_go();
            assert_eq!(call.join().unwrap(), ErrorKind::Closed);
            close.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_close_waits_for_a_hand_over_that_finds_its_waiter_gone() {
    let bench = Bench::new();
    let between = Between::new(bench.at.store.clone());
    let builder = builder_over(Arc::new(between.clone()), bench.clock.clone());
    let client = builder.drop_timeout(LONG).connect().unwrap();
    let guard = client.lock("k").unwrap();
    let token = guard.fencing_token();
    let (told, tells) = bounded(10);
    scope(|scope| {
        let request = client.request("k").on_wait(move |_| told.try_send(()).unwrap_or_default()).on_wait_every(LONG);
        let waiter = scope.spawn(|| request.lock().map(drop).unwrap_err().kind());
        tells.recv_timeout(LONG).expect("it waits");
        // Before that, nothing is handed over to this waiter.
        wait_until("its callback has returned", || in_users_code(&client, "k") == 0);
        // The answer arrives only after the waiter has left.
        let (gone, is_gone) = bounded::<()>(0);
        between.next(When::AfterAcquire, move || {
            let _ = is_gone.recv();
        });
        let release = scope.spawn(|| guard.release());
        let holder = || bench.at.record("k").exclusive.map(|holder| holder.token);
        wait_until("it is handed over", || holder().is_some_and(|now| now > token));
        let close = scope.spawn(|| client.close());
        wait_until("its waiter is gone", || waiter.is_finished());
        assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
        drop(gone);
        close.join().unwrap().unwrap();
        assert_eq!(holder(), None);
        release.join().unwrap().unwrap();
    });
}

#[test]
fn a_later_close_gives_up_what_an_earlier_one_could_not() {
    let store = Store::memory();
    let client = client(&store, LONG);
    store.plan.always(Call::Release, Fault::FailBefore);
    acquire_unanswered(&store.plan, &client, "k");
    for _ in 0..2 {
        let error = client.close().expect_err("it may stand");
        assert!(error.to_string().contains("1 grants that nobody holds"), "{error}");
    }
    assert!(!store.is_vacant("k"));
    store.plan.heal();
    closes_well(&client);
    assert!(store.is_vacant("k"));
    closes_well(&client);
}

/// As when each of two threads closes the client at its end: the second waits for the first, and gets the same answer.
#[test]
fn two_later_closes_at_once_say_the_same() {
    // On a busy machine the time of the first may be over before it is answered: repeat with more time.
    assert!([2, 8].into_iter().any(two_later_closes_in_time), "each of them had no time left");
}

/// Returns `false` if the first close had hardly any time left for the answer.
fn two_later_closes_in_time(seconds: u64) -> bool {
    let (store, bound) = (Store::memory(), millis(1000 * seconds));
    let client = store.builder().lease(LONG).drop_timeout(bound).connect().unwrap();
    store.plan.always(Call::Release, Fault::FailBefore);
    acquire_unanswered(&store.plan, &client, "k");
    client.close().expect_err("it may stand");
    let ((unstick, stuck), (begins, begun)) = (bounded(0), bounded(1));
    store.plan.heal();
    store.plan.next(Call::Release, Fault::Stuck(stuck));
    let before = store.plan.count(Call::Release);
    let in_time = scope(|scope| {
        let began = Instant::now();
        let first = scope.spawn(|| client.close());
        wait_until("it is given up", || store.plan.count(Call::Release) > before);
        let second = scope.spawn(|| {
            begins.send(()).unwrap();
            client.close()
        });
        begun.recv().unwrap();
        // Time for a wrong second close, which does not wait for the first one, to return.
        let _ = begun.recv_timeout(millis(100));
        drop(unstick);
        let both = [second, first].map(|close| close.join().unwrap());
        let in_time = began.elapsed() < bound / 2;
        assert!(!in_time || both.iter().all(Result::is_ok), "{both:?}");
        in_time
    });
    assert!(!in_time || store.is_vacant("k"));
    in_time
}

#[test]
fn what_has_ended_by_itself_is_no_error_of_a_later_close() {
    for is_guarded in [true, false] {
        let store = Store::memory();
        let client = client(&store, LONG);
        store.plan.always(Call::Release, Fault::FailBefore);
        let _guard = is_guarded.then(|| client.lock("k").unwrap());
        if !is_guarded {
            acquire_unanswered(&store.plan, &client, "k");
        }
        client.close().expect_err("it stands");
        store.advance(2 * LONG);
        closes_well(&client);
    }
}

/// Creating a table may take minutes, so a repeat would not help.
#[test]
fn a_schema_that_a_close_cuts_off_is_not_worth_a_repeat() {
    let store = Store::memory();
    type Asks = fn(&LockClient) -> leasehold::Result<String>;
    let asks: [Asks; 2] = [LockClient::schema, LockClient::create_schema];
    for (ask, kind) in asks.into_iter().zip([ErrorKind::Closed, ErrorKind::Ambiguous]) {
        let client = client(&store, LONG);
        let asked = store.plan.count(Call::Schema);
        store.plan.next(Call::Schema, Fault::HangBefore);
        let error = scope(|scope| {
            scope.spawn(|| {
                wait_until("it asks", || store.plan.count(Call::Schema) > asked);
                closes_well(&client);
            });
            ask(&client).unwrap_err()
        });
        assert!(error.kind() == kind && !error.is_retryable(), "{error:?}");
    }
}

/// The store is away, and at the same time the close has taken what the drop needs to leave the release to the
/// background.
#[test]
fn what_a_drop_and_a_close_beside_it_can_not_release_is_left_to_the_next_close() {
    let store = Store::memory();
    let client = store.builder().lease(LONG).drop_timeout(millis(3000)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    let [(let_drop_go, drop_hangs), (let_close_go, close_hangs)] = [bounded(0), bounded(0)];
    for hangs in [drop_hangs, close_hangs] {
        store.plan.next(Call::Release, Fault::Stuck(hangs));
    }
    let asks = |times| wait_until("it asks", || store.plan.count(Call::Release) >= times);
    scope(|scope| {
        let drops = scope.spawn(|| drop(guard));
        asks(1);
        let closes = scope.spawn(|| client.close());
        asks(2);
        store.plan.always(Call::Release, Fault::LostBefore);
        let began = Instant::now();
        wait_until("no time is left", || began.elapsed() > millis(3000));
        drop(let_drop_go);
        drops.join().unwrap();
        drop(let_close_go);
        closes.join().unwrap().unwrap_err();
    });
    store.plan.heal();
    closes_well(&client);
    assert!(store.is_vacant("k"));
}
