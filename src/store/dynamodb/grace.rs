//! The grace that all clients of a table must have in common: a client that waits for less would take over too early
//! from those that rely on more. A separate row notes it; a table without that row has the default.
//!
//! A client that connects with less is refused. A client that already runs is not: it waits for the grace that was
//! noted when it last looked. That is safe, since no holder relies on more than the default, nor on more than the least
//! grace that was ever noted.

use std::time::Duration;

use parking_lot::Mutex;

use super::error::{DynamodbError, Own};
use super::estimate::Grace;
use super::expr::{Expr, Item, Update, number};
use super::row;
use super::send::Wrote;
use super::{Dynamodb, NOBODYS};
use crate::store::Consistency;
use crate::sys::clock::BootTime;
use crate::sys::deadline::Deadline;

/// A client that grants or purges reads the note again when its last look is older.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// An attribute that a global table of version 2017.11.29 keeps in each item. `DescribeTable` does not report its
/// replicas.
const REPLICATED: &str = "aws:rep:updateregion";

/// What the row said when this client last looked.
#[derive(Debug, Default)]
pub(super) struct Noted(Mutex<Option<Note>>);

#[derive(Clone, Copy, Debug)]
struct Note {
    /// The largest grace of all clients, in microseconds; `None` if nothing is noted.
    most: Option<u64>,
    /// The smallest grace that a client which still runs may have started with.
    least: u64,
    looked: BootTime,
}

impl Note {
    fn of(row: Option<&Item>, looked: BootTime) -> Self {
        let get = |name| row.and_then(|row| row::get_number(row, name).ok().flatten());
        let most = get("graceMicros");
        let least = [most, get("leastGraceMicros")].into_iter().flatten().fold(micros(Dynamodb::GRACE), u64::min);
        Note { most, least, looked }
    }

    fn most(&self) -> u64 {
        self.most.unwrap_or_else(|| micros(Dynamodb::GRACE))
    }
}

impl Noted {
    /// The grace that applies to a client that was made with `own`.
    pub fn with(&self, own: Duration) -> Grace {
        let note = *self.0.lock();
        // The default applies also before the first look: others may already rely on it.
        let most = note.map_or_else(|| micros(Dynamodb::GRACE), |note| note.most());
        // If nothing is noted yet, or no longer, other clients may have no grace at all.
        let least = note.filter(|note| note.most.is_some()).map_or(0, |note| note.least);
        Grace { own: own.max(Duration::from_micros(most)), of_all: Duration::from_micros(least).min(own) }
    }

    /// Notes the row as it was at `at` or later, unless a newer one is known.
    fn set(&self, row: Option<&Item>, at: BootTime) {
        let mut known = self.0.lock();
        if known.is_none_or(|known| known.looked <= at) {
            *known = Some(Note::of(row, at));
        }
    }
}

impl Dynamodb {
    /// The grace that applies now.
    pub(super) fn grace_now(&self) -> Grace {
        self.noted.with(self.info.grace)
    }

