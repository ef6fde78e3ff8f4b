//! Leases that a name holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::support::bench::{Bench, builder_over};
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{CancelToken, ClientBuilder, Error, ErrorKind, LeaseStatus, Leases, LossReason};

use crate::api::{LONG, MINUTE, on_every_store, wait_until};
use crate::support::stores::Opened;

pub(super) const HOUR: Duration = Duration::from_secs(3600);
/// A lease that heartbeats keep alive even on a busy machine: when one is due, two thirds of it minus its margin are
/// left.
const LEASE: Duration = Duration::from_secs(12);

pub(super) fn leases(store: &Opened) -> Leases {
    store.client().leases("space")
}

fn faulty(store: &Opened) -> (Leases, FaultPlan) {
    faulty_by(store, |builder| builder)
}

fn faulty_by(store: &Opened, set: fn(ClientBuilder) -> ClientBuilder) -> (Leases, FaultPlan) {
    let faults = FaultPlan::default();
    let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
    (set(builder_over(faulty, store.clock.clone())).connect().unwrap().leases("space"), faults)
}

/// The lease that a call found when it failed with kind `InvalidLease`.
#[track_caller]
pub(super) fn found(impossible: Result<impl std::fmt::Debug, Error>) -> Option<LeaseStatus> {
    let error = impossible.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidLease, "{error}");
    assert!(!error.is_retryable());
    error.lease().cloned()
}

fn near(left: Duration, lease: Duration) -> bool {
    left <= lease && left > lease - MINUTE / 4
}

#[test]
fn a_claim_fails_while_the_lease_stands_even_expired_even_for_its_holder() {
    on_every_store(|store| {
        let (ours, theirs) = (leases(store), store.rival().leases("space"));
        assert_eq!(ours.namespace(), "space");
        let claimed = ours.claim("app", "unit/0", MINUTE).unwrap();
        assert_eq!((claimed.namespace(), claimed.name(), claimed.holder()), ("space", "app", "unit/0"));
        assert!(near(claimed.remaining(), MINUTE) && !claimed.is_expired() && claimed.extended().is_none());
        assert!(claimed.expires() > SystemTime::now() && claimed.claimed() <= SystemTime::now());
        for holder in ["unit/1", "unit/0"] {
            let stands = found(theirs.claim("app", holder, MINUTE)).unwrap();
            assert_eq!((stands.holder(), stands.fencing_token()), ("unit/0", claimed.fencing_token()));
        }
        store.outlast(MINUTE);
        for holder in ["unit/1", "unit/0"] {
            assert!(found(theirs.claim("app", holder, MINUTE)).unwrap().is_expired());
        }
        theirs.expire("app").unwrap();
        let next = theirs.claim("app", "unit/1", MINUTE).unwrap();
        assert!(next.fencing_token() > claimed.fencing_token(), "tokens rise over claims");
    });
}

#[test]
fn an_extension_needs_the_holder_and_never_shortens() {
    on_every_store(|store| {
        let leases = leases(store);
        assert_eq!(found(leases.extend("app", "unit/0", MINUTE)).map(|_| ()), None);
        let claimed = leases.claim("app", "unit/0", 5 * MINUTE).unwrap();
        assert_eq!(found(leases.extend("app", "unit/1", MINUTE)).unwrap().holder(), "unit/0");
        let longer = leases.extend("app", "unit/0", MINUTE).unwrap();
        assert!(near(longer.remaining(), 5 * MINUTE), "{longer:?}");
        let extended = leases.extend("app", "unit/0", 10 * MINUTE).unwrap();
        assert!(near(extended.remaining(), 10 * MINUTE) && extended.extended().is_some());
        assert_eq!(extended.fencing_token(), claimed.fencing_token());
        // Nobody has expired the lease, so it still belongs to its holder.
        store.outlast(10 * MINUTE);
        assert!(leases.get("app").unwrap().unwrap().is_expired());
        assert!(near(leases.extend("app", "unit/0", MINUTE).unwrap().remaining(), MINUTE));
    });
}

#[test]
fn two_extensions_race_harmlessly() {
    on_every_store(|store| {
        let leases = leases(store);
        leases.claim("app", "unit/0", MINUTE).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for n in 1..=4 {
                let leases = leases.clone();
                scope.spawn(move || {
                    let extended = leases.extend("app", "unit/0", n * MINUTE).unwrap();
                    assert!(extended.remaining() + began.elapsed() > n * MINUTE - MINUTE / 4, "{extended:?}");
                });
            }
        });
        // A slow server takes a while for all of them.
        let left = leases.get("app").unwrap().unwrap().remaining();
        assert!(left <= 4 * MINUTE && left + began.elapsed() > 4 * MINUTE - MINUTE / 4, "{left:?}");
    });
}

