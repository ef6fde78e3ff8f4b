//! Gives up acquisitions that were not answered, in the background: one thread for all of a client family, which
//! ends when nothing is left to give up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::queue::Queues;
use crate::lease::backoff;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Backend, Purpose, Released};
use crate::sys::cancel::CancelToken;
use crate::sys::caught::caught;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::log;
use crate::sys::thread::Thread;

/// At most this many are kept: of more, the one whose lease ends first is left to end by itself.
const MOST: usize = 4096;

/// See the module.
pub struct Undo {
    backend: Arc<dyn Backend>,
    queues: Arc<Queues>,
    clock: Arc<Clock>,
    request_timeout: Duration,
    /// Ends the thread and its request.
    stop: CancelToken,
    state: Mutex<State>,
    /// One more came.
    more: Sender<()>,
    mores: Receiver<()>,
}

#[derive(Default)]
struct State {
    left: Vec<Left>,
    /// Whether somebody will look again at what is left.
    is_running: bool,
    thread: Option<Thread>,
}

/// What is not given up yet.
struct Left {
    attempt: Attempt,
    /// From then on whatever was granted has ended by itself.
    stands_until: BootTime,
    due: Instant,
    failures: u32,
}

impl Undo {
    pub fn new(backend: Arc<dyn Backend>, queues: Arc<Queues>, clock: Arc<Clock>, request_timeout: Duration) -> Self {
        let (more, mores) = crossbeam_channel::bounded(1);
        let stop = CancelToken::new();
        Undo { backend, queues, clock, request_timeout, stop, state: Mutex::default(), more, mores }
    }

    /// Gives up an acquisition for as long as it could hold: one lease from now on, since a copy of the request may
    /// only arrive now.
    pub fn push(self: &Arc<Self>, attempt: Attempt) {
        let key = attempt.key.clone();
        let stands_until = self.clock.now() + attempt.ask.lease;
        let left = Left { attempt, stands_until, due: Instant::now(), failures: 0 };
        let (surplus, started) = {
            let mut state = self.state.lock();
            state.left.push(left);
            let surplus = if state.left.len() > MOST { state.pop(|left| left.stands_until) } else { None };
            (surplus, self.start(&mut state))
        };
        // A full channel holds one already.
        let _ = self.more.try_send(());
        if let Some(left) = surplus {
            log::warn!(target: "leasehold::client", key:? = left.attempt.key;
                "an unanswered acquire of lock {:?} is not given up, for too many wait for that; if it was granted, it \
                 stands until its lease ends or it is released", left.attempt.key);
        }
        if let Err(error) = started {
            log::warn!(target: "leasehold::client", key:?; "an unanswered acquire of lock {key:?} is given up later: {error}");
        }
    }

    /// Tries again to start a thread that could not be started when there was something to give up.
    pub fn start_again(self: &Arc<Self>) {
        // It was logged before. The next call tries again, and the end needs none.
        let _ = self.start(&mut self.state.lock());
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.left.is_empty() || state.is_running() {
            return Ok(());
        }
        let undo = self.clone();
        let until = Deadline::after(Duration::MAX).or_cancel(&self.stop);
        state.thread = Some(Thread::spawn("leasehold-undo", move || undo.run(&until))?);
        state.is_running = true;
        Ok(())
    }

    /// Waits until `soon` for the end of the work, then ends it.
    pub fn end(&self, soon: Instant, by: Instant) {
        let (thread, is_running) = {
            let mut state = self.state.lock();
            let is_running = state.is_running();
            state.is_running = true;
            (state.thread.take(), is_running)
        };
        if !is_running {
            // No thread could be started for what is left.
            self.run(&Deadline::at(soon));
        }
        if let Some(thread) = thread {
            thread.wait_until(soon);
            self.stop.cancel();
            thread.join_by(by);
        }
        self.stop.cancel();
    }

