//! Guards: exclusive and shared, their state, their end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, bounded};
use leasehold::{CancelToken, ErrorKind, Event, LockGuard, LossReason, Mode, Observer, SameOwner, Slept};

use crate::api::{LONG, MINUTE, answered, faulty, on_every_store, wait_until};
use crate::support::harness::{Store, millis, on_each_local, within};
use leasehold::internals::store::fault::{Call, Fault};

on_each_local! {
    together:
        what_max_hold_ended_is_given_up_later_where_no_release_was_answered,
        what_a_drop_could_not_release_is_given_up_later,
        what_must_stand_for_a_while_is_given_up_after_it,
        what_is_given_up_waits_for_no_observer,
    ;
}

#[test]
fn an_exclusive_lock_excludes_everyone_until_it_is_dropped() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let guard = client.lock("k").unwrap();
        assert_eq!((guard.key(), guard.mode()), ("k", Mode::Exclusive));
        assert!(rival.try_lock("k").unwrap().is_none());
        assert!(client.try_lock("k").unwrap().is_none());
        assert!(rival.try_lock_shared("k").unwrap().is_none());
        assert!(rival.try_lock("K").unwrap().is_some(), "keys are compared byte by byte");
        let token = guard.fencing_token();
        drop(guard);
        assert!(rival.try_lock("k").unwrap().unwrap().fencing_token() > token);
    });
}

#[test]
fn shared_holders_share_up_to_the_limit_and_exclude_an_exclusive_one() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let first = client.lock_shared("k").unwrap();
        let second = rival.request("k").max_holders(2).try_lock().unwrap().unwrap();
        assert_eq!(second.mode(), Mode::Shared);
        assert!(client.request("k").max_holders(2).try_lock().unwrap().is_none());
        let third = client.try_lock_shared_for("k", LONG).unwrap().unwrap();
        assert!(client.try_lock("k").unwrap().is_none());
        assert_eq!(client.get("k").unwrap().unwrap().holders().len(), 3);
        drop((first, second, third));
        assert!(client.try_lock("k").unwrap().is_some());
    });
}

#[test]
fn a_refusal_names_five_of_many_holders_and_carries_all() {
    let store = Store::memory();
    let client = store.builder().connect().unwrap();
    let _held: Vec<LockGuard> = (0..7).map(|_| client.lock_shared("k").unwrap()).collect();
    let error = client.request("k").wait(Duration::ZERO).lock().unwrap_err();
    let text = error.to_string();
    assert_eq!((error.holders().len(), text.matches("(shared, ").count()), (7, 5), "{text}");
    assert!(text.contains(", and 2 more; a guard of this very client"), "{text}");
}

/// Only the guard knows of the grant, which has no end: if nobody releases it, the key stays locked.
fn what_max_hold_ended_is_given_up_later_where_no_release_was_answered(store: Store) {
    let client = store.builder().drop_timeout(millis(200)).connect().unwrap();
    let guard = client.request("k").lease_forever().max_hold(millis(10)).lock().unwrap();
    assert!(matches!(guard.loss().wait().unwrap().reason, LossReason::MaxHold));
    store.plan.always(Call::Release, Fault::FailBefore);
    drop(guard);
    assert!(!store.is_vacant("k"), "its release failed");
    store.plan.heal();
    wait_until("it is given up", || store.is_vacant("k"));
}

/// The program runs on, and the store is back soon.
fn what_a_drop_could_not_release_is_given_up_later(store: Store) {
    let client = store.builder().drop_timeout(millis(200)).connect().unwrap();
    let end_by_drop: fn(LockGuard) = drop;
    let end_after_an_error: fn(LockGuard) = |guard| drop(guard.release().unwrap_err());
    for end in [end_by_drop, end_after_an_error] {
        let guard = client.request("k").lease_forever().lock().unwrap();
        store.plan.always(Call::Release, Fault::FailBefore);
        end(guard);
        assert!(!store.is_vacant("k"), "its release failed");
        store.plan.heal();
        wait_until("it is given up", || store.is_vacant("k"));
    }
}

