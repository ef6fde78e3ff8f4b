//! All of several locks, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::bench::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{
    CancelToken, Error, ErrorKind, Event, LockClient, LockRequest, LossReason, Mutex, Observer, SameOwner,
};

use crate::api::{LONG, MINUTE, answered, on_every_store};
use crate::support::harness::{Store, on_each_local, within};
use crate::support::lateness;
use crate::support::wait::wait_until;

const SHORT: Duration = Duration::from_millis(150);
/// How long a slow server may take to answer.
const WAIT: Duration = Duration::from_secs(2);
/// A lease that no test waits for: a lock that is free before its end was released.
const HOUR: Duration = Duration::from_secs(3600);

fn ends(wait: impl Fn() -> Result<(), Error>) -> Error {
    answered(wait).unwrap_err()
}

/// The keys that were lost.
#[derive(Default)]
struct Losses(Mutex<Vec<String>>);

impl Observer for Losses {
    fn event(&self, event: &Event<'_>) {
        if let Event::Lost { loss, .. } = event {
            self.0.lock().push(loss.key.clone());
        }
    }
}

#[test]
fn all_are_held_or_none_is() {
    on_every_store(|store| {
        // A slow server must answer all three releases.
        let (client, rival) = (store.builder().drop_timeout(LONG).connect().unwrap(), store.rival());
        let guard = client.lock_all(["c", "a", "b"]).unwrap();
        let keys: Vec<&str> = guard.guards().iter().map(|guard| guard.key()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert!(guard.is_held() && guard.remaining() > Duration::ZERO && guard.lost().is_none());
        for key in keys {
            assert!(rival.try_lock(key).unwrap().is_none(), "{key}");
        }
        guard.release().unwrap();
        let _b = rival.lock("b").unwrap();
        assert!(client.try_lock_all(["c", "b", "a"]).unwrap().is_none());
        // The lock taken before the refusal is free again, and the key after the refused one was not asked for.
        assert!(rival.try_lock("a").unwrap().is_some() && client.get("a").unwrap().unwrap().is_free());
        // The same after a call that got no answer in time: "a" must be free before that call is repeated.
        let a_is_free = || wait_until("a is released", || client.get("a").unwrap().unwrap().is_free());
        let error = ends(|| {
            a_is_free();
            client.request_all(["a", "b"]).each(|one| one.lease(HOUR)).wait(WAIT).lock().map(drop)
        });
        assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("b")));
        assert_eq!(error.holders()[0].owner(), "rival");
        a_is_free();
        // A try may be repeated at once: what the one before took does not block it.
        for _ in 0..10 {
            let error = ends(|| client.request_all(["a", "b"]).lock_id("mine").wait(Duration::ZERO).lock().map(drop));
            assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("b")));
        }
        let had = || {
            a_is_free();
            client.request_all(["a", "b"]).each(|one| one.lease(HOUR)).try_lock_for(WAIT)
        };
        assert!(answered(had).unwrap().is_none());
        a_is_free();
        // The last drop of a client also completes the releases that it had left to the background.
        let leaving = store.builder().connect().unwrap();
        leaving.request_all(["a", "b"]).each(|one| one.lease(HOUR)).wait(WAIT).lock().unwrap_err();
        drop(leaving);
        assert!(client.get("a").unwrap().unwrap().is_free());
    });
}

#[test]
fn crossed_orders_do_not_wait_for_each_other() {
    on_every_store(|store| {
        let clients = [store.client(), store.rival()];
        let inside = Mutex::new(());
        thread::scope(|scope| {
            for (n, keys) in
                [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"], ["a", "c", "b"]].into_iter().enumerate()
            {
                let (client, inside) = (&clients[n % 2], &inside);
                scope.spawn(move || {
                    for _ in 0..5 {
                        // The wait is long enough even if a slow server must first answer each request of the other
                        // threads.
                        let guard = client.request_all(keys).wait(6 * LONG).lock().expect("the others release it");
                        drop(inside.try_lock().expect("nobody else holds one of them"));
                        drop(guard);
                    }
                });
            }
        });
    });
}

#[test]
fn they_are_one_group_and_held_only_while_all_are() {
    on_every_store(|store| {
        // Between two heartbeats there must be time for a slow server to renew the group.
        let client = store.builder().heartbeat(8 * SHORT).drop_timeout(LONG).connect().unwrap();
        let guard = client.request_all(["a", "b"]).lock_id("pair").each(|one| one.comment("both")).lock().unwrap();
        assert_eq!((guard.lock_id(), guard.guards()[1].info().comment()), ("pair", Some("both")));
        assert_eq!(client.renew("pair", MINUTE).unwrap().len(), 2);
        store.rival().force_release("b").unwrap();
        guard.guards()[1].loss().wait().expect("the next heartbeat finds out");
        assert!(!guard.is_held() && guard.remaining().is_zero() && guard.guards()[0].is_held());
        assert!(matches!(guard.lost().unwrap().reason, LossReason::ReleasedByOther));
        let error = guard.ensure_held().unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("b")));
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
        assert!(client.get("a").unwrap().unwrap().is_free());
    });
}

