//! Reads one key, or a page by prefix or lock id. Each has an index.

use std::time::Instant;

use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;

use super::error::MongodbError;
use super::pipeline::projection;
use super::send::limit;
use super::{DatedDocument, Mongodb, Topology};
use crate::lease::StoreTime;
use crate::store::{Consistency, Page, Which};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How many records a page holds.
const PAGE: u32 = 100;

impl Mongodb {
    pub(super) fn read_page(
        &self,
        which: &Which,
        from: Option<String>,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<Page, MongodbError> {
        let filter = match which {
            Which::Key(key) => {
                let row = self.find(doc! { "resource": key }, 1, consistency, by)?.pop();
                let found = match row {
                    Some(row) => DatedDocument::new(key, row)?,
                    None => DatedDocument::missing(key, self.server_time(by)?),
                };
                self.watch_fleet(&found);
                return Ok(Page { records: vec![found.seen()], next: None });
            }
            // Strings are compared byte by byte, so the keys with this prefix follow each other, from the prefix on. An
            // array is compared by its elements, and is no key.
            Which::Prefix(prefix) => doc! { "resource": { "$gte": prefix, "$not": { "$type": "array" } } },
            Which::LockId(id) => doc! { "$or": [{ "exclusive.lockId": id }, { "shared.locks.lockId": id }] },
        };
        let filter = match &from {
            Some(from) => doc! { "$and": [filter, { "resource": { "$gt": from } }] },
            None => filter,
        };
        let rows = self.find(filter, PAGE, consistency, by)?;
        let is_full = rows.len() == PAGE as usize;
        let (mut records, mut last, mut is_past) = (Vec::new(), None, false);
        for row in rows {
            let Ok(key) = row.get_str("resource").map(str::to_owned) else { continue };
            if let Which::Prefix(prefix) = which
                && !key.starts_with(prefix.as_str())
            {
                is_past = true;
                break;
            }
            if !super::row::is_lock(&row) {
                last = Some(key);
                continue;
            }
            match DatedDocument::new(&key, row) {
                // The filter asked for the lock id, so a document that can't be read has it.
                Ok(found) if which.may_match(&found.record, |_| true) => {
                    self.watch_fleet(&found);
                    records.push(found.seen());
                }
                Ok(_) => {}
                Err(error) => {
                    log::warn!(target: "leasehold::mongodb", key:?; "a damaged document is passed over: {error}");
                }
            }
            last = Some(key);
        }
        Ok(Page { records, next: last.filter(|_| is_full && !is_past) })
    }

    /// The documents, in the order of their keys. A strong read returns only what the majority has. For a single key it
    /// returns all that the majority has, even from a new primary that does not know yet what the primary before it has
    /// answered.
    pub(super) fn find(
        &self,
        filter: Document,
        most: u32,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<Vec<Document>, MongodbError> {
        let concern = match consistency {
            // A standalone server has no majority, and refuses such a read concern.
            Consistency::Eventual => ReadConcern::local(),
            _ if self.topology == Some(Topology::Standalone) => ReadConcern::local(),
            _ if most == 1 => ReadConcern::linearizable(),
            _ => ReadConcern::majority(),
        };
        let limit = limit(by);
        self.ask(by, move |owned| async move {
            let _turn = match consistency {
                Consistency::Strong | Consistency::Holders => None,
                Consistency::Eventual => Some(owned.turns.look().await),
            };
            let request = owned.locks.find(filter).projection(projection()).read_concern(concern).max_time(limit);
            // One batch, so that no cursor is left open.
            let request = request.limit(i64::from(most)).batch_size(most + 1);
            let request = if most > 1 { request.sort(doc! { "resource": 1 }) } else { request };
            let mut cursor = request.await?;
            let mut rows = Vec::new();
            while cursor.advance().await? {
                rows.push(cursor.deserialize_current()?);
            }
            Ok(rows)
        })
    }

    /// What an answer shows. An answer without a document has no time either, so the server is asked for it.
    pub(super) fn found(
        &self,
        key: &str,
        row: Option<Document>,
        sent: Instant,
        by: &Deadline,
    ) -> Result<DatedDocument, MongodbError> {
        let found = match row {
            Some(row) => DatedDocument::new(key, row)?,
            None => DatedDocument::missing(key, self.server_time(by)?),
        };
        self.noticed.clocked.note(found.now, sent);
        Ok(found)
    }

    /// The server's time, where no document says it.
    pub(super) fn server_time(&self, by: &Deadline) -> Result<StoreTime, MongodbError> {
        let hello = self.ask(by, |owned| async move { super::open::hello(&owned).await })?;
        super::open::local_time(&hello).ok_or_else(|| MongodbError::Config("the server does not say its time".into()))
    }
}
