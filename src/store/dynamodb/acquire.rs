//! Acquires a key. In the common cases, one conditional write has the meaning of the pure rule. In the others, the pure
//! rule is applied to the row that came back, and the result is written by compare-and-swap.

use std::time::Duration;

use super::error::{DynamodbError, Own};
use super::estimate::Moment;
use super::expr::{Expr, Update, number, set, text};
use super::row::{self, DecodedRow};
use super::send::Wrote;
use super::undo::Unanswered;
use super::{Dynamodb, MANY_GIVEN_UP, mixed};
use crate::lease::{AcquireAnswer, GrantId, Holder, LockRecord, Mode, Times, transition};
use crate::model::error::Result;
use crate::model::key;
use crate::store::{Acquired, Attempt};
use crate::sys::deadline::Deadline;

/// The row is missing, released or expired. The condition excludes ends that can't be compared as text: ends that
/// dynamodb-lock-go or an operator wrote in another zone than UTC or in another form, and most years of five digits or
/// with a sign.
const FREE: &str = "(attribute_not_exists(#key) OR (#leasedUntil <= :expiredBefore AND #leasedUntil >= :first \
                    AND contains(#leasedUntil, :at) AND contains(#leasedUntil, :z)))";
const TOKEN_RISES: &str = "(attribute_not_exists(#fence) OR #fence < :t)";
/// The grant id was not given up, by itself or by a floor, and the row is no lease of a name.
const GRANTABLE: &str = "NOT contains(#givenUp, :grant) AND (attribute_not_exists(#floor) OR #floor < :t) \
                         AND (attribute_not_exists(#kind) OR #kind <> :leaseKind)";
/// The set of given-up grant ids has room for one more.
const FEW: &str = "(attribute_not_exists(#givenUp) OR size(#givenUp) <= :many)";
/// A live exclusive holder with the same owner. Without the inner part, a repeated request would raise the token.
const SAME_OWNER: &str = "(#owner = :owner AND (attribute_not_exists(#grantId) OR #grantId <> :grant))";

/// What every grant sets, unless it joins other shared holders.
const GRANTED: [(&str, &str); 6] = [
    ("#kind", ":kind"),
    ("#format", "if_not_exists(#format, :format)"),
    ("#createdAt", ":now"),
    ("#leasedUntil", ":end"),
    ("#fence", ":t"),
    ("#version", "if_not_exists(#version, :t) + :one"),
];

/// A grant that joins drops at most this many expired shared holders: a condition may have 4 KB, and each takes forty
/// bytes of it.
const MOST_DROPPED: usize = 50;

/// What the rule says about the row that was found.
enum Decided {
    Write(Next),
    Answer(Acquired),
}

/// What to send next.
struct Next {
    expr: Expr,
    holder: Holder,
}

