//! What an operator does: frees what others hold, previews a purge, and asks what is wrong.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::bench::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::{Swapped, Which};
use leasehold::{ErrorKind, Filter, LossReason};

use crate::api::{LONG, MINUTE, ROWS, confirms, faulty, on_every_store};
use crate::support::between::{Between, When};
#[cfg(feature = "sqlite")]
use crate::support::room::room;
use crate::support::stores::{Opened, soon};

/// The first try did nothing, so it can't have ended the hold.
#[test]
fn a_release_that_is_tried_again_says_that_others_have_taken_the_lock() {
    on_every_store(|store| {
        let ((client, faults), rival) = (faulty(store), store.rival());
        for taken_again in [false, true] {
            let guard = client.lock("k").unwrap();
            faults.next(Call::Release, Fault::Refuse);
            let failed = guard.release().unwrap_err();
            rival.force_release("k").unwrap();
            let taken = taken_again.then(|| rival.lock("k").unwrap());
            assert_eq!(failed.into_guard().release().unwrap_err().error().kind(), ErrorKind::Lost, "{taken_again}");
            drop(taken);
        }
    });
}

#[test]
#[cfg(feature = "sqlite")]
fn a_store_whose_table_is_missing_is_reached_and_its_schema_is_wrong() {
    let folder = room().unwrap();
    let file = folder.path().join("locks.db");
    let client = leasehold::sqlite::builder(&file).connect().unwrap();
    leasehold::sqlite::rusqlite::Connection::open(&file).unwrap().execute_batch("DROP TABLE locks").unwrap();
    let found = client.diagnose().unwrap();
    assert!(found.round_trip.is_ok(), "{found:?}");
    assert_eq!(found.schema.as_ref().unwrap_err().kind(), ErrorKind::Schema);
    let missing = |error: &leasehold::Error| error.to_string().contains("the table `locks` is missing");
    assert!(found.rights.len() == 6 && found.rights.iter().all(|right| right.outcome.as_ref().is_err_and(missing)));
}

#[test]
fn a_forced_release_frees_every_holder_and_no_other_key() {
    on_every_store(|store| {
        let client = store.client();
        assert!(client.force_release("k").unwrap().is_empty(), "nobody ever held it");
        client.request("k").shared().owner("ann").lease(MINUTE).acquire().unwrap();
        client.request("k").shared().owner("bob").lease_forever().acquire().unwrap();
        client.request("kk").lease(MINUTE).acquire().unwrap();
        let token = client.get("k").unwrap().unwrap().fencing_token();
        let freed = store.rival().force_release("k").unwrap();
        let mut owners: Vec<&str> = freed.iter().map(|status| status.owner()).collect();
        owners.sort();
        assert_eq!(owners, ["ann", "bob"]);
        assert!(client.force_release("k").unwrap().is_empty());
        assert!(!client.get("kk").unwrap().unwrap().is_free());
        assert!(client.request("k").acquire().unwrap().fencing_token() > token, "tokens rise over it");
    });
}

#[test]
fn a_forced_release_frees_the_expired_too() {
    on_every_store(|store| {
        let client = store.client();
        client.request("k").lease(MINUTE).acquire().unwrap();
        store.outlast(MINUTE);
        assert!(client.force_release("k").unwrap()[0].is_expired());
        assert!(client.get("k").unwrap().unwrap().holders().is_empty());
    });
}

#[test]
fn a_guard_is_told_of_a_forced_release() {
    on_every_store(|store| {
        let client = store.builder().heartbeat(Duration::from_millis(150)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        store.rival().force_release("k").unwrap();
        let loss = guard.loss().wait_timeout(LONG).expect("its next heartbeat notices");
        assert!(matches!(loss.reason, LossReason::ReleasedByOther), "{loss:?}");
    });
}

#[test]
fn a_forced_release_is_settled_when_its_answer_was_lost() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        client.request("k").owner("ann").lease(MINUTE).acquire().unwrap();
        faults.next(Call::Swap, Fault::ApplyThenFail);
        faults.next(Call::Swap, Fault::FailBefore);
        assert_eq!(client.force_release("k").unwrap()[0].owner(), "ann");
        // Where a confirming swap is needed, it meets the second fault.
        assert_eq!(faults.count(Call::Swap), 1 + 2 * confirms(store), "it was not sent again");
    });
}

