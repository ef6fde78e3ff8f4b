//! Leases in real time: nothing is made older, every key waits for its end, and every answer is compared with the
//! store's own clock. Each key is refused to a rival while its lease runs, and granted as soon as the lease is over.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use leasehold::internals::lease::{End, Holder, Mode, StoreTime};
use leasehold::internals::store::{Acquired, Attempt};

use crate::support::contract::*;
use crate::support::harness::sent;
use crate::support::lateness::{measure, slack};
use crate::support::seed::{seed, sow};
use crate::support::stores::{Opened, Store, soon};

const KEYS: usize = 500;
/// Spanner's emulator handles one transaction at a time, about 25 a second for all tests together. 500 keys, each
/// granted, refused about three times and granted again, would take all of that for at least 100 seconds.
const KEYS_OF_SPANNER: usize = 100;
/// On a busy machine some keys are asked for only after their lease is over, which proves nothing: they are repeated,
/// with a lease twice as long each time.
const TRIES: u32 = 6;
/// As soon as one of the leases has only this much left, the thread that grants goes on to those it has granted: on a
/// busy machine, granting all of them takes longer than the first lease lasts.
const SPARE: Duration = Duration::from_millis(600);
/// A refused rival asks again from this long before it may be granted the lock, and then this often.
const BEFORE: Duration = Duration::from_millis(150);
const AFTER: Duration = Duration::from_millis(40);

/// The number of the key, and how often it was tried before.
type Key = (usize, u32);

/// A holder that nobody renews, when its lease ends on this host's clock, and the rival that waits for that.
struct Granted {
    key: Key,
    holder: Holder,
    ends: Instant,
    rival: Attempt,
    /// When the rival was last refused.
    refused: Option<Instant>,
}

fn end_of(holder: &Holder) -> StoreTime {
    match holder.until {
        End::At(until) => until,
        End::Never => panic!("{holder:?} has no end"),
    }
}

/// Grants a lease of one to four seconds (doubled for each try before), in either mode.
fn grant(at: &Opened, key: Key) -> Granted {
    let name = format!("k{}-{}", key.0, key.1);
    let mut attempt = if fastrand::bool() { exclusive(at, &name) } else { shared(at, &name) };
    attempt.ask.lease = Duration::from_millis(fastrand::u64(1_000..=4_000) << key.1);
    let mut asked = Instant::now();
    let answer = sent(|| {
        asked = Instant::now();
        at.store.acquire(&mut attempt, &soon())
    });
    match answer {
        Acquired::Granted { holder, now, .. } => {
            let until = end_of(&holder);
            assert_eq!(until.since(holder.created), attempt.ask.lease, "{name}: a grant is what was asked for");
            let rival = crate::support::contract::attempt(&*at.second, &name, Mode::Exclusive);
            // If the answer arrives after the end, nothing is left of the lease.
            Granted { key, holder, ends: asked + until.since(now), rival, refused: None }
        }
        other => panic!("{name}: {other:?}"),
    }
}

impl Granted {
    /// Asks once for the key: refused while the lease runs, granted after it. Returns how long after the end it was
    /// granted, by the store's clock.
    fn ask(&mut self, at: &Opened) -> Option<Duration> {
        let (until, key, old) = (end_of(&self.holder), self.rival.key.clone(), &self.holder);
        let mut began = Instant::now();
        let answer = sent(|| {
            began = Instant::now();
            at.second.acquire(&mut self.rival, &soon())
        });
        // How long a lease is respected after its end, as far as its time is known.
        let respected = at.store.info().grace + at.slack + slack(began);
        match answer {
            Acquired::Granted { holder, .. } => {
                assert!(holder.created >= until, "{key}: {holder:?} was let in beside {old:?}");
                assert!(holder.token > old.token, "{key}: {holder:?} after {old:?}");
                let late = holder.created.since(until);
                if let Some(refused) = self.refused {
                    // The lease ran then, and since then no more time has passed for the store than for this host.
                    let most = respected + refused.elapsed();
                    assert!(late <= most, "{key}: granted {late:?} after its end, {most:?} at most");
                }
                Some(late)
            }
            Acquired::Refused(seen) => {
                let stands: Vec<&Holder> = seen.record.holders().map(|(_, holder)| holder).collect();
                assert_eq!(stands, [old]);
                assert!(seen.is_live(old), "{key}: refused at {:?} for {old:?}", seen.times.expired_before);
                let over = seen.times.now.since(until);
                assert!(over <= respected, "{key}: refused {over:?} after its end, {respected:?} at most");
                self.refused = Some(began);
                None
            }
            other => panic!("{key}: {other:?}"),
        }
    }

    /// When to ask next: in the last quarter of the lease and, once refused, from shortly before it may be granted.
    fn next(&self, grace: Duration) -> Instant {
        if self.refused.is_some() {
            return (self.ends + grace - BEFORE).max(Instant::now() + AFTER);
        }
        self.ends - end_of(&self.holder).since(self.holder.created) / 4
    }
}

/// Takes over all of these, each as soon as possible. For each, how long after its end, if it was refused before.
fn take_over(at: &Opened, mut granted: Vec<Granted>) -> Vec<(Key, Option<Duration>)> {
    let grace = at.store.info().grace;
    let mut due: BTreeSet<(Instant, usize)> = granted.iter().map(|one| one.next(grace)).zip(0..).collect();
    let mut taken = Vec::new();
    while let Some((when, number)) = due.pop_first() {
        std::thread::sleep(when.saturating_duration_since(Instant::now()));
        let one = &mut granted[number];
        match one.ask(at) {
            Some(late) => taken.push((one.key, one.refused.map(|_| late))),
            None => drop(due.insert((one.next(grace), number))),
        }
    }
    taken
}

/// Grants and takes over all of these, and repeats each that was not refused first. Returns how late each was.
fn work(at: &Opened, mut keys: VecDeque<Key>) -> Vec<Duration> {
    let mut late = Vec::new();
    while !keys.is_empty() {
        let mut granted: Vec<Granted> = Vec::new();
        while granted.iter().all(|one| one.ends > Instant::now() + SPARE)
            && let Some(key) = keys.pop_front()
        {
            granted.push(grant(at, key));
        }
        for ((key, tries), taken) in take_over(at, granted) {
            match taken {
                Some(taken) => late.push(taken),
                None if tries + 1 < TRIES => keys.push_back((key, tries + 1)),
                None => panic!("k{key} was asked for only after its end, {TRIES} times"),
            }
        }
    }
    late
}

pub fn leases_end_by_the_stores_own_clock(store: &Store) {
    measure();
    let (opened, seed) = ((store.open)(), seed());
    let at = &opened;
    let (keys, threads) = if store.module == "spanner" { (KEYS_OF_SPANNER, 2) } else { (KEYS, 8) };
    let mut late: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    sow(seed, thread as u64);
                    work(at, (thread..keys).step_by(threads).map(|key| (key, 0)).collect())
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    late.sort();
    assert_eq!(late.len(), keys, "each was refused while its lease ran, and granted after it");
    println!("{}: taken over {:?} after the end, at most {:?}", store.module, late[keys / 2], late[keys - 1]);
}