#[test]
fn it_is_expired_only_after_its_time() {
    on_every_store(|store| {
        let leases = leases(store);
        assert!(found(leases.expire("app")).is_none(), "expiring what is free fails");
        leases.claim("app", "unit/0", MINUTE).unwrap();
        assert_eq!(found(leases.expire("app")).unwrap().holder(), "unit/0");
        store.advance(MINUTE / 2);
        leases.extend("app", "unit/0", MINUTE).unwrap();
        store.advance(MINUTE / 2);
        assert!(!found(leases.expire("app")).unwrap().is_expired(), "the extension counts");
        store.outlast(MINUTE / 2);
        leases.expire("app").unwrap();
        assert!(leases.get("app").unwrap().is_none());
        assert!(found(leases.expire("app")).is_none());
    });
}

#[test]
fn a_pin_keeps_it_and_says_whose_it_is() {
    on_every_store(|store| {
        let leases = leases(store);
        // A pin made before the claim remains during the claim.
        leases.pin("app", "upgrade").unwrap();
        leases.claim("app", "unit/0", MINUTE).unwrap();
        leases.pin("app", "machine \"7\"").unwrap();
        leases.pin("app", "machine \"7\"").unwrap();
        let both: BTreeSet<String> = ["machine \"7\"", "upgrade"].map(str::to_owned).into();
        assert_eq!(leases.pinned_by("app").unwrap(), both);
        store.outlast(MINUTE);
        let error = leases.expire("app").unwrap_err();
        assert!(error.to_string().contains("\"upgrade\""), "{error}");
        assert_eq!(*error.lease().unwrap().pinned_by(), both);
        leases.unpin("app", "upgrade").unwrap();
        assert!(found(leases.expire("app")).is_some());
        leases.unpin("app", "machine \"7\"").unwrap();
        leases.unpin("app", "nobody").unwrap();
        leases.expire("app").unwrap();
        assert!(leases.pinned_by("app").unwrap().is_empty());
    });
}

#[test]
fn the_holder_revokes_it_early_whoever_pins_it() {
    on_every_store(|store| {
        let leases = leases(store);
        assert!(found(leases.revoke("app", "unit/0")).is_none());
        leases.claim("app", "unit/0", MINUTE).unwrap();
        leases.pin("app", "upgrade").unwrap();
        assert_eq!(found(leases.revoke("app", "unit/1")).unwrap().holder(), "unit/0");
        leases.revoke("app", "unit/0").unwrap();
        assert!(leases.get("app").unwrap().is_none());
        leases.claim("app", "unit/1", MINUTE).unwrap();
        assert_eq!(leases.pinned_by("app").unwrap().len(), 1, "the pin is the name's");
    });
}

#[test]
fn a_listing_has_the_namespace_by_name_and_a_refresh_tells_a_new_claim() {
    on_every_store(|store| {
        let (leases, other) = (leases(store), store.client().leases("space2"));
        for name in ["b", "a", "c"] {
            leases.claim(name, "unit/0", MINUTE).unwrap();
            other.claim(name, "unit/9", MINUTE).unwrap();
        }
        leases.revoke("c", "unit/0").unwrap();
        let all = leases.list().unwrap();
        assert_eq!(
            all.iter().map(|lease| (lease.name(), lease.holder())).collect::<Vec<_>>(),
            [("a", "unit/0"), ("b", "unit/0")]
        );
        let [mut a, mut b] = <[LeaseStatus; 2]>::try_from(all).unwrap();
        leases.extend("a", "unit/0", 5 * MINUTE).unwrap();
        leases.refresh(&mut a).unwrap();
        // The lease's own namespace counts, not that of the caller.
        store.client().leases("another").refresh(&mut a).unwrap();
        assert!(near(a.remaining(), 5 * MINUTE));
        leases.revoke("b", "unit/0").unwrap();
        assert!(found(leases.refresh(&mut b)).is_none());
        leases.claim("b", "unit/1", MINUTE).unwrap();
        assert_eq!(found(leases.refresh(&mut b)).unwrap().holder(), "unit/1");
        assert_eq!(b.holder(), "unit/0", "what can't be refreshed stays");
    });
}

