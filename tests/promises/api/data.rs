//! Locks as data: acquire, heartbeat, release, get, held, purge, schema.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{ErrorKind, Event, Lock, LockClient, Mutex, Observer};

use crate::api::{LONG, MINUTE, faulty, on_every_store};
#[cfg(feature = "sqlite")]
use crate::support::room::room;
use crate::support::stores::unique;

#[test]
fn acquire_gives_data_that_nothing_renews() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").owner("o").comment("c").lock_id("g").lease(MINUTE).acquire().unwrap();
        assert_eq!((lock.key(), lock.owner(), lock.comment(), lock.lock_id()), ("k", "o", Some("c"), "g"));
        let error = store.rival().request("k").acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        assert_eq!(error.holders()[0].owner(), "o");
        assert!(error.to_string().contains("\"o\""), "{error}");
        assert!(client.held().is_empty(), "held() lists guards");
        store.outlast(MINUTE);
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}

#[test]
fn a_heartbeat_extends_also_what_is_expired_but_never_backwards() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        store.advance(2 * MINUTE);
        let lock = client.heartbeat(&lock, 10 * MINUTE).unwrap();
        let asked = Instant::now();
        let shorter = client.heartbeat(&lock, MINUTE).unwrap();
        // The reported end counts from before the request, so it can be too early by the time that this took.
        let off = Duration::from_secs(1) + asked.elapsed();
        let left = client.get("k").unwrap().unwrap().holders()[0].remaining().unwrap();
        assert!(left > 9 * MINUTE, "{left:?}");
        assert!(shorter.leased_until() >= lock.leased_until().map(|end| end - off));
        assert_eq!(lock.fencing_token(), shorter.fencing_token());
    });
}

/// How late an answer, or the end of an observer's call, is.
const LATE: Duration = Duration::from_secs(1);
/// More than the clocks of this host and of a server drift apart meanwhile.
const DRIFT: Duration = Duration::from_millis(100);

/// Whoever has the lock as data stops by this end alone.
#[test]
fn however_late_an_answer_is_the_end_that_is_told_is_not_later_than_the_stores() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        let late = |call| faults.next(call, Fault::ApplyThenDelay(LATE));
        // The store had set this end before it held up its answer.
        let told = |lock: &Lock, lease: Duration| {
            let (end, latest) = (lock.leased_until().unwrap(), SystemTime::now() - LATE + lease + DRIFT);
            assert!(end <= latest, "later by {:?}", end.duration_since(latest));
            assert!(faults.unmet() == 0);
        };
        late(Call::Acquire);
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        told(&lock, MINUTE);
        late(Call::Renew);
        told(&client.heartbeat(&lock, 10 * MINUTE).unwrap(), 10 * MINUTE);
        // An acquire asks for a minute, and then renews.
        late(Call::Renew);
        let guard = client.request("guarded").lease(10 * MINUTE).lock().unwrap();
        told(&guard.info(), 10 * MINUTE);
        late(Call::Renew);
        guard.hold_at_least(60 * MINUTE).unwrap();
        told(&guard.info(), 60 * MINUTE);
    });
}

/// Takes its time when it is told of a grant, and remembers when that began.
#[derive(Default)]
struct SlowAtGrants(Mutex<Option<SystemTime>>);

impl Observer for SlowAtGrants {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Granted { .. } | Event::HandedOver { .. }) {
            self.0.lock().get_or_insert_with(SystemTime::now);
            std::thread::sleep(LATE);
        }
    }
}

#[test]
fn an_observer_that_is_slow_at_a_grant_makes_no_end_later() {
    let slow = Arc::new(SlowAtGrants::default());
    let client = LockClient::builder(format!("memory:{}", unique())).observer(slow.clone()).connect().unwrap();
    let [data, guarded] = [
        |client: &LockClient| client.request("data").lease(MINUTE).acquire().unwrap(),
        |client: &LockClient| client.request("guarded").lease(MINUTE).lock().unwrap().info(),
    ];
    for lock in [data, guarded] {
        let end = lock(&client).leased_until().unwrap();
        let told = slow.0.lock().take().expect("it was told of the grant");
        assert!(end <= told + MINUTE + DRIFT, "later by {:?}", end.duration_since(told + MINUTE));
    }
}

#[test]
fn a_heartbeat_gives_an_endless_lock_an_end() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").lease_forever().acquire().unwrap();
        assert!(lock.leased_until().is_none());
        // A lease this short is refused, because the guard of the endless lock would not learn of it in time.
        let error = client.heartbeat(&lock, MINUTE - Duration::from_millis(1)).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("k")));
        assert!(client.get("k").unwrap().unwrap().holders()[0].leased_until().is_none());
        assert!(client.heartbeat(&lock, MINUTE).unwrap().leased_until().is_some());
        store.outlast(MINUTE);
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}

