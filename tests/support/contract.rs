//! Short ways to call a store and to insist on its answer.

use leasehold::internals::lease::{End, Holder, Lease, LockRecord, Mode};
use leasehold::internals::store::{Attempt, Backend, Purpose, Released, Renewal, Renewed, Seen};

#[allow(unused_imports)] // Each test binary uses its own part of it.
pub use crate::support::calls::{LEASE, acquired, refused, renewal};
use crate::support::direct;
#[allow(unused_imports)]
pub use crate::support::direct::attempt;
use crate::support::stores::{Opened, soon};

pub fn exclusive(at: &Opened, key: &str) -> Attempt {
    direct::exclusive(&*at.store, key)
}

pub fn shared(at: &Opened, key: &str) -> Attempt {
    direct::shared(&*at.store, key)
}

pub fn instead_of(at: &Opened, key: &str, old: &Holder) -> Attempt {
    direct::instead_of(&*at.store, key, Mode::Exclusive, old)
}

pub fn granted(store: &dyn Backend, attempt: &mut Attempt) -> Holder {
    let (holder, repeated) = acquired(store, attempt);
    assert!(!repeated, "it stood before");
    holder
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
    store.release(attempt, Purpose::Release, &soon()).unwrap()
}

pub fn give_up(store: &dyn Backend, attempt: &mut Attempt) -> Released {
    store.release(attempt, Purpose::GiveUp, &soon()).unwrap()
}

impl Opened {
    /// Lets a lease of [`LEASE`] and the grace pass.
    pub fn expire(&self) {
        self.outlast(LEASE);
    }

    /// Replaces the record by what `edit` makes of it.
    pub fn edit(&self, key: &str, edit: impl FnOnce(&mut LockRecord)) {
        use leasehold::internals::store::Swapped;
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
