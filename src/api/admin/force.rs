//! What an operator does to one lock that others hold.

use crate::api::client::LockClient;
use crate::api::groups::{Holders, group_arrived, statuses};
use crate::api::update::Snapshot;
use crate::lease::group::{release_all, release_group};
use crate::lease::{Holder, LockRecord, Step};
use crate::model::error::{ErrorKind, Result};
use crate::model::key::{check_key, check_text};
use crate::model::lock::LockStatus;
use crate::sys::deadline::Deadline;

impl LockClient {
    /// Frees a key no matter who holds it, including expired holders. Returns the holders as they were before; none if
    /// the key had no holder.
    ///
    /// This breaks the promise that was given to the holder, which learns of its loss only at its
    /// [next heartbeat](crate::guide::guarantees#the-next-heartbeat)
    /// ([`ReleasedByOther`](crate::LossReason::ReleasedByOther)); until then only the fencing token protects. The call
    /// can be repeated after an error, and at any other time, but a repeat may free a holder that was granted the key
    /// meanwhile.
    ///
    /// # Errors
    /// `InvalidInput` for a key out of bounds; `Ambiguous` or `Store` when it was not answered, after repeats within
    /// the request timeout.
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// client.request("report").owner("dead").lease_forever().acquire()?;
    /// assert_eq!(client.force_release("report")?[0].owner(), "dead");
    /// assert!(client.try_lock("report")?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn force_release(&self, key: &str) -> Result<Vec<LockStatus>> {
        let (found, by) = self.found(key)?;
        self.freed(found, &by, release_all, |_, before, now| {
            before.holders().all(|(_, gone)| now.holders().all(|(_, stands)| !is_same(gone, stands)))
        })
    }

    /// Frees one key for a caller that knows its lock id: what [`unlock`](LockClient::unlock) does to all keys of a
    /// group. Returns the holders with this lock id as they were before; none if nobody holds the key.
    ///
    /// # Errors
    /// `Held`, with the holders, when only others hold the key; `InvalidInput`; `Ambiguous` or `Store` when it was not
    /// answered, after repeats within the request timeout.
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// client.request("input").lock_id("job-7").acquire()?;
    /// client.request("output").lock_id("job-7").acquire()?;
    /// assert_eq!(client.unlock_key("input", "job-7")?.len(), 1);
    /// assert!(client.try_lock("input")?.is_some() && client.try_lock("output")?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn unlock_key(&self, key: &str, lock_id: &str) -> Result<Vec<LockStatus>> {
        check_text("lock_id", lock_id).map_err(|error| self.family.in_context(error))?;
        let (found, by) = self.found(key)?;
        let mut others = LockStatus::live(&found.seen);
        // Holders with this lock id do not count: this call frees them, or an earlier copy of its request has.
        others.retain(|holder| holder.lock_id() != lock_id);
        let freed = self.freed(found, &by, |record| release_group(record, lock_id), group_arrived(lock_id))?;
        if freed.is_empty() && !others.is_empty() {
            return Err(self
                .family
                .held_by(self.error(ErrorKind::Held, key, "others hold it, under other lock ids"), others));
        }
        Ok(freed)
    }

    /// The key's record, and the deadline of the whole call.
    fn found(&self, key: &str) -> Result<(Snapshot, Deadline)> {
        self.family.check_open()?;
        check_key(key).map_err(|error| self.family.in_context(error))?;
        let by = self.family.request_deadline();
        self.look_to_change(key, &by).map(|found| (found, by))
    }

    /// Frees the holders that the rule names, and returns them as they were before.
    pub(crate) fn freed(
        &self,
        found: Snapshot,
        by: &Deadline,
        rule: impl Fn(&LockRecord) -> Step<Holders>,
        arrived: impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool,
    ) -> Result<Vec<LockStatus>> {
        let decide = |found: &Snapshot| Ok(self.freed_for_good(rule(&found.seen.record), &found.seen));
        let (holders, found) = self.update(found, by, decide, arrived)?;
        Ok(statuses(&found.seen, &holders, found.seen.times.now))
    }
}

/// Whether it is the same grant. The token says so, since a release meanwhile may keep a minimum hold's place under
/// another grant id. Some holders that the Go libraries wrote have no token, and some of those not even a grant id: for
/// these, grant id and owner decide.
fn is_same(gone: &Holder, stands: &Holder) -> bool {
    let by_name = || (&stands.grant, &stands.labels.owner) == (&gone.grant, &gone.labels.owner);
    stands.token == gone.token && (gone.token > 0 || by_name())
}
