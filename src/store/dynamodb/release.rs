//! Releases what was granted, and gives up what may have been granted.

use std::time::Duration;

use super::Dynamodb;
use super::acquire::stopping;
use super::error::DynamodbError;
use super::estimate::Moment;
use super::expr::{Expr, Update, number, text};
use super::row::{self, DecodedRow};
use super::send::Wrote;
use crate::lease::Mode;
use crate::store::{Acquired, Attempt, Purpose, Released};
use crate::sys::deadline::Deadline;

impl Dynamodb {
    pub(super) fn release_grant(
        &self,
        attempt: &mut Attempt,
        purpose: Purpose,
        by: &Deadline,
    ) -> Result<Released, DynamodbError> {
        // A doubted grant may have replaced a live holder, which gets the key back first: the release alone would leave
        // the key free while that holder still has it.
        if let Some(old) = Dynamodb::doubted(attempt)
            && let Acquired::Unknown(error) = self.settle_doubt(attempt, old, by)
        {
            return Ok(Released::Unknown(error));
        }
        // Copies of the acquire may be on their way, and must be stopped.
        let stops = purpose == Purpose::GiveUp || attempt.sends > 1;
        // If only one host of the service reported the time, and that was behind, a purge would drop a mark or a floor
        // made from it while a copy may still arrive. So the time is confirmed first.
        let marking = |moment: Moment| if stops { self.confirmed(moment, by) } else { Ok(moment) };
        let (mut moment, mut seen) = (marking(self.moment()?)?, None::<DecodedRow>);
        let mut next = match (purpose, attempt.ask.mode) {
            (Purpose::GiveUp, _) => Ending::GiveUp,
            (Purpose::Release, Mode::Exclusive) => Ending::Exclusive,
            (Purpose::Release, Mode::Shared) => Ending::Shared,
        };
        loop {
            let mut expr = match (&next, &seen) {
                (Ending::GiveUp, _) => giving_up(attempt, &moment),
                (Ending::Exclusive, _) => exclusive(attempt),
                (Ending::Last, Some(found)) => last(attempt, found),
                (Ending::Lapse, Some(found)) => self.lapsing(attempt, found, &moment),
                (Ending::Shared | Ending::Last | Ending::Lapse, _) => shared(attempt),
            };
            if stops && !matches!(next, Ending::Lapse) {
                expr = stopping(expr, attempt.grant(), seen.as_ref(), &moment);
            }
            let found = match self.update(expr, by)? {
                Wrote::Done(row) => {
                    if !matches!(next, Ending::GiveUp) {
                        return Ok(Released::Done);
                    }
                    let found = DecodedRow::new(&attempt.key, row)?;
                    return Ok(not_ours(found, &self.moment()?));
                }
                Wrote::Unknown(error) => return Ok(Released::Unknown(error.into())),
                Wrote::Failed(row) => DecodedRow::new(&attempt.key, row)?,
            };
            found.record.check_format()?;
            moment = match purpose {
                Purpose::GiveUp => marking(self.sure_moment(Duration::ZERO, by)?)?,
                Purpose::Release => marking(self.moment()?)?,
            };
            self.watch_fleet(&found, moment.now);
            next = match found.record.standing(attempt.grant()) {
                None if purpose == Purpose::GiveUp => Ending::GiveUp,
                None => return Ok(not_ours(found, &moment)),
                Some(_) if Dynamodb::was_early(attempt, &moment) => Ending::Lapse,
                Some((Mode::Exclusive, _)) => Ending::Exclusive,
                Some((Mode::Shared, _)) if !matches!(next, Ending::GiveUp) => Ending::Last,
                // Another shared holder has a later end, so the end of the row stays.
                Some((Mode::Shared, holder)) if found.record.shared.iter().any(|h| h.until > holder.until) => {
                    Ending::Shared
                }
                Some((Mode::Shared, _)) => Ending::Last,
            };
            seen = Some(found);
        }
    }
}

/// The next write of a release.
enum Ending {
    /// The grant is not in the row, and no late copy may put it there.
    GiveUp,
    Exclusive,
    /// Another holder's end is later than ours: the end of the row stays.
    Shared,
    /// Ours is the latest end of the row: compare and swap.
    Last,
    /// Our grant stays in the row a while longer; see `lapsing`.
    Lapse,
}

const RAISED: (&str, &str) = ("#version", "#version + :one");

fn exclusive(attempt: &Attempt) -> Expr {
    let update = Update::setting(&[("#leasedUntil", ":past"), RAISED]).removing(row::NO_HOLDER);
    Expr::on_grant(attempt, "#grantId = :grant", update)
}

fn shared(attempt: &Attempt) -> Expr {
    let condition = "attribute_exists(#shared.#grant) AND #shared.#grant.#leasedUntil < #leasedUntil";
    Expr::on_grant(attempt, condition, Update::setting(&[RAISED]).remove("#shared.#grant"))
}

/// Releases the shared holder whose end is also the end of the row.
fn last(attempt: &Attempt, found: &DecodedRow) -> Expr {
    let mut rest = found.record.clone();
    rest.shared.retain(|holder| holder.grant != *attempt.grant());
    let gone = if rest.shared.is_empty() { "#shared" } else { "#shared.#grant" };
    let update = Update::setting(&[("#leasedUntil", ":rest"), RAISED]).remove(gone);
    let condition = "attribute_exists(#shared.#grant) AND #fence = :f AND #version = :ver";
    Expr::on_grant(attempt, condition, update)
        .value(":rest", text(row::row_end(&rest)))
        .value(":f", number(found.record.token))
        .value(":ver", number(found.record.version))
}

fn giving_up(attempt: &Attempt, moment: &Moment) -> Expr {
    // A row without an end is no lock's, and stays as it is.
    let condition = "(attribute_not_exists(#key) OR attribute_exists(#leasedUntil)) \
                     AND (attribute_not_exists(#grantId) OR #grantId <> :grant) \
                     AND attribute_not_exists(#shared.#grant)";
    let update = Update::setting(&[
        ("#leasedUntil", "if_not_exists(#leasedUntil, :past)"),
        ("#givenUpAt", ":t"),
        ("#version", "if_not_exists(#version, :t) + :one"),
    ]);
    Expr::on_grant(attempt, condition, update).value(":t", number(moment.late_stamp(Duration::ZERO)))
}

impl Expr {
    /// A write whose condition is about the grant of this attempt.
    pub fn on_grant(attempt: &Attempt, condition: &str, update: Update) -> Self {
        let grant = attempt.grant().as_str();
        Expr::new(&attempt.key, condition, update)
            .name("#grant", grant)
            .value(":grant", text(grant))
            .value(":past", text(row::PAST))
            .value(":one", number(1))
    }
}

/// The answer where the row does not have the grant.
fn not_ours(found: DecodedRow, moment: &Moment) -> Released {
    let seen = found.seen(moment);
    if seen.live().next().is_some() { Released::HeldByOther(seen) } else { Released::Free }
}
