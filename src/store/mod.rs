//! What a store must do: the blocking calls of [`Backend`].
//!
//! # Contract
//! - **Atomic.** Every call that writes is one atomic step on one key, with the meaning of the
//!   transition of the same name in [`lease::transition`](crate::lease::transition). A store gets
//!   there in one of two ways and its module says which: it reads, applies the pure transition and
//!   writes inside one serializable transaction (memory, SQLite); or it sends one native
//!   conditional write that means the same, and falls back to the pure transition with [`swap`]
//!   for what the condition cannot say.
//! - **Whose clock.** The store's clock decides what is live ([`StoreInfo::clock`]), never the
//!   caller's wall clock. Each answer carries the store's now, as late as it may be: the caller
//!   counts what is left of a lease from it.
//! - **Condition.** Every write of a guard has its grant id as condition. Where the condition failed,
//!   the answer comes from the record that was found.
//! - **Unknown.** A write that was sent and not answered is `Unknown`, never an error: it may or
//!   may not have happened. The caller repeats it with the same attempt, which then finds its own grant.
//!   An `Err` from a call that writes says that nothing was written.
//! - **Giving up** an acquisition also stops a copy of it that arrives later, once or twice.
//! - **In time.** Every call with I/O takes a deadline and returns by then.
//! - **Unknown rows.** A row of a higher major format is an error of kind `Schema` on every call
//!   that would change it, and stays as it is. Of a higher minor format it is used.
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
use crate::sys::clock::{BootTime, Clock};
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

    /// The grace that counts now: [`StoreInfo::grace`], or more where other clients made it more. No I/O.
    fn grace(&self) -> Duration {
        self.info().grace
    }

    /// An error where the store's time is not told any more: then what was over long ago may seem to run. No I/O.
    fn check_time(&self) -> Result<()> {
        Ok(())
    }

    /// Checks, describes or creates what the store needs; answers with a text for people. What takes the store
    /// minutes to create is waited for by [`Deadline::long`].
    fn schema(&self, what: Schema, by: &Deadline) -> Result<String>;

    /// Grants the key, finds an earlier copy of the same attempt, or refuses. Also a transfer
    /// (`instead_of`) and the replacing of the same owner.
    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired>;

    /// Extends the lease while the grant holds, expired or not. Never moves an end backwards.
    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed>;

    /// Removes the holder and keeps the token.
    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released>;

    /// Reads records a page at a time, in any order, each of them once; `from` is the last page's `next`. A page takes
    /// no longer than one request, however many rows there are. A single key without a row answers with a missing
    /// record, so that the store's time comes along.
    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page>;

    /// Writes the whole record if nothing changed since `seen`; `None` deletes the row.
    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped>;

    /// Sends each of `keys` to `to` when it may have become free, from this call's return until the next call,
    /// which replaces the set; an empty one ends it. What happened before is not sent: the caller looks once more. A
    /// key of both sets is reported without a gap: to the old `to` until the new one is in use; where the store can't go on
    /// from the last set, which had not ended, it sends all keys. A key may be sent for nothing; the end of a lease by time
    /// is never sent.
    ///
    /// `false`: it can't report. Then, and when it can report no longer, it drops `to`.
    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool>;
}

/// The record of one key as it stands now.
pub(crate) fn read_key(backend: &dyn Backend, key: &str, by: &Deadline) -> Result<Seen> {
    let seen = backend.read(&Which::Key(key.to_owned()), None, Consistency::Strong, by)?.records.pop();
    let nothing = || Error::new(ErrorKind::Store, "the store answered a read with nothing").retryable();
    seen.ok_or_else(|| nothing().with_key(key).with_store(&backend.info().label))
}

/// A store that is not opened yet.
pub(crate) struct Opener {
    /// The shortest lease that makes sense there.
    pub min_lease: Duration,
    /// The smallest margin.
    pub min_margin: Duration,
    /// The lease of a client that sets none.
    pub default_lease: Duration,
    /// What may not be asked for there.
    pub limits: Option<Limits>,
    /// Opens it.
    pub open: Open,
}

type Open = Box<dyn FnOnce(Arc<Clock>, Missing, &Deadline) -> Result<Arc<dyn Backend>> + Send + Sync>;

impl Opener {
    fn new<B: Backend>(
        min_lease: Duration,
        open: impl FnOnce(Arc<Clock>, Missing, &Deadline) -> Result<B> + Send + Sync + 'static,
    ) -> Self {
        let open: Open = Box::new(|clock, missing, by| Ok(Arc::new(open(clock, missing, by)?)));
        Opener { min_lease, min_margin: Duration::ZERO, default_lease: DEFAULT_LEASE, limits: None, open }
    }
}

/// What is wrong with a store URL, if anything is. Nothing is opened.
#[cfg(feature = "_internals")]
pub fn check_url(url: &str) -> Result<()> {
    connect::opener(url).map(drop)
}

