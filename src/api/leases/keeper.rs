//! A lease that is extended by a thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::engine::family::Family;
use crate::engine::hold::Hold;
use crate::engine::loss_watch::LossWatch;
use crate::model::error::{ErrorKind, Result};

/// Extends a lease for its holder for as long as the value lives; from [`Leases::keep`](crate::Leases::keep).
///
/// Dropping it stops the extending and leaves the lease as it is. [`loss`](LeaseKeeper::loss) reports when the lease
/// was expired, revoked or could not be extended in time.
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

    /// Whether the holder still has the lease. Does no I/O. It turns false before anyone could expire the lease, and
    /// then stays false. A revocation is noticed only at the next extension, which comes when a guard's
    /// [next heartbeat](crate::guide::guarantees#the-next-heartbeat) would.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How long it takes until the lease counts as lost if no extension succeeds.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// [`is_held`](LeaseKeeper::is_held), for use with `?`.
    ///
    /// # Errors
    /// `Lost` when the holder does not have the lease any more; `Closed` after its client was closed, which leaves the
    /// lease to its holder until its time is over (nobody extends it, so stop by then), and in a forked child.
    pub fn ensure_held(&self) -> Result<()> {
        self.guard.ensure_held().map_err(|error| match error.kind() {
            ErrorKind::Lost if self.loss().has_ended() => self.guard.closed(),
            _ => error,
        })
    }

    /// Reports the loss of the lease.
    pub fn loss(&self) -> LossWatch {
        self.guard.loss()
    }
}

impl fmt::Debug for LeaseKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKeeper").field("name", &self.name).field("is_held", &self.is_held()).finish()
    }
}
