//! Writing a whole row where nothing has changed since it was read.

use super::Sqlite;
use super::row::{self, Row};
use super::transact::{Who, Written};
use crate::lease::{LockRecord, transition};
use crate::model::error::Result;
use crate::store::transactional::Durability;
use crate::store::{Seen, Swapped};
use crate::sys::deadline::Deadline;

impl Sqlite {
    /// [`Backend::swap`](crate::store::Backend::swap)
    pub(super) fn swap_row(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        let key = &seen.record.key;
        // Others rely on pins, names and ends in a record when this process is gone; a deletion has none of these.
        let durability = if new.is_some() { Durability::PowerCut } else { Durability::Process };
        // A release that leaves an entry in the place of its grant is the call of a holder.
        let who = match new.is_some_and(|new| transition::keeps(&seen.record, new)) {
            true => Who::Holds,
            false => Who::Wants,
        };
        let written = self.write(who, durability, by, |tx| {
            let (format, stands) = Row::read(tx, &self.target.path, key)?;
            if stands.version != seen.record.version || stands.token != seen.record.token {
                return Ok(Swapped::Changed);
            }
            match new {
                Some(new) => {
                    let (times, mut new) = (self.target.times()?, new.clone());
                    if stands.version == 0 {
                        // A client that saw an earlier row of this key, deleted meanwhile, must not take this row for
                        // it.
                        new.version = new.version.max(times.stamp);
                    }
                    let here = self.target.here(&times);
                    // A holder counts as unchanged if the caller left it as the caller had read it.
                    let view = row::View { record: seen.record.clone(), ..stands.view(format, here) };
                    stands.next(&view, &new, None, here.clock).write(tx, &self.target.path, here.clock)?;
                }
                // There is no row.
                None if stands.version == 0 => {}
                None => row::delete(tx, &self.target.path, key)?,
            }
            Ok(Swapped::Done)
        });
        match written {
            Ok(Written::Done(swapped)) => Ok(swapped),
            Ok(Written::Unknown(error)) => Ok(Swapped::Unknown(error.into())),
            Err(error) => Err(error.into()),
        }
    }
}