#[test]
fn one_that_is_lost_while_another_is_waited_for_is_taken_again() {
    on_every_store(|store| {
        let losses = Arc::new(Losses::default());
        let client = store.builder().heartbeat(SHORT).observer(losses.clone()).connect().unwrap();
        let rival = store.rival();
        let b = rival.lock("b").unwrap();
        thread::scope(|scope| {
            // The wait is long enough even if a slow server must first answer a dozen requests.
            let waits = scope.spawn(|| client.request_all(["a", "b"]).wait(6 * LONG).lock());
            wait_until("a is held", || client.get("a").unwrap().is_some_and(|status| !status.is_free()));
            rival.force_release("a").unwrap();
            wait_until("it is lost", || !losses.0.lock().is_empty());
            b.release().unwrap();
            let guard = waits.join().unwrap().unwrap();
            assert!(guard.is_held() && client.get("a").unwrap().unwrap().holders().len() == 1);
        });
    });
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    on_every_store(|store| {
        let client = store.client();
        let nothing: [&str; 0] = [];
        for keys in [&nothing[..], &["a", "b", "a"], &["a", ""], &["a", "\n"]] {
            let error = client.lock_all(keys).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{keys:?}");
            assert!(error.store().is_some(), "{error}");
        }
        let refused = [
            client.request_all(["a", "b"]).lock_id("").lock().unwrap_err(),
            client.request_all(["a", "b"]).each(|one| one.lease(Duration::ZERO)).lock().unwrap_err(),
            client.request_all(["a", "b"]).wait(SHORT).try_lock().unwrap_err(),
            client.request_all(["a", "b"]).wait(SHORT).try_lock_for(SHORT).unwrap_err(),
            client.request_all(["a", "b"]).each(|one| one.wait(SHORT)).lock().unwrap_err(),
            client.request_all(["a", "b"]).each(|one| one.lock_id("mine")).lock().unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.store().is_some(), "{error}");
        }
        assert!(client.get("a").unwrap().is_none_or(|status| status.is_free()));
        let cancel = CancelToken::new();
        cancel.cancel();
        let error = client.request_all(["a"]).each(|one| one.cancel(&cancel)).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
}

/// Otherwise the guard would hold another lock than the one that was asked for.
#[test]
fn a_request_that_each_makes_of_its_own_is_refused_unless_it_is_for_the_same_lock() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let refused = [
            (client.request_all(["a", "b"]).each(|_| client.request("other")).lock().unwrap_err(), "\"other\""),
            (client.request_all(["a", "b"]).each(|_| client.request("b")).try_lock().unwrap_err(), "\"b\""),
            (client.request_all(["a"]).each(|_| rival.request("a")).lock().unwrap_err(), "another client"),
        ];
        for (error, why) in refused {
            assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("a")), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        for key in ["a", "b", "other"] {
            assert!(client.get(key).unwrap().is_none_or(|status| status.is_free()), "{key} is locked");
        }
        let twin = client.clone();
        assert!(client.request_all(["a"]).each(|_| twin.request("a")).lock().unwrap().is_held());
    });
}

