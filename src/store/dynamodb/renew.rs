//! Renews a grant, never to an earlier end.

use std::time::Duration;

use super::Dynamodb;
use super::error::{DynamodbError, Own};
use super::estimate::Moment;
use super::expr::{Expr, Update, text};
use super::row::{self, DecodedRow};
use super::send::Wrote;
use crate::lease::{End, Lease, Mode, RenewAnswer, transition};
use crate::store::{Attempt, Renewal, Renewed};
use crate::sys::deadline::Deadline;

/// Who has the latest end in the row after a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowEnd {
    Ours,
    Anothers,
}

impl Dynamodb {
    pub(super) fn renew_grant(
        &self,
        attempt: &mut Attempt,
        renewal: Renewal,
        by: &Deadline,
    ) -> Result<Renewed, DynamodbError> {
        let lease = renewal.lease;
        // A renewal may be off by a tenth of its lease.
        let most = match lease {
            Lease::For(lease) => lease / 10,
            Lease::Forever => Duration::MAX,
        };
        let mut moment = self.confirmed(self.sure_moment(most, by)?, by)?;
        let mut until = lease.end(moment.now);
        // Usually our end becomes the latest end of the row.
        let mut expr = renewing(attempt, until, &moment, RowEnd::Ours);
        loop {
            let found = match self.update(expr, by)? {
                Wrote::Done(_) => return self.renewed(until, renewal, &moment),
                Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
                Wrote::Failed(row) => DecodedRow::new(&attempt.key, row)?,
            };
            found.record.check_format()?;
            let asked = moment;
            moment = self.moment()?;
            self.watch_fleet(&found, moment.now);
            let step = transition::renew(&found.record, attempt.grant(), renewal, &moment.times());
            let RenewAnswer::Until(end) = step.answer else { return Ok(Renewed::Lost(found.seen(&moment))) };
            let Some(new) = step.record else { return self.renewed(end, renewal, &asked) };
            until = end;
            // A write that moves an end back or, after the first renewal, takes it away must find the row exactly as it
            // was read.
            let compares = found
                .record
                .standing(attempt.grant())
                .is_some_and(|(_, holder)| holder.until > end || (end == End::Never && holder.renewed.is_some()));
            let is_shared = found.record.exclusive.is_none();
            expr = if compares || is_shared != (attempt.ask.mode == Mode::Shared) {
                self.whole(&found, &new, &moment)
            } else {
                let row_end = if found.row_ends_after(end) { RowEnd::Anothers } else { RowEnd::Ours };
                renewing(attempt, end, &moment, row_end)
            };
        }
    }

    /// The answer that the grant holds until then. The lease counts from `asked`, the time before the request, since the
    /// answer may come from a host whose time is wrong. If the answer does not confirm that time, the renewal is
    /// unanswered, with that reason. So it is if the time has not been reported for long: so much of the lease may be
    /// uncertain that a guard would soon be lost although each heartbeat renews it.
    fn renewed(&self, until: End, renewal: Renewal, asked: &Moment) -> Result<Renewed, DynamodbError> {
        let (after, now) = (self.moment()?, asked.upper_bound());
        if after.contradicts(asked) {
            return Ok(Renewed::Unknown(DynamodbError::Own(Own::Jumped, None).into()));
        }
        let is_short = match renewal.lease {
            Lease::For(lease) if !renewal.may_end_endless && asked.is_wider(self.grace_now().of_all, lease / 10) => {
                until.left(now).is_some_and(|left| left < lease / 2)
            }
            _ => false,
        };
        if is_short || !after.confirms(asked) {
            return Ok(Renewed::Unknown(DynamodbError::Own(Own::Untold, None).into()));
        }
        Ok(Renewed::Until { until, now })
    }
}

fn renewing(attempt: &Attempt, until: End, moment: &Moment, end: RowEnd) -> Expr {
    let of_row = [("#leasedUntil", ":end"), ("#renewedAt", ":now")];
    let of_entry = [("#shared.#grant.#leasedUntil", ":end"), ("#shared.#grant.#renewedAt", ":now")];
    let (condition, update) = match (attempt.ask.mode, end) {
        (Mode::Exclusive, _) => ("#grantId = :grant AND #leasedUntil <= :end", Update::setting(&of_row)),
        (Mode::Shared, RowEnd::Ours) => (
            "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil <= :end AND #leasedUntil <= :end",
            Update::setting(&of_entry).set("#leasedUntil", ":end"),
        ),
        (Mode::Shared, RowEnd::Anothers) => (
            "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil <= :end AND #leasedUntil > :end",
            Update::setting(&of_entry),
        ),
    };
    let mut expr = Expr::on_grant(attempt, condition, update.set("#version", "#version + :one"))
        .value(":end", text(row::end(until)))
        .value(":now", text(row::time(moment.now)));
    // No end is later, so only this condition stops a late copy of a first renewal that arrives after the lock was
    // given an end.
    if until == End::Never {
        let (renewed, _) = if attempt.ask.mode == Mode::Exclusive { of_row[1] } else { of_entry[1] };
        expr.condition.push_str(&format!(" AND attribute_not_exists({renewed})"));
    }
    expr
}
