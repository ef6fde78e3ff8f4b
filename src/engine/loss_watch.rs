//! The ways to learn that a lock was lost.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex};

use crate::model::loss::Loss;
use crate::sys::deadline::far_from;
use crate::sys::process::ProcessId;

/// Reports the loss of a guard's lock, also to callers that ask after the loss.
///
/// In a forked child nothing is held and nothing can be lost: there it behaves as if the lock was released.
#[derive(Clone)]
pub struct LossWatch(Arc<Cell>);

struct Cell {
    process: ProcessId,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

enum Outcome {
    Pending(Vec<Subscription>),
    Lost(Loss),
    /// Released or handed over: it can't be lost any more.
    Ended,
}

/// A receiver of the loss.
struct Subscription {
    sender: Sender<Loss>,
    /// Dead once the receiver is gone, which the sender can't see. `None`: it stays.
    receiver: Option<Weak<()>>,
}

impl Subscription {
    fn is_over(&self) -> bool {
        self.receiver.as_ref().is_some_and(|receiver| receiver.strong_count() == 0)
    }
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome::Pending(Vec::new())
    }
}

impl LossWatch {
    pub(crate) fn new() -> Self {
        LossWatch(Arc::new(Cell { process: ProcessId::current(), outcome: Mutex::default(), ended: Condvar::new() }))
    }

    /// In a forked child no loss is ever declared, and the mutex may be locked for ever.
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

    /// Waits until the lock is lost; `None` once its release has begun, or it was handed over.
    pub fn wait(&self) -> Option<Loss> {
        self.wait_timeout(Duration::MAX)
    }

    /// The same for at most `timeout`.
    ///
    /// A thread of the library reports a loss by the clock. If the process or the machine was paused, this call may end
    /// before that thread has looked: then only [`is_held`](crate::LockGuard::is_held) says whether the lock is held.
    /// [`sleep`](crate::LockGuard::sleep) checks that.
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
                    if self.0.ended.wait_until(&mut outcome, until).timed_out() && Instant::now() >= until {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether its release or hand-over has begun, so that no loss is reported any more.
    pub(crate) fn has_ended(&self) -> bool {
        !self.is_own_process() || matches!(*self.0.outcome.lock(), Outcome::Ended)
    }

    /// A new channel that receives the loss, at once if the lock is already lost. It is disconnected without a message
    /// when a release of it begins, or it is handed over.
    pub fn receiver(&self) -> LossReceiver {
        let subscribed = Arc::new(());
        LossReceiver { channel: self.subscribe(Some(Arc::downgrade(&subscribed))), _subscribed: subscribed }
    }

    /// The same for a receiver that is kept for as long as the lock is held.
    pub(crate) fn channel(&self) -> Receiver<Loss> {
        self.subscribe(None)
    }

    fn subscribe(&self, receiver: Option<Weak<()>>) -> Receiver<Loss> {
        let (sender, channel) = crossbeam_channel::bounded(1);
        if !self.is_own_process() {
            return channel;
        }
        match &mut *self.0.outcome.lock() {
            Outcome::Lost(loss) => drop(sender.try_send(loss.clone())),
            Outcome::Ended => {}
            Outcome::Pending(subscriptions) => {
                if subscriptions.len() == subscriptions.capacity() {
                    subscriptions.retain(|subscription| !subscription.is_over());
                }
                subscriptions.push(Subscription { sender, receiver });
            }
        }
        channel
    }

    /// Reports the loss; `None`: none can come any more.
    pub(crate) fn end(&self, loss: Option<Loss>) {
        let mut outcome = self.0.outcome.lock();
        if matches!(*outcome, Outcome::Lost(_) | Outcome::Ended) {
            return;
        }
        let settled = loss.map_or(Outcome::Ended, Outcome::Lost);
        if let Outcome::Pending(subscriptions) = std::mem::replace(&mut *outcome, settled)
            && let Outcome::Lost(loss) = &*outcome
        {
            subscriptions.iter().for_each(|subscription| drop(subscription.sender.try_send(loss.clone())));
        }
        self.0.ended.notify_all();
    }
}

impl fmt::Debug for LossWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossWatch").field(&self.get()).finish()
    }
}

/// Receives the loss of one lock, made by [`LossWatch::receiver`]. It works like a reference to a crossbeam receiver,
/// also in `select!`. Clones share its one message.
///
/// If the process or the machine was paused, the message may come up to a second after the loss: until then only
/// [`is_held`](crate::LockGuard::is_held) says whether the lock is held.
///
/// Keep this value: a crossbeam `Receiver` that is cloned out of it may be disconnected without a message once this
/// value and its clones are dropped.
#[derive(Clone, Debug)]
pub struct LossReceiver {
    channel: Receiver<Loss>,
    _subscribed: Arc<()>,
}

impl Deref for LossReceiver {
    type Target = Receiver<Loss>;

    fn deref(&self) -> &Receiver<Loss> {
        &self.channel
    }
}
