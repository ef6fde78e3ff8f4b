//! What a store must do: the blocking calls of [`Backend`].
//!
//! # Contract
//! - **Atomic.** Every call that writes is one atomic step on one key, with the meaning of the transition of the same
//!   name in [`lease::transition`](crate::lease::transition). A store does this in one of two ways, and its module says
//!   in which one: it reads, applies the pure transition and writes inside one serializable transaction (memory,
//!   SQLite); or it sends one native conditional write that means the same, and falls back to the pure transition with
//!   [`swap`] for what the condition cannot express.
//! - **Whose clock.** The store's clock decides what is live ([`StoreInfo::clock`]), never the caller's wall clock.
//!   Each answer carries the latest that the store's time may be now: the caller counts what is left of a lease from
//!   it.
//! - **Condition.** Every write of a guard has the guard's grant id as its condition. If the condition fails, the
//!   answer is made from the record that was found.
//! - **Unknown.** A write that was sent and not answered is `Unknown`, never an error: it may or may not have happened.
//!   The caller repeats it with the same attempt, which then finds its own grant. An `Err` from a call that writes says
//!   that nothing was written.
//! - **Giving up** an acquisition also stops copies of it that arrive later, even if a copy arrives twice.
//! - **In time.** Every call with I/O takes a deadline and returns by then.
//! - **Unknown rows.** A row of a higher major format is an error of kind `Schema` on every call that would change it,
//!   and stays as it is. A row of a higher minor format is used.
//!
//! The crate's design page says how each store keeps this.
//!
//! [`swap`]: Backend::swap

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_channel::Sender;

pub use crate::lease::Renewal;
use crate::lease::{Ask, End, GrantId, Holder, LockRecord, Mode, StoreTime, Times};
use crate::model::error::{Error, ErrorKind, Result};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::random;
use fleet::Limits;

pub(crate) mod connect;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "_async")]
#[allow(dead_code)]
mod failure;
pub mod fault;
// Which parts of `failure`, `fence`, `fleet` and `url` are used depends on the stores that are built.
#[allow(dead_code)]
pub mod fence;
#[allow(dead_code)]
pub mod fleet;
#[cfg(any(feature = "mongodb", feature = "postgres"))]
mod late;
pub mod memory;
#[cfg(feature = "mongodb")]
pub mod mongodb;
pub mod observed;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mongodb", feature = "postgres"))]
mod row_turns;
#[cfg(any(feature = "postgres", feature = "spanner"))]
mod shared_holders;
#[cfg(feature = "spanner")]
pub mod spanner;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod status;
pub mod transactional;
#[allow(dead_code)]
mod url;

/// The lease of a client that sets none, on a store that needs no other.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(20);

/// A store of locks. See the module's `# Contract`.
pub trait Backend: Any + fmt::Debug + Send + Sync {
    /// What is the same for the whole life of the client. No I/O.
    fn info(&self) -> &StoreInfo;

    /// The grace that applies now: [`StoreInfo::grace`], or more if other clients made it longer. No I/O.
    fn grace(&self) -> Duration {
        self.info().grace
    }

    /// An error if the store's time is not known any more: then a lease that ended long ago may seem to be live. No
    /// I/O.
    fn check_time(&self) -> Result<()> {
        Ok(())
    }

    /// Checks, describes or creates what the store needs; answers with a text for people. What takes the store minutes
    /// to create may take until [`Deadline::long`].
    fn schema(&self, what: Schema, by: &Deadline) -> Result<String>;

    /// Grants the key, finds an earlier copy of the same attempt, or refuses. Also does a transfer (`instead_of`), and
    /// replaces a holder with the same owner.
    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired>;

    /// Extends the lease while the grant holds, expired or not. Never moves an end backwards.
    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed>;

    /// Removes the holder and keeps the token.
    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released>;

    /// Reads records a page at a time, in any order, each of them once; `from` is the last page's `next`. A page takes
    /// no longer than one request, however many rows there are. For a single key without a row, the answer is a missing
    /// record, because it carries the store's time.
    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page>;

