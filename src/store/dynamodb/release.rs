//! To renew, to release and to give up what was granted.

use std::time::Duration;

use super::acquire::stopping;
use super::error::DynamodbError;
use super::estimate::Moment;
use super::expr::{Expr, number, text};
use super::row;
use super::send::Wrote;
use super::{Dynamodb, Found};
use crate::lease::{End, Lease, Mode, RenewAnswer, transition};
use crate::store::{Acquired, Attempt, Released, Renewal, Renewed};
use crate::sys::deadline::Deadline;

impl Dynamodb {
    pub(super) fn renew_grant(
        &self,
        attempt: &mut Attempt,
        renewal: Renewal,
        by: &Deadline,
    ) -> Result<Renewed, DynamodbError> {
        let Renewal { lease, may_end_endless } = renewal;
        // An end that is off by a part of the lease is of use.
        let most = match lease {
            Lease::For(lease) => lease / 10,
            Lease::Forever => Duration::MAX,
        };
        let mut moment = self.sure_moment(most, by)?;
        let mut until = lease.end(moment.now);
        // Mostly ours becomes the latest end of the row.
        let mut expr = renewing(attempt, until, &moment, true);
        loop {
            let found = match self.update(expr, by)? {
                Wrote::Done(_) => {
                    if self.moment()?.contradicts(&moment) {
                        return Ok(Renewed::Unknown(DynamodbError::Jumped.into()));
                    }
                    return Ok(Renewed::Until { until, now: moment.late() });
                }
                Wrote::Unknown(error) => return Ok(Renewed::Unknown(error.into())),
                Wrote::Failed(row) => Found::new(&attempt.key, row)?,
            };
            found.check_format()?;
            moment = self.moment()?;
            let step = transition::renew(&found.record, attempt.grant(), lease, may_end_endless, &moment.times());
            let RenewAnswer::Until(end) = step.answer else { return Ok(Renewed::Lost(found.seen(&moment))) };
            let Some(new) = step.record else { return Ok(Renewed::Until { until: end, now: moment.late() }) };
            until = end;
            let shrinks = found.record.standing(attempt.grant()).is_some_and(|(_, holder)| holder.until > end);
            let is_shared = found.record.exclusive.is_none();
            expr = if shrinks || is_shared != (attempt.ask.mode == Mode::Shared) {
                self.whole(&found, &new, &moment)
            } else {
                renewing(attempt, end, &moment, !found.row_ends_after(end))
            };
        }
    }

    pub(super) fn release_grant(
        &self,
        attempt: &mut Attempt,
        give_up: bool,
        by: &Deadline,
    ) -> Result<Released, DynamodbError> {
        // Whom a doubted grant replaced gets the key back first: the release alone would leave it free beside them.
        if let Some(old) = Dynamodb::doubted(attempt)
            && let Acquired::Unknown(error) = self.settle_doubt(attempt, old, by)
        {
            return Ok(Released::Unknown(error));
        }
        // A copy of it may be on its way.
        let stops = give_up || attempt.sends > 1;
        let (mut moment, mut seen) = (self.moment()?, None::<Found>);
        let mut next = match (give_up, attempt.ask.mode) {
            (true, _) => Ending::GiveUp,
            (false, Mode::Exclusive) => Ending::Exclusive,
            (false, Mode::Shared) => Ending::Shared,
        };
        loop {
            let mut expr = match (&next, &seen) {
                (Ending::GiveUp, _) => giving_up(attempt, &moment),
                (Ending::Exclusive, _) => of(attempt, EXCLUSIVE.0, EXCLUSIVE.1),
                (Ending::Last, Some(found)) => last(attempt, found),
                (Ending::Lapse, Some(found)) => self.lapsing(attempt, found, &moment),
                (Ending::Shared | Ending::Last | Ending::Lapse, _) => of(attempt, SHARED.0, SHARED.1),
            };
            if stops && !matches!(next, Ending::Lapse) {
                expr = stopping(expr, attempt.grant(), seen.as_ref(), &moment);
            }
            let found = match self.update(expr, by)? {
                Wrote::Done(row) => {
                    if !matches!(next, Ending::GiveUp) {
                        return Ok(Released::Done);
                    }
                    let found = Found::new(&attempt.key, row)?;
                    return Ok(nobodys(found, &self.moment()?));
                }
                Wrote::Unknown(error) => return Ok(Released::Unknown(error.into())),
                Wrote::Failed(row) => Found::new(&attempt.key, row)?,
            };
            found.check_format()?;
            moment = if give_up { self.sure_moment(Duration::ZERO, by)? } else { self.moment()? };
            next = match found.record.standing(attempt.grant()) {
                None if give_up => Ending::GiveUp,
                None => return Ok(nobodys(found, &moment)),
                Some(_) if Dynamodb::was_early(attempt, &moment) => Ending::Lapse,
                Some((Mode::Exclusive, _)) => Ending::Exclusive,
                Some((Mode::Shared, _)) if !matches!(next, Ending::GiveUp) => Ending::Last,
                // Another's end is later, if there is one.
                Some((Mode::Shared, holder)) if found.record.shared.iter().any(|h| h.until > holder.until) => {
                    Ending::Shared
                }
                Some((Mode::Shared, _)) => Ending::Last,
            };
            seen = Some(found);
        }
    }
}

