//! To be granted a key, to renew and to release: one `findAndModify` each, whose answer is the document as it stands
//! after (before a release) and the store's time. What it says is read, not concluded.

use mongodb::bson::oid::ObjectId;

use super::error::{MongodbError, invalid};
use super::pipeline::{self, Grant};
use super::row::{object_id, token};
use super::send::{Update, Wrote, has_time};
use super::{Found, Mongodb};
use crate::lease::GrantId;
use crate::store::{Acquired, Attempt, Released, Renewal, Renewed, Which};
use crate::sys::deadline::Deadline;

impl Mongodb {
    pub(super) fn acquire_key(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired, MongodbError> {
        let ask = &attempt.ask;
        let id = ours(&ask.grant)?;
        let old = match &ask.instead_of {
            // A grant of another store stands nowhere here.
            Some((grant, of)) => Some((ours(grant)?, token(*of).map_err(invalid)?)),
            None => None,
        };
        self.must_be_unique(by)?;
        let copy = fastrand::i32(..);
        let update = Update {
            key: attempt.key.clone(),
            pipeline: pipeline::acquire(&Grant { ask, id, old, copy }),
            upsert: old.is_none(),
            after: true,
            session: self.register.of(&mut attempt.native),
        };
        let answer = self.update(update, by).map_err(|error| match error {
            // The rules fail on some damages; which one it is shows in the document.
            MongodbError::Other { .. } => self.damage(&attempt.key, by).unwrap_or(error),
            error => error,
        });
        let found = match answer? {
            Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
            Wrote::Answered(row) => self.found(&attempt.key, row, by)?,
        };
        found.record.check_format()?;
        let now = found.now;
        match found.record.standing(attempt.grant()) {
            Some((_, holder)) if holder.until.is_after(now) => {
                let repeated = found.copy_of(&id) != Some(copy);
                Ok(Acquired::Granted { holder: holder.clone(), repeated, now })
            }
            _ => Ok(Acquired::Refused(found.seen())),
        }
    }

    pub(super) fn renew_grant(
        &self,
        attempt: &mut Attempt,
        renewal: Renewal,
        by: &Deadline,
    ) -> Result<Renewed, MongodbError> {
        let id = ours(attempt.grant())?;
        let update = Update {
            key: attempt.key.clone(),
            pipeline: pipeline::renew(attempt.ask.mode, id, renewal.lease, renewal.may_end_endless),
            upsert: false,
            after: true,
            session: self.register.of(&mut attempt.native),
        };
        let found = match self.update(update, by)? {
            Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
            Wrote::Answered(row) => self.found(&attempt.key, row, by)?,
        };
        found.record.check_format()?;
        match found.record.standing(attempt.grant()) {
            Some((_, holder)) => Ok(Renewed::Until { until: holder.until, now: found.now }),
            None => Ok(Renewed::Lost(found.seen())),
        }
    }

    /// Whether it is given up or not: it goes in the attempt's session, which stops what it overtakes.
    pub(super) fn release_grant(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Released, MongodbError> {
        let id = ours(attempt.grant())?;
        let update = Update {
            key: attempt.key.clone(),
            pipeline: pipeline::release(attempt.ask.mode, id),
            upsert: false,
            after: false,
            session: self.register.of(&mut attempt.native),
        };
        let row = match self.update(update, by)? {
            Wrote::Unknown(error) => return Ok(Released::Unknown(error.into())),
            // No document: nobody holds it.
            Wrote::Answered(None) => return Ok(Released::Free),
            // What is told again was written: it stood.
            Wrote::Answered(Some(row)) if !has_time(&row) => return Ok(Released::Done),
            Wrote::Answered(row) => row,
        };
        let found = self.found(&attempt.key, row, by)?;
        found.record.check_format()?;
        Ok(if found.record.standing(attempt.grant()).is_some() {
            Released::Done
        } else if found.record.live(found.now).next().is_some() {
            Released::HeldByOther(found.seen())
        } else {
            Released::Free
        })
    }

    /// What an answer shows. One that shows no document has no time either: that is asked for.
    fn found(&self, key: &str, row: Option<mongodb::bson::Document>, by: &Deadline) -> Result<Found, MongodbError> {
        match row {
            Some(row) => Found::new(key, row),
            None => Ok(Found::missing(key, self.server_time(by)?)),
        }
    }

    /// What is wrong with the document of a key, if it is damaged.
    fn damage(&self, key: &str, by: &Deadline) -> Option<MongodbError> {
        let read = self.read_page(&Which::Key(key.to_owned()), None, true, by);
        read.err().filter(|error| matches!(error, MongodbError::Damaged(_)))
    }
}

fn ours(grant: &GrantId) -> Result<ObjectId, MongodbError> {
    let wrong = || invalid("the lock was granted by another kind of store".to_owned());
    object_id(grant).ok_or_else(wrong)
}
