//! What is stored, found and paged; rows that somebody damaged.

use std::collections::BTreeSet;

use leasehold::ErrorKind;
use leasehold::internals::lease::{Ask, End, Kind, LockRecord, StoreTime};
use leasehold::internals::store::{Acquired, Attempt, Backend, Consistency, Purpose, Released, Swapped, Which};

use crate::sqlite::support::*;

#[test]
fn every_field_comes_back_as_it_was_written() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let keys = ["plain", "\u{1}lease\u{1}x", "ä'\"; DROP TABLE locks; --", "\u{10FFFF}"];
    for key in keys {
        let holder = granted(&store, &mut attempt("source", key));
        let mut first = holder.clone();
        first.labels.comment = Some(key.to_owned());
        first.renewed = Some(StoreTime::from_nanos(-5));
        first.token = 3;
        let mut endless = holder.clone();
        endless.grant = leasehold::internals::lease::GrantId::from_text("other");
        endless.until = End::Never;
        endless.labels.host = None;
        let record = LockRecord {
            kind: Kind::Lease,
            token: i64::MAX as u64,
            exclusive: Some(first.clone()),
            shared: vec![endless, first],
            pins: BTreeSet::from([key.to_owned(), String::new()]),
            ..LockRecord::missing(key)
        };
        let seen = look(&store, key);
        assert!(matches!(store.swap(&seen, Some(&record), &soon()).unwrap(), Swapped::Done));
        let stored = look(&store, key).record;
        assert_eq!(stored, LockRecord { version: stored.version, ..record });
        assert!(stored.version > seen.record.version);
        assert_eq!(look(&open(&folder.file()), key).record, stored);
        let seen = look(&store, "source");
        assert!(matches!(store.swap(&seen, None, &soon()).unwrap(), Swapped::Done));
    }
    assert_eq!(page(&store, Which::Prefix(String::new())).records.len(), keys.len());
}

#[test]
fn a_token_that_no_integer_holds_is_an_error_and_nothing_is_written() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let seen = look(&store, "k");
    let record = LockRecord { token: u64::MAX, version: 1, ..LockRecord::missing("k") };
    assert_eq!(store.swap(&seen, Some(&record), &soon()).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!look(&store, "k").record.exists());
}

/// A grant that is not in the file would be given twice, and a holder of an earlier boot that nobody can note would
/// remain for ever.
#[test]
fn a_trigger_that_lets_no_row_be_written_is_told() {
    let folder = Folder::new();
    granted(&open_at(&folder.file(), "an earlier boot").0, &mut attempt("left", "a"));
    let store = open(&folder.file());
    let mut held = attempt("held", "a");
    granted(&store, &mut held);
    let told = |error: leasehold::Error| {
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("trigger"), "{error}");
    };
    let other = raw(&folder.file());
    other.execute_batch("CREATE TRIGGER t BEFORE INSERT ON locks BEGIN SELECT RAISE(IGNORE); END").unwrap();
    for mut new in [attempt("new", "a"), shared("new", "a")] {
        told(store.acquire(&mut new, &soon()).unwrap_err());
    }
    let update = "DROP TRIGGER t; CREATE TRIGGER t BEFORE UPDATE ON locks BEGIN SELECT RAISE(IGNORE); END";
    other.execute_batch(update).unwrap();
    told(store.renew(&mut held, heartbeat(seconds(30)), &soon()).unwrap_err());
    told(store.release(&mut held, Purpose::Release, &soon()).unwrap_err());
    told(store.acquire(&mut attempt("left", "b"), &soon()).unwrap_err());
    // A client that only reads need not write.
    assert!(look(&store, "left").record.exists());
    let delete = "DROP TRIGGER t; CREATE TRIGGER t BEFORE DELETE ON locks BEGIN SELECT RAISE(IGNORE); END";
    other.execute_batch(delete).unwrap();
    told(store.swap(&look(&store, "held"), None, &soon()).unwrap_err());
    assert!(matches!(store.swap(&look(&store, "none"), None, &soon()).unwrap(), Swapped::Done), "there is no row");
    other.execute_batch("DROP TRIGGER t").unwrap();
    renewed(&store, &mut held, heartbeat(seconds(30)));
}

