//! What must do nothing where it comes too late: a server that stood still, or a network that did, may bring a request when
//! whoever sent it counts itself as lost, or is gone.

use std::time::Instant;

use parking_lot::Mutex;

use crate::lease::StoreTime;
use crate::sys::deadline::Deadline;

/// What the server's time was, and when that came.
#[derive(Debug)]
pub struct Clocked(Mutex<(StoreTime, Instant)>);

impl Clocked {
    pub fn just(now: StoreTime) -> Clocked {
        Clocked(Mutex::new((now, Instant::now())))
    }

    /// Notes the server's time that an answer brought.
    pub fn note(&self, now: StoreTime) {
        *self.0.lock() = (now, Instant::now());
    }

    /// The server's time at the deadline, after which nobody waits for the answer. A clock of the server's that was set
    /// forward, or one of ours that stood still, makes it too early: the answer brings the right time, and the next one is
    /// right.
    pub fn not_after(&self, by: &Deadline) -> StoreTime {
        let (now, at) = *self.0.lock();
        now.plus(at.elapsed()).plus(by.remaining())
    }
}
