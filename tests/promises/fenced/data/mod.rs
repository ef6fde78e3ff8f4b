//! A user's own data in the database that holds the locks: a text for each key, written in a transaction by the
//! official SDK. The benches use it, too.
#![allow(dead_code)] // Each user needs only a part of it.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "spanner")]
pub mod spanner;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use leasehold::fence::Fenced;
use leasehold::{Error, LockGuard};

/// What a transaction reads and writes.
pub struct Change<'a> {
    key: &'a str,
    text: &'a str,
    /// Runs between the read and the write.
    meanwhile: &'a mut dyn FnMut(),
}

pub trait Data: Send + Sync {
    /// One transaction: reads the text of the key, runs `meanwhile`, writes `text`, and asserts what is held, if
    /// anything. All of it is repeated if the store reports that another write came between. Returns how often it was
    /// begun.
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error>;

    fn text(&self, key: &str) -> Option<String>;

    fn write<F: Fenced>(&self, held: &F, key: &str, text: &str) -> Result<(), Error> {
        self.transact(Some(held), key, text, &mut || {}).map(drop)
    }

    fn transact<F: Fenced>(
        &self,
        held: Option<&F>,
        key: &str,
        text: &str,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<u32, Error> {
        self.change(held, Change { key, text, meanwhile })
    }

    /// Writes without the assertion.
    fn write_bare(&self, key: &str, text: &str, meanwhile: &mut dyn FnMut()) {
        self.transact::<LockGuard>(None, key, text, meanwhile).expect("a transaction that asserts nothing");
    }
}
