//! What the README promises, one folder or file for each question; see `tests/README.md`.

mod api;
mod async_context;
mod behaviours;
mod bounds;
mod exclusion;
mod fenced;
mod input;
mod log_panics;
mod logging;
mod logs;
mod observer;
mod processes;
mod queue;
mod queue_any;
mod remote;
mod restarts;
mod sharing;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
mod threads;
mod wake;

/// The workers of this binary begin here.
#[cfg(target_os = "linux")]
#[test]
fn worker() {
    support::worker::run();
}
