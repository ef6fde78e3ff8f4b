//! Faults that the server itself makes on a command for tests, in a replica set of the test's own.

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use leasehold::ErrorKind;
use leasehold::internals::store::mongodb::{MongodbOptions, Settings};
use leasehold::internals::store::{Acquired, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::mongodb::driver::IndexModel;
use leasehold::mongodb::driver::bson::{Bson, Document, doc};
use leasehold::mongodb::driver::options::IndexOptions;
use leasehold::mongodb::driver::sync::{Client, Collection};

use crate::mongodb::waking::{Commands, LONG, listen, names, wake, watch};
use crate::mongodb::*;
use crate::support::cluster::Cluster;
use crate::support::contract::{acquired, granted, refused, release};
use crate::support::harness::within;
use crate::support::mongodb::{DATABASE, Rows, settings};
use crate::support::proxy::{Mode as Network, Proxy, Request, Rule};
use crate::support::wait::wait_until;

const NAME: &str = "locks";
const HANG: &str = "hangAfterStartingIndexBuild";
/// The server is the primary all the time, so a driver that waits for news before it checks again would get none.
pub const POLL: &str = "&serverMonitoringMode=poll";

pub struct At {
    cluster: Cluster,
    client: Client,
}

impl At {
    pub fn start() -> Option<At> {
        let cluster = Cluster::one(&["--setParameter", "enableTestCommands=1"])?;
        let client = Client::with_uri_str(cluster.uri()).unwrap();
        Some(At { cluster, client })
    }

    fn open(&self) -> Mongodb {
        self.open_with("")
    }

    /// A store with more options in its URL.
    pub fn open_with(&self, more: &str) -> Mongodb {
        open(Rows::options_named(NAME, &format!("{}{more}", self.cluster.uri())))
    }

    /// A store, and the commands that it sends.
    pub fn open_listening(&self) -> (Mongodb, Commands) {
        let mut settings = settings(&format!("{}{POLL}", self.cluster.uri()));
        let commands = listen(&mut settings);
        let settings = Settings::Given(Box::new(settings));
        let options = MongodbOptions::new(settings, Some(DATABASE.to_owned()), Some(NAME.to_owned())).unwrap();
        (open(options), commands)
    }

    pub fn raw(&self) -> Collection<Document> {
        self.client.database(DATABASE).collection(NAME)
    }

    pub fn admin(&self, command: Document) -> Document {
        self.client.database("admin").run_command(command).run().unwrap()
    }

    /// Runs this until the server has begun to build an index, and no further until [`At::build`] is called.
    fn hang_while<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        // The index of an empty collection would be made at once.
        self.raw().insert_one(doc! { "x": 1 }).run().unwrap();
        let entered = self.admin(doc! { "configureFailPoint": HANG, "mode": "alwaysOn" }).get_i32("count").unwrap();
        let making = std::thread::spawn(make);
        self.admin(doc! { "waitForFailPoint": HANG, "timesEntered": entered + 1, "maxTimeMS": 60_000 });
        making
    }

    fn build(&self) {
        self.admin(doc! { "configureFailPoint": HANG, "mode": "off" });
    }

    /// The next one of these commands fails with this code, without a label that makes the driver repeat it.
    fn fail_once(&self, command: &str, code: i32) {
        self.fail(command, code, doc! { "times": 1 });
    }

    fn fail(&self, command: &str, code: i32, mode: impl Into<Bson>) {
        self.fail_with(&[], command, code, mode);
    }

    /// The same with these labels.
    fn fail_with(&self, labels: &[&str], command: &str, code: i32, mode: impl Into<Bson>) {
        let data = doc! { "failCommands": [command], "errorCode": code, "errorLabels": labels };
        self.admin(doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": data });
    }
}

/// While the server builds the index, it lists it, but does not yet keep keys unique.
#[test]
fn a_unique_index_that_is_being_built_is_not_there_yet() {
    let Some(at) = At::start() else { return };
    let raw = at.raw();
    let building = at.hang_while(move || {
        let options = IndexOptions::builder().unique(true).sparse(true).build();
        raw.create_index(IndexModel::builder().keys(doc! { "resource": 1 }).options(options).build()).run().map(drop)
    });
    let store = at.open();
    let error = store.schema(Schema::Check, &soon()).unwrap_err();
    assert!(error.to_string().contains("being built"), "{error}");
    let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("being built"), "{error}");
    at.build();
    building.join().unwrap().unwrap();
    granted(&store, &mut exclusive(&store, "k"));
}

