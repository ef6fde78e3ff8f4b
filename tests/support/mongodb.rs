//! Collections on a MongoDB, whose documents a test can make older.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold::internals::store::mongodb::{Mongodb, MongodbOptions, Settings};
use leasehold::internals::store::{Backend, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::mongodb::driver::bson::{Bson, Document, doc};
use leasehold::mongodb::driver::options::{ClientOptions, ConnectionString};
use leasehold::mongodb::driver::sync::{Client, Collection};

use super::harness::sent;
use super::servers::mongod;
use super::stores::{soon, unique};

pub const DATABASE: &str = "leasehold";

/// A collection that is dropped with this value.
pub struct Rows(pub String);

impl Rows {
    /// A new name; nothing is created.
    pub fn unmade() -> Rows {
        Rows(unique())
    }

    /// A new collection with its indexes.
    pub fn fresh() -> Rows {
        let rows = Rows::unmade();
        let by = Deadline::after(Duration::from_secs(60));
        rows.open().schema(Schema::Create, &by).unwrap();
        rows
    }

    /// A client of it.
    pub fn open(&self) -> Mongodb {
        // The library looks for a primary for three seconds at most, however much time the call has.
        sent(|| Mongodb::open(self.options(), &soon()))
    }

    pub fn options(&self) -> MongodbOptions {
        self.options_at(&mongod().unwrap())
    }

    /// The same at another server.
    pub fn options_at(&self, uri: &str) -> MongodbOptions {
        Rows::options_named(&self.0, uri)
    }

    /// A collection of this name at another server.
    pub fn options_named(name: &str, uri: &str) -> MongodbOptions {
        let settings = Settings::Url(Box::new(ConnectionString::parse(uri).unwrap()));
        MongodbOptions::new(settings, Some(DATABASE.to_owned()), Some(name.to_owned())).unwrap()
    }

    /// At the server of the tests, with settings that `change` has changed.
    pub fn options_with(&self, change: impl FnOnce(&mut ClientOptions)) -> MongodbOptions {
        let mut options = settings(&mongod().unwrap());
        change(&mut options);
        MongodbOptions::new(Settings::Given(Box::new(options)), Some(DATABASE.to_owned()), Some(self.0.clone()))
            .unwrap()
    }

    /// The URL of the collection.
    pub fn url(&self) -> String {
        with_database(&mongod().unwrap(), &format!("collection={}", self.0))
    }

    /// The collection as any other program sees it.
    pub fn raw(&self) -> Collection<Document> {
        server().database(DATABASE).collection(&self.0)
    }

    /// The document of a key.
    pub fn row(&self, key: &str) -> Option<Document> {
        self.raw().find_one(doc! { "resource": key }).run().unwrap()
    }

    /// Moves every time of every document into the past, as if this much time had passed.
    pub fn age(&self, by: Duration) {
        let millis = i64::try_from(by.as_nanos().div_ceil(1_000_000)).unwrap();
        let earlier = |of: &str| -> Bson {
            doc! { "$cond": [{ "$eq": [{ "$type": of }, "date"] }, { "$subtract": [of, millis] }, of] }.into()
        };
        let entry = |of: &str| -> Bson {
            let field = |name: &str| earlier(&format!("{of}.{name}"));
            let times = doc! {
                "createdAt": field("createdAt"), "renewedAt": field("renewedAt"), "expiresAt": field("expiresAt"),
            };
            doc! { "$cond": [{ "$eq": [{ "$type": of }, "object"] }, { "$mergeObjects": [of, times] }, of] }.into()
        };
        let locks = doc! { "$map": { "input": "$shared.locks", "as": "l", "in": entry("$$l") } };
        let shared = doc! { "$cond": [
            { "$eq": [{ "$type": "$shared.locks" }, "array"] },
            { "$mergeObjects": ["$shared", { "locks": locks }] },
            "$shared",
        ] };
        let update = vec![doc! { "$set": { "exclusive": entry("$exclusive"), "shared": shared } }];
        self.raw().update_many(doc! {}, update).run().unwrap();
    }

    /// Says that the exclusive holder was granted the key in an hour, by a clock that is ahead of the server's.
    pub fn grant_ahead(&self, key: &str) {
        let ahead = doc! { "$set": { "exclusive.createdAt": { "$add": ["$$NOW", 3_600_000_i64] } } };
        assert_eq!(self.raw().update_one(doc! { "resource": key }, vec![ahead]).run().unwrap().modified_count, 1);
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        let _ = self.raw().drop().run();
    }
}

/// The server of the tests, for what a user would do.
pub fn server() -> &'static Client {
    static SERVER: LazyLock<Client> = LazyLock::new(|| Client::with_uri_str(mongod().unwrap()).unwrap());
    &SERVER
}

/// Settings as a user would make them.
pub fn settings(uri: &str) -> ClientOptions {
    ClientOptions::parse(uri).run().unwrap()
}

/// The URL with the test database and more options.
pub fn with_database(uri: &str, options: &str) -> String {
    let (hosts, query) = uri.split_once('?').unwrap_or((uri, ""));
    let hosts = hosts.trim_end_matches('/');
    let options = [query, options].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("&");
    format!("{hosts}/{DATABASE}?{options}")
}

/// The first host of a URL, with its port.
pub fn host(uri: &str) -> String {
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let hosts = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    hosts.split(',').next().unwrap_or_default().to_owned()
}
