//! What only the MongoDB store has.
//!
//! One collection holds the locks, a document for each key; it can be the collection of mongo-lock, whose documents are
//! read and respected. [`create_schema`](crate::LockClient::create_schema) makes it with its indexes; the unique index
//! on `resource` is required. Acquire, heartbeat, release and refusal are one request each.
//!
//! The server's clock decides (`$$NOW`). Every write waits until the majority has it in its journal. Every read and
//! write goes to the primary, whatever the settings say, so a direct connection (`directConnection=true`) to another
//! member is of no use.
//!
//! # What keeps keys apart
//! The unique index on `resource` must exist, and its build must be over, before a client writes anything. In
//! addition, a document that is made by this version has its key as its `_id`. So clients of this version never make
//! two documents for one key, even if somebody removes the index while they run: by `drop()`, `dropIndexes` or
//! `mongorestore --drop`. Documents of mongo-lock and of earlier versions keep the ObjectId that they have, and only
//! the index prevents a second document of the same key. Where such clients run, or such documents are
//! restored, stop all clients before you drop or restore: otherwise two may hold one lock. A document that has a key as
//! its `_id` but is not a lock's is an error of kind `Schema`.
//!
//! An index with a time to live on a field of the locks (`exclusive.createdAt`, `shared.locks.expiresAt`, `ended`)
//! would delete locks that are held, since a document is deleted when the first of its readers ends: connecting and
//! `create_schema` refuse it. Running clients do not notice an index that is made later; `leasehold doctor` reports it.
//! Expired locks are deleted by [`purge`](crate::LockClient::purge). A validator or another unique index that refuses
//! the documents of locks is an error of kind `Schema`, too.
//!
//! # Rights
//! | who | role on the database | or these actions on the collection |
//! |---|---|---|
//! | makes the collection | `readWrite` | `createCollection`, `createIndex` |
//! | locks | `readWrite` | `find`, `insert`, `update`, and `remove` to purge |
//! | only reads (`get`, `list`) | `read` | `find` |
//! | waits, and wants to learn of releases at once | `read` | `changeStream`, and `find` |
//!
//! Connecting sends `listCollections` and `listIndexes`, which both roles allow. Where they are denied, the client
//! assumes that the unique index exists, with a warning. Where change streams are denied, waiters poll, which is logged
//! once.
//!
//! # Certificates
//! The driver trusts the well-known authorities that it contains, not those of the system. For a private authority
//! write `tlsCAFile=/path/ca.pem` into the URL; the client's own certificate is `tlsCertificateKeyFile=/path/me.pem`,
//! with its key in the same file. The URL must name hosts as the server's certificate names them. A certificate that is
//! not trusted is an error of kind `Config` from `connect`.
//!
//! `authMechanism=MONGODB-AWS` and `GSSAPI` need the driver's features `aws-auth` and `gssapi-auth`, which bring more
//! crates and are left out: a program that names the crate `mongodb` with them in its own Cargo.toml has them.
//!
//! # Sharded clusters
//! Shard the collection by `{resource: 1}`, unique, before `create_schema`: the index that `create_schema` makes is
//! sparse, which the index of a shard key may not be. The clock is then the router's, so the clocks of all routers must
//! agree within the margin of a lease, as those of a replica set's members must. All clients must go through routers: a
//! client whose URL names a shard sees the locks of that shard only, and is granted locks that are held on another
//! shard. The tests have no `mongos`. So these were not tried: the steps through a router, its errors while a shard
//! elects or a chunk moves, and change streams over several shards.
//!
//! # What the majority promises
//! A grant that was answered outlives elections, crashes and power cuts of a minority. It does not outlive a majority
//! that loses its disks, a forced reconfiguration, or members that answer before their journal is written
//! (`writeConcernMajorityJournalDefault: false`). While no majority can be reached, nothing is granted, renewed or
//! refused, and `get` shows no key. A guard then stays held until its lease ends, so it bridges an outage of half its
//! lease whenever the outage begins. An election takes up to 12 s at MongoDB's defaults; so the default lease is 30 s
//! here, not 20 s. If the primary hangs instead of dying, a member that copied from it may wait ten seconds more for it
//! before there is a majority again (seen: 14 s with an election timeout of 2 s). A lease of 45 s bridges both;
//! `oplogNetworkTimeoutBufferSeconds=1` on the servers shortens the second. A primary that was cut off and comes back
//! grants nothing, since its majority has gone on. An arbiter votes but acknowledges no write: of two members with data
//! and an arbiter, both members must be up, or nothing is granted or renewed.
//!
//! An acquire that is given up before it was answered is stopped by the number of the write that gives it up. If that
//! write found nothing to remove, there is nothing that the other members could copy. So after an election, a copy of
//! the acquire that is still on its way (a router that repeats it) may be granted although nobody wants it any more,
//! and blocks the key for up to a minute.
//!
//! A server alone, in no replica set, works with a warning: it does not stop an acquire that was given up and still
//! arrives, which then blocks the key for up to a minute; and waiters poll. Once that server belongs to a replica set,
//! clients must connect again.
//!
//! # Connections
//! A client opens connections as it needs them, up to `maxPoolSize` (32 if it is not set; 3 if it is set to fewer, with
//! a warning), and closes those that nobody has used for a minute (`maxIdleTimeMS` sets another time), since a router
//! on the way may have forgotten them. One connection receives reports of releases while somebody waits, and two
//! more watch each server. Acquires and waiters use at most 6, or three fifths of a `maxPoolSize` that
//! is set, and at most half of these for one key, so that heartbeats and releases never queue behind a thousand
//! waiters.
//!
//! A transaction that has asserted a lock makes the heartbeat of that lock wait until the transaction ends, and that
//! heartbeat occupies a connection. If one transaction asserts more locks of a client than connections are left, the
//! heartbeats of the client's other locks wait as well: set a larger `maxPoolSize`.
//!
//! # Cost
//! Each step of a lock is one request, also if it is shared or refused (an acquire with a lease above a minute: two),
//! and so is a read of one key or of one page of a listing; a read of a key without a document is two. A read of one
//! key (`get`) makes the primary write an entry into its oplog and wait for the majority; a waiter's look does not.
//! Connecting takes four: `hello`, `buildInfo`, `listCollections`, `listIndexes`. Waiters of a client share one change
//! stream, and send a request only when it reports their key or the holder's lease can be over.
//!
//! A heartbeat also writes to the index on `exclusive.expiresAt` or `shared.locks.expiresAt`. Only mongo-lock and
//! `fleet=mixed` use these two: elsewhere you may drop them, but `create_schema` makes them again.
//!
//! # Versions
//! MongoDB 4.4.2 or newer; below 5.0 waiters poll. The tests run on 6.0.5, and on no version below 6. Amazon
//! DocumentDB, the open DocumentDB, Azure Cosmos DB and FerretDB speak the protocol but lack some of what locks need, and
//! are refused by name.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use mongodb as driver;
use mongodb::error::Result as DriverResult;
use mongodb::options::ClientOptions;

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::fleet::Fleet;
use crate::store::mongodb::fence::{Assertion, in_context, of_commit, of_transaction};
use crate::store::mongodb::{MongodbOptions, Settings, apart};
use crate::sys::clock::Clock;

