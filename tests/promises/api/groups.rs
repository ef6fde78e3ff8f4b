//! Groups: every lock that has one lock id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::bench::{Bench, builder_over, loss_of};
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{ErrorKind, Filter, LockClient, LockStatus, LossReason};

use crate::api::{LONG, MINUTE, ROWS, confirms, connected, faulty, on_every_store, wait_until};
use crate::support::between::{Between, When};
use crate::support::stores::Opened;

const SECOND: Duration = Duration::from_secs(1);

fn keys(statuses: &[LockStatus]) -> Vec<&str> {
    statuses.iter().map(LockStatus::key).collect()
}

fn left(client: &LockClient, key: &str) -> Option<Duration> {
    client.get(key).unwrap().unwrap().holders()[0].remaining()
}

fn is_free(client: &LockClient, key: &str) -> bool {
    client.get(key).unwrap().unwrap().is_free()
}

/// Acquires the keys `a`, `b`, .. as data, all with lock id `g`.
fn group<const N: usize>(client: &LockClient, leases: [Duration; N]) {
    for (key, lease) in ["a", "b", "c", "d"].into_iter().zip(leases) {
        client.request(key).lock_id("g").lease(lease).acquire().unwrap();
    }
}

fn between(store: &Opened) -> (LockClient, Between) {
    let between = Between::new(store.store.clone());
    (builder_over(Arc::new(between.clone()), store.clock.clone()).connect().unwrap(), between)
}

#[test]
fn renew_extends_every_lock_of_the_group_and_no_other() {
    on_every_store(|store| {
        let (client, began) = (store.client(), Instant::now());
        group(&client, [MINUTE, MINUTE]);
        client.request("s").shared().lock_id("g").lease(MINUTE).acquire().unwrap();
        client.request("s").shared().lock_id("h").lease(MINUTE).acquire().unwrap();
        client.request("other").lock_id("gg").lease(MINUTE).acquire().unwrap();
        store.advance(MINUTE / 2);
        let renewed = store.rival().renew("g", 5 * MINUTE).unwrap();
        // Sorted by tokens: on Cloud Spanner the time of a commit can be ahead of what the next shared holder reads.
        assert!(renewed.is_sorted_by(|a, b| a.fencing_token() > b.fencing_token()), "newest first: {renewed:?}");
        assert_eq!(BTreeSet::from_iter(keys(&renewed)), BTreeSet::from(["a", "b", "s"]));
        // A slow server takes a while for all of this.
        let near = |left: Option<Duration>, lease| {
            left.is_some_and(|d| d <= lease && d + began.elapsed() > lease - MINUTE / 4)
        };
        assert!(renewed.iter().all(|status| near(status.remaining(), 5 * MINUTE)), "{renewed:?}");
        assert!(renewed.iter().all(|status| status.renewed().is_some() && status.leased_until().is_some()));
        assert!(near(left(&client, "a"), 5 * MINUTE) && near(left(&client, "b"), 5 * MINUTE));
        let sharing = client.get("s").unwrap().unwrap();
        let lease = |id| sharing.holders().iter().find(|h| h.lock_id() == id).unwrap().remaining();
        assert!(near(lease("g"), 5 * MINUTE) && near(lease("h"), MINUTE / 2), "{sharing:?}");
        assert!(near(left(&client, "other"), MINUTE / 2));
    });
}

#[test]
fn renew_moves_no_end_backwards_and_gives_no_endless_lock_an_end() {
    on_every_store(|store| {
        let client = store.client();
        group(&client, [MINUTE / 2, 10 * MINUTE]);
        client.request("endless").lock_id("g").lease_forever().acquire().unwrap();
        let renewed = client.renew("g", MINUTE).unwrap();
        assert_eq!(keys(&renewed), ["endless", "b", "a"]);
        assert_eq!(renewed[0].remaining(), None);
        assert!(renewed[1].remaining().unwrap() > 9 * MINUTE);
        assert!(renewed[2].remaining().unwrap() > MINUTE / 2);
        assert!(left(&client, "b").unwrap() > 9 * MINUTE);
        assert_eq!(left(&client, "endless"), None);
    });
}