/// Three releases that hang take no longer than one.
#[test]
fn the_drop_of_all_has_one_bound() {
    on_every_store(|store| {
        lateness::measure();
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let bound = Duration::from_secs(2);
        let client = builder_over(faulty, store.clock.clone()).drop_timeout(bound).connect().unwrap();
        let guard = client.lock_all(["a", "b", "c"]).unwrap();
        faults.always(Call::Release, Fault::HangBefore);
        let began = Instant::now();
        drop(guard);
        let took = began.elapsed();
        faults.heal();
        // Two of them, one after the other, would take twice as long.
        assert!(took <= bound * 3 / 2 + lateness::slack(began), "{took:?}");
    });
}

/// If the store hangs while the locks taken first are given up, the call still returns at its deadline or cancellation.
#[test]
fn no_call_outlives_its_end_by_what_it_gives_up() {
    on_every_store(|store| {
        lateness::measure();
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).drop_timeout(LONG).connect().unwrap();
        let rival = store.rival();
        let _c = rival.lock("c").unwrap();
        let each = |cancel: &CancelToken| {
            client.request_all(["a", "b", "c"]).each({
                let cancel = cancel.clone();
                move |one| one.lease(HOUR).cancel(&cancel)
            })
        };
        let is_free = |key| client.get(key).unwrap().is_none_or(|status| status.is_free());
        for ends_by_cancel in [false, true] {
            faults.always(Call::Release, Fault::HangBefore);
            let cancel = CancelToken::new();
            thread::scope(|scope| {
                let request = if ends_by_cancel { each(&cancel) } else { each(&cancel).wait(WAIT) };
                let waits = scope.spawn(|| (request.lock().unwrap_err(), Instant::now()));
                wait_until("it waits for c", || !is_free("b") || waits.is_finished());
                let asked = Instant::now();
                if ends_by_cancel {
                    cancel.cancel();
                }
                let (error, ended) = waits.join().unwrap();
                let kind = if ends_by_cancel { ErrorKind::Cancelled } else { ErrorKind::TimedOut };
                let trouble = matches!(error.kind(), ErrorKind::Store | ErrorKind::Ambiguous);
                let in_trouble = !ends_by_cancel && trouble;
                assert!(error.kind() == kind || in_trouble, "{error}");
                let took = ended.saturating_duration_since(asked);
                assert!(took <= WAIT + lateness::slack(asked), "{took:?}");
            });
            faults.heal();
            wait_until("they are given up behind it", || is_free("a") && is_free("b"));
        }
    });
}

/// Each key is answered in time, but all of them together take too long.
#[test]
fn the_end_of_the_wait_is_that_of_all() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        faults.always(Call::Acquire, Fault::ApplyThenDelay(SHORT));
        let keys: Vec<String> = (0..20).map(|n| format!("key-{n}")).collect();
        let error = client.request_all(&keys).wait(3 * SHORT).lock().unwrap_err();
        // The last request may not have been answered in time by a server that is slow.
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Ambiguous | ErrorKind::Store), "{error}");
        assert!(faults.count(Call::Acquire) <= 5, "{} keys were asked for", faults.count(Call::Acquire));
        // Nobody held any of these keys.
        let free = (0..20).map(|n| format!("free-{n}"));
        client.request_all(free).try_lock_for(SHORT).expect_err("it is as if others held them");
    });
}

#[test]
fn a_wait_begins_with_the_call_and_its_end_is_that_of_every_request() {
    let store = Store::memory();
    let client = store.builder().connect().unwrap();
    let _a = store.bystander().lock("a").unwrap();
    let request = client.request_all(["a"]).wait(SHORT);
    std::thread::sleep(SHORT);
    let began = Instant::now();
    assert_eq!(request.lock().unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() >= SHORT, "it waited {:?}", began.elapsed());

    // The library calls this closure after its last look at the clock.
    let client = store.builder().request_timeout(LONG).connect().unwrap();
    let asked = AtomicUsize::new(0);
    let slow = |one: LockRequest| {
        let is_last = asked.fetch_add(1, Ordering::SeqCst) == 3;
        std::thread::sleep(if is_last { WAIT } else { Duration::ZERO });
        one
    };
    store.plan.always(Call::Acquire, Fault::HangBefore);
    let wait = || client.request_all(["b"]).each(slow).wait(WAIT).lock().unwrap_err();
    within("the call", 2 * WAIT, wait);
    assert_eq!(asked.load(Ordering::SeqCst), 4, "it is another call that is the last");
}

on_each_local! { together: one_release_that_hangs_does_not_keep_the_others_locked,; }

