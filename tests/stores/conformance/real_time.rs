//! Leases in real time: nothing is made older, every key waits for its end, and every answer is held against the
//! store's own clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leasehold::internals::lease::{End, Holder, Mode, StoreTime};
use leasehold::internals::store::{Acquired, Attempt};

use crate::support::contract::*;
use crate::support::seed::{seed, sow};
use crate::support::stores::{Opened, Store, soon};

const KEYS: usize = 500;
/// The emulator of Spanner has one transaction at a time.
const KEYS_OF_SPANNER: usize = 100;
/// As soon as a lease has no more than this left, whoever grants looks after those that were granted: a busy machine
/// takes longer for all of them than the first lease lasts.
const SPARE: Duration = Duration::from_millis(600);
/// How long before its end each lease is looked at, and how often after it.
const BEFORE: Duration = Duration::from_millis(150);
const AFTER: Duration = Duration::from_millis(40);

/// A holder that nobody renews, when its lease ends on this host's clock, and who waits for that.
struct Granted {
    key: String,
    holder: Holder,
    ends: Instant,
    rival: Attempt,
    /// Was refused while it ran.
    was_refused: bool,
}

fn end_of(holder: &Holder) -> StoreTime {
    match holder.until {
        End::At(until) => until,
        End::Never => panic!("{holder:?} has no end"),
    }
}

/// A lease of one to four seconds, in either mode.
fn grant(at: &Opened, key: String) -> Granted {
    let mut attempt = if fastrand::bool() { exclusive(at, &key) } else { shared(at, &key) };
    attempt.ask.lease = Duration::from_millis(fastrand::u64(1_000..=4_000));
    let asked = Instant::now();
    match at.store.acquire(&mut attempt, &soon()) {
        Ok(Acquired::Granted { holder, now, .. }) => {
            let until = end_of(&holder);
            assert_eq!(until.since(holder.created), attempt.ask.lease, "{key}: a grant is what was asked for");
            let rival = crate::support::contract::attempt(&*at.second, &key, Mode::Exclusive);
            // Of an answer that comes after the end nothing is left.
            Granted { key, holder, ends: asked + until.since(now), rival, was_refused: false }
        }
        other => panic!("{key}: {other:?}"),
    }
}

impl Granted {
    /// Asks once for what it holds: refused while the lease runs, granted after it. How long after, by the store's
    /// clock.
    fn ask(&mut self, at: &Opened) -> Option<Duration> {
        let (until, key, old) = (end_of(&self.holder), &self.key, &self.holder);
        match at.second.acquire(&mut self.rival, &soon()) {
            Ok(Acquired::Granted { holder, .. }) => {
                assert!(holder.created >= until, "{key}: {holder:?} was let in beside {old:?}");
                assert!(holder.token > old.token, "{key}: {holder:?} after {old:?}");
                Some(holder.created.since(until))
            }
            Ok(Acquired::Refused(seen)) => {
                let stands: Vec<&Holder> = seen.record.holders().map(|(_, holder)| holder).collect();
                assert_eq!(stands, [old]);
                assert!(seen.is_live(old), "{key}: refused at {:?} for {old:?}", seen.times.expired_before);
                self.was_refused = true;
                None
            }
            other => panic!("{key}: {other:?}"),
        }
    }

    /// When it is asked for next: before the end, and, once refused, from shortly before it may be granted.
    fn next(&self, grace: Duration) -> Instant {
        let first = self.ends - BEFORE;
        if self.was_refused { (self.ends + grace - BEFORE).max(Instant::now() + AFTER) } else { first }
    }
}

/// Takes over all of these, each as soon as it can be: how long after its end, and whether it was refused before.
fn take_over(at: &Opened, mut granted: Vec<Granted>) -> Vec<(Duration, bool)> {
    let grace = at.store.info().grace;
    let mut due: BTreeSet<(Instant, usize)> = granted.iter().map(|one| one.next(grace)).zip(0..).collect();
    let mut taken = Vec::new();
    while let Some((when, number)) = due.pop_first() {
        std::thread::sleep(when.saturating_duration_since(Instant::now()));
        let one = &mut granted[number];
        match one.ask(at) {
            Some(late) => taken.push((late, one.was_refused)),
            None => drop(due.insert((one.next(grace), number))),
        }
    }
    taken
}

pub fn leases_end_by_the_stores_own_clock(store: &Store) {
    let (at, seed) = ((store.open)(), seed());
    let is_in_time = |round: u64| {
        let (keys, refused) = end_by_its_clock(store, &at, round, seed.wrapping_add(round));
        // On a busy machine some are asked for too late all the same; where it stands still for seconds, all of them.
        refused > keys / 10
    };
    assert!((0..4).any(is_in_time), "hardly any were asked for while their lease ran");
}

/// How many keys there were, and how many of them were asked for while their lease ran.
fn end_by_its_clock(store: &Store, at: &Opened, round: u64, seed: u64) -> (usize, usize) {
    let (keys, threads) = if store.module == "spanner" { (KEYS_OF_SPANNER, 2) } else { (KEYS, 8) };
    let taken: Vec<(Duration, bool)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    sow(seed, thread as u64);
                    let mut keys = (thread..keys).step_by(threads).peekable();
                    let mut taken = Vec::new();
                    while keys.peek().is_some() {
                        let mut granted: Vec<Granted> = Vec::new();
                        while granted.iter().all(|one| one.ends > Instant::now() + SPARE)
                            && let Some(key) = keys.next()
                        {
                            granted.push(grant(at, format!("k{round}-{key}")));
                        }
                        taken.extend(take_over(at, granted));
                    }
                    taken
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut late: Vec<Duration> = taken.iter().map(|(late, _)| *late).collect();
    late.sort();
    let refused = taken.iter().filter(|(_, was_refused)| *was_refused).count();
    let (module, middle, last) = (store.module, late[late.len() / 2], late[late.len() - 1]);
    println!(
        "{module}: {refused} of {keys} were refused before; taken over {middle:?} after the end, at most {last:?}"
    );
    assert_eq!(taken.len(), keys);
    (keys, refused)
}
