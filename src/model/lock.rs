//! What a user reads about a lock.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::lease::{End, GrantId, Holder, Labels, StoreTime};
use crate::model::key::short;

pub use crate::lease::Mode;

/// The getters that `Lock` and `LockStatus` share.
macro_rules! getters {
    ($of:ident) => {
        impl $of {
            /// The name of the lock.
            pub fn key(&self) -> &str {
                &self.key
            }

            /// The group that the lock belongs to. Anyone who knows this id can renew and release the whole group.
            pub fn lock_id(&self) -> &str {
                &self.lock_id
            }

            /// Exclusive or shared.
            pub fn mode(&self) -> Mode {
                self.mode
            }

            /// The holder's name, for people to read.
            pub fn owner(&self) -> &str {
                &self.labels.owner
            }

            /// The host that the holder runs on.
            pub fn host(&self) -> Option<&str> {
                self.labels.host.as_deref()
            }

            /// The comment that the holder set.
            pub fn comment(&self) -> Option<&str> {
                self.labels.comment.as_deref()
            }

            /// The fencing token: higher with every grant of the key, and the same as long as the lock is held.
            pub fn fencing_token(&self) -> u64 {
                self.token
            }

            /// When the lock was granted, by this host's wall clock.
            pub fn created(&self) -> SystemTime {
                self.created
            }

            /// When the lock was last renewed, by this host's wall clock.
            pub fn renewed(&self) -> Option<SystemTime> {
                self.renewed
            }

            /// When the lease ends, by this host's wall clock; `None` if it never ends. It proves nothing: the store
            /// decides by its own clock, and a guard by [`is_held`](crate::LockGuard::is_held). Whoever has only the data
            /// stops a margin earlier.
            pub fn leased_until(&self) -> Option<SystemTime> {
                self.leased_until
            }
        }
    };
}

getters!(Lock);
getters!(LockStatus);

/// A granted lock as plain data: who holds which key until when.
///
/// A guard shows this value, the low-level calls take it, and a hand-over sends it to another process
/// ([`LockGuard::into_lock`](crate::LockGuard::into_lock)). Having the value does not mean that the lock is held.
/// Anyone who has it can renew, release and adopt the lock, so keep it secret like a key; `Debug` shows only the first
/// characters of its grant id.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "wire::LockV1", from = "wire::LockV1"))]
// One field for each thing that is known of a grant.
pub struct Lock {
    pub(crate) key: String,
    pub(crate) grant: GrantId,
    pub(crate) mode: Mode,
    pub(crate) lock_id: String,
    pub(crate) labels: Labels,
    pub(crate) token: u64,
    pub(crate) created: SystemTime,
    pub(crate) renewed: Option<SystemTime>,
    pub(crate) leased_until: Option<SystemTime>,
    /// The store that granted the lock, as errors name it; `None` if that is not known.
    pub(crate) store: Option<String>,
    /// Its acquisition was sent once and answered. So no copy of that request can arrive late, and a release need not
    /// guard against one.
    pub(crate) sent_once: bool,
}

impl Lock {
    /// A lock that a read found to be held. How often its acquisition was sent is not known.
    /// `at`: the store's time, and the wall clock then or earlier.
    pub(crate) fn found(key: &str, mode: Mode, holder: &Holder, at: (StoreTime, SystemTime)) -> Self {
        let status = LockStatus::at(key, mode, holder, at, true);
        Lock {
            key: status.key,
            grant: holder.grant.clone(),
            mode,
            lock_id: status.lock_id,
            labels: status.labels,
            token: status.token,
            created: status.created,
            renewed: status.renewed,
            leased_until: status.leased_until,
            store: None,
            sent_once: false,
        }
    }

    /// The store that granted the lock, as [`Error::store`](crate::Error::store) names it; `None` for data from an
    /// earlier version.
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.key)
            .field("grant", &self.grant)
            .field("mode", &self.mode)
            .field("owner", &self.labels.owner)
            .field("fencing_token", &self.token)
            .field("leased_until", &self.leased_until)
            .finish_non_exhaustive()
    }
}

