//! Removes a holder: one `findAndModify`, whose answer is the document as it was before.

use std::time::Instant;

use super::acquire::ours;
use super::error::MongodbError;
use super::row::stands;
use super::send::{Update, Wrote, has_time};
use super::{Mongodb, pipeline};
use crate::store::{Attempt, Released};
use crate::sys::deadline::Deadline;

impl Mongodb {
    /// A release is also a give-up: acquire and release both go in the attempt's session, which stops an acquire that
    /// arrives after the release.
    pub(super) fn release_grant(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Released, MongodbError> {
        let id = ours(attempt.grant())?;
        let update = Update {
            key: attempt.key.clone(),
            not_after: None,
            pipeline: pipeline::release(attempt.ask.mode, id),
            upsert: false,
            after: false,
            extends: false,
            session: self.register.of(&mut attempt.native),
            grants: None,
        };
        let sent = Instant::now();
        let row = match self.update(update, by)? {
            Wrote::Unknown(error) => return Ok(Released::Unknown(error.into())),
            // No document: nobody holds it.
            Wrote::Answered(None) => return Ok(Released::Free),
            // An old answer that the server repeats: the grant was there, and was removed.
            Wrote::Answered(Some(row)) if !has_time(&row) => return Ok(Released::Done),
            Wrote::Answered(row) => row,
        };
        let stood = row.as_ref().is_some_and(|row| stands(row, attempt.ask.mode, &id));
        let found = match self.found(&attempt.key, row, sent, by) {
            // Whatever else is in the document, the grant was in it, and was removed.
            Err(MongodbError::Damaged(_)) if stood => return Ok(Released::Done),
            found => found?,
        };
        found.record.check_format()?;
        self.watch_fleet(&found);
        let seen = found.seen();
        Ok(if seen.record.standing(attempt.grant()).is_some() {
            Released::Done
        } else if seen.live().next().is_some() {
            Released::HeldByOther(seen)
        } else {
            Released::Free
        })
    }
}