#[test]
fn a_forced_release_spares_who_came_after_it() {
    on_every_store(|store| {
        let acts = Between::new(store.store.clone());
        let faults = FaultPlan::default();
        let both = Arc::new(Faulty::new(Arc::new(acts.clone()), faults.clone()));
        let client = builder_over(both, store.clock.clone()).connect().unwrap();
        client.request("k").owner("ann").lease(MINUTE).acquire().unwrap();
        let (rival, granted) = (store.rival(), Arc::new(Mutex::new(None)));
        let (renews, renewed) = (store.rival(), granted.clone());
        acts.next(When::AfterSwap, move || *granted.lock().unwrap() = Some(rival.request("k").acquire().unwrap()));
        acts.next(When::BeforeSwap, || ());
        // Where a confirming swap is needed, the row has changed by then.
        acts.next(When::BeforeSwap, move || {
            renews.heartbeat(renewed.lock().unwrap().as_ref().unwrap(), 30 * MINUTE).unwrap();
        });
        faults.next(Call::Swap, Fault::ApplyThenFail);
        assert_eq!(client.force_release("k").unwrap()[0].owner(), "ann");
        assert_eq!(client.get("k").unwrap().unwrap().holders()[0].owner(), "rival");
    });
}

/// The read that would settle it is not answered either, and says nothing about what was written.
#[test]
fn a_forced_release_that_may_be_done_is_told_as_that() {
    on_every_store(|store| {
        for (fault, is_retryable) in [(Fault::FailBefore, true), (Fault::Refuse, false)] {
            may_be_done(store, &fault, is_retryable);
        }
    });
}

fn may_be_done(store: &Opened, look: &Fault, is_retryable: bool) {
    let faults = FaultPlan::default();
    let acts = Between::new(Arc::new(Faulty::new(store.store.clone(), faults.clone())));
    let client = builder_over(Arc::new(acts.clone()), store.clock.clone()).connect().unwrap();
    store.rival().request("k").lease(MINUTE).acquire().unwrap();
    let (gone, look) = (faults.clone(), look.clone());
    acts.next(When::AfterSwap, move || gone.always(Call::Read, look.clone()));
    faults.next(Call::Swap, Fault::ApplyThenFail);
    let error = client.force_release("k").unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, is_retryable), "{error:?}");
    faults.heal();
    assert!(client.get("k").unwrap().unwrap().is_free());
}

/// A release before the least time is over keeps the lock held, under another grant id.
#[test]
fn a_forced_release_that_did_not_happen_frees_what_its_holder_kept_meanwhile() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let acts = Between::new(Arc::new(Faulty::new(store.store.clone(), faults.clone())));
        let client = builder_over(Arc::new(acts.clone()), store.clock.clone()).connect().unwrap();
        let mut guard = Some(store.rival().request("k").hold_at_least(60 * MINUTE).lock().unwrap());
        faults.next(Call::Swap, Fault::LostBefore);
        acts.next(When::AfterSwap, move || drop(guard.take().map(leasehold::LockGuard::release)));
        assert_eq!(client.force_release("k").unwrap()[0].owner(), "rival");
        assert!(client.get("k").unwrap().unwrap().holders().is_empty(), "it stands for an hour");
    });
}

#[test]
fn one_key_is_unlocked_by_its_lock_id() {
    on_every_store(|store| {
        let client = store.client();
        assert!(client.unlock_key("a", "g").unwrap().is_empty(), "nobody ever held it");
        for key in ["a", "b"] {
            client.request(key).shared().lock_id("g").lease(MINUTE).acquire().unwrap();
        }
        client.request("a").shared().owner("other").lock_id("h-is-a-secret").lease(MINUTE).acquire().unwrap();
        let freed = store.rival().unlock_key("a", "g").unwrap();
        assert_eq!(freed.iter().map(|status| status.lock_id()).collect::<Vec<_>>(), ["g"]);
        assert_eq!(client.get("b").unwrap().unwrap().holders().len(), 1);
        let error = client.unlock_key("a", "g").unwrap_err();
        assert_eq!((error.kind(), error.holders()[0].owner()), (ErrorKind::Held, "other"));
        assert!(!format!("{error} {error:?}").contains("secret"), "a lock id is a capability");
        client.unlock_key("a", "h-is-a-secret").unwrap();
        assert!(client.unlock_key("a", "g").unwrap().is_empty());
    });
}

