//! Leases in real time: nothing is made older, every key waits for its end, and every answer is held against the
//! store's own clock.

use std::time::{Duration, Instant};

use leasehold::internals::lease::{End, Holder, Mode};
use leasehold::internals::store::Acquired;

use crate::support::contract::*;
use crate::support::seed::{seed, sow};
use crate::support::stores::{Opened, Store, soon};

const KEYS: u64 = 500;
const THREADS: u64 = 8;
/// How long before its end each lease is looked at, and how often after it.
const BEFORE: Duration = Duration::from_millis(100);
const AFTER: Duration = Duration::from_millis(40);

/// A holder that nobody renews, and when its lease ends on this host's clock.
struct Granted {
    key: String,
    holder: Holder,
    ends: Instant,
}

fn end_of(holder: &Holder) -> leasehold::internals::lease::StoreTime {
    match holder.until {
        End::At(until) => until,
        End::Never => panic!("{holder:?} has no end"),
    }
}

/// A lease of one to four seconds, in either mode.
fn grant(at: &Opened, key: String) -> Granted {
    let mut attempt = if fastrand::bool() { exclusive(at, &key) } else { shared(at, &key) };
    attempt.ask.lease = Duration::from_millis(fastrand::u64(1_000..=4_000));
    match at.store.acquire(&mut attempt, &soon()) {
        Ok(Acquired::Granted { holder, now, .. }) => {
            let (until, ends) = (end_of(&holder), Instant::now());
            assert_eq!(until.since(holder.created), attempt.ask.lease, "{key}: a grant is what was asked for");
            // Of an answer that comes after the end nothing is left.
            Granted { key, holder, ends: ends + until.since(now) }
        }
        other => panic!("{key}: {other:?}"),
    }
}

/// A rival asks from shortly before the end until it is granted: refused while the lease runs, granted after it. How
/// long after, by the store's clock.
fn take_over(at: &Opened, old: &Granted) -> Duration {
    let until = end_of(&old.holder);
    let mut rival = attempt(&*at.second, &old.key, Mode::Exclusive);
    std::thread::sleep(old.ends.saturating_duration_since(Instant::now() + BEFORE));
    loop {
        match at.second.acquire(&mut rival, &soon()) {
            Ok(Acquired::Granted { holder, .. }) => {
                assert!(holder.created >= until, "{}: {holder:?} was let in beside {:?}", old.key, old.holder);
                assert!(holder.token > old.holder.token, "{}: {holder:?} after {:?}", old.key, old.holder);
                return holder.created.since(until);
            }
            Ok(Acquired::Refused(seen)) => {
                let stands: Vec<&Holder> = seen.record.holders().map(|(_, holder)| holder).collect();
                assert_eq!(stands, [&old.holder]);
                assert!(
                    seen.is_live(&old.holder),
                    "{}: refused at {:?} for {:?}",
                    old.key,
                    seen.times.expired_before,
                    old.holder
                );
            }
            other => panic!("{}: {other:?}", old.key),
        }
        std::thread::sleep(AFTER);
    }
}

pub fn leases_end_by_the_stores_own_clock(store: &Store) {
    let (at, seed) = ((store.open)(), seed());
    let mut late: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let at = &at;
                scope.spawn(move || {
                    sow(seed, thread);
                    let keys = (0..KEYS).filter(|key| key % THREADS == thread);
                    let mut granted: Vec<Granted> = keys.map(|key| grant(at, format!("k{key}"))).collect();
                    granted.sort_by_key(|granted| granted.ends);
                    granted.iter().map(|granted| take_over(at, granted)).collect::<Vec<Duration>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    late.sort();
    assert_eq!(late.len() as u64, KEYS);
    println!(
        "{}: taken over {:?} after the end, at most {:?}",
        store.module,
        late[late.len() / 2],
        late[late.len() - 1]
    );
}