/// How to go on with a release.
enum Ending {
    /// Nothing stands, and nothing may come to.
    GiveUp,
    Exclusive,
    /// Another holder's end is later than ours.
    Shared,
    /// Ours is the latest end of the row: compare and swap.
    Last,
    /// Ours stands a while longer.
    Lapse,
}

fn renewing(attempt: &Attempt, until: End, moment: &Moment, is_latest: bool) -> Expr {
    let (condition, update) = match (attempt.ask.mode, is_latest) {
        (Mode::Exclusive, _) => (
            "#grantId = :grant AND #leasedUntil <= :end",
            "SET #leasedUntil = :end, #renewedAt = :now, #version = #version + :one",
        ),
        (Mode::Shared, true) => (
            "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil <= :end AND #leasedUntil <= :end",
            "SET #shared.#grant.#leasedUntil = :end, #shared.#grant.#renewedAt = :now, #leasedUntil = :end, \
             #version = #version + :one",
        ),
        (Mode::Shared, false) => (
            "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil <= :end AND #leasedUntil > :end",
            "SET #shared.#grant.#leasedUntil = :end, #shared.#grant.#renewedAt = :now, #version = #version + :one",
        ),
    };
    of(attempt, condition, update).value(":end", text(row::end(until))).value(":now", text(row::time(moment.now)))
}

const EXCLUSIVE: (&str, &str) = (
    "#grantId = :grant",
    "SET #leasedUntil = :past, #version = #version + :one \
     REMOVE #grantId, #lockId, #owner, #host, #comment, #renewedAt",
);
const SHARED: (&str, &str) = (
    "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil < #leasedUntil",
    "SET #version = #version + :one REMOVE #shared.#grant",
);

/// The release of the shared holder whose end is the row's.
fn last(attempt: &Attempt, found: &Found) -> Expr {
    let mut rest = found.record.clone();
    rest.shared.retain(|holder| holder.grant != *attempt.grant());
    let gone = if rest.shared.is_empty() { "#shared" } else { "#shared.#grant" };
    let update = format!("SET #leasedUntil = :rest, #version = #version + :one REMOVE {gone}");
    let condition = "attribute_exists(#shared.#grant) AND #fence = :f AND #version = :ver";
    of(attempt, condition, &update)
        .value(":rest", text(row::row_end(&rest)))
        .value(":f", number(found.record.token))
        .value(":ver", number(found.record.version))
}

fn giving_up(attempt: &Attempt, moment: &Moment) -> Expr {
    let condition = "(attribute_not_exists(#grantId) OR #grantId <> :grant) AND attribute_not_exists(#shared.#grant)";
    let update = "SET #leasedUntil = if_not_exists(#leasedUntil, :past), #givenUpAt = :t, \
                  #version = if_not_exists(#version, :t) + :one";
    of(attempt, condition, update).value(":t", number(moment.late_stamp(Duration::ZERO)))
}

/// A write on the condition that the grant of this attempt stands.
fn of(attempt: &Attempt, condition: &str, update: &str) -> Expr {
    let grant = attempt.grant().as_str();
    Expr::new(&attempt.key, condition, update)
        .name("#grant", grant)
        .value(":grant", text(grant))
        .value(":past", text(row::PAST))
        .value(":one", number(1))
}

/// The answer where the grant does not stand.
fn nobodys(found: Found, moment: &Moment) -> Released {
    let cut = moment.times().cut;
    if found.record.live(cut).next().is_some() { Released::HeldByOther(found.seen(moment)) } else { Released::Free }
}