/// The lock must be held for a while, and its lease is much longer.
fn what_must_stand_for_a_while_is_given_up_after_it(store: Store) {
    let client = store.builder().drop_timeout(millis(200)).connect().unwrap();
    let (asked, least) = (Instant::now(), Duration::from_secs(2));
    let guard = client.request("k").lease(60 * MINUTE).hold_at_least(least).lock().unwrap();
    store.plan.go_offline();
    drop(guard);
    store.plan.go_online();
    assert!(!store.is_vacant("k") || asked.elapsed() > least, "it must stand");
    wait_until("it is given up", || store.is_vacant("k"));
}

/// An observer that hangs at the first failed request that another thread than the test's reports, until the sender is
/// dropped.
struct HangsBesideTheTest(std::thread::ThreadId, Receiver<()>);

impl Observer for HangsBesideTheTest {
    fn event(&self, event: &Event<'_>) {
        let has_failed = matches!(event, Event::Request { error: Some(_), .. });
        if has_failed && std::thread::current().id() != self.0 {
            let _ = self.1.recv();
        }
    }
}

fn what_is_given_up_waits_for_no_observer(store: Store) {
    let (leaves, leave) = bounded::<()>(0);
    let observer = Arc::new(HangsBesideTheTest(std::thread::current().id(), leave));
    let client = store.builder().drop_timeout(millis(200)).observer(observer).connect().unwrap();
    let guard = client.request("k").lease_forever().lock().unwrap();
    store.plan.always(Call::Release, Fault::FailBefore);
    drop(guard);
    let tries = store.plan.count(Call::Release);
    wait_until("it is tried in the background", || store.plan.count(Call::Release) > tries);
    store.plan.heal();
    wait_until("it is given up", || store.is_vacant("k"));
    drop(leaves);
}

#[test]
fn a_heartbeat_keeps_the_lock_and_what_the_guard_shows() {
    on_every_store(|store| {
        let client = store.builder().lease(LONG).heartbeat(Duration::from_millis(20)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        let shown = guard.shared_info();
        let looking = shown.lock();
        // A heartbeat may have been answered already.
        let (before, known) = (looking.renewed(), guard.info().renewed());
        // A caller that keeps the shown lock locked holds up no heartbeat.
        wait_until("a heartbeat is answered", || guard.info().renewed() != known);
        assert_eq!(looking.renewed(), before);
        drop(looking);
        wait_until("the guard shows it", || shown.lock().renewed() != before);
        let before = shown.lock().leased_until().unwrap();
        wait_until("the guard shows the new end", || shown.lock().leased_until().unwrap() > before);
        assert!(guard.is_held());
    });
}

#[test]
fn what_is_left_is_no_more_than_max_hold_leaves() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        let guard = client.request("k").lease(2 * MINUTE).max_hold(MINUTE).lock().unwrap();
        assert!(guard.remaining() <= MINUTE && guard.remaining() > MINUTE / 2, "{:?}", guard.remaining());
        guard.ensure_held_for(MINUTE / 2).unwrap();
        let (renewals, error) = (faults.count(Call::Renew), guard.ensure_held_for(MINUTE).unwrap_err());
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("max_hold"), "{error}");
        assert_eq!(faults.count(Call::Renew), renewals, "a renewal would not help");
        let leadership =
            client.election("boss").lease(2 * MINUTE).max_hold(MINUTE).build().unwrap().campaign().unwrap();
        assert!(leadership.remaining() <= MINUTE);
    });
}

#[test]
fn ensure_held_for_renews_only_when_less_is_left() {
    on_every_store(|store| {
        let client = store.builder().lease(Duration::from_secs(60)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        guard.ensure_held().unwrap();
        guard.ensure_held_for(Duration::from_secs(6)).unwrap();
        assert!(guard.info().renewed().is_none());
        // 38 s are left, and a renewal is waited for a third of that. It gives 54 s, minus the time that its answer
        // takes.
        store.advance(Duration::from_secs(16));
        guard.ensure_held_for(Duration::from_secs(40)).unwrap();
        assert!(guard.info().renewed().is_some());
        assert_eq!(guard.ensure_held_for(Duration::from_secs(60)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(guard.is_held());
    });
}

#[test]
fn a_lock_without_end_survives_every_suspend_and_notices_a_release() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease_forever().lock().unwrap();
        store.advance(Duration::from_secs(10 * 24 * 3600));
        assert!(guard.is_held());
        assert_eq!(guard.remaining(), Duration::MAX);
        assert!(guard.info().leased_until().is_none());
        assert!(store.rival().try_lock("k").unwrap().is_none());
        store.rival().release(&guard.info()).unwrap();
        store.advance(Duration::from_secs(1));
        let loss = guard.loss().wait_timeout(LONG).unwrap();
        assert!(matches!(loss.reason, LossReason::ReleasedByOther), "{loss:?}");
        assert!(!guard.is_held());
    });
}

