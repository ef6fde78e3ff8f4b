//! Which statements may wait for which: a few connections serve all.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Attempt, Purpose, Renewed, Seen};
use leasehold::internals::sys::deadline::Deadline;

use crate::postgres::held_up::waiting;
use crate::postgres::*;
use crate::support::contract::{granted, raised, renewal};
use crate::support::lateness::at_rest;
use crate::support::postgres::{Rows, block_on, comes_soon, config, connect, opened, unless_late, unless_unmade};
use crate::support::proxy::{Flow, Proxy};
use crate::support::servers::{postgres, postgres_server};
use crate::support::stores::unique;
use crate::support::wait::wait_until;

/// The time of a call that must wait for nobody: longer than a server on a busy machine stalls. The server ends a
/// statement that waits after ten seconds.
const SHORT: Duration = Duration::from_secs(8);

/// The time of a call that waits for a row: longer than that of a call that must not wait for it.
const LONGER: Duration = Duration::from_secs(9);

/// The time of a heartbeat of a short lease.
const SHORTEST: Duration = Duration::from_millis(400);

/// A network that was silent for less than this is not taken for dead.
const QUIET: Duration = Duration::from_millis(900);

#[test]
fn what_is_taken_away_under_fenced_transactions_starves_no_heartbeat() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let keys: Vec<String> = (0..8).map(|at| format!("k{at}")).collect();
    for key in &keys {
        granted(&store, &mut exclusive(&store, key));
    }
    let mut others = [exclusive(&store, "e"), shared(&store, "s")];
    others.iter_mut().for_each(|other| drop(granted(&store, other)));
    let seen: Vec<Seen> = keys.iter().map(|key| get(&store, key)).collect();
    block_on(async {
        let client = connect(&config()).await;
        let asserts = format!("BEGIN; SELECT FROM {} WHERE key LIKE 'k%' FOR KEY SHARE", rows.0);
        client.batch_execute(&asserts).await.unwrap();
        std::thread::scope(|scope| {
            for seen in seen {
                let mut new = raised(&seen.record);
                new.exclusive.as_mut().unwrap().grant = exclusive(&store, "other").ask.grant;
                let store = &store;
                scope.spawn(move || drop(store.swap(&seen, Some(&new), &soon())));
            }
            wait_until("one waits", || waiting(&rows) > 0);
            at_rest("no more of them wait", || waiting(&rows));
            for _ in 0..3 {
                let lease = Lease::For(Duration::from_secs(60));
                for other in &mut others {
                    let answer = unless_unmade(|| store.renew(other, renewal(lease), &Deadline::after(SHORT)));
                    assert!(matches!(answer, Ok(Renewed::Until { .. })), "{}: {answer:?}", other.key);
                }
            }
            drop(client);
        });
    });
}

/// As under the open transaction of a holder that stalls: nobody is refused, so nobody is in a line.
#[test]
fn who_waits_for_one_row_keeps_no_other_lock_from_anybody() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "k"));
    rows.age(Duration::from_secs(24 * 3600));
    block_on(async {
        let client = connect(&config()).await;
        let asserts = format!("BEGIN; SELECT FROM {} WHERE key = 'k' FOR SHARE", rows.0);
        client.batch_execute(&asserts).await.unwrap();
        std::thread::scope(|scope| {
            let asks = || {
                for _ in 0..2 {
                    let _ = store.acquire(&mut exclusive(&store, "k"), &Deadline::after(3 * SHORT));
                }
            };
            (0..8).for_each(|_| drop(scope.spawn(asks)));
            wait_until("one waits", || waiting(&rows) > 0);
            at_rest("no more of them wait", || waiting(&rows));
            let answer = unless_unmade(|| store.acquire(&mut exclusive(&store, "other"), &Deadline::after(SHORT)));
            drop(client);
            assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        });
    });
}

