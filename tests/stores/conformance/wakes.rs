//! Waking waiters. A store that can't do so says it, and then each of these tests is done.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use leasehold::internals::lease::Lease;
use leasehold::internals::store::Renewal;
use leasehold::internals::sys::deadline::Deadline;

use crate::support::contract::*;
use crate::support::harness::within;
use crate::support::stores::{Opened, Store, soon};
use crate::support::wait::wait_until;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Watches the keys on the first client. Returns `None` if the store can't report, which then drops the channel.
fn watch(store: &Store, at: &Opened, keys: &[&str]) -> Option<Receiver<String>> {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let mut watching = None;
    // PostgreSQL's listener reports that it can't if it does not hear itself within a second, for example if the server
    // stalls.
    wait_until("it tells, or need not", || {
        let (to, told) = crossbeam_channel::unbounded();
        let tells = at.store.wake(&keys, to, &soon()).unwrap();
        watching = Some((tells, told));
        tells || !store.tells || store.module != "postgres"
    });
    let (tells, told) = watching.unwrap();
    assert_eq!(tells, store.tells, "whether it tells waiters is in the table of stores");
    if tells {
        return Some(told);
    }
    assert_eq!(told.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected), "it can't tell and keeps the channel");
    None
}

/// The same for one key, returned once no earlier write is reported any more: MongoDB also reports the last writes
/// before.
fn watch_from_now(store: &Store, at: &Opened, key: &str) -> Option<Receiver<String>> {
    let told = watch(store, at, &[key, "mark"])?;
    let mut mark = exclusive(at, "mark");
    granted(&*at.second, &mut mark);
    release(&*at.second, &mut mark);
    assert_told(&told, "mark");
    Some(told)
}

/// Asserts that `key` is reported soon, whatever else is reported.
#[track_caller]
fn assert_told(told: &Receiver<String>, key: &str) {
    let by = Instant::now() + LONG;
    while told.recv_deadline(by).expect("a key that is told") != key {}
}

#[track_caller]
fn assert_over(told: &Receiver<String>) {
    let by = Instant::now() + LONG;
    while told.recv_deadline(by).map_err(|error| assert!(error.is_disconnected(), "it goes on")).is_ok() {}
}

pub fn a_release_is_told(store: &Store) {
    let at = (store.open)();
    let [mut a, mut b] = [exclusive(&at, "k"), exclusive(&at, "other")];
    granted(&*at.second, &mut a);
    granted(&*at.second, &mut b);
    let Some(told) = watch(store, &at, &["k", "none"]) else { return };
    release(&*at.second, &mut b);
    release(&*at.second, &mut a);
    let by = Instant::now() + LONG;
    // Keys that were not asked for are not reported.
    assert_eq!(told.recv_deadline(by).as_deref(), Ok("k"));
    // The row of this key did not exist yet.
    let mut c = exclusive(&at, "none");
    granted(&*at.second, &mut c);
    release(&*at.second, &mut c);
    assert_told(&told, "none");
    // Once more, and by the client that watches.
    let mut d = exclusive(&at, "k");
    granted(&*at.store, &mut d);
    release(&*at.store, &mut d);
    assert_told(&told, "k");
}

pub fn a_shared_holder_that_goes_is_told(store: &Store) {
    let at = (store.open)();
    let (mut a, mut b) = (shared(&at, "k"), shared(&at, "k"));
    granted(&*at.second, &mut a);
    granted(&*at.second, &mut b);
    let Some(told) = watch_from_now(store, &at, "k") else { return };
    release(&*at.second, &mut a);
    assert_told(&told, "k");
    release(&*at.second, &mut b);
    assert_told(&told, "k");
}

pub fn an_end_that_comes_sooner_is_told(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.second, &mut a);
    renewed(&*at.second, &mut a, renewal(Lease::Forever));
    let mut long = exclusive(&at, "transferred");
    granted(&*at.second, &mut long);
    renewed(&*at.second, &mut long, renewal(Lease::For(10 * LEASE)));
    let Some(told) = watch(store, &at, &["k", "transferred"]) else { return };
    renewed(&*at.second, &mut a, Renewal { lease: Lease::For(LEASE), may_end_endless: true });
    assert_told(&told, "k");
    // A transfer to a shorter lease.
    let old = at.holders("transferred").remove(0);
    granted(&*at.second, &mut instead_of(&at, "transferred", &old));
    assert_told(&told, "transferred");
}