/// A client of the locks in the collection `locks` of the default database of `options`.
///
/// Only the settings in `options` are used: the client makes its own connections, on a thread of its own. Write
/// concern, read concern, read preference, `retry_writes`, `max_adaptive_retries` and `strict` of the Stable API are
/// ignored, and so are timeouts that are longer than locks can bear.
/// Callbacks for the driver's events are called by another thread, a little later, so that no lock waits for them;
/// async ones run on the thread of the locks, and must not block it. Events that do not fit into a channel are dropped,
/// and so are events for callbacks while no thread can be started; the log says so once.
///
/// # Example
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// # let options = leasehold::mongodb::driver::options::ClientOptions::default();
/// // let options = ClientOptions::parse("mongodb://localhost/app").await?;
/// let client = leasehold::mongodb::builder(options).connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(options: ClientOptions) -> ClientBuilder {
    over(MongodbOptions::new(given(options), None, None))
}

/// The same in another database and collection.
pub fn builder_with(
    options: ClientOptions,
    database: impl Into<String>,
    collection: impl Into<Collection>,
) -> ClientBuilder {
    let Collection { name, fleet } = collection.into();
    let options = MongodbOptions::new(given(options), Some(database.into()), Some(name));
    over(options.map(|options| MongodbOptions { fleet, ..options }))
}