/// A hand-over is a holder's release.
#[test]
fn who_hands_a_lock_over_waits_for_nobody_who_wants_another() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let keys: Vec<String> = (0..4).map(|at| format!("k{at}")).collect();
    keys.iter().for_each(|key| drop(granted(&store, &mut exclusive(&store, key))));
    rows.age(Duration::from_secs(24 * 3600));
    let old = granted(&store, &mut exclusive(&store, "mine"));
    let is_over = AtomicBool::new(false);
    block_on(async {
        let client = connect(&config()).await;
        let asserts = format!("BEGIN; SELECT FROM {} WHERE key LIKE 'k%' FOR SHARE", rows.0);
        client.batch_execute(&asserts).await.unwrap();
        std::thread::scope(|scope| {
            let _ends = Ends(&is_over);
            for key in &keys {
                let (store, is_over) = (&store, &is_over);
                // The server ends each of these after a while.
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        let _ = store.acquire(&mut exclusive(store, key), &Deadline::after(3 * SHORT));
                    }
                });
            }
            wait_until("all who want a lock wait for one", || waiting(&rows) == keys.len());
            let mut next = instead_of(&store, "mine", Mode::Exclusive, &old);
            // The holder does this, and it knows that its own acquire was sent once.
            next.replaces_sent_once = true;
            let answer = unless_unmade(|| store.acquire(&mut next, &Deadline::after(SHORT)));
            drop(client);
            assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        });
    });
}

/// Says that it is over when it is dropped, also if a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A transaction that asserts many shared keys holds up only the heartbeats of those.
#[test]
fn shared_heartbeats_that_wait_for_their_rows_starve_no_other() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut held: Vec<Attempt> = (0..12).map(|at| shared(&store, &format!("k{at}"))).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let mut other = shared(&store, "z");
    granted(&store, &mut other);
    let lease = Lease::For(Duration::from_secs(60));
    let is_over = AtomicBool::new(false);
    block_on(async {
        let client = connect(&config()).await;
        let asserts = format!("BEGIN; SELECT FROM {} WHERE key LIKE 'k%' FOR SHARE", rows.0);
        client.batch_execute(&asserts).await.unwrap();
        std::thread::scope(|scope| {
            let _ends = Ends(&is_over);
            for a in &mut held {
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        let _ = store.renew(a, renewal(lease), &Deadline::after(LONGER));
                    }
                });
            }
            wait_until("some wait", || waiting(&rows) > 2);
            let mut renews = || store.renew(&mut other, renewal(lease), &Deadline::after(SHORT));
            let answers: Vec<_> = (0..10).map(|_| unless_unmade(&mut renews)).collect();
            drop(client);
            assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewed::Until { .. }))), "{answers:?}");
        });
    });
}

/// Many clients at a time would have to connect anew, and a server that is full has no room for them.
#[test]
fn who_soon_leaves_ends_no_connection_of_others() {
    needs_server!();
    let rows = Rows::fresh();
    let name = unique();
    let mut settings = config();
    settings.application_name(&name);
    let store = opened(PostgresOptions::new(settings, &rows.0).unwrap());
    let ours =
        |rest: &str| rows.sql(&format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' {rest}"));
    let works = |key: &str| {
        let mut a = exclusive(&store, key);
        granted_anew(&store, &mut a);
        unless_late(|| store.release(&mut a, Purpose::Release, &soon())).unwrap();
    };
    works("k");
    block_on(async {
        let client = connect(&config()).await;
        let lock = format!("BEGIN; SELECT FROM {} WHERE key = 'k' FOR UPDATE", rows.0);
        client.batch_execute(&lock).await.unwrap();
        let mut proven = 0;
        for _ in 0..20 {
            // One of three may be the connection that was abandoned before, and about to end.
            wait_until("two are idle", || {
                std::thread::scope(|scope| {
                    ["a", "b", "c", "d"].iter().for_each(|key| drop(scope.spawn(|| works(key))));
                });
                ours("AND state = 'idle'").len() > 2
            });
            let (before, started) = (ours(""), Instant::now());
            let answer = store.acquire(&mut exclusive(&store, "k"), &Deadline::after(Duration::from_millis(100)));
            works("a");
            // A machine that was slower proves nothing.
            if started.elapsed() < QUIET && matches!(answer, Ok(Acquired::Unknown(_))) {
                let after = ours("");
                assert!(after.iter().all(|pid| before.contains(pid)), "one was made anew: {before:?}, then {after:?}");
                proven += 1;
            }
            if proven == 3 {
                break;
            }
        }
        assert!(proven > 0, "the machine was slower each time, or nothing is left unanswered");
    });
}

/// A short lease leaves its heartbeats too little time to find each of the connections dead.
#[test]
fn a_network_that_is_silent_to_one_short_statement_after_the_other_is_left() {
    needs_server!();
    let (rows, name) = (Rows::fresh(), unique());
    let proxy = Proxy::raw(&postgres::host(&postgres_server().unwrap()).unwrap());
    let url = format!("postgres://leasehold@{}/postgres?application_name={name}", proxy.addr());
    let store = opened(PostgresOptions::new(url.parse().unwrap(), &rows.0).unwrap());
    let mut held: Vec<Attempt> = (0..4).map(|at| exclusive(&store, &format!("k{at}"))).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let sessions =
        |rest: &str| rows.sql(&format!("SELECT FROM pg_stat_activity WHERE application_name = '{name}' {rest}")).len();
    let is_over = AtomicBool::new(false);
    block_on(async {
        let client = connect(&config()).await;
        client.batch_execute(&format!("BEGIN; SELECT FROM {} FOR UPDATE", rows.0)).await.unwrap();
        std::thread::scope(|scope| {
            let _ends = Ends(&is_over);
            for a in &mut held {
                let (store, is_over) = (&store, &is_over);
                let lease = Lease::For(Duration::from_secs(60));
                // The server ends each of these after a while.
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        let _ = store.renew(a, renewal(lease), &soon());
                    }
                });
            }
            wait_until("its heartbeats wait", || sessions("AND wait_event_type = 'Lock'") == 4);
            granted_anew(&store, &mut exclusive(&store, "free"));
            drop(client);
        });
    });
    wait_until("all are idle", || sessions("AND state = 'idle'") >= 5);
    proxy.silence_open();
    let (mut started, mut last, mut tries) = (Instant::now(), Instant::now(), 0);
    let works = loop {
        tries += 1;
        let mut a = exclusive(&store, &format!("short {tries}"));
        // Statements that were abandoned long before say nothing about now.
        if last.elapsed() > QUIET / 2 {
            started = Instant::now();
        }
        match store.acquire(&mut a, &Deadline::after(SHORTEST)) {
            Ok(Acquired::Granted { .. }) => break true,
            Ok(Acquired::Unknown(_)) if started.elapsed() > 4 * SHORTEST => break false,
            Ok(Acquired::Unknown(_)) => last = Instant::now(),
            _ => {}
        }
    };
    if !works {
        granted_anew(&store, &mut exclusive(&store, "another"));
    }
}

