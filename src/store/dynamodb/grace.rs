//! The grace that all clients of a table must have in common: who waits for less takes over from those who count on
//! more. The row of the key that nobody has says it, which every client reads when it connects.

use std::time::Duration;

use super::error::DynamodbError;
use super::expr::{Expr, Item, number};
use super::item;
use super::send::Wrote;
use super::{Dynamodb, NOBODYS};
use crate::sys::deadline::Deadline;

impl Dynamodb {
    /// Refuses to be a client that waits for less than others of this table do; one that waits for more is noted. A table
    /// without a note has the default.
    pub(super) fn agree_on_grace(&self, row: Option<&Item>, by: &Deadline) -> Result<(), DynamodbError> {
        self.check_grace(row)?;
        let noted = noted(row);
        if noted == Some(self.info.grace) || noted.is_none() && self.info.grace == Dynamodb::GRACE {
            return Ok(());
        }
        self.note_grace(by)
    }

    /// Notes the grace, unless a larger one is noted. Who may not write does not take over either.
    pub(super) fn note_grace(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let micros = u64::try_from(self.info.grace.as_micros()).unwrap_or(u64::MAX);
        let condition = "(attribute_not_exists(#graceMicros) OR #graceMicros < :grace)";
        let expr = Expr::new(NOBODYS, condition, "SET #graceMicros = :grace").value(":grace", number(micros));
        match self.update(expr, by) {
            Ok(Wrote::Done(_)) | Err(DynamodbError::NoTable { .. } | DynamodbError::Denied { .. }) => Ok(()),
            Ok(Wrote::Failed(row)) => self.check_grace(row.as_ref()),
            Ok(Wrote::Unknown(error)) => Err(error.of_read()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn check_grace(&self, row: Option<&Item>) -> Result<(), DynamodbError> {
        let ours = self.info.grace;
        match noted(row).filter(|noted| *noted > ours) {
            Some(noted) => Err(DynamodbError::Config(format!(
                "grace is {ours:?}, but other clients of this table use {noted:?}, and whoever waits for less would take \
                 over from them too early; use grace={}ms here, or a smaller one in all of them: then delete the row \
                 {NOBODYS:?} while none of them runs",
                noted.as_micros().div_ceil(1_000)
            ))),
            None => Ok(()),
        }
    }
}

fn noted(row: Option<&Item>) -> Option<Duration> {
    item::get_number(row?, "graceMicros").ok().flatten().map(Duration::from_micros)
}
