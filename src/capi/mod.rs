//! The C library: handles, numbered codes, and functions that no panic crosses.
//!
//! Its reference is the header `leasehold.h`, which is generated from the `///` comments in this folder: they are read
//! by C programmers. Outside of its tests it imports only from `model`, `sys` and `api`. No other folder of `src` has
//! `unsafe`.

mod admin;
mod asked;
mod assertion;
mod callback;
mod cancel;
mod client;
mod client_data;
mod client_lock;
mod code;
mod election;
mod error;
mod event;
mod failure;
mod filter;
mod guard;
mod guards;
mod handle;
mod keeper;
mod leadership;
mod leases;
mod list;
mod lock;
mod logging;
mod loss;
mod request;
mod status;
mod text;
#[cfg(all(test, feature = "_internals"))]
mod trouble_tests;
mod version;
mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use code::Code;
use failure::{Failure, Outcome};

use crate::sys::thread::lives;

/// Runs the body of an exported function that can fail: no panic leaves it, and a failure is kept for the
/// `leasehold_error_` functions of this thread.
fn call(body: impl FnOnce() -> Outcome) -> Code {
    // During the end of the thread, where C may still free handles, `lives` knows the answer only if it was called
    // before.
    lives();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Code::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::panicked(panic),
    };
    failure::keep(failure)
}

/// An argument that C passes as pointer and length.
macro_rules! text_arg {
    ($text:ident, $len:ident) => {
        // SAFETY: the header asks the caller for `len` readable bytes; NULL is refused.
        unsafe { $crate::capi::text::read(stringify!($text), $text, $len) }?
    };
}

/// A pointer of the caller's, to which a result is written.
macro_rules! out_arg {
    ($out:ident) => {
        // SAFETY: the header asks the caller for a place that can be written to; NULL is refused.
        unsafe { $crate::capi::text::Out::new(stringify!($out), $out) }?
    };
}

/// The same for a struct, whose size the caller passes, too.
macro_rules! sized_out_arg {
    ($out:ident, $size:ident, $first_size:expr) => {
        // SAFETY: the header asks the caller for this many bytes that can be written to; NULL is refused.
        unsafe { $crate::capi::text::SizedOut::new(stringify!($out), $out, $size, $first_size) }?
    };
}

use {out_arg, sized_out_arg, text_arg};

/// A time in milliseconds from C: zero has no special meaning; `UINT64_MAX` is for ever.
fn millis(ms: u64) -> Duration {
    if ms == u64::MAX { Duration::MAX } else { Duration::from_millis(ms) }
}

/// Milliseconds for C, rounded down; `UINT64_MAX` for a time without end.
fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time that C gave in milliseconds since 1970.
fn unix_time(ms: u64) -> Result<SystemTime, Failure> {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    at.ok_or_else(|| Failure::new(Code::InvalidInput, format!("unix_ms is {ms}, later than any clock goes")))
}

/// Waits until `done` returns true, which another thread brings about.
#[cfg(test)]
#[track_caller]
fn wait_until(mut done: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_leaves_a_call() {
        assert_eq!(call(|| Ok(())), Code::Ok);
        assert_eq!(call(|| panic!("as a test")), Code::Panic);
        assert_eq!(failure::message(), "a bug in the library: as a test");
        let made = "made of parts".to_owned();
        assert_eq!(call(|| std::panic::panic_any(made)), Code::Panic);
        assert_eq!(failure::message(), "a bug in the library: made of parts");
        // A payload whose drop panics as well.
        struct Worse;
        impl Drop for Worse {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        assert_eq!(call(|| std::panic::panic_any(Worse)), Code::Panic);
        assert_eq!(failure::message(), "a bug in the library: it panicked");
    }

    #[test]
    fn times_without_end_are_kept() {
        assert_eq!(as_millis(millis(u64::MAX)), u64::MAX);
        assert_eq!(as_millis(millis(1500)), 1500);
    }
}
