//! To extend a lease while its grant holds: one `findAndModify`, whose answer is the document as it is afterwards.

use super::acquire::ours;
use super::error::MongodbError;
use super::send::{Update, Wrote};
use super::{Mongodb, mixed, pipeline};
use crate::store::{Attempt, Renewal, Renewed};
use crate::sys::deadline::Deadline;

impl Mongodb {
    pub(super) fn renew_grant(
        &self,
        attempt: &mut Attempt,
        renewal: Renewal,
        by: &Deadline,
    ) -> Result<Renewed, MongodbError> {
        let (id, mode) = (ours(attempt.grant())?, attempt.ask.mode);
        let not_after = self.noticed.clocked.not_after(by);
        let update = Update {
            key: attempt.key.clone(),
            not_after: Some(not_after),
            pipeline: mixed::renewal(self.fleet, mode, id, pipeline::renew(mode, id, renewal)),
            upsert: false,
            after: true,
            // A guard takes no answer that comes after its end. Who only has the lock's data does not know of one.
            extends: renewal.may_end_endless,
            session: self.register.of(&mut attempt.native),
        };
        let mut found = match self.update(update, by)? {
            Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
            Wrote::Answered(row) => self.found(&attempt.key, row, by)?,
        };
        // It found no document, since it came too late; by now the server's time is known.
        if found.row.is_none() && found.now >= not_after {
            return self.renew_grant(attempt, renewal, by);
        }
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
