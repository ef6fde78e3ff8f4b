//! A transaction of the user's own is committed only while the lock is held.

use std::time::Duration;

use leasehold::fence::Fenced;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::sync::{ClientSession, Collection};
use leasehold::mongodb::{AssertIn, run_fenced, run_fenced_async};
use leasehold::{Error, ErrorKind, LockClient};

use crate::common::mongodb::{DATABASE, Rows, server};
use crate::needs_server;

const LEASE: Duration = Duration::from_secs(60);

struct Data {
    rows: Rows,
    client: LockClient,
    texts: Collection<Document>,
}

impl Data {
    fn new(lease: Duration) -> Data {
        let rows = Rows::fresh();
        let client = LockClient::builder(rows.url()).lease(lease).connect().unwrap();
        let texts = server().database(DATABASE).collection(&format!("{}-texts", rows.0));
        texts.insert_one(doc! { "_id": 1, "text": "" }).run().unwrap();
        Data { rows, client, texts }
    }

    fn session(&self) -> ClientSession {
        server().start_session().run().unwrap()
    }

    fn set(&self, session: &mut ClientSession, text: &str) -> leasehold::mongodb::driver::error::Result<()> {
        let update = doc! { "$set": { "text": text } };
        self.texts.update_one(doc! { "_id": 1 }, update).session(session).run().map(drop)
    }

    fn write(&self, held: &impl Fenced, text: &str) -> Result<(), Error> {
        run_fenced(held, &mut self.session(), |session| self.set(session, text))
    }

    fn text(&self) -> String {
        self.texts.find_one(doc! {}).run().unwrap().unwrap().get_str("text").unwrap().to_owned()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = self.texts.drop().run();
    }
}

#[track_caller]
fn lost(answer: Result<(), Error>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.key().is_some() && error.store().is_some() && !error.is_retryable());
}

#[test]
fn what_is_held_is_committed_and_what_is_lost_is_not() {
    needs_server!();
    let data = Data::new(LEASE);
    let guard = data.client.lock("a").unwrap();
    data.write(&guard, "held").unwrap();
    let next = data.client.adopt(guard.info()).unwrap();
    lost(data.write(&guard, "late"));
    data.write(&next, "adopted").unwrap();
    let released = next.info();
    next.release().unwrap();
    lost(data.write(&data.client.fence(&released), "late"));
    assert_eq!(data.text(), "adopted");
    let elsewhere = LockClient::connect("memory:").unwrap();
    let error = data.write(&elsewhere.lock("a").unwrap(), "late").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(data.rows.row("a").unwrap().get_i64("asserts").unwrap(), 2, "one for each that was committed");
}

#[test]
fn shared_holders_and_leases_can_be_asserted() {
    needs_server!();
    let data = Data::new(LEASE);
    let (one, two) = (data.client.lock_shared("s").unwrap(), data.client.lock_shared("s").unwrap());
    data.write(&one, "one").unwrap();
    let gone = two.info();
    two.release().unwrap();
    lost(data.write(&data.client.fence(&gone), "late"));
    let leases = data.client.leases("space");
    let lease = leases.claim("app", "unit/0", LEASE).unwrap();
    data.write(&leases.fence(&lease), "claimed").unwrap();
    leases.extend("app", "unit/0", 2 * LEASE).unwrap();
    data.write(&leases.fence(&lease), "extended").unwrap();
    leases.revoke("app", "unit/0").unwrap();
    leases.claim("app", "unit/0", LEASE).unwrap();
    lost(data.write(&leases.fence(&lease), "late"));
    assert_eq!(data.text(), "extended");
}

/// Expired and taken by nobody: nobody else can have written. A rival that comes later makes it fail.
#[test]
fn expired_and_not_taken_over_is_committed() {
    needs_server!();
    let data = Data::new(Duration::from_secs(1));
    let lock = data.client.request("a").acquire().unwrap();
    while !data.client.get("a").unwrap().unwrap().is_free() {
        std::thread::sleep(Duration::from_millis(20));
    }
    data.write(&data.client.fence(&lock), "nobody else did").unwrap();
    let _rival = data.client.lock("a").unwrap();
    lost(data.write(&data.client.fence(&lock), "late"));
    assert_eq!(data.text(), "nobody else did");
}

/// A takeover between the transaction's start and the assertion: the whole is tried again and finds the loss.
#[test]
fn a_rival_that_comes_in_between_makes_it_start_again() {
    needs_server!();
    let data = Data::new(Duration::from_secs(1));
    let lock = data.client.request("a").acquire().unwrap();
    while !data.client.get("a").unwrap().unwrap().is_free() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut tries = 0;
    let mut rival = None;
    lost(run_fenced(&data.client.fence(&lock), &mut data.session(), |session| {
        tries += 1;
        data.set(session, "late")?;
        rival.get_or_insert_with(|| data.client.request("a").lease(LEASE).lock().unwrap());
        Ok(())
    }));
    assert_eq!((tries, data.text().as_str()), (2, ""));
    // By hand: the error says that it may be tried again.
    let next = rival.take().unwrap();
    let mut session = data.session();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "by hand").unwrap();
    data.client.heartbeat(&next.info(), LEASE).unwrap();
    let error = next.assert_in(&mut session).unwrap_err();
    assert!(error.is_retryable() && std::error::Error::source(&error).is_some(), "{error}");
    session.abort_transaction().run().unwrap();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "by hand").unwrap();
    next.assert_in(&mut session).unwrap();
    session.commit_transaction().run().unwrap();
    assert_eq!(data.text(), "by hand");
}

/// Once it is asserted, no rival comes in before the commit, though the lease has run out.
#[test]
fn no_rival_comes_between_the_assertion_and_the_commit() {
    needs_server!();
    let data = Data::new(Duration::from_secs(1));
    let lock = data.client.request("a").acquire().unwrap();
    while !data.client.get("a").unwrap().unwrap().is_free() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let rival = LockClient::builder(data.rows.url()).request_timeout(Duration::from_millis(500)).connect().unwrap();
    let mut session = data.session();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "first").unwrap();
    data.client.fence(&lock).assert_in(&mut session).unwrap();
    let early = rival.request("a").wait(Duration::from_millis(500)).lock();
    assert!(early.is_err(), "a rival was granted the lock while the transaction was open");
    session.commit_transaction().run().unwrap();
    assert!(rival.lock("a").unwrap().fencing_token() > lock.fencing_token());
    assert_eq!(data.text(), "first");
}

#[test]
fn it_works_in_the_async_api() {
    needs_server!();
    let data = Data::new(LEASE);
    let guard = data.client.lock("a").unwrap();
    let (url, name) = (crate::common::servers::mongod().unwrap(), data.texts.name().to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = leasehold::mongodb::driver::Client::with_uri_str(url).await.unwrap();
        let texts = client.database(DATABASE).collection::<Document>(&name);
        let mut session = client.start_session().await.unwrap();
        run_fenced_async(&guard, &mut session, async |session| {
            texts.update_one(doc! { "_id": 1 }, doc! { "$set": { "text": "async" } }).session(session).await.map(drop)
        })
        .await
        .unwrap();
        session.start_transaction().await.unwrap();
        guard.assert_in_async(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
    });
    assert_eq!(data.text(), "async");
}
