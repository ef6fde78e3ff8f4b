//! Extends a lease while its grant holds: by one statement for an exclusive holder.

use super::Postgres;
use super::row::micros;
use super::send::{Lane, Statement, Wrote};
use super::transact::Over;
use crate::lease::{Lease, Mode, RenewAnswer, transition};
use crate::model::error::Result;
use crate::store::{Attempt, Renewal, Renewed, transactional};
use crate::sys::deadline::Deadline;

impl Postgres {
    pub(super) fn renew_grant(&self, attempt: &Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        let by_the_rule = || match transactional::renew(&Over(self, Lane::Sharing), attempt, renewal, by)? {
            // The row has a later end, so nothing was written. That end may be from a renewal that did not wait for the
            // standby.
            stands @ Renewed::Until { until, now } if until != renewal.lease.end(now) => {
                match self.confirm(&attempt.key, Lane::Holding, by)? {
                    Wrote::Unknown(error) => Ok(Renewed::Unknown(error.into())),
                    Wrote::Answered(_) | Wrote::Duplicate => Ok(stands),
                }
            }
            answer => Ok(answer),
        };
        if attempt.ask.mode == Mode::Shared {
            return by_the_rule();
        }
        let lease = match renewal.lease {
            Lease::For(lease) => Some(micros(lease)),
            Lease::Forever => None,
        };
        // An end that moves back must wake waiters, which this statement does not do.
        let may_be_endless = !renewal.may_end_endless || lease.is_none();
        let found = loop {
            let not_after = self.not_after(Lane::Holding, by);
            let statement = Statement::new(&self.statements.renew).text(&attempt.key).text(attempt.grant().as_str());
            let statement = statement.maybe_number(lease).flag(may_be_endless).time(not_after);
            match self.write(by, Lane::Holding, &attempt.key, statement)? {
                Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
                // It was too late by what was known of the server's time. The answer has corrected that, so it is sent
                // again.
                Wrote::Answered(Some(found)) if !found.written && found.now >= not_after && !by.is_over() => {}
                Wrote::Answered(Some(found)) => break found,
                Wrote::Answered(None) | Wrote::Duplicate => return by_the_rule(),
            }
        };
        found.record.check_format()?;
        match (found.written, found.record.standing(attempt.grant())) {
            (true, Some((_, holder))) => Ok(Renewed::Until { until: holder.until, now: found.now.time() }),
            _ => match transition::renew(&found.record, attempt.grant(), renewal, &found.times()).answer {
                RenewAnswer::Lost => Ok(Renewed::Lost(found.seen())),
                // The lease has no end, or the row that came back is a moment older than the one by which it was
                // decided.
                RenewAnswer::Until(_) => by_the_rule(),
            },
        }
    }
}
