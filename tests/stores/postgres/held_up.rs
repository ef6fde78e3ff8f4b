//! Rows that somebody else's transaction has locked: no call outlives its deadline, what it leaves behind does nothing
//! that counts, and a client that wants another row is not held up.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockClient;
use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Attempt, Purpose, Released, Renewed, Schema, Seen, Swapped};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::postgres::tokio_postgres::Client;

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{granted, raised, renewal};
use crate::support::harness::{PATIENCE, within_among_many};
use crate::support::lateness::{Slowness, measure, slack};
use crate::support::postgres::{Rows, block_on, config, connect, connected, opened, unless_late, unless_unmade};
use crate::support::wait::wait_until;

/// The time of a call that waits for a row in vain.
const SHORT: Duration = Duration::from_secs(3);
/// Half of the time for which the server lets a statement wait for a row.
const SOON: Duration = Duration::from_secs(5);
/// The time of a call that must wait for nobody: longer than a server on a busy machine stalls, and shorter than the
/// server lets a statement wait for a row.
const LESS: Duration = Duration::from_secs(8);

/// How many sessions wait for a row of this table.
pub(super) fn waiting(rows: &Rows) -> usize {
    rows.sql("SELECT FROM pg_stat_activity WHERE query LIKE '%{T}%' AND wait_event_type = 'Lock'").len()
}

/// Begins a transaction that locks the rows like this. Also returns the id of its session, because the thread that ends
/// it may not await it.
async fn holds(rows: &Rows, lock: &str) -> (Client, i32) {
    let theirs = connect(&config()).await;
    theirs.batch_execute(&format!("BEGIN; SELECT FROM {} {lock}", rows.0)).await.unwrap();
    let pid = theirs.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    (theirs, pid)
}

fn end(rows: &Rows, pid: i32) {
    rows.sql(&format!("SELECT pg_terminate_backend({pid})"));
}

type Call = fn(&Postgres, &mut Attempt, &Seen, &Deadline) -> leasehold::Result<bool>;

/// The calls. Each returns whether it was done.
const CALLS: [(&str, Mode, Call); 9] = [
    ("acquire", Mode::Exclusive, |store, a, _, by| asks(store, &mut exclusive(store, &a.key), by)),
    ("join", Mode::Shared, |store, a, _, by| asks(store, &mut shared(store, &a.key), by)),
    ("adopt", Mode::Exclusive, |store, a, seen, by| {
        let old = seen.record.exclusive.clone().unwrap();
        asks(store, &mut instead_of(store, &a.key, Mode::Exclusive, &old), by)
    }),
    ("renew", Mode::Exclusive, |store, a, _, by| renews(store, a, by)),
    ("renew shared", Mode::Shared, |store, a, _, by| renews(store, a, by)),
    ("release", Mode::Exclusive, |store, a, _, by| releases(store, a, Purpose::Release, by)),
    ("release shared", Mode::Shared, |store, a, _, by| releases(store, a, Purpose::Release, by)),
    ("give up", Mode::Exclusive, |store, a, _, by| releases(store, a, Purpose::GiveUp, by)),
    ("swap", Mode::Exclusive, |store, _, seen, by| {
        let mut new = raised(&seen.record);
        new.exclusive = None;
        Ok(matches!(store.swap(seen, Some(&new), by)?, Swapped::Done))
    }),
];

fn asks(store: &Postgres, a: &mut Attempt, by: &Deadline) -> leasehold::Result<bool> {
    Ok(matches!(store.acquire(a, by)?, Acquired::Granted { .. }))
}

fn renews(store: &Postgres, a: &mut Attempt, by: &Deadline) -> leasehold::Result<bool> {
    Ok(matches!(store.renew(a, renewal(Lease::For(Duration::from_secs(600))), by)?, Renewed::Until { .. }))
}

