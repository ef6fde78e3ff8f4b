//! What only the PostgreSQL store has to keep, on a real server: rows, requests, errors, restarts.
mod counts;
mod errors;
mod faults;
mod held_up;
#[cfg(target_os = "linux")]
mod limits;
mod neighbours;
#[cfg(target_os = "linux")]
mod pooler;
#[cfg(target_os = "linux")]
mod replicas;
#[cfg(target_os = "linux")]
mod restarts;
mod rights;
mod table;
mod taken;
#[cfg(target_os = "linux")]
mod tls;
mod turns;
#[cfg(target_os = "linux")]
mod versions;

use leasehold::internals::lease::Mode;
use leasehold::internals::store::postgres::Postgres;
use leasehold::internals::store::{Backend, Consistency, Which};

use crate::support::direct::{attempt, exclusive, get, holders, instead_of, shared};
use crate::support::stores::soon;

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::support::servers::postgres_server().is_none() {
            return;
        }
    };
}
pub(crate) use needs_server;
