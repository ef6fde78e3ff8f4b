//! The stores: the contract that each of them keeps, what only one of them must keep, and the servers and proxies of
//! the tests themselves.

mod conformance;
mod differential;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
mod errors;
mod fuzz;
mod mixed;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
mod network;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
mod newer;
#[cfg(feature = "postgres")]
mod postgres;
mod proxy;
mod servers;
#[cfg(feature = "spanner")]
mod spanner;
mod sqlite;
#[path = "../support/mod.rs"]
mod support;
mod twins;
mod upgrade;

/// The workers of this binary begin here.
#[cfg(target_os = "linux")]
#[test]
fn worker() {
    support::worker::run();
}