fn releases(store: &Postgres, a: &mut Attempt, purpose: Purpose, by: &Deadline) -> leasehold::Result<bool> {
    Ok(matches!(store.release(a, purpose, by)?, Released::Done))
}

/// The attempt of each call, and what was seen before it, on a key of its own.
fn before_calls(rows: &Rows) -> Vec<(Attempt, Seen)> {
    let setup = rows.open();
    let key = |at: usize| format!("{at}: {}", CALLS[at].0);
    let mut held: Vec<Attempt> = (0..CALLS.len()).map(|at| attempt(&setup, &key(at), CALLS[at].1)).collect();
    held.iter_mut().for_each(|a| drop(granted(&setup, a)));
    // The acquire must find its key free.
    assert!(releases(&setup, &mut held[0], Purpose::Release, &soon()).unwrap());
    let seen = |a: &Attempt| get(&setup, &a.key);
    held.into_iter().map(|a| (seen(&a), a)).map(|(seen, a)| (a, seen)).collect()
}

/// Here no session keeps a limit of ours, and a cancel may be lost.
#[test]
fn behind_a_pooler_the_server_itself_ends_what_waits_for_a_row() {
    needs_server!();
    let rows = Rows::fresh();
    let mut held = before_calls(&rows);
    block_on(async {
        let (theirs, _) = holds(&rows, "FOR UPDATE").await;
        thread::scope(|scope| {
            for ((a, seen), (name, _, call)) in held.iter_mut().zip(CALLS) {
                let rows = &rows;
                scope.spawn(move || {
                    let options = PostgresOptions::new(config(), format!("public.{}", rows.0)).unwrap();
                    let store = opened(options.pooled().unwrap());
                    let error = call(&store, a, seen, &Deadline::after(PATIENCE)).unwrap_err();
                    assert!(text(&error).contains("another transaction has the row locked"), "{name}: {error}");
                });
            }
        });
        theirs.batch_execute("COMMIT").await.unwrap();
    });
}

