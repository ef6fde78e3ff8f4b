//! Documents: those of mongo-lock are read as that library means them, and ours keep what it relies on.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::internals::lease::{End, Lease};
use leasehold::internals::store::{Consistency, Purpose, Released, Renewal, Renewed, Swapped};
use leasehold::mongodb::driver::bson::{Bson, DateTime, Document, doc};

use crate::mongodb::*;
use crate::support::contract::{LEASE, acquired, give_up, granted, lost, raised, refused, release, renewal, renewed};
use crate::support::mongodb::Rows;

/// What mongo-lock left in its collection after each of its steps.
fn golden() -> Vec<(String, Vec<Document>)> {
    let text = include_str!("../../golden/mongo-lock.json");
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let of = |step: &serde_json::Value| {
        let documents = step["documents"].as_array().unwrap().iter().map(|json| {
            let Bson::Document(document) = Bson::try_from(json.clone()).unwrap() else { panic!("no document") };
            document
        });
        (step["when"].as_str().unwrap().to_owned(), documents.collect())
    };
    json["steps"].as_array().unwrap().iter().map(of).collect()
}

/// Restores the collection as it was after the step that begins with this text.
fn after(rows: &Rows, step: &str) {
    rows.raw().delete_many(doc! {}).run().unwrap();
    let (_, documents) = golden().into_iter().find(|(when, _)| when.starts_with(step)).unwrap();
    rows.raw().insert_many(documents).run().unwrap();
}

fn live(milliseconds: i64) -> DateTime {
    DateTime::from_millis(DateTime::now().timestamp_millis() + milliseconds)
}

#[test]
fn documents_of_mongo_lock_are_read() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    after(&rows, "after XLock nightly");
    let record = get(&store, "nightly").record;
    let held = record.exclusive.clone().unwrap();
    assert_eq!((held.lock_id.as_str(), held.labels.owner.as_str()), ("lock-1", "worker-1"));
    assert_eq!((held.labels.host.as_deref(), held.labels.comment.as_deref()), (Some("host-1"), Some("why")));
    assert_eq!((held.grant.as_str(), held.token, record.token), ("6b00f83908f2b7f52b6427d2", 0, 0));
    assert_eq!((held.created.as_nanos(), held.renewed), (1_795_225_657_892_000_000, None));
    assert_eq!(held.until, End::At(held.created.plus(Duration::from_secs(30))));
    assert!(record.shared.is_empty() && record.format == (1, 0));

    after(&rows, "after two SLock");
    let record = get(&store, "report").record;
    assert!(record.exclusive.is_none(), "an exclusive part that says only acquired: false");
    let ends: Vec<_> = record.shared.iter().map(|h| (h.lock_id.as_str(), h.until == End::Never)).collect();
    assert_eq!(ends, [("lock-2", false), ("lock-3", true)]);
    assert_eq!(record.shared[1].labels.comment, None);

    after(&rows, "after Renew");
    assert!(get(&store, "nightly").record.exclusive.unwrap().renewed.is_some());

    after(&rows, "after Unlock");
    assert!(get(&store, "nightly").record.exclusive.is_none(), "released: all of it is null");
    assert_eq!(get(&store, "report").record.shared.len(), 1);

    after(&rows, "after XLock on a document of ours");
    let record = get(&store, "ours").record;
    assert_eq!((record.token, record.exclusive.unwrap().token), (7, 0), "it keeps our token and raises none");
}

#[test]
fn live_holders_of_mongo_lock_are_respected_and_expired_ones_replaced() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    after(&rows, "after two SLock");
    let a_minute_on = |until: Option<DateTime>| {
        let set = doc! { "$set": { "exclusive.expiresAt": until } };
        rows.raw().update_one(doc! { "resource": "nightly" }, set).run().unwrap();
    };
    a_minute_on(Some(live(60_000)));
    let seen = refused(&store, &mut exclusive(&store, "nightly"));
    assert_eq!(seen.live().next().unwrap().1.labels.owner, "worker-1");
    a_minute_on(None);
    refused(&store, &mut shared(&store, "nightly"));
    a_minute_on(Some(live(-1)));
    let before = get(&store, "nightly");
    let taken = granted(&store, &mut exclusive(&store, "nightly"));
    assert!(taken.token >= before.times.stamp, "the store's time, for there was no token");
    // One shared holder has no end, and the other one has expired. An exclusive holder has to wait, and a shared one
    // joins.
    refused(&store, &mut exclusive(&store, "report"));
    let mut a = shared(&store, "report");
    a.ask.max_holders = Some(2);
    granted(&store, &mut a);
    assert_eq!(get(&store, "report").record.shared.len(), 2, "the expired one went in the same write");
    understood(&rows, "report");
}