/// A collection: its name, and what differs from the defaults. A text converts into the collection of this name.
#[derive(Clone, Debug)]
#[must_use = "a collection does nothing until a client is built on it"]
pub struct Collection {
    name: String,
    fleet: Fleet,
}

impl Collection {
    /// The collection of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Collection { name: name.into(), fleet: Fleet::Own }
    }

    /// For a collection that clients of mongo-lock use, too: as `fleet=mixed` in the URL.
    /// [The guide](crate::guide::moving_mongo_lock) says what that changes and how to move. The lease must then be at
    /// least 3 s and the margin at least 1 s, and leases of names are refused. Defaults to a collection that only
    /// leasehold uses.
    pub fn mixed_fleet(mut self) -> Self {
        self.fleet = Fleet::Mixed;
        self
    }
}

impl<T: Into<String>> From<T> for Collection {
    fn from(name: T) -> Self {
        Collection::new(name)
    }
}

fn given(options: ClientOptions) -> Settings {
    Settings::Given(Box::new(apart(options)))
}

fn over(options: crate::Result<MongodbOptions>) -> ClientBuilder {
    ClientBuilder::with_opener(options.and_then(MongodbOptions::opener), Clock::system())
}

/// Lets a user's own transaction be committed only while a lock or lease [stands](Fenced).
///
/// The assertion writes into the document of the lock, so that a takeover and the transaction conflict: whichever comes
/// second fails. It should be the last thing before the commit, since the guard's own heartbeat waits for the
/// transaction from then on. A heartbeat that comes between the transaction's start and the assertion makes the
/// assertion fail with a conflict: then the whole transaction has to be tried again. [`run_fenced`] does all of that.
///
/// **Your own transaction must commit with the write concern `majority`**, as [`run_fenced`]'s does. With `w: 1`, set
/// by your client or by the server's default, a server that is no longer the primary may commit a transaction and
/// answer, and the commit is rolled back later, while a rival has the lock.
pub trait AssertIn: Fenced {
    /// Asserts in the transaction of a session of the driver's blocking API, which must have been started. In a task of an async
    /// runtime that API panics: see [`assert_in_async`](AssertIn::assert_in_async).
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more, or was granted after the transaction read something: abort the
    /// transaction. A retryable error of kind `Store` when the whole transaction has to be tried again; its source is
    /// the driver's error, with the driver's labels. `Permission` where the session's user may not update the locks'
    /// collection. `InvalidInput` for a lock of another kind of store, and for a session that is in no transaction;
    /// `Closed` in a forked child.
    fn assert_in(&self, session: &mut driver::sync::ClientSession) -> Result<()>;

    /// The same in the transaction of a session of the driver's async API.
    ///
    /// # Errors
    /// As [`assert_in`](AssertIn::assert_in).
    fn assert_in_async(&self, session: &mut driver::ClientSession) -> impl Future<Output = Result<()>>;
}

impl<T: Fenced> AssertIn for T {
    fn assert_in(&self, session: &mut driver::sync::ClientSession) -> Result<()> {
        let standing = self.standing()?;
        assert_sync(&Assertion::of(standing)?, session).map_err(|error| in_context(error, standing))
    }

    async fn assert_in_async(&self, session: &mut driver::ClientSession) -> Result<()> {
        let standing = self.standing()?;
        assert_async(&Assertion::of(standing)?, session).await.map_err(|error| in_context(error, standing))
    }
}

