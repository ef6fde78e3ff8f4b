//! Which libraries have locks in a store that a Go library may use, too.

use std::time::SystemTime;

use crate::api::client::LockClient;
use crate::model::error::Result;
use crate::model::key;
use crate::model::lock::LockStatus;
use crate::store::{Consistency, Which};
use crate::sys::deadline::Deadline;

/// A diagnosis reads at most this many pages, because a store may charge for each row.
const PAGES: usize = 5;

/// A library that has locks in the store, by the rows that a diagnosis looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Writer {
    /// Its name: `leasehold`, or that of a Go library.
    pub library: &'static str,
    /// How many of its holders are in these rows, live and expired. A released lock does not say which library had it.
    pub holders: usize,
    /// When it last wrote one of them, by this host's wall clock.
    pub last: SystemTime,
}

impl LockClient {
    /// The libraries that have locks in the store, by its first few hundred rows; none are read if no other library has
    /// the store's format. Also returns how many rows were read, if there may be more.
    pub(crate) fn writers(&self, by: impl Fn() -> Deadline) -> Result<(Vec<Writer>, Option<usize>)> {
        let backend = &self.family.backend;
        let Some(theirs) = backend.info().beside else { return Ok((Vec::new(), None)) };
        let (mut writers, mut from, mut rows) = (Vec::new(), None, 0);
        for _ in 0..PAGES {
            let page = backend.read(&Which::Prefix(String::new()), from, Consistency::Eventual, &by())?;
            // Leaves out the rows of diagnoses, and leases.
            for seen in page.records.iter().filter(|seen| key::parts(&seen.record.key).is_none()) {
                for (mode, holder) in seen.record.holders() {
                    let library = if holder.is_foreign() { theirs } else { "leasehold" };
                    count(&mut writers, library, &LockStatus::new(seen, mode, holder));
                }
            }
            (from, rows) = (page.next, rows + page.records.len());
            if from.is_none() {
                break;
            }
        }
        writers.sort_by_key(|writer| writer.library != "leasehold");
        Ok((writers, from.map(|_| rows)))
    }
}

fn count(writers: &mut Vec<Writer>, library: &'static str, status: &LockStatus) {
    // A store's time may be known to the second only, and so may seem to be in the future.
    let mut last = status.renewed().unwrap_or(status.created()).min(SystemTime::now());
    if last == SystemTime::UNIX_EPOCH {
        // Old versions of dynamodb-lock-go write no time but the end.
        last = status.leased_until().unwrap_or(last).min(SystemTime::now());
    }
    match writers.iter_mut().find(|writer| writer.library == library) {
        Some(writer) => (writer.holders, writer.last) = (writer.holders + 1, writer.last.max(last)),
        None => writers.push(Writer { library, holders: 1, last }),
    }
}
