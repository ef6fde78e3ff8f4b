//! What a waiter may know while it waits.

use std::time::{Duration, Instant};

use crate::model::error::Error;
use crate::model::lock::LockStatus;

/// A wait that goes on, for [`LockRequest::on_wait`](crate::LockRequest::on_wait).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The name of the lock.
    pub key: String,
    /// Who holds it, as far as is known: owner, since when, until when.
    pub holders: Vec<LockStatus>,
    /// For how long this call has waited.
    pub waited: Duration,
    /// When the call gives up; `None`: never.
    pub until: Option<Instant>,
    /// How often the store was asked.
    pub attempts: u32,
    /// How many other waiters of this client come first; with zero this call is the one that asks the store.
    pub place: usize,
    /// A guard of this very client holds the lock: a guard of another thread, or of this one, which
    /// would then wait for itself.
    pub held_by_this_client: bool,
    /// Why the store could not be asked last time, if it could not.
    pub last_error: Option<Error>,
}
