//! What only the PostgreSQL store must keep, on a real server: rows, requests, errors, restarts.
#[cfg(target_os = "linux")]
mod bloat;
#[cfg(unix)]
mod counts;
mod errors;
#[cfg(target_os = "linux")]
mod exhausted;
mod faults;
mod held_up;
#[cfg(target_os = "linux")]
mod late;
#[cfg(target_os = "linux")]
mod limits;
mod neighbours;
#[cfg(target_os = "linux")]
mod pooler;
mod prepared;
#[cfg(target_os = "linux")]
mod replicas;
#[cfg(target_os = "linux")]
mod restarts;
mod rights;
#[cfg(target_os = "linux")]
mod standbys;
mod sweep;
mod table;
mod taken;
#[cfg(target_os = "linux")]
mod tls;
mod turns;
#[cfg(feature = "serde")]
mod upgrade;
#[cfg(target_os = "linux")]
mod versions;

use std::time::Duration;

use leasehold::internals::lease::{Lease, Mode};
use leasehold::internals::store::postgres::Postgres;
use leasehold::internals::store::{Acquired, Attempt, Backend, Consistency, Renewed, Which};

use crate::support::calls::renewal;
use crate::support::contract::{granted, release, renewed};
use crate::support::direct::{attempt, exclusive, get, holders, instead_of, shared};
use crate::support::postgres::unless_late;
use crate::support::stores::soon;

/// After this the session keeps the statements of an exclusive holder prepared. A free row is left.
pub(crate) fn warm(store: &Postgres) {
    // Each statement is sent twice, prepared after the second time, and may be sent once more before that is known.
    for _ in 0..4 {
        let mut a = exclusive(store, "warm");
        granted(store, &mut a);
        renewed(store, &mut a, renewal(Lease::For(Duration::from_secs(600))));
        let _ = release(store, &mut a);
    }
}

/// Acquires where a new connection is needed, and repeats that: a server may stall for longer than a connection may
/// take.
fn granted_anew(store: &Postgres, attempt: &mut Attempt) {
    let answer = unless_late(|| store.acquire(attempt, &soon()));
    assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
}

/// The same for a renewal.
fn renewed_anew(store: &Postgres, attempt: &mut Attempt, lease: Duration) {
    let answer = unless_late(|| store.renew(attempt, renewal(Lease::For(lease)), &soon()));
    assert!(matches!(answer, Ok(Renewed::Until { .. })), "{answer:?}");
}

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::support::servers::postgres_server().is_none() {
            return;
        }
    };
}
pub(crate) use needs_server;