/// Asserts what mongo-lock needs in every document: otherwise it treats the lock as held for ever, or as free.
fn understood(rows: &Rows, key: &str) {
    let row = rows.row(key).unwrap();
    let exclusive = row.get_document("exclusive").unwrap();
    let acquired = exclusive.get_bool("acquired").unwrap();
    let shared = row.get_document("shared").unwrap();
    let count = match shared.get("count") {
        Some(Bson::Int32(count)) => i64::from(*count),
        Some(Bson::Int64(count)) => *count,
        other => panic!("{other:?}"),
    };
    let locks = shared.get_array("locks").unwrap();
    assert_eq!(count, locks.len() as i64, "{row}");
    assert!(!acquired || locks.is_empty(), "never both: {row}");
    let mut ids = Vec::new();
    for entry in locks.iter().map(|lock| lock.as_document().unwrap()).chain(acquired.then_some(exclusive)) {
        ids.push(entry.get_str("lockId").unwrap());
        assert!(entry.get_bool("acquired").unwrap() && entry.get_object_id("_id").is_ok(), "{row}");
        assert!(entry.get_datetime("createdAt").is_ok());
        for time in ["renewedAt", "expiresAt"] {
            assert!(matches!(entry.get(time), Some(Bson::DateTime(_) | Bson::Null)), "{row}");
        }
        for text in ["owner", "host", "comment"] {
            assert!(matches!(entry.get(text), Some(Bson::String(_) | Bson::Null)), "{row}");
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each lock id once: {row}");
    if !acquired {
        for name in ["lockId", "owner", "host", "comment", "createdAt", "renewedAt", "expiresAt"] {
            // The field is missing where mongo-lock made the document for shared holders.
            assert!(matches!(exclusive.get(name), None | Some(Bson::Null)), "{row}");
        }
    }
}

#[test]
fn every_document_of_ours_is_one_that_mongo_lock_understands() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    let step = |_: &str| understood(&rows, "k");
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    step("granted");
    renewed(&store, &mut a, renewal(Lease::Forever));
    step("without end");
    release(&store, &mut a);
    step("released");
    let (mut b, mut c) = (shared(&store, "k"), shared(&store, "k"));
    let first = granted(&store, &mut b);
    step("shared");
    granted(&store, &mut c);
    let mut d = instead_of(&store, "k", Mode::Shared, &first);
    granted(&store, &mut d);
    step("transfer");
    renewed(&store, &mut d, renewal(Lease::For(2 * LEASE)));
    release(&store, &mut c);
    step("one is left");
    give_up(&store, &mut d);
    step("none");
    let seen = get(&store, "k");
    let mut pinned = raised(&seen.record);
    pinned.pins.insert("p".to_owned());
    assert!(matches!(store.swap(&seen, Some(&pinned), &soon()), Ok(Swapped::Done)));
    step("swapped");
    let seen = get(&store, "new");
    let mut new = raised(&seen.record);
    new.pins.insert("p".to_owned());
    assert!(matches!(store.swap(&seen, Some(&new), &soon()), Ok(Swapped::Done)));
    understood(&rows, "new");
}

#[test]
fn texts_of_users_are_no_expressions() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    for text in ["$resource", "$$ROOT", "$$NOW", "a.b", "$", "{\"$set\": 1}"] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let key = format!("{text} {mode}");
            let mut a = attempt(&store, &key, mode);
            a.ask.lock_id = format!("{text} id");
            a.ask.labels.owner = text.to_owned();
            a.ask.labels.comment = Some(text.to_owned());
            a.ask.replace_same_owner = true;
            let held = granted(&store, &mut a);
            assert_eq!((held.lock_id, held.labels), (a.ask.lock_id.clone(), a.ask.labels.clone()));
            assert!(acquired(&store, &mut a).1);
            assert!(matches!(release(&store, &mut a), Released::Done));
        }
    }
}