/// A heartbeat only reads such a lock and renews nothing, so no observer may hear of a new end.
#[test]
fn a_lock_without_end_is_never_said_to_be_renewed() {
    struct Renewals(crossbeam_channel::Sender<()>);
    impl Observer for Renewals {
        fn event(&self, event: &Event<'_>) {
            if matches!(event, Event::Renewed { .. }) {
                let _ = self.0.send(());
            }
        }
    }
    let store = Store::memory();
    let (to, renewals) = bounded(10);
    let client = store.builder().observer(Arc::new(Renewals(to))).connect().unwrap();
    let guard = client.request("k").lease_forever().lock().unwrap();
    assert_eq!(renewals.try_iter().count(), 0, "what it was granted by is no heartbeat");
    for _ in 0..3 {
        let looks = store.plan.count(Call::Read);
        store.advance(Duration::from_secs(60));
        wait_until("it is looked at", || store.plan.count(Call::Read) > looks);
    }
    assert!(guard.info().renewed().is_none(), "{:?}", guard.info());
    guard.release().unwrap();
    assert_eq!(renewals.try_iter().count(), 0);
}

#[test]
fn a_long_lease_stands_after_the_first_renewal() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease(Duration::from_secs(8 * 3600)).lock().unwrap();
        let left = client.get("k").unwrap().unwrap().holders()[0].remaining().unwrap();
        assert!(left > Duration::from_secs(8 * 3600 - 60), "{left:?}");
        // Minus a margin of a tenth.
        assert!(guard.remaining() > Duration::from_secs(7 * 3600));
        assert!(guard.remaining() <= Duration::from_secs(8 * 3600 * 9 / 10));
    });
}

#[test]
fn a_lease_until_a_time_is_not_renewed_past_it() {
    on_every_store(|store| {
        let client = store.client();
        let end = SystemTime::now() + Duration::from_secs(30);
        let guard = client.request("k").lease_until(end).lock().unwrap();
        store.advance(Duration::from_secs(10));
        wait_until("the first heartbeat is answered", || guard.info().renewed().is_some());
        assert!(guard.remaining() <= Duration::from_secs(20));
        store.outlast(Duration::from_secs(20));
        assert!(!guard.is_held());
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}

#[test]
fn the_same_owner_replaces_its_own_lock_only_where_asked() {
    on_every_store(|store| {
        let client = store.client();
        let old = client.request("k").owner("job").lock().unwrap();
        assert!(client.request("k").owner("job").try_lock().unwrap().is_none());
        let other = client.request("k").owner("else").same_owner(SameOwner::Replace).try_lock().unwrap();
        assert!(other.is_none());
        let new = client.request("k").owner("job").same_owner(SameOwner::Replace).try_lock().unwrap().unwrap();
        assert!(new.fencing_token() > old.fencing_token());
        store.advance(Duration::from_secs(1));
        let loss = old.loss().wait_timeout(LONG).unwrap();
        assert!(matches!(loss.reason, LossReason::TakenOver { .. }), "{loss:?}");
        let error = old.ensure_held().unwrap_err();
        assert!(error.holders().len() == 1 && error.held_by_this_client(), "{error:?}");
        assert!(new.is_held());
    });
}

#[test]
fn with_lock_gives_the_value_and_tells_a_loss() {
    on_every_store(|store| {
        let client = store.client();
        assert!(client.with_lock("k", |guard| guard.is_held()).unwrap());
        assert!(client.get("k").unwrap().unwrap().is_free());
        let lost = client.with_lock("k", |guard| {
            store.rival().release(&guard.info()).unwrap();
            7
        });
        let error = lost.unwrap_err();
        assert_eq!((error.kind(), error.into_value()), (ErrorKind::Lost, Some(7)));
        // A close releases the lock in the middle of the work.
        let closed = client.with_lock("k", |_| {
            let _ = client.close();
            8
        });
        let error = closed.unwrap_err();
        assert_eq!((error.kind(), error.into_value()), (ErrorKind::Lost, Some(8)));
    });
}

#[test]
fn with_locks_error_goes_into_any_other_whatever_its_value_is() {
    let client = leasehold::LockClient::connect("memory:").unwrap();
    // The closure's value is neither `'static` nor `Send`.
    let word = |words: &str| -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
        let work = |_: &leasehold::LockGuard| std::rc::Rc::new(words.split(' ').next());
        let first = client.with_lock("k", work).map_err(leasehold::WithLockError::into_error)?;
        Ok(first.map_or(0, str::len))
    };
    assert_eq!(word("two words").unwrap(), 3);
    client.close().unwrap();
    let error = word("two words").unwrap_err();
    assert_eq!(error.downcast::<leasehold::Error>().unwrap().kind(), ErrorKind::Closed);
}

#[test]
fn a_panic_releases_the_lock() {
    on_every_store(|store| {
        let client = store.client();
        let panicking = client.clone();
        std::thread::spawn(move || {
            let _guard = panicking.lock("k").unwrap();
            panic!("on purpose");
        })
        .join()
        .unwrap_err();
        assert!(client.try_lock("k").unwrap().is_some());
    });
}

#[test]
fn an_adopted_lock_has_a_new_token_and_no_gap() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let guard = client.request("k").lock_id("group").comment("c").lock().unwrap();
        let token = guard.fencing_token();
        let lock = guard.into_lock();
        assert!(rival.try_lock("k").unwrap().is_none());
        let adopted = rival.adopt(lock.clone()).unwrap();
        assert!(adopted.fencing_token() > token);
        assert_eq!(adopted.lock_id(), "group");
        assert_eq!((adopted.info().owner(), adopted.info().comment()), ("rival", Some("c")));
        let again = client.adopt(lock.clone()).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Lost);
        assert_eq!(again.holders().len(), 1);
        assert_eq!(client.heartbeat(&lock, MINUTE).unwrap_err().kind(), ErrorKind::Lost);
        assert!(adopted.is_held());
        adopted.release().unwrap();
    });
}