/// How many may share a key, and why not more, for people.
#[derive(Debug)]
pub struct MostShared {
    /// So many.
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
    /// The shortest lease that makes sense here.
    pub min_lease: Duration,
    /// The smallest margin, where what is not known of the store's time could use up less.
    pub min_margin: Duration,
    /// The form of grant ids.
    pub grant_form: GrantForm,
    /// How many shared holders of one key can renew at this interval, where the store has a bound.
    pub most_shared: Option<fn(Duration) -> MostShared>,
    /// What a write without an answer left may be read, and undone by a failover: only a later write tells that it stays.
    pub reads_what_may_be_undone: bool,
    /// The other library whose rows are read there.
    pub beside: Option<&'static str>,
    /// What may not be asked for, where that library uses the store, too.
    pub limits: Option<Limits>,
}

impl StoreInfo {
    /// Of a store that needs neither a grace nor a least margin.
    fn new(label: String, clock: &'static str, min_lease: Duration) -> Self {
        let (grace, min_margin, grant_form) = (Duration::ZERO, Duration::ZERO, GrantForm::Uuid);
        StoreInfo {
            label,
            clock,
            grace,
            min_lease,
            min_margin,
            grant_form,
            most_shared: None,
            reads_what_may_be_undone: false,
            beside: None,
            limits: None,
        }
    }
}

/// The form of a store's grant ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantForm {
    /// A random UUID.
    Uuid,
    /// 12 bytes in 24 digits, as MongoDB has them: the time in seconds, then random.
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

/// Ids of MongoDB are sorted by their time. Its own have a counter, which would repeat after a fork.
fn object_id() -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // As the type has it: 32 bits, which go round in 2106.
    let seconds = since_1970.as_secs() & u64::from(u32::MAX);
    let random = random::uuid().into_bytes();
    // The other bytes are not all random.
    let random = random[..6].iter().chain(&random[9..11]);
    random.fold(format!("{seconds:08x}"), |text, byte| format!("{text}{byte:02x}"))
}

/// What [`Backend::schema`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// Say whether the store can be used; an error also for what `Create` would make.
    Check,
    /// The same when a client is made. What `Create` would make is only a warning, since who makes it must connect first.
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

/// What connecting makes of a file, table or collection that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A file is made; a table or a collection is a warning.
    IsAllowed,
    /// It is an error: who connects will not make it.
    IsRefused,
}

/// One acquisition under way, from before its first request until it is released.
#[derive(Debug)]
pub struct Attempt {
    /// The name of the lock.
    pub key: String,
    /// What it asks for; its grant id is the condition on every write.
    pub ask: Ask,
    /// When it was first sent; an attempt that is too old is given up.
    pub first_sent: Option<BootTime>,
    /// How often the acquisition was sent: more than once, and a copy may still be on its way.
    pub sends: u32,
    /// The grant whose place it takes (`instead_of`) was sent once: no copy of that is on its way.
    pub replaces_sent_once: bool,
    /// The store's own handle: a session, work under way.
    pub native: Option<Box<dyn Any + Send>>,
}

impl Attempt {
    /// An attempt that was not sent yet.
    pub fn new(key: impl Into<String>, ask: Ask) -> Self {
        Attempt { key: key.into(), ask, first_sent: None, sends: 0, replaces_sent_once: false, native: None }
    }

    /// The same acquisition for a second caller, who has to assume that copies are on their way.
    pub fn without_native(&self) -> Self {
        Attempt {
            key: self.key.clone(),
            ask: self.ask.clone(),
            first_sent: self.first_sent,
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
    /// To end what its caller knows to be granted.
    Release,
    /// To stop also copies of the acquisition that are still on their way.
    GiveUp,
}

/// Which state [`Backend::read`] may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// What the last write left.
    Strong,
    /// A state that is a moment old, where that is cheaper.
    Eventual,
}

/// A record as it was found, with the store's time.
#[derive(Debug)]
pub struct Seen {
    /// The record.
    pub record: LockRecord,
    /// The times when it was read, to decide by.
    pub times: Times,
    /// The wall clock of this host then, for people.
    read_at: SystemTime,
    /// What the store compares in a swap, where the record does not say it all.
    pub native: Option<Box<dyn Any + Send>>,
}

impl Seen {
    /// What was read just now.
    pub fn new(record: LockRecord, times: Times, native: Option<Box<dyn Any + Send>>) -> Self {
        Seen { record, times, read_at: SystemTime::now(), native }
    }

    /// The store's time when it was read, as this host's wall clock had it.
    pub(crate) fn read_at(&self) -> (StoreTime, SystemTime) {
        (self.times.now, self.read_at)
    }

    /// The holders who must be respected. Mode, holder.
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
        /// The store's now, as late as it may be.
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
        /// The store's now, as late as it may be.
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

    /// The same of a record that may stand in place of a row that can't be read: that is of a group if it `names` its lock id.
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
    /// Where the next page begins, in the store's own words; `None` at the end. A page may be empty and not the last.
    pub next: Option<String>,
}