#[test]
fn a_heartbeat_is_lost_after_anyone_else_held_it_also_if_that_one_has_released() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        store.advance(MINUTE);
        drop(store.rival().lock("k").unwrap());
        assert_eq!(client.heartbeat(&lock, MINUTE).unwrap_err().kind(), ErrorKind::Lost);
        client.release(&lock).unwrap();
        client.release(&lock).unwrap();
    });
}

/// The refusal says nothing about the first try.
#[test]
fn what_is_refused_after_a_try_without_an_answer_may_be_done() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        for call in [Call::Renew, Call::Release] {
            faults.next(call, Fault::ApplyThenFail);
            faults.next(call, Fault::Refuse);
            let answer = match call {
                Call::Renew => client.heartbeat(&lock, MINUTE).map(drop),
                _ => client.release(&lock),
            };
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Ambiguous, "{call:?}");
        }
        assert!(client.get("k").unwrap().unwrap().is_free());
    });
}

#[test]
fn get_tells_token_and_holders_and_nothing_for_a_new_key() {
    on_every_store(|store| {
        let client = store.client();
        assert!(client.get("k").unwrap().is_none());
        let guard = client.request("k").owner("o").lock().unwrap();
        let status = client.get("k").unwrap().unwrap();
        assert_eq!((status.key(), status.fencing_token()), ("k", guard.fencing_token()));
        assert!(!status.is_free());
        let token = guard.fencing_token();
        drop(guard);
        let status = client.get("k").unwrap().unwrap();
        assert_eq!((status.holders().len(), status.fencing_token()), (0, token));
    });
}

#[test]
fn a_lock_of_another_store_is_refused() {
    on_every_store(|store| {
        // A memory store of this call's own: the cases of the other stores would wait for the lock there, and lose it.
        let other = format!("memory:{}", unique());
        let (client, elsewhere) = (store.client(), LockClient::connect(&other).unwrap());
        let label = store.store.info().label.clone();
        let (mine, theirs) = (client.request("k").acquire().unwrap(), elsewhere.lock("k").unwrap().into_lock());
        assert_eq!((mine.store(), theirs.store()), (Some(label.as_str()), Some(other.as_str())));
        let refused = |client: &LockClient, lock: &Lock| {
            let refused =
                [client.adopt(lock.clone()).map(drop), client.heartbeat(lock, MINUTE).map(drop), client.release(lock)];
            for refused in refused {
                let error = refused.unwrap_err();
                assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("k")), "{error}");
                let right = format!("must be the one that granted the lock, {:?}", lock.store().unwrap());
                assert!(error.to_string().contains(&right), "{error}");
            }
        };
        refused(&client, &theirs);
        refused(&elsewhere, &mine);
        store.rival().adopt(mine).unwrap().release().unwrap();
        elsewhere.release(&theirs).unwrap();
        // A closed client is refused before any store is compared.
        let _ = client.close();
        assert_eq!(client.adopt(theirs).unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
#[cfg(feature = "serde")]
fn data_of_an_earlier_version_names_no_store() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").acquire().unwrap();
        let mut json = serde_json::to_value(&lock).unwrap();
        assert_eq!(json["store"], store.store.info().label);
        json.as_object_mut().unwrap().remove("store");
        let old: Lock = serde_json::from_value(json).unwrap();
        assert_eq!(old.store(), None);
        client.adopt(old).unwrap().release().unwrap();
    });
}

/// An extra request looks for the lock. Its failures are repeated until the call's deadline, and it takes no extra
/// time.
#[test]
#[cfg(feature = "serde")]
fn a_lock_that_is_known_by_another_name_is_looked_for_until_the_same_deadline() {
    on_every_store(|store| {
        let (client, faults) = faulty(store);
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        let mut json = serde_json::to_value(&lock).unwrap();
        json["store"] = "memory:elsewhere".into();
        let renamed: Lock = serde_json::from_value(json).unwrap();
        for call in [|client: &LockClient, lock: &Lock| client.heartbeat(lock, MINUTE).map(drop), LockClient::release] {
            faults.next(Call::Read, Fault::FailBefore);
            call(&client, &renamed).unwrap();
        }
        faults.next(Call::Read, Fault::FailBefore);
        let error = client.adopt(renamed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "it was looked for, and does not stand: {error}");
    });
}

