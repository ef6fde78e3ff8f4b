//! What no single statement can say: the pure rule on the row that was read, written if the row is still the same.

use super::Postgres;
use super::error::PostgresError;
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
        loop {
            let found = store.look(key, lane, by)?;
            found.record.check_format().map_err(PostgresError::from)?;
            let step = transition(&found.record, &found.times());
            let Some(mut new) = step.record else { return Ok(Transacted::Done(step.answer, found.seen())) };
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
                // Another wrote it meanwhile.
                Wrote::Answered(None) | Wrote::Duplicate => {}
            }
        }
    }
}