#[test]
fn wrong_arguments_are_refused() {
    on_every_store(|store| {
        let client = store.client();
        for error in [
            client.force_release("").unwrap_err(),
            client.unlock_key("a\n", "g").unwrap_err(),
            client.unlock_key("a", "").unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.store().is_some(), "{error:?}");
        }
        client.close().unwrap();
        assert_eq!(client.force_release("k").unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(client.unlock_key("k", "g").unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(client.purge_preview(MINUTE).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(client.diagnose().unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_preview_tells_what_a_purge_would_do_and_writes_nothing() {
    on_every_store(|store| {
        let client = store.client();
        client.request("short").lease(MINUTE).acquire().unwrap();
        client.request("long").lease(10 * MINUTE).acquire().unwrap();
        store.outlast(MINUTE);
        assert!(client.purge_preview(MINUTE).unwrap().freed.is_empty(), "not for so long");
        let before = store.record("short");
        let preview = client.purge_preview(Duration::ZERO).unwrap();
        assert_eq!(store.record("short"), before);
        let keys = |freed: &[leasehold::LockStatus]| freed.iter().map(|s| s.key().to_owned()).collect::<Vec<_>>();
        assert_eq!((keys(&preview.freed), preview.deleted), (vec!["short".to_owned()], 0));
        let purged = client.purge(Duration::ZERO).unwrap();
        assert_eq!((keys(&purged.freed), purged.deleted), (keys(&preview.freed), preview.deleted));
        assert!(client.purge_preview(Duration::ZERO).unwrap().freed.is_empty());
    });
}

/// Gives the row of this key a newer format. Returns `false` if the store can't: the format belongs to the whole store.
fn can_be_newer(store: &Opened, key: &str) -> bool {
    let seen = store.get(key);
    let mut newer = seen.record.clone();
    newer.version += 1;
    newer.format.0 += 1;
    let swapped = store.store.swap(&seen, Some(&newer), &soon()).unwrap();
    assert!(matches!(swapped, Swapped::Done), "{swapped:?}");
    store.record(key).format.0 > seen.record.format.0
}

/// In a newer format the fields may mean something else, even "free".
#[test]
fn a_row_of_a_newer_format_is_refused_to_who_asks_for_it_and_left_out_of_lists() {
    on_every_store(|store| {
        let client = store.client();
        for key in ["a", "newer", "z"] {
            client.request(key).lock_id("of all").lease(MINUTE).acquire().unwrap();
        }
        if !can_be_newer(store, "newer") {
            return;
        }
        let before = store.record("newer");
        let answers = [
            client.get("newer").map(drop),
            client.try_lock("newer").map(drop),
            client.force_release("newer").map(drop),
            client.renew("of all", MINUTE).map(drop),
            client.unlock("of all").map(drop),
        ];
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Schema, Some("newer")), "{error}");
            assert!(error.to_string().contains("this version of leasehold reads up to"), "{error}");
        }
        for filter in [Filter::new(), Filter::new().lock_id("of all")] {
            let listed = client.list(&filter).unwrap();
            let mut keys: Vec<&str> = listed.iter().map(|status| status.key()).collect();
            keys.sort_unstable();
            assert_eq!(keys, ["a", "z"]);
        }
        assert_eq!(store.record("newer"), before, "it stays as it is");
    });
}

#[test]
fn a_purge_passes_over_rows_of_a_newer_format() {
    on_every_store(|store| {
        let client = store.client();
        for key in ["a", "newer", "z"] {
            client.request(key).lease(MINUTE).acquire().unwrap();
        }
        store.outlast(MINUTE);
        if !can_be_newer(store, "newer") {
            return;
        }
        let keys = |purged: &leasehold::Purged| purged.freed.iter().map(|s| s.key().to_owned()).collect::<Vec<_>>();
        assert_eq!(keys(&client.purge_preview(Duration::ZERO).unwrap()), ["a", "z"]);
        let before = store.record("newer");
        assert_eq!(keys(&client.purge(Duration::ZERO).unwrap()), ["a", "z"]);
        assert_eq!(store.record("newer"), before, "it stays as it is");
    });
}

#[test]
fn a_purge_that_is_not_answered_is_asked_for_again() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        for key in ["a", "b"] {
            client.request(key).lease(MINUTE).acquire().unwrap();
        }
        store.outlast(MINUTE);
        faults.next(Call::Swap, Fault::LostBefore);
        faults.next(Call::Swap, Fault::ApplyThenFail);
        assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 2);
        assert!(faults.unmet() == 0 && client.list(&Filter::new()).unwrap().is_empty());
    });
}