#[test]
fn no_call_outlives_its_deadline_and_what_it_leaves_does_nothing() {
    needs_server!();
    let rows = Rows::fresh();
    let mut held = before_calls(&rows);
    let all = "SELECT * FROM {T} ORDER BY key";
    let before = rows.sql(all);
    block_on(async {
        let (theirs, _) = holds(&rows, "FOR UPDATE").await;
        thread::scope(|scope| {
            for ((a, seen), (name, _, call)) in held.iter_mut().zip(CALLS) {
                let rows = &rows;
                scope.spawn(move || {
                    // Each call has a store, and so turns, of its own.
                    let store = rows.open();
                    let done = within_among_many(name, SHORT, || call(&store, a, seen, &Deadline::after(SHORT)));
                    assert!(!matches!(done, Ok(true)), "{name} went by their lock");
                    // The client cancels the statement, so it must live until then.
                    wait_until("nothing of it waits any more", || waiting(rows) == 0);
                });
            }
        });
        // If a session stalled, its statement waits for the row only from now on, and the server ends it.
        let sessions = "SELECT FROM pg_stat_activity WHERE query LIKE '%{T}%' AND pid <> pg_backend_pid()";
        wait_until("their sessions have ended", || rows.sql(sessions).is_empty());
        theirs.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(rows.sql(all), before, "what was left behind wrote something");
}

/// The client and its cancellation are gone: the copy waits on, and is granted the lock once the row is free, unless
/// the give-up, which waits behind it, removes it.
#[test]
fn what_is_given_up_behind_a_locked_row_is_held_by_nobody() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    assert!(releases(&store, &mut a, Purpose::Release, &soon()).unwrap());
    block_on(async {
        let (_theirs, pid) = holds(&rows, "FOR UPDATE").await;
        let mut late = exclusive(&store, "k");
        let mut copy = Attempt::new("k", late.ask.clone());
        let other = rows.open();
        thread::scope(|scope| {
            let asked = scope.spawn(|| asks(&store, &mut copy, &soon()));
            wait_until("the copy waits", || waiting(&rows) == 1);
            let given_up = scope.spawn(move || {
                late.sends = 2;
                other.release(&mut late, Purpose::GiveUp, &soon()).unwrap()
            });
            wait_until("who gives it up waits behind it", || waiting(&rows) == 2);
            end(&rows, pid);
            let granted = asked.join().unwrap();
            let given_up = given_up.join().unwrap();
            println!("granted: {granted:?}, given up: {given_up:?}");
        });
    });
    assert_eq!(holders(&store, "k"), []);
    granted(&store, &mut exclusive(&store, "k"));
}

/// Somebody who looks for the reason must find the transaction, and not suspect the network.
#[test]
fn a_release_that_could_not_wait_for_its_row_says_that_it_is_locked() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut held: Vec<Attempt> = (0..3).map(|at| exclusive(&store, &format!("held {at}"))).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let mut last = held.pop().unwrap();
    block_on(async {
        let (_theirs, pid) = holds(&rows, "FOR KEY SHARE").await;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for a in &mut held {
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || {
                    // The server ends each of these after a while.
                    while !is_over.load(SeqCst) {
                        drop(releases(store, a, Purpose::Release, &soon()));
                    }
                });
            }
            wait_until("both wait", || waiting(&rows) == 2);
            // If it had a turn, or learns late that nothing was sent, the outcome is unknown. On a machine that stalled
            // the error says that there was no time at all.
            let says = |error: &leasehold::Error| text(error).contains("another transaction has the row locked");
            let mut answers = Vec::new();
            let is_refused = (0..8).any(|_| {
                answers.push(releases(&store, &mut last, Purpose::Release, &Deadline::after(SHORT)));
                answers.last().is_some_and(|answer| answer.as_ref().is_err_and(says))
            });
            is_over.store(true, SeqCst);
            end(&rows, pid);
            assert!(is_refused, "what was not sent: {answers:?}");
        });
    });
}

/// Two releases wait for somebody's transaction for longer than a drop may take. That is as many as may wait at once.
#[test]
fn a_release_of_a_free_row_does_not_wait_for_those_that_are_held_up() {
    needs_server!();
    measure();
    let rows = Rows::fresh();
    let builder = || LockClient::builder(rows.url()).drop_timeout(PATIENCE).request_timeout(PATIENCE);
    let client = connected(|| builder().lease(Duration::from_secs(600)));
    let slowness = Slowness::of(connected(builder));
    let [one, two, free] = ["held 1", "held 2", "free"].map(|key| client.lock(key).unwrap());
    let shared = client.lock_shared("free and shared").unwrap();
    block_on(async {
        let (_theirs, pid) = holds(&rows, "WHERE key LIKE 'held%' FOR KEY SHARE").await;
        let begin = Barrier::new(3);
        thread::scope(|scope| {
            for guard in [one, two] {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    guard.release().unwrap();
                });
            }
            begin.wait();
            wait_until("both wait", || waiting(&rows) == 2);
            let started = Instant::now();
            free.release().unwrap();
            shared.release().unwrap();
            let (took, bound) = (started.elapsed(), SOON + slack(started) + slowness.slack(started));
            assert!(took < bound, "they waited for the others: {took:?}");
            end(&rows, pid);
        });
    });
}

