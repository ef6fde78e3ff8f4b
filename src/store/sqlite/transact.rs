//! Steps that write: acquire, renew and release, each the pure transition in one transaction.

use std::cell::Cell;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::Sqlite;
use super::conn::{self, Begin, Tx, Writer, is_disk_full};
use super::error::SqliteError;
use super::row::Row;
use crate::lease::{GrantId, LockRecord, Step, Times};
use crate::model::error::Result;
use crate::store::Seen;
use crate::store::transactional::{Durability, Transacted, Transactional};
use crate::sys::deadline::Deadline;

/// So often a write is repeated after a copy of the log on a full disk: whoever read meanwhile kept it from beginning anew.
const COPIES: u32 = 5;
/// So often a call that wants a lock lets others pass, for about 60 ms in all: who is in a hurry may have been stopped.
const PASSES: u32 = 12;
/// A call with less time than this, or less than half of what it had, lets nobody pass.
const LEAST_TO_PASS: Duration = Duration::from_millis(100);
/// In such slices who holds a lock waits for the connection: a commit on a slow disk takes less.
const LONG_SLICE: Duration = Duration::from_millis(50);

/// Whose write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// A heartbeat or a release, which comes first, and is refused no room.
    Holds,
    /// Everything else, as an acquire or a claim.
    Wants,
}

/// The store for one grant, see [`Sqlite::transition`].
pub(super) struct Claiming<'a>(pub(super) &'a Sqlite, pub(super) &'a GrantId);

impl Transactional for Claiming<'_> {
    fn transact<A>(
        &self,
        key: &str,
        durability: Durability,
        by: &Deadline,
        transition: impl FnMut(&LockRecord, &Times) -> Step<A>,
    ) -> Result<Transacted<A>> {
        // Only a grant that is given out must be durable from the first.
        let who = if durability == Durability::PowerCut { Who::Wants } else { Who::Holds };
        self.0.transition(key, who, durability, Some(self.1), by, transition)
    }
}

impl Sqlite {
    /// Runs `work` in a transaction on the file that is at the path; again if it began as a reader and could
    /// not write, or if somebody's close has ended SQLite's write lock meanwhile.
    pub(super) fn write<T>(
        &self,
        who: Who,
        durability: Durability,
        by: &Deadline,
        mut work: impl FnMut(&Tx<'_>) -> Result<T, SqliteError>,
    ) -> Result<Written<T>, SqliteError> {
        // Who holds a lock already goes first. Who wants one tries once at a time, and leaves the connection to others meanwhile.
        // It may be refused, too, which needs no write lock.
        let wants_one = who == Who::Wants;
        let mut begin = if wants_one { Begin::Read } else { Begin::Write };
        let is_copied = Cell::new(false);
        let mut run = |begin, lets_pass| {
            let mut writer = self.writer(who, by)?;
            writer.promise(durability, &self.target.path, by)?;
            let tx = match wants_one {
                true => Tx::begin(&writer, begin, &self.target.path, &Deadline::at(Instant::now()))?,
                false => writer.begin(begin, &self.target.path, by)?,
            };
            let done = work(&tx)?;
            if lets_pass && writer.is_in_the_way() {
                return Ok(None);
            }
            // No heartbeat and no release is refused for want of it.
            if wants_one {
                writer.reserve(&tx)?;
            }
            // Now, when others wait for the end of what is written.
            self.target.check()?;
            writer.check_seen(&self.target.path)?;
            let committed = tx.commit(by);
            if matches!(&committed, Err(error) if is_disk_full(error)) {
                // SQLite begins its log anew after 1,000 pages only, for which there may never be room.
                conn::copy_log(&writer);
                is_copied.set(true);
            }
            Ok(Some(match committed? {
                None => Written::Done(done),
                Some(error) => Written::Unknown(error),
            }))
        };
        let (mut copies, mut passes) = (0..COPIES, 0..if wants_one { PASSES } else { 0 });
        let mut pauses =
            std::iter::successors(Some(conn::FIRST_PAUSE), |pause| Some((*pause * 3 / 2).min(conn::LAST_PAUSE)));
        let mut waits = || by.wait_for(pauses.next().unwrap_or(conn::LAST_PAUSE));
        let busy = || SqliteError::Busy { path: self.target.path.clone() };
        let least_to_pass = LEAST_TO_PASS.min(by.remaining() / 2);
        let written = loop {
            let lets_pass = !passes.is_empty() && by.remaining() > least_to_pass;
            match run(begin, lets_pass) {
                Ok(None) => {
                    passes.next();
                    if !waits() {
                        break Err(busy());
                    }
                }
                Err(_) if is_copied.take() && copies.next().is_some() && by.wait_for(conn::FIRST_PAUSE) => {}
                Err(SqliteError::Engine { source, .. }) if begin == Begin::Read && SqliteError::is_busy(&source) => {
                    // It may have taken longer than there was time: see `busy_retried`.
                    if by.is_over() {
                        break Err(busy());
                    }
                    begin = Begin::Write;
                }
                Err(SqliteError::Busy { .. } | SqliteError::LockEnded { .. }) if waits() => {}
                Ok(Some(written)) => break Ok(written),
                Err(error) => break Err(error),
            }
        };
        written.map_err(|error| self.target.explained(error))
    }

    /// The connection that writes. Where each has it for milliseconds it goes to who has waited for longest, and a new slice of
    /// a wait is a new place: so who holds a lock has the longer slices.
    fn writer(&self, who: Who, by: &Deadline) -> Result<MutexGuard<'_, Writer>, SqliteError> {
        let slice = match who {
            Who::Holds => LONG_SLICE,
            Who::Wants => conn::SLICE,
        };
        conn::lock(&self.writer, &self.target.path, by, slice)
    }

