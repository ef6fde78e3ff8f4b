//! The seed of a random test: printed, so that a run can be repeated.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::fmt::Debug;
use std::str::FromStr;

/// A setting of the environment.
pub fn setting<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|why| panic!("{name} is {text:?}: {why:?}")))
}

/// The seed that `LEASEHOLD_TEST_SEED` names, or a new one.
pub fn seed() -> u64 {
    let seed = setting("LEASEHOLD_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("LEASEHOLD_TEST_SEED={seed}");
    seed
}

/// Seeds one of several threads that share a seed, so that what `fastrand` draws there can be repeated.
pub fn sow(seed: u64, thread: u64) {
    fastrand::seed(seed.wrapping_add(thread));
}
