//! One key changed by a pure rule: read, decide, compare-and-swap, until it is settled.

use std::time::Duration;

use crate::api::client::LockClient;
use crate::lease::{LockRecord, Step, StoreTime};
use crate::model::error::{ErrorKind, Result};
use crate::store::{Consistency, Seen, Swapped, Which};
use crate::sys::clock::BootTime;
use crate::sys::deadline::Deadline;
use crate::sys::pause::pause;

/// A record that was read longer ago is read again before it is decided on: leases count from the read.
const FRESH: Duration = Duration::from_millis(100);

/// A record, and the time from before it was asked for.
pub(crate) struct Snapshot {
    pub seen: Seen,
    pub asked: BootTime,
}

impl Snapshot {
    /// The store's time now, by what has passed since the record was asked for.
    pub fn now(&self, on_clock: BootTime) -> StoreTime {
        self.seen.times.now.plus(on_clock.since(self.asked))
    }
}

impl LockClient {
    /// Takes the step that `decide` finds for one key. What changed meanwhile is read and decided again. Gives the
    /// answer and the record that it was decided on.
    ///
    /// `arrived` says of a swap that was not answered whether it happened, by the record that it wanted to leave
    /// behind, the one before, and the one that stands now. `by` is the deadline of the whole call, which may have had to
    /// read `found`, too.
    pub(crate) fn update<A>(
        &self,
        mut found: Snapshot,
        by: &Deadline,
        decide: impl Fn(&Snapshot) -> Result<Step<A>>,
        arrived: impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool,
    ) -> Result<(A, Snapshot)> {
        let key = found.seen.record.key.clone();
        let mut unanswered: Option<(LockRecord, A, Snapshot)> = None;
        let (mut failures, mut may_be_done) = (0, false);
        if self.family.clock.now().since(found.asked) > FRESH {
            found = self.look(&key, by)?;
        }
        loop {
            let step = decide(&found)?;
            let Some(next) = step.record else {
                if may_be_done && !self.stays(&found.seen, by)? {
                    found = self.look(&key, by)?;
                    continue;
                }
                return Ok((step.answer, found));
            };
            pause!("change.decided");
            let error = match self.family.backend.swap(&found.seen, Some(&next), by) {
                Ok(Swapped::Done) => return Ok((step.answer, found)),
                Ok(Swapped::Changed) => {
                    self.error(ErrorKind::Store, &key, "it was changed by others each time").retryable()
                }
                Ok(Swapped::Unknown(error)) => {
                    may_be_done = true;
                    unanswered = Some((next, step.answer, found));
                    error
                }
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            failures += 1;
            if !by.wait_to_repeat(failures) {
                self.family.check_open()?;
                return Err(error);
            }
            found = self.look(&key, by)?;
            let now = &found.seen.record;
            if let Some((_, answer, before)) =
                unanswered.take_if(|(next, _, before)| arrived(next, &before.seen.record, now))
                && self.stays(&found.seen, by)?
            {
                return Ok((answer, before));
            }
        }
    }

    /// Whether what was read stays, though a write without an answer may have left it; not where it was changed since.
    fn stays(&self, seen: &Seen, by: &Deadline) -> Result<bool> {
        let backend = &self.family.backend;
        if !backend.info().reads_what_may_be_undone || !seen.record.exists() {
            return Ok(true);
        }
        match backend.swap(seen, Some(&seen.record), by)? {
            Swapped::Done => Ok(true),
            Swapped::Changed => Ok(false),
            Swapped::Unknown(error) => Err(error),
        }
    }

    /// The record of one key as it stands now.
    pub(crate) fn look(&self, key: &str, by: &Deadline) -> Result<Snapshot> {
        let which = Which::Key(key.to_owned());
        self.family.repeated_until(by, |by| {
            let asked = self.family.clock.now();
            let seen = self.family.backend.read(&which, None, Consistency::Strong, by)?.records.pop();
            let nothing = || self.error(ErrorKind::Store, key, "the store found neither a row nor none");
            seen.map(|seen| Snapshot { seen, asked }).ok_or_else(nothing)
        })
    }
}