#[test]
fn what_is_not_known_stays() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    let set = doc! { "$set": { "later": "x", "exclusive.later": 1 } };
    rows.raw().update_one(doc! { "resource": "k" }, set).run().unwrap();
    renewed(&store, &mut a, renewal(Lease::For(2 * LEASE)));
    let seen = get(&store, "k");
    let mut pinned = raised(&seen.record);
    pinned.pins.insert("p".to_owned());
    // A read returns everything that a swap compares, also what is known of the holder.
    assert!(matches!(store.swap(&seen, Some(&pinned), &soon()), Ok(Swapped::Done)));
    let row = rows.row("k").unwrap();
    assert_eq!((row.get_str("later"), row.get_document("exclusive").unwrap().get_i32("later")), (Ok("x"), Ok(1)));
}

/// If something was written, the error must not say that the document was left, although the rest of it can't be read.
#[test]
fn what_a_holder_writes_to_a_damaged_document_is_not_told_as_left() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    for (mode, damage) in [
        (Mode::Exclusive, doc! { "fence": 7.5 }),
        (Mode::Exclusive, doc! { "exclusive.expiresAt": "tomorrow" }),
        (Mode::Exclusive, doc! { "version": "7" }),
        (Mode::Shared, doc! { "pins": "all" }),
        (Mode::Shared, doc! { "fence": 7.5 }),
    ] {
        let mut a = attempt(&store, &format!("{mode} {damage}"), mode);
        granted(&store, &mut a);
        rows.raw().update_one(doc! { "resource": &a.key }, doc! { "$set": damage.clone() }).run().unwrap();
        let before = rows.row(&a.key);
        let answer = store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon());
        let is_left = rows.row(&a.key) == before;
        // If the damage was in a field that is written, it is repaired.
        let is_told = match &answer {
            Ok(Renewed::Unknown(error)) => !crate::errors::text(error).contains("left as it is"),
            answer => matches!(answer, Ok(Renewed::Until { .. })),
        };
        assert!(if is_left { answer.is_err() } else { is_told }, "{damage}: {answer:?}");
        let answer = store.release(&mut a, Purpose::Release, &soon());
        assert!(matches!(answer, Ok(Released::Done)), "{damage}: {answer:?}");
        let row = rows.row(&a.key).unwrap();
        let is_held = match mode {
            Mode::Exclusive => row.get_document("exclusive").unwrap().get_bool("acquired").unwrap(),
            Mode::Shared => !row.get_document("shared").unwrap().get_array("locks").unwrap().is_empty(),
        };
        assert!(!is_held, "{damage}: {row}");
    }
}

