//! What only the MongoDB store has.
//!
//! One collection holds the locks, a document for each key; it can be the collection of mongo-lock, whose documents
//! are read and respected. [`create_schema`](crate::LockClient::create_schema) makes it with its indexes, of which the
//! unique one on `resource` must be there. Acquire, heartbeat, release and refusal are one request each.
//!
//! The server's clock decides (`$$NOW`). Every write waits until the majority has it in its journal, and goes to the
//! primary, whatever the settings say.

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
