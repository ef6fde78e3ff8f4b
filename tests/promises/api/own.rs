//! Calls for a lock that another guard of the same client holds.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{Scope, ScopedJoinHandle, scope};
use std::time::Duration;

use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::testing::MemoryStore;
use leasehold::{ErrorKind, LockGuard, LockRequest, SameOwner};

use crate::api::{LONG, MINUTE};
use crate::support::alone::alone;
use crate::support::bench::Bench;
use crate::support::wait::wait_until;

const SHORT: Duration = Duration::from_millis(20);

/// Starts a wait for the lock that `held` holds, then releases `held`. Returns once the wait has looked, found the lock
/// free, and was stopped. The receiver gets what the wait reports.
fn waits_for<'scope>(
    scope: &'scope Scope<'scope, '_>,
    request: LockRequest,
    held: LockGuard,
) -> (ScopedJoinHandle<'scope, leasehold::Result<LockGuard>>, Stop, Receiver<()>) {
    let (told, tells) = channel();
    let asks = request.wait(LONG).on_wait(move |_| told.send(()).unwrap_or_default());
    let waits = scope.spawn(move || asks.lock());
    tells.recv_timeout(LONG).unwrap();
    let stop = Stop::at("acquire.turn");
    held.release().unwrap();
    wait_until("it has looked", || stop.is_reached());
    (waits, stop, tells)
}

/// While a waiting call has seen the lock free, a new call of the same client is granted it. Then `happens` runs, and
/// after that the waiting call must get the lock.
fn waits_behind(happens: impl FnOnce(&MemoryStore, LockGuard)) {
    let store = MemoryStore::new();
    let (client, rival) = (store.client(), store.builder().owner("else").connect().unwrap());
    let held = rival.lock("k").unwrap();
    let request = || client.request("k").owner("job").same_owner(SameOwner::Replace).lease(60 * MINUTE);
    scope(|scope| {
        let (waits, mut stop, tells) = waits_for(scope, request(), held);
        let new = request().max_hold(MINUTE).try_lock().unwrap().expect("a new call");
        let (token, granted) = (new.fencing_token(), new.info().renewed());
        // Time passes as in a suspend, after which both grants are live, and a heartbeat is sent.
        store.advance(Duration::from_secs(5));
        wait_until("it is renewed", || new.info().renewed() != granted);
        while tells.try_recv().is_ok() {}
        stop.let_go();
        // The waiting call is refused now, and waits on.
        wait_until("it has asked", || waits.is_finished() || tells.try_recv().is_ok());
        let holders = client.get("k").unwrap().unwrap();
        assert_eq!(holders.holders().iter().map(|holder| holder.fencing_token()).collect::<Vec<_>>(), [token]);
        happens(&store, new);
        assert!(waits.join().unwrap().unwrap().fencing_token() > token);
    });
}

#[test]
fn a_call_that_waited_replaces_no_guard_of_its_own_client() {
    alone("api::own::a_call_that_waited_replaces_no_guard_of_its_own_client", || {
        waits_behind(|_, new| new.release().unwrap());
        // The lease of the lost lock goes on for an hour.
        waits_behind(|store, lost| {
            store.advance(MINUTE);
            lost.loss().wait_timeout(LONG).unwrap();
            std::mem::forget(lost);
        });
        // The new guard will learn of this at its next heartbeat.
        waits_behind(|store, new| {
            let other = store.builder().owner("job").connect().unwrap();
            let taken =
                other.request("k").same_owner(SameOwner::Replace).try_lock().unwrap().expect("by another process");
            assert!(new.is_held());
            std::mem::forget((new, taken));
        });
    });
}