#[test]
fn a_damaged_document_is_named_and_left_as_it_is() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    let damaged = [
        doc! { "exclusive": "me" },
        doc! { "exclusive": { "acquired": "yes" } },
        doc! { "exclusive": { "acquired": true, "expiresAt": "tomorrow" } },
        doc! { "exclusive": { "acquired": true, "_id": 7 } },
        doc! { "exclusive": [1] },
        doc! { "shared": 5 },
        doc! { "shared": { "count": 1, "locks": "none" } },
        doc! { "shared": { "count": 1, "locks": [1] } },
        doc! { "shared": { "count": 1, "locks": { "_id": 1 } } },
        doc! { "shared": { "count": 1, "locks": [{ "lockId": "a", "expiresAt": 5, "acquired": true }] } },
        doc! { "shared": { "count": 1, "locks": [{ "lockId": "a", "_id": 5, "acquired": true }] } },
        doc! { "fence": "seven" },
        doc! { "fence": 7.5 },
        doc! { "fence": -1 },
        doc! { "kind": "door" },
        doc! { "kind": 5 },
        doc! { "pins": "all" },
        doc! { "version": 7.5 },
        doc! { "version": "7" },
        doc! { "version": -7 },
        doc! { "format": 1 },
        doc! { "format": "1.x" },
    ];
    for (i, damage) in damaged.into_iter().enumerate() {
        let key = format!("k{i}");
        let mut row = doc! { "exclusive": { "acquired": false } };
        row.extend(damage.clone());
        row.insert("resource", &key);
        rows.raw().insert_one(row).run().unwrap();
        let before = rows.row(&key).unwrap();
        let mut a = exclusive(&store, &key);
        let answers = [
            store.acquire(&mut a, &soon()).map(drop),
            store.acquire(&mut shared(&store, &key), &soon()).map(drop),
            store.renew(&mut a, renewal(Lease::For(LEASE)), &soon()).map(drop),
            store.release(&mut a, Purpose::Release, &soon()).map(drop),
            store.read(&Which::Key(key.clone()), None, Consistency::Strong, &soon()).map(drop),
        ];
        for answer in answers {
            let error = answer.expect_err(&format!("{damage} was taken"));
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(error.to_string().contains("damaged"), "{error}");
        }
        assert_eq!(rows.row(&key), Some(before), "{damage}");
    }
    // A call for a group skips this document.
    let mut b = exclusive(&store, "good");
    b.ask.lock_id = "group".to_owned();
    granted(&store, &mut b);
    let row = doc! { "resource": "bad", "exclusive": { "acquired": true, "lockId": "group", "expiresAt": 5 } };
    rows.raw().insert_one(row).run().unwrap();
    let page = store.read(&Which::LockId("group".to_owned()), None, Consistency::Strong, &soon()).unwrap();
    assert_eq!(page.records.len(), 1);
    lost(&store, &mut exclusive(&store, "good"));
}

/// One more would be stored as a double, which is no token.
#[test]
fn the_greatest_token_stays() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let key = mode.to_string();
        let row = doc! { "resource": &key, "exclusive": { "acquired": false }, "fence": i64::MAX };
        rows.raw().insert_one(row).run().unwrap();
        for _ in 0..2 {
            let mut a = attempt(&store, &key, mode);
            assert_eq!(granted(&store, &mut a).token, i64::MAX as u64);
            release(&store, &mut a);
        }
        assert_eq!(rows.row(&key).unwrap().get_i64("fence"), Ok(i64::MAX));
    }
}

/// Somebody's own document with that field, in a collection for all things.
#[test]
fn a_document_that_is_no_lock_is_not_taken_for_a_free_one() {
    needs_server!();
    let rows = Rows::fresh();
    let (store, client) = (rows.open(), connect(&rows.url()));
    for (key, more) in [("plain", doc! {}), ("other", doc! { "total": 5, "version": 7, "kind": "lock" })] {
        let mut row = doc! { "resource": key };
        row.extend(more);
        rows.raw().insert_one(row).run().unwrap();
        let before = rows.row(key).unwrap();
        let mut a = exclusive(&store, key);
        let answers = [
            store.acquire(&mut a, &soon()).map(drop),
            store.acquire(&mut shared(&store, key), &soon()).map(drop),
            store.renew(&mut a, renewal(Lease::For(LEASE)), &soon()).map(drop),
            store.release(&mut a, Purpose::GiveUp, &soon()).map(drop),
            store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &soon()).map(drop),
            client.lock(key).map(drop),
        ];
        for answer in answers {
            let error = answer.expect_err("it was taken");
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(error.to_string().contains("it is no lock"), "{error}");
        }
        assert_eq!(rows.row(key), Some(before));
    }
    // A document that says that nobody holds it is a free lock.
    for (i, free) in [doc! { "exclusive": {} }, doc! { "exclusive": null }, doc! { "shared": null }].iter().enumerate()
    {
        let mut row = doc! { "resource": i.to_string() };
        row.extend(free.clone());
        rows.raw().insert_one(row).run().unwrap();
        granted(&store, &mut exclusive(&store, &i.to_string()));
    }
}

