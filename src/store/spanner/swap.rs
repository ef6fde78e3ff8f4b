//! Writes a whole record, if nothing changed since it was read.

use super::Spanner;
use super::error::SpannerError;
use super::read::Native;
use super::row::Stamps;
use super::transact::{Done, Write};
use crate::lease::LockRecord;
use crate::store::failure::Fate;
use crate::store::{Seen, Swapped};
use crate::sys::deadline::Deadline;

impl Spanner {
    pub(super) fn swap_record(
        &self,
        seen: &Seen,
        new: Option<&LockRecord>,
        by: &Deadline,
    ) -> Result<Swapped, SpannerError> {
        let native = seen.native.as_ref().and_then(|native| native.downcast_ref::<Native>());
        let Some(Native(row)) = native else { return Err(SpannerError::NotRead) };
        let (target, row, old, new) = (self.target.clone(), row.clone(), seen.record.clone(), new.cloned());
        let done = self.transaction(&seen.record.key, by, move |read| {
            read.record.check_format()?;
            let before = new.as_ref().and_then(|new| target.extends_before(read, new));
            if read.row != row || before.is_some_and(|by| read.now >= by) {
                return Ok((None, None));
            }
            Ok((
                Some(before),
                Some(match &new {
                    Some(new) => {
                        let next = row.clone().unwrap_or_default().next(&old, new, Stamps::Records);
                        Write::Put(next.unless_later(before, read.now))
                    }
                    None => Write::Delete,
                }),
            ))
        });
        match done {
            // The commit may come long after the read. If it came too late, no reader accepts what it wrote.
            Ok(Done { answer: Some(Some(by)), read, .. }) if read.now >= by => Ok(Swapped::Changed),
            Ok(done) if done.answer.is_some() => Ok(Swapped::Done),
            // The row may have been changed by an earlier commit of this transaction.
            Ok(done) if done.may_be_own => Ok(Swapped::Unknown(SpannerError::Unanswered { cause: None }.into())),
            Ok(_) => Ok(Swapped::Changed),
            Err((Fate::Unknown, error)) => Ok(Swapped::Unknown(error.into())),
            Err((_, error)) => Err(error),
        }
    }
}