/// The grant remains until the store has answered its release, which otherwise would report that another had taken the
/// lock.
#[test]
fn a_call_that_waited_replaces_no_guard_that_is_just_being_released() {
    alone("api::own::a_call_that_waited_replaces_no_guard_that_is_just_being_released", || {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let client = bench.builder().poll(SHORT..=SHORT).drop_timeout(LONG).request_timeout(LONG).connect().unwrap();
        let held = bench.rival().lock("k").unwrap();
        let request = || client.request("k").owner("job").same_owner(SameOwner::Replace);
        scope(|scope| {
            let (waits, mut stop, _tells) = waits_for(scope, request(), held);
            bench.clock.advance(SHORT);
            let new = request().try_lock().unwrap().expect("a new call");
            let (token, asked) = (new.fencing_token(), bench.faults.count(Call::Acquire));
            stop.let_go();
            drop(stop);
            wait_until("it has asked", || bench.faults.count(Call::Acquire) > asked);
            // The guard is held for a whole lease, so it is really released and not handed over.
            for _ in 0..3 {
                bench.clock.advance(Duration::from_secs(9));
                new.ensure_held_for(Duration::from_secs(12)).unwrap();
            }
            let (lets_go, hangs) = crossbeam_channel::bounded(0);
            bench.faults.next(Call::Release, Fault::Stuck(hangs));
            let releases = scope.spawn(|| new.release());
            wait_until("its release is under way", || bench.faults.count(Call::Release) > 0);
            let looks = bench.faults.count(Call::Read);
            wait_until("it has looked again", || bench.faults.count(Call::Read) > looks + 2 || waits.is_finished());
            assert!(!waits.is_finished(), "it takes what is not given back yet");
            drop(lets_go);
            releases.join().unwrap().unwrap();
            assert!(waits.join().unwrap().unwrap().fencing_token() > token);
        });
    });
}

/// The thread that was granted the lock may be slow to make its guard, and an observer may hang meanwhile.
#[test]
fn a_call_that_waited_replaces_no_grant_that_is_not_a_guard_yet() {
    alone("api::own::a_call_that_waited_replaces_no_grant_that_is_not_a_guard_yet", || {
        for is_handed_over in [false, true] {
            let bench = Bench::new();
            bench.faults.never_wakes();
            let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
            let holder = if is_handed_over { client.clone() } else { bench.rival() };
            let held = holder.request("k").owner("else").lock().unwrap();
            let wait = || {
                let (told, tells) = channel();
                let request = client.request("k").owner("job").same_owner(SameOwner::Replace).wait(LONG);
                (request.on_wait(move |_| told.send(()).unwrap_or_default()), tells)
            };
            scope(|scope| {
                let [first, second] = [wait(), wait()].map(|(request, tells)| {
                    let waits = scope.spawn(move || request.lock());
                    tells.recv_timeout(LONG).unwrap();
                    waits
                });
                // To a call whose callback runs nothing is handed over.
                wait_until("their callbacks have returned", || in_users_code(&client, "k") == 0);
                let mut stop = Stop::at("hold.made");
                held.release().unwrap();
                wait_until("it has the grant", || stop.is_reached());
                assert_eq!(bench.faults.count(Call::Release), 0, "it was not handed over");
                let looks = bench.faults.count(Call::Read);
                wait_until("the other one has looked", || {
                    bench.faults.count(Call::Read) > looks + 2 || second.is_finished()
                });
                assert!(!second.is_finished(), "it takes the lock from a call of its own client");
                stop.let_go();
                let guard = first.join().unwrap().unwrap();
                let token = guard.fencing_token();
                guard.release().unwrap();
                assert!(second.join().unwrap().unwrap().fencing_token() > token);
            });
        }
    });
}

