//! What only the MongoDB store has.
//!
//! One collection holds the locks, a document for each key; it can be the collection of mongo-lock, whose documents
//! are read and respected. [`create_schema`](crate::LockClient::create_schema) makes it with its indexes, of which the
//! unique one on `resource` must be there. Acquire, heartbeat, release and refusal are one request each.
//!
//! The server's clock decides (`$$NOW`). Every write waits until the majority has it in its journal, and goes to the
//! primary, whatever the settings say.
//!
//! # Rights
//! | who | role on the database | or these actions on the collection |
//! |---|---|---|
//! | makes the collection | `readWrite` | `createCollection`, `createIndex` |
//! | locks | `readWrite` | `find`, `insert`, `update`, and `remove` to purge |
//! | looks | `read` | `find` |
//! | waits, and wants to be told at once | `read` | `changeStream`, beside `find` |
//!
//! Connecting asks for `listCollections` and `listIndexes`, which both roles have. Where they are denied, that the
//! unique index is there is believed, with a warning. Where change streams are denied waiters poll, which is said once.
//!
//! # Certificates
//! The driver trusts the well-known authorities that it brings along, not those of the system. For a private one say
//! `tlsCAFile=/path/ca.pem` in the URL; a certificate of one's own is `tlsCertificateKeyFile=/path/me.pem`.
//!
//! # Sharded clusters
//! Shard the collection by `{resource: 1}`, unique. The clock is then the router's, so the clocks of all routers must
//! agree within the margin of a lease, as those of a replica set's members must. (Not part of the tests.)
//!
//! # What the majority promises
//! A grant that was answered outlives elections, crashes and power cuts of a minority. It does not outlive a majority
//! that loses its disks, a forced reconfiguration, nor members that answer before their journal is written
//! (`writeConcernMajorityJournalDefault: false`). While no majority can be reached nothing is granted, renewed or
//! refused: a guard then lives as long as its lease, so let leases be longer than elections (some 12 s at MongoDB's
//! defaults). A primary that was cut off and comes back grants nothing, since its majority has gone on.
//!
//! A server alone, in no replica set, works with a warning: an acquire that was given up and still arrives is not
//! stopped there and blocks the key for up to a minute, and waiters poll.
//!
//! # Versions
//! MongoDB 4.4 or newer; below 5.0 waiters poll. The tests run on 6.0.5. Amazon DocumentDB, Azure Cosmos DB and
//! FerretDB speak the protocol but not all that locks need, and are refused by name.

pub use mongodb as driver;
use mongodb::options::ClientOptions;

use crate::backend::mongodb::{MongodbOptions, Settings};
use crate::builder::ClientBuilder;
use crate::connect::mongodb_collection;
use crate::rt::clock::Clock;

/// A client of the locks in the collection `locks` of the default database of `options`.
///
/// Only the settings are used: connections are our own, on a thread of our own. Write concern, read concern and read
/// preference are not used, nor longer timeouts than locks can bear.
///
/// # Example
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// # let options = leasehold::mongodb::driver::options::ClientOptions::default();
/// // let options = ClientOptions::parse("mongodb://localhost/app").await?;
/// let client = leasehold::mongodb::builder(options).connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(options: ClientOptions) -> ClientBuilder {
    over(MongodbOptions::new(given(options), None, None))
}

/// The same in another database and collection.
pub fn builder_with(
    options: ClientOptions,
    database: impl Into<String>,
    collection: impl Into<String>,
) -> ClientBuilder {
    over(MongodbOptions::new(given(options), Some(database.into()), Some(collection.into())))
}

fn given(options: ClientOptions) -> Settings {
    Settings::Given(Box::new(options))
}

fn over(options: crate::Result<MongodbOptions>) -> ClientBuilder {
    ClientBuilder::with_opener(mongodb_collection(options), Clock::system())
}
