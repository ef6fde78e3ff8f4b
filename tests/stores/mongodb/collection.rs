//! The collection and its indexes: checked, described, made; and collections that can't be used.

use std::sync::Barrier;

use leasehold::ErrorKind;
use leasehold::internals::store::mongodb::Mongodb;
use leasehold::internals::store::{Acquired, Missing, Schema, Swapped};
use leasehold::mongodb::driver::IndexModel;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::options::{Collation, IndexOptions};

use crate::mongodb::*;
use crate::support::contract::{granted, raised};
use crate::support::mongodb::{Rows, server};

fn indexes(rows: &Rows) -> Vec<Document> {
    let mut keys: Vec<Document> = rows.raw().list_indexes().run().unwrap().map(|index| index.unwrap().keys).collect();
    keys.sort_by_key(|key| format!("{key}"));
    keys
}

/// Asserts that because of the collection the key can't be locked, nor its record written, and that the error says so.
fn refuses(store: &Mongodb, key: &str, why: &str) {
    let none = get(store, key);
    let acquired = store.acquire(&mut exclusive(store, key), &soon()).map(drop);
    let swapped = store.swap(&none, Some(&raised(&none.record)), &soon()).map(drop);
    for answer in [acquired, swapped] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn the_schema_makes_the_indexes_of_mongo_lock_and_takes_those_that_are_there() {
    let rows = needs_server!(Rows::unmade());
    let store = rows.open();
    let text = store.schema(Schema::Describe, &soon()).unwrap();
    assert!(text.contains("unique: true, sparse: true") && text.lines().count() == 5, "{text}");
    let create = |store: &Mongodb| store.schema(Schema::Create, &soon()).unwrap();
    assert!(create(&store).ends_with("the collection was made, with its indexes"));
    let made = indexes(&rows);
    let wanted =
        ["_id", "exclusive.expiresAt", "exclusive.lockId", "resource", "shared.locks.expiresAt", "shared.locks.lockId"];
    let keys: Vec<&str> = made.iter().map(|key| key.keys().next().unwrap().as_str()).collect();
    assert_eq!(keys, wanted);
    assert!(create(&store).ends_with("the collection is there, with its indexes"));
    assert_eq!(indexes(&rows), made);
    // A unique index with another name, which is not sparse.
    let rows = Rows::unmade();
    let options = IndexOptions::builder().unique(true).name("mine".to_owned()).build();
    rows.raw().create_index(IndexModel::builder().keys(doc! { "resource": 1 }).options(options).build()).run().unwrap();
    let store = rows.open();
    assert!(create(&store).ends_with("the collection is there, and the indexes that it lacked were built"));
    assert_eq!(indexes(&rows).len(), 6);
    granted(&store, &mut exclusive(&store, "k"));
}

#[test]
fn nothing_is_written_without_the_unique_index() {
    let rows = needs_server!(Rows::unmade());
    let store = rows.open();
    let text = store.schema(Schema::Connect(Missing::IsAllowed), &soon()).unwrap();
    assert!(text.contains("create_schema()"));
    for what in [Schema::Connect(Missing::IsRefused), Schema::Check] {
        assert_eq!(store.schema(what, &soon()).unwrap_err().kind(), ErrorKind::Schema);
    }
    for _ in 0..2 {
        let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("unique index") && error.to_string().contains("create_schema()"), "{error}");
        // The same once the collection exists.
        rows.raw().insert_one(doc! { "x": 1 }).run().unwrap();
    }
    for what in [Schema::Connect(Missing::IsRefused), Schema::Check] {
        assert_eq!(store.schema(what, &soon()).unwrap_err().kind(), ErrorKind::Schema);
    }
    assert_eq!(rows.row("k"), None);
    // Another client makes the index, and no client needs to connect again.
    rows.open().schema(Schema::Create, &soon()).unwrap();
    granted(&store, &mut exclusive(&store, "k"));
}

