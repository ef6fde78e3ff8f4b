//! Calling code of the user's: the observer, when no mutex of ours is held, and whatever may panic.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::error::Error;
use crate::model::event::{Event, Observer, Operation, WaitEnd};
use crate::sys::caught::caught;
use crate::sys::log;

/// The observer of a client, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Observing(pub(crate) Option<Arc<dyn Observer>>);

impl Observing {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(observer) = &self.0 {
            contained("observer", || observer.event(event));
        }
    }

    /// Reports a request, at once or when the thread's [`Later`] ends.
    pub(crate) fn asked(
        &self,
        operation: Operation,
        key: Option<&str>,
        took: Duration,
        error: Option<(&Error, Asked)>,
    ) {
        if self.0.is_none() {
            return;
        }
        let observing = self.clone();
        let (key, error) = (key.map(str::to_owned), error.map(|(error, asked)| (error.clone(), asked)));
        let tell = move || {
            let key = key.as_deref();
            let failed = error.as_ref().map(|(error, _)| error);
            observing.tell(&Event::Request { operation, key, took, error: failed });
            if let (Some(key), Some((error, Asked::Unknown))) = (key, &error) {
                observing.tell(&Event::Unknown { operation, key, error });
            }
        };
        let mut tell = Some(tell);
        // While a thread ends, its thread-local is gone before everything else is dropped.
        let _ = KEPT.try_with(|kept| {
            if let Some(kept) = &mut *kept.borrow_mut() {
                kept.extend(tell.take().map(|tell| Box::new(tell) as Told));
            }
        });
        tell.into_iter().for_each(|tell| tell());
    }
}

/// A wait whose begin was reported to the observer. Its end is reported when this is dropped, also by a panic.
pub(crate) struct WaitSpan {
    observing: Observing,
    key: String,
    began: Instant,
    pub(crate) end: WaitEnd,
}

impl WaitSpan {
    /// A wait of a call that began at `began`.
    pub(crate) fn new(observing: &Observing, key: &str, began: Instant) -> Self {
        observing.tell(&Event::WaitBegan { key });
        WaitSpan { observing: observing.clone(), key: key.to_owned(), began, end: WaitEnd::Failed }
    }
}

impl Drop for WaitSpan {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        self.observing.tell(&Event::WaitEnded { key: &self.key, waited, end: self.end });
    }
}

/// Whether a request that failed may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Failed,
    Unknown,
}

type Told = Box<dyn FnOnce()>;

thread_local! {
    /// What is reported when the outermost [`Later`] of this thread ends.
    static KEPT: RefCell<Option<Vec<Told>>> = const { RefCell::new(None) };
}

/// Keeps what requests of this thread have to report until it is dropped. Made before a mutex is taken, it reports
/// after that is free again.
pub(crate) struct Later {
    is_outermost: bool,
}

pub(crate) fn later() -> Later {
    let begin = |kept: &RefCell<Option<Vec<Told>>>| {
        let is_outermost = kept.borrow().is_none();
        if is_outermost {
            *kept.borrow_mut() = Some(Vec::new());
        }
        is_outermost
    };
    Later { is_outermost: KEPT.try_with(begin).unwrap_or(false) }
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.is_outermost {
            let kept = KEPT.try_with(|kept| kept.borrow_mut().take());
            kept.ok().flatten().into_iter().flatten().for_each(|tell| tell());
        }
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer" } else { "none" })
    }
}

/// Runs code of the user's: a panic in it is logged and ends here.
pub(crate) fn contained(what: &str, run: impl FnOnce()) {
    if caught(run).is_none() {
        log::error!(target: "leasehold::callback", "a panic in the {what} was contained");
    }
}