#[test]
fn leases_and_locks_never_meet() {
    on_every_store(|store| {
        let client = store.client();
        let texts = ["a", "a/b", "b", "/", "a b", "ü", "%01", "\\u{1}", "time", "lease", "a.b", "$a"];
        for namespace in texts {
            for name in texts {
                client.leases(namespace).claim(name, &format!("{namespace} {name}"), MINUTE).unwrap();
            }
        }
        for namespace in texts {
            let all = client.leases(namespace).list().unwrap();
            assert_eq!(all.len(), texts.len(), "{namespace:?}");
            assert!(all.iter().all(|lease| lease.holder() == format!("{namespace} {}", lease.name())));
        }
        let _lock = client.lock("a").unwrap();
        assert_eq!(client.list(&leasehold::Filter::new()).unwrap().len(), 1, "a listing of locks has no leases");
        store.outlast(40 * 24 * 3600 * Duration::from_secs(1));
        client.purge(Duration::ZERO).unwrap();
        assert_eq!(client.leases("a").list().unwrap().len(), texts.len(), "a purge ends no lease");
        assert!(client.unlock("a").unwrap().is_empty());
    });
}

#[test]
fn bad_input_is_named_and_nothing_is_written() {
    on_every_store(|store| {
        let client = store.client();
        let leases = client.leases("space");
        // One byte more than a row has room for, next to the namespace and two marks.
        let long = "x".repeat(1024 - 7 + 1);
        let named = |error: Error, field: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains(field), "{error} does not name {field}");
        };
        for bad in ["", "a\u{1}b", "a\nb"] {
            named(client.leases(bad).claim("a", "h", MINUTE).unwrap_err(), "namespace is");
            named(client.leases(bad).list().unwrap_err(), "namespace is");
            named(leases.claim(bad, "h", MINUTE).unwrap_err(), "name is");
            named(leases.claim("a", bad, MINUTE).unwrap_err(), "holder is");
            named(leases.pin("a", bad).unwrap_err(), "entity is");
        }
        named(leases.claim(&long, "h", MINUTE).unwrap_err(), "together with the namespace");
        assert!(leases.get(&long[1..]).unwrap().is_none());
        for bad in [Duration::ZERO, Duration::from_millis(1), 31 * 24 * 60 * MINUTE] {
            named(leases.claim("a", "h", bad).unwrap_err(), "duration is");
        }
        assert!(leases.list().unwrap().is_empty());
        let error = leases.expire("a").unwrap_err();
        assert!(error.to_string().starts_with("lease \"space/a\" on "), "{error}");
        assert_eq!(error.key(), Some("a"));
    });
}

/// The promised lease counts from the start of the call, even if the answers are late.
#[test]
fn what_is_promised_holds_when_answers_come_late_or_not_at_all() {
    on_every_store(|store| {
        // An answer that is late on purpose can be even later on a busy machine.
        let (leases, faults) = faulty_by(store, |builder| builder.request_timeout(LONG));
        let late = Duration::from_secs(2);
        let lease = Duration::from_secs(10);
        let promised = |call: &dyn Fn() -> Result<LeaseStatus, Error>| {
            let started = store.clock.now();
            call().unwrap();
            let left = leases.get("app").unwrap().unwrap().remaining();
            let passed = store.clock.now().since(started);
            assert!(left + passed + store.slack >= lease, "{left:?} are left {passed:?} after the start");
        };
        let soon = Duration::from_millis(50);
        for (call, fault) in [
            (Call::Swap, Fault::ApplyThenDelay(late)),
            (Call::Swap, Fault::Delay(soon)),
            (Call::Swap, Fault::ApplyThenFail),
            (Call::Swap, Fault::FailBefore),
            (Call::Swap, Fault::LostBefore),
            (Call::Read, Fault::ApplyThenDelay(soon)),
            (Call::Read, Fault::FailBefore),
        ] {
            faults.next(call, fault.clone());
            promised(&|| leases.claim("app", "unit/0", lease));
            store.advance(Duration::from_secs(3));
            faults.next(call, fault.clone());
            promised(&|| leases.extend("app", "unit/0", lease));
            store.outlast(lease);
            if !matches!(fault, Fault::ApplyThenDelay(_)) {
                faults.next(call, fault.clone());
            }
            leases.expire("app").unwrap();
            assert!(leases.get("app").unwrap().is_none());
        }
    });
}

