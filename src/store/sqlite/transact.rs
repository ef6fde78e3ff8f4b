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

/// How often a write is repeated after the log was copied on a full disk: a reader may have kept the log from
/// restarting.
const COPIES: u32 = 5;
/// How often a call that wants a lock lets others pass, for about 60 ms in all: the holder in a hurry may have been
/// stopped.
const PASSES: u32 = 12;
/// A call with less time than this, or less than half of what it had, lets nobody pass.
const LEAST_TO_PASS: Duration = Duration::from_millis(100);
/// The slices in which a holder waits for the connection. A commit on a slow disk takes less.
const LONG_SLICE: Duration = Duration::from_millis(50);

/// Whose write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// A heartbeat or a release. It goes first, and reserves no room, so it is not refused for lack of it.
    Holds,
    /// Everything else, like an acquire or a claim.
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
        // Only a call that gives out a grant must be durable from the first.
        let who = if durability == Durability::PowerCut { Who::Wants } else { Who::Holds };
        self.0.transition(key, who, durability, self.1, by, transition)
    }
}

impl Sqlite {
    /// Runs `work` in a transaction on the file that is at the path. Runs it again if it began as a reader and could
    /// not write, or if somebody's close has ended SQLite's write lock meanwhile.
    pub(super) fn write<T>(
        &self,
        who: Who,
        durability: Durability,
        by: &Deadline,
        mut work: impl FnMut(&Tx<'_>) -> Result<T, SqliteError>,
    ) -> Result<Written<T>, SqliteError> {
        // A holder goes first. A call that wants a lock tries once at a time, and leaves the connection to others
        // between its tries. It begins as a reader, because it may be refused, which needs no write lock.
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
            // Not for heartbeats and releases: none of them is refused for lack of room.
            if wants_one {
                writer.reserve(&tx)?;
            }
            // Checked now, because from here on others wait until this write ends.
            self.target.check()?;
            writer.check_seen(&self.target.path)?;
            let committed = tx.commit(by);
            if matches!(&committed, Err(error) if is_disk_full(error)) {
                // By itself, SQLite restarts its log only after 1,000 pages, for which there may never be room.
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
                    // The try may have used up the time. Then it is busy, as in `busy_retried`.
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

    /// Locks the connection that writes. While each thread has it for milliseconds, it goes to the one that has waited
    /// longest. A new slice of a wait starts at the end of the line, so holders wait in longer slices.
    fn writer(&self, who: Who, by: &Deadline) -> Result<MutexGuard<'_, Writer>, SqliteError> {
        let slice = match who {
            Who::Holds => LONG_SLICE,
            Who::Wants => conn::SLICE,
        };
        conn::lock(&self.writer, &self.target.path, by, slice)
    }

    /// One transition on one key. If the holder with the grant of `claim` has times of another clock, it is written
    /// anew on our clock, even if the transition changes nothing. Its end on our clock is later than on its own, and
    /// the end that its process gets must be the one that others read.
    fn transition<A>(
        &self,
        key: &str,
        who: Who,
        durability: Durability,
        claim: &GrantId,
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
            let claimed = Some(claim).filter(|grant| row.is_foreign(grant, here));
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
                    // The row was just read, so a trigger ignores the write. Without the sighting, those who wait for
                    // its holder would wait for ever.
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
            // The durability of a commit can't be changed within its transaction.
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

    /// If a version came again, a swap that was decided earlier would be let through.
    #[test]
    fn what_is_written_anew_has_a_later_version() {
        let record = LockRecord { version: 7, ..LockRecord::missing("k") };
        assert_eq!(raised(&record).version, 8);
    }
}