#[test]
fn whoever_is_adopted_from_is_lost_at_its_next_heartbeat() {
    on_every_store(|store| {
        let client = store.client();
        for guard in [client.lock("k").unwrap(), client.lock_shared("shared").unwrap()] {
            let adopted = store.rival().adopt(guard.info()).unwrap();
            store.advance(Duration::from_secs(1));
            let loss = guard.loss().wait_timeout(LONG).unwrap();
            let LossReason::TakenOver { by: Some(by) } = loss.reason else { panic!("{loss}") };
            assert_eq!(by.fencing_token(), adopted.fencing_token());
        }
        // The same where others share the lock, and the release is the first call that learns of it.
        let (_other, shared) = (client.lock_shared("told").unwrap(), client.lock_shared("told").unwrap());
        let adopted = store.rival().adopt(shared.info()).unwrap();
        let failed = shared.release().unwrap_err();
        assert_eq!(failed.error().holders()[0].fencing_token(), adopted.fencing_token(), "{failed}");
    });
}

#[test]
fn the_reason_of_a_loss_says_who_took_it_and_whether_anyone_did() {
    on_every_store(|store| {
        // The lease is so long that no heartbeat is due between two steps of the rival.
        let (client, rival) = (store.builder().lease(MINUTE).connect().unwrap(), store.rival());
        let reason = |guard: &LockGuard| {
            store.advance(Duration::from_secs(1));
            guard.loss().wait_timeout(LONG).unwrap().reason
        };

        let exclusive = client.lock("a").unwrap();
        rival.release(&exclusive.info()).unwrap();
        let _shared = rival.lock_shared("a").unwrap();
        let LossReason::TakenOver { by: Some(by) } = reason(&exclusive) else { panic!() };
        assert_eq!((by.owner(), by.mode()), ("rival", Mode::Shared));

        let exclusive = client.lock("b").unwrap();
        rival.release(&exclusive.info()).unwrap();
        rival.lock("b").unwrap().release().unwrap();
        assert!(matches!(reason(&exclusive), LossReason::TakenOver { by: None }));

        let shared = client.lock_shared("c").unwrap();
        rival.release(&shared.info()).unwrap();
        let _exclusive = rival.lock("c").unwrap();
        let LossReason::TakenOver { by: Some(by) } = reason(&shared) else { panic!() };
        assert_eq!((by.owner(), by.mode()), ("rival", Mode::Exclusive));

        // A shared holder takes the lock from nobody, even if it came later.
        let shared = client.lock_shared("d").unwrap();
        let _other = rival.lock_shared("d").unwrap();
        rival.release(&shared.info()).unwrap();
        assert!(matches!(reason(&shared), LossReason::ReleasedByOther));
        // The same where the release is the first call that learns of it.
        let shared = client.lock_shared("e").unwrap();
        let _other = rival.lock_shared("e").unwrap();
        rival.release(&shared.info()).unwrap();
        let failed = shared.release().unwrap_err();
        assert!(failed.error().holders().is_empty(), "{failed}");
    });
}