    /// Writes the whole record if nothing changed since `seen`; `None` deletes the row.
    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped>;

    /// Sends each of `keys` to `to` when it may have become free, from this call's return until the next call. The next
    /// call replaces the set; an empty set ends the reports. Changes before this call are not sent, so the caller must
    /// look once more. A key that is in the old set and the new one is reported without a gap: to the old `to` until
    /// the new one is in use. If the last set had not ended and the store can't continue from it, it sends all keys. A
    /// key may be sent for nothing; the end of a lease by time is never sent.
    ///
    /// `false`: the store can't report. Then, and when it can't report any more, it drops `to`.
    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        let _ = (keys, to, by);
        Ok(false)
    }
}

/// The record of one key as it is now.
pub(crate) fn read_key(backend: &dyn Backend, key: &str, by: &Deadline) -> Result<Seen> {
    read_one(backend, key, Consistency::Strong, by)
}

/// The same for who holds the lock.
pub(crate) fn read_held(backend: &dyn Backend, key: &str, by: &Deadline) -> Result<Seen> {
    read_one(backend, key, Consistency::Holders, by)
}

/// The same, as this consistency allows.
pub(crate) fn read_one(backend: &dyn Backend, key: &str, consistency: Consistency, by: &Deadline) -> Result<Seen> {
    let seen = backend.read(&Which::Key(key.to_owned()), None, consistency, by)?.records.pop();
    let nothing = || Error::new(ErrorKind::Store, "the store answered a read with nothing").retryable();
    seen.ok_or_else(|| nothing().with_key(key).with_store(&backend.info().label))
}

/// A store that is not opened yet.
pub(crate) struct Opener {
    pub bounds: Bounds,
    /// Opens it.
    pub open: Open,
}

type Open = Box<dyn FnOnce(Arc<Clock>, Missing, &Deadline) -> Result<Arc<dyn Backend>> + Send + Sync>;

impl Opener {
    fn new<B: Backend>(
        bounds: Bounds,
        open: impl FnOnce(Arc<Clock>, Missing, &Deadline) -> Result<B> + Send + Sync + 'static,
    ) -> Self {
        let open: Open = Box::new(|clock, missing, by| Ok(Arc::new(open(clock, missing, by)?)));
        Opener { bounds, open }
    }
}

/// What a client may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The shortest lease that makes sense.
    pub min_lease: Duration,
    /// The smallest margin that is accepted: what is not known of the store's time could use up a smaller one.
    pub min_margin: Duration,
    /// The lease of a client that sets none.
    pub default_lease: Duration,
    /// What a client may not ask for if another library uses the store, too.
    pub limits: Option<Limits>,
}

impl Bounds {
    /// For a store that needs no others.
    pub(crate) fn of(min_lease: Duration) -> Self {
        Bounds { min_lease, min_margin: Duration::ZERO, default_lease: DEFAULT_LEASE, limits: None }
    }
}

/// What is wrong with a store URL, if anything is. Nothing is opened.
#[cfg(feature = "_internals")]
pub fn check_url(url: &str) -> Result<()> {
    connect::opener(url).map(drop)
}

/// How many holders may share a key, and why not more, for people.
#[derive(Debug)]
pub struct MostShared {
    /// The largest number of shared holders.
    pub holders: u32,
    /// What sets the bound.
    pub why: String,
}

/// What is fixed about a store.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// Scheme, host and database; never a secret.
    pub label: String,
    /// Whose clock decides, for people.
    pub clock: &'static str,
    /// How long after its end a lease is still respected, because clocks differ.
    pub grace: Duration,
    /// What a client may ask for here.
    pub bounds: Bounds,
    /// The form of grant ids.
    pub grant_form: GrantForm,
    /// How many shared holders of one key can renew at this interval, where the store has a bound.
    pub most_shared: Option<fn(Duration) -> MostShared>,
    /// Whether a failover may undo what a read shows of an unanswered write. Then only a later write proves that it
    /// stays.
    pub reads_what_may_be_undone: bool,
    /// The other library whose rows this store reads, too.
    pub beside: Option<&'static str>,
}

