//! A switch that ends waits.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use parking_lot::Mutex;

use crate::sys::deadline::{far_from, is_ready_by};

/// Ends every wait that was started with it, now and later. Clones share one switch.
///
/// # Example
/// ```
/// let client = leasehold::LockClient::connect("memory:")?;
/// let _held = client.lock("report")?;
/// let cancel = leasehold::CancelToken::new();
/// cancel.cancel();
/// let error = client.request("report").cancel(&cancel).lock().unwrap_err();
/// assert_eq!(error.kind(), leasehold::ErrorKind::Cancelled);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CancelToken {
    live: Arc<Mutex<Option<Live>>>,
    cancelled: Receiver<Infallible>,
}

/// What a token has until it is cancelled.
#[derive(Debug)]
struct Live {
    // Nothing is ever sent: dropping the only sender wakes all receivers.
    _sender: Sender<Infallible>,
    followers: Vec<Weak<Mutex<Option<Live>>>>,
}

fn end(live: &Mutex<Option<Live>>) {
    let followers = {
        let mut live = live.lock();
        // The sender is dropped under the mutex: a concurrent call, which finds nothing left to end, returns at once,
        // and the token must be cancelled by then.
        live.take().map(|ended| ended.followers)
    };
    followers.iter().flatten().filter_map(Weak::upgrade).for_each(|follower| end(&follower));
}

impl CancelToken {
    /// A token that is not cancelled yet.
    pub fn new() -> Self {
        // A channel of length 0 would lock a mutex for each look, which a forked child could find locked.
        let (_sender, cancelled) = crossbeam_channel::bounded(1);
        let live = Live { _sender, followers: Vec::new() };
        CancelToken { live: Arc::new(Mutex::new(Some(live))), cancelled }
    }

    /// Ends the waits. Doing it again changes nothing.
    pub fn cancel(&self) {
        end(&self.live);
    }

    /// Has this token cancelled as soon as `other` is. Tokens must never follow each other in a circle.
    pub(crate) fn follow(&self, other: &CancelToken) {
        match &mut *other.live.lock() {
            Some(live) => {
                live.followers.retain(|follower| follower.strong_count() > 0);
                live.followers.push(Arc::downgrade(&self.live));
            }
            None => self.cancel(),
        }
    }

    /// Waits until it is cancelled, for at most `timeout`; whether it is.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        is_ready_by(&self.cancelled, far_from(Instant::now(), timeout))
    }

    /// Cancels the token when the returned value is dropped, in whatever way: by an early return, a panic, an async
    /// task that is aborted while its blocking call waits.
    ///
    /// # Example
    /// ```
    /// let cancel = leasehold::CancelToken::new();
    /// {
    ///     let _cancels = cancel.clone().drop_guard();
    ///     assert!(!cancel.is_cancelled());
    /// }
    /// assert!(cancel.is_cancelled());
    /// ```
    pub fn drop_guard(self) -> CancelOnDrop {
        CancelOnDrop(Some(self))
    }

    /// Whether [`cancel`](CancelToken::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Becomes ready once it is cancelled.
    pub(crate) fn cancelled(&self) -> &Receiver<Infallible> {
        &self.cancelled
    }
}

/// Cancels a [`CancelToken`] when it is dropped; from [`CancelToken::drop_guard`].
#[derive(Debug)]
#[must_use = "dropping it cancels at once"]
pub struct CancelOnDrop(Option<CancelToken>);

impl CancelOnDrop {
    /// Gives the token back without cancelling it.
    pub fn disarm(mut self) -> CancelToken {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(CancelToken::cancel);
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_follows_is_cancelled_with_the_other_and_leaves_nothing_behind() {
        let other = CancelToken::new();
        for _ in 0..100 {
            CancelToken::new().follow(&other);
        }
        let (before, by_itself) = (CancelToken::new(), CancelToken::new());
        before.follow(&other);
        by_itself.follow(&other);
        assert_eq!(other.live.lock().as_ref().map(|live| live.followers.len()), Some(2));
        by_itself.cancel();
        assert!(!other.is_cancelled() && !before.is_cancelled());
        other.cancel();
        let after = CancelToken::new();
        after.follow(&other);
        assert!(before.is_cancelled() && after.is_cancelled());
    }

    /// The first call may still be busy with the tokens that follow.
    #[test]
    fn a_second_cancel_returns_only_when_it_is_cancelled() {
        let (token, follower) = (CancelToken::new(), CancelToken::new());
        follower.follow(&token);
        let held = follower.live.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| token.cancel());
            while token.live.lock().is_some() {
                std::thread::yield_now();
            }
            token.cancel();
            let is_cancelled = token.is_cancelled();
            drop(held);
            assert!(is_cancelled, "it was cancelled, and is not");
        });
        assert!(follower.is_cancelled());
    }
}
