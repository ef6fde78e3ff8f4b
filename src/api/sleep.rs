//! A pause between two steps of the work, which ends early when the work has to end.

use std::time::{Duration, Instant};

use crossbeam_channel::Select;

use crate::api::guard::LockGuard;
use crate::model::loss::Loss;
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::{far_from, ready_by};

/// Why a [sleep](LockGuard::sleep) ended.
#[derive(Clone, Debug)]
#[must_use = "it says whether the lock is still held"]
pub enum Slept {
    /// The time is over, and the lock was held all the while.
    TimeOver,
    /// The token was cancelled; the lock is held.
    Cancelled,
    /// The lock was lost.
    Lost(Loss),
    /// The guard was released meanwhile: by [`close`](crate::LockClient::close), or at the end of an election's term.
    Released,
}

impl LockGuard {
    /// Waits for `time`, but ends at once when the lock is lost or released or `cancel` is cancelled. A loss or a
    /// release is reported rather than a cancel, and each of them rather than the end of the time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use leasehold::{CancelToken, Slept};
    ///
    /// let guard = leasehold::LockClient::connect("memory:")?.lock("sync")?;
    /// let cancel = CancelToken::new(); // cancelled by the SIGTERM handler
    /// for _round in 0..3 {
    ///     // one step of the work
    ///     match guard.sleep(Duration::from_millis(10), &cancel) {
    ///         Slept::TimeOver => {}
    ///         Slept::Lost(loss) => panic!("stop the work at once: {loss}"),
    ///         Slept::Cancelled | Slept::Released => break,
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn sleep(&self, time: Duration, cancel: &CancelToken) -> Slept {
        // In a forked child no loss and no release would end the sleep.
        if !self.hold.is_own_process() {
            return Slept::Released;
        }
        let (watch, until) = (self.loss(), far_from(Instant::now(), time));
        let losses = watch.receiver();
        let mut select = Select::new();
        select.recv(&losses);
        select.recv(cancel.cancelled());
        let ended = ready_by(&mut select, until);
        // Before the look for a loss, since a lock that expires in between was held until now.
        let is_held = self.is_held();
        // After a suspend or a SIGSTOP this thread may come here before the watcher has declared the loss.
        self.hold.expire_when_due();
        match watch.get() {
            Some(loss) => Slept::Lost(loss),
            None if !is_held => Slept::Released,
            None if cancel.is_cancelled() => Slept::Cancelled,
            None if !ended => Slept::TimeOver,
            None => Slept::Released,
        }
    }
}