#[test]
fn renew_is_refused_as_a_whole_when_one_lock_has_less_than_a_second_left() {
    on_every_store(|store| {
        // The second lease has half a second left, then it has expired.
        for lease in [MINUTE + SECOND / 2, MINUTE] {
            let client = store.client();
            client.unlock("g").unwrap();
            group(&client, [3 * MINUTE, lease]);
            store.advance(MINUTE);
            let error = client.renew("g", 10 * MINUTE).unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("b")));
            assert_eq!(keys(error.holders()), ["b"]);
            assert!(error.store().is_some() && error.to_string().contains("less than a second"), "{error}");
            assert!(left(&client, "a").unwrap() < 3 * MINUTE, "nothing was written");
        }
    });
}

/// The leases run on while the answer is on its way.
#[test]
fn renew_is_refused_as_a_whole_when_one_lock_has_less_than_a_second_left_once_all_are_known() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        group(&client, [60 * MINUTE, 2 * SECOND]);
        let until = || store.record("a").exclusive.unwrap().until;
        let before = until();
        faults.next(Call::Read, Fault::ApplyThenDelay(SECOND * 3 / 2));
        let error = client.renew("g", 120 * MINUTE).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("b")));
        assert_eq!(until(), before, "a was renewed");
    });
}

#[test]
fn renew_of_a_group_without_locks_is_lost() {
    on_every_store(|store| {
        let client = store.client();
        let error = client.renew("g", MINUTE).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, None));
        client.request("a").lock_id("g").lock().unwrap().release().unwrap();
        assert_eq!(client.renew("g", MINUTE).unwrap_err().kind(), ErrorKind::Lost);
        for (lock_id, lease) in [("", MINUTE), ("g", Duration::ZERO), ("g", Duration::MAX)] {
            assert_eq!(client.renew(lock_id, lease).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(client.unlock("\n").unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn renew_decides_again_about_a_lock_that_changed_meanwhile() {
    on_every_store(|store| {
        let (client, acts) = between(store);
        let lock = client.request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        let rival = store.rival();
        let beat = move || drop(rival.heartbeat(&lock, 9 * MINUTE).unwrap());
        acts.next(When::BeforeSwap, beat);
        let renewed = client.renew("g", 2 * MINUTE).unwrap();
        assert!(renewed[0].remaining().unwrap() > 8 * MINUTE, "the end of the other renewal is later");
        assert!(left(&client, "a").unwrap() > 8 * MINUTE);
    });
}

#[test]
fn renew_tells_which_lock_went_while_it_was_at_work() {
    on_every_store(|store| {
        let (client, acts) = between(store);
        let lock = client.request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        let rival = store.rival();
        acts.next(When::BeforeSwap, move || {
            rival.release(&lock).unwrap();
            rival.request("a").lease(MINUTE).acquire().unwrap();
        });
        let error = client.renew("g", 5 * MINUTE).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("a")));
        assert_eq!(error.holders()[0].owner(), "rival");
        assert!(left(&client, "a").unwrap() <= MINUTE, "the rival's lease is its own");
    });
}

#[test]
fn renew_finds_out_about_a_lost_answer_and_writes_no_second_time() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        group(&client, [MINUTE]);
        faults.next(Call::Swap, Fault::ApplyThenFail);
        let renewed = client.renew("g", 2 * MINUTE).unwrap();
        assert!(renewed[0].remaining().unwrap() > MINUTE, "{renewed:?}");
        assert_eq!(faults.count(Call::Swap), 1 + confirms(store));
        faults.next(Call::Swap, Fault::FailBefore);
        client.renew("g", 3 * MINUTE).unwrap();
        assert_eq!(faults.count(Call::Swap), 3 + confirms(store));
        assert!(left(&client, "a").unwrap() > 2 * MINUTE);
    });
}

#[test]
fn unlock_frees_the_whole_group_newest_first_and_tells_how_it_was() {
    on_every_store(|store| {
        let (client, acts) = between(store);
        group(&client, [MINUTE, SECOND, MINUTE]);
        store.rival().request("c2").shared().lock_id("g").comment("mine").lease_forever().acquire().unwrap();
        store.rival().request("c2").shared().lock_id("h").acquire().unwrap();
        client.request("other").lock_id("gg").acquire().unwrap();
        store.outlast(SECOND);
        let token = client.get("a").unwrap().unwrap().fencing_token();
        let freed = client.unlock("g").unwrap();
        assert_eq!(keys(&freed), ["c2", "c", "b", "a"]);
        assert_eq!(acts.swapped(), ["c2", "c", "b", "a"]);
        assert_eq!((freed[0].comment(), freed[0].remaining()), (Some("mine"), None));
        assert!(freed[2].is_expired() && !freed[1].is_expired());
        for key in ["a", "b", "c"] {
            assert!(client.get(key).unwrap().unwrap().holders().is_empty(), "{key}");
        }
        let sharing = client.get("c2").unwrap().unwrap();
        assert_eq!((sharing.holders().len(), sharing.holders()[0].lock_id()), (1, "h"));
        assert!(!is_free(&client, "other"));
        assert_eq!(client.get("a").unwrap().unwrap().fencing_token(), token, "tokens outlive it");
        assert!(client.unlock("g").unwrap().is_empty());
        assert!(client.unlock("never").unwrap().is_empty());
    });
}