#[test]
fn listings_and_purges_pass_over_what_is_damaged_or_no_lock() {
    let rows = needs_server!(Rows::fresh());
    let client = connect(&rows.url());
    let others = [
        doc! { "resource": "a damaged", "exclusive": { "acquired": true, "expiresAt": "tomorrow" } },
        doc! { "resource": "an invoice", "total": 5 },
        doc! { "resource": 7, "exclusive": { "acquired": false } },
        doc! { "x": 1 },
    ];
    rows.raw().insert_many(&others).run().unwrap();
    // Such a document may be deleted.
    rows.raw().insert_one(doc! { "resource": "free", "exclusive": { "acquired": false } }).run().unwrap();
    let _guard = client.lock("held").unwrap();
    let keys = |found: Vec<leasehold::LockStatus>| -> Vec<String> {
        found.iter().map(|status| status.key().to_owned()).collect()
    };
    assert_eq!(keys(client.list(&leasehold::Filter::new()).unwrap()), ["held"]);
    assert_eq!(client.purge_preview(Duration::ZERO).unwrap().deleted, 1);
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 1);
    for other in others {
        assert!(rows.raw().find_one(other.clone()).run().unwrap().is_some(), "{other} was deleted");
    }
    assert!(rows.row("free").is_none());
}

/// The server matches an array by its elements, and sorts it among the texts.
#[test]
fn documents_of_others_that_fill_a_page_end_no_listing() {
    let rows = needs_server!(Rows::fresh());
    let client = connect(&rows.url());
    let others = (0..250).map(|nth| doc! { "resource": [format!("n{nth:03}")] });
    rows.raw().insert_many(others).run().unwrap();
    rows.raw().insert_one(doc! { "resource": "z free", "exclusive": { "acquired": false } }).run().unwrap();
    let _guard = client.lock("z").unwrap();
    let found = client.list(&leasehold::Filter::new()).unwrap();
    assert_eq!(found.iter().map(|status| status.key()).collect::<Vec<_>>(), ["z"]);
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 1);
}

#[test]
fn nothing_of_a_newer_format_is_written() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, "k", mode);
        granted(&store, &mut a);
        let is = |format: &str| {
            rows.raw().update_one(doc! {}, doc! { "$set": { "format": format } }).run().unwrap();
            rows.row("k").unwrap()
        };
        for newer in ["2.0", "10.0"] {
            let before = is(newer);
            let answers = [
                store.acquire(&mut shared(&store, "k"), &soon()).map(drop),
                store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()).map(drop),
                store.renew(&mut a, Renewal { lease: Lease::Forever, may_end_endless: true }, &soon()).map(drop),
                store.release(&mut a, Purpose::Release, &soon()).map(drop),
            ];
            for answer in answers {
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::Schema);
            }
            assert_eq!(rows.row("k"), Some(before));
        }
        is("1.12");
        renewed(&store, &mut a, renewal(Lease::For(2 * LEASE)));
        assert!(matches!(release(&store, &mut a), Released::Done));
    }
}

#[test]
fn a_document_of_a_newer_form_is_told_as_that() {
    let rows = needs_server!(Rows::fresh());
    crate::newer::its_version_is_told(rows.open(), |key| {
        // The server's own rules fail on this document.
        let newer = doc! { "$set": { "format": "2.0", "kind": { "of": "loan" } } };
        rows.raw().update_one(doc! { "resource": key }, newer).run().unwrap();
    });
}

#[test]
fn a_margin_is_as_long_as_the_time_is_not_known() {
    let rows = needs_server!(Rows::fresh());
    let error = LockClient::builder(rows.url()).margin(Duration::ZERO).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("at least 1ms"), "{error}");
}

/// Longer than on other stores, so that a guard outlives an election of the replica set.
#[test]
fn a_lease_that_nobody_set_is_as_long_as_an_election_needs() {
    let rows = needs_server!(Rows::fresh());
    let _guard = connect(&rows.url()).lock("k").unwrap();
    let row = rows.row("k").unwrap();
    let at = |field: &str| row.get_document("exclusive").unwrap().get_datetime(field).unwrap().timestamp_millis();
    assert_eq!(at("expiresAt") - at("createdAt"), 30_000);
}