    /// One transition on one key. A holder with times of another clock that is the grant of `claim` is written anew on
    /// ours even if the transition changes nothing: its end on our clock is
    /// later than on its own, so what its process gets must be what the others read.
    fn transition<A>(
        &self,
        key: &str,
        who: Who,
        durability: Durability,
        claim: Option<&GrantId>,
        by: &Deadline,
        mut transition: impl FnMut(&LockRecord, &Times) -> Step<A>,
    ) -> Result<Transacted<A>> {
        let written = self.write(who, durability, by, |tx| {
            let (format, row) = Row::read(tx, &self.target.path, key)?;
            let times = self.target.times()?;
            let here = self.target.here(&times);
            let view = row.view(format, here);
            let times = Times { ends_are_bounds: view.is_foreign, ..times };
            let step = transition(&view.record, &times);
            let claimed = claim.filter(|grant| row.is_foreign(grant, here));
            let next = step.record.or_else(|| claimed.map(|_| raised(&view.record)));
            let record = match (next, &view.sightings) {
                (Some(next), _) if durability < Durability::of(&view.record, &next, times.now) => {
                    return Ok(None);
                }
                (Some(next), _) => {
                    row.next(&view, &next, claimed, here.clock).write(tx, &self.target.path, here.clock)?;
                    next
                }
                (None, Some(sightings)) => {
                    // It is the row that was read, so a trigger ignores it. Whoever waits for its holder would do so for ever.
                    if !row.write_sightings(tx, &self.target.path, sightings)? {
                        return Err(SqliteError::Unwritten { path: self.target.path.clone() });
                    }
                    view.record
                }
                (None, None) => view.record,
            };
            Ok(Some((step.answer, record, times)))
        });
        match written {
            Ok(Written::Done(Some((answer, record, times)))) => {
                Ok(Transacted::Done(answer, Seen::new(record, times, None)))
            }
            // What a commit promises can't be changed within its transaction.
            Ok(Written::Done(None)) => self.transition(key, who, Durability::PowerCut, claim, by, transition),
            Ok(Written::Unknown(error)) => Ok(Transacted::Unknown(error.into())),
            Err(error) => Err(error.into()),
        }
    }
}

/// How a write went.
pub(super) enum Written<T> {
    Done(T),
    Unknown(SqliteError),
}

fn raised(record: &LockRecord) -> LockRecord {
    LockRecord { version: record.version + 1, ..record.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version that came back would let a swap through that was decided before.
    #[test]
    fn what_is_written_anew_has_a_later_version() {
        let record = LockRecord { version: 7, ..LockRecord::missing("k") };
        assert_eq!(raised(&record).version, 8);
    }
}
