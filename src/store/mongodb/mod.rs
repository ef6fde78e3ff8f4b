//! A store in a MongoDB collection, which it can share with mongo-lock.
//!
//! Atomic: each call is one `findAndModify` with a pipeline that has the meaning of the pure transition of the same
//! name; a swap compares what was read. Clock: the server's, `$$NOW`, to the millisecond; there is no grace.
//! Unanswered: lost connections and timeouts after a request may have left this host, errors that interrupt a write,
//! and every write concern error, since only what the majority has counts. Giving up: acquire and release of an attempt
//! go in one session, whose numbered writes stop an acquire that arrives after its release.
//!
//! The driver lives on one thread. It repeats a write once by itself, with the same number, so that the server does it
//! only once; but none that an overloaded server refused or that got no connection. A write that was sent twice without
//! an answer that settles it is unanswered, whatever the second error says.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use mongodb::bson::Document;
use mongodb::bson::oid::ObjectId;

use super::{
    Acquired, Attempt, Backend, Consistency, GrantForm, Page, Purpose, Released, Renewal, Renewed, Schema, Seen,
    StoreInfo, Swapped, Which,
};
use crate::lease::{LockRecord, Mode, StoreTime, Times};
use crate::model::error::Result;
use crate::store::fleet::Fleet;
use crate::store::late::Clocked;
use crate::sys::deadline::Deadline;
use crate::sys::driver::Driver;

mod acquire;
mod error;
mod events;
pub mod fence;
mod mixed;
mod open;
mod pipeline;
mod read;
mod release;
mod renew;
mod row;
mod schema;
mod send;
mod session;
mod swap;
mod turns;
mod wakeup;

use error::MongodbError;
pub(crate) use events::apart;
use open::Topology;
pub use open::{MongodbOptions, Settings};

/// Decodes a document that a test made up, and encodes what this store would write over it.
#[cfg(feature = "_internals")]
pub fn decoded(document: &mongodb::bson::Document) -> std::result::Result<crate::lease::LockRecord, String> {
    let record = row::decode("k", document)?;
    let _ = row::encode(&record, Some(document));
    Ok(record)
}

/// While a client connects, a request that fails after at least this long is repeated.
const STOOD_STILL: Duration = Duration::from_millis(300);

/// See the module.
pub struct Mongodb {
    info: StoreInfo,
    database: String,
    collection: String,
    /// None until it has connected.
    topology: Option<Topology>,
    register: Arc<session::Register>,
    fleet: Fleet,
    beside: mixed::Beside,
    noticed: Noticed,
    driver: Driver<send::Owned>,
}

/// What a client noticed about its server.
struct Noticed {
    /// Whether the collection was seen to have no two documents of one key.
    is_unique: AtomicBool,
    /// Whether it was logged that waiters poll.
    said_deaf: AtomicBool,
    clocked: Clocked,
}

impl fmt::Debug for Mongodb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongodb").field("info", &self.info).field("topology", &self.topology).finish_non_exhaustive()
    }
}

