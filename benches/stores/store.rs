//! The stores that are measured. To add one, write a function here that makes its `Store`, with its requests done raw.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leasehold::{ClientBuilder, LockClient};

/// A store to be measured.
pub struct Store {
    pub name: &'static str,
    /// The URL from which `builder` makes clients, in other processes, too.
    pub url: String,
    /// The same statements without the library.
    pub raw: Option<Box<dyn Raw>>,
    /// What people use instead of such a lock, with its name.
    pub peers: Vec<(&'static str, Box<dyn Peer>)>,
    /// Several processes can share it.
    pub shared: bool,
    /// How long after its end a lease is respected.
    pub grace: Duration,
    /// Makes another way to the store, on which a request can be made to stall.
    pub stalling: Option<Box<dyn Fn() -> Stalling>>,
}

/// See [`Store::stalling`].
pub struct Stalling {
    pub url: String,
    /// Makes the next request take this much longer.
    pub stall: Box<dyn Fn(Duration)>,
}

/// The low-level calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Acquire,
    Renew,
    Release,
    Refused,
}

/// What a careful program would do by hand, with the same promise about power cuts.
pub trait Raw {
    /// Prepares what the call needs but is not part of it.
    fn prepare(&mut self, call: Call);
    /// Makes the call, which must succeed.
    fn run(&mut self, call: Call);
}

/// Another kind of lock on the same server.
pub trait Peer {
    /// Acquires it and releases it.
    fn hold(&mut self);
}

/// Every store of this build whose server is available.
pub fn stores(folder: &Path, only: Option<&str>) -> Vec<Store> {
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let mut stores = Vec::new();
    if wanted("memory") {
        stores.push(Store::new("memory", "memory:bench".to_owned(), None, false));
    }
    #[cfg(feature = "sqlite")]
    if wanted("sqlite") {
        let raw = super::raw_sqlite::RawSqlite::new(&folder.join("raw.db"));
        let url = format!("sqlite:{}", folder.join("locks.db").display());
        stores.push(Store::new("sqlite", url, Some(Box::new(raw)), true));
    }
    #[cfg(feature = "dynamodb")]
    if wanted("dynamodb") {
        stores.extend(super::raw_dynamodb::store());
    }
    #[cfg(feature = "mongodb")]
    if wanted("mongodb") {
        stores.extend(super::raw_mongodb::store());
    }
    #[cfg(feature = "postgres")]
    if wanted("postgres") {
        stores.extend(super::raw_postgres::store());
    }
    #[cfg(feature = "spanner")]
    if wanted("spanner") {
        stores.extend(super::raw_spanner::store());
    }
    let _ = folder;
    stores
}

/// A client of the store with this URL.
pub fn builder(url: &str) -> ClientBuilder {
    #[cfg(feature = "dynamodb")]
    if url.starts_with(super::raw_dynamodb::SCHEME) {
        return super::raw_dynamodb::builder(url);
    }
    #[cfg(feature = "spanner")]
    if url.starts_with(super::raw_spanner::SCHEME) {
        return super::raw_spanner::builder(url);
    }
    LockClient::builder(url)
}

/// The same, with a count of everything that its SDK sends, where the SDK reports that.
pub fn counting(url: &str) -> Option<(ClientBuilder, Arc<AtomicU64>)> {
    #[cfg(feature = "mongodb")]
    if url.starts_with("mongodb:") {
        return Some(super::raw_mongodb::counting(url));
    }
    let _ = url;
    None
}

impl Store {
    pub fn new(name: &'static str, url: String, raw: Option<Box<dyn Raw>>, shared: bool) -> Store {
        Store { name, url, raw, peers: Vec::new(), shared, grace: Duration::ZERO, stalling: None }
    }

    pub fn connect(&self) -> LockClient {
        builder(&self.url).connect().expect("the store")
    }
}