/// As with many heartbeats on a slow network: a connection that each of them began anew would never be ready in time.
#[test]
fn connections_whose_callers_had_no_more_time_are_there_for_the_next() {
    needs_server!();
    let (rows, name) = (Rows::fresh(), unique());
    let proxy = Proxy::raw(&postgres::host(&postgres_server().unwrap()).unwrap());
    let url = format!("postgres://leasehold@{}/postgres?sslmode=disable&application_name={name}", proxy.addr());
    let store = opened(PostgresOptions::new(url.parse().unwrap(), &rows.0).unwrap());
    let mut held: Vec<Attempt> = (0..4).map(|at| exclusive(&store, &format!("k{at}"))).collect();
    held.iter_mut().for_each(|a| drop(granted(&store, a)));
    let mut renew = |time: Duration| {
        std::thread::scope(|scope| {
            let renews = held.iter_mut().map(|a| {
                let (store, lease) = (&store, Lease::For(Duration::from_secs(60)));
                scope.spawn(move || store.renew(a, renewal(lease), &Deadline::after(time)))
            });
            let renews: Vec<_> = renews.collect();
            renews.into_iter().map(|renews| renews.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let is_renewed = |one: &Result<Renewed, leasehold::Error>| matches!(one, Ok(Renewed::Until { .. }));
    let is_ours = |said: &&Vec<u8>| said.windows(name.len()).any(|part| part == name.as_bytes());
    let begun = || proxy.heard().iter().filter(is_ours).count();
    let sessions = |with: &str| {
        let sql = format!("SELECT FROM pg_stat_activity WHERE application_name = '{name}' AND query LIKE '{with}%'");
        rows.sql(&sql).len()
    };
    // A machine that stalls for as long as a connection may take proves nothing.
    let proven = (0..4).any(|_| {
        wait_until("all are renewed", || renew(SHORT).iter().all(is_renewed));
        proxy.flow(Flow::Pass, Flow::Hold);
        // The first ones are sent on connections that end with them.
        let all: Vec<_> = (0..4).flat_map(|_| renew(SHORTEST)).collect();
        assert!(!all.iter().any(is_renewed), "{all:?}");
        proxy.flow(Flow::Pass, Flow::Pass);
        // The first statement of each new connection.
        let made = || sessions("SELECT coalesce");
        let are_made = comes_soon(|| made() >= 4);
        at_rest("no more of them are made", made);
        wait_until("no more than the turns are left", || sessions("") <= 8);
        let before = begun();
        let all = renew(SHORT);
        assert!(!are_made || all.iter().all(is_renewed), "{all:?}");
        are_made && begun() == before
    });
    assert!(proven, "what their callers had left was not there for the next");
}
