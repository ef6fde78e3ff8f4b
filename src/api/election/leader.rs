//! The leader, as any client can see it.

use std::time::SystemTime;

use crate::model::lock::{Lock, LockStatus, Mode};

/// The current leader of an election.
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

    /// The holder of this lock.
    pub(super) fn by(lock: &Lock) -> Leader {
        Leader {
            id: lock.owner().to_owned(),
            host: lock.host().map(str::to_owned),
            fencing_token: lock.fencing_token(),
            since: lock.created(),
        }
    }

    /// The leader's name. Several nodes can have the same name; a fencing token is never used twice.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The host that the leader runs on.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The fencing token of the leader's term.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// When the leader's term began, by this host's wall clock.
    pub fn since(&self) -> SystemTime {
        self.since
    }
}
