//! Extends a lease while its grant holds: one `findAndModify`, whose answer is the document as it is afterwards.

use std::time::Instant;

use mongodb::bson::doc;

use super::acquire::ours;
use super::error::MongodbError;
use super::row::stands;
use super::send::{Update, Wrote};
use super::{Mongodb, mixed, pipeline};
use crate::store::{Attempt, Consistency, Renewal, Renewed};
use crate::sys::deadline::Deadline;

impl Mongodb {
    pub(super) fn renew_grant(
        &self,
        attempt: &mut Attempt,
        renewal: Renewal,
        by: &Deadline,
    ) -> Result<Renewed, MongodbError> {
        let (id, mode) = (ours(attempt.grant())?, attempt.ask.mode);
        let mut found = loop {
            let sent = Instant::now();
            let update = Update {
                key: attempt.key.clone(),
                not_after: Some(self.noticed.clocked.not_after(by)),
                pipeline: mixed::renewal(self.fleet, mode, id, pipeline::renew(mode, id, renewal)),
                upsert: false,
                after: true,
                // A guard ignores an answer that comes after its end. A caller that only has the lock's data does not
                // know of an end, so the server gets less time for its request.
                extends: renewal.may_end_endless,
                session: self.register.of(&mut attempt.native),
                grants: None,
            };
            match self.update(update, by)? {
                Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
                Wrote::Answered(Some(row)) => {
                    let stood = stands(&row, mode, &id);
                    match self.found(&attempt.key, Some(row), sent, by) {
                        // The renewal was written, but the document can't be read.
                        Err(error @ MongodbError::Damaged(_)) if stood => {
                            return Ok(Renewed::Unknown(error.of_write().into()));
                        }
                        found => break found?,
                    }
                }
                Wrote::Answered(None) => {}
            }
            // Either there is no document, or the request came too late by what was known of the server's time. This
            // read corrects that time.
            let sent = Instant::now();
            let row = self.find(doc! { "resource": &attempt.key }, 1, Consistency::Strong, by)?.pop();
            let found = self.found(&attempt.key, row, sent, by)?;
            if found.row.is_none() {
                break found;
            }
        };
        found.record.check_format()?;
        self.watch_fleet(&found);
        self.free_now_and_then(found.now, by);
        if self.is_too_late(&mut found, attempt.grant()) {
            return Ok(Renewed::Lost(found.seen()));
        }
        match found.record.standing(attempt.grant()) {
            Some((_, holder)) => Ok(Renewed::Until { until: holder.until, now: found.now }),
            None => Ok(Renewed::Lost(found.seen())),
        }
    }
}