/// The last guard also drops the client here, so nothing remains that could release them later.
fn one_release_that_hangs_does_not_keep_the_others_locked(store: Store) {
    // On a busy machine the threads of the other releases may not have run within the bound: repeat with more time.
    let are_released = [3, 9].into_iter().any(|seconds| {
        let store = store.again();
        let bound = Duration::from_secs(seconds);
        let client = store.builder().lease(HOUR).request_timeout(LONG).drop_timeout(bound).connect().unwrap();
        let guard = client.lock_all(["a", "b", "c"]).unwrap();
        drop(client);
        store.plan.next(Call::Release, Fault::HangBefore);
        drop(guard);
        store.is_vacant("b") && store.is_vacant("c")
    });
    assert!(are_released, "on {}", store.name);
}

/// The error says that the work was not protected, and the caller has no other way to learn that.
#[test]
fn that_one_was_lost_is_told_whatever_became_of_the_others() {
    let store = Store::memory();
    let client = store.builder().lease(HOUR).heartbeat(SHORT).connect().unwrap();
    let guard = client.lock_all(["a", "b"]).unwrap();
    store.bystander().force_release("b").unwrap();
    // What is known to be lost is not asked for, so the fault is for the other one.
    wait_until("it is lost", || guard.lost().is_some());
    store.plan.next(Call::Release, Fault::Refuse);
    let error = guard.release().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("b")), "{error}");
    assert_eq!(store.plan.unmet(), 0);
}

/// Otherwise a store that takes a moment for each release would release none of many locks.
#[test]
fn each_release_of_many_has_time_for_a_slow_store() {
    let store = Store::memory();
    let client = store.builder().lease(HOUR).request_timeout(LONG).drop_timeout(WAIT).connect().unwrap();
    let guard = client.lock_all((0..40).map(|n| format!("key-{n}"))).unwrap();
    store.plan.next(Call::Release, Fault::HangBefore);
    let began = Instant::now();
    guard.release().unwrap_err();
    assert!(began.elapsed() >= WAIT / 5, "the first was given up after {:?}", began.elapsed());
}

/// An operator takes the first of two locks from a caller that waits for the second.
fn loses_a(store: &Store, operator: &LockClient, losses: &Losses) {
    wait_until("a is held", || !store.is_vacant("a"));
    operator.force_release("a").unwrap();
    wait_until("it is lost", || !losses.0.lock().is_empty());
}

#[test]
fn a_cancel_ends_the_pause_before_it_begins_again() {
    let store = Store::memory();
    let losses = Arc::new(Losses::default());
    let client = store.builder().heartbeat(SHORT).observer(losses.clone()).poll(HOUR..=HOUR).connect().unwrap();
    let rival = store.bystander();
    let b = rival.lock("b").unwrap();
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).each(|one| one.cancel(&cancel)).lock());
        loses_a(&store, &rival, &losses);
        let before = store.plan.count(Call::Release);
        b.release().unwrap();
        wait_until("b is had and given up", || store.plan.count(Call::Release) > before);
        cancel.cancel();
        wait_until("it ends", || waits.is_finished());
        assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
}

/// The pause before the next round is short however seldom this client polls: if the store wakes waiters, the poll
/// range does not say how long they wait.
#[test]
fn a_client_that_polls_seldom_begins_again_all_the_same() {
    let store = Store::memory();
    let losses = Arc::new(Losses::default());
    let client = store.builder().heartbeat(SHORT).observer(losses.clone()).poll(HOUR..=HOUR).connect().unwrap();
    let rival = store.bystander();
    let b = rival.lock("b").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).wait(HOUR / 2).lock());
        loses_a(&store, &rival, &losses);
        b.release().unwrap();
        assert!(waits.join().unwrap().unwrap().is_held());
    });
}

