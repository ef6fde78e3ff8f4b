//! The Go libraries whose tables ours can share, each rebuilt as a small client: request by request as they were
//! recorded, on a clock of the test's.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(target_os = "linux")]
pub mod member;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "spanner")]
pub mod spanner;

/// Held by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;