/// The indexes of a large collection take longer than one request may, and the server ends a build with its request.
#[test]
fn indexes_may_take_longer_than_a_request() {
    let Some(mut at) = At::start() else { return };
    // Longer than the server on a busy machine stalls.
    let each = Duration::from_secs(7);
    let create = |store: Mongodb| {
        let by = Deadline::after(each).with_long(Duration::from_secs(120));
        move || store.schema(Schema::Create, &by)
    };
    let store = at.open();
    let making = at.hang_while(create(at.open()));
    // This is longer than a request may take.
    std::thread::sleep(2 * each);
    assert!(!making.is_finished());
    at.build();
    making.join().unwrap().unwrap();
    granted(&store, &mut exclusive(&store, "k"));
    // A server that hangs ends this call, as it ends any other.
    at.raw().drop().run().unwrap();
    let making = at.hang_while(create(at.open()));
    at.cluster.stop(0);
    // Time for the request that waits, and for one that asks whether the server is there.
    within("what hangs", 2 * each, || making.join().unwrap()).unwrap_err();
    at.cluster.go_on(0);
}

/// Meanwhile the client asks whether the server is still there, and any answer shows that it is.
#[test]
fn a_build_of_indexes_goes_on_whatever_is_answered_meanwhile() {
    let Some(at) = At::start() else { return };
    let proxy = Proxy::mongodb(&at.cluster.hosts());
    let url = format!("mongodb://{}/?directConnection=true{POLL}", proxy.addr());
    let (store, beside) = (open(Rows::options_named(NAME, &url)), at.open());
    let by = Deadline::after(Duration::from_secs(7)).with_long(Duration::from_secs(120));
    let making = at.hang_while(move || store.schema(Schema::Create, &by));
    // Interrupted, refused, and no longer the primary.
    let codes = [50, 9999, 10107];
    for code in codes {
        // A `hello` that the driver sends for itself has no session.
        proxy.add(Rule::next(1, Network::Say(code, "made by the test")).on("hello").on("lsid"));
    }
    let is_said = |request: &Request| request.sent == 0 && request.has("hello") && request.has("lsid");
    wait_until("it asks as often", || {
        making.is_finished() || proxy.requests().into_iter().filter(is_said).count() >= codes.len()
    });
    at.build();
    making.join().unwrap().unwrap();
    assert!(proxy.clear().is_empty());
    granted(&beside, &mut exclusive(&beside, "k"));
}

#[test]
fn what_ends_a_build_of_indexes_late_is_said() {
    let Some(at) = At::start() else { return };
    let (store, commands) = at.open_listening();
    let by = Deadline::after(Duration::from_secs(7)).with_long(Duration::from_secs(120));
    commands.lock().clear();
    let making = at.hang_while(move || store.schema(Schema::Create, &by));
    // Meanwhile the client asks whether the server is still there.
    wait_until("it asks", || names(&commands).contains(&"hello".to_owned()));
    let raw = at.raw();
    let dropping = std::thread::spawn(move || raw.drop_indexes().run());
    let error = making.join().unwrap().unwrap_err();
    at.build();
    dropping.join().unwrap().unwrap();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("IndexBuildAborted"), "{error:?}");
}

/// A router answers like this if it lost its connection to the shard after it had passed the write on.
#[test]
fn a_router_that_lost_its_shard_has_not_said_that_nothing_was_written() {
    let Some(at) = At::start() else { return };
    let store = at.open();
    store.schema(Schema::Create, &soon()).unwrap();
    for code in [6, 7, 89, 202, 9001] {
        let key = code.to_string();
        let mut a = exclusive(&store, &key);
        at.fail_once("findAndModify", code);
        let answer = store.acquire(&mut a, &soon());
        assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{code}: {answer:?}");
        acquired(&store, &mut a);
        refused(&store, &mut exclusive(&store, &key));
    }
}

/// These codes came by chance when the index or the database was dropped under acquires on a real server (175: 1 of
/// 600).
#[test]
fn what_was_dropped_under_an_acquire_does_not_end_a_wait() {
    let Some(at) = At::start() else { return };
    let store = at.open();
    store.schema(Schema::Create, &soon()).unwrap();
    // QueryPlanKilled, DatabaseDropPending, and a cache that is full.
    for code in [175, 215, 365] {
        let mut a = exclusive(&store, &code.to_string());
        at.fail_once("findAndModify", code);
        let error = store.acquire(&mut a, &soon()).unwrap_err();
        assert!(error.is_retryable(), "{code}: {error}");
        granted(&store, &mut a);
    }
}

