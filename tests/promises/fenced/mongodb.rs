//! On MongoDB: what the blocking and the async driver offer.

use std::any::Any;
use std::error::Error as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::mongodb::driver;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::event::{EventHandler, command::CommandEvent};
use leasehold::mongodb::driver::options::WriteConcern;
use leasehold::mongodb::{AssertIn, run_fenced, run_fenced_async};
use leasehold::{ClientBuilder, ErrorKind, LockClient};

use crate::fenced::cases::{expired, lost};
use crate::fenced::data::Data;
use crate::fenced::data::mongodb::Texts;
use crate::fenced::{LONG, Open, Store};
#[cfg(target_os = "linux")]
use crate::support::cluster::Cluster;
use crate::support::harness::{connected, millis};
use crate::support::mongodb::{DATABASE, Rows, server, settings};
use crate::support::servers::mongod;

pub struct Kind;

impl Store for Kind {
    type Data = Texts;
    const NAME: &str = "mongodb";

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        mongod()?;
        let rows = Rows::fresh();
        Some((rows.url(), Box::new(Room(rows))))
    }

    fn builder(url: &str) -> ClientBuilder {
        LockClient::builder(url)
    }

    fn data(url: &str) -> Texts {
        let (uri, collection) = url.split_once("collection=").unwrap();
        Texts::new(uri.trim_end_matches(['?', '&']), DATABASE, &texts(collection))
    }
}

fn texts(collection: &str) -> String {
    format!("{collection}-texts")
}

struct Room(Rows);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = server().database(DATABASE).collection::<Document>(&texts(&self.0.0)).drop().run();
    }
}

crate::fenced::suite!(Kind);

#[test]
fn a_committed_assertion_is_counted_in_the_document() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    open.data.write(&guard, "a", "one").unwrap();
    open.data.write(&guard, "a", "two").unwrap();
    let next = client.adopt(guard.info()).unwrap();
    lost(open.data.write(&guard, "a", "late"));
    let (_, collection) = open.url.split_once("collection=").unwrap();
    let locks = server().database(DATABASE).collection::<Document>(collection);
    let row = locks.find_one(doc! { "resource": "a" }).run().unwrap().unwrap();
    assert_eq!(row.get_i64("asserts").unwrap(), 2, "one for each that was committed");
    drop(next);
}

/// With a weaker concern, a server that is no longer the primary could commit alone, and undo that after a rival was
/// granted the lock.
#[test]
fn a_commit_waits_for_the_majority_whatever_the_users_client_says() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (said, commits) = mpsc::channel();
    let mut options = settings(&mongod().unwrap());
    options.write_concern = Some(WriteConcern::nodes(1));
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event
            && started.command_name == "commitTransaction"
        {
            let concern = started.command.get_document("writeConcern").cloned();
            said.send(concern.and_then(|concern| concern.get_str("w").map(str::to_owned)).ok()).unwrap_or_default();
        }
    }));
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let user = driver::sync::Client::with_options(options.clone()).unwrap();
    run_fenced(&guard, &mut user.start_session().run().unwrap(), |_| Ok(())).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let user = driver::Client::with_options(options).unwrap();
        run_fenced_async(&guard, &mut user.start_session().await.unwrap(), async |_| Ok(())).await.unwrap();
    });
    let majority = || Some("majority".to_owned());
    assert_eq!(commits.try_iter().collect::<Vec<_>>(), [majority(), majority()]);
}

/// The task of a user may move from thread to thread.
#[test]
fn its_future_can_be_sent() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (guard, text) = (open.client(LONG).lock("a").unwrap(), "text".to_owned());
    let options = settings(&mongod().unwrap());
    let task = async move {
        let user = driver::Client::with_options(options).unwrap();
        let mut session = user.start_session().await.unwrap();
        run_fenced_async(&guard, &mut session, async move |_| Ok(text.len())).await
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(runtime.block_on(runtime.spawn(task)).unwrap().unwrap(), 4);
}