/// Adding an index waits for all writers, and all that come then wait behind it.
#[test]
fn a_table_that_gets_what_it_lacks_keeps_no_heartbeat_waiting() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    // Here no session of ours has a limit that would end it after a while.
    let makes = PostgresOptions::new(config(), format!("public.{}", rows.0)).unwrap();
    let makes = opened(makes.pooled().unwrap());
    let mut held = exclusive(&store, "k");
    granted(&store, &mut held);
    renews(&store, &mut held, &soon()).unwrap();
    rows.sql("DROP INDEX {T}_lock_id");
    block_on(async {
        // The same lock on the table that a release has while it waits for a row.
        let table = format!("WHERE false; LOCK TABLE {} IN ROW EXCLUSIVE MODE", rows.0);
        let (_theirs, pid) = holds(&rows, &table).await;
        thread::scope(|scope| {
            let made = scope.spawn(|| makes.schema(Schema::Create, &Deadline::after(2 * PATIENCE)));
            wait_until("it waits for the table", || waiting(&rows) > 0);
            let renewed = unless_unmade(|| renews(&store, &mut held, &Deadline::after(LESS)));
            end(&rows, pid);
            let made = made.join().unwrap();
            assert!(matches!(renewed, Ok(true)), "it waited behind the index: {renewed:?}");
            assert!(made.as_ref().is_ok_and(|made| made.contains("lacked")), "{made:?}");
        });
    });
}

/// The release has tried in vain and now waits for two others, whose rows somebody has locked as well. Its own row is
/// free by now.
#[test]
fn a_release_that_waits_for_a_turn_keeps_no_heartbeat_of_its_key_waiting() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut held = ["held 1", "held 2"].map(|key| exclusive(&store, key));
    let [mut leaves, mut stays] = [shared(&store, "shared"), shared(&store, "shared")];
    held.iter_mut().chain([&mut leaves, &mut stays]).for_each(|a| drop(granted(&store, a)));
    block_on(async {
        let (_held, held_by) = holds(&rows, "WHERE key LIKE 'held%' FOR KEY SHARE").await;
        let (_shared, shared_by) = holds(&rows, "WHERE key = 'shared' FOR UPDATE").await;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for a in &mut held {
                let (store, is_over) = (&store, &is_over);
                // The server ends each of these after a while.
                scope.spawn(move || {
                    while !is_over.load(SeqCst) && !matches!(releases(store, a, Purpose::Release, &soon()), Ok(true)) {}
                });
            }
            wait_until("both wait", || waiting(&rows) == 2);
            let leave = || releases(&store, &mut leaves, Purpose::Release, &Deadline::after(PATIENCE));
            let left = scope.spawn(|| unless_late(leave));
            // The last statement of a connection that is free again.
            let tried =
                "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'WITH w AS (UPDATE%{T}%''50''%'";
            wait_until("it has tried", || !rows.sql(tried).is_empty());
            end(&rows, shared_by);
            let renewed = unless_unmade(|| renews(&store, &mut stays, &Deadline::after(LESS)));
            is_over.store(true, SeqCst);
            end(&rows, held_by);
            assert!(matches!(renewed, Ok(true)), "{renewed:?}");
            assert!(left.join().unwrap().unwrap());
        });
    });
}

/// A row that somebody has locked is no reason to skip all the rows after it.
#[test]
fn a_purge_goes_on_after_a_row_that_somebody_has_and_says_so() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for key in ["a", "b", "c"] {
        granted(&store, &mut exclusive(&store, key));
    }
    rows.age(Duration::from_secs(24 * 3600));
    let client = connected(|| LockClient::builder(rows.url()).request_timeout(SHORT));
    block_on(async {
        let (theirs, pid) = holds(&rows, "WHERE key = 'b' FOR UPDATE").await;
        let mut pages: Vec<_> = client.purge_pages(Duration::ZERO).collect();
        let error = pages.pop().unwrap().unwrap_err();
        assert_eq!(error.key(), Some("b"), "{error}");
        let mut freed: Vec<String> =
            pages.iter().flat_map(|page| &page.as_ref().unwrap().freed).map(|status| status.key().to_owned()).collect();
        freed.sort();
        assert_eq!(freed, ["a", "c"], "{error}");
        end(&rows, pid);
        drop(theirs);
    });
    assert_eq!(unless_late(|| client.purge(Duration::ZERO)).unwrap().freed.len(), 1);
}
