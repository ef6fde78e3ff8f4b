//! Writes a whole record, if nothing changed since it was read: every write raises the row's version.

use std::collections::BTreeSet;

use super::Postgres;
use super::error::PostgresError;
use super::row::{Micros, Native, number};
use super::send::{Lane, Statement, Wrote};
use crate::lease::{GrantId, Kind, LockRecord, transition};
use crate::store::failure::Fate;
use crate::store::{Seen, Swapped};
use crate::sys::deadline::Deadline;

/// If a row could not be written this many times in succession, and nobody else wrote it meanwhile, something on its
/// table keeps it as it is. Once or twice the reason may be a clock that was set, or a row that came and went.
const UNWRITTEN: u32 = 5;

impl Postgres {
    pub(super) fn swap_record(
        &self,
        seen: &Seen,
        new: Option<&LockRecord>,
        by: &Deadline,
    ) -> Result<Swapped, PostgresError> {
        let native = seen.native.as_ref().and_then(|native| native.downcast_ref::<Native>());
        let Some(native) = native else { return Err(PostgresError::NotRead) };
        let (old, now) = (&seen.record, Micros::of(seen.times.now));
        old.check_format()?;
        let new = new.map(|new| LockRecord { given_up: without_copies(old, new), ..new.clone() });
        for unwritten in 1.. {
            // This may wait for a transaction that asserts the grant that is taken away.
            match self.swap_row(&old.key, old, native, now, new.as_ref(), Lane::Waiting, by)? {
                Wrote::Answered(Some(_)) => return Ok(Swapped::Done),
                Wrote::Answered(None) => {
                    let found = self.look(&old.key, Lane::Waiting, by)?;
                    // Also if a newer version of leasehold wrote the row.
                    found.record.check_format()?;
                    if found.native.version != native.version {
                        break;
                    }
                }
                Wrote::Duplicate => break,
                Wrote::Unknown(error) => return Ok(Swapped::Unknown(error.into())),
            }
            self.may_be_unwritten(unwritten)?;
            by.wait_to_repeat(unwritten);
        }
        Ok(Swapped::Changed)
    }

    /// An error once the row could not be written [`UNWRITTEN`] times in succession, though nobody else wrote it.
    pub(super) fn may_be_unwritten(&self, times: u32) -> Result<(), PostgresError> {
        if times < UNWRITTEN {
            return Ok(());
        }
        Err(PostgresError::Schema(format!(
            "nothing was written, although nobody else wrote the row: a trigger, a policy or a unique index that \
             leasehold did not make keeps the rows of the table {} as they are; drop it",
            self.table.name
        )))
    }

    /// Writes the row if it is as it was read. The answer is the version that it has then; `None` if nothing was
    /// written.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn swap_row(
        &self,
        key: &str,
        old: &LockRecord,
        native: &Native,
        now: Micros,
        new: Option<&LockRecord>,
        lane: Lane,
        by: &Deadline,
    ) -> Result<Wrote<Option<u64>>, PostgresError> {
        let not_after = self.not_after(lane, by);
        let (statement, version) = match (native.version, new) {
            // Nothing to delete; but a row may have come meanwhile.
            (None, None) => {
                let is_there = self.look(key, lane, by)?.record.exists();
                return Ok(Wrote::Answered((!is_there).then_some(0)));
            }
            (Some(version), None) => {
                let statement = Statement::new(&self.statements.delete).text(key).number(version);
                (statement.time(not_after), version)
            }
            // A row that is made anew must not be taken for the old one: its version begins at the time.
            (None, Some(new)) => {
                let version = now.0.max(1);
                let statement = Statement::new(&self.statements.insert);
                (columns(statement, new, native, version, now).time(not_after), version)
            }
            (Some(seen), Some(new)) => {
                let version = seen.saturating_add(1).max(now.0);
                let statement = columns(Statement::new(&self.statements.swap), new, native, version, now);
                (statement.number(seen).time(not_after).flag(transition::frees(old, new)), version)
            }
        };
        match self.send(by, lane, statement.writing(key), |_| ()) {
            Ok(rows) if rows.is_empty() => Ok(Wrote::Answered(None)),
            Ok(_) => Ok(Wrote::Answered(u64::try_from(version).ok())),
            Err((Fate::Unknown, error)) => Ok(Wrote::Unknown(error)),
            // The transaction may have met the rows of others, which says nothing about this one.
            Err((Fate::Duplicate, error)) if error.is_serialization() => Ok(Wrote::Duplicate),
            Err((Fate::Duplicate, _)) => Ok(Wrote::Answered(None)),
            Err((_, error)) => Err(error),
        }
    }
}

/// The grant ids of acquisitions that were given up, and of those holders whose lock is taken away: a second copy of
/// their acquire may still be on its way. (A late claim of a lease fails on the version.)
pub(super) fn without_copies(old: &LockRecord, new: &LockRecord) -> BTreeSet<GrantId> {
    let gone = old.holders().map(|(_, holder)| &holder.grant).filter(|grant| new.standing(grant).is_none());
    let gone = gone.filter(|_| old.kind == Kind::Lock).cloned();
    new.given_up.iter().cloned().chain(gone).collect()
}

/// The values of all columns.
fn columns(statement: Statement, new: &LockRecord, native: &Native, version: i64, now: Micros) -> Statement {
    let holder = new.exclusive.as_ref();
    let labels = holder.map(|holder| &holder.labels);
    let pins: Vec<String> = new.pins.iter().cloned().collect();
    let (major, minor) = new.format;
    let statement = statement.text(&new.key).text(new.kind.as_str()).number(number(new.token));
    let statement = statement.maybe_text(holder.map(|holder| holder.grant.as_str()));
    let statement = statement.maybe_text(holder.map(|holder| holder.lock_id.as_str()));
    let statement = statement.maybe_text(labels.map(|labels| labels.owner.as_str()));
    let statement = statement.maybe_text(labels.and_then(|labels| labels.host.as_deref()));
    let statement = statement.maybe_text(labels.and_then(|labels| labels.comment.as_deref()));
    let statement = statement.maybe_number(holder.map(|holder| number(holder.token)));
    let statement = statement.maybe_time(holder.map(|holder| Micros::of(holder.created)));
    let statement = statement.maybe_time(holder.and_then(|holder| holder.renewed).map(Micros::of));
    let statement = statement.maybe_time(holder.map(|holder| Micros::end(holder.until)));
    let statement = statement.maybe_text(native.next_shared(&new.shared).as_deref());
    let statement = statement.texts((!pins.is_empty()).then_some(pins));
    let statement = statement.maybe_text(native.next_given_up(&new.given_up, now).as_deref());
    statement.number(version).text(&format!("{major}.{minor}"))
}
