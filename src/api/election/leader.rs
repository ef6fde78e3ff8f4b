//! Who leads, as anyone may see it.

use std::time::SystemTime;

use crate::model::lock::{Lock, LockStatus, Mode};

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    id: String,
    host: Option<String>,
    fencing_token: u64,
    since: SystemTime,
}

impl Leader {
    /// The leader among these holders.
    pub(super) fn of(holders: &[LockStatus]) -> Option<Leader> {
        let leads = |holder: &&LockStatus| holder.mode() == Mode::Exclusive && !holder.is_expired();
        holders.iter().find(leads).map(|holder| Leader {
            id: holder.owner().to_owned(),
            host: holder.host().map(str::to_owned),
            fencing_token: holder.fencing_token(),
            since: holder.created(),
        })
    }

    /// The one who holds this lock.
    pub(super) fn by(lock: &Lock) -> Leader {
        Leader {
            id: lock.owner().to_owned(),
            host: lock.host().map(str::to_owned),
            fencing_token: lock.fencing_token(),
            since: lock.created(),
        }
    }

    /// By what name it stands. Names may repeat: a token does not.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its host.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The fencing token of its term.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// When its term began, by this host's wall clock.
    pub fn since(&self) -> SystemTime {
        self.since
    }
}