#[test]
fn unlock_reaches_groups_of_many_pages() {
    on_every_store(|store| {
        let client = store.client();
        for n in 0..ROWS {
            client.request(&format!("k-{n}")).lock_id("g").lease(60 * MINUTE).acquire().unwrap();
        }
        let renewed = client.renew("g", 60 * MINUTE).unwrap();
        let freed = client.unlock("g").unwrap();
        assert_eq!((renewed.len(), freed.len()), (ROWS, ROWS));
        assert!(freed.is_sorted_by(|a, b| a.fencing_token() >= b.fencing_token()));
        assert!(client.unlock("g").unwrap().is_empty());
    });
}

#[test]
fn guards_learn_of_an_unlock_at_their_next_heartbeat() {
    on_every_store(|store| {
        let client = store.builder().lease(LONG).heartbeat(SECOND / 5).connect().unwrap();
        let guards = ["a", "b"].map(|key| client.request(key).lock_id("g").lock().unwrap());
        assert_eq!(keys(&store.rival().unlock("g").unwrap()), ["b", "a"]);
        for guard in &guards {
            let loss = guard.loss().wait_timeout(LONG).unwrap();
            assert!(matches!(loss.reason, LossReason::ReleasedByOther), "{loss:?}");
            assert!(!guard.is_held());
        }
    });
}

#[test]
fn unlock_decides_again_about_a_lock_that_changed_meanwhile() {
    on_every_store(|store| {
        let (client, acts) = between(store);
        let lock = client.request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        let rival = store.rival();
        acts.next(When::BeforeSwap, move || drop(rival.heartbeat(&lock, 9 * MINUTE).unwrap()));
        let freed = client.unlock("g").unwrap();
        assert!(freed[0].remaining().unwrap() > 8 * MINUTE);
        assert!(is_free(&client, "a"));
        // If another holder with the same lock id takes the place, it belongs to the group and is ended, too.
        let lock = client.request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        let rival = store.rival();
        acts.next(When::BeforeSwap, move || drop(rival.adopt(lock.clone()).unwrap().into_lock()));
        assert_eq!(client.unlock("g").unwrap()[0].owner(), "rival");
        assert!(is_free(&client, "a"));
        // A holder with another lock id is not.
        let lock = client.request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        let rival = store.rival();
        acts.next(When::BeforeSwap, move || {
            rival.release(&lock).unwrap();
            rival.request("a").acquire().unwrap();
        });
        assert!(client.unlock("g").unwrap().is_empty());
        assert!(!is_free(&client, "a"));
    });
}

#[test]
fn unlock_tells_once_what_it_freed_although_the_answer_was_lost() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        group(&client, [MINUTE, MINUTE]);
        faults.next(Call::Swap, Fault::ApplyThenFail);
        faults.next(Call::Swap, Fault::FailBefore);
        assert_eq!(keys(&client.unlock("g").unwrap()), ["b", "a"]);
        assert_eq!(faults.count(Call::Swap), 3 + confirms(store));
        assert!(is_free(&client, "a") && is_free(&client, "b"));
    });
}

#[test]
fn unlock_spares_what_was_granted_after_an_answer_was_lost() {
    on_every_store(|store| {
        let acts = Between::new(store.store.clone());
        let faults = FaultPlan::default();
        let both = Arc::new(Faulty::new(Arc::new(acts.clone()), faults.clone()));
        let client = builder_over(both, store.clock.clone()).connect().unwrap();
        group(&client, [MINUTE]);
        let rival = store.rival();
        acts.next(When::AfterSwap, move || drop(rival.request("a").lock_id("g").acquire().unwrap()));
        faults.next(Call::Swap, Fault::ApplyThenFail);
        assert_ne!(client.unlock("g").unwrap()[0].owner(), "rival");
        assert_eq!(client.get("a").unwrap().unwrap().holders()[0].owner(), "rival");
    });
}