/// Of a write that was sent again nobody could say that it was not done. 462 is a limit of the rate of requests, and the
/// other code one that nobody knows yet.
#[test]
fn what_an_overloaded_server_refuses_is_sent_once_and_may_be_repeated() {
    let Some(at) = At::start() else { return };
    at.open().schema(Schema::Create, &soon()).unwrap();
    let (store, commands) = at.open_listening();
    let writes =
        || std::mem::take(&mut *commands.lock()).iter().filter(|one| one.contains_key("findAndModify")).count();
    for (code, is_known) in [(462, true), (987_654, false)] {
        let mut a = exclusive(&store, &code.to_string());
        writes();
        let labels = ["SystemOverloadedError", "RetryableError"];
        at.fail_with(&labels, "findAndModify", code, doc! { "times": 1 });
        match store.acquire(&mut a, &soon()) {
            Err(error) if is_known => assert!(error.is_retryable() && error.kind() == ErrorKind::Store, "{error:?}"),
            Ok(Acquired::Unknown(_)) if !is_known => {}
            other => panic!("{code}: {other:?}"),
        }
        assert_eq!(writes(), 1, "{code}");
        acquired(&store, &mut a);
    }
}

/// The server may no longer be able to use the token up to which a stream has reported.
#[test]
fn a_stream_that_cannot_go_on_begins_anew() {
    let Some(at) = At::start() else { return };
    let store = at.open();
    store.schema(Schema::Create, &soon()).unwrap();
    let mut held: Vec<Attempt> = ["a", "b", "c", "d"].iter().map(|key| exclusive(&store, key)).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    drop(watch(&store, &["a"]));
    for (i, code) in [260, 280, 286].into_iter().enumerate() {
        at.fail_once("aggregate", code);
        let told = watch(&store, &["a", "b", "c", "d"]);
        release(&store, &mut held[i]);
        assert_eq!(told.recv_timeout(LONG).as_ref(), Ok(&held[i].key), "{code}");
    }
}

/// It is then not known what happened since the last report.
#[test]
fn where_a_stream_cannot_go_on_all_keys_are_told() {
    let Some(at) = At::start() else { return };
    let store = at.open();
    store.schema(Schema::Create, &soon()).unwrap();
    drop(watch(&store, &["a"]));
    for code in [260, 280, 286] {
        at.fail_once("aggregate", code);
        let told = wake(&store, &["a", "b"]);
        let mut keys = [(); 2].map(|()| told.recv_timeout(LONG).unwrap());
        keys.sort();
        assert_eq!(keys, ["a", "b"], "{code}");
    }
}

/// After a week in which nobody waited, the server would have to go through a week of its oplog.
#[test]
fn a_stream_does_not_go_on_where_one_that_is_gone_was() {
    let Some(at) = At::start() else { return };
    at.open().schema(Schema::Create, &soon()).unwrap();
    let (store, commands) = at.open_listening();
    let mut held: Vec<Attempt> = ["a", "b"].iter().map(|key| exclusive(&store, key)).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let goes_on = || {
        let commands = std::mem::take(&mut *commands.lock());
        let opened = commands.iter().rfind(|command| command.contains_key("aggregate")).unwrap();
        let stage = opened.get_array("pipeline").unwrap()[0].as_document().unwrap();
        stage.get_document("$changeStream").unwrap().contains_key("resumeAfter")
    };
    let told = wake(&store, &["a"]);
    assert!(!goes_on());
    // If a stream still runs, the next one continues it.
    let more = wake(&store, &["a", "b"]);
    assert!(goes_on());
    assert!(told.recv_timeout(LONG).is_err_and(|error| error == RecvTimeoutError::Disconnected));

    // The stream breaks, whatever else asks for more at that moment.
    at.fail("getMore", 8, "alwaysOn");
    release(&store, &mut held[0]);
    while more.recv_timeout(LONG).map_err(|error| assert_eq!(error, RecvTimeoutError::Disconnected)).is_ok() {}
    at.fail("getMore", 8, "off");
    let told = wake(&store, &["a", "b"]);
    assert!(!goes_on(), "after a break");

    // The stream begins anew after a write that it does not report, and then continues by a token.
    drop(told);
    assert!(store.wake(&[], crossbeam_channel::unbounded().0, &soon()).unwrap());
    granted(&store, &mut exclusive(&store, "z"));
    let told = wake(&store, &["a", "b"]);
    // Another stream can't be opened at the same time.
    at.fail_once("aggregate", 8);
    let keys = ["a", "b", "c"].map(str::to_owned);
    store.wake(&keys, crossbeam_channel::unbounded().0, &soon()).unwrap_err();
    assert!(goes_on());
    let more = wake(&store, &["a", "b", "c"]);
    assert!(!goes_on(), "after one that could not be opened");
    drop(told);
    release(&store, &mut held[1]);
    // The last writes before it may be reported, too.
    while more.recv_timeout(LONG).unwrap() != "b" {}
}
