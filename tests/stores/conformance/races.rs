//! Eight threads compete for one key.

use std::sync::{Arc, Barrier};

use leasehold::internals::store::{Acquired, Attempt, Backend, Swapped};

use crate::support::contract::*;
use crate::support::harness::sent;
use crate::support::stores::{Opened, Store, soon};

const ROUNDS: usize = 20;

/// What each thread got. They all begin at once, and use the two clients alternately.
fn race<T: Send>(at: &Opened, run: impl Fn(usize, &dyn Backend) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|i| {
                let by: Arc<dyn Backend> = if i % 2 == 0 { at.store.clone() } else { at.second.clone() };
                let (start, run) = (&start, &run);
                scope.spawn(move || {
                    start.wait();
                    run(i, &*by)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The token, if the lock was granted.
fn token(by: &dyn Backend, mut attempt: Attempt) -> Option<u64> {
    match sent(|| by.acquire(&mut attempt, &soon())) {
        Acquired::Granted { holder, .. } => Some(holder.token),
        Acquired::Refused(_) => None,
        Acquired::Unknown(error) => panic!("{error:?}"),
    }
}

fn distinct(tokens: Vec<Option<u64>>) -> Vec<u64> {
    let mut granted: Vec<u64> = tokens.into_iter().flatten().collect();
    granted.sort();
    let all = granted.len();
    granted.dedup();
    assert_eq!(granted.len(), all, "no two grants have one token");
    granted
}

pub fn one_of_eight_is_granted(store: &Store) {
    let at = (store.open)();
    for round in 0..ROUNDS {
        let key = format!("k{}", round / 4);
        let tokens = distinct(race(&at, |_, by| token(by, exclusive(&at, &key))));
        let held = at.holders(&key);
        assert_eq!((tokens.len(), held.len()), (1, 1));
        assert_eq!(held[0].token, tokens[0]);
        // The next race is for a lock whose holder has expired.
        at.expire();
    }
}

pub fn four_of_eight_share(store: &Store) {
    let at = (store.open)();
    for _ in 0..ROUNDS {
        let run = |_, by: &dyn Backend| {
            let mut attempt = shared(&at, "k");
            attempt.ask.max_holders = Some(4);
            token(by, attempt)
        };
        let tokens = distinct(race(&at, run));
        let held: Vec<u64> = at.holders("k").iter().map(|h| h.token).collect();
        assert_eq!((tokens.len(), held), (4, tokens));
        at.expire();
    }
}

pub fn one_of_eight_transfers(store: &Store) {
    let at = (store.open)();
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        let old = granted(&*at.store, &mut exclusive(&at, &key));
        let tokens = distinct(race(&at, |_, by| token(by, instead_of(&at, &key, &old))));
        let held = at.holders(&key);
        assert_eq!((tokens.len(), held.len()), (1, 1));
        assert!(held[0].token == tokens[0] && tokens[0] > old.token);
    }
}

pub fn copies_of_one_attempt_are_one_grant(store: &Store) {
    let at = (store.open)();
    for round in 0..ROUNDS {
        let attempt = exclusive(&at, &format!("k{round}"));
        let copies: Vec<_> = (0..8).map(|_| std::sync::Mutex::new(Some(attempt.without_native()))).collect();
        let tokens = race(&at, |i, by| token(by, copies[i].lock().unwrap().take().unwrap()));
        let held = at.holders(&attempt.key);
        assert_eq!(held.len(), 1);
        assert!(tokens.iter().all(|token| *token == Some(held[0].token)), "{tokens:?}");
    }
}

pub fn one_of_eight_swaps(store: &Store) {
    let at = (store.open)();
    granted(&*at.store, &mut exclusive(&at, "k"));
    for _ in 0..ROUNDS {
        let seen: Vec<_> = (0..8).map(|_| std::sync::Mutex::new(at.get("k"))).collect();
        let run = |i: usize, by: &dyn Backend| {
            let seen = seen[i].lock().unwrap();
            let mut new = raised(&seen.record);
            // A change that is there already may be tried twice.
            let pin = format!("pin {i}");
            if !new.pins.remove(&pin) {
                new.pins.insert(pin);
            }
            matches!(sent(|| by.swap(&seen, Some(&new), &soon())), Swapped::Done)
        };
        let pins = at.record("k").pins.len();
        assert_eq!(race(&at, run).into_iter().filter(|done| *done).count(), 1);
        assert!(at.record("k").pins.len() <= pins + 1);
    }
}
