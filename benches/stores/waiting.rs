//! Many keys at once, each held by another process, with a thread of this process waiting for it: what the waiting
//! costs, whether all threads get their lock after the release, and how soon.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockClient;

use super::cost::Costed;
use super::store::Store;
use super::table::{Samples, Table};
use super::waits::Other;

/// How many keys, unless fewer are asked for.
const KEYS: usize = 1000;
/// After this time, plus `MORE` for each key, every waiter was refused and has looked again.
const SETTLED: Duration = Duration::from_secs(2);
const MORE: Duration = Duration::from_millis(5);
/// The role of the other process that holds the keys, followed by their number.
pub const ROLE: &str = "hold-";

fn key(n: usize) -> String {
    format!("waiting-{n}")
}

pub fn measure(store: &Store, keys: usize, seconds: u64, table: &mut Table) {
    if !store.shared {
        return;
    }
    let keys = if keys < 100 { keys } else { KEYS };
    let mut holder = Other::start(&format!("{ROLE}{keys}"), &store.url);
    holder.hear();
    let costed = Costed::connect(&store.url);
    let (granted, when) = mpsc::channel();
    thread::scope(|scope| {
        for n in 0..keys {
            let (client, granted) = (&costed.client, granted.clone());
            let waiting = move || {
                let guard = client.lock(&key(n)).expect("it becomes free");
                let _ = granted.send((Instant::now(), guard));
            };
            thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, waiting).expect("a thread");
        }
        thread::sleep(SETTLED + MORE * keys as u32);
        let before = costed.count();
        thread::sleep(Duration::from_secs(seconds));
        let waiting = costed.since(&before);
        let released = Instant::now();
        holder.say("release");
        let mut delays = Samples::default();
        let mut guards = Vec::new();
        for (at, guard) in when.iter().take(keys) {
            delays.push(at - released);
            guards.push(guard);
        }
        let all = released.elapsed();
        let took = Duration::from_micros(holder.hear()[0] as u64);
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        let beside = format!(
            "while they wait, for {seconds} s: {waiting}; released one after the other in {took:.0?}, all held \
             {all:.0?} after the first, {lost} lost"
        );
        table.alone(store.name, &format!("{keys} waiting keys, held after the release began"), &delays, beside);
        drop(guards);
    });
    costed.client.close().expect("everything is released");
}

/// What the other process does.
pub fn child(role: &str, client: &LockClient) {
    let keys = role.parse().expect("so many keys");
    let guards: Vec<_> = (0..keys).map(|n| client.lock(&key(n)).expect("nobody holds it")).collect();
    println!("{keys}");
    std::io::stdin().lines().next().expect("a word").expect("the first process lives");
    let started = Instant::now();
    for guard in guards {
        guard.release().expect("it is held");
    }
    println!("{}", started.elapsed().as_micros());
}