/// One holder of a lock. It comes from reads like [`get`](crate::LockClient::get), and with
/// [`Error::holders`](crate::Error::holders), [`Waiting`](crate::Waiting) and [`Event::Refused`](crate::Event::Refused).
///
/// Anyone who knows its [`lock_id`](LockStatus::lock_id) can release the lock, so keep that out of logs: `Debug` shows
/// only the first characters of it, `Display` none. The rest is no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct LockStatus {
    key: String,
    mode: Mode,
    lock_id: String,
    labels: Labels,
    token: u64,
    created: SystemTime,
    renewed: Option<SystemTime>,
    leased_until: Option<SystemTime>,
    remaining: Option<Duration>,
    is_live: bool,
}

impl LockStatus {
    /// The status of a holder that was read at this time of the store and of the wall clock.
    pub(crate) fn at(
        key: &str,
        mode: Mode,
        holder: &Holder,
        (now, wall_now): (StoreTime, SystemTime),
        is_live: bool,
    ) -> Self {
        let wall = |at| wall_time(at, now, wall_now);
        LockStatus {
            key: key.to_owned(),
            mode,
            lock_id: holder.lock_id.clone(),
            labels: holder.labels.clone(),
            token: holder.token,
            created: wall(holder.created),
            renewed: holder.renewed.map(wall),
            leased_until: match holder.until {
                End::At(at) => Some(wall(at)),
                End::Never => None,
            },
            remaining: holder.until.left(now),
            is_live,
        }
    }

    /// The least that was left of the lease when this was read, in SQLite the most where a process with another clock
    /// wrote it (before a reboot, in a container with its own clock, outside Linux); `None` if it never ends. Zero
    /// means that the lease had ended, though a store whose clients' clocks differ protects the holder for
    /// [a grace](crate::Diagnosis::grace) longer.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// What is left of the lease by now, unless it was renewed since this was read; `None` if it never ends. By this host's
    /// wall clock, as [`leased_until`](LockStatus::leased_until), and for people to read only.
    pub fn remaining_now(&self) -> Option<Duration> {
        let by_now = self.leased_until?.duration_since(SystemTime::now()).unwrap_or_default();
        // Never more than was left when it was read, even if the wall clock was set back since.
        self.remaining.map(|left| left.min(by_now))
    }

    /// Whether the lease and the store's grace after it had both ended when this was read, so that others can get the
    /// lock.
    pub fn is_expired(&self) -> bool {
        !self.is_live
    }
}

impl fmt::Display for LockStatus {
    /// `"owner" (exclusive, token 7, 12.3 s left)`, counted [from now](LockStatus::remaining_now).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, token {}, ", self.labels.owner, self.mode, self.token)?;
        match self.remaining_now() {
            None => f.write_str("no end)"),
            Some(_) if self.is_expired() => f.write_str("expired)"),
            Some(left) => write!(f, "{:.1} s left)", left.as_secs_f64()),
        }
    }
}

impl fmt::Debug for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockStatus")
            .field("key", &self.key)
            .field("mode", &self.mode)
            .field("lock_id", &short(&self.lock_id))
            .field("owner", &self.labels.owner)
            .field("fencing_token", &self.token)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

/// What the store has recorded for a key.
#[derive(Clone, Debug)]
pub struct KeyStatus {
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) holders: Vec<LockStatus>,
}

impl KeyStatus {
    /// The name of the lock.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The highest fencing token that was ever issued for the key.
    pub fn fencing_token(&self) -> u64 {
        self.token
    }

    /// All recorded holders, including expired ones.
    pub fn holders(&self) -> &[LockStatus] {
        &self.holders
    }

    /// Whether there was no holder, or only [expired](LockStatus::is_expired) ones, when this was read.
    pub fn is_free(&self) -> bool {
        self.holders.iter().all(LockStatus::is_expired)
    }
}

/// What [`purge`](crate::LockClient::purge) did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Purged {
    /// The expired holders that were removed.
    pub freed: Vec<LockStatus>,
    /// How many rows were deleted; [`purge`](crate::LockClient::purge) says which ones it deletes.
    pub deleted: usize,
}

/// Converts a point in the store's time to wall-clock time, for people to read.
fn wall_time(at: StoreTime, store_now: StoreTime, wall_now: SystemTime) -> SystemTime {
    let ahead = at.since(store_now);
    if ahead.is_zero() {
        wall_now.checked_sub(store_now.since(at)).unwrap_or(SystemTime::UNIX_EPOCH)
    } else {
        wall_now.checked_add(ahead).unwrap_or(wall_now)
    }
}

