//! Each store and the pure rules do the same random operations; every answer and every stored
//! record must be the same.
//!
//! `LEASEHOLD_TEST_OPS` says how many operations, `LEASEHOLD_TEST_SEED` repeats a run.

mod common;

#[path = "differential/driver.rs"]
mod driver;

use common::stores::stores;
use driver::Driver;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, but must be a number")))
}

#[test]
fn every_store_does_what_the_rules_say() {
    let ops = number("LEASEHOLD_TEST_OPS").unwrap_or(2_000);
    let seed = number("LEASEHOLD_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    for store in stores() {
        println!("{}: LEASEHOLD_TEST_SEED={seed} LEASEHOLD_TEST_OPS={ops}", store.module);
        let mut driver = Driver::new(&store, seed);
        driver.fill_pages();
        for _ in 0..ops {
            driver.step();
        }
        println!("{}: {:?}", store.module, driver.done());
        // A run that never saw an answer proves nothing about it.
        for answer in ANSWERS {
            assert!(ops < 2_000 || driver.done().contains_key(answer), "{}: never {answer}", store.module);
        }
    }
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