impl StoreInfo {
    /// For a store that needs no grace.
    fn new(label: String, clock: &'static str, bounds: Bounds) -> Self {
        let (grace, grant_form, reads_what_may_be_undone) = (Duration::ZERO, GrantForm::Uuid, false);
        let (most_shared, beside) = (None, None);
        StoreInfo { label, clock, grace, bounds, grant_form, most_shared, reads_what_may_be_undone, beside }
    }
}

/// The form of a store's grant ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantForm {
    /// A random UUID.
    Uuid,
    /// 12 bytes as 24 digits, like MongoDB's ids: the time in seconds, then random bytes.
    ObjectId,
}

impl GrantForm {
    /// A grant id that nobody else has.
    pub fn fresh(self) -> GrantId {
        match self {
            GrantForm::Uuid => GrantId::from_text(random::uuid().to_string()),
            GrantForm::ObjectId => GrantId::from_text(object_id()),
        }
    }
}

/// Like an id of MongoDB's, which are sorted by their time. MongoDB's own have a counter, which would repeat after a
/// fork.
fn object_id() -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // The type has 32 bits for the time, which wrap around in 2106.
    let seconds = since_1970.as_secs() & u64::from(u32::MAX);
    let random = random::uuid().into_bytes();
    // The other bytes of a UUID are not all random.
    let random = random[..6].iter().chain(&random[9..11]);
    random.fold(format!("{seconds:08x}"), |text, byte| format!("{text}{byte:02x}"))
}

/// What [`Backend::schema`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// Say whether the store can be used. It is an error, too, if something is missing that `Create` would make.
    Check,
    /// The same when a client connects. What `Create` would make is only a warning, because a client must connect
    /// before it can create it; but a missing table or collection can be an error, see [`Missing`].
    Connect(Missing),
    /// Say what `Create` would do.
    Describe,
    /// Make what is missing.
    Create,
}

#[cfg(feature = "_async")]
impl Schema {
    /// Whether a table that is missing is an error.
    fn needs_table(self) -> bool {
        self != Schema::Connect(Missing::IsAllowed)
    }
}

/// What connecting does if the file, table or collection does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A file is created. For a table or a collection there is only a warning.
    IsAllowed,
    /// It is an error, because this client will not create it.
    IsRefused,
}

/// One acquisition under way, from before its first request until it is released.
#[derive(Debug)]
pub struct Attempt {
    /// The name of the lock.
    pub key: String,
    /// What it asks for; its grant id is the condition on every write.
    pub ask: Ask,
    /// How often the acquisition was sent. If more than once, a copy may still be on its way.
    pub sends: u32,
    /// The acquisition of the grant that this one replaces (`instead_of`) was sent once: no copy of it is on its way.
    pub replaces_sent_once: bool,
    /// The store's own state for it: a session, or work under way.
    pub native: Option<Box<dyn Any + Send>>,
}

impl Attempt {
    /// An attempt that was not sent yet.
    pub fn new(key: impl Into<String>, ask: Ask) -> Self {
        Attempt { key: key.into(), ask, sends: 0, replaces_sent_once: false, native: None }
    }

    /// The same acquisition for a second caller, who has to assume that copies are on their way.
    pub fn without_native(&self) -> Self {
        Attempt {
            key: self.key.clone(),
            ask: self.ask.clone(),
            sends: self.sends.max(2),
            replaces_sent_once: self.replaces_sent_once,
            native: None,
        }
    }

    /// The grant id.
    pub fn grant(&self) -> &GrantId {
        &self.ask.grant
    }
}

/// What [`Backend::release`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To end a hold that the caller knows to be granted.
    Release,
    /// To end it, and to stop copies of the acquisition that are still on their way.
    GiveUp,
}

/// Which state [`Backend::read`] may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The state that the last write left.
    Strong,
    /// The same, for who holds the lock: like a heartbeat, it does not queue behind other callers.
    Holders,
    /// A state that is a moment old, where that is cheaper.
    Eventual,
}

