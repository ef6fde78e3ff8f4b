//! What only the MongoDB store has to keep, on a real mongod: documents, requests, errors, the collection.
#[cfg(target_os = "linux")]
mod answers;
mod collection;
mod counts;
#[cfg(target_os = "linux")]
mod deaf;
mod documents;
mod errors;
#[cfg(target_os = "linux")]
mod failover;
#[cfg(target_os = "linux")]
mod failpoints;
mod faults;
mod mixed;
mod rights;
#[cfg(target_os = "linux")]
mod tls;
mod waking;

use leasehold::internals::lease::{Holder, Mode};
use leasehold::internals::store::mongodb::Mongodb;
use leasehold::internals::store::{Attempt, Backend, Consistency, Seen, Which};

use crate::support::contract::attempt;
use crate::support::stores::soon;

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::support::servers::mongod().is_none() {
            return;
        }
    };
}
pub(crate) use needs_server;

fn exclusive(store: &Mongodb, key: &str) -> Attempt {
    attempt(store, key, Mode::Exclusive)
}

fn shared(store: &Mongodb, key: &str) -> Attempt {
    attempt(store, key, Mode::Shared)
}

fn instead_of(store: &Mongodb, key: &str, mode: Mode, old: &Holder) -> Attempt {
    let mut attempt = attempt(store, key, mode);
    attempt.ask.instead_of = Some((old.grant.clone(), old.token));
    attempt
}

fn get(store: &Mongodb, key: &str) -> Seen {
    store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &soon()).unwrap().records.remove(0)
}

fn holders(store: &Mongodb, key: &str) -> Vec<Holder> {
    get(store, key).record.holders().map(|(_, holder)| holder.clone()).collect()
}