/// A new call stands in no line. The waiting one, which was refused or had no answer yet, may look, and ask, before that
/// call knows of its grant.
#[test]
fn a_call_that_waited_replaces_no_grant_whose_answer_is_on_its_way() {
    alone("api::own::a_call_that_waited_replaces_no_grant_whose_answer_is_on_its_way", || {
        for was_refused in [true, false] {
            let bench = Bench::new();
            bench.faults.never_wakes();
            let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
            let held = was_refused.then(|| bench.rival().lock("k").unwrap());
            if !was_refused {
                bench.faults.always(Call::Acquire, Fault::FailBefore);
            }
            let request = || client.request("k").owner("job").same_owner(SameOwner::Replace);
            let ((told, tells), (lets_go, waits_until)) = (channel(), crossbeam_channel::bounded::<()>(0));
            scope(|scope| {
                let reports = move |_: &leasehold::Waiting| {
                    told.send(()).unwrap_or_default();
                    let _ = waits_until.recv();
                };
                let asks = request().wait(LONG).on_wait(reports);
                let waits = scope.spawn(move || asks.lock());
                tells.recv_timeout(LONG).unwrap();
                held.into_iter().for_each(|held| held.release().unwrap());
                bench.faults.heal();
                let mut stop = Stop::at("acquire.answered");
                let new = scope.spawn(|| request().try_lock());
                wait_until("the store has granted it", || stop.is_reached());
                let looks = bench.faults.count(Call::Read);
                drop(lets_go);
                wait_until("it has looked", || bench.faults.count(Call::Read) > looks + 2 || waits.is_finished());
                assert!(!waits.is_finished(), "it takes the lock from a call of its own client");
                stop.let_go();
                let new = new.join().unwrap().unwrap().expect("a new call");
                let token = new.fencing_token();
                new.release().unwrap();
                assert!(waits.join().unwrap().unwrap().fencing_token() > token);
            });
        }
    });
}

/// A call that was refused may go on for long, as in an observer that hangs: nothing of it stands in the way.
#[test]
fn a_call_that_waited_replaces_its_owner_whatever_becomes_of_a_call_that_was_refused() {
    alone("api::own::a_call_that_waited_replaces_its_owner_whatever_becomes_of_a_call_that_was_refused", || {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
        let held = bench.rival().lock("k").unwrap();
        let request = |owner: &str| client.request("k").owner(owner).same_owner(SameOwner::Replace);
        scope(|scope| {
            let (told, tells) = channel();
            let asks = request("job").wait(LONG).on_wait(move |_| told.send(()).unwrap_or_default());
            let waits = scope.spawn(move || asks.lock());
            tells.recv_timeout(LONG).unwrap();
            let mut stop = Stop::at("acquire.refused");
            let refused = scope.spawn(|| request("third").try_lock());
            wait_until("it is refused", || stop.is_reached());
            let _job = bench.rival().request("k").owner("job").adopt(held.into_lock()).unwrap();
            assert!(waits.join().unwrap().unwrap().is_held());
            stop.let_go();
            assert!(refused.join().unwrap().unwrap().is_none());
        });
    });
}

/// Its own grants count from when they are known, not from when there is a guard.
#[test]
fn a_call_replaces_its_owner_that_was_granted_the_lock_before_it_began() {
    alone("api::own::a_call_replaces_its_owner_that_was_granted_the_lock_before_it_began", || {
        let bench = Bench::new();
        let client = bench.client();
        let first = bench.rival().lock("a").unwrap();
        scope(|scope| {
            let mut stop = Stop::at("acquire.granted");
            let old = scope.spawn(|| client.request("k").owner("job").same_owner(SameOwner::Replace).try_lock());
            wait_until("it is granted", || stop.is_reached());
            bench.clock.advance(SHORT);
            let (told, tells) = channel();
            let each = move |request: LockRequest| {
                let told = told.clone();
                let request = request.owner("job").same_owner(SameOwner::Replace);
                request.on_wait(move |_| told.send(()).unwrap_or_default())
            };
            // It asks for "k" only after the grant has become a guard.
            let all = client.request_all(["a", "k"]).each(each).wait(LONG);
            let all = scope.spawn(move || all.lock());
            tells.recv_timeout(LONG).unwrap();
            bench.clock.advance(SHORT);
            stop.let_go();
            let old = old.join().unwrap().unwrap().expect("a lock");
            first.release().unwrap();
            let all = all.join().unwrap().unwrap();
            assert!(all.guards()[1].fencing_token() > old.fencing_token());
        });
    });
}

