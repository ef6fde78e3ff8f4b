//! What only the PostgreSQL store has to keep, on a real server: rows, requests, errors, restarts.
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

/// From then on the session keeps what an exclusive holder asks for. It leaves a free row.
pub(crate) fn warm(store: &Postgres) {
    // Each is sent twice, prepared behind that, and may come once more before that is known.
    for _ in 0..4 {
        let mut a = exclusive(store, "warm");
        granted(store, &mut a);
        renewed(store, &mut a, renewal(Lease::For(Duration::from_secs(600))));
        let _ = release(store, &mut a);
    }
}

/// It must be granted, though a connection has to be made for it, and a server may stand still for longer than that has.
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
