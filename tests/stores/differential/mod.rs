//! Each store and the pure rules do the same random operations; every answer and every stored
//! record must be the same.
//!
//! `LEASEHOLD_TEST_OPS` says how many operations, `LEASEHOLD_TEST_SEED` repeats a run.
mod driver;

use crate::support::seed::{seed, setting};
use crate::support::stores::{Store, for_each_store, on};
use driver::Driver;

const OPS: usize = 2_000;
/// With so many, each kind of answer has come with any seed.
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

fn does_what_the_rules_say(store: &Store) {
    let ops = setting("LEASEHOLD_TEST_OPS").unwrap_or(OPS);
    println!("{}: LEASEHOLD_TEST_OPS={ops}", store.module);
    let mut driver = Driver::new(store, seed());
    driver.fill_pages();
    (0..ops).for_each(|_| driver.step());
    // A run that never saw an answer proves nothing about it.
    let unseen = |driver: &Driver| ANSWERS.into_iter().find(|answer| !driver.done().contains_key(answer));
    let mut more = ops..MOST;
    while let Some(answer) = unseen(&driver) {
        more.next().unwrap_or_else(|| panic!("{}: never {answer}", store.module));
        driver.step();
    }
    println!("{}: {:?}", store.module, driver.done());
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
