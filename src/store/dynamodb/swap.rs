//! Writes a whole record, if nothing changed since it was read.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::AttributeValue;

use super::error::DynamodbError;
use super::estimate::Moment;
use super::expr::{Expr, Update, number, set, text};
use super::row::{self, DecodedRow, SeenRow};
use super::send::Wrote;
use super::{Dynamodb, MANY_GIVEN_UP, mixed};
use crate::lease::{GrantId, Kind, LockRecord};
use crate::store::{Seen, Swapped};
use crate::sys::deadline::Deadline;

impl Dynamodb {
    pub(super) fn swap_record(
        &self,
        seen: &Seen,
        new: Option<&LockRecord>,
        by: &Deadline,
    ) -> Result<Swapped, DynamodbError> {
        let native = seen.native.as_ref().and_then(|native| native.downcast_ref::<SeenRow>());
        let Some(SeenRow { row, is_doubted }) = native else { return Err(DynamodbError::NotRead) };
        let found = DecodedRow { record: seen.record.clone(), row: row.clone() };
        found.record.check_format()?;
        // The write may set a floor, and a time that only one host reported could make it too low.
        let moment = self.confirmed(self.moment()?, by)?;
        let wrote = match new {
            Some(new) => {
                // A second copy of the removed holder's acquire may still be on its way. (A late claim of a lease fails on
                // the version.)
                let is_gone = |grant: &GrantId| new.standing(grant).is_none();
                let live = found.record.live(seen.times.now).map(|(_, holder)| &holder.grant);
                let is_locks = |grant: &&GrantId| found.record.kind == Kind::Lock && !grant.as_str().is_empty();
                let gone: Vec<GrantId> = live.filter(is_locks).filter(|grant| is_gone(grant)).cloned().collect();
                let mut new = new.clone();
                new.given_up.extend(gone);
                self.update(self.whole(&found, &new, &moment), by)?
            }
            // The time was in doubt when the record was read, so the record may be younger than it seemed.
            None if *is_doubted => return Ok(Swapped::Changed),
            None => self.delete(comparing(&found, Update::default()), by)?,
        };
        Ok(match wrote {
            Wrote::Done(_) => Swapped::Done,
            Wrote::Unknown(error) => Swapped::Unknown(error.into()),
            Wrote::Failed(row) => {
                DecodedRow::new(&seen.record.key, row)?.record.check_format()?;
                Swapped::Changed
            }
        })
    }

    /// The write of a whole record over the row that was found. Attributes that we do not know stay.
    pub(super) fn whole(&self, found: &DecodedRow, new: &LockRecord, moment: &Moment) -> Expr {
        let expr = comparing(found, Update::setting(&[("#version", "if_not_exists(#version, :seed) + :one")]));
        let mut expr = expr.value(":seed", number(moment.stamp())).value(":one", number(1));
        let mut put = |name: &str, value: Option<AttributeValue>| expr.put(name, value);
        let (major, minor) = new.format;
        put("format", Some(text(format!("{major}.{minor}"))));
        put("kind", Some(text(new.kind.as_str())));
        put("leasedUntil", Some(text(row::row_end(new))));
        put("grantId", new.exclusive.as_ref().map(|holder| text(holder.grant.as_str())));
        let fields = new.exclusive.as_ref().map(row::fields).unwrap_or_default();
        for name in row::OF_HOLDER {
            put(name, fields.iter().find(|(field, _)| *field == name).and_then(|(_, value)| value.clone()));
        }
        put("shared", row::shared(new, found.row.as_ref()));
        put("pins", (!new.pins.is_empty()).then(|| set(new.pins.iter().map(String::as_str))));
        if new.token > 0 {
            put("fence", Some(number(new.token)));
        }
        let old: BTreeSet<&str> = found.record.given_up.iter().map(GrantId::as_str).collect();
        let given_up: BTreeSet<&str> = new.given_up.iter().map(GrantId::as_str).collect();
        let added: Vec<&str> = given_up.difference(&old).copied().collect();
        let only_adds = given_up.is_superset(&old);
        // Several grant ids may be added at once.
        let is_over = only_adds && !added.is_empty() && given_up.len() > MANY_GIVEN_UP + 1;
        if is_over {
            put("floor", Some(number(found.above_all(moment))));
            put("givenUp", None);
        } else if !only_adds {
            put("givenUp", (!given_up.is_empty()).then(|| set(given_up.iter().copied())));
        }
        if only_adds && !is_over && !added.is_empty() {
            expr.update = expr.update.add("#givenUp", ":added");
            expr = expr.value(":added", set(added));
        }
        let owner = new.exclusive.as_ref().map(|holder| mixed::stored_owner(self.fleet, holder, found.row.as_ref()));
        expr.maybe(":owner", owner.map(text))
    }
}

/// A write on the condition that the row is as it was found.
fn comparing(found: &DecodedRow, update: Update) -> Expr {
    let mut terms = Vec::new();
    let mut values = Vec::new();
    match &found.row {
        None => terms.push("attribute_not_exists(#key)".to_owned()),
        Some(row) => {
            // A row without a token is one of dynamodb-lock-go, or only notes given-up acquisitions.
            let named = if row.contains_key("fence") {
                &["fence", "version"][..]
            } else {
                &["fence", "version", "leasedUntil", "owner", "createdAt"]
            };
            for name in named {
                match row.get(*name) {
                    Some(value) => {
                        terms.push(format!("#{name} = :seen{name}"));
                        values.push((format!(":seen{name}"), value.clone()));
                    }
                    None => terms.push(format!("attribute_not_exists(#{name})")),
                }
            }
        }
    }
    let expr = Expr::new(&found.record.key, terms.join(" AND "), update);
    values.into_iter().fold(expr, |expr, (name, value)| expr.value(&name, value))
}
