//! The collection and its indexes: looked at, told about, made; and collections that cannot be used.

use leasehold::ErrorKind;
use leasehold::internals::backend::Schema;
use leasehold::mongodb::driver::IndexModel;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::options::{Collation, IndexOptions};

use crate::common::mongodb::{Rows, server};
use crate::support::granted;
use crate::*;

fn indexes(rows: &Rows) -> Vec<Document> {
    let mut keys: Vec<Document> = rows.raw().list_indexes().run().unwrap().map(|index| index.unwrap().keys).collect();
    keys.sort_by_key(|key| format!("{key}"));
    keys
}

#[test]
fn the_schema_makes_the_indexes_of_mongo_lock_and_takes_those_that_are_there() {
    needs_server!();
    let rows = Rows::unmade();
    let store = rows.open();
    let text = store.schema(Schema::Describe, &soon()).unwrap();
    assert!(text.contains("unique: true, sparse: true") && text.lines().count() == 5, "{text}");
    store.schema(Schema::Create, &soon()).unwrap();
    let made = indexes(&rows);
    let wanted =
        ["_id", "exclusive.expiresAt", "exclusive.lockId", "resource", "shared.locks.expiresAt", "shared.locks.lockId"];
    let keys: Vec<&str> = made.iter().map(|key| key.keys().next().unwrap().as_str()).collect();
    assert_eq!(keys, wanted);
    store.schema(Schema::Create, &soon()).unwrap();
    assert_eq!(indexes(&rows), made);
    // One under another name, and not sparse.
    let rows = Rows::unmade();
    let options = IndexOptions::builder().unique(true).name("mine".to_owned()).build();
    rows.raw().create_index(IndexModel::builder().keys(doc! { "resource": 1 }).options(options).build()).run().unwrap();
    let store = rows.open();
    store.schema(Schema::Create, &soon()).unwrap();
    assert_eq!(indexes(&rows).len(), 6);
    granted(&store, &mut exclusive(&store, "k"));
}

#[test]
fn nothing_is_written_without_the_unique_index() {
    needs_server!();
    let rows = Rows::unmade();
    let store = rows.open();
    assert!(store.schema(Schema::Check, &soon()).unwrap().contains("create_schema()"));
    for _ in 0..2 {
        let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("unique index") && error.to_string().contains("create_schema()"), "{error}");
        // Also where the collection is there.
        rows.raw().insert_one(doc! { "x": 1 }).run().unwrap();
    }
    assert_eq!(rows.row("k"), None);
    // Another client makes it: nobody needs to connect again.
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
    // Two documents of one key.
    let rows = Rows::unmade();
    rows.raw().insert_many([doc! { "resource": "k" }, doc! { "resource": "k" }]).run().unwrap();
    let error = rows.open().schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("two documents"), "{error}");
    // Another index with the name that ours would get.
    let rows = Rows::unmade();
    let options = IndexOptions::builder().name("resource_1".to_owned()).build();
    rows.raw().create_index(IndexModel::builder().keys(doc! { "other": 1 }).options(options).build()).run().unwrap();
    let error = rows.open().schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("resource_1"), "{error}");
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
