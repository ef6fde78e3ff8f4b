//! What happens, for metrics.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lock::LockStatus;
use crate::log;
use crate::loss::Loss;

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

/// The observer of a client, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Observing(pub(crate) Option<Arc<dyn Observer>>);

impl Observing {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(observer) = &self.0 {
            contained("observer", || observer.event(event));
        }
    }

    /// Tells of a request, at once or when the thread's [`Later`] ends.
    pub(crate) fn asked(
        &self,
        operation: Operation,
        key: Option<&str>,
        took: Duration,
        error: Option<(&Error, Asked)>,
    ) {
        if self.0.is_none() {
            return;
        }
        let observing = self.clone();
        let (key, error) = (key.map(str::to_owned), error.map(|(error, asked)| (error.clone(), asked)));
        let tell = move || {
            let key = key.as_deref();
            let failed = error.as_ref().map(|(error, _)| error);
            observing.tell(&Event::Request { operation, key, took, error: failed });
            if let (Some(key), Some((error, Asked::Unknown))) = (key, &error) {
                observing.tell(&Event::Unknown { operation, key, error });
            }
        };
        let mut tell = Some(tell);
        // In the last moments of a thread there is no such place any more.
        let _ = KEPT.try_with(|kept| {
            if let Some(kept) = &mut *kept.borrow_mut() {
                kept.extend(tell.take().map(|tell| Box::new(tell) as Told));
            }
        });
        tell.into_iter().for_each(|tell| tell());
    }
}

/// Whether a request that failed may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Failed,
    Unknown,
}

type Told = Box<dyn FnOnce()>;

thread_local! {
    /// What is told when the outermost [`Later`] of this thread ends.
    static KEPT: RefCell<Option<Vec<Told>>> = const { RefCell::new(None) };
}

/// Keeps what requests of this thread tell until it is dropped. Made before a mutex is taken, it tells after that is
/// free again.
pub(crate) struct Later {
    is_outermost: bool,
}

pub(crate) fn later() -> Later {
    let begin = |kept: &RefCell<Option<Vec<Told>>>| {
        let is_outermost = kept.borrow().is_none();
        if is_outermost {
            *kept.borrow_mut() = Some(Vec::new());
        }
        is_outermost
    };
    Later { is_outermost: KEPT.try_with(begin).unwrap_or(false) }
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.is_outermost {
            let kept = KEPT.try_with(|kept| kept.borrow_mut().take());
            kept.ok().flatten().into_iter().flatten().for_each(|tell| tell());
        }
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer" } else { "none" })
    }
}

/// Runs code of the user's: a panic in it is logged and ends here.
pub(crate) fn contained(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        log::error!(target: "leasehold::callback", "a panic in the {what} was contained");
    }
}
