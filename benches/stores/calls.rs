//! The low-level calls compared with the raw statements, and a guard compared with the calls.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LockClient};

use super::store::{Call, Store};
use super::table::{Samples, Table};

/// The threads of one client that work at the same time.
const THREADS: usize = 4;
const LEASE: Duration = Duration::from_secs(20);

/// Measures `ours` and `theirs` in an order that changes with every round.
fn by_turns(round: usize, mut ours: impl FnMut(), mut theirs: impl FnMut(), into: &mut (Samples, Samples)) {
    let mut timed = |first: bool| {
        let started = Instant::now();
        if first {
            ours()
        } else {
            theirs()
        }
        let took = started.elapsed();
        if first { into.0.push(took) } else { into.1.push(took) }
    };
    let ours_first = round.is_multiple_of(2);
    timed(ours_first);
    timed(!ours_first);
}

pub fn measure(store: &mut Store, rounds: usize, table: &mut Table) {
    let client = store.connect();
    low_level(&client, store, rounds, table);
    guards(&client, store.name, rounds, table);
    peers(&client, store, rounds, table);
    threads(&client, store.name, rounds / 4, table);
    client.close().expect("everything is released");
}

fn low_level(client: &LockClient, store: &mut Store, rounds: usize, table: &mut Table) {
    // In the order of real use: a write that must be on disk comes after one that need not.
    let calls = [Call::Acquire, Call::Refused, Call::Renew, Call::Release];
    let mut samples: [(Samples, Samples); 4] = Default::default();
    let other = client.request("held").acquire().expect("nobody holds it");
    let (mut lock, mut renewed) = (None, Instant::now());
    for round in 0..rounds + rounds / 10 {
        if round == rounds / 10 {
            // The earlier rounds were only for warming up.
            samples = Default::default();
        }
        for (call, samples) in calls.into_iter().zip(&mut samples) {
            let ours = || match call {
                Call::Acquire => {
                    // An explicit lease: a renewal that is shorter than a store's default would write nothing.
                    lock = Some(client.request("bench").lease(LEASE).acquire().expect("nobody holds it"));
                }
                Call::Renew => lock = lock.take().map(|lock| client.heartbeat(&lock, LEASE).expect("it is held")),
                Call::Release => lock.iter().for_each(|lock| client.release(lock).expect("it is held")),
                Call::Refused => {
                    let refused = client.request("held").acquire().map(|_| ()).map_err(|error| error.kind());
                    assert_eq!(refused, Err(ErrorKind::Held));
                }
            };
            match &mut store.raw {
                Some(raw) => {
                    raw.prepare(call);
                    by_turns(round, ours, || raw.run(call), samples);
                }
                None => by_turns(round, ours, || {}, samples),
            }
        }
        // Renews the lease of the other key, outside of all measured times.
        if renewed.elapsed() > LEASE / 4 {
            client.heartbeat(&other, LEASE).expect("it is held");
            renewed = Instant::now();
        }
    }
    client.release(&other).expect("it is held");
    for (call, (ours, theirs)) in calls.into_iter().zip(&samples) {
        let what = format!("{call:?}").to_lowercase();
        match store.raw {
            Some(_) => table.compare(store.name, &what, ours, "raw", theirs),
            None => table.alone(store.name, &what, ours, "no I/O: what the library itself costs".to_owned()),
        }
    }
}

fn guards(client: &LockClient, store: &str, rounds: usize, table: &mut Table) {
    let mut samples = <(Samples, Samples)>::default();
    for round in 0..rounds {
        let whole = || drop(client.lock("bench").expect("nobody holds it"));
        let parts = || {
            let lock = client.request("bench").acquire().expect("nobody holds it");
            client.release(&lock).expect("it is held");
        };
        by_turns(round, whole, parts, &mut samples);
    }
    table.compare(store, "lock and drop of a guard", &samples.0, "acquire and release", &samples.1);
}

/// What people use instead: each is measured by turns with a lock that is acquired and released.
fn peers(client: &LockClient, store: &mut Store, rounds: usize, table: &mut Table) {
    for (name, peer) in &mut store.peers {
        let mut samples = <(Samples, Samples)>::default();
        for round in 0..rounds {
            let whole = || {
                let lock = client.request("bench").acquire().expect("nobody holds it");
                client.release(&lock).expect("it is held");
            };
            by_turns(round, whole, || peer.hold(), &mut samples);
        }
        table.compare(store.name, "acquire and release", &samples.0, name, &samples.1);
    }
}

/// Threads that never want the same key, but write to the same store.
fn threads(client: &LockClient, store: &str, rounds: usize, table: &mut Table) {
    let started = Instant::now();
    let samples: Vec<Duration> = thread::scope(|scope| {
        let work = move |thread: usize| {
            let key = format!("bench-{thread}");
            let timed = |_| {
                let started = Instant::now();
                drop(client.lock(&key).expect("nobody holds it"));
                started.elapsed()
            };
            (0..rounds).map(timed).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    let rate = samples.len() as f64 / started.elapsed().as_secs_f64();
    let what = format!("lock and drop, {THREADS} threads, a key each");
    table.alone(store, &what, &Samples(samples), format!("{rate:.0} a second in all"));
}
