//! One key changed by a pure rule: read, decide, compare-and-swap, until it is settled.

use std::time::Duration;

use crate::api::client::LockClient;
use crate::engine::failures::Failures;
use crate::lease::{LockRecord, Mode, Step, StoreTime};
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::{Consistency, Seen, Swapped, read_held, read_key, read_one};
use crate::sys::clock::BootTime;
use crate::sys::deadline::Deadline;
use crate::sys::pause::pause;

/// A record that was read longer ago than this is read again before a decision, since leases count from the read.
const FRESH: Duration = Duration::from_millis(100);

/// A record, and the time before the request that read it.
pub(crate) struct Snapshot {
    pub seen: Seen,
    pub asked: BootTime,
}

impl Snapshot {
    /// The store's time now, computed from the time that has passed since the record was requested.
    pub fn now(&self, on_clock: BootTime) -> StoreTime {
        self.seen.times.now.plus(on_clock.since(self.asked))
    }
}

impl LockClient {
    /// Takes the step that `decide` finds for one key. If the record has changed meanwhile, it is read and decided on
    /// again. Returns the answer and the record that it was decided on.
    ///
    /// `arrived` says whether an unanswered swap happened. It gets the record that the swap should have written, the
    /// record before it, and the present one. `by` is the deadline of the whole call, which may have had to read
    /// `found`, too.
    pub(crate) fn update<A>(
        &self,
        mut found: Snapshot,
        by: &Deadline,
        decide: impl Fn(&Snapshot) -> Result<Step<A>>,
        arrived: impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool,
    ) -> Result<(A, Snapshot)> {
        let key = found.seen.record.key.clone();
        let mut unanswered: Option<(LockRecord, A, Snapshot)> = None;
        let (mut failures, mut may_be_done) = (Failures::none(), false);
        if self.family.clock.now().since(found.asked) > FRESH {
            found = self.look_to_change(&key, by)?;
        }
        loop {
            let now = &found.seen.record;
            let done = unanswered.take_if(|(next, _, before)| arrived(next, &before.seen.record, now));
            let error = if let Some((next, answer, before)) = done {
                match self.stays(&found.seen, by) {
                    Ok(()) => return Ok((answer, before)),
                    Err(error) => {
                        unanswered = Some((next, answer, before));
                        error
                    }
                }
            } else {
                let step = decide(&found)?;
                match step.record {
                    None if !may_be_done => return Ok((step.answer, found)),
                    None => match self.stays(&found.seen, by) {
                        Ok(()) => return Ok((step.answer, found)),
                        Err(error) => error,
                    },
                    Some(next) => {
                        pause!("change.decided");
                        match self.family.backend.swap(&found.seen, Some(&next), &by.of_try()) {
                            Ok(Swapped::Done) => return Ok((step.answer, found)),
                            Ok(Swapped::Changed) => self.changed(&key),
                            Ok(Swapped::Unknown(error)) => {
                                may_be_done = true;
                                unanswered = Some((next, step.answer, found));
                                error
                            }
                            Err(error) => error,
                        }
                    }
                }
            };
            self.wait(&mut failures, error, by)?;
            found = loop {
                match self.look_to_change(&key, by) {
                    Ok(found) => break found,
                    // A failed read says nothing about the change, which may be done.
                    Err(error) => self.wait(&mut failures, error, by)?,
                }
            };
        }
    }

    fn wait(&self, failures: &mut Failures, error: Error, by: &Deadline) -> Result<()> {
        failures.wait_if_retryable(error, by).map_err(|error| self.family.or_closed(error))
    }

    /// Makes sure that what was read stays: an unanswered write may have left it, which a failover may undo. An error
    /// where that is not known.
    fn stays(&self, seen: &Seen, by: &Deadline) -> Result<()> {
        if !self.reads_what_may_be_undone() || !seen.record.exists() {
            return Ok(());
        }
        match self.family.backend.swap(seen, Some(&seen.record), &by.of_try())? {
            Swapped::Done => Ok(()),
            Swapped::Changed => Err(self.changed(&seen.record.key)),
            Swapped::Unknown(error) => Err(error),
        }
    }

    /// Completes a step that frees a key. If nothing is left to be freed, only a write proves that this stays; or a
    /// live exclusive holder, whose grant came later and was answered.
    pub(crate) fn freed_for_good<A>(&self, step: Step<A>, seen: &Seen) -> Step<A> {
        let is_taken = seen.live().any(|(mode, _)| mode == Mode::Exclusive);
        step.settled(&seen.record, !is_taken && self.reads_what_may_be_undone())
    }

    pub(crate) fn reads_what_may_be_undone(&self) -> bool {
        self.family.backend.info().reads_what_may_be_undone
    }

    fn changed(&self, key: &str) -> Error {
        self.error(ErrorKind::Store, key, "it was changed by others each time").retryable()
    }

    /// The record of one key as it is now.
    pub(crate) fn look(&self, key: &str, by: &Deadline) -> Result<Snapshot> {
        self.looked(by, |by| read_key(&*self.family.backend, key, by))
    }

    /// The same, perhaps a moment old, where that is cheaper.
    pub(crate) fn glance(&self, key: &str, by: &Deadline) -> Result<Snapshot> {
        self.looked(by, |by| read_one(&*self.family.backend, key, Consistency::Eventual, by))
    }

    /// The same as [`look`](Self::look) for a call that changes it, which may be what keeps a lease.
    pub(crate) fn look_to_change(&self, key: &str, by: &Deadline) -> Result<Snapshot> {
        self.looked(by, |by| read_held(&*self.family.backend, key, by))
    }

    fn looked(&self, by: &Deadline, read: impl Fn(&Deadline) -> Result<Seen>) -> Result<Snapshot> {
        self.family.repeated_until(by, |by| {
            let asked = self.family.clock.now();
            Ok(Snapshot { seen: read(by)?, asked })
        })
    }
}