impl Mongodb {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);
    /// The smallest margin: the server's time has no smaller unit, so it may be up to this much later than it says.
    pub const MIN_MARGIN: Duration = Duration::from_millis(1);
    /// The lease of a client that sets none. It is renewed after a third, give or take a tenth of that, and counts as
    /// lost a tenth before its end. So it bridges at least 16 s; an election takes up to 12 s.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

    /// Connects and learns what kind of server it is. The collection may be missing.
    pub fn open(options: MongodbOptions, by: &Deadline) -> Result<Mongodb> {
        let label = options.label();
        Mongodb::connect(options, by).map_err(|error| error.with_store(&label))
    }

    fn connect(options: MongodbOptions, by: &Deadline) -> Result<Mongodb> {
        let (fleet, beside) = (options.fleet, mixed::Beside::default());
        let info = StoreInfo {
            grant_form: GrantForm::ObjectId,
            beside: Some(mixed::LIBRARY),
            ..StoreInfo::new(options.label(), "the MongoDB server's, $$NOW", options.bounds())
        };
        let (database, collection, hosts) = (options.database.clone(), options.collection.clone(), options.hosts());
        let register = Arc::<session::Register>::default();
        let (theirs, patience) = (register.clone(), by.remaining());
        let init = move || open::client(options, theirs, patience);
        let driver = Driver::start(by, init, MongodbError::unconnected)?;
        // A placeholder: the first answer brings the time.
        let clocked = Clocked::just(StoreTime::from_nanos(0));
        let noticed = Noticed { is_unique: AtomicBool::new(false), said_deaf: AtomicBool::new(false), clocked };
        let topology = None;
        let mut store = Mongodb { info, database, collection, topology, register, fleet, beside, noticed, driver };
        let sent = Instant::now();
        let (hello, build) = store.first_answers(by)?;
        store.topology = Some(open::topology(&hosts, &hello, &build)?);
        open::local_time(&hello).into_iter().for_each(|now| store.noticed.clocked.note(now, sent));
        store.warn_if_alone();
        Ok(store)
    }

    /// What the server says about itself. The driver's timeouts are shorter than the caller's time, so that it can say
    /// why it failed. A server that hung until then, or is only waking up, may be ready for the next request, so the
    /// request is repeated.
    fn first_answers(&self, by: &Deadline) -> Result<(Document, Document), MongodbError> {
        let mut why = None;
        loop {
            let asked = Instant::now();
            let ask = |owned: Rc<send::Owned>| async move {
                Ok((open::hello(&owned).await?, open::build_info(&owned).await?))
            };
            match self.ask(by, ask) {
                Err(error) if by.is_over() => return Err(why.unwrap_or(error)),
                // A request that failed at once would fail again.
                Err(error @ (MongodbError::Unreachable { .. } | MongodbError::Unread { .. }))
                    if asked.elapsed() >= STOOD_STILL =>
                {
                    why = Some(error);
                }
                answer => return answer,
            }
        }
    }
}

/// A document, the record in it, and the server's time.
#[derive(Debug)]
struct DatedDocument {
    record: LockRecord,
    row: Option<Document>,
    now: StoreTime,
}

impl DatedDocument {
    fn new(key: &str, row: Document) -> Result<DatedDocument, MongodbError> {
        let now = row.get_datetime("now").map_err(|_| MongodbError::Config("the server says no time".to_owned()))?;
        let record = row::decode(key, &row).map_err(MongodbError::Damaged)?;
        Ok(DatedDocument { record, now: row::time(*now), row: Some(row) })
    }

    fn missing(key: &str, now: StoreTime) -> DatedDocument {
        DatedDocument { record: LockRecord::missing(key), row: None, now }
    }

    /// Which copy of its acquire put this grant into the document.
    fn copy_of(&self, grant: &ObjectId) -> Option<i32> {
        let row = self.row.as_ref()?;
        let entry = |mode| row::entry_of(row, mode, grant);
        entry(Mode::Exclusive).or_else(|| entry(Mode::Shared))?.get_i32("copy").ok()
    }

    fn seen(self) -> Seen {
        let stamp = u64::try_from(self.now.as_nanos() / 1_000).unwrap_or(0);
        let times = Times::without_grace(self.now, stamp);
        Seen::new(self.record, times, Some(Box::new(swap::Row(self.row))))
    }
}

impl Backend for Mongodb {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        Ok(self.collection_schema(what, by)?)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        Ok(self.acquire_key(attempt, by)?)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        Ok(self.renew_grant(attempt, renewal, by)?)
    }

    fn release(&self, attempt: &mut Attempt, _purpose: Purpose, by: &Deadline) -> Result<Released> {
        Ok(self.release_grant(attempt, by)?)
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        Ok(self.read_page(which, from, consistency, by)?)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        Ok(self.swap_record(seen, new, by)?)
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        Ok(self.wake_keys(keys, to, by)?)
    }
}