/// Two clusters may have a database and a table of the same names, one cluster may have hosts with several names, and
/// two regions may have a table of the same name.
#[test]
#[cfg(feature = "serde")]
fn a_lock_of_other_hosts_is_released_only_where_it_stands() {
    on_every_store(|store| {
        let label = store.store.info().label.as_str();
        let elsewhere = match label.split_once("://") {
            Some((scheme @ ("mongodb" | "postgres"), rest)) => {
                format!("{scheme}://elsewhere:1/{}", rest.rsplit_once('/').unwrap().1)
            }
            Some(("dynamodb", _)) => label.replace("region=", "region=elsewhere-"),
            _ => return,
        };
        let client = store.client();
        let lock = client.request("k").lease(MINUTE).acquire().unwrap();
        let mut json = serde_json::to_value(&lock).unwrap();
        json["store"] = elsewhere.clone().into();
        let theirs: Lock = serde_json::from_value(json).unwrap();
        assert_eq!(client.heartbeat(&theirs, MINUTE).unwrap().fencing_token(), lock.fencing_token());
        client.release(&theirs).unwrap();
        client.release(&lock).unwrap();
        let error = client.release(&theirs).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("k")), "{error}");
        let text = error.to_string();
        assert!(elsewhere != label && text.contains(&elsewhere) && text.contains(label), "{text}");
    });
}

#[test]
#[cfg(feature = "sqlite")]
fn a_file_that_is_another_one_is_another_store() {
    let folder = room().unwrap();
    let open = |path: &str| leasehold::sqlite::builder(folder.path().join(path)).connect().unwrap();
    let (one, other) = (open("one.db"), open("other.db"));
    let lock = one.request("k").acquire().unwrap();
    assert_eq!(other.release(&lock).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(open("./one.db").heartbeat(&lock, MINUTE).unwrap().key(), "k");
    // The client asks a file that was moved to another name, whatever is at the old name now.
    drop(one);
    std::fs::rename(folder.path().join("one.db"), folder.path().join("moved.db")).unwrap();
    assert!(open("one.db").get("k").unwrap().is_none());
    let moved = open("moved.db");
    moved.release(&moved.adopt(lock.clone()).unwrap().into_lock()).unwrap();
    let refused = |kind| {
        let error = other.adopt(lock.clone()).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains("one.db"), "{error}");
    };
    refused(ErrorKind::InvalidInput);
    // If nothing is at the old name, it may have been another name of this file.
    std::fs::remove_file(folder.path().join("one.db")).unwrap();
    refused(ErrorKind::Lost);
}

#[test]
#[cfg(all(feature = "sqlite", target_os = "linux"))]
fn files_whose_names_are_no_text_are_two_stores() {
    use std::os::unix::ffi::OsStrExt;

    let folder = room().unwrap();
    let [one, other] = [b"\xff.db", b"\xfe.db"].map(|name| {
        let path = folder.path().join(std::ffi::OsStr::from_bytes(name));
        leasehold::sqlite::builder(path).connect().unwrap()
    });
    let lock = one.request("k").acquire().unwrap();
    let error = other.release(&lock).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("\\xff.db"), "{error}");
    one.release(&lock).unwrap();
}

/// As with `/run` and `/var/run`: the lock is looked for in the right store, and the error says that the lock was lost.
#[test]
#[cfg(all(feature = "sqlite", unix))]
fn a_lock_that_was_lost_is_lost_by_every_path_of_its_file() {
    let folder = room().unwrap();
    let [real, link] = ["run", "var-run"].map(|name| folder.path().join(name));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let open = |path: &std::path::Path| leasehold::sqlite::builder(path.join("locks.db")).connect().unwrap();
    for (granted, asked) in [(&real, &link), (&link, &real)] {
        let (client, other) = (open(granted), open(asked));
        let lock = client.request("k").acquire().unwrap();
        assert_eq!(client.unlock(lock.lock_id()).unwrap().len(), 1);
        let error = other.heartbeat(&lock, MINUTE).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("k")), "{error}");
        let error = other.adopt(lock.clone()).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("k")), "{error}");
        other.release(&lock).unwrap();
    }
}

/// As in two containers that have its folder at different paths.
#[test]
#[cfg(all(feature = "sqlite", feature = "serde"))]
fn a_lock_that_was_lost_is_lost_also_where_the_path_that_it_was_granted_by_leads_to_nothing() {
    const NOWHERE: &str = "sqlite:/nowhere/locks.db";
    let folder = room().unwrap();
    let client = leasehold::sqlite::builder(folder.path().join("locks.db")).connect().unwrap();
    let mut json = serde_json::to_value(client.request("k").acquire().unwrap()).unwrap();
    json["store"] = NOWHERE.into();
    let lock: Lock = serde_json::from_value(json).unwrap();
    let lock = client.heartbeat(&lock, MINUTE).expect("it stands");
    assert_eq!(client.unlock(lock.lock_id()).unwrap().len(), 1);
    let told = |error: &leasehold::Error| {
        assert!(error.key() == Some("k") && error.to_string().contains(NOWHERE), "{error}");
        error.kind()
    };
    for error in [client.heartbeat(&lock, MINUTE).unwrap_err(), client.adopt(lock.clone()).unwrap_err()] {
        assert_eq!(told(&error), ErrorKind::Lost, "{error}");
    }
    // It may as well be a lock of another host's file, where it is still held.
    let error = client.release(&lock).unwrap_err();
    assert_eq!(told(&error), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("it does not stand here"), "{error}");
    let _guard = client.lock("k").unwrap();
    let error = client.release(&lock).unwrap_err();
    assert_eq!(told(&error), ErrorKind::Held, "{error}");
}

