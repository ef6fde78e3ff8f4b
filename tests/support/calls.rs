//! Short ways to call a store and to insist on its answer.

use std::time::Duration;

use leasehold::internals::lease::{Ask, Holder, Labels, Lease, Mode};
use leasehold::internals::store::{Acquired, Attempt, Backend, GrantForm, Renewal, Seen};

use super::stores::soon;

pub const LEASE: Duration = Duration::from_secs(60);

pub fn attempt(form: GrantForm, key: &str, mode: Mode) -> Attempt {
    let grant = form.fresh();
    let [lock_id, owner] = ["id", "owner"].map(|what| format!("{what} {}", grant.as_str()));
    Attempt::new(key, Ask { mode, ..Ask::exclusive(grant, lock_id, Labels::of(owner), LEASE) })
}

/// The holder, and whether the grant existed before this call.
#[track_caller]
pub fn acquired(store: &dyn Backend, attempt: &mut Attempt) -> (Holder, bool) {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Granted { holder, repeated, .. }) => (holder, repeated),
        other => panic!("{:?} was not granted: {other:?}", attempt.key),
    }
}

#[track_caller]
pub fn refused(store: &dyn Backend, attempt: &mut Attempt) -> Seen {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Refused(seen)) => seen,
        other => panic!("{:?} was not refused: {other:?}", attempt.key),
    }
}

pub fn renewal(lease: Lease) -> Renewal {
    Renewal { lease, may_end_endless: false }
}
