//! The calls on a group: every lock that has one lock id.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use crate::api::admin::list::newest_first;
use crate::api::client::LockClient;
use crate::api::update::Snapshot;
use crate::lease::group::{GroupAnswer, members, release_group, renew_group};
use crate::lease::{Holder, Lease, LockRecord, Mode, Step, StoreTime, Times};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::{check_text, short};
use crate::model::lock::LockStatus;
use crate::store::{Consistency, Seen, Which};

impl LockClient {
    /// Renews all locks of a group, and returns them with their new ends, newest first.
    ///
    /// Refused as a whole, before anything is written, when no lock of the group is there or one of
    /// them has less than a second left (an expired one has nothing left). No end moves backwards,
    /// and an endless lock stays endless.
    ///
    /// Each key is renewed by itself: when an error comes later on, some are renewed and some are
    /// not, and none of them is safe to rely on. A lock that somebody else was granted meanwhile does
    /// not belong to the group any more, so count the locks that are returned. Guards of the group go on
    /// by their own heartbeats and do not need this.
    ///
    /// # Errors
    /// `Lost` when it is refused, with the [key](Error::key) and the [holder](Error::holders) that
    /// has too little left, or when a lock was lost while the group was renewed; `InvalidInput`;
    /// `Ambiguous` or `Store` when the store did not answer, even after repeats within the request timeout
    /// for each key.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// for key in ["input", "output"] {
    ///     client.request(key).lock_id("job-7").acquire()?;
    /// }
    /// let renewed = client.renew("job-7", Duration::from_secs(60))?;
    /// assert_eq!(renewed.len(), 2);
    /// assert!(renewed.iter().all(|status| status.remaining() > Some(Duration::from_secs(50))));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn renew(&self, lock_id: &str, lease: Duration) -> Result<Vec<LockStatus>> {
        let info = self.family.backend.info();
        let in_context = |error: Error| error.with_store(&info.label);
        self.family.check_open()?;
        check_text("lock_id", lock_id).map_err(in_context)?;
        let lease = self.family.options.lease_of_data(lease).map_err(in_context)?;
        let decide = |seen: &Seen| self.decide_renewal(seen, lock_id, lease);
        // At the present time, not that of the read: time has passed since, so less is left of the leases.
        let check = |found: &Snapshot| {
            let times = Times { now: found.now(self.family.clock.now()), ..found.seen.times };
            decide(&Seen::new(found.seen.record.clone(), times, None)).map(drop)
        };
        let mut group = self.group(lock_id)?;
        if group.is_empty() {
            let message = format!("no lock with the lock id {:?} is held", short(lock_id));
            return Err(Error::new(ErrorKind::Lost, message).with_store(&info.label));
        }
        for found in &mut group {
            if check(found).is_err() {
                // The store's time in a page may be less exact than in the answer for one key.
                *found = self.look_to_change(&found.seen.record.key, &self.family.request_deadline())?;
                check(found)?;
            }
        }
        let mut renewed = Vec::new();
        for found in group {
            let by = self.family.request_deadline();
            let (holders, found) = self.update(found, &by, |found| decide(&found.seen), group_arrived(lock_id))?;
            let now = found.now(self.family.clock.now());
            renewed.extend(statuses(&found.seen, &holders, now));
        }
        newest_first(&mut renewed);
        Ok(renewed)
    }

    /// Frees all locks of a group no matter who holds them, including expired ones, from the newest to the oldest.
    /// Returns them as they were before, in the same order; an empty list when there is none. It takes a lock id, not a
    /// key: to free a key see [`unlock_key`](LockClient::unlock_key) and [`force_release`](LockClient::force_release).
    ///
    /// A guard of the group learns of its loss at its [next heartbeat](crate::guide::guarantees#the-next-heartbeat)
    /// ([`ReleasedByOther`](crate::LossReason::ReleasedByOther)); until then it counts itself as
    /// holding, and only the fencing token protects. Each key is freed by itself. After an error, and
    /// at any other time, it is safe to repeat.
    ///
    /// # Errors
    /// `InvalidInput`; `Ambiguous` or `Store` when the store did not answer, even after repeats within the
    /// request timeout for each key: what was freed before stays free.
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// for key in ["input", "output"] {
    ///     client.request(key).lock_id("job-7").acquire()?;
    /// }
    /// let freed = client.unlock("job-7")?;
    /// assert_eq!(freed.iter().map(|status| status.key()).collect::<Vec<_>>(), ["output", "input"]);
    /// assert!(client.unlock("job-7")?.is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn unlock(&self, lock_id: &str) -> Result<Vec<LockStatus>> {
        self.family.check_open()?;
        check_text("lock_id", lock_id).map_err(|error| self.family.in_context(error))?;
        let mut group = self.group(lock_id)?;
        let newest = |found: &Snapshot| members(&found.seen.record, lock_id).map(|(_, h)| h.token).max();
        group.sort_by_key(|found| Reverse(newest(found)));
        let mut freed = Vec::new();
        for found in group {
            let by = self.family.request_deadline();
            freed.extend(self.freed(found, &by, |record| release_group(record, lock_id), group_arrived(lock_id))?);
        }
        newest_first(&mut freed);
        Ok(freed)
    }

    /// Every record with a holder of the group.
    fn group(&self, lock_id: &str) -> Result<Vec<Snapshot>> {
        let mut group = Vec::new();
        self.read_all(&Which::LockId(lock_id.to_owned()), Consistency::Holders, |seen, asked| {
            if seen.record.is_unread() || members(&seen.record, lock_id).next().is_some() {
                let newer = |found| self.family.in_context(Error::from(found).with_key(&seen.record.key));
                seen.record.check_format().map_err(newer)?;
                group.push(Snapshot { seen, asked });
            }
            Ok(())
        })?;
        // A store may return them in any order.
        group.sort_by(|a, b| a.seen.record.key.cmp(&b.seen.record.key));
        Ok(group)
    }

    /// Decides on a renewal; a refusal is an error here.
    fn decide_renewal(&self, seen: &Seen, lock_id: &str, lease: Lease) -> Result<Step<Holders>> {
        let key = &seen.record.key;
        let Step { answer, record } = renew_group(&seen.record, lock_id, lease, &seen.times);
        match answer {
            GroupAnswer::Renewed(answer) => {
                Ok(Step { answer, record }.settled(&seen.record, self.reads_what_may_be_undone()))
            }
            GroupAnswer::TooLate(mode, holder) => {
                let late = LockStatus::new(seen, mode, &holder);
                let message = format!("the group has less than a second left on this key: {late}");
                Err(self.family.held_by(self.error(ErrorKind::Lost, key, &message), vec![late]))
            }
            GroupAnswer::NoneHeld => {
                let error = self.error(ErrorKind::Lost, key, "the group lost this key while it was renewed");
                Err(self.family.held_by(error, LockStatus::live(seen)))
            }
        }
    }
}

/// Whether the holders of the group are as an unanswered swap would have left them. On Cloud Spanner with `fleet=mixed`
/// they never are after a renewal, whose heartbeat is the commit's own time: there the key is renewed once more, for
/// the same time from then on.
pub(crate) fn group_arrived(lock_id: &str) -> impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool {
    move |next, before, now| members(before, lock_id).all(|(_, h)| now.standing(&h.grant) == next.standing(&h.grant))
}

pub(crate) type Holders = Vec<(Mode, Holder)>;

/// The status of these holders of the record that was seen, at this time of the store.
pub(crate) fn statuses(seen: &Seen, holders: &Holders, now: StoreTime) -> Vec<LockStatus> {
    let at = (now, SystemTime::now());
    let status = |(mode, h): &(Mode, Holder)| LockStatus::at(&seen.record.key, *mode, h, at, seen.is_live(h));
    holders.iter().map(status).collect()
}