/// The server commits, but reports that not enough other servers have the commit.
#[test]
#[cfg(target_os = "linux")]
fn a_commit_that_nobody_can_settle_is_not_told_as_one_that_failed() {
    use crate::support::harness::{connected, patient};
    let Some(cluster) = Cluster::one(&["--setParameter", "enableTestCommands=1"]) else { return };
    let url = format!("mongodb://{}/unsettled?replicaSet=rs0&collection=locks", cluster.hosts());
    let client = connected(|| patient(LockClient::builder(&url)).lease(LONG));
    client.create_schema().unwrap();
    let guard = client.lock("a").unwrap();
    let user = driver::sync::Client::with_uri_str(cluster.uri()).unwrap();
    let texts = user.database("unsettled").collection::<Document>("texts");
    texts.insert_one(doc! { "_id": 0 }).run().unwrap();
    let write = |id: i32| {
        run_fenced(&guard, &mut user.start_session().run().unwrap(), |session| {
            texts.insert_one(doc! { "_id": id }).session(session).run()
        })
    };
    let next_is_unsettled = || {
        let unsettled = doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "not enough nodes" };
        let data = doc! { "failCommands": ["commitTransaction"], "writeConcernError": unsettled };
        let point = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
        user.database("admin").run_command(point).run().unwrap();
    };
    next_is_unsettled();
    assert_eq!(write(1).unwrap_err().kind(), ErrorKind::Ambiguous);
    assert!(texts.find_one(doc! { "_id": 1 }).run().unwrap().is_some(), "it was committed");
    // A failure before the commit is not ambiguous.
    assert_eq!(write(1).unwrap_err().kind(), ErrorKind::Store);
    next_is_unsettled();
    let failed: leasehold::Result<()> = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let user = driver::Client::with_uri_str(cluster.uri()).await.unwrap();
        run_fenced_async(&guard, &mut user.start_session().await.unwrap(), async |_| Ok(())).await
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Ambiguous);
}

/// A rival takes the lock between the transaction's start and the assertion: the next try finds the loss before it does
/// the work.
#[test]
fn a_rival_that_comes_in_between_makes_it_start_again() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (client, data) = (open.client(LONG), &open.data);
    let lock = &expired(&client, &["a".to_owned()])[0];
    let (mut tries, mut rival) = (0, None);
    lost(run_fenced(&client.fence(lock), &mut data.session(), |session| {
        tries += 1;
        data.set(session, "a", "late")?;
        rival.get_or_insert_with(|| client.lock("a").unwrap());
        Ok(())
    }));
    assert_eq!((tries, data.text("a")), (1, None));
    // By hand: the error says that the transaction may be repeated.
    let next = rival.take().unwrap();
    let mut session = data.session();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "a", "by hand").unwrap();
    client.heartbeat(&next.info(), LONG).unwrap();
    let error = next.assert_in(&mut session).unwrap_err();
    assert!(error.is_retryable() && error.source().is_some(), "{error}");
    session.abort_transaction().run().unwrap();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "a", "by hand").unwrap();
    next.assert_in(&mut session).unwrap();
    session.commit_transaction().run().unwrap();
    assert_eq!(data.text("a").as_deref(), Some("by hand"));
}

/// Such an assertion would be a write of its own, so it would not conflict with a takeover while the session writes.
#[test]
fn an_assertion_outside_a_transaction_is_refused() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let refused = |answer: leasehold::Result<()>| {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("start_transaction"), "{error}");
    };
    let mut session = open.data.session();
    refused(guard.assert_in(&mut session));
    for is_committed in [true, false] {
        // A refusal must leave the session usable.
        session.start_transaction().run().unwrap();
        guard.assert_in(&mut session).unwrap();
        open.data.set(&mut session, "a", "in it").unwrap();
        match is_committed {
            true => session.commit_transaction().run().unwrap(),
            false => session.abort_transaction().run().unwrap(),
        }
        refused(guard.assert_in(&mut session));
        refused(guard.assert_in(&mut session));
    }
    // Work that ends its own transaction is refused as well.
    refused(run_fenced(&guard, &mut session, |session| session.abort_transaction().run()));
    in_the_async_api(&open, async |_, session| {
        refused(guard.assert_in_async(session).await);
        session.start_transaction().await.unwrap();
        guard.assert_in_async(session).await.unwrap();
        session.commit_transaction().await.unwrap();
        refused(guard.assert_in_async(session).await);
        refused(run_fenced_async(&guard, session, async |session| session.abort_transaction().await).await);
    });
    let (_, collection) = open.url.split_once("collection=").unwrap();
    let locks = server().database(DATABASE).collection::<Document>(collection);
    let row = locks.find_one(doc! { "resource": "a" }).run().unwrap().unwrap();
    assert_eq!(row.get_i64("asserts"), Ok(2), "one for each that was committed");
}

