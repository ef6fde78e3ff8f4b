//! How a test reports that it can't run here.

use std::io::{self, Write};

/// Says loudly that the test can't run, which is a failure where everything is required.
#[track_caller]
pub fn skip(what: &str) {
    assert!(!is_required(), "{what}");
    tell(what);
}

/// Reports as loudly that a part of the test can't run. No machine is required to be able to run it.
#[allow(dead_code)] // Not every program of tests has such a part.
pub fn skip_part(what: &str) {
    tell(what);
}

fn tell(what: &str) {
    // Not `eprintln!`, because the output of a passing test would be hidden.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {test}: {what}");
}

/// `LEASEHOLD_TEST_REQUIRE=0` means the same as no variable.
fn is_required() -> bool {
    std::env::var("LEASEHOLD_TEST_REQUIRE").is_ok_and(|value| !["", "0"].contains(&value.as_str()))
}