    /// Reads the row: for the service's time, and for the grace.
    pub(super) fn read_time(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let sent = self.clock.now();
        match self.get_item(NOBODYS, Consistency::Strong, by) {
            Ok(Some(row)) if row.contains_key(REPLICATED) => {
                return Err(DynamodbError::Schema(format!(
                    "the table {:?} is a global table of version 2017.11.29, where two regions could hold one lock; use a \
                     table of one region, or multi-region strong consistency. If it is none any more, remove the attribute \
                     {REPLICATED:?} of its item with the key {NOBODYS:?}",
                    self.target.table
                )));
            }
            Ok(row) => self.noted.set(row.as_ref(), sent),
            Err(DynamodbError::Own(Own::NoTable { .. }, _)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// For a caller that will take over holders: reads the note again if the last look is too old.
    pub(super) fn look_again(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let now = self.clock.now();
        let is_old = |note: Note| now.since(note.looked) > LOOK_AGAIN;
        if self.noted.0.lock().is_none_or(is_old) { self.read_time(by) } else { Ok(()) }
    }

    /// Before a grant: a client whose grace is larger than the noted one notes it, so that others learn of it. So does
    /// a client with the default grace if nothing is noted: the client that has just made the table may be about to
    /// note less.
    pub(super) fn agree_on_grace(&self, by: &Deadline) -> Result<(), DynamodbError> {
        self.look_again(by)?;
        // A missing table is no error here, since the grant fails, too.
        let ours = micros(self.info.grace);
        let is_less = |note: Note| note.most() < ours || (note.most.is_none() && note.most() == ours);
        if self.noted.0.lock().is_some_and(is_less) { self.note_grace(by).map(drop) } else { Ok(()) }
    }

    /// Notes the grace, unless a larger one is noted, and with it the least grace by which other clients may still
    /// wait. A client without the right to write needs no note, since it can't take over either. False if the service
    /// does not know the table.
    pub(super) fn note_grace(&self, by: &Deadline) -> Result<bool, DynamodbError> {
        let ours = micros(self.info.grace);
        loop {
            let seen = *self.noted.0.lock();
            let most = seen.and_then(|note| note.most);
            let (condition, update) = match most {
                Some(_) => ("#graceMicros = :seen", Update::setting(&[("#leastGraceMicros", ":least")])),
                None => ("attribute_not_exists(#graceMicros)", Update::default()),
            };
            let expr = Expr::new(NOBODYS, condition, update.set("#graceMicros", ":grace"))
                .value(":grace", number(ours))
                .maybe(":seen", most.map(number))
                .maybe(":least", seen.map(|note| number(note.least)));
            let sent = self.clock.now();
            match self.update(expr, by) {
                Ok(Wrote::Done(row)) => self.noted.set(row.as_ref(), sent),
                Ok(Wrote::Failed(row)) => {
                    let found = Note::of(row.as_ref(), sent);
                    self.noted.set(row.as_ref(), sent);
                    // A row of a newer format stays as it is: nobody relies on a grace that is not noted.
                    if found.most != most && found.most() < ours {
                        continue;
                    }
                }
                Err(DynamodbError::Own(Own::Denied { .. }, _)) => {
                    self.noted.0.lock().iter_mut().for_each(|note| note.most = Some(ours));
                }
                Err(DynamodbError::Own(Own::NoTable { .. }, _)) => return Ok(false),
                Ok(Wrote::Unknown(error)) => return Err(error.of_read()),
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
    }

    /// Whether the grace may be noted in a table that exists; an error if other clients may wait for longer. `made`:
    /// the table was made a moment ago, by this client or (false) by another one, which may be about to note less than
    /// the default.
    pub(super) fn may_note_grace(&self, made: Option<bool>, by: &Deadline) -> Result<bool, DynamodbError> {
        if made == Some(true) {
            return Ok(true);
        }
        self.read_time(by)?;
        let is_noted = self.noted.0.lock().is_some_and(|note| note.most.is_some());
        match self.check_grace() {
            Err(_) if made == Some(false) && !is_noted => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    /// An error where other clients of this table wait for longer than this one does.
    pub(super) fn check_grace(&self) -> Result<(), DynamodbError> {
        let (ours, noted) = (self.info.grace, self.grace_now().own);
        let note = *self.noted.0.lock();
        if noted <= ours || note.is_none() {
            return Ok(());
        }
        let is_noted = note.is_some_and(|note| note.most.is_some());
        let others = if is_noted { "other clients of this table use" } else { "for a table that notes none it is" };
        Err(DynamodbError::Config(format!(
            "grace is {ours:?}, but {others} {noted:?}, and a client that waits for less would take over \
             from them too early; use grace={}ms here, or a smaller one in all of them: then write {} as the number \
             graceMicros into the row {NOBODYS:?} while none of them runs",
            noted.as_micros().div_ceil(1_000),
            micros(ours)
        )))
    }
}

fn micros(grace: Duration) -> u64 {
    u64::try_from(grace.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: BootTime = BootTime::from_nanos(1_000);
    const LATER: BootTime = BootTime::from_nanos(2_000);

    fn noting(grace: Duration) -> Item {
        Item::from([("graceMicros".to_owned(), number(micros(grace)))])
    }

    #[test]
    fn a_late_answer_takes_no_newer_note_back() {
        let (noted, own, more) = (Noted::default(), Duration::from_millis(200), Duration::from_secs(30));
        noted.set(Some(&noting(own)), FIRST);
        assert_eq!(noted.with(own).own, own);
        noted.set(Some(&noting(more)), LATER);
        noted.set(Some(&noting(own)), FIRST);
        assert_eq!(noted.with(own).own, more);
        // A note that was removed is news, too: then clients wait for the default, as before the first look, and no
        // holder relies on any grace.
        noted.set(None, LATER);
        let nothing = Grace { own: Dynamodb::GRACE, of_all: Duration::ZERO };
        assert_eq!([noted.with(own), Noted::default().with(own)], [nothing; 2]);
    }
}