#[test]
fn a_wait_ends_with_the_lease_or_its_cancel() {
    on_every_store(|store| {
        let leases = leases(store);
        leases.wait_until_expired("app", &CancelToken::new()).unwrap();
        let lease = store.short_lease().max(Duration::from_secs(1));
        let asked = Instant::now();
        leases.claim("app", "unit/0", lease).unwrap();
        leases.wait_until_expired("app", &CancelToken::new()).unwrap();
        // A store whose time is an estimate may find a better one meanwhile, and end the wait a little early.
        let (early, took) = (store.slack.min(Duration::from_millis(100)), asked.elapsed());
        assert!(took >= lease - early, "{took:?} on {:?}", store.store.info());
        leases.expire("app").unwrap();
        leases.claim("app", "unit/0", LONG).unwrap();
        let cancel = CancelToken::new();
        cancel.cancel();
        assert_eq!(leases.wait_until_expired("app", &cancel).unwrap_err().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_wait_outlasts_trouble_with_the_store_but_not_its_no() {
    on_every_store(|store| {
        let (leases, faults) = faulty(store);
        let wait = |cancel: &CancelToken| leases.wait_until_expired("app", cancel);
        // It hangs for a whole request timeout, so a mere repeat within the call is not enough.
        faults.next(Call::Read, Fault::HangBefore);
        wait(&CancelToken::new()).unwrap();
        faults.next(Call::Read, Fault::Refuse);
        assert_eq!(wait(&CancelToken::new()).unwrap_err().kind(), ErrorKind::Permission);
        faults.always(Call::Read, Fault::HangBefore);
        let (cancel, before) = (CancelToken::new(), faults.count(Call::Read));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait(&cancel));
            wait_until("it is read", || faults.count(Call::Read) > before);
            cancel.cancel();
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        });
    });
}

/// The two requests of a change share one request timeout.
#[test]
fn no_change_of_a_lease_takes_longer_than_a_request_may() {
    let bench = Bench::new();
    let timeout = Duration::from_secs(2);
    let client = bench.builder().request_timeout(timeout).connect().unwrap();
    let leases = client.leases("space");
    leases.claim("app", "unit/0", MINUTE).unwrap();
    client.request("k").lock_id("group").acquire().unwrap();
    let changes: [(&str, &dyn Fn() -> bool); 5] = [
        ("extend", &|| leases.extend("app", "unit/0", 2 * MINUTE).is_err()),
        ("revoke", &|| leases.revoke("app", "unit/0").is_err()),
        ("pin", &|| leases.pin("app", "entity").is_err()),
        ("force_release", &|| client.force_release("k").is_err()),
        ("unlock_key", &|| client.unlock_key("k", "group").is_err()),
    ];
    for (what, change) in changes {
        bench.faults.next(Call::Read, Fault::Delay(timeout.mul_f64(0.9)));
        bench.faults.next(Call::Swap, Fault::HangBefore);
        assert!(bench.at.within(timeout, change), "{what}");
        bench.faults.heal();
    }
}

#[test]
fn a_keeper_extends_and_its_drop_ends_nothing() {
    on_every_store(|store| {
        let (leases, lease) = (leases(store), LEASE);
        let claimed = leases.claim("app", "unit/0", lease).unwrap();
        assert!(found(leases.keep("app", "unit/1", lease)).is_some());
        let keeper = leases.keep("app", "unit/0", lease).unwrap();
        assert_eq!((keeper.name(), keeper.fencing_token()), ("app", claimed.fencing_token()));
        wait_until("it is extended in the store", || {
            leases.get("app").unwrap().unwrap().expires() > claimed.expires() + lease / 2
        });
        assert!(keeper.is_held() && keeper.loss().get().is_none());
        // Each extension leaves more than half of the lease, and another one always follows, so the test need not see
        // each.
        wait_until("the keeper knows of it", || keeper.remaining() > lease / 2);
        assert!(keeper.remaining() <= lease, "{:?}", keeper.remaining());
        assert_eq!(format!("{keeper:?}"), r#"LeaseKeeper { name: "app", is_held: true }"#);
        drop(keeper);
        assert_eq!(leases.get("app").unwrap().unwrap().holder(), "unit/0");
        // Closing the client does not end it either.
        let client = store.client();
        let keeper = client.leases("space").keep("app", "unit/0", MINUTE).unwrap();
        // A caller that releases all that a client holds must not end the lease, so `held` does not list it.
        assert!(client.held().is_empty());
        client.close().unwrap();
        assert!(!keeper.is_held());
        assert_eq!(keeper.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(leases.get("app").unwrap().unwrap().holder(), "unit/0");
    });
}

#[test]
fn a_keeper_tells_the_loss() {
    on_every_store(|store| {
        let leases = leases(store);
        leases.claim("app", "unit/0", LEASE).unwrap();
        let keeper = leases.keep("app", "unit/0", LEASE).unwrap();
        leases.revoke("app", "unit/0").unwrap();
        let loss = keeper.loss().wait_timeout(LONG).expect("the loss is told");
        assert!(matches!(loss.reason, LossReason::ReleasedByOther), "{loss:?}");
        assert_eq!(loss.key, "space/app");
        assert_eq!(keeper.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
    });
}
