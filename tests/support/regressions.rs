//! What proptest found once.

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

use super::seed::seed;

/// For proptest, which keeps in this file what has failed, to try it first.
pub fn config(regressions: &'static str) -> Config {
    let regressions = FileFailurePersistence::Direct(regressions);
    Config { failure_persistence: Some(Box::new(regressions)), rng_seed: RngSeed::Fixed(seed()), ..Config::default() }
}