/// Nobody else would release it, so a call with its lock id would wait for itself.
#[test]
fn a_grant_that_is_not_a_guard_yet_is_held_already_by_its_lock_id() {
    alone("api::own::a_grant_that_is_not_a_guard_yet_is_held_already_by_its_lock_id", || {
        let cases = [("acquire.answered", false), ("lengthen.sent", false), ("lengthen.sent", true)];
        for (mark, others_wait) in cases.into_iter().chain([("hold.made", false), ("hold.made", true)]) {
            let (_bench, client) = Bench::patient();
            let request = || client.request("k").lock_id("g").lease(60 * MINUTE);
            scope(|scope| {
                let mut stop = Stop::at(mark);
                let new = scope.spawn(|| request().try_lock());
                wait_until("it is granted", || stop.is_reached());
                let other = others_wait.then(|| {
                    let (told, tells) = channel();
                    let tell = move |waiting: &leasehold::Waiting| told.send(waiting.held_by_this_client);
                    let other =
                        client.request("k").wait(LONG).on_wait(move |waiting| tell(waiting).unwrap_or_default());
                    let other = scope.spawn(move || other.lock());
                    assert!(tells.recv_timeout(LONG).unwrap());
                    other
                });
                let error = request().try_lock().expect_err("the call would wait for itself");
                assert_eq!((error.kind(), error.held_by_this_client()), (ErrorKind::AlreadyHeld, true), "{mark}");
                stop.let_go();
                new.join().unwrap().unwrap().expect("a lock").release().unwrap();
                other.into_iter().for_each(|other| drop(other.join().unwrap().unwrap()));
            });
        }
    });
}

#[test]
fn a_lock_as_data_is_no_guard_of_the_client_before_it_is_returned_either() {
    alone("api::own::a_lock_as_data_is_no_guard_of_the_client_before_it_is_returned_either", || {
        let (_bench, client) = Bench::patient();
        let request = || client.request("k").lock_id("g");
        scope(|scope| {
            let mut stop = Stop::at("acquire.granted");
            let data = scope.spawn(|| request().acquire());
            wait_until("it is granted", || stop.is_reached());
            let error = request().wait(Duration::ZERO).lock().unwrap_err();
            assert_eq!((error.kind(), error.held_by_this_client()), (ErrorKind::TimedOut, false));
            stop.let_go();
            client.release(&data.join().unwrap().unwrap()).unwrap();
        });
    });
}

/// Otherwise the new grant would be told before the loss.
#[test]
fn a_call_that_waited_replaces_no_guard_whose_max_hold_is_over_before_that_is_declared() {
    alone("api::own::a_call_that_waited_replaces_no_guard_whose_max_hold_is_over_before_that_is_declared", || {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
        let held = bench.rival().lock("k").unwrap();
        let request = || client.request("k").owner("job").same_owner(SameOwner::Replace).lease(60 * MINUTE);
        scope(|scope| {
            let (waits, mut stop, _tells) = waits_for(scope, request(), held);
            bench.clock.advance(SHORT);
            let new = request().max_hold(MINUTE).try_lock().unwrap().expect("a new call");
            let token = new.fencing_token();
            stop.let_go();
            drop(stop);
            let mut stop = Stop::at("watch.looks");
            bench.clock.advance(MINUTE);
            wait_until("the watcher is stopped", || stop.is_reached());
            assert!(!new.is_held());
            let looks = bench.faults.count(Call::Read);
            wait_until("it has looked again", || bench.faults.count(Call::Read) > looks + 2 || waits.is_finished());
            assert!(!waits.is_finished() && new.loss().get().is_none(), "it takes what is not declared lost");
            stop.let_go();
            assert!(waits.join().unwrap().unwrap().fencing_token() > token);
        });
    });
}

/// Nothing renews a lost lock, so a call with its lock id waits for the lease to end and does not wait for itself.
#[test]
fn a_lock_that_is_lost_is_waited_for_also_by_its_own_lock_id() {
    let store = MemoryStore::new();
    let client = store.client();
    let request = || client.request("k").lock_id("g");
    let lost = request().lease(MINUTE).max_hold(MINUTE / 2).lock().unwrap();
    assert_eq!(request().try_lock().unwrap_err().kind(), ErrorKind::AlreadyHeld);
    store.advance(MINUTE / 2);
    lost.loss().wait_timeout(LONG).unwrap();
    assert!(request().try_lock().unwrap().is_none());
    store.advance(MINUTE + Duration::from_secs(1));
    assert!(request().try_lock().unwrap().is_some(), "its lease is over");
}
