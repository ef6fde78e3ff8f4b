//! Turns what was seen in a store into the types that users see.

use std::time::SystemTime;

use super::{Attempt, Seen, StoreInfo};
use crate::lease::{Holder, Mode, StoreTime};
use crate::model::lease_status::LeaseStatus;
use crate::model::lock::{KeyStatus, Lock, LockStatus};

impl Lock {
    /// The lock that the store granted to this acquisition. `at`: the store's time in its answer, and the wall clock
    /// before the request.
    pub(crate) fn granted(attempt: &Attempt, holder: &Holder, at: (StoreTime, SystemTime), store: &StoreInfo) -> Self {
        let lock = Lock::found(&attempt.key, attempt.ask.mode, holder, at);
        Lock { store: Some(store.label.clone()), sent_once: attempt.sends == 1, ..lock }
    }
}

impl LockStatus {
    pub(crate) fn new(seen: &Seen, mode: Mode, holder: &Holder) -> Self {
        LockStatus::at(&seen.record.key, mode, holder, seen.read_at(), seen.is_live(holder))
    }

    /// All live holders of what was seen.
    pub(crate) fn live(seen: &Seen) -> Vec<LockStatus> {
        seen.live().map(|(mode, h)| LockStatus::new(seen, mode, h)).collect()
    }
}

impl KeyStatus {
    pub(crate) fn new(seen: &Seen) -> Self {
        let record = &seen.record;
        KeyStatus {
            key: record.key.clone(),
            token: record.token,
            holders: record.holders().map(|(mode, h)| LockStatus::new(seen, mode, h)).collect(),
        }
    }
}

impl LeaseStatus {
    /// The status of a holder of the record that was seen, at the store's time `now`.
    pub(crate) fn new(seen: &Seen, holder: &Holder, now: StoreTime) -> Self {
        LeaseStatus::at(&seen.record.key, holder, now, seen.is_live(holder), seen.record.pins.clone())
    }
}