/// The purge could free nothing, although the expired lock can be read.
#[test]
#[cfg(feature = "sqlite")]
fn a_purge_says_that_the_store_lets_no_row_be_written() {
    let folder = room().unwrap();
    let file = folder.path().join("locks.db");
    let client = leasehold::sqlite::builder(&file).connect().unwrap();
    client.request("k").lease(Duration::from_millis(100)).acquire().unwrap();
    let freed = |purged: leasehold::Purged| purged.freed.len();
    crate::support::wait::wait_until("it has expired", || {
        client.purge_preview(Duration::ZERO).is_ok_and(|preview| freed(preview) == 1)
    });
    let theirs = leasehold::sqlite::rusqlite::Connection::open(&file).unwrap();
    theirs.execute_batch("CREATE TRIGGER t BEFORE UPDATE ON locks BEGIN SELECT RAISE(IGNORE); END").unwrap();
    let error = client.purge(Duration::ZERO).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("trigger"), "{error}");
    theirs.execute_batch("DROP TRIGGER t").unwrap();
    assert_eq!(freed(client.purge(Duration::ZERO).unwrap()), 1);
}

#[test]
fn a_purge_goes_page_by_page_and_only_as_far_as_it_is_asked() {
    on_every_store(|store| {
        let client = store.client();
        for n in 0..ROWS {
            client.request(&format!("k{n}")).lease(MINUTE).acquire().unwrap();
        }
        store.outlast(MINUTE);
        let left = || client.list(&Filter::new()).unwrap().len();
        let preview: Vec<_> =
            client.purge_pages(Duration::ZERO).preview().map(|page| page.unwrap().freed.len()).collect();
        assert_eq!((preview.iter().sum::<usize>(), left()), (ROWS, ROWS));
        let mut pages = client.purge_pages(Duration::ZERO);
        let first = pages.next().unwrap().unwrap().freed.len();
        assert!((1..ROWS).contains(&first), "{first}");
        assert_eq!(left(), ROWS - first);
        assert_eq!(pages.map(|page| page.unwrap().freed.len()).sum::<usize>(), ROWS - first);
        assert_eq!(left(), 0);
    });
}

#[test]
fn a_purge_says_what_it_did_before_the_store_refused() {
    on_every_store(|store| {
        let between = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), between.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        for key in ["a", "b", "c"] {
            client.request(key).lease(MINUTE).acquire().unwrap();
        }
        store.outlast(MINUTE);
        between.next(Call::Swap, Fault::Delay(Duration::ZERO));
        between.next(Call::Swap, Fault::Refuse);
        let mut pages = client.purge_pages(Duration::ZERO);
        assert_eq!(pages.next().unwrap().unwrap().freed.len(), 1);
        assert_eq!(pages.next().unwrap().unwrap_err().kind(), ErrorKind::Permission);
        assert!(pages.next().is_none());
        assert_eq!(client.list(&Filter::new()).unwrap().len(), 2);
    });
}

#[test]
fn a_diagnosis_of_a_good_store_finds_nothing_and_leaves_nothing() {
    on_every_store(|store| {
        let client = store.client();
        let diagnosis = client.diagnose().unwrap();
        assert!(diagnosis.is_well(), "{:?}", diagnosis.problem());
        assert_eq!(diagnosis.store, store.store.info().label);
        assert!(diagnosis.round_trip.unwrap() < LONG);
        // The clock of the tests is this host's, so the difference is small.
        assert!(diagnosis.clock_difference_ms.unwrap().abs() < 2_000, "{:?}", diagnosis.clock_difference_ms);
        assert_eq!(diagnosis.rights.len(), 6);
        assert!(store.all(&Which::Prefix(String::new())).is_empty());
        assert!(client.list(&Filter::new()).unwrap().is_empty());
    });
}

#[test]
fn a_diagnosis_names_what_is_denied() {
    on_every_store(|store| {
        let cases = [
            // If acquiring is denied, no row was made for the other checks.
            (Call::Acquire, &["acquire a lock", "renew a lock", "release a lock", "purge: delete a row"][..]),
            (Call::Renew, &["renew a lock"]),
            (Call::Release, &["release a lock"]),
            (Call::Swap, &["purge: delete a row"]),
        ];
        for (call, what) in cases {
            let (client, faults) = faulty(store);
            faults.always(call, Fault::Refuse);
            let diagnosis = client.diagnose().unwrap();
            let denied: Vec<&str> = diagnosis.rights.iter().filter(|r| r.outcome.is_err()).map(|r| r.what).collect();
            assert_eq!(denied, what);
            assert!(!diagnosis.is_well());
        }
        let (client, faults) = faulty(store);
        faults.always(Call::Read, Fault::FailBefore);
        let diagnosis = client.diagnose().unwrap();
        assert_eq!(diagnosis.problem().unwrap().kind(), ErrorKind::Store);
        assert!(diagnosis.round_trip.is_err() && diagnosis.clock_difference_ms.is_none());
    });
}
