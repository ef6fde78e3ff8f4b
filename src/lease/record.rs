//! The record of a key: who holds it, until when, and the highest token ever issued.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The version of the stored form that this code writes, `major.minor`.
pub const FORMAT_MAJOR: u32 = 1;
/// See [`FORMAT_MAJOR`].
pub const FORMAT_MINOR: u32 = 0;

/// The major and minor format of a row that a newer major version wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewerFormat(pub u32, pub u32);

impl fmt::Display for NewerFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewerFormat(major, minor) = self;
        write!(f, "format {major}.{minor}; this version of leasehold reads up to {FORMAT_MAJOR}.x")
    }
}

/// The format that a row names, or the first format if it names none. An error says what is wrong.
pub fn parse_format(text: Option<&str>) -> Result<(u32, u32), String> {
    let Some(text) = text else { return Ok((FORMAT_MAJOR, FORMAT_MINOR)) };
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.ok_or_else(|| format!("its format is {text:?}"))
}

/// A point in the store's own time, in nanoseconds since an origin that only the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

impl StoreTime {
    /// The point `nanos` after the store's origin.
    pub const fn from_nanos(nanos: i64) -> Self {
        StoreTime(nanos)
    }

    /// Nanoseconds since the store's origin.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The point `by` later.
    pub fn plus(self, by: Duration) -> Self {
        StoreTime(self.0.saturating_add(nanos(by)))
    }

    /// The point `by` earlier.
    pub fn minus(self, by: Duration) -> Self {
        StoreTime(self.0.saturating_sub(nanos(by)))
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: StoreTime) -> Duration {
        let nanos = self.0.saturating_sub(earlier.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// When a lease ends. `Never` is later than every point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// At this point of the store's time: from then on the holder is expired.
    At(StoreTime),
    /// The holder keeps the lock until it is released.
    Never,
}

impl End {
    /// Whether a lease with this end is still running at `now`.
    pub fn is_after(self, now: StoreTime) -> bool {
        self > End::At(now)
    }

    /// What is left at `now`: zero when it is over, `None` when it never ends.
    pub fn left(self, now: StoreTime) -> Option<Duration> {
        match self {
            End::At(at) => Some(at.since(now)),
            End::Never => None,
        }
    }
}

/// For how long a holder may hold without renewing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lease {
    /// For this long from each renewal.
    For(Duration),
    /// Until it is released.
    Forever,
}

impl Lease {
    /// The end of a lease that begins at `now`.
    pub fn end(self, now: StoreTime) -> End {
        match self {
            Lease::For(d) => End::At(now.plus(d)),
            Lease::Forever => End::Never,
        }
    }

    /// How long it lasts if nobody renews or ends it.
    pub fn longest(self) -> Duration {
        match self {
            Lease::For(d) => d,
            Lease::Forever => Duration::MAX,
        }
    }
}

/// Names one acquisition; the condition on every write of its guard.
///
/// Made by the library before the first request and never shown in full, since
/// anyone who knows it can renew and release.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(String);

impl GrantId {
    /// Takes over a grant id that was made before.
    pub fn from_text(text: impl Into<String>) -> Self {
        GrantId(text.into())
    }

    /// The whole text, for the store.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits, for people.
    pub fn short(&self) -> &str {
        let end = self.0.char_indices().nth(8).map_or(self.0.len(), |(at, _)| at);
        self.0.get(..end).unwrap_or_default()
    }
}

impl fmt::Debug for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

/// How a lock is held: alone, or together with other shared holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Mode {
    /// Nobody else holds the key.
    Exclusive,
    /// Others may hold the key in shared mode, nobody in exclusive mode.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        })
    }
}

/// Whether a record is a lock, held by a process, or a lease, held by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Held by a process that renews.
    Lock,
    /// Held by a name until somebody expires it.
    Lease,
}

impl Kind {
    /// The text for this kind in a row.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Lease => "lease",
        }
    }

    /// The kind that a row names, or a lock if it names none. An error says what is wrong.
    pub fn parse(text: Option<&str>) -> Result<Kind, String> {
        match text {
            None | Some("lock") => Ok(Kind::Lock),
            Some("lease") => Ok(Kind::Lease),
            Some(other) => Err(format!("its kind is {other:?}")),
        }
    }
}

/// What people read about a holder. Proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Who holds it, for people; may repeat.
    pub owner: String,
    /// The host that the holder runs on.
    pub host: Option<String>,
    /// A note of the holder's.
    pub comment: Option<String>,
}

impl Labels {
    /// The owner alone.
    pub fn of(owner: impl Into<String>) -> Self {
        Labels { owner: owner.into(), host: None, comment: None }
    }
}

