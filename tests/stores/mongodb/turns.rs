//! Which requests may wait for which: a few connections serve all, and somebody's open transaction makes requests wait
//! for the documents that it has written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Renewed};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::mongodb::driver::bson::doc;
use leasehold::mongodb::driver::event::{EventHandler, command::CommandEvent};
use leasehold::mongodb::driver::sync::ClientSession;

use crate::mongodb::*;
use crate::support::contract::{granted, renewal};
use crate::support::lateness::at_rest;
use crate::support::mongodb::{DATABASE, Rows, server};
use crate::support::wait::wait_until;

/// The time of a call that must wait for nobody: longer than a server on a busy machine stalls.
const SHORT: Duration = Duration::from_secs(8);

/// A store, and how many of its requests wait for an answer.
fn watched(rows: &Rows) -> (Mongodb, Arc<AtomicUsize>) {
    let now = Arc::new(AtomicUsize::new(0));
    let running = now.clone();
    let options = rows.options_with(|settings| {
        settings.command_event_handler = Some(EventHandler::callback(move |event| {
            let is_more = matches!(event, CommandEvent::Started(_));
            let _ = if is_more { running.fetch_add(1, SeqCst) } else { running.fetch_sub(1, SeqCst) };
        }));
    });
    (open(options), now)
}

/// A transaction that has written the documents of these keys, until its session is dropped.
fn writes(rows: &Rows, keys: &str) -> ClientSession {
    let mut session = server().start_session().run().unwrap();
    session.start_transaction().run().unwrap();
    let locks = server().database(DATABASE).collection::<leasehold::mongodb::driver::bson::Document>(&rows.0);
    let asserts = doc! { "$inc": { "asserts": 1_i64 } };
    locks.update_many(doc! { "resource": { "$regex": keys } }, asserts).session(&mut session).run().unwrap();
    session
}

/// As behind the open transaction of a holder that stalls: nobody is refused, so nobody is in a line.
#[test]
fn who_waits_for_one_document_keeps_no_other_lock_from_anybody() {
    let rows = needs_server!(Rows::fresh());
    let (store, running) = watched(&rows);
    granted(&store, &mut exclusive(&store, "k"));
    granted(&store, &mut exclusive(&store, "first of the collection"));
    rows.age(Duration::from_secs(24 * 3600));
    let theirs = writes(&rows, "^k$");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| drop(store.acquire(&mut exclusive(&store, "k"), &Deadline::after(3 * SHORT))));
        }
        wait_until("some wait", || running.load(SeqCst) > 2);
        at_rest("no more of them wait", || running.load(SeqCst));
        let answer = store.acquire(&mut exclusive(&store, "other"), &Deadline::after(SHORT));
        drop(theirs);
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    });
}

/// A transaction that asserts many locks of one client holds up only the heartbeats of those.
#[test]
fn heartbeats_that_wait_for_their_documents_starve_no_other() {
    let rows = needs_server!(Rows::fresh());
    let (store, running) = watched(&rows);
    let mut held: Vec<Attempt> = (0..16).map(|at| exclusive(&store, &format!("k{at}"))).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let mut other = exclusive(&store, "other");
    granted(&store, &mut other);
    let theirs = writes(&rows, "^k");
    let lease = Lease::For(Duration::from_secs(60));
    std::thread::scope(|scope| {
        for a in &mut held {
            let store = &store;
            scope.spawn(move || drop(store.renew(a, renewal(lease), &Deadline::after(3 * SHORT))));
        }
        wait_until("many wait", || running.load(SeqCst) >= 10);
        at_rest("no more of them wait", || running.load(SeqCst));
        let answer = store.renew(&mut other, renewal(lease), &Deadline::after(SHORT));
        drop(theirs);
        assert!(matches!(answer, Ok(Renewed::Until { .. })), "{answer:?}");
    });
}