#[test]
fn an_index_in_the_way_is_explained() {
    needs_server!();
    let of = |options: IndexOptions| {
        let rows = Rows::unmade();
        let model = IndexModel::builder().keys(doc! { "resource": 1 }).options(options).build();
        rows.raw().create_index(model).run().unwrap();
        let store = rows.open();
        for what in [Schema::Check, Schema::Create] {
            let error = store.schema(what, &soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(error.to_string().contains("resource_1") && error.to_string().contains("unique"), "{error}");
        }
        assert!(store.acquire(&mut exclusive(&store, "k"), &soon()).is_err());
    };
    of(IndexOptions::default());
    of(IndexOptions::builder().unique(true).partial_filter_expression(doc! { "fence": { "$gt": 5 } }).build());
    let collation = Collation::builder().locale("de".to_owned()).build();
    of(IndexOptions::builder().unique(true).collation(collation).build());
    // Two documents with one key.
    let rows = Rows::unmade();
    rows.raw().insert_many([doc! { "resource": "k" }, doc! { "resource": "k" }]).run().unwrap();
    let error = rows.open().schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("two documents"), "{error}");
    // Another index that has the name ours would get.
    let rows = Rows::unmade();
    let options = IndexOptions::builder().name("resource_1".to_owned()).build();
    rows.raw().create_index(IndexModel::builder().keys(doc! { "other": 1 }).options(options).build()).run().unwrap();
    let error = rows.open().schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("resource_1"), "{error}");
}

/// Such an index would delete a held lock, and after a crash of one reader the locks of all others.
#[test]
fn an_index_that_deletes_locks_is_refused() {
    needs_server!();
    let with_ttl = |rows: &Rows, field: &str| {
        let options = IndexOptions::builder().expire_after(std::time::Duration::from_secs(3600)).build();
        rows.raw().create_index(IndexModel::builder().keys(doc! { field: 1 }).options(options).build()).run().unwrap();
        rows.open()
    };
    for field in ["shared.locks.expiresAt", "exclusive.createdAt", "ended"] {
        let rows = Rows::unmade();
        let store = with_ttl(&rows, field);
        for what in [Schema::Create, Schema::Check, Schema::Connect(Missing::IsAllowed)] {
            let error = store.schema(what, &soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(error.to_string().contains(&format!("{field}_1")), "{error}");
            assert!(error.to_string().contains("time to live"), "{error}");
        }
        let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert_eq!(rows.row("k"), None);
    }
    // The application's own documents may end by themselves.
    let rows = Rows::unmade();
    let store = with_ttl(&rows, "endsAt");
    store.schema(Schema::Create, &soon()).unwrap();
    granted(&store, &mut exclusive(&store, "k"));
}

/// The index allows the first lock but no other. The error must not look like a race with another client.
#[test]
fn a_unique_index_of_others_is_told() {
    let rows = needs_server!(Rows::fresh());
    let options = IndexOptions::builder().unique(true).name("by dup key: name".to_owned()).build();
    rows.raw().create_index(IndexModel::builder().keys(doc! { "name": 1 }).options(options).build()).run().unwrap();
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "first"));
    refuses(&store, "second", "unique index \"by dup key: name\"");
    assert_eq!(rows.row("second"), None);
}

#[test]
fn a_validator_that_refuses_locks_is_told() {
    needs_server!();
    let rows = Rows::unmade();
    let validator = doc! { "name": { "$type": "string" } };
    server().database("leasehold").create_collection(&rows.0).validator(validator).run().unwrap();
    let store = rows.open();
    store.schema(Schema::Create, &soon()).unwrap();
    refuses(&store, "k", "validator");
}

