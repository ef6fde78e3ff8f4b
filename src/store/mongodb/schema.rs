//! The collection and its indexes: checked, described, made. Without the unique index mongo-lock, or an older version
//! of ours, could make a second document of a key, and both would be granted. So nothing is written before the index
//! was seen, or `listIndexes` was denied. Between clients of this version the `_id` of the documents keeps keys apart,
//! too, so that nothing breaks when somebody drops the index later.

use std::sync::atomic::Ordering;
use std::time::Instant;

use mongodb::IndexModel;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::IndexOptions;

use super::error::{MongodbError, Own, is_answer};
use super::open::hello;
use super::send::{Answer, Wrote, limit, majority, uncounted, unknown_is_an_answer};
use super::{Mongodb, Topology};
use crate::store::failure::Fate;
use crate::store::{Consistency, Missing, Schema};
use crate::sys::deadline::Deadline;
use crate::sys::log;

const UNIQUE: &str = "resource";
/// The other indexes, which are those of mongo-lock, with its names.
const OTHERS: [&str; 4] = ["exclusive.lockId", "exclusive.expiresAt", "shared.locks.lockId", "shared.locks.expiresAt"];

/// Whether there is an index that keeps keys apart.
enum Unique {
    Missing,
    /// It keeps them apart once its build is done, or the build fails.
    Building,
    There,
}

/// What is known of the collection.
enum Known<T> {
    Missing,
    /// This client may not read it.
    Hidden,
    There(T),
}

impl Mongodb {
    pub(super) fn collection_schema(&self, what: Schema, by: &Deadline) -> Result<String, MongodbError> {
        match what {
            Schema::Describe => Ok(self.commands()),
            Schema::Check => self.check(Missing::IsRefused, by),
            Schema::Connect(missing) => self.check(missing, by),
            Schema::Create => self.create(&by.long()),
        }
    }

    /// The commands for those who make the collection by other means.
    fn commands(&self) -> String {
        let name = &self.collection;
        let unique =
            format!("db.getCollection({name:?}).createIndex({{\"resource\": 1}}, {{unique: true, sparse: true}})");
        let others = OTHERS.map(|key| format!("db.getCollection({name:?}).createIndex({{{key:?}: 1}})"));
        std::iter::once(unique).chain(others).collect::<Vec<_>>().join("\n")
    }

    fn check(&self, missing: Missing, by: &Deadline) -> Result<String, MongodbError> {
        if let Known::There(collection) = self.collection(by)? {
            self.check_kind(&collection)?;
        }
        let name = &self.collection;
        let lacks = match self.indexes(by)? {
            Known::There(indexes) => match uniqueness(name, &indexes)? {
                Unique::There => {
                    self.noticed.is_unique.store(true, Ordering::Relaxed);
                    return Ok(format!("{name}: the collection is there, with its unique index on {UNIQUE:?}"));
                }
                Unique::Building => {
                    format!("the unique index of the collection {name:?} is still being built; wait until that is done")
                }
                Unique::Missing => {
                    format!("the collection {name:?} has no unique index on \"resource\"; create_schema() makes it")
                }
            },
            Known::Missing => format!("the collection {name:?} does not exist; create_schema() makes it"),
            Known::Hidden => {
                self.noticed.is_unique.store(true, Ordering::Relaxed);
                let text = "listIndexes is denied, so it was not checked that the collection has its unique index";
                log::warn!(target: "leasehold::mongodb", store:? = self.info.label; "{text}");
                return Ok(text.to_owned());
            }
        };
        if missing == Missing::IsRefused {
            return Err(MongodbError::Schema(lacks));
        }
        // Only a warning, since a caller that makes the collection must connect first. Every use of a missing one is an
        // error.
        log::warn!(target: "leasehold::mongodb", store:? = self.info.label; "{lacks}");
        Ok(lacks)
    }

    /// An error while the collection may have two documents of one key. Each call checks again, until one finds the
    /// index.
    pub(super) fn must_be_unique(&self, by: &Deadline) -> Result<(), MongodbError> {
        if self.noticed.is_unique.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = self.check(Missing::IsAllowed, by)?;
        if self.noticed.is_unique.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(MongodbError::Schema(format!("{found}: without a unique index two could hold one lock")))
    }

