//! What a user reads about a lease.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use super::key;
use crate::lease::{Holder, Mode, StoreTime};
use crate::model::lock::Lock;

/// A lease that somebody holds, as it was found. Its times are this host's, for comparing on this host only: the store
/// decides by its own clock.
#[derive(Clone)]
pub struct LeaseStatus {
    /// The lock's key is that of the row, see [`key::of`].
    pub(crate) lock: Lock,
    remaining: Duration,
    is_live: bool,
    pins: BTreeSet<String>,
}

impl LeaseStatus {
    /// The status of a lease that was read at this time of the store.
    pub(crate) fn at(key: &str, holder: &Holder, now: StoreTime, is_live: bool, pins: BTreeSet<String>) -> Self {
        let lock = Lock::found(key, Mode::Exclusive, holder, (now, SystemTime::now()));
        LeaseStatus { lock, remaining: holder.until.left(now).unwrap_or(Duration::MAX), is_live, pins }
    }

    /// The namespace of the lease.
    pub fn namespace(&self) -> &str {
        key::parts(&self.lock.key).unwrap_or_default().0
    }

    /// The name of the lease.
    pub fn name(&self) -> &str {
        key::parts(&self.lock.key).unwrap_or_default().1
    }

    /// Who holds it.
    pub fn holder(&self) -> &str {
        self.lock.owner()
    }

    /// The fencing token of its claim: higher with every claim of the name, and the same until the lease ends.
    pub fn fencing_token(&self) -> u64 {
        self.lock.fencing_token()
    }

    /// When it was claimed, by this host's wall clock.
    pub fn claimed(&self) -> SystemTime {
        self.lock.created()
    }

    /// When it was last extended, by this host's wall clock; `None`: never.
    pub fn extended(&self) -> Option<SystemTime> {
        self.lock.renewed()
    }

    /// When its time is over, by this host's wall clock. It can be expired [the store's grace](crate::Diagnosis::grace) later.
    pub fn expires(&self) -> SystemTime {
        self.lock.leased_until().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The least that was left of its time when it was read, in SQLite the most where a process with another clock
    /// claimed it (before a reboot, in a container with its own clock, outside Linux).
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Whether its time, and [the store's grace](crate::Diagnosis::grace) after it, was over when it was read. It still counts
    /// as held until somebody expires it.
    pub fn is_expired(&self) -> bool {
        !self.is_live
    }

    /// Who keeps it from being expired.
    pub fn pinned_by(&self) -> &BTreeSet<String> {
        &self.pins
    }
}

impl fmt::Display for LeaseStatus {
    /// `"wordpress/0" (token 7, 12.3 s left)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (token {}, ", self.holder(), self.fencing_token())?;
        if self.is_expired() {
            f.write_str("expired)")
        } else {
            write!(f, "{:.1} s left)", self.remaining.as_secs_f64())
        }
    }
}

impl fmt::Debug for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStatus")
            .field("namespace", &self.namespace())
            .field("name", &self.name())
            .field("holder", &self.holder())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining)
            .field("pinned_by", &self.pins)
            .finish_non_exhaustive()
    }
}
