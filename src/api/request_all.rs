//! A request for all of several locks, and the guard that holds them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::request::LockRequest;
use crate::engine::spec::Patience;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::check_keys;
use crate::model::loss::Loss;
use crate::sys::deadline::far_from;
use crate::sys::drop_bound::DropBound;

type Each<'a> = Box<dyn Fn(LockRequest) -> LockRequest + 'a>;

/// A request for all of several locks, made by [`LockClient::request_all`].
///
/// The locks are taken one after the other in the order of their keys, whatever order they are given in, so two requests
/// with crossed orders never wait for each other. What was taken already is renewed meanwhile, and keeps others
/// waiting; when one is not obtained, all are released.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let guard = client
///     .request_all(["account/7", "account/3"])
///     .each(|request| request.comment("transfer").lease(Duration::from_secs(30)))
///     .wait(Duration::from_secs(5))
///     .lock()?;
/// assert_eq!(guard.guards()[0].key(), "account/3");
/// assert!(guard.is_held());
/// assert_eq!(client.unlock(guard.lock_id())?.len(), 2); // they are one group
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a request does nothing until it is ended by lock() or try_lock()"]
pub struct LockAllRequest<'a> {
    client: &'a LockClient,
    keys: Vec<String>,
    each: Option<Each<'a>>,
    lock_id: Option<String>,
    patience: Patience,
}

impl<'a> LockAllRequest<'a> {
    pub(crate) fn new(client: &'a LockClient, keys: Vec<String>) -> Self {
        LockAllRequest { client, keys, each: None, lock_id: None, patience: Patience::Endless }
    }

    /// Sets what each of the locks is asked for with: owner, comment, lease, [`shared`](LockRequest::shared),
    /// [`cancel`](LockRequest::cancel), [`on_loss`](LockRequest::on_loss) and so on. May be called more than once for each
    /// key. The lock id and the wait of the request are replaced by those of this one. Defaults to nothing.
    pub fn each(mut self, each: impl Fn(LockRequest) -> LockRequest + 'a) -> Self {
        self.each = Some(Box::new(each));
        self
    }

    /// The group that all of them belong to, for [`renew`](LockClient::renew) and [`unlock`](LockClient::unlock).
    /// Defaults to a random id.
    pub fn lock_id(mut self, lock_id: impl Into<String>) -> Self {
        self.lock_id = Some(lock_id.into());
        self
    }

    /// How long [`lock`](Self::lock) waits for all of them together. Defaults to no limit.
    pub fn wait(self, wait: Duration) -> Self {
        self.wait_until(far_from(Instant::now(), wait))
    }

    /// The time until which [`lock`](Self::lock) waits. Defaults to no limit.
    pub fn wait_until(mut self, until: Instant) -> Self {
        self.patience = Patience::until(until);
        self
    }

    /// Waits for all of the locks and holds them.
    ///
    /// # Errors
    /// As [`LockRequest::lock`], for the first lock that was not obtained; `Lost` when the time was over before all were
    /// held at once, since one was lost meanwhile; `InvalidInput` for no key, or a key that is given twice. Nothing is
    /// held then.
    pub fn lock(self) -> Result<LockAllGuard> {
        let requests = self.requests()?;
        loop {
            let mut held = LockAllGuard::new(self.keys.len());
            for key in &requests {
                held.guards.push(self.within(key)?.lock()?);
            }
            // The first ones were renewed all the while; the store may have been away for longer than that helps.
            match held.ensure_held() {
                Ok(()) => return Ok(held),
                Err(error) if self.is_over() => return Err(error),
                Err(_) => drop(held),
            }
        }
    }

    /// Tries once for each; `None` when others hold one of them, and then none is held.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`], for the first lock that was not obtained; `Lost` when one was lost before all were
    /// obtained; `InvalidInput` as for [`lock`](Self::lock), and when a wait is set.
    pub fn try_lock(self) -> Result<Option<LockAllGuard>> {
        if !matches!(self.patience, Patience::Endless) {
            let message = "a wait is set, but try_lock asks once; only lock waits for as long as that says";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let requests = self.requests()?;
        let mut held = LockAllGuard::new(requests.len());
        for key in &requests {
            match self.request(key).try_lock()? {
                Some(guard) => held.guards.push(guard),
                None => return Ok(None),
            }
        }
        held.ensure_held().map(|()| Some(held))
    }
}
