//! The health check, on its own thread, so that a check that hangs delays nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use crate::model::error::Result;
use crate::sys::observing::contained;
use crate::sys::process::ProcessId;
use crate::sys::thread::Thread;

/// Returns whether the node is healthy enough to lead.
pub(super) type Check = Box<dyn FnMut() -> bool + Send>;

/// See the module. At most one check is under way.
pub(super) struct Health {
    check: Arc<Mutex<Check>>,
    ask: Sender<()>,
    asked: Receiver<()>,
    answer: Sender<bool>,
    answers: Receiver<bool>,
    is_pending: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Health {
    pub fn new(check: Check) -> Self {
        let (ask, asked) = crossbeam_channel::bounded(1);
        let (answer, answers) = crossbeam_channel::bounded(1);
        let is_pending = AtomicBool::new(false);
        Health { check: Arc::new(Mutex::new(check)), ask, asked, answer, answers, is_pending, thread: Mutex::default() }
    }

    /// Starts the thread, which ends when this value is dropped.
    pub fn start(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (check, asked, answer) = (self.check.clone(), self.asked.clone(), self.answer.clone());
            *thread = Some(Thread::spawn_for_user("leasehold-check", move || {
                let process = ProcessId::current();
                for () in &asked {
                    let mut is_healthy = false;
                    contained("health check", || is_healthy = check.lock()());
                    // The check may have forked: in the child nothing asks for checks.
                    if !process.is_current() {
                        return std::mem::forget((check, asked, answer));
                    }
                    if answer.send(is_healthy).is_err() {
                        return;
                    }
                }
            })?);
        }
        Ok(())
    }

    /// Asks for a check; false while the last one has not answered yet.
    pub fn ask(&self) -> bool {
        let is_new = !self.is_pending.swap(true, Ordering::SeqCst);
        if is_new {
            let _ = self.ask.try_send(());
        }
        is_new
    }

    /// Drops an answer that nobody waited for, since it may be old.
    pub fn forget(&self) {
        self.answers.try_iter().for_each(|_| self.answered());
    }

    /// The answers. The receiver of one must call [`answered`](Health::answered).
    pub fn answers(&self) -> &Receiver<bool> {
        &self.answers
    }

    /// From now on the next check can be asked for.
    pub fn answered(&self) {
        self.is_pending.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_to_nobody_is_forgotten_and_asked_anew() {
        let mut is_first = true;
        let health = Health::new(Box::new(move || std::mem::take(&mut is_first)));
        health.start().unwrap();
        assert!(health.ask());
        while health.answers().is_empty() {
            std::thread::yield_now();
        }
        assert!(!health.ask(), "its answer is still there");
        health.forget();
        assert!(health.ask());
        assert_eq!(health.answers().recv(), Ok(false));
    }
}