/// One entry of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The acquisition that put it here.
    pub grant: GrantId,
    /// The group that it belongs to.
    pub lock_id: String,
    /// Owner, host and comment.
    pub labels: Labels,
    /// The fencing token of this grant.
    pub token: u64,
    /// When it was granted.
    pub created: StoreTime,
    /// When it was last renewed.
    pub renewed: Option<StoreTime>,
    /// When its lease ends.
    pub until: End,
}

impl Holder {
    /// Whether another library wrote this entry: such libraries have no grant ids or no tokens.
    pub fn is_foreign(&self) -> bool {
        self.grant.as_str().is_empty() || self.token == 0
    }
}

/// Everything that is stored of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockRecord {
    /// The name of the lock.
    pub key: String,
    /// A lock or a lease.
    pub kind: Kind,
    /// The highest token ever issued for this key.
    pub token: u64,
    /// The exclusive holder, expired or not.
    pub exclusive: Option<Holder>,
    /// The shared holders, expired or not, in the order of their grants.
    pub shared: Vec<Holder>,
    /// Who asked that a lease be kept beyond its end.
    pub pins: BTreeSet<String>,
    /// Acquisitions that must never be granted, however late they arrive.
    pub given_up: BTreeSet<GrantId>,
    /// When an acquisition was last given up, as a [stamp](super::Times::stamp); zero where the store remembers none.
    pub gave_up_at: u64,
    /// Raised by every write; zero where there is no row.
    pub version: u64,
    /// The form in which the row was written, major and minor.
    pub format: (u32, u32),
}

impl LockRecord {
    /// The record of a key of which the store has no row.
    pub fn missing(key: impl Into<String>) -> Self {
        LockRecord {
            key: key.into(),
            kind: Kind::Lock,
            token: 0,
            exclusive: None,
            shared: Vec::new(),
            pins: BTreeSet::new(),
            given_up: BTreeSet::new(),
            gave_up_at: 0,
            version: 0,
            format: (FORMAT_MAJOR, FORMAT_MINOR),
        }
    }

    /// A stand-in, with nothing but the format, for a row that can't be read because its major format is newer. `None`
    /// if the row does not name a newer major format.
    pub fn of_newer(key: &str, format: Option<&str>) -> Option<Self> {
        let newer = LockRecord { format: parse_format(format).ok()?, ..LockRecord::missing(key) };
        newer.check_format().is_err().then_some(newer)
    }

    /// Whether this is the stand-in for a row that can't be read.
    pub fn is_unread(&self) -> bool {
        !self.exists() && self.check_format().is_err()
    }

    /// Whether the store has a row for this key.
    pub fn exists(&self) -> bool {
        self.version > 0
    }

    /// Refuses a record of a newer major format, which must stay as it is. A record of a newer minor format is used.
    pub fn check_format(&self) -> Result<(), NewerFormat> {
        let (major, minor) = self.format;
        if major > FORMAT_MAJOR { Err(NewerFormat(major, minor)) } else { Ok(()) }
    }

    /// Every holder, expired or not, with its mode.
    pub fn holders(&self) -> impl Iterator<Item = (Mode, &Holder)> {
        let exclusive = self.exclusive.iter().map(|h| (Mode::Exclusive, h));
        exclusive.chain(self.shared.iter().map(|h| (Mode::Shared, h)))
    }

    /// The holders whose lease is still running at `now`.
    pub fn live(&self, now: StoreTime) -> impl Iterator<Item = (Mode, &Holder)> {
        self.holders().filter(move |(_, h)| h.until.is_after(now))
    }

    /// The holder that this acquisition put here, expired or not.
    pub fn standing(&self, grant: &GrantId) -> Option<(Mode, &Holder)> {
        self.holders().find(|(_, h)| h.grant == *grant)
    }

    pub(super) fn standing_mut(&mut self, grant: &GrantId) -> Option<&mut Holder> {
        let all = self.exclusive.iter_mut().chain(self.shared.iter_mut());
        all.into_iter().find(|h| h.grant == *grant)
    }

    pub(super) fn take(&mut self, grant: &GrantId) -> Option<(Mode, Holder)> {
        self.take_where(|h| h.grant == *grant)
    }

    pub(super) fn take_where(&mut self, is_it: impl Fn(&Holder) -> bool) -> Option<(Mode, Holder)> {
        if let Some(held) = self.exclusive.take_if(|h| is_it(h)) {
            return Some((Mode::Exclusive, held));
        }
        let at = self.shared.iter().position(is_it)?;
        Some((Mode::Shared, self.shared.remove(at)))
    }
}