pub fn a_row_that_is_deleted_or_swapped_is_told(store: &Store) {
    let at = (store.open)();
    granted(&*at.second, &mut exclusive(&at, "swapped"));
    granted(&*at.second, &mut exclusive(&at, "deleted"));
    let Some(told) = watch(store, &at, &["swapped", "deleted"]) else { return };
    at.edit("swapped", |record| record.exclusive = None);
    assert_told(&told, "swapped");
    at.second.swap(&at.get("deleted"), None, &soon()).unwrap();
    assert_told(&told, "deleted");
}

pub fn a_new_set_takes_the_place_of_the_old_one(store: &Store) {
    let at = (store.open)();
    let keys = ["a", "b", "c"];
    let mut held = keys.map(|key| exclusive(&at, key));
    held.iter_mut().for_each(|a| drop(granted(&*at.second, a)));
    let Some(first) = watch(store, &at, &["a", "b"]) else { return };
    let Some(second) = watch(store, &at, &["b", "c"]) else { panic!("it can tell no longer") };
    assert_over(&first);
    held.iter_mut().for_each(|a| drop(release(&*at.second, a)));
    let mut heard = [second.recv_timeout(LONG).unwrap(), second.recv_timeout(LONG).unwrap()];
    heard.sort();
    assert_eq!(heard, ["b", "c"]);
}

/// Either the old channel or the new one reports: nothing is lost while the set changes.
pub fn a_key_of_both_sets_is_told_without_a_gap(store: &Store) {
    let at = (store.open)();
    for round in 0..10 {
        let mut a = exclusive(&at, "k");
        granted(&*at.second, &mut a);
        let Some(first) = watch(store, &at, &["k"]) else { return };
        let second = std::thread::scope(|scope| {
            let releasing = scope.spawn(|| release(&*at.second, &mut a));
            let second = watch(store, &at, &["k", &format!("another-{round}")]).expect("it can tell");
            releasing.join().unwrap();
            second
        });
        let mut both = crossbeam_channel::Select::new();
        both.recv(&first);
        both.recv(&second);
        let by = Instant::now() + LONG;
        while first.try_recv().or_else(|_| second.try_recv()).is_err() {
            assert!(Instant::now() < by, "the release was not told");
            let _ = both.ready_timeout(Duration::from_millis(5));
        }
    }
}

pub fn a_set_without_the_key_that_was_told_last_goes_on(store: &Store) {
    let at = (store.open)();
    let mut held = ["a", "b"].map(|key| exclusive(&at, key));
    held.iter_mut().for_each(|a| drop(granted(&*at.second, a)));
    let Some(first) = watch(store, &at, &["a", "b"]) else { return };
    release(&*at.second, &mut held[0]);
    assert_told(&first, "a");
    let second = watch(store, &at, &["b"]).expect("it can tell");
    release(&*at.second, &mut held[1]);
    assert_told(&second, "b");
}

pub fn an_empty_set_ends_the_telling(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.second, &mut a);
    let Some(told) = watch(store, &at, &["k"]) else { return };
    watch(store, &at, &[]);
    assert_over(&told);
    // The watching can begin again.
    let told = watch_from_now(store, &at, "k").expect("it can tell");
    release(&*at.second, &mut a);
    assert_told(&told, "k");
}

pub fn nobody_who_listens_is_no_harm(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.second, &mut a);
    if watch(store, &at, &["k"]).is_none() {
        return;
    }
    release(&*at.second, &mut a);
    granted(&*at.second, &mut a);
    let told = watch(store, &at, &["k"]).expect("it can tell");
    release(&*at.second, &mut a);
    assert_told(&told, "k");
}

/// A call of `wake` also returns by its deadline.
pub fn a_wake_whose_deadline_is_over_returns(store: &Store) {
    let at = (store.open)();
    let (to, _told) = crossbeam_channel::unbounded();
    let wake = || at.store.wake(&["k".to_owned()], to, &Deadline::after(Duration::ZERO));
    let _ = within("it", Duration::from_secs(5), wake);
}