#[test]
fn a_group_call_ends_in_time_when_others_change_the_lock_again_and_again() {
    on_every_store(|store| {
        let acts = Between::new(store.store.clone());
        let builder = || builder_over(Arc::new(acts.clone()), store.clock.clone()).request_timeout(SECOND);
        // A busy server may need longer for the first look at the group.
        let client = connected(builder);
        let lock = store.rival().request("a").lock_id("g").lease(MINUTE).acquire().unwrap();
        for n in 0..200 {
            let (rival, lock) = (store.rival(), lock.clone());
            acts.next(When::BeforeSwap, move || drop(rival.heartbeat(&lock, 2 * MINUTE + n * SECOND).unwrap()));
        }
        let mut errors = (0..20).map(|_| client.unlock("g").unwrap_err());
        let error = errors.find(|error| error.key().is_some()).expect("it comes to the lock");
        assert_eq!((error.key(), error.is_retryable()), (Some("a"), true));
        // Where a swap goes over a network, the last one may still be under way when the time is over.
        assert!(matches!(error.kind(), ErrorKind::Store | ErrorKind::Ambiguous), "{error:?}");
        assert!(acts.swapped().len() < 100);
    });
}

#[test]
fn each_lease_counts_from_its_own_turn() {
    on_every_store(|store| {
        let (client, acts) = between(store);
        group(&client, [MINUTE, MINUTE]);
        let slow = Duration::from_millis(300);
        acts.next(When::AfterSwap, move || std::thread::sleep(slow));
        let renewed = client.renew("g", 5 * MINUTE).unwrap();
        assert_eq!(keys(&renewed), ["b", "a"]);
        assert!(renewed[1].remaining().unwrap() <= 5 * MINUTE - slow, "what the answer took is gone");
        // Both ends come from one answer: between two answers, the estimate of a service's time moves by more than
        // this.
        let listed = client.list(&Filter::new().lock_id("g")).unwrap();
        let end = |key| listed.iter().find(|status| status.key() == key).unwrap().leased_until().unwrap();
        assert!(end("b") > end("a") + slow / 2);
    });
}

/// The guard expires because no answer came, but the grant remains for as long as the last renewal that arrived says.
#[test]
fn what_was_renewed_without_an_answer_is_given_up_after_the_guard_expired() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(50)).connect().unwrap();
    let guard = client.request("k").lease(10 * MINUTE).lock().unwrap();
    bench.faults.always(Call::Renew, Fault::ApplyThenFail);
    bench.advance(5 * MINUTE);
    let stands_for = || bench.rival().get("k").unwrap().unwrap().holders()[0].remaining();
    wait_until("a renewal arrives", || stands_for().is_some_and(|left| left > 9 * MINUTE));
    // All calls fail from the same moment: a heartbeat that is answered now would keep the lock.
    bench.faults.go_offline();
    bench.advance(5 * MINUTE);
    assert!(matches!(loss_of(&guard).reason, LossReason::Expired { .. }));
    drop(guard);
    assert!(!bench.rival().get("k").unwrap().unwrap().is_free());
    bench.faults.go_online();
    wait_until("it is given up", || bench.rival().get("k").unwrap().unwrap().is_free());
}

/// The guard counts by its own lease, and expires while the grant remains for hours.
#[test]
fn what_a_renewal_made_longer_is_given_up_after_the_guard_expired() {
    let bench = Bench::new();
    let client = bench.builder().drop_timeout(Duration::from_millis(50)).connect().unwrap();
    let guard = client.request("k").lock_id("g").lease(MINUTE).lock().unwrap();
    bench.rival().renew("g", 600 * MINUTE).unwrap();
    let end = std::time::SystemTime::now() + 500 * MINUTE;
    // A heartbeat reports the longer end to the guard, which still counts by the lease that it asked for.
    bench.advance(MINUTE / 2);
    wait_until("it hears of it", || guard.info().leased_until().is_some_and(|until| until > end));
    bench.faults.go_offline();
    bench.advance(MINUTE);
    assert!(matches!(loss_of(&guard).reason, LossReason::Expired { .. }));
    drop(guard);
    assert!(!bench.rival().get("k").unwrap().unwrap().is_free());
    bench.faults.go_online();
    wait_until("it is given up", || bench.rival().get("k").unwrap().unwrap().is_free());
}
