//! One campaign: how it is stopped, and which threads belong to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::model::error::Result;
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::is_ready_by;
use crate::sys::thread::here;

/// How the closure ended.
pub(super) enum WorkEnd {
    Done,
    /// It returned this error.
    Failed(String),
    Panicked,
}

/// The closure of a term that is over.
#[derive(Clone)]
pub(super) struct LeftBehind {
    /// Ready once it has ended.
    pub done: Receiver<WorkEnd>,
    pub standing: Arc<Standing>,
}

/// From the start of `run`, `lead` or `campaign` to its end.
pub(super) struct Standing {
    pub stop: CancelToken,
    /// One of its own threads (that of the closure, for example) has stopped it. Such a stop does not wait, and sets
    /// the closure no limit.
    pub is_stopped_inside: AtomicBool,
    /// It was stopped from outside: the wait for its closure now has a limit.
    pub hurry: CancelToken,
    /// After a stop: by when the closure must end, and by when the release must be answered.
    ends: Mutex<Option<(Instant, Instant)>>,
    /// The result of the release after the stop.
    pub outcome: Mutex<Result<()>>,
    /// The caller that stopped it waits for the outcome.
    pub is_awaited: AtomicBool,
    /// The threads of this campaign: none of them may wait for its end.
    pub crew: Mutex<Vec<usize>>,
    /// The lock is released by a close, so no closure begins. Changed only while `crew` is locked.
    is_closed: AtomicBool,
    pub kind: Kind,
    // Nothing is ever sent: at the end the only sender is dropped.
    over: Receiver<Infallible>,
}

/// Which call campaigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `run` or `lead`, on a thread of its own.
    Run,
    /// `campaign`, on its caller's thread and without a closure.
    Campaign,
}

impl Standing {
    /// What follows these tokens, until `over` is disconnected.
    pub fn new(kind: Kind, cancels: &[CancelToken], over: Receiver<Infallible>) -> Self {
        let (stop, hurry) = (CancelToken::new(), CancelToken::new());
        for cancel in cancels {
            hurry.follow(cancel);
            stop.follow(cancel);
        }
        Standing {
            stop,
            is_stopped_inside: AtomicBool::new(false),
            hurry,
            ends: Mutex::default(),
            outcome: Mutex::new(Ok(())),
            is_awaited: AtomicBool::new(false),
            crew: Mutex::default(),
            is_closed: AtomicBool::new(false),
            kind,
            over,
        }
    }

    /// By when the closure must end, and by when the release must be answered. The first stop sets both, at the latest
    /// to `by`.
    pub fn ends(&self, by: Instant) -> (Instant, Instant) {
        let left = by.saturating_duration_since(Instant::now());
        // After the closure the release needs some time, and after that the thread, too.
        *self.ends.lock().get_or_insert((by - left / 10, by - left / 20))
    }

    /// Whether the current thread belongs to the campaign, and so would wait for itself.
    pub fn is_crew(&self) -> bool {
        self.crew.lock().contains(&here())
    }

    /// Waits for the end until `by`, unless this thread is itself needed for it. Returns whether the time is over.
    pub fn is_late(&self, by: Instant) -> bool {
        !self.is_crew() && !is_ready_by(&self.over, by)
    }

    /// Adds the thread of the closure to the crew. Returns whether the closure may begin.
    pub fn may_work(&self) -> bool {
        let mut crew = self.crew.lock();
        crew.push(here());
        !self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether the closure of a campaign that is being closed runs. If it does not, it will not begin any more.
    pub fn works(&self) -> bool {
        let crew = self.crew.lock();
        let works = crew.len() > 1;
        self.is_closed.fetch_or(!works, Ordering::SeqCst);
        works
    }
}
