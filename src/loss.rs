//! How a lock was lost, and the ways to hear of it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::lock::LockStatus;
use crate::process::ProcessId;
use crate::rt::deadline::far_from;

/// A lock that was held and is not any more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// How it was lost.
    pub reason: LossReason,
    /// The name of the lock.
    pub key: String,
    /// The fencing token that is out of date now.
    pub fencing_token: u64,
    /// How long it had been held.
    pub held_for: Duration,
}

/// How a lock was lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LossReason {
    /// Somebody else was granted the lock since; the holder, if it still holds.
    TakenOver {
        /// Who holds it now.
        by: Option<LockStatus>,
    },
    /// The lease came to its end without a renewal; the last error of the heartbeat, if there was one.
    Expired {
        /// Why the last heartbeat failed.
        last_error: Option<Error>,
    },
    /// An operator or another process released it.
    ReleasedByOther,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The row, table or file is gone.
    Gone,
    /// The heartbeat thread ended by a panic.
    HeartbeatDied,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {:.1} s", self.reason, self.held_for.as_secs_f64())
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::TakenOver { by: Some(by) } => write!(f, "taken over by {by}"),
            LossReason::TakenOver { by: None } => f.write_str("taken over"),
            LossReason::Expired { last_error: Some(error) } => write!(f, "expired ({error})"),
            LossReason::Expired { last_error: None } => f.write_str("expired"),
            LossReason::ReleasedByOther => f.write_str("released by another"),
            LossReason::MaxHold => f.write_str("held for as long as max_hold allows"),
            LossReason::Gone => f.write_str("the row, table or file of the lock is gone"),
            LossReason::HeartbeatDied => f.write_str("its heartbeat thread died"),
        }
    }
}

/// Tells when a guard's lock is lost. Remembers it, so that a look that comes late sees it too.
///
/// In a forked child nothing is held, so nothing is lost: there it is as if the lock was released.
#[derive(Clone)]
pub struct LossWatch(Arc<Cell>);

struct Cell {
    process: ProcessId,
    outcome: Mutex<Outcome>,
    settled: Condvar,
}

enum Outcome {
    Pending(Vec<Sender<Loss>>),
    Lost(Loss),
    /// Released or handed over: it can't be lost any more.
    Ended,
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome::Pending(Vec::new())
    }
}

impl LossWatch {
    pub(crate) fn new() -> Self {
        LossWatch(Arc::new(Cell { process: ProcessId::current(), outcome: Mutex::default(), settled: Condvar::new() }))
    }

    /// In another process nobody tells it anything, and a thread that is not there may hold its mutex.
    fn is_own_process(&self) -> bool {
        self.0.process.is_current()
    }

    /// The loss, if the lock was lost.
    pub fn get(&self) -> Option<Loss> {
        if !self.is_own_process() {
            return None;
        }
        match &*self.0.outcome.lock() {
            Outcome::Lost(loss) => Some(loss.clone()),
            _ => None,
        }
    }

    /// Waits until the lock is lost; `None` once it was released or handed over instead.
    pub fn wait(&self) -> Option<Loss> {
        self.wait_timeout(Duration::MAX)
    }

    /// The same for at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Loss> {
        if !self.is_own_process() {
            return None;
        }
        let until = far_from(Instant::now(), timeout);
        let mut outcome = self.0.outcome.lock();
        loop {
            match &*outcome {
                Outcome::Lost(loss) => return Some(loss.clone()),
                Outcome::Ended => return None,
                Outcome::Pending(_) => {
                    if self.0.settled.wait_until(&mut outcome, until).timed_out() && Instant::now() >= until {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether it was released or handed over, so that it can't be lost any more.
    #[cfg(feature = "capi")]
    pub(crate) fn has_ended(&self) -> bool {
        !self.is_own_process() || matches!(*self.0.outcome.lock(), Outcome::Ended)
    }

    /// A channel of its own that gets the loss, at once if it came before. It is disconnected
    /// without a message when the lock is released or handed over.
    ///
    /// Take it once and keep it: what a call makes stays for as long as the lock is held, also when the receiver is
    /// gone. [`get`](LossWatch::get) and [`wait_timeout`](LossWatch::wait_timeout) leave nothing.
    pub fn receiver(&self) -> Receiver<Loss> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        if !self.is_own_process() {
            return receiver;
        }
        match &mut *self.0.outcome.lock() {
            Outcome::Lost(loss) => drop(sender.try_send(loss.clone())),
            Outcome::Ended => {}
            Outcome::Pending(senders) => senders.push(sender),
        }
        receiver
    }

    /// The loss, or that none can come any more.
    pub(crate) fn settle(&self, loss: Option<Loss>) {
        let mut outcome = self.0.outcome.lock();
        if matches!(*outcome, Outcome::Lost(_) | Outcome::Ended) {
            return;
        }
        let settled = loss.map_or(Outcome::Ended, Outcome::Lost);
        if let Outcome::Pending(senders) = std::mem::replace(&mut *outcome, settled)
            && let Outcome::Lost(loss) = &*outcome
        {
            senders.iter().for_each(|sender| drop(sender.try_send(loss.clone())));
        }
        self.0.settled.notify_all();
    }
}

impl fmt::Debug for LossWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossWatch").field(&self.get()).finish()
    }
}
