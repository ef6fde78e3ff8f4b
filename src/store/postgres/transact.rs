//! What no single statement can say: the pure rule on the row that was read, written if the row is still the same.

use super::Postgres;
use super::error::{Own, PostgresError};
use super::row::Found;
use super::send::{Lane, Wrote};
use super::swap::without_copies;
use crate::lease::{LockRecord, Step, Times};
use crate::model::error::Result;
use crate::store::transactional::{Durability, Transacted, Transactional};
use crate::sys::deadline::Deadline;

/// The store, asked over this lane.
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
        // A look waits for no row.
        let look = if lane == Lane::Sharing { Lane::Holding } else { lane };
        loop {
            let found = store.look(key, look, by)?;
            found.record.check_format().map_err(PostgresError::from)?;
            let step = transition(&found.record, &found.times());
            let Some(mut new) = step.record else { return Ok(Transacted::Done(step.answer, found.seen())) };
            // Also where there is none.
            let is_same = version.replace(found.native.version) == Some(found.native.version);
            unwritten = if is_same { unwritten + 1 } else { 0 };
            store.may_be_unwritten(unwritten)?;
            // A release removes its own holder, and knows itself how often that was sent.
            if lane == Lane::Wanting {
                new.given_up = without_copies(found.record.holders(), &found.record, &new);
            }
            match store.swap_row(key, &found.record, &found.native, found.now, Some(&new), lane, by)? {
                Wrote::Answered(Some(version)) => {
                    let record = LockRecord { version, ..new };
                    return Ok(Transacted::Done(step.answer, Found { record, ..found }.seen()));
                }
                Wrote::Unknown(error) => return Ok(Transacted::Unknown(error.into())),
                // Another wrote it meanwhile, mostly.
                Wrote::Answered(None) => met = 0,
                // At once the first time: whoever it met is mostly gone.
                Wrote::Duplicate => {
                    (version, met) = (None, met + 1);
                    if met > 1 && !by.wait_to_repeat(met - 1) {
                        return Err(PostgresError::Own(Own::Ended, None).into());
                    }
                }
            }
            // Before it is read, so that what is decided by the row is sent at once.
            if unwritten > 0 {
                by.wait_to_repeat(unwritten);
            }
        }
    }
}
