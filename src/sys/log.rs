//! The macros of the crate `log`, whose logger is code of the user's: a panic in it ends where it is called, since
//! it must end neither a thread of ours nor a drop.

use super::caught::caught;

/// The panic hook has said what went wrong; logging it would only panic again.
pub(crate) fn contained(log: impl FnOnce()) {
    let _ = caught(log);
}

macro_rules! error_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::error!($($arg)+)) } }
macro_rules! warn_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::warn!($($arg)+)) } }
macro_rules! info_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::info!($($arg)+)) } }
macro_rules! debug_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::debug!($($arg)+)) } }
// Only SQLite has use for it.
#[allow(unused_macros)]
macro_rules! trace_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::trace!($($arg)+)) } }

// Not every store uses each of them.
#[allow(unused_imports)]
pub(crate) use {debug_ as debug, error_ as error, info_ as info, trace_ as trace, warn_ as warn};