/// Such a guard is newer than the call, in each of the call's rounds.
#[test]
fn a_guard_that_this_client_got_meanwhile_is_not_replaced_in_a_later_round() {
    let store = Store::memory();
    let losses = Arc::new(Losses::default());
    let client = store.builder().heartbeat(SHORT).observer(losses.clone()).connect().unwrap();
    let b = store.bystander().lock("b").unwrap();
    let replacing = |one: LockRequest| one.owner("job").same_owner(SameOwner::Replace);
    let first = store.plan.count(Call::Acquire);
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).each(replacing).lock());
        wait_until("a is had, and b is asked for", || store.plan.count(Call::Acquire) >= first + 2);
        let newer = replacing(client.request("a")).try_lock().unwrap().expect("it replaces that of the call");
        wait_until("that is lost", || !losses.0.lock().is_empty());
        let before = store.plan.count(Call::Acquire);
        b.release().unwrap();
        wait_until("b is had, and a is asked for again", || store.plan.count(Call::Acquire) >= before + 2);
        assert_eq!(client.get("a").unwrap().unwrap().holders()[0].fencing_token(), newer.fencing_token());
        newer.release().unwrap();
        assert!(waits.join().unwrap().unwrap().is_held());
    });
}

/// What was right when the call began is no wrong argument later.
#[test]
fn an_end_of_the_lease_that_comes_near_while_others_are_waited_for_ends_the_wait() {
    let store = Store::memory();
    let client = store.builder().margin(Duration::from_secs(1)).connect().unwrap();
    let ends_in = |time: Duration| {
        let end = SystemTime::now() + time;
        // It ends by itself when so much is left that "b" can be had, and too little for the next key.
        let b = store.bystander().request("b").lease_until(end - Duration::from_millis(1300)).lock().unwrap();
        drop(b.into_lock());
        client.request_all(["a", "b", "c"]).each(|one| one.lease_until(end)).lock().unwrap_err()
    };
    // On a machine that pauses, so little may be left when the call begins that it is refused: then there is more.
    let mut errors = [3, 6, 12, 24].map(Duration::from_secs).into_iter().map(ends_in);
    let error = errors.find(|error| error.kind() != ErrorKind::InvalidInput).expect("one that is in time");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// An operator that ends what is left of the first round by its lock id ends nothing of the second round.
#[test]
fn each_round_is_a_group_of_its_own() {
    let store = Store::memory();
    let losses = Arc::new(Losses::default());
    let client = store.builder().heartbeat(SHORT).observer(losses.clone()).connect().unwrap();
    let rival = store.bystander();
    let b = rival.lock("b").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).wait(LONG).lock());
        wait_until("a is held", || !store.is_vacant("a"));
        let first = rival.get("a").unwrap().unwrap().holders()[0].lock_id().to_owned();
        rival.force_release("a").unwrap();
        wait_until("it is lost", || !losses.0.lock().is_empty());
        b.release().unwrap();
        let guard = waits.join().unwrap().unwrap();
        assert_ne!(guard.lock_id(), first);
        assert!(guard.guards().iter().all(|one| one.lock_id() == guard.lock_id()));
    });
}

#[test]
fn a_max_hold_that_ends_before_all_are_had_ends_the_call() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let losses = Arc::new(Losses::default());
        let client = builder_over(faulty, store.clock.clone()).observer(losses.clone()).connect().unwrap();
        let request = client.request_all(["a", "b"]).each(|one| {
            // The second key is asked for only after the first was lost to `max_hold`.
            if faults.count(Call::Acquire) > 0 {
                wait_until("the first is lost", || !losses.0.lock().is_empty());
            }
            one.max_hold(SHORT / 10)
        });
        assert_eq!(request.lock().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(faults.count(Call::Acquire), 2, "it begins again and again");
    });
}

#[test]
fn a_max_hold_of_all_is_counted_from_when_all_are_held() {
    let store = Store::memory();
    let (client, rival) = (store.builder().connect().unwrap(), store.bystander());
    let b = rival.lock("b").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).max_hold(SHORT).lock());
        wait_until("a is held", || !store.is_vacant("a"));
        let began = Instant::now();
        wait_until("it is held for longer", || began.elapsed() > 2 * SHORT);
        let freed = Instant::now();
        b.release().unwrap();
        let guard = waits.join().unwrap().unwrap();
        wait_until("it is over", || guard.guards().iter().all(|one| one.loss().get().is_some()));
        assert!(freed.elapsed() >= SHORT, "{:?}", freed.elapsed());
        assert!(guard.guards().iter().all(|one| matches!(one.loss().get().unwrap().reason, LossReason::MaxHold)));
    });
    let error = client.request_all(["a"]).max_hold(Duration::ZERO).lock().unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("max_hold is 0ns"), "{error}");
}
