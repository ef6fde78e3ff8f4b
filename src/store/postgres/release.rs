//! Removes a holder: by one statement if it is exclusive and in the row.

use super::Postgres;
use super::send::{Lane, Statement, Wrote};
use super::transact::Over;
use crate::lease::{Mode, ReleaseAnswer, transition};
use crate::model::error::Result;
use crate::store::{Attempt, Purpose, Released, transactional};
use crate::sys::deadline::Deadline;

impl Postgres {
    pub(super) fn release_grant(&self, attempt: &Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        let answer = self.end_grant(attempt, purpose, by)?;
        if matches!(answer, Released::Done | Released::Unknown(_)) {
            return Ok(answer);
        }
        // The write that ended the grant, perhaps an earlier try, may not have waited for the standby, and a failover
        // to that would bring the grant back. This try wrote nothing, so if this request is not answered, that is not a
        // release that may have happened.
        match self.confirm(&attempt.key, Lane::Waiting, by)? {
            Wrote::Unknown(error) => Err(error.of_read().into()),
            Wrote::Answered(_) | Wrote::Duplicate => Ok(answer),
        }
    }

    fn end_grant(&self, attempt: &Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        // A copy of an acquire that was repeated may still be on its way.
        let purpose = if attempt.sends > 1 { Purpose::GiveUp } else { purpose };
        let by_the_rule = || transactional::release(&Over(self, Lane::Waiting), attempt, purpose, by);
        if attempt.ask.mode == Mode::Shared {
            return by_the_rule();
        }
        let sql = match purpose {
            Purpose::Release => &self.statements.release,
            Purpose::GiveUp => &self.statements.give_up,
        };
        let statement = Statement::new(sql).text(&attempt.key).text(attempt.grant().as_str());
        let found = match self.write(by, Lane::Waiting, &attempt.key, statement)? {
            Wrote::Unknown(error) => return Ok(Released::Unknown(error.into())),
            Wrote::Answered(Some(found)) => found,
            Wrote::Answered(None) if purpose == Purpose::Release => return Ok(Released::Free),
            Wrote::Answered(None) | Wrote::Duplicate => return by_the_rule(),
        };
        if found.written {
            return Ok(Released::Done);
        }
        found.record.check_format()?;
        if purpose == Purpose::GiveUp {
            return by_the_rule();
        }
        match transition::release(&found.record, attempt.grant(), &found.times()).answer {
            ReleaseAnswer::Free => Ok(Released::Free),
            ReleaseAnswer::HeldByOther => Ok(Released::HeldByOther(found.seen())),
            // The holder is shared, or the row that came back is a moment older than the one by which it was decided.
            ReleaseAnswer::Released => by_the_rule(),
        }
    }
}