/// Its heartbeats would collide with each try. From the second try on they wait.
#[test]
fn a_transaction_that_outlasts_a_heartbeat_is_not_begun_again_for_ever() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = connected(|| open.builder().lease(millis(20_000)).heartbeat(millis(1_000)));
    let guard = client.lock("a").unwrap();
    for round in 0..2 {
        let mut tries = 0;
        let mut long = || {
            tries += 1;
            assert!(tries <= 3, "it is begun again for ever");
            thread::sleep(millis(1_500));
        };
        open.data.transact(Some(&guard), "a", &round.to_string(), &mut long).unwrap();
    }
    assert_eq!(open.data.text("a").as_deref(), Some("1"));
    // The same in the async API.
    in_the_async_api(&open, async |texts, session| {
        let mut tries = 0;
        let run = run_fenced_async(&guard, session, async |session| {
            tries += 1;
            assert!(tries <= 3, "it is begun again for ever");
            let write = texts.update_one(doc! { "_id": "a" }, doc! { "$set": { "text": "async" } });
            write.session(session).await?;
            tokio::time::sleep(millis(1_500)).await;
            Ok(())
        });
        run.await.unwrap();
    });
    assert_eq!(open.data.text("a").as_deref(), Some("async"));
    let loss = guard.loss().wait_timeout(Duration::ZERO);
    assert!(loss.is_none(), "{loss:?}");
}

/// Runs `work` with the async driver's collection of the data and a session.
fn in_the_async_api(
    open: &Open<Kind>,
    work: impl AsyncFnOnce(&driver::Collection<Document>, &mut driver::ClientSession),
) {
    let name = open.data.collection.name().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = driver::Client::with_uri_str(mongod().unwrap()).await.unwrap();
        let texts = client.database(DATABASE).collection(&name);
        work(&texts, &mut client.start_session().await.unwrap()).await;
    });
}

/// After the assertion no rival gets the lock before the commit, although the lease has ended.
#[test]
fn no_rival_comes_between_the_assertion_and_the_commit() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (client, data) = (open.client(LONG), &open.data);
    let lock = &expired(&client, &["a".to_owned()])[0];
    // The timeout outlasts a server that stalls for some seconds.
    let rival = connected(|| open.builder().request_timeout(Duration::from_secs(15)));
    let mut session = data.session();
    session.start_transaction().run().unwrap();
    data.set(&mut session, "a", "first").unwrap();
    client.fence(lock).assert_in(&mut session).unwrap();
    let early = rival.request("a").wait(Duration::from_millis(500)).lock();
    assert!(early.is_err(), "a rival was granted the lock while the transaction was open");
    session.commit_transaction().run().unwrap();
    assert!(rival.lock("a").unwrap().fencing_token() > lock.fencing_token());
    assert_eq!(data.text("a").as_deref(), Some("first"));
}

#[test]
fn it_works_in_the_async_api() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    in_the_async_api(&open, async |texts, session| {
        let write = doc! { "$set": { "text": "async" } };
        run_fenced_async(&guard, session, async |session| {
            let write = texts.update_one(doc! { "_id": "a" }, write.clone());
            write.upsert(true).session(session).await.map(drop)
        })
        .await
        .unwrap();
        session.start_transaction().await.unwrap();
        guard.assert_in_async(session).await.unwrap();
        session.commit_transaction().await.unwrap();
    });
    assert_eq!(open.data.text("a").as_deref(), Some("async"));
}
