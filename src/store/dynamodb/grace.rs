//! The grace that all clients of a table must have in common: who waits for less takes over from those who count on
//! more. The row of the key that nobody has says it; a table without that note has the default.
//!
//! Who connects with less is refused. Who runs already is not: it waits for as long as was noted when it last looked.
//! Until it looks nobody is hurt, for no holder counts on more than the default.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::{DynamodbError, Own};
use super::expr::{Expr, Item, number};
use super::item;
use super::send::Wrote;
use super::{Dynamodb, NOBODYS};
use crate::sys::clock::BootTime;
use crate::sys::deadline::Deadline;

/// Who grants looks again when the last look is older.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// The grace of the table, as this client last saw it.
#[derive(Debug, Default)]
pub(super) struct Noted {
    micros: AtomicU64,
    /// In boot time; zero before the first look.
    looked: AtomicU64,
}

impl Noted {
    /// Zero before the first look.
    pub fn grace(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    fn set(&self, row: Option<&Item>, at: BootTime) {
        let noted = row.and_then(|row| item::get_number(row, "graceMicros").ok().flatten());
        self.micros.store(noted.unwrap_or_else(|| micros(Dynamodb::GRACE)), Ordering::Relaxed);
        self.looked.store(at.as_nanos().max(1), Ordering::Relaxed);
    }

    fn looked(&self) -> Option<BootTime> {
        let looked = self.looked.load(Ordering::Relaxed);
        (looked > 0).then(|| BootTime::from_nanos(looked))
    }
}

impl Dynamodb {
    /// Reads the row: for the service's time, and for the grace.
    pub(super) fn read_time(&self, by: &Deadline) -> Result<(), DynamodbError> {
        match self.get_item(NOBODYS, true, by) {
            Ok(row) => self.noted.set(row.as_ref(), self.clock.now()),
            Err(DynamodbError::Own(Own::NoTable { .. }, _)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Before a grant: whoever waits for more has the others know it.
    pub(super) fn agree_on_grace(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let now = self.clock.now();
        if self.noted.looked().is_none_or(|looked| now.since(looked) > LOOK_AGAIN) {
            self.read_time(by)?;
        }
        // Without a table the grant fails, too.
        if self.noted.looked().is_some() && self.noted.grace() < self.info.grace { self.note_grace(by) } else { Ok(()) }
    }

    /// Notes the grace, unless a larger one is noted. Who may not write does not take over either.
    pub(super) fn note_grace(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let ours = micros(self.info.grace);
        let condition = "(attribute_not_exists(#graceMicros) OR #graceMicros < :grace)";
        let expr = Expr::new(NOBODYS, condition, "SET #graceMicros = :grace").value(":grace", number(ours));
        match self.update(expr, by) {
            Ok(Wrote::Done(row) | Wrote::Failed(row)) => self.noted.set(row.as_ref(), self.clock.now()),
            Err(DynamodbError::Own(Own::Denied { .. }, _)) => self.noted.micros.store(ours, Ordering::Relaxed),
            Err(DynamodbError::Own(Own::NoTable { .. }, _)) => {}
            Ok(Wrote::Unknown(error)) => return Err(error.of_read()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Refuses to be a client that waits for less than others of this table do.
    pub(super) fn check_grace(&self) -> Result<(), DynamodbError> {
        let (ours, noted) = (self.info.grace, self.noted.grace());
        if noted <= ours {
            return Ok(());
        }
        Err(DynamodbError::Config(format!(
            "grace is {ours:?}, but other clients of this table use {noted:?}, and whoever waits for less would take over \
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