impl Consistency {
    /// Whether it may see only the state that the last write left.
    #[cfg(feature = "dynamodb")]
    fn is_strong(self) -> bool {
        self != Consistency::Eventual
    }
}

/// A record as it was found, with the store's time.
#[derive(Debug)]
pub struct Seen {
    /// The record.
    pub record: LockRecord,
    /// The store's times of the read, by which the caller decides.
    pub times: Times,
    /// This host's wall clock at the read, for people.
    read_at: SystemTime,
    /// What the store compares in a swap, if the record alone is not enough.
    pub native: Option<Box<dyn Any + Send>>,
}

impl Seen {
    /// What was read just now.
    pub fn new(record: LockRecord, times: Times, native: Option<Box<dyn Any + Send>>) -> Self {
        Seen { record, times, read_at: SystemTime::now(), native }
    }

    /// The store's time of the read, and this host's wall clock at that moment.
    pub(crate) fn read_at(&self) -> (StoreTime, SystemTime) {
        (self.times.now, self.read_at)
    }

    /// The holders that must be respected, each with its mode.
    pub fn live(&self) -> impl Iterator<Item = (Mode, &Holder)> {
        self.record.live(self.times.expired_before)
    }

    /// Whether this holder must be respected.
    pub fn is_live(&self, holder: &Holder) -> bool {
        holder.until.is_after(self.times.expired_before)
    }
}

/// The answer to [`Backend::acquire`].
#[derive(Debug)]
pub enum Acquired {
    /// The attempt holds the key.
    Granted {
        /// The entry as it is.
        holder: Holder,
        /// An earlier copy of the same request put it there.
        repeated: bool,
        /// The latest that the store's time may be now.
        now: StoreTime,
    },
    /// Others hold the key; for a transfer: the old grant holds no longer.
    Refused(Seen),
    /// No answer came.
    Unknown(Error),
}

/// The answer to [`Backend::renew`].
#[derive(Debug)]
pub enum Renewed {
    /// The grant holds until then.
    Until {
        /// The end of the lease.
        until: End,
        /// The latest that the store's time may be now.
        now: StoreTime,
    },
    /// The grant holds no longer; what was found instead.
    Lost(Seen),
    /// No answer came.
    Unknown(Error),
}

/// The answer to [`Backend::release`].
#[derive(Debug)]
pub enum Released {
    /// The grant held, and is gone.
    Done,
    /// Nobody holds the key.
    Free,
    /// Others hold the key.
    HeldByOther(Seen),
    /// No answer came.
    Unknown(Error),
}

/// The answer to [`Backend::swap`].
#[derive(Debug)]
pub enum Swapped {
    /// It is written.
    Done,
    /// The record changed meanwhile: read again and decide again.
    Changed,
    /// No answer came.
    Unknown(Error),
}

/// What [`Backend::read`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The record of one key.
    Key(String),
    /// All records whose key starts with this text.
    Prefix(String),
    /// All records with a holder, expired or not, of this lock id.
    LockId(String),
}

impl Which {
    /// Whether this record is one of them.
    pub fn matches(&self, record: &LockRecord) -> bool {
        match self {
            Which::Key(key) => record.key == *key,
            Which::Prefix(prefix) => record.key.starts_with(prefix.as_str()),
            Which::LockId(id) => record.holders().any(|(_, holder)| holder.lock_id == *id),
        }
    }

    /// The same for a record that may be a stand-in for a row that can't be read. Such a record belongs to a group if
    /// `names` finds the lock id in the row.
    pub fn may_match(&self, record: &LockRecord, names: impl FnOnce(&str) -> bool) -> bool {
        match self {
            Which::LockId(id) if record.is_unread() => names(id),
            _ => self.matches(record),
        }
    }
}

/// The answer to [`Backend::read`].
#[derive(Debug)]
pub struct Page {
    /// The records, each with the store's time.
    pub records: Vec<Seen>,
    /// Where the next page begins, in a form of the store's own; `None` at the end. A page may be empty without being
    /// the last.
    pub next: Option<String>,
}