    /// After a duplicate-key error: an error if the document of this key collides with something that is no lock's,
    /// because it always would. Otherwise another client made the document at the same time.
    pub(super) fn must_be_ours(&self, key: &str, found: &MongodbError, by: &Deadline) -> Result<(), MongodbError> {
        let told = found.cause().map(ToString::to_string).unwrap_or_default();
        let index = told.rsplit_once(" index: ").map_or("", |(_, name)| name);
        if !index.is_empty() && index != "_id_" {
            let Known::There(indexes) = self.indexes(by)? else { return Ok(()) };
            let is_others =
                |there: &Document| there.get_str("name").is_ok_and(|name| name == index) && !is_on(there, UNIQUE);
            if !indexes.iter().any(is_others) {
                return Ok(());
            }
            return Err(MongodbError::Schema(format!(
                "the unique index {index:?} of the collection {:?}, which leasehold did not make, refuses the documents of \
                 locks; drop it, or keep the locks in a collection of their own",
                self.collection
            )));
        }
        let others = self.find(doc! { "_id": key, "resource": { "$ne": key } }, 1, Consistency::Strong, by)?;
        if others.is_empty() {
            return Ok(());
        }
        Err(MongodbError::Schema(format!(
            "the collection {:?} has a document that is no lock's with the key as its _id; delete it, or keep the \
             locks in a collection of their own",
            self.collection
        )))
    }

    fn check_kind(&self, collection: &Document) -> Result<(), MongodbError> {
        let name = &self.collection;
        let wrong = |what: &str| {
            Err(MongodbError::Schema(format!("{name:?} is {what}; name an ordinary collection by collection=..")))
        };
        match collection.get_str("type") {
            Ok("view") => return wrong("a view, which cannot be written"),
            Ok("timeseries") => return wrong("a time series, whose documents cannot be changed"),
            _ => {}
        }
        let empty = Document::new();
        let options = collection.get_document("options").unwrap_or(&empty);
        if options.get_bool("capped").unwrap_or(false) {
            return wrong("a capped collection, which forgets its oldest documents");
        }
        if options.contains_key("collation") {
            return wrong("a collection with a collation of its own, by which two keys may be one");
        }
        Ok(())
    }

    fn create(&self, by: &Deadline) -> Result<String, MongodbError> {
        if let Known::There(collection) = self.collection(&by.of_request())? {
            self.check_kind(&collection)?;
        }
        let (there, is_new) = match self.indexes(&by.of_request())? {
            Known::There(indexes) => (indexes, false),
            Known::Missing => (Vec::new(), true),
            Known::Hidden => (Vec::new(), false),
        };
        let mut missing = Vec::new();
        // If the index is being built already, this waits for it.
        if !matches!(uniqueness(&self.collection, &there)?, Unique::There) {
            let options = IndexOptions::builder().unique(true).sparse(true).build();
            missing.push(IndexModel::builder().keys(doc! { UNIQUE: 1 }).options(options).build());
        }
        for key in OTHERS {
            if !there.iter().any(|index| is_on(index, key)) {
                missing.push(IndexModel::builder().keys(doc! { key: 1 }).build());
            }
        }
        let is = match (is_new, missing.is_empty()) {
            (true, _) => "was made, with its indexes",
            (false, true) => "is there, with its indexes",
            (false, false) => "is there, and the indexes that it lacked were built",
        };
        if !missing.is_empty() {
            match self.build(missing, by) {
                Err((Fate::Duplicate, _)) => {
                    return Err(MongodbError::Schema(format!(
                        "the collection {:?} has two documents with the same \"resource\"; delete one of them once \
                         nobody holds it, and repeat",
                        self.collection
                    )));
                }
                Err((Fate::Refused, MongodbError::Other { cause })) => {
                    return Err(MongodbError::Schema(format!(
                        "the indexes of the collection {:?} can't be built ({cause}); drop one that is in the way, and repeat",
                        self.collection
                    )));
                }
                answer => match unknown_is_an_answer(answer)? {
                    Wrote::Answered(()) => {}
                    Wrote::Unknown(error) => return Err(error.of_read()),
                },
            }
        }
        self.noticed.is_unique.store(true, Ordering::Relaxed);
        Ok(format!("{}: the collection {is}", self.collection))
    }

    /// Builds the indexes in one request, which lasts as long as the build: the server would end the build with the
    /// request. Meanwhile the server is asked whether it is still there.
    fn build(&self, missing: Vec<IndexModel>, by: &Deadline) -> Answer<()> {
        let (limit, each, store) = (limit(by), by.of_request().remaining(), self.info.label.clone());
        self.send(by, move |owned| async move {
            let request = owned.locks.create_indexes(missing).max_time(limit).write_concern(majority(None));
            let (mut building, started) = (request.into_future(), Instant::now());
            loop {
                if let Ok(built) = tokio::time::timeout(each, &mut building).await {
                    return built.map(drop);
                }
                match tokio::time::timeout(each, uncounted(hello(&owned))).await {
                    Ok(Err(error)) if !is_answer(&error) => return Err(error),
                    Ok(_) => {}
                    Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                }
                log::info!(
                    target: "leasehold::mongodb", store:?;
                    "the server is still building the indexes, after {} s", started.elapsed().as_secs()
                );
            }
        })
    }

