//! Each store and the pure rules do the same random operations; every answer and every stored
//! record must be the same.
//!
//! `LEASEHOLD_TEST_OPS` says how many operations, `LEASEHOLD_TEST_SEED` repeats a run.
mod driver;

use crate::support::seed::{seed, setting};
use crate::support::stores::{Store, for_each_store, on};
use driver::Driver;

/// Each lane has a store and a part of the operations, and they run concurrently: most of the time is spent on the way
/// to a server.
const LANES: usize = 4;
/// After this many steps, each kind of answer has come with any seed.
const MOST: usize = 10_000;

macro_rules! does_what_the_rules_say {
    ($store:ident) => {
        #[test]
        fn $store() {
            on(stringify!($store), does_what_the_rules_say);
        }
    };
}
for_each_store!(does_what_the_rules_say);

/// Spanner's emulator takes twenty times as long for each operation as the others, so it does a third of them in each
/// run.
fn ops(store: &Store) -> usize {
    setting("LEASEHOLD_TEST_OPS").unwrap_or(if store.module == "spanner" { 700 } else { 2_000 })
}

fn does_what_the_rules_say(store: &Store) {
    let (ops, first) = (ops(store), seed());
    println!("{}: LEASEHOLD_TEST_OPS={ops}", store.module);
    let lane = |lane: usize| {
        let mut driver = Driver::new(store, first.wrapping_add(lane as u64));
        if lane == 0 {
            driver.fill_pages();
        }
        (lane..ops).step_by(LANES).for_each(|_| driver.step());
        driver
    };
    let mut drivers: Vec<Driver> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|n| scope.spawn(move || lane(n))).collect();
        lanes.into_iter().map(|lane| lane.join().expect("as the rules say")).collect()
    });
    // A run that never had some answer proves nothing about it.
    let is_seen = |answer: &str, drivers: &[Driver]| drivers.iter().any(|driver| driver.done().contains_key(answer));
    let mut more = ops..MOST;
    while let Some(answer) = ANSWERS.into_iter().find(|answer| !is_seen(answer, &drivers)) {
        more.next().unwrap_or_else(|| panic!("{}: never {answer}", store.module));
        drivers[0].step();
    }
    drivers.iter().for_each(|driver| println!("{}: {:?}", store.module, driver.done()));
}

const ANSWERS: [&str; 15] = [
    "granted",
    "repeated",
    "refused",
    "renewed",
    "renewed for ever",
    "lost",
    "released",
    "free",
    "held by other",
    "swapped",
    "changed",
    "deleted",
    "read",
    "read pages",
    "granted over a deleted row",
];
