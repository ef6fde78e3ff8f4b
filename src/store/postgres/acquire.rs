//! Acquires a key: by one statement in the common cases, and otherwise by the pure rule on the row that was read.

use super::Postgres;
use super::error::PostgresError;
use super::row::{Found, micros, number};
use super::send::{Lane, Statement, Wrote};
use super::transact::Over;
use crate::lease::{AcquireAnswer, Mode, transition};
use crate::model::error::Result;
use crate::store::{Acquired, Attempt, transactional};
use crate::sys::deadline::Deadline;

impl Postgres {
    pub(super) fn acquire_key(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        match self.ask_for(attempt, by)? {
            Acquired::Granted { repeated: true, .. } => self.find_again(attempt, by),
            acquired => Ok(acquired),
        }
    }

    /// Confirms a grant that was found. The write that made it may not have waited for the standby, and a failover to
    /// that would undo it.
    fn find_again(&self, attempt: &Attempt, by: &Deadline) -> Result<Acquired> {
        let found = match self.confirm(&attempt.key, Lane::Wanting, by)? {
            Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
            Wrote::Answered(found) => found,
            Wrote::Duplicate => None,
        };
        let holder =
            found.as_ref().and_then(|found| Some((found.record.standing(attempt.grant())?.1.clone(), found.now)));
        match holder {
            Some((holder, now)) => Ok(Acquired::Granted { holder, repeated: true, now: now.time() }),
            // The grant was removed meanwhile.
            None => Ok(Acquired::Unknown(PostgresError::Unanswered { cause: None }.into())),
        }
    }

    /// Reads the row of this key. The commit of that read waits until the row is on the disk and on a synchronous
    /// standby.
    pub(super) fn confirm(&self, key: &str, lane: Lane, by: &Deadline) -> Result<Wrote<Option<Found>>, PostgresError> {
        self.write(by, lane, key, Statement::new(&self.statements.confirm).text(key))
    }

    fn ask_for(&self, attempt: &Attempt, by: &Deadline) -> Result<Acquired> {
        let ask = &attempt.ask;
        if ask.mode == Mode::Shared {
            return transactional::acquire(&Over(self, Lane::Wanting), attempt, by);
        }
        let text = if ask.instead_of.is_some() { &self.statements.transfer } else { &self.statements.acquire };
        // A caller that hands a lock over holds it, and waits for its row as a release does.
        let lane = if attempt.replaces_sent_once { Lane::Waiting } else { Lane::Wanting };
        let statement = Statement::new(text).text(&attempt.key).text(ask.grant.as_str()).text(&ask.lock_id);
        let statement = statement.text(&ask.labels.owner).maybe_text(ask.labels.host.as_deref());
        let statement = statement.maybe_text(ask.labels.comment.as_deref()).number(micros(ask.lease));
        let statement = statement.time(self.not_after(lane, by));
        let statement = match &ask.instead_of {
            Some((old, token)) => {
                let statement = statement.text(old.as_str()).number(number(*token));
                statement.flag(attempt.replaces_sent_once)
            }
            None => statement,
        };
        let answered = match self.write(by, lane, &attempt.key, statement)? {
            Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
            Wrote::Answered(Some(found)) => answer(attempt, found)?,
            // There was no row when the statement began, and the statement made none: another client was faster, or it
            // came too late.
            Wrote::Answered(None) | Wrote::Duplicate => None,
        };
        answered.map_or_else(|| transactional::acquire(&Over(self, Lane::Wanting), attempt, by), Ok)
    }
}

/// What the row that came back says about the attempt. `None`: by the pure rule the lock could be granted, but the
/// statement did not do so.
fn answer(attempt: &Attempt, found: Found) -> Result<Option<Acquired>, PostgresError> {
    found.record.check_format()?;
    let now = found.now.time();
    if found.written {
        let holder = found.record.exclusive.ok_or_else(|| PostgresError::Damaged("it has no holder".to_owned()))?;
        return Ok(Some(Acquired::Granted { holder, repeated: false, now }));
    }
    let step = transition::acquire(&found.record, &attempt.ask, &found.times());
    Ok(match step.answer {
        AcquireAnswer::Granted { holder, repeated: true } => Some(Acquired::Granted { holder, repeated: true, now }),
        AcquireAnswer::Granted { .. } => None,
        AcquireAnswer::Refused(_) => Some(Acquired::Refused(found.seen())),
    })
}
