//! What only the PostgreSQL store has to keep, on a real server: rows, requests, errors, restarts.
mod counts;
mod errors;
mod faults;
mod neighbours;
#[cfg(target_os = "linux")]
mod restarts;
mod rights;
mod table;
mod taken;
#[cfg(target_os = "linux")]
mod tls;
mod turns;

use leasehold::internals::lease::{Holder, Mode};
use leasehold::internals::store::postgres::Postgres;
use leasehold::internals::store::{Attempt, Backend, Consistency, Seen, Which};

use crate::support::contract::attempt;
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

fn exclusive(store: &Postgres, key: &str) -> Attempt {
    attempt(store, key, Mode::Exclusive)
}

fn shared(store: &Postgres, key: &str) -> Attempt {
    attempt(store, key, Mode::Shared)
}

fn instead_of(store: &Postgres, key: &str, mode: Mode, old: &Holder) -> Attempt {
    let mut attempt = attempt(store, key, mode);
    attempt.ask.instead_of = Some((old.grant.clone(), old.token));
    attempt
}

fn get(store: &Postgres, key: &str) -> Seen {
    store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &soon()).unwrap().records.remove(0)
}

fn holders(store: &Postgres, key: &str) -> Vec<Holder> {
    get(store, key).record.holders().map(|(_, holder)| holder.clone()).collect()
}
