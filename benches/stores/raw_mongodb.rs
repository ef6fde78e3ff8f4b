//! The MongoDB store's requests done by hand: a `findAndModify` with a pipeline that decides the same, through a client
//! with the same settings on a hidden runtime of its own, which a blocking program needs.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::ClientBuilder;
use leasehold::internals::sys::driver::Driver;
use leasehold::mongodb::driver::bson::oid::ObjectId;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::event::EventHandler;
use leasehold::mongodb::driver::event::command::CommandEvent;
use leasehold::mongodb::driver::options::{Acknowledgment, ClientOptions, ReturnDocument, WriteConcern};
use leasehold::mongodb::driver::{Client, Collection};

use super::data::mongodb::Texts;
use super::hidden::{hidden, soon};
use super::servers::mongod;
use super::store::{Call, Raw, Store, builder};

const DATABASE: &str = "bench";
const LEASE: i64 = 20_000;

pub fn store() -> Option<Store> {
    let server = mongod()?;
    let collection = format!("bench-{:016x}", fastrand::u64(..));
    let (hosts, query) = server.split_once("/?").unwrap_or((server.trim_end_matches('/'), ""));
    let url = format!("{hosts}/{DATABASE}?{query}&collection={collection}");
    builder(&url).connect().expect("the server").create_schema().expect("a collection");
    let raw = RawMongodb::new(&server, &collection);
    Some(Store::new("mongodb", url, Some(Box::new(raw)), true))
}

/// Counts all commands except those by which the driver monitors its servers.
pub fn counting(url: &str) -> (ClientBuilder, Arc<AtomicU64>) {
    let (hosts, collection) = url.split_once("&collection=").expect("the collection");
    let mut options = ClientOptions::parse(hosts).run().expect("the server's URL");
    let commands = Arc::<AtomicU64>::default();
    let sent = commands.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(_) = event {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }));
    (leasehold::mongodb::builder_with(options, DATABASE, collection), commands)
}

/// A user's own collection next to the collection of the locks.
pub fn data(url: &str) -> Texts {
    let (uri, collection) = url.split_once("&collection=").expect("one of our URLs");
    Texts::new(uri, DATABASE, &format!("{collection}-texts"))
}

struct RawMongodb {
    driver: Driver<Collection<Document>>,
    grant: ObjectId,
}

impl RawMongodb {
    fn new(server: &str, collection: &str) -> Self {
        let (server, collection) = (server.to_owned(), collection.to_owned());
        let driver = hidden(|| async move {
            let options = ClientOptions::parse(server).await.expect("the server's URL");
            Ok(Client::with_options(options).expect("a client").database(DATABASE).collection(&collection))
        });
        let mut raw = RawMongodb { driver, grant: ObjectId::new() };
        // The lock that `Refused` tries to acquire.
        raw.acquire("raw-held", ObjectId::new(), LEASE * 1_000_000);
        raw
    }

    fn update(&self, key: &str, pipeline: Vec<Document>, upsert: bool, after: bool) -> Document {
        let returned = if after { ReturnDocument::After } else { ReturnDocument::Before };
        let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
        let row = doc! { "resource": key };
        let projection = doc! { "resource": 1, "fence": 1, "exclusive": 1, "shared": 1, "now": "$$NOW" };
        let run = self.driver.run(&soon(), move |locks: Rc<Collection<Document>>| async move {
            let request = locks.find_one_and_update(row, pipeline).upsert(upsert);
            request.return_document(returned).write_concern(concern).projection(projection).await
        });
        run.expect("an answer").expect("the raw request").expect("a document")
    }

    fn acquire(&mut self, key: &str, grant: ObjectId, lease: i64) -> bool {
        let fence = doc! { "$max": [
            { "$add": [{ "$ifNull": ["$fence", 0_i64] }, 1_i64] },
            { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] },
        ] };
        let holder = doc! {
            "lockId": { "$literal": "some-id" }, "owner": { "$literal": "some-host:12345" },
            "host": { "$literal": "some-host" }, "comment": null, "createdAt": "$$NOW", "renewedAt": null,
            "expiresAt": { "$add": ["$$NOW", lease] }, "acquired": true, "_id": grant, "token": fence.clone(),
        };
        let is_live = doc! { "$and": [
            { "$eq": ["$exclusive.acquired", true] },
            { "$or": [
                { "$eq": [{ "$ifNull": ["$exclusive.expiresAt", null] }, null] },
                { "$gt": ["$exclusive.expiresAt", "$$NOW"] },
            ] },
        ] };
        let granted = doc! { "$mergeObjects": ["$$ROOT", {
            "kind": "lock", "format": "1.0", "fence": fence, "exclusive": holder,
            "shared": { "count": 0_i64, "locks": [] },
        }] };
        let pipeline = vec![doc! { "$replaceWith": { "$cond": [{ "$not": [is_live] }, granted, "$$ROOT"] } }];
        let row = self.update(key, pipeline, true, true);
        row.get_document("exclusive").and_then(|held| held.get_object_id("_id")).is_ok_and(|id| id == grant)
    }

    fn is_mine(&self) -> Document {
        doc! { "$and": [{ "$eq": ["$exclusive._id", self.grant] }, { "$eq": ["$exclusive.acquired", true] }] }
    }

    fn renew(&self) -> bool {
        let end = doc! { "$max": ["$exclusive.expiresAt", { "$add": ["$$NOW", LEASE] }] };
        let renewed = doc! { "$mergeObjects": ["$exclusive", { "renewedAt": "$$NOW", "expiresAt": end }] };
        let step = doc! { "$cond": [self.is_mine(), renewed, "$exclusive"] };
        let row = self.update("raw", vec![doc! { "$set": { "exclusive": step } }], false, true);
        row.get_document("exclusive").and_then(|held| held.get_object_id("_id")) == Ok(self.grant)
    }

    fn release(&self) -> bool {
        let free = doc! {
            "lockId": null, "owner": null, "host": null, "comment": null, "createdAt": null, "renewedAt": null,
            "expiresAt": null, "acquired": false,
        };
        let step = doc! { "$cond": [self.is_mine(), { "$literal": free }, "$exclusive"] };
        let row = self.update("raw", vec![doc! { "$set": { "exclusive": step } }], false, false);
        row.get_document("exclusive").and_then(|held| held.get_object_id("_id")) == Ok(self.grant)
    }
}

impl Raw for RawMongodb {
    fn prepare(&mut self, _: Call) {}

    fn run(&mut self, call: Call) {
        let done = match call {
            Call::Acquire => self.acquire("raw", self.grant, LEASE),
            Call::Renew => self.renew(),
            Call::Release => self.release(),
            Call::Refused => !self.acquire("raw-held", self.grant, LEASE),
        };
        assert!(done, "the raw {call:?}");
    }
}
