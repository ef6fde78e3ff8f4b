//! The Go libraries whose tables ours can share. Each is rebuilt as a small client that sends the requests that were
//! recorded from it, on a clock that the test controls.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(target_os = "linux")]
pub mod member;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "spanner")]
pub mod spanner;

/// Somebody else holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;