#[test]
fn what_was_adopted_already_is_lost_and_no_release_helps() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("k").acquire().unwrap();
        let _guard = client.adopt(lock.clone()).unwrap();
        let error = client.adopt(lock.clone()).unwrap_err();
        assert_eq!((error.kind(), error.holders().len()), (ErrorKind::Lost, 1), "{error}");
        assert!(!error.to_string().contains("must be released") && error.held_by_this_client(), "{error}");
        for error in [client.release(&lock).unwrap_err(), client.heartbeat(&lock, MINUTE).unwrap_err()] {
            assert!(error.holders().len() == 1 && error.held_by_this_client(), "{error:?}");
        }
    });
}

#[test]
fn held_lists_the_guards_of_all_clones() {
    on_every_store(|store| {
        let client = store.client();
        let guards = [client.lock("a").unwrap(), client.clone().lock("b").unwrap()];
        let mut held: Vec<String> = client.held().iter().map(|lock| lock.key().to_owned()).collect();
        held.sort();
        assert_eq!(held, ["a", "b"]);
        assert!(store.rival().held().is_empty());
        drop(guards);
        assert!(client.held().is_empty());
    });
}

#[test]
fn purge_frees_only_what_expired_so_long_ago() {
    on_every_store(|store| {
        let client = store.client();
        for n in 0..150 {
            client.request(&format!("old-{n}")).lease(MINUTE).acquire().unwrap();
        }
        store.advance(10 * MINUTE);
        client.request("young").lease(MINUTE).acquire().unwrap();
        store.advance(2 * MINUTE);
        let held = client.lock("held").unwrap();
        let purged = client.purge(5 * MINUTE).unwrap();
        assert_eq!((purged.freed.len(), purged.deleted), (150, 0));
        assert!(purged.freed.iter().all(|status| status.key().starts_with("old-") && status.is_expired()));
        assert_eq!(client.get("young").unwrap().unwrap().holders().len(), 1);
        assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 1);
        assert!(held.is_held());
        held.release().unwrap();
    });
}

#[test]
fn the_same_lock_id_may_stand_on_several_keys_but_once_on_each() {
    on_every_store(|store| {
        let client = store.client();
        let guards = ["a", "b"].map(|key| client.request(key).lock_id("g").lock().unwrap());
        let error = client.request("a").lock_id("g").lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld);
        assert_eq!(error.holders()[0].fencing_token(), guards[0].fencing_token());
        // Another client that uses the same lock id waits as any other does.
        assert!(store.rival().request("a").lock_id("g").try_lock().unwrap().is_none());
        let shared = client.request("s").shared().lock_id("g").lock().unwrap();
        let again = client.request("s").shared().lock_id("g").try_lock().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyHeld);
        let joins = |id: &str| store.rival().request("s").shared().lock_id(id).try_lock().unwrap().is_some();
        assert_eq!([joins("g"), joins("another")], [false, true]);
        drop(shared);
    });
}

#[test]
fn the_schema_is_described_and_made_as_often_as_one_likes() {
    on_every_store(|store| {
        let client = store.client();
        assert!(!client.schema().unwrap().is_empty());
        client.create_schema().unwrap();
        client.create_schema().unwrap();
        assert!(client.try_lock_for("k", LONG).unwrap().is_some());
    });
}

#[test]
fn what_has_no_guard_here_knows_no_heartbeat_and_no_margin_of_guards() {
    on_every_store(|store| {
        let builder = store.builder().lease(MINUTE).heartbeat(Duration::from_secs(25)).margin(Duration::from_secs(8));
        let client = builder.connect().unwrap();
        let lock = client.request("k").lock_id("g").acquire().unwrap();
        client.heartbeat(&lock, Duration::from_secs(30)).unwrap();
        client.renew("g", Duration::from_secs(30)).unwrap();
    });
}

#[test]
fn what_can_not_be_adopted_is_told_with_key_and_store() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("a").acquire().unwrap();
        let refused = client.request("b").adopt(lock).unwrap_err();
        assert_eq!((refused.kind(), refused.key()), (ErrorKind::InvalidInput, Some("b")), "{refused}");
        assert!(refused.store().is_some() && refused.to_string().contains("\"a\""), "{refused}");
    });
}
