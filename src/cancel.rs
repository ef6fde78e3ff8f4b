//! A switch that ends waits.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use parking_lot::Mutex;

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
    // Nothing is ever sent: dropping the only sender wakes all receivers.
    sender: Arc<Mutex<Option<Sender<Infallible>>>>,
    cancelled: Receiver<Infallible>,
}

impl CancelToken {
    /// A token that is not cancelled yet.
    pub fn new() -> Self {
        let (sender, cancelled) = crossbeam_channel::bounded(0);
        CancelToken { sender: Arc::new(Mutex::new(Some(sender))), cancelled }
    }

    /// Ends the waits. Doing it again changes nothing.
    pub fn cancel(&self) {
        self.sender.lock().take();
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

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken::new()
    }
}