    fn collection(&self, by: &Deadline) -> Result<Known<Document>, MongodbError> {
        let name = self.collection.clone();
        let answer = self.ask(by, move |owned| async move {
            let ask = doc! { "listCollections": 1, "filter": { "name": name }, "authorizedCollections": true };
            owned.client.database(&owned.locks.namespace().db).run_command(ask).await
        });
        Ok(match first_batch(answer)? {
            Known::There(mut found) => found.pop().map_or(Known::Missing, Known::There),
            Known::Missing => Known::Missing,
            Known::Hidden => Known::Hidden,
        })
    }

    fn indexes(&self, by: &Deadline) -> Result<Known<Vec<Document>>, MongodbError> {
        let name = self.collection.clone();
        let answer = self.ask(by, move |owned| async move {
            // Without the build ids, an index that is being built looks like the others.
            let ask = doc! { "listIndexes": name, "cursor": { "batchSize": 200 }, "includeBuildUUIDs": true };
            owned.client.database(&owned.locks.namespace().db).run_command(ask).await
        });
        first_batch(answer)
    }

    /// Warns about a server without a replica set; called once, when the client connects.
    pub(super) fn warn_if_alone(&self) {
        if self.topology == Some(Topology::Standalone) {
            log::warn!(
                target: "leasehold::mongodb", store:? = self.info.label;
                "the server belongs to no replica set: an acquire that was given up and arrives late is not stopped, \
                 and what is written is gone with its disk"
            );
        }
    }
}

/// The documents of a listing.
fn first_batch(answer: Result<Document, MongodbError>) -> Result<Known<Vec<Document>>, MongodbError> {
    match answer {
        Ok(answer) => {
            let cursor = answer.get_document("cursor").ok();
            let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
            let documents = batch.into_iter().flatten().filter_map(Bson::as_document).cloned();
            Ok(Known::There(documents.collect()))
        }
        Err(MongodbError::Own(Own::Denied, _)) => Ok(Known::Hidden),
        Err(error) if error.is_no_collection() => Ok(Known::Missing),
        Err(error) => Err(error),
    }
}

/// Whether there is a right unique index. An index in its place that does not keep keys apart is an error. So is an
/// index with a time to live on fields of locks, which would delete locks that are held.
fn uniqueness(collection: &str, indexes: &[Document]) -> Result<Unique, MongodbError> {
    // The description of an index that is being built is in a document of its own.
    let mut all = indexes.iter().map(|index| index.get_document("spec").unwrap_or(index));
    let deletes = |index: &&Document| {
        let of_a_lock =
            |field: &String| field.starts_with("exclusive.") || field.starts_with("shared.") || field == "ended";
        index.contains_key("expireAfterSeconds") && index.get_document("key").is_ok_and(|key| key.keys().any(of_a_lock))
    };
    if let Some(index) = all.find(deletes) {
        let name = index.get_str("name").unwrap_or_default();
        return Err(MongodbError::Schema(format!(
            "the collection {collection:?} has the index {name} with a time to live, which deletes locks that are held, or \
             what is kept of those that are over; drop it"
        )));
    }
    let on: Vec<&Document> = indexes.iter().filter(|index| is_on(index, UNIQUE)).collect();
    let is_right = |index: &&Document| {
        let is_partial = index.contains_key("partialFilterExpression") || index.contains_key("collation");
        index.get_bool("unique").unwrap_or(false) && !is_partial
    };
    if on.iter().any(is_right) {
        return Ok(Unique::There);
    }
    if on.is_empty() {
        let being_built = indexes.iter().filter_map(|index| index.get_document("spec").ok());
        let is_building = being_built.into_iter().any(|index| is_on(index, UNIQUE));
        return Ok(if is_building { Unique::Building } else { Unique::Missing });
    }
    let names: Vec<&str> = on.iter().filter_map(|index| index.get_str("name").ok()).collect();
    Err(MongodbError::Schema(format!(
        "the collection {collection:?} has the index {}, which must be unique, for all documents and without a \
         collation; drop it, and create_schema() makes it right",
        names.join(", ")
    )))
}

/// Whether the index is on this field and no other.
fn is_on(index: &Document, field: &str) -> bool {
    index.get_document("key").is_ok_and(|key| key.len() == 1 && key.contains_key(field))
}