/// The beginning of the error for a lock's JSON that another version wrote.
#[cfg(feature = "serde")]
pub(crate) const OTHER_VERSION: &str = "version is";

#[cfg(feature = "serde")]
mod wire {
    //! The form in which a [`Lock`] is serialized: simple JSON with a version.

    use super::*;
    use crate::lease::record::{FORMAT_MAJOR, FORMAT_MINOR};

    /// One field for each of the JSON object. Unknown fields are ignored within a major version.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct LockV1 {
        version: Version,
        key: String,
        grant_id: String,
        mode: Mode,
        lock_id: String,
        owner: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        fencing_token: u64,
        /// In microseconds since 1970, like the other two times.
        created: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        renewed: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leased_until: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<String>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sent_once: bool,
    }

    /// Another major version is refused as soon as this field is read: if it is the first field, whatever the others
    /// hold.
    #[derive(Clone, serde::Serialize, serde::Deserialize)]
    #[serde(try_from = "String", into = "String")]
    struct Version(String);

    impl From<Version> for String {
        fn from(version: Version) -> String {
            version.0
        }
    }

    impl TryFrom<String> for Version {
        type Error = String;

        fn try_from(version: String) -> Result<Self, String> {
            match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
                Some(FORMAT_MAJOR) => Ok(Version(version)),
                _ => Err(format!("{OTHER_VERSION} {version:?}, but must be {FORMAT_MAJOR}.x")),
            }
        }
    }

    fn micros(at: SystemTime) -> u64 {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn time(micros: u64) -> SystemTime {
        let since = Duration::from_micros(micros);
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    impl From<Lock> for LockV1 {
        fn from(lock: Lock) -> Self {
            LockV1 {
                version: Version(format!("{FORMAT_MAJOR}.{FORMAT_MINOR}")),
                key: lock.key,
                grant_id: lock.grant.as_str().to_owned(),
                mode: lock.mode,
                lock_id: lock.lock_id,
                owner: lock.labels.owner,
                host: lock.labels.host,
                comment: lock.labels.comment,
                fencing_token: lock.token,
                created: micros(lock.created),
                renewed: lock.renewed.map(micros),
                leased_until: lock.leased_until.map(micros),
                store: lock.store,
                sent_once: lock.sent_once,
            }
        }
    }

    impl From<LockV1> for Lock {
        fn from(wire: LockV1) -> Self {
            Lock {
                key: wire.key,
                grant: GrantId::from_text(wire.grant_id),
                mode: wire.mode,
                lock_id: wire.lock_id,
                labels: Labels { owner: wire.owner, host: wire.host, comment: wire.comment },
                token: wire.fencing_token,
                created: time(wire.created),
                renewed: wire.renewed.map(time),
                leased_until: wire.leased_until.map(time),
                store: wire.store,
                sent_once: wire.sent_once,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_lease_is_shown_as_it_is_by_now() {
        const S: Duration = Duration::from_secs(1);
        let now = StoreTime::from_nanos(0).plus(1000 * S);
        let holder = |until| Holder {
            grant: GrantId::from_text("g".to_owned()),
            lock_id: "l".to_owned(),
            labels: Labels::of("ann"),
            token: 7,
            created: now,
            renewed: None,
            until,
        };
        let read = |wall, end| LockStatus::at("k", Mode::Exclusive, &holder(end), (now, wall), true);
        let (lease, wall) = (End::At(now.plus(40 * S)), SystemTime::now());
        let status = read(wall - 15 * S, lease);
        assert_eq!(status.remaining(), Some(40 * S), "as it was");
        assert!(status.remaining_now() <= Some(25 * S) && status.remaining_now() > Some(20 * S), "{status}");
        assert!(status.to_string().starts_with("\"ann\" (exclusive, token 7, 2"), "{status}");
        assert_eq!(read(wall - 50 * S, lease).to_string(), "\"ann\" (exclusive, token 7, 0.0 s left)");
        assert_eq!(read(wall + 3600 * S, lease).remaining_now(), Some(40 * S), "the clock was set back");
        assert_eq!(read(wall, End::Never).remaining_now(), None);
    }
}
