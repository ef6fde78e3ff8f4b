//! What happens, for metrics.

use std::time::Duration;

use crate::model::error::Error;
use crate::model::lock::LockStatus;
use crate::model::loss::Loss;

/// Told of everything that a client does; every metrics crate can be fed from it.
///
/// It is called on whatever thread the event happens on, heartbeat threads included, with no lock
/// of the library held. It should return at once. A panic in it is logged and goes no further.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use leasehold::{Event, LockClient, Observer};
///
/// #[derive(Default)]
/// struct Grants(AtomicUsize);
/// impl Observer for Grants {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::Granted { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let grants = Arc::new(Grants::default());
/// let client = LockClient::builder("memory:").observer(grants.clone()).connect()?;
/// drop(client.lock("report")?);
/// assert_eq!(grants.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called once for each event.
    fn event(&self, event: &Event<'_>);
}

/// What an [`Observer`] is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request to the store was answered, failed or ran out of time.
    Request {
        /// What was asked.
        operation: Operation,
        /// The key, if it was about one.
        key: Option<&'a str>,
        /// How long it took.
        took: Duration,
        /// Why it failed, if it did.
        error: Option<&'a Error>,
    },
    /// No answer settled whether a write happened. It is repeated or given up.
    Unknown {
        /// What was asked.
        operation: Operation,
        /// The key.
        key: &'a str,
        /// What is known.
        error: &'a Error,
    },
    /// A lock was granted.
    Granted {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// How long the call had waited.
        waited: Duration,
    },
    /// Others hold the lock.
    Refused {
        /// The key.
        key: &'a str,
        /// Who.
        holders: &'a [LockStatus],
    },
    /// A wait goes on: told after each look at the lock.
    Waited {
        /// The key.
        key: &'a str,
        /// For how long so far.
        waited: Duration,
    },
    /// A heartbeat extended a lease.
    Renewed {
        /// The key.
        key: &'a str,
        /// What was left to the guard when the answer came, before it was extended.
        left: Duration,
    },
    /// Heartbeats fail, and the guard's deadline is near (`warn_before`).
    RenewalLate {
        /// The key.
        key: &'a str,
        /// What is left to the guard.
        left: Duration,
    },
    /// A lock was lost.
    Lost {
        /// How.
        loss: &'a Loss,
    },
    /// A guard released its lock.
    Released {
        /// The key.
        key: &'a str,
        /// For how long it was held.
        held_for: Duration,
    },
}

/// The kinds of request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A grant or a transfer.
    Acquire,
    /// A heartbeat.
    Renew,
    /// A release or a giving up.
    Release,
    /// A read.
    Read,
    /// A compare-and-swap.
    Swap,
    /// The check, description or creation of the schema.
    Schema,
}