impl Dynamodb {
    pub(super) fn acquire_key(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired, DynamodbError> {
        if let Some(old) = Dynamodb::doubted(attempt) {
            return Ok(self.settle_doubt(attempt, old, by));
        }
        // Not for the row that a diagnosis tries: it has a key that no lock can have.
        if key::parts(&attempt.key).is_none() {
            self.agree_on_grace(by)?;
        }
        // The end of a row with shared holders depends on all of them, so the row is read before one of them is
        // replaced.
        let blind = attempt.ask.instead_of.is_none() || attempt.ask.mode == Mode::Exclusive;
        let found = if blind { None } else { Some(self.look(&attempt.key, by)?) };
        // A write that is sent without having seen the row takes over no holder while the time is unconfirmed, and its
        // answer can confirm the time. A transfer already has a lock, which an unconfirmed time must not end.
        let moment = self.sure_moment(Duration::ZERO, by)?;
        let is_first = attempt.ask.instead_of.is_none();
        let mut moment = self.told(if is_first { moment } else { self.confirmed(moment, by)? })?;
        let mut next = match found.map(|found| self.decide(attempt, found, &moment)).transpose()? {
            None => self.first(attempt, &moment),
            Some(Decided::Write(next)) => next,
            Some(Decided::Answer(answer)) => return Ok(answer),
        };
        loop {
            let found = match self.grant(next.expr, by)? {
                Wrote::Done(old) => {
                    if !self.moment()?.confirms(&moment) {
                        return Ok(self.settle_doubt(attempt, old, by));
                    }
                    attempt.native = None;
                    // A damaged row shows no holder of another library.
                    let old = DecodedRow::new(&attempt.key, old);
                    old.iter().for_each(|old| self.watch_fleet(old, moment.now));
                    return Ok(Acquired::Granted { holder: next.holder, repeated: false, now: moment.upper_bound() });
                }
                Wrote::Unknown(error) => {
                    Unanswered::note(attempt, moment);
                    return Ok(Acquired::Unknown(error.into()));
                }
                Wrote::Failed(row) => DecodedRow::new(&attempt.key, row)?,
            };
            let asked = moment;
            moment = self.told(self.confirmed_moment(by)?)?;
            next = match self.decide(attempt, found, &moment)? {
                Decided::Write(next) => next,
                Decided::Answer(Acquired::Granted { .. }) if Dynamodb::was_early(attempt, &moment) => {
                    return Ok(Acquired::Unknown(DynamodbError::Own(Own::Jumped, None).into()));
                }
                Decided::Answer(Acquired::Granted { holder, repeated, .. }) => {
                    attempt.native = None;
                    // If the time of the request was behind, the lease would seem to last longer than it does.
                    let now = if moment.contradicts(&asked) { moment.upper_bound() } else { asked.upper_bound() };
                    return Ok(Acquired::Granted { holder, repeated, now });
                }
                Decided::Answer(answer) => return Ok(answer),
            };
        }
    }

    /// Applies the pure rule to the row that was found. Gives an answer, or what to write.
    fn decide(&self, attempt: &Attempt, found: DecodedRow, moment: &Moment) -> Result<Decided, DynamodbError> {
        found.record.check_format()?;
        self.watch_fleet(&found, moment.now);
        let (ask, times) = (&attempt.ask, found.times(moment));
        let step = transition::acquire(&found.record, ask, &times);
        Ok(match (step.answer, step.record) {
            (AcquireAnswer::Granted { holder, repeated: false }, Some(mut new)) => {
                new.given_up.extend(ask.instead_of.iter().map(|(old, _)| old.clone()));
                // If the grant itself has an expired entry there, the whole row is written instead.
                let is_fresh = ask.instead_of.is_none() && found.record.standing(&ask.grant).is_none();
                let joins = ask.mode == Mode::Shared && is_fresh && new.shared.len() > 1;
                let expr = if joins {
                    self.watch_size(&attempt.key, found.row.as_ref());
                    join(&attempt.key, &found, &new, &holder, &times)?
                } else {
                    let owner = mixed::owner(self.fleet, &holder, ask.replace_same_owner);
                    let whole = self.whole(&found, &new, moment).value(":owner", text(owner));
                    whole.value(":t", number(holder.token)).grantable(&ask.grant)
                };
                Decided::Write(Next { expr, holder })
            }
            (AcquireAnswer::Granted { holder, .. }, _) => {
                Decided::Answer(Acquired::Granted { holder, repeated: true, now: moment.upper_bound() })
            }
            (AcquireAnswer::Refused(_), _) => Decided::Answer(Acquired::Refused(found.seen(moment))),
        })
    }

    /// The write that is sent without having seen the row.
    fn first(&self, attempt: &Attempt, moment: &Moment) -> Next {
        let (ask, times) = (&attempt.ask, moment.times());
        let old = ask.instead_of.as_ref();
        let mut record = LockRecord { token: old.map_or(0, |(_, token)| *token), ..LockRecord::missing(&attempt.key) };
        let holder = record.grant(&ask.grant, &ask.lock_id, &ask.labels, ask.lease, &times);
        let (condition, update) = match (old, ask.mode) {
            // Copies of the acquire that made the old grant may still arrive, even with a higher token than ours: so
            // the old grant id is remembered as given up.
            (Some(_), _) => (
                format!("#grantId = :old AND #fence = :f AND {FEW}"),
                exclusive_update(&holder).add("#givenUp", ":olds"),
            ),
            (None, Mode::Shared) => (
                format!("{FREE} AND {TOKEN_RISES}"),
                Update::setting(&GRANTED).set("#shared", ":m").removing(row::NO_HOLDER),
            ),
            (None, Mode::Exclusive) if ask.replace_same_owner => {
                (format!("({FREE} OR {SAME_OWNER}) AND {TOKEN_RISES}"), exclusive_update(&holder))
            }
            (None, Mode::Exclusive) => (format!("{FREE} AND {TOKEN_RISES}"), exclusive_update(&holder)),
        };
        record.shared.push(holder.clone());
        let expr = granting(Expr::new(&attempt.key, condition, update), &holder, &times)
            .value(":expiredBefore", text(row::time(times.expired_before)))
            .value(":first", text("1970"))
            .value(":at", text("T"))
            .value(":z", text("Z"))
            .value(":many", number(MANY_GIVEN_UP as u64))
            .maybe(":m", row::shared(&record, None))
            .maybe(":old", old.map(|(grant, _)| text(grant.as_str())))
            .maybe(":olds", old.map(|(grant, _)| set([grant.as_str()])))
            .maybe(":f", old.map(|(_, token)| number(*token)))
            .value(":owner", text(mixed::owner(self.fleet, &holder, ask.replace_same_owner)))
            .grantable(&ask.grant);
        Next { expr, holder }
    }
}

impl Expr {
    /// Adds the condition that the acquisition of this grant was not given up.
    fn grantable(mut self, grant: &GrantId) -> Expr {
        self.condition.push_str(&format!(" AND {GRANTABLE}"));
        self.value(":grant", text(grant.as_str())).value(":leaseKind", text("lease"))
    }
}

/// Sets the attributes that the holder has, and removes those that it does not have.
fn exclusive_update(holder: &Holder) -> Update {
    let update = Update::setting(&GRANTED).set("#grantId", ":grant").set("#lockId", ":lock").set("#owner", ":owner");
    let put = |update: Update, (name, value): (&str, Option<_>)| match value {
        Some(_) => update.set(format!("#{name}"), format!(":{name}")),
        None => update.remove(format!("#{name}")),
    };
    row::optional(&holder.labels).into_iter().fold(update, put).removing(&["#shared", "#renewedAt"])
}

/// Adds the values of a grant.
fn granting(expr: Expr, holder: &Holder, times: &Times) -> Expr {
    let labels = row::optional(&holder.labels).into_iter();
    let expr = labels.fold(expr, |expr, (name, value)| expr.maybe(&format!(":{name}"), value));
    expr.value(":lock", text(&holder.lock_id))
        .value(":owner", text(&holder.labels.owner))
        .value(":kind", text("lock"))
        .value(":format", text(row::FORMAT))
        .value(":now", text(row::time(times.now)))
        .value(":end", text(row::end(holder.until)))
        .value(":t", number(holder.token))
        .value(":one", number(1))
}

/// A grant that joins other shared holders. It compares `fence`, which only grants change, so renewals do not disturb
/// it.
fn join(
    key: &str,
    found: &DecodedRow,
    new: &LockRecord,
    holder: &Holder,
    times: &Times,
) -> Result<Expr, DynamodbError> {
    let mut condition = "#fence = :f AND attribute_not_exists(#grantId) AND attribute_exists(#shared) \
                         AND attribute_not_exists(#shared.#grant)"
        .to_owned();
    let sets = [("#shared.#grant", ":h"), ("#fence", ":t"), ("#version", "#version + :one")];
    let mut update = Update::setting(&sets);
    if found.row_ends_after(holder.until) {
        condition.push_str(" AND #leasedUntil > :end");
    } else {
        condition.push_str(" AND #leasedUntil <= :end");
        update = update.set("#leasedUntil", ":end");
    }
    let is_gone = |other: &&Holder| new.standing(&other.grant).is_none();
    let gone: Vec<&Holder> = found.record.shared.iter().filter(is_gone).take(MOST_DROPPED).collect();
    // In a full row the heartbeats of the present holders would be refused, until they lose the lock.
    if found.size_with(holder, &gone) > row::MOST {
        return Err(DynamodbError::Own(Own::TooLarge, None));
    }
    for i in 0..gone.len() {
        // If one of them renewed meanwhile, the condition fails.
        condition.push_str(&format!(" AND #shared.#d{i}.#leasedUntil = :d{i}"));
        update = update.remove(format!("#shared.#d{i}"));
    }
    let mut expr = granting(Expr::new(key, condition, update), holder, times)
        .grantable(&holder.grant)
        .name("#grant", holder.grant.as_str())
        .value(":f", number(found.record.token))
        .value(":h", row::entry(holder, None));
    for (i, gone) in gone.into_iter().enumerate() {
        let stored = found.shared_end(&gone.grant).unwrap_or_else(|| row::end(gone.until));
        expr = expr.name(&format!("#d{i}"), gone.grant.as_str()).value(&format!(":d{i}"), text(stored));
    }
    Ok(expr)
}

/// Stops every late copy of this acquisition: by its grant id or, if `found` has too many given-up grant ids already,
/// by a floor under all later tokens, which stops the copies of those acquisitions as well. `found` is the row as the
/// last try found it.
pub(super) fn stopping(expr: Expr, grant: &GrantId, found: Option<&DecodedRow>, moment: &Moment) -> Expr {
    let Some(found) = found.filter(|found| found.is_crowded()) else {
        let mut expr = expr.value(":grants", set([grant.as_str()])).value(":many", number(MANY_GIVEN_UP as u64));
        expr.condition.push_str(&format!(" AND {FEW}"));
        expr.update = expr.update.add("#givenUp", ":grants");
        return expr;
    };
    let crowd = set(found.record.given_up.iter().map(GrantId::as_str));
    let mut expr = expr.value(":crowd", crowd).value(":floor", number(found.above_all(moment)));
    expr.condition.push_str(" AND (attribute_not_exists(#floor) OR #floor < :floor)");
    expr.update = expr.update.set("#floor", ":floor").delete("#givenUp", ":crowd");
    expr
}
