//! Waiters that the store wakes: what is sent for that, what is reported and what is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use leasehold::internals::lease::Lease;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::event::EventHandler;
use leasehold::mongodb::driver::event::command::CommandEvent;
use leasehold::mongodb::driver::options::ClientOptions;
use parking_lot::Mutex;

use crate::mongodb::rights::warnings;
use crate::mongodb::*;
use crate::support::contract::{LEASE, granted, release, renewal, renewed};
use crate::support::mongodb::{Rows, settings};
use crate::support::stores::unique;
use crate::support::wait::wait_until;

pub const LONG: Duration = Duration::from_secs(20);
/// Longer than it takes to report a change.
const QUIET: Duration = Duration::from_millis(700);

pub type Commands = Arc<Mutex<Vec<Document>>>;

pub fn listen(settings: &mut ClientOptions) -> Commands {
    let commands = Commands::default();
    let sent = commands.clone();
    settings.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            sent.lock().push(started.command);
        }
    }));
    commands
}

pub fn names(commands: &Commands) -> Vec<String> {
    commands.lock().iter().map(|command| command.keys().next().unwrap().clone()).collect()
}

pub fn watch(store: &Mongodb, keys: &[&str]) -> Receiver<String> {
    let mark = unique();
    let told = wake(store, &[keys, &[&mark]].concat());
    // The last writes before the watching may be reported, too, but not after this key, which is reported twice; and
    // all keys once.
    let mut marking = exclusive(store, &mark);
    granted(store, &mut marking);
    release(store, &mut marking);
    for _ in 0..2 {
        while told.recv_timeout(LONG).unwrap() != mark {}
    }
    let (to, others) = crossbeam_channel::unbounded();
    std::thread::spawn(move || told.into_iter().filter(|key| *key != mark).try_for_each(|key| to.send(key)));
    others
}

pub fn wake(store: &Mongodb, keys: &[&str]) -> Receiver<String> {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    sent(|| {
        let (to, told) = crossbeam_channel::unbounded();
        assert!(store.wake(&keys, to, &soon())?);
        Ok(told)
    })
}

#[test]
fn one_stream_serves_all_keys() {
    let rows = needs_server!(Rows::fresh());
    let mut commands = Commands::default();
    let options = rows.options_with(|settings| commands = listen(settings));
    let store = open(options);
    let keys: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
    let mut held: Vec<Attempt> = keys.iter().map(|key| exclusive(&store, key)).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    commands.lock().clear();
    let told = wake(&store, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let sent = names(&commands);
    assert_eq!(sent.iter().filter(|name| *name == "aggregate").count(), 1, "{sent:?}");
    assert!(sent.len() <= 3, "{sent:?}");
    held.iter_mut().for_each(|a| drop(release(&store, a)));
    // A key may be reported twice.
    let mut unheard: BTreeSet<String> = keys.into_iter().collect();
    while !unheard.is_empty() {
        unheard.remove(&told.recv_timeout(LONG).unwrap());
    }
}

#[test]
fn heartbeats_and_grants_of_what_was_free_are_not_told() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    let (mut a, mut s) = (exclusive(&store, "k"), shared(&store, "s"));
    granted(&store, &mut a);
    release(&store, &mut a);
    granted(&store, &mut s);
    let told = watch(&store, &["k", "s"]);
    let mut b = exclusive(&store, "k");
    granted(&store, &mut b);
    for i in 2..5 {
        renewed(&store, &mut b, renewal(Lease::For(i * LEASE)));
        renewed(&store, &mut s, renewal(Lease::For(i * LEASE)));
    }
    // The assertion of a fenced transaction is not reported either.
    rows.raw().update_one(doc! { "resource": "k" }, doc! { "$inc": { "asserts": 1 } }).run().unwrap();
    assert_eq!(told.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout));
    release(&store, &mut s);
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("s"));
    release(&store, &mut b);
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("k"));
}

#[test]
fn what_mongo_lock_frees_is_told() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    let free = doc! {
        "lockId": null, "owner": null, "host": null, "comment": null, "createdAt": null, "renewedAt": null,
        "expiresAt": null, "acquired": false,
    };
    granted(&store, &mut exclusive(&store, "k"));
    granted(&store, &mut shared(&store, "s"));
    let told = watch(&store, &["k", "s"]);
    rows.raw().update_one(doc! { "resource": "k" }, doc! { "$set": { "exclusive": free } }).run().unwrap();
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("k"));
    let pull = doc! { "$inc": { "shared.count": -1 }, "$pull": { "shared.locks": { "acquired": true } } };
    rows.raw().update_one(doc! { "resource": "s" }, pull).run().unwrap();
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("s"));
}