#[test]
fn pages_follow_the_bytes_of_the_keys() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let keys: BTreeSet<String> =
        (0..250).map(|n| format!("a{n}")).chain(["a".into(), "ä".into(), "b".into()]).collect();
    for key in &keys {
        granted(
            &store,
            &mut Attempt::new(key.as_str(), Ask { lock_id: format!("{}", key.len()), ..ask("o", seconds(9)) }),
        );
    }
    let all = |which: Which| {
        let (mut found, mut from, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = store.read(&which, from, Consistency::Eventual, &soon()).unwrap();
            assert!(page.records.len() <= 100);
            found.extend(page.records.into_iter().map(|seen| seen.record.key));
            pages += 1;
            from = page.next;
            if from.is_none() {
                return (found, pages);
            }
        }
    };
    let expect = |f: &dyn Fn(&&String) -> bool| keys.iter().filter(f).cloned().collect::<Vec<_>>();
    assert_eq!(all(Which::Prefix(String::new())), (expect(&|_| true), 3));
    assert_eq!(all(Which::Prefix("a".to_owned())).0, expect(&|key| key.starts_with('a')));
    assert_eq!(all(Which::Prefix("a1".to_owned())).0, expect(&|key| key.starts_with("a1")));
    assert_eq!(all(Which::Prefix("ä".to_owned())).0, ["ä"]);
    assert_eq!(all(Which::LockId("4".to_owned())).0, expect(&|key| key.len() == 4));
    assert!(all(Which::LockId("none".to_owned())).0.is_empty());
}

#[test]
fn a_lock_id_is_found_among_shared_holders_and_behind_many_rows() {
    let folder = Folder::new();
    let store = open(&folder.file());
    raw(&folder.file())
        .execute_batch(
            "WITH RECURSIVE n(n) AS (SELECT 10000 UNION ALL SELECT n + 1 FROM n WHERE n < 15000)
             INSERT INTO locks (key, kind, token, version, clock) SELECT CAST('k' || n AS BLOB), 'lock', 1, 1, 'c' FROM n",
        )
        .unwrap();
    granted(&store, &mut shared("z", "a"));
    granted(&store, &mut shared("z", "b"));
    let (mut found, mut from, mut empty) = (Vec::new(), None, 0);
    loop {
        let page = store.read(&Which::LockId("id of b".to_owned()), from, Consistency::Strong, &soon()).unwrap();
        empty += usize::from(page.records.is_empty());
        found.extend(page.records.into_iter().map(|seen| seen.record.key));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(found, ["z"]);
    assert!(empty > 0, "one page went through all rows");
}

#[test]
fn giving_up_is_releasing_and_makes_no_row() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    assert!(matches!(store.release(&mut mine, Purpose::GiveUp, &soon()).unwrap(), Released::Free));
    assert!(!look(&store, "k").record.exists());
    granted(&store, &mut mine);
    assert!(matches!(store.release(&mut mine, Purpose::GiveUp, &soon()).unwrap(), Released::Done));
    assert!(look(&store, "k").record.given_up.is_empty());
}

#[test]
fn a_repeated_acquire_finds_itself() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    let first = granted(&store, &mut mine);
    match store.acquire(&mut mine, &soon()).unwrap() {
        Acquired::Granted { holder, repeated, .. } => assert_eq!((holder, repeated), (first, true)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_row_is_named_and_left_as_it_is() {
    let damages = [
        "kind = 'door'",
        "token = -1",
        "version = 0",
        "lock_id = NULL",
        "leased_until = 'soon'",
        "created = NULL",
        "holders = '[{\"grant_id\": \"g\"}]'",
        "holders = 'none'",
        "pins = '{}'",
        "sightings = '[]'",
    ];
    for damage in damages {
        let folder = Folder::new();
        let store = open(&folder.file());
        let mut mine = attempt("bad", "a");
        granted(&store, &mut mine);
        granted(&store, &mut attempt("good", "b"));
        let before = look(&store, "bad");
        let raw = raw(&folder.file());
        raw.execute_batch(&format!("UPDATE locks SET {damage} WHERE key = CAST('bad' AS BLOB)")).unwrap();
        let dump = || -> String {
            let all = "SELECT quote(kind)||quote(token)||quote(version)||quote(grant_id)||quote(lock_id)||quote(created)\
                       ||quote(leased_until)||quote(holders)||quote(pins)||quote(sightings) FROM locks ORDER BY key";
            raw.query_row(all, [], |row| row.get(0)).unwrap()
        };
        let stands = dump();
        let errors = [
            store.acquire(&mut attempt("bad", "c"), &soon()).map(drop),
            store.renew(&mut mine, heartbeat(seconds(20)), &soon()).map(drop),
            store.release(&mut mine, Purpose::Release, &soon()).map(drop),
            store.swap(&before, None, &soon()).map(drop),
            store.read(&Which::Key("bad".to_owned()), None, Consistency::Strong, &soon()).map(drop),
        ];
        for error in errors {
            let error = error.expect_err(damage);
            assert_eq!((error.kind(), error.key()), (ErrorKind::Schema, Some("bad")), "{damage}");
            assert!(error.to_string().contains(folder.file().to_str().unwrap()), "{error}");
        }
        assert_eq!(dump(), stands);
        // Other keys still work.
        let listed = page(&store, Which::Prefix(String::new())).records;
        assert_eq!(listed.iter().map(|seen| seen.record.key.as_str()).collect::<Vec<_>>(), ["good"], "{damage}");
        assert_eq!(page(&store, Which::LockId("id of b".to_owned())).records.len(), 1, "{damage}");
        held(&store, &mut attempt("good", "c"));
    }
}
