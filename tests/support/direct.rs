//! Attempts on a store that a test opened itself, and the records in it.

use leasehold::internals::lease::{Holder, Mode};
use leasehold::internals::store::{Attempt, Backend, Consistency, Seen, Which};

use super::calls;
use super::stores::soon;

pub fn attempt(store: &dyn Backend, key: &str, mode: Mode) -> Attempt {
    calls::attempt(store.info().grant_form, key, mode)
}

pub fn exclusive(store: &dyn Backend, key: &str) -> Attempt {
    attempt(store, key, Mode::Exclusive)
}

pub fn shared(store: &dyn Backend, key: &str) -> Attempt {
    attempt(store, key, Mode::Shared)
}

pub fn instead_of(store: &dyn Backend, key: &str, mode: Mode, old: &Holder) -> Attempt {
    let mut attempt = attempt(store, key, mode);
    attempt.ask.instead_of = Some((old.grant.clone(), old.token));
    attempt
}

pub fn get(store: &dyn Backend, key: &str) -> Seen {
    store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &soon()).unwrap().records.remove(0)
}

pub fn holders(store: &dyn Backend, key: &str) -> Vec<Holder> {
    get(store, key).record.holders().map(|(_, holder)| holder.clone()).collect()
}
