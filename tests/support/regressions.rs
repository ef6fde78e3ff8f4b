//! Failures that proptest found earlier.

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

use super::seed::seed;

/// A configuration for proptest, which keeps in this file what has failed, and tries that first.
pub fn config(regressions: &'static str) -> Config {
    let regressions = FileFailurePersistence::Direct(regressions);
    Config { failure_persistence: Some(Box::new(regressions)), rng_seed: RngSeed::Fixed(seed()), ..Config::default() }
}