/// Runs `work` in a transaction, asserts that the lock or lease is held, and commits. If the server says that the
/// transaction may be tried again, it begins again from the start, for up to two minutes. So `work` may run several
/// times.
///
/// The assertion comes last in the first try, and first in those that follow: then the guard's heartbeats wait, and
/// can't make a transaction that is longer than their interval fail again and again. Keep the transaction shorter than
/// the lease.
///
/// The driver's blocking API, which it uses, panics in a task of an async runtime: see [`run_fenced_async`].
///
/// # Errors
/// `Lost` when the lock is not held any more; the error of `work`, as the source of an error of kind `Store`;
/// `Ambiguous` when no answer settled whether it was committed; otherwise as [`AssertIn::assert_in`]. After every error
/// but `Ambiguous` nothing was committed.
///
/// # Example
/// ```no_run
/// use leasehold::mongodb::{driver, run_fenced};
/// use driver::bson::doc;
///
/// # fn publish(client: driver::sync::Client, guard: leasehold::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
/// let reports = client.database("app").collection::<driver::bson::Document>("reports");
/// let mut session = client.start_session().run()?;
/// run_fenced(&guard, &mut session, |session| {
///     reports.update_one(doc! { "_id": 1 }, doc! { "$set": { "text": "new" } }).session(session).run()
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn run_fenced<T>(
    fenced: &impl Fenced,
    session: &mut driver::sync::ClientSession,
    mut work: impl FnMut(&mut driver::sync::ClientSession) -> DriverResult<T>,
) -> Result<T> {
    let standing = fenced.standing()?;
    let assertion = Assertion::of(standing)?;
    let (mut is_first_try, mut is_asserted) = (true, false);
    let run = session.start_transaction().write_concern(of_commit()).and_run(|session| {
        is_asserted = false;
        let is_again = !mem::take(&mut is_first_try);
        if is_again {
            assert_sync(&assertion, session)?;
        }
        let done = work(session)?;
        if !is_again {
            assert_sync(&assertion, session)?;
        }
        is_asserted = true;
        Ok(done)
    });
    run.map_err(|error| of_transaction(error, is_asserted, standing))
}

/// [`run_fenced`] for a session of the driver's async API. Its future is `Send`, as `tokio::spawn` requires, if `work`
/// owns what it uses (`async move`): a `work` that borrows is refused by the compiler there.
///
/// # Errors
/// As [`run_fenced`].
pub async fn run_fenced_async<T, W>(fenced: &impl Fenced, session: &mut driver::ClientSession, mut work: W) -> Result<T>
where
    W: for<'a> AsyncFnMut(&'a mut driver::ClientSession) -> DriverResult<T>,
{
    let standing = fenced.standing()?;
    let assertion = Assertion::of(standing)?;
    let (mut is_first_try, is_asserted) = (true, Arc::<AtomicBool>::default());
    let tells = is_asserted.clone();
    // The closure owns all that it uses: the compiler can't prove that a future which borrows through it is `Send`.
    let run = session.start_transaction().write_concern(of_commit()).and_run2(async move |session| {
        tells.store(false, Ordering::SeqCst);
        let is_again = !mem::take(&mut is_first_try);
        if is_again {
            assert_async(&assertion, session).await?;
        }
        let done = work(session).await?;
        if !is_again {
            assert_async(&assertion, session).await?;
        }
        tells.store(true, Ordering::SeqCst);
        Ok(done)
    });
    run.await.map_err(|error| of_transaction(error, is_asserted.load(Ordering::SeqCst), standing))
}

fn assert_sync(assertion: &Assertion, session: &mut driver::sync::ClientSession) -> DriverResult<()> {
    let started = session.start_transaction().run();
    if started.is_ok() {
        session.abort_transaction().run()?;
    }
    assertion.must_be_inside(started)?;
    let locks = assertion.sync_collection(&session.client());
    let sent = locks.update_one(assertion.filter.clone(), assertion.update()).session(session).run();
    assertion.judge(sent.map(|update| update.matched_count))
}

async fn assert_async(assertion: &Assertion, session: &mut driver::ClientSession) -> DriverResult<()> {
    let started = session.start_transaction().await;
    if started.is_ok() {
        session.abort_transaction().await?;
    }
    assertion.must_be_inside(started)?;
    let locks = assertion.collection(&session.client());
    let sent = locks.update_one(assertion.filter.clone(), assertion.update()).session(session).await;
    assertion.judge(sent.map(|update| update.matched_count))
}
