//! Which locks a listing finds.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::model::error::Result;
use crate::model::key::{check_key, check_text, short};
use crate::model::lock::{LockStatus, Mode};
use crate::store::Which;

/// Which locks [`LockClient::list`](crate::LockClient::list) finds: those that match everything
/// that is set here. A new filter matches all.
///
/// # Example
/// ```
/// use leasehold::{Filter, Mode};
/// use std::time::{Duration, SystemTime};
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let old = SystemTime::now() - Duration::from_secs(3600);
/// let held_long = client.list(&Filter::new().created_before(old).mode(Mode::Exclusive).live())?;
/// assert!(held_long.is_empty());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a filter does nothing until it is given to list()"]
pub struct Filter {
    created_before: Option<SystemTime>,
    created_after: Option<SystemTime>,
    remaining_below: Option<Duration>,
    remaining_at_least: Option<Duration>,
    key: Option<String>,
    key_prefix: Option<String>,
    lock_id: Option<String>,
    owner: Option<String>,
    mode: Option<Mode>,
    expired: Option<bool>,
}

impl Filter {
    /// Matches every lock.
    pub fn new() -> Self {
        Filter::default()
    }

    /// Only locks that were granted before this time, by this host's wall clock. Defaults to any time.
    pub fn created_before(mut self, at: SystemTime) -> Self {
        self.created_before = Some(at);
        self
    }

    /// Only locks that were granted at this time or later, by this host's wall clock. Defaults to any
    /// time.
    pub fn created_after(mut self, at: SystemTime) -> Self {
        self.created_after = Some(at);
        self
    }

    /// Only locks with less than this left of their lease, the expired ones included. Leaves out
    /// endless locks. Defaults to any lease.
    pub fn remaining_below(mut self, left: Duration) -> Self {
        self.remaining_below = Some(left);
        self
    }

    /// Only locks with this or more left of their lease. Leaves out endless locks, also for zero.
    /// Defaults to any lease.
    pub fn remaining_at_least(mut self, left: Duration) -> Self {
        self.remaining_at_least = Some(left);
        self
    }

    /// Only this key. Defaults to any key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only keys that start with this text, byte by byte; the empty text matches all. Defaults to any key.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Only locks of this group. Defaults to any group.
    pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
        self.lock_id = Some(lock_id.into());
        self
    }

    /// Only locks whose holder has exactly this label. Defaults to any owner.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Only locks that are held in this mode. Defaults to both modes.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Only locks whose lease, or the store's [grace](crate::Diagnosis::grace) after it, is running. Defaults to live and
    /// expired ones.
    pub fn live(mut self) -> Self {
        self.expired = Some(false);
        self
    }

    /// Only locks whose lease and the store's [grace](crate::Diagnosis::grace) have ended, and that nobody has taken or
    /// purged since. Defaults to live and expired ones.
    pub fn expired(mut self) -> Self {
        self.expired = Some(true);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.key.iter().try_for_each(|key| check_key(key))?;
        let prefix = self.key_prefix.as_ref().filter(|prefix| !prefix.is_empty());
        for (field, text) in
            [("key_prefix", prefix), ("lock_id", self.lock_id.as_ref()), ("owner", self.owner.as_ref())]
        {
            text.iter().try_for_each(|text| check_text(field, text))?;
        }
        Ok(())
    }

    /// What the store must look for: the condition that finds the fewest records.
    pub(crate) fn which(&self) -> Which {
        match (&self.key, &self.lock_id, &self.key_prefix) {
            (Some(key), _, _) => Which::Key(key.clone()),
            (None, Some(lock_id), _) => Which::LockId(lock_id.clone()),
            (None, None, prefix) => Which::Prefix(prefix.clone().unwrap_or_default()),
        }
    }

    pub(crate) fn matches(&self, status: &LockStatus) -> bool {
        let fits = |wanted: &Option<String>, text: &str| wanted.as_deref().is_none_or(|wanted| wanted == text);
        let left = status.remaining();
        self.created_before.is_none_or(|at| status.created() < at)
            && self.created_after.is_none_or(|at| status.created() >= at)
            && self.remaining_below.is_none_or(|least| left.is_some_and(|left| left < least))
            && self.remaining_at_least.is_none_or(|least| left.is_some_and(|left| left >= least))
            && fits(&self.key, status.key())
            && self.key_prefix.as_ref().is_none_or(|prefix| status.key().starts_with(prefix))
            && fits(&self.lock_id, status.lock_id())
            && fits(&self.owner, status.owner())
            && self.mode.is_none_or(|mode| status.mode() == mode)
            && self.expired.is_none_or(|expired| status.is_expired() == expired)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock_id = self.lock_id.as_deref().map(short);
        f.debug_struct("Filter")
            .field("created_before", &self.created_before)
            .field("created_after", &self.created_after)
            .field("remaining_below", &self.remaining_below)
            .field("remaining_at_least", &self.remaining_at_least)
            .field("key", &self.key)
            .field("key_prefix", &self.key_prefix)
            .field("lock_id", &lock_id)
            .field("owner", &self.owner)
            .field("mode", &self.mode)
            .field("expired", &self.expired)
            .finish()
    }
}
