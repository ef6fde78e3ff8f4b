//! What the README promises, one folder or file for each question; see `tests/README.md`.

mod api;
mod behaviours;
mod bounds;
mod errors;
mod exclusion;
mod fenced;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod remote;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
#[cfg(feature = "tracing")]
mod tracing;
mod waiting;

/// The workers of this binary begin here.
#[cfg(target_os = "linux")]
#[test]
fn worker() {
    support::worker::run();
}
