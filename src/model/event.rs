//! What happens, for metrics.

use std::time::Duration;

use crate::model::error::{Error, ErrorKind};
use crate::model::lock::LockStatus;
use crate::model::loss::Loss;

/// Gets everything that a client does as events; every metrics crate can be fed from it.
///
/// It is called on the thread on which the event happens, with no mutex of the library held. It should return at once:
/// the time that it takes is added to the call, and before a call returns a lock it is part of the lock's first lease.
/// Heartbeats, whoever finds that the time of a lock is over, a close and a release of several locks leave their
/// events to a separate thread, so that the observer delays no renewal, loss or release; it is one thread for all keys,
/// and the events of each key come in order. While 10,000 events wait for a slow observer, only beginnings and ends of holds, waits and terms are added,
/// up to 100,000; the rest is left out. An observer should not wait for a lock of a client that it observes: that wait
/// has events, too, which would make more. A panic in it is logged and goes no further.
///
/// # Example
/// Two gauges that never drift, since every beginning has one end:
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicI64, Ordering};
/// use leasehold::{Event, LockClient, Observer};
///
/// #[derive(Default)]
/// struct Gauges {
///     held: AtomicI64,
///     waits: AtomicI64,
/// }
/// impl Observer for Gauges {
///     fn event(&self, event: &Event<'_>) {
///         self.held.fetch_add(event.held_change(), Ordering::Relaxed);
///         self.waits.fetch_add(event.waits_change(), Ordering::Relaxed);
///     }
/// }
///
/// let gauges = Arc::new(Gauges::default());
/// let client = LockClient::builder("memory:").observer(gauges.clone()).connect()?;
/// let guard = client.lock("report")?;
/// assert_eq!(gauges.held.load(Ordering::Relaxed), 1);
/// drop(guard);
/// assert_eq!(gauges.held.load(Ordering::Relaxed), 0);
/// # Ok::<(), leasehold::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called once for each event.
    fn event(&self, event: &Event<'_>);
}

/// What an [`Observer`] gets.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request to the store was answered, failed or ran out of time.
    #[non_exhaustive]
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
    /// No answer settled whether a write happened. The write is repeated or given up.
    #[non_exhaustive]
    Unknown {
        /// What was asked.
        operation: Operation,
        /// The key.
        key: &'a str,
        /// What is known.
        error: &'a Error,
    },
    /// A hold begins: a lock was granted, or a [`LeaseKeeper`](crate::LeaseKeeper) took up a lease. It ends by exactly one of
    /// [`Released`](Event::Released), [`Lost`](Event::Lost), [`HandedOver`](Event::HandedOver) and
    /// [`Left`](Event::Left), with the same token. If the lock was released to another call of this client, that call's
    /// hold may begin before the end of the old one is told: go by the token.
    #[non_exhaustive]
    Granted {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// How long the call had waited.
        waited: Duration,
    },
    /// Others hold the lock.
    #[non_exhaustive]
    Refused {
        /// The key.
        key: &'a str,
        /// Who.
        holders: &'a [LockStatus],
    },
    /// A call begins to wait, behind a refusal or trouble with the store. It ends by exactly one
    /// [`WaitEnded`](Event::WaitEnded). A call for any of several keys waits for each of them.
    #[non_exhaustive]
    WaitBegan {
        /// The key.
        key: &'a str,
    },
    /// A wait is over.
    #[non_exhaustive]
    WaitEnded {
        /// The key.
        key: &'a str,
        /// For how long the call had waited.
        waited: Duration,
        /// How it ended.
        end: WaitEnd,
    },
    /// A wait goes on: sent after each look at the lock, and between two looks when a call of `on_wait` or the log's
    /// warning is due (after 30 s, then each minute).
    #[non_exhaustive]
    Waited {
        /// The key.
        key: &'a str,
        /// For how long so far.
        waited: Duration,
    },
    /// A heartbeat extended a lease.
    #[non_exhaustive]
    Renewed {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// What was left to the guard when the answer came, before it was extended.
        left: Duration,
    },
    /// Heartbeats fail, and the guard's deadline is near (`warn_before`).
    #[non_exhaustive]
    RenewalLate {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// What is left to the guard.
        left: Duration,
    },
    /// A lock was lost. The hold is over.
    #[non_exhaustive]
    Lost {
        /// How.
        loss: &'a Loss,
    },
    /// A guard released its lock. The hold is over.
    #[non_exhaustive]
    Released {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// For how long it was held.
        held_for: Duration,
    },
    /// The lock is data from now on, by [`into_lock`](crate::LockGuard::into_lock), or at once by
    /// [`acquire`](crate::LockRequest::acquire); or a keeper ended and its lease goes on. The hold is over, but the
    /// lock or lease is still held in the store.
    #[non_exhaustive]
    HandedOver {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// For how long it was held.
        held_for: Duration,
    },
    /// A guard ended, but no release was answered, or the release is still to come: the grants of a
    /// [`lock_all`](crate::LockClient::lock_all) that did not get all its locks are released in the background. The
    /// hold is over; the lock may remain in the store until its lease ends.
    #[non_exhaustive]
    Left {
        /// The key.
        key: &'a str,
        /// The fencing token of the grant.
        fencing_token: u64,
        /// For how long it was held.
        held_for: Duration,
    },
    /// A lock that was data was released by [`LockClient::release`](crate::LockClient::release). This ends no hold: the
    /// hold ended when the lock was handed over as data, maybe in another process.
    #[non_exhaustive]
    ReleasedData {
        /// The key.
        key: &'a str,
        /// The fencing token that is out of date now.
        fencing_token: u64,
    },
    /// This node has won a term of an [election](crate::Election). The term ends by exactly one
    /// [`TermEnded`](Event::TermEnded). Both are reported by a thread of their own.
    #[non_exhaustive]
    TermBegan {
        /// The name of the election.
        key: &'a str,
        /// The number of the term.
        fencing_token: u64,
    },
    /// A term of this node is over.
    #[non_exhaustive]
    TermEnded {
        /// The name of the election.
        key: &'a str,
        /// The number of the term.
        fencing_token: u64,
        /// For how long this node led, until the loss if there was one.
        led_for: Duration,
        /// How it ended: [`TermEnd::name`](crate::TermEnd::name).
        end: &'static str,
    },
}

