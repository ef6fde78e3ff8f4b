//! Writes a whole record, if nothing changed since it was read: the parts of the document that matter are compared
//! whole, as they were read.

use mongodb::bson::{Bson, Document, doc};

use super::error::{MongodbError, invalid};
use super::row::encode;
use super::send::{Wrote, limit, majority, unknown_is_an_answer};
use super::{Mongodb, mixed};
use crate::lease::LockRecord;
use crate::store::failure::Fate;
use crate::store::{Consistency, Seen, Swapped, Which};
use crate::sys::deadline::Deadline;

/// Only swaps raise the version, so that even a swap that writes the same fields changes the document.
const COMPARED: [&str; 7] = ["exclusive", "shared", "fence", "kind", "pins", "format", "version"];

/// The native part of what was read: the document as the server has it.
#[derive(Debug)]
pub(super) struct Row(pub Option<Document>);

impl Mongodb {
    pub(super) fn swap_record(
        &self,
        seen: &Seen,
        new: Option<&LockRecord>,
        by: &Deadline,
    ) -> Result<Swapped, MongodbError> {
        let native = seen.native.as_ref().and_then(|native| native.downcast_ref::<Row>());
        let Some(Row(row)) = native else { return Err(MongodbError::NotRead) };
        let key = seen.record.key.clone();
        seen.record.check_format()?;
        self.must_be_unique(by)?;
        let limit = limit(by);
        let concern = majority(Some(limit));
        let written = match (row, new) {
            // There is nothing to write, but a document may have been made meanwhile.
            (None, None) => {
                let page = self.read_page(&Which::Key(key), None, Consistency::Strong, by)?;
                let stands = page.records.iter().any(|seen| seen.record.exists());
                return Ok(if stands { Swapped::Changed } else { Swapped::Done });
            }
            (None, Some(new)) => {
                let (mut set, _) = encode(new, None).map_err(invalid)?;
                set.insert("_id", &key);
                set.insert("resource", key);
                set.insert("version", 1_i64);
                self.send(by, move |owned| async move {
                    owned.locks.insert_one(set).write_concern(concern).await.map(|_| 1)
                })
            }
            (Some(row), Some(new)) => {
                let (set, unset) = encode(new, Some(row)).map_err(invalid)?;
                let mut filter = unchanged(&key, row);
                let renews = mixed::renews_nothing_late(self.fleet, &seen.record, new, &mut filter);
                let in_time = mixed::limit_of_extending(self.fleet, limit);
                let mut update = doc! { "$set": set, "$inc": { "version": 1_i64 } };
                if !unset.is_empty() {
                    update.insert("$unset", unset);
                }
                self.send(by, move |owned| async move {
                    if renews {
                        let swapped = owned.locks.find_one_and_update(filter, update).projection(doc! { "_id": 1 });
                        let swapped = swapped.max_time(in_time).write_concern(concern).await?;
                        return Ok(u64::from(swapped.is_some()));
                    }
                    let done = owned.locks.update_one(filter, update).write_concern(concern).await?;
                    Ok(done.matched_count)
                })
            }
            (Some(row), None) => {
                let filter = unchanged(&key, row);
                self.send(by, move |owned| async move {
                    let done = owned.locks.delete_one(filter).write_concern(concern).await?;
                    Ok(done.deleted_count)
                })
            }
        };
        if let Err((Fate::Duplicate, error)) = &written {
            self.must_be_ours(&seen.record.key, error, by)?;
            return Ok(Swapped::Changed);
        }
        Ok(match unknown_is_an_answer(written)? {
            Wrote::Answered(0) => Swapped::Changed,
            Wrote::Answered(_) => Swapped::Done,
            Wrote::Unknown(error) => Swapped::Unknown(error.into()),
        })
    }
}

/// Matches the document while it is as it was read. `$eq`, so that nothing in it is read as an operator.
fn unchanged(key: &str, row: &Document) -> Document {
    let mut filter = doc! { "resource": key };
    for name in COMPARED {
        // What was missing compares as null.
        filter.insert(name, doc! { "$eq": row.get(name).cloned().unwrap_or(Bson::Null) });
    }
    filter
}