    fn run(&self, until: &Deadline) {
        while let Some(left) = self.next(until) {
            self.give_up(left, until);
        }
    }

    /// What is to be given up now; `None` when nothing is left, or the time is over.
    fn next(&self, until: &Deadline) -> Option<Left> {
        loop {
            let due = {
                let mut state = self.state.lock();
                let now = self.clock.now();
                state.left.retain(|left| now < left.stands_until);
                if state.left.is_empty() || until.is_over() {
                    let left = std::mem::take(&mut state.left);
                    state.is_running = false;
                    drop(state);
                    if !left.is_empty() {
                        log::warn!(target: "leasehold::client", count = left.len();
                            "unanswered acquires could not be given up; what was granted stands until its lease ends or \
                             it is released");
                    }
                    return None;
                }
                let due = state.left.iter().map(|left| left.due).min()?;
                let now = Instant::now();
                if due <= now {
                    // One that fails must not delay those that were not tried yet.
                    return state.pop(|left| (left.due > now, left.failures, left.due));
                }
                due
            };
            until.wait_for_or(due.saturating_duration_since(Instant::now()), &self.mores);
        }
    }

    /// One request.
    fn give_up(&self, mut left: Left, until: &Deadline) {
        let by = until.clone().within(self.request_timeout);
        let released = ends_hold(|| self.backend.release(&mut left.attempt, Purpose::GiveUp, &by), Released::Unknown);
        let error: Error = match released {
            Ok(Released::Done | Released::Free | Released::HeldByOther(_)) => {
                // Waiters of this process look at once.
                return self.queues.nudge(&left.attempt.key);
            }
            Ok(Released::Unknown(error)) | Err(error) => error,
        };
        if left.failures == 0 {
            log::warn!(target: "leasehold::client", key:? = left.attempt.key;
                "an unanswered acquire of lock {:?} could not be given up yet; if it was granted, it stands until its \
                 lease ends or it is released: {error}", left.attempt.key);
        }
        left.failures = left.failures.saturating_add(1);
        let delay = backoff::retry_delay(left.failures, Duration::MAX, fastrand::f64());
        // A lock without end is tried for ever, but more and more seldom.
        left.due = far_from(Instant::now(), delay * (left.failures / 60).clamp(1, 60));
        self.state.lock().left.push(left);
    }
}

impl State {
    /// Not where its thread died, as for want of memory.
    fn is_running(&self) -> bool {
        self.is_running && !self.thread.as_ref().is_some_and(Thread::is_over)
    }

    fn pop<K: Ord>(&mut self, first: impl Fn(&Left) -> K) -> Option<Left> {
        let at = (0..self.left.len()).min_by_key(|at| first(&self.left[*at]))?;
        Some(self.left.swap_remove(at))
    }
}

/// A call that ends a hold: a panic of the store's counts as no answer, since it must not leave a drop.
pub fn ends_hold<T>(call: impl FnOnce() -> Result<T>, unknown: impl FnOnce(Error) -> T) -> Result<T> {
    let panicked = || Error::new(ErrorKind::Ambiguous, "the store panicked").retryable();
    caught(call).unwrap_or_else(|| Ok(unknown(panicked())))
}

/// Repeats the giving up until it is answered or `deadline` is over.
pub fn give_up(
    backend: &dyn Backend,
    attempt: &mut Attempt,
    deadline: &Deadline,
    request_timeout: Duration,
) -> Result<()> {
    let mut failures = 0;
    loop {
        let by = deadline.clone().within(request_timeout);
        let error = match ends_hold(|| backend.release(attempt, Purpose::GiveUp, &by), Released::Unknown) {
            Ok(Released::Done | Released::Free | Released::HeldByOther(_)) => return Ok(()),
            Ok(Released::Unknown(error)) => error,
            Err(error) => error,
        };
        failures += 1;
        if !deadline.wait_for(backoff::retry_delay(failures, deadline.remaining(), fastrand::f64())) {
            return Err(error);
        }
    }
}
