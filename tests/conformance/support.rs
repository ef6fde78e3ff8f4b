//! Short ways to call a store and to insist on its answer.

use std::time::Duration;

use leasehold::internals::backend::{Acquired, Attempt, Backend, Released, Renewal, Renewed, Seen};
use leasehold::internals::lease::{Ask, End, Holder, Labels, Lease, LockRecord, Mode};

use crate::common::stores::{Opened, fresh, soon};

pub const LEASE: Duration = Duration::from_secs(60);

pub fn attempt(store: &dyn Backend, key: &str, mode: Mode) -> Attempt {
    let grant = fresh(store);
    let ask = Ask {
        lock_id: format!("id {}", grant.as_str()),
        labels: Labels { owner: format!("owner {}", grant.as_str()), host: None, comment: None },
        grant,
        mode,
        lease: LEASE,
        max_holders: None,
        replace_same_owner: false,
        instead_of: None,
    };
    Attempt::new(key, ask)
}

pub fn exclusive(at: &Opened, key: &str) -> Attempt {
    attempt(&*at.store, key, Mode::Exclusive)
}

pub fn shared(at: &Opened, key: &str) -> Attempt {
    attempt(&*at.store, key, Mode::Shared)
}

pub fn instead_of(at: &Opened, key: &str, old: &Holder) -> Attempt {
    let mut attempt = exclusive(at, key);
    attempt.ask.instead_of = Some((old.grant.clone(), old.token));
    attempt
}

/// The holder, and whether it stood before.
pub fn acquired(store: &dyn Backend, attempt: &mut Attempt) -> (Holder, bool) {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Granted { holder, repeated, .. }) => (holder, repeated),
        other => panic!("{:?} was not granted: {other:?}", attempt.key),
    }
}

pub fn granted(store: &dyn Backend, attempt: &mut Attempt) -> Holder {
    let (holder, repeated) = acquired(store, attempt);
    assert!(!repeated, "it stood before");
    holder
}

pub fn refused(store: &dyn Backend, attempt: &mut Attempt) -> Seen {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Refused(seen)) => seen,
        other => panic!("{:?} was not refused: {other:?}", attempt.key),
    }
}

pub fn renewal(lease: Lease) -> Renewal {
    Renewal { lease, may_end_endless: false }
}

pub fn renewed(store: &dyn Backend, attempt: &mut Attempt, renewal: Renewal) -> End {
    match store.renew(attempt, renewal, &soon()) {
        Ok(Renewed::Until { until, .. }) => until,
        other => panic!("{:?} was not renewed: {other:?}", attempt.key),
    }
}

pub fn lost(store: &dyn Backend, attempt: &mut Attempt) -> Seen {
    match store.renew(attempt, renewal(Lease::For(LEASE)), &soon()) {
        Ok(Renewed::Lost(seen)) => seen,
        other => panic!("{:?} was not lost: {other:?}", attempt.key),
    }
}

pub fn release(store: &dyn Backend, attempt: &mut Attempt) -> Released {
    store.release(attempt, false, &soon()).unwrap()
}

pub fn give_up(store: &dyn Backend, attempt: &mut Attempt) -> Released {
    store.release(attempt, true, &soon()).unwrap()
}

impl Opened {
    /// Lets a lease of [`LEASE`] and the grace pass.
    pub fn expire(&self) {
        self.outlast(LEASE);
    }

    /// Swaps in what `edit` makes of the record.
    pub fn edit(&self, key: &str, edit: impl FnOnce(&mut LockRecord)) {
        use leasehold::internals::backend::Swapped;
        let seen = self.get(key);
        let mut record = raised(&seen.record);
        edit(&mut record);
        let swapped = self.store.swap(&seen, Some(&record), &soon()).unwrap();
        assert!(matches!(swapped, Swapped::Done), "{swapped:?}");
    }

    pub fn holders(&self, key: &str) -> Vec<Holder> {
        self.record(key).holders().map(|(_, h)| h.clone()).collect()
    }
}

pub fn raised(record: &LockRecord) -> LockRecord {
    LockRecord { version: record.version + 1, ..record.clone() }
}
