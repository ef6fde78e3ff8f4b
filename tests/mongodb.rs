//! What only the MongoDB store has to keep, on a real mongod: documents, requests, errors, the collection.

mod common;
#[allow(dead_code, unused_imports)]
#[path = "conformance/support.rs"]
mod support;

#[cfg(target_os = "linux")]
#[path = "mongodb/answers.rs"]
mod answers;
#[path = "mongodb/collection.rs"]
mod collection;
#[path = "mongodb/counts.rs"]
mod counts;
#[cfg(target_os = "linux")]
#[path = "mongodb/deaf.rs"]
mod deaf;
#[path = "mongodb/documents.rs"]
mod documents;
#[path = "mongodb/errors.rs"]
mod errors;
#[cfg(target_os = "linux")]
#[path = "mongodb/failpoints.rs"]
mod failpoints;
#[path = "mongodb/faults.rs"]
mod faults;
#[path = "mongodb/rights.rs"]
mod rights;
#[cfg(target_os = "linux")]
#[path = "mongodb/tls.rs"]
mod tls;
#[path = "mongodb/waking.rs"]
mod waking;

use leasehold::internals::lease::{Holder, Mode};
use leasehold::internals::store::mongodb::Mongodb;
use leasehold::internals::store::{Attempt, Backend, Seen, Which};

use common::stores::soon;
use support::attempt;

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::common::servers::mongod().is_none() {
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
    store.read(&Which::Key(key.to_owned()), None, true, &soon()).unwrap().records.remove(0)
}

fn holders(store: &Mongodb, key: &str) -> Vec<Holder> {
    get(store, key).record.holders().map(|(_, holder)| holder.clone()).collect()
}