#[test]
fn shared_and_endless_locks_are_adopted_as_such() {
    on_every_store(|store| {
        let client = store.client();
        let _other = client.lock_shared("k").unwrap();
        let shared = client.request("k").shared().lease_forever().lock().unwrap().into_lock();
        let adopted = client.adopt(shared).unwrap();
        assert_eq!(adopted.mode(), Mode::Shared);
        assert!(adopted.info().leased_until().is_none());
        assert_eq!(client.get("k").unwrap().unwrap().holders().len(), 2);
    });
}

#[test]
fn a_lock_without_end_that_was_given_one_is_lost_at_it() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease_forever().lock().unwrap();
        client.heartbeat(&guard.info(), MINUTE).unwrap();
        // The longest time for which the guard does not look at the store.
        store.advance(Duration::from_secs(30));
        wait_until("time passes", || guard.remaining() < MINUTE);
        store.outlast(Duration::from_secs(30));
        assert!(!guard.is_held());
        assert!(store.rival().try_lock("k").unwrap().is_some());
        assert!(matches!(guard.loss().wait_timeout(LONG).unwrap().reason, LossReason::Expired { .. }));
    });
}

/// The guard belongs to a worker that hangs, so it is never dropped.
#[test]
fn a_lock_without_end_that_max_hold_ended_is_free_a_minute_later() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease_forever().max_hold(millis(10)).lock().unwrap();
        assert!(matches!(guard.loss().wait_timeout(LONG).unwrap().reason, LossReason::MaxHold));
        let ends = || client.get("k").unwrap().unwrap().holders()[0].remaining().is_some();
        wait_until("it is given an end", ends);
        assert!(store.rival().try_lock("k").unwrap().is_none(), "its holder has some time to stop");
        store.outlast(2 * MINUTE);
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}

#[test]
fn a_release_after_a_close_tells_of_the_loss_before_it() {
    on_every_store(|store| {
        let client = store.client();
        let expired = client.request("a").max_hold(millis(10)).lock().unwrap();
        let [taken, held] = ["b", "c"].map(|key| client.lock(key).unwrap());
        assert!(expired.loss().wait_timeout(LONG).is_some());
        store.rival().release(&taken.info()).unwrap();
        // The close finds the loss of "b", which nothing has noticed yet.
        let _ = client.close();
        for guard in [expired, taken] {
            assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
        }
        held.release().unwrap();
    });
}

/// The thread that waits for the loss may own the guard, and would never drop it if the wait did not end.
#[test]
fn a_close_that_the_store_does_not_answer_tells_whoever_waits_for_the_loss() {
    let store = Store::memory();
    let client = store.builder().drop_timeout(millis(200)).connect().unwrap();
    let [waits, sleeps] = ["a", "b"].map(|key| client.lock(key).unwrap());
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || (waits.loss().wait_timeout(LONG), waits));
        let sleeps = scope.spawn(move || (sleeps.sleep(LONG, &CancelToken::new()), sleeps));
        store.plan.go_offline();
        client.close().unwrap_err();
        let ends = || (waits.join().unwrap().0, sleeps.join().unwrap().0);
        let told = within("whoever waits", millis(1000), ends);
        assert!(matches!(told, (None, Slept::Released)));
    });
}

#[test]
fn with_lock_of_a_request_has_its_limit() {
    on_every_store(|store| {
        let client = store.client();
        let held = store.rival().lock("k").unwrap();
        let wait = store.short_wait();
        let run = || client.request("k").wait(wait).with_lock(|guard| guard.is_held());
        let refused = answered(|| run().map_err(leasehold::WithLockError::into_error)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        held.release().unwrap();
        assert!(client.request("k").with_lock(|guard| guard.is_held()).unwrap());
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}