#[test]
fn a_stream_that_breaks_lets_go_of_the_channel() {
    let rows = needs_server!(Rows::fresh());
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "k"));
    let told = watch(&store, &["k"]);
    rows.raw().drop().run().unwrap();
    let by = Instant::now() + LONG;
    while told.recv_deadline(by).map_err(|error| assert!(error.is_disconnected())).is_ok() {}
    // If the collection is made again under its name, it is watched again.
    store.schema(leasehold::internals::store::Schema::Create, &soon()).unwrap();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    let told = watch(&store, &["k"]);
    release(&store, &mut a);
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("k"));
}

/// The server holds back the answer of the stream for ten seconds, and with it the connection.
#[test]
fn a_waiter_leaves_heartbeats_a_connection_where_the_settings_allow_one() {
    needs_server!();
    // If a heartbeat had to wait for the connection, the lock would be lost each time; if the server stalls, it is not
    // each time.
    let losses: Vec<_> = (0..3).map_while(|_| lost_beside_a_waiter()).collect();
    assert!(losses.len() < 3, "{losses:?}");
}

/// How a lock was lost while another call waited, if it was.
fn lost_beside_a_waiter() -> Option<leasehold::Loss> {
    let rows = Rows::fresh();
    let holder = connect(&rows.url());
    let mut settings = settings(&crate::support::servers::mongod().unwrap());
    settings.max_pool_size = Some(1);
    let commands = listen(&mut settings);
    let builder = || leasehold::mongodb::builder_with(settings.clone(), "leasehold", &rows.0);
    // The lease ends before those ten seconds are over, but seconds after a heartbeat is due.
    let client = connected(|| builder().lease(Duration::from_secs(9)));
    let (contended, held) = (holder.lock("contended").unwrap(), client.lock("held").unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.try_lock_for("contended", 3 * LONG).unwrap().is_some());
        wait_until("it asks to be told", || names(&commands).contains(&"aggregate".to_owned()));
        let loss = held.loss().wait_timeout(Duration::from_secs(11));
        contended.release().unwrap();
        assert!(waiting.join().unwrap());
        loss
    })
}

#[test]
fn a_server_alone_cannot_tell_which_is_said_once() {
    let Some(uri) = crate::support::servers::mongod_alone() else { return };
    let rows = Rows::unmade();
    warnings(&rows);
    let store = open(rows.options_at(&uri));
    for _ in 0..2 {
        let (to, told) = crossbeam_channel::unbounded();
        assert!(!store.wake(&["k".to_owned()], to, &soon()).unwrap());
        assert_eq!(told.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    }
    let said = warnings(&rows);
    assert_eq!(said.iter().filter(|text| text.contains("poll")).count(), 1, "{said:?}");
}

#[test]
fn a_waiting_client_asks_less_than_once_a_second_and_has_the_lock_at_once() {
    let rows = needs_server!(Rows::fresh());
    let holder = connect(&rows.url());
    let mut settings = settings(&crate::support::servers::mongod().unwrap());
    let commands = listen(&mut settings);
    let waiter = connected(|| patient(leasehold::mongodb::builder_with(settings.clone(), "leasehold", &rows.0)));
    let guard = holder.lock("k").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = waiter.lock("k").unwrap();
            (Instant::now(), guard)
        });
        wait_until("it asks to be told", || names(&commands).contains(&"aggregate".to_owned()));
        // The waiter looks once more after the stream was opened, which takes a while if the server stalls.
        std::thread::sleep(Duration::from_millis(500));
        let sent: Vec<_> = (0..4)
            .map(|_| {
                commands.lock().clear();
                std::thread::sleep(Duration::from_secs(4));
                names(&commands)
            })
            .take_while(|sent| sent.len() >= 4)
            .collect();
        assert!(sent.len() < 4, "{sent:?}");
        let released = Instant::now();
        guard.release().unwrap();
        let (granted, _guard) = waiting.join().unwrap();
        println!("handed over {:?} after the release began", granted - released);
    });
}
