//! Acquires a key: one `findAndModify`, whose answer is the document as it is afterwards and the server's time. The
//! outcome of the request is read from that document.

use std::time::Instant;

use mongodb::bson::oid::ObjectId;

use super::Mongodb;
use super::error::{MongodbError, invalid};
use super::pipeline::{self, Grant, Replaces};
use super::row::{object_id, stands, token};
use super::send::{Update, Wrote};
use crate::lease::{GrantId, LockRecord, Mode, StoreTime};
use crate::store::{Acquired, Attempt, Consistency, Which};
use crate::sys::deadline::Deadline;
use crate::sys::random;

impl Mongodb {
    pub(super) fn acquire_key(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired, MongodbError> {
        let ask = &attempt.ask;
        let id = ours(&ask.grant)?;
        let old = match &ask.instead_of {
            // An error for a grant of another kind of store, which no document has.
            Some((grant, of)) => Some((ours(grant)?, token(*of).map_err(invalid)?)),
            None => None,
        };
        self.must_be_unique(by)?;
        let copy = random::uuid().as_fields().0.cast_signed();
        let replaces = (ask.replace_same_owner && ask.mode == Mode::Exclusive)
            .then(|| Replaces::GrantedBy(self.noticed.clocked.over()));
        let mut grant = Grant { ask, id, old, replaces, copy, fleet: self.fleet };
        let mut found = loop {
            let sent = Instant::now();
            let update = Update {
                key: attempt.key.clone(),
                not_after: None,
                pipeline: pipeline::acquire(&grant),
                upsert: old.is_none(),
                after: true,
                extends: ask.instead_of.is_some(),
                session: self.register.of(&mut attempt.native),
                grants: Some((ask.mode, id)),
            };
            let answer = self.update(update, by).map_err(|error| match error {
                // The pipeline fails on some damaged documents. The document shows what is wrong.
                MongodbError::Other { .. } => self.damage(&attempt.key, by).unwrap_or(error),
                error => error,
            });
            let found = match answer? {
                Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
                Wrote::Answered(row) => {
                    let stands = row.as_ref().is_some_and(|row| stands(row, ask.mode, &id));
                    match self.found(&attempt.key, row, sent, by) {
                        // An earlier copy was granted, and the document was damaged between that copy and this one.
                        Err(error @ MongodbError::Damaged(_)) if stands => {
                            return Ok(Acquired::Unknown(error.of_write().into()));
                        }
                        found => found?,
                    }
                }
            };
            match too_late_for(&grant, &found.record) {
                // The known time was too early, another clock wrote this one, or it was granted since.
                Some(granted) => grant.replaces = Some(Replaces::GrantedAt(granted)),
                None => break found,
            }
        };
        found.record.check_format()?;
        self.watch_fleet(&found);
        self.free_now_and_then(found.now, by);
        if let Some((old, _)) = &ask.instead_of {
            self.is_too_late(&mut found, old);
        }
        let repeated = found.copy_of(&id) != Some(copy);
        let seen = found.seen();
        match seen.record.standing(attempt.grant()) {
            Some((_, holder)) if seen.is_live(holder) => {
                Ok(Acquired::Granted { holder: holder.clone(), repeated, now: seen.times.now })
            }
            _ => Ok(Acquired::Refused(seen)),
        }
    }

    /// What is wrong with the document of a key, if it is damaged.
    fn damage(&self, key: &str, by: &Deadline) -> Option<MongodbError> {
        let read = self.read_page(&Which::Key(key.to_owned()), None, Consistency::Strong, by);
        match read {
            Ok(page) => page.records.iter().find_map(|seen| seen.record.check_format().err()).map(MongodbError::from),
            Err(error) => Some(error).filter(|error| matches!(error, MongodbError::Damaged(_))),
        }
    }
}

/// When the holder of the same owner was granted, if it was not replaced because of that time.
fn too_late_for(grant: &Grant, record: &LockRecord) -> Option<StoreTime> {
    let (replaces, holder) = (grant.replaces?, record.exclusive.as_ref()?);
    let is_other = holder.labels.owner == grant.ask.labels.owner && holder.grant != grant.ask.grant;
    let is_replaced = match replaces {
        Replaces::GrantedBy(time) => holder.created <= time,
        Replaces::GrantedAt(time) => holder.created == time,
    };
    (is_other && !is_replaced).then_some(holder.created)
}

/// The grant id in the server's type.
pub(super) fn ours(grant: &GrantId) -> Result<ObjectId, MongodbError> {
    let wrong = || invalid("the lock was granted by another kind of store".to_owned());
    object_id(grant).ok_or_else(wrong)
}
