//! For what no single statement can say: applies the pure rule to the row that was read, and writes the result if the
//! row is still the same.

use super::Postgres;
use super::error::{Own, PostgresError};
use super::row::Found;
use super::send::{Lane, Wrote};
use super::swap::without_copies;
use crate::lease::{LockRecord, Step, Times};
use crate::model::error::Result;
use crate::store::transactional::{Durability, Transacted, Transactional};
use crate::sys::deadline::Deadline;

/// The store, whose statements go over this lane.
pub(super) struct Over<'a>(pub &'a Postgres, pub Lane);

impl Transactional for Over<'_> {
    fn transact<A: Send + 'static>(
        &self,
        key: &str,
        _durability: Durability,
        by: &Deadline,
        mut transition: impl FnMut(&LockRecord, &Times) -> Step<A> + Send + 'static,
    ) -> Result<Transacted<A>> {
        let Over(store, lane) = *self;
        let (mut version, mut unwritten, mut met) = (None, 0, 0);
        // A read waits for no row.
        let look = if lane == Lane::Sharing { Lane::Holding } else { lane };
        loop {
            let found = store.look(key, look, by)?;
            found.record.check_format().map_err(PostgresError::from)?;
            let step = transition(&found.record, &found.times());
            let Some(mut new) = step.record else { return Ok(Transacted::Done(step.answer, found.seen())) };
            // Also if there was no row both times.
            let is_same = version.replace(found.native.version) == Some(found.native.version);
            unwritten = if is_same { unwritten + 1 } else { 0 };
            store.may_be_unwritten(unwritten)?;
            // A release removes its own holder, and its caller knows how often the acquire of that was sent.
            if lane == Lane::Wanting {
                new.given_up = without_copies(&found.record, &new);
            }
            match store.swap_row(key, &found.record, &found.native, found.now, Some(&new), lane, by)? {
                Wrote::Answered(Some(version)) => {
                    let record = LockRecord { version, ..new };
                    return Ok(Transacted::Done(step.answer, Found { record, ..found }.seen()));
                }
                Wrote::Unknown(error) => return Ok(Transacted::Unknown(error.into())),
                // Mostly because another client wrote the row meanwhile.
                Wrote::Answered(None) => met = 0,
                // The first time it is repeated at once: the transaction that it met is mostly over.
                Wrote::Duplicate => {
                    (version, met) = (None, met + 1);
                    if met > 1 && !by.wait_to_repeat(met - 1) {
                        return Err(PostgresError::Own(Own::Ended, None).into());
                    }
                }
            }
            // The pause comes before the read, so that what is decided by the row is sent at once.
            if unwritten > 0 {
                by.wait_to_repeat(unwritten);
            }
        }
    }
}
