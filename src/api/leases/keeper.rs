//! A lease that is extended by a thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::engine::family::Family;
use crate::engine::hold::Hold;
use crate::engine::loss_watch::LossWatch;
use crate::model::error::Result;

/// Extends a lease for its holder for as long as the value lives; from [`Leases::keep`](crate::Leases::keep).
///
/// It is a guard whose drop stops the extending and leaves the lease as it stands. When the lease was expired, revoked
/// or could not be extended in time, [`loss`](LeaseKeeper::loss) tells.
#[must_use = "dropping the keeper stops the extending at once"]
#[clippy::has_significant_drop]
pub struct LeaseKeeper {
    guard: LockGuard,
    name: String,
}

impl LeaseKeeper {
    pub(super) fn new(hold: Arc<Hold>, family: Arc<Family>, name: &str) -> Self {
        LeaseKeeper { guard: LockGuard::new(hold, family), name: name.to_owned() }
    }

    pub(crate) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// The name of the lease.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fencing token of the claim.
    pub fn fencing_token(&self) -> u64 {
        self.guard.fencing_token()
    }

    /// Whether the lease is the holder's. No I/O; false before somebody could expire it, and then it stays so. That
    /// somebody revoked it is heard of with the next extension, which comes as a guard's
    /// [next heartbeat](crate::guide::guarantees#the-next-heartbeat) does.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// What is left until it counts as lost if no extension succeeds.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// [`is_held`](LeaseKeeper::is_held), for use with `?`.
    ///
    /// # Errors
    /// `Lost` when the lease is not the holder's any more, `Closed` in a forked child.
    pub fn ensure_held(&self) -> Result<()> {
        self.guard.ensure_held()
    }

    /// Tells when the lease is lost.
    pub fn loss(&self) -> LossWatch {
        self.guard.loss()
    }
}

impl fmt::Debug for LeaseKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKeeper").field("name", &self.name).field("is_held", &self.is_held()).finish()
    }
}