#[test]
fn what_is_no_ordinary_collection_is_refused() {
    needs_server!();
    let database = server().database("leasehold");
    let refused = |rows: &Rows, what: &str| {
        let store = rows.open();
        let error = store.schema(Schema::Check, &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains(what) && error.to_string().contains(&rows.0), "{error}");
        assert!(store.acquire(&mut exclusive(&store, "k"), &soon()).is_err());
        assert!(store.schema(Schema::Create, &soon()).is_err());
    };
    let source = Rows::fresh();
    let view = Rows::unmade();
    database.create_collection(&view.0).view_on(source.0.clone()).pipeline([]).run().unwrap();
    refused(&view, "a view");
    let capped = Rows::unmade();
    database.create_collection(&capped.0).capped(true).size(1 << 20).run().unwrap();
    refused(&capped, "capped");
    let collated = Rows::unmade();
    let collation = Collation::builder().locale("en".to_owned()).build();
    database.create_collection(&collated.0).collation(collation).run().unwrap();
    refused(&collated, "collation");
}

/// Clients look for the unique index only once, and `drop()` or `mongorestore --drop` remove it later.
#[test]
fn a_key_has_one_document_also_where_the_index_was_dropped_under_its_clients() {
    let rows = needs_server!(Rows::fresh());
    let clients: Vec<Mongodb> = (0..8).map(|_| rows.open()).collect();
    clients.iter().for_each(|client| drop(client.schema(Schema::Check, &soon()).unwrap()));
    for round in 0..12 {
        rows.raw().drop().run().unwrap();
        let at_once = Barrier::new(clients.len());
        let granted = std::thread::scope(|scope| {
            let asking: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(i, client)| {
                    let at_once = &at_once;
                    scope.spawn(move || {
                        // Every fourth one writes a whole record, as a claim of a lease does.
                        if i % 4 == 3 {
                            let seen = get(client, "k");
                            at_once.wait();
                            let swapped = client.swap(&seen, Some(&raised(&seen.record)), &soon()).unwrap();
                            assert!(matches!(swapped, Swapped::Done | Swapped::Changed), "{swapped:?}");
                            return false;
                        }
                        at_once.wait();
                        let answer = client.acquire(&mut exclusive(client, "k"), &soon()).unwrap();
                        assert!(matches!(answer, Acquired::Granted { .. } | Acquired::Refused(_)), "{answer:?}");
                        matches!(answer, Acquired::Granted { .. })
                    })
                })
                .collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).filter(|granted| *granted).count()
        });
        let documents = rows.raw().count_documents(doc! { "resource": "k" }).run().unwrap();
        assert_eq!((granted, documents), (1, 1), "grants and documents of round {round}");
    }
}

#[test]
fn documents_that_have_an_id_of_another_kind_are_used_as_they_are() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "ours"));
    assert_eq!(rows.row("ours").unwrap().get_str("_id"), Ok("ours"));
    let none = get(&store, "swapped");
    assert!(matches!(store.swap(&none, Some(&raised(&none.record)), &soon()).unwrap(), Swapped::Done));
    assert_eq!(rows.row("swapped").unwrap().get_str("_id"), Ok("swapped"));
    // Documents of mongo-lock, and of older versions of ours.
    let theirs = doc! { "resource": "$theirs", "exclusive": { "acquired": false }, "shared": { "count": 0 } };
    let id = rows.raw().insert_one(theirs).run().unwrap().inserted_id;
    granted(&store, &mut exclusive(&store, "$theirs"));
    let row = rows.row("$theirs").unwrap();
    assert!(row.get("_id") == Some(&id) && row.get_document("exclusive").unwrap().get_bool("acquired").unwrap());
    granted(&store, &mut exclusive(&store, "$new"));
    assert_eq!(rows.row("$new").unwrap().get_str("_id"), Ok("$new"));
    // A document that is no lock at all.
    rows.raw().insert_one(doc! { "_id": "taken", "locked": true }).run().unwrap();
    refuses(&store, "taken", "_id");
    let kept = rows.raw().find_one(doc! { "_id": "taken" }).run().unwrap();
    assert_eq!(kept, Some(doc! { "_id": "taken", "locked": true }));
}