impl Event<'_> {
    /// What to add to a gauge of the locks that guards and keepers hold: 1 where a hold begins, -1 where it ends,
    /// else 0.
    pub fn held_change(&self) -> i64 {
        match self {
            Event::Granted { .. } => 1,
            Event::Released { .. } | Event::Lost { .. } | Event::HandedOver { .. } | Event::Left { .. } => -1,
            _ => 0,
        }
    }

    /// What to add to a gauge of waits: 1 where a wait begins, -1 where it ends, else 0.
    pub fn waits_change(&self) -> i64 {
        match self {
            Event::WaitBegan { .. } => 1,
            Event::WaitEnded { .. } => -1,
            _ => 0,
        }
    }

    /// What to add to a gauge of the elections in which this process leads: 1 where a term begins, -1 where it ends,
    /// else 0.
    pub fn leading_change(&self) -> i64 {
        match self {
            Event::TermBegan { .. } => 1,
            Event::TermEnded { .. } => -1,
            _ => 0,
        }
    }

    /// The key that the event is about, if it is about one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Event::Request { key, .. } => *key,
            Event::Lost { loss } => Some(&loss.key),
            Event::Unknown { key, .. }
            | Event::Granted { key, .. }
            | Event::Refused { key, .. }
            | Event::WaitBegan { key }
            | Event::WaitEnded { key, .. }
            | Event::Waited { key, .. }
            | Event::Renewed { key, .. }
            | Event::RenewalLate { key, .. }
            | Event::Released { key, .. }
            | Event::HandedOver { key, .. }
            | Event::Left { key, .. }
            | Event::ReleasedData { key, .. }
            | Event::TermBegan { key, .. }
            | Event::TermEnded { key, .. } => Some(key),
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnd {
    /// The lock was granted.
    Granted,
    /// The call waited for several keys, and another one was granted.
    OtherGranted,
    /// Others held it until the time was over.
    TimedOut,
    /// By a [`CancelToken`](crate::CancelToken).
    Cancelled,
    /// The client was closed.
    Closed,
    /// By any other error, of this kind.
    Failed(ErrorKind),
}

impl WaitEnd {
    /// How a wait ended whose call failed with this error.
    pub(crate) fn by(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut => WaitEnd::TimedOut,
            ErrorKind::Cancelled => WaitEnd::Cancelled,
            ErrorKind::Closed => WaitEnd::Closed,
            kind => WaitEnd::Failed(kind),
        }
    }

    /// A label for metrics, like `timed_out`. It stays the same over versions.
    pub fn name(self) -> &'static str {
        match self {
            WaitEnd::Granted => "granted",
            WaitEnd::OtherGranted => "other_granted",
            WaitEnd::TimedOut => "timed_out",
            WaitEnd::Cancelled => "cancelled",
            WaitEnd::Closed => "closed",
            WaitEnd::Failed(_) => "failed",
        }
    }
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

impl Operation {
    /// A label for metrics, like `acquire`. It stays the same over versions.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Release => "release",
            Operation::Read => "read",
            Operation::Swap => "swap",
            Operation::Schema => "schema",
        }
    }
}
