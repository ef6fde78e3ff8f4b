//! Marks at which a test stops a thread of the library, at the moments where being stopped could hurt. Without the
//! feature `_internals` a mark is nothing at all.

/// Marks this place by a name that no other has: `pause!("renew.answered");`. No mutex may be locked here that others
/// wait for without a bound.
macro_rules! pause {
    ($name:literal) => {
        #[cfg(feature = "_internals")]
        $crate::sys::pause::stop::reach($name);
    };
}
pub(crate) use pause;

/// The side of the tests.
#[cfg(feature = "_internals")]
pub mod stop {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread::ThreadId;

    use crossbeam_channel::{Receiver, Sender};
    use parking_lot::Mutex;

    /// Whether any test watches the marks; if none does, a mark only calls the visitor, if there is one, and reads
    /// this.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

    /// Is called for each mark that a thread comes to, on that thread, which goes on when the call returns.
    type Visitor = Box<dyn Fn(&'static str) + Send + Sync>;
    static VISITOR: OnceLock<Visitor> = OnceLock::new();

    /// Has `visitor` called for each mark, until the process ends. A process can have only one.
    pub fn on_each(visitor: impl Fn(&'static str) + Send + Sync + 'static) {
        let is_first = VISITOR.set(Box::new(visitor)).is_ok();
        assert!(is_first, "another one is told of the marks of this process");
    }

    thread_local! {
        /// Set in the thread that was stopped, until its next mark or its end.
        static GOES_ON: RefCell<Option<GoesOn>> = const { RefCell::new(None) };
    }

    struct GoesOn(Arc<AtomicBool>);

    impl Drop for GoesOn {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    struct Watched {
        stop_at: &'static str,
        /// `None` once the first thread has come to `stop_at`.
        let_go: Option<Receiver<Infallible>>,
        /// `None` once that thread has come to its next mark.
        let_go_again: Option<Receiver<Infallible>>,
        reached: BTreeMap<&'static str, usize>,
        stopped: Option<ThreadId>,
        goes_on: Arc<AtomicBool>,
    }

    /// A thread comes to this mark.
    pub fn reach(name: &'static str) {
        VISITOR.get().into_iter().for_each(|visitor| visitor(name));
        if !IS_WATCHED.load(Ordering::SeqCst) {
            return;
        }
        // Dropped last: a test that sees it ends this watch, and may begin the next one at once.
        let went_on = GOES_ON.take();
        let (let_go, goes_on) = {
            let mut watched = WATCHED.lock();
            let Some(watched) = &mut *watched else { return };
            *watched.reached.entry(name).or_default() += 1;
            // Not the thread that an earlier watch has stopped.
            if went_on.as_ref().is_some_and(|GoesOn(of)| Arc::ptr_eq(of, &watched.goes_on)) {
                (watched.let_go_again.take(), None)
            } else {
                let let_go = watched.let_go.take_if(|_| watched.stop_at == name);
                watched.stopped = watched.stopped.or(let_go.is_some().then(|| std::thread::current().id()));
                (let_go, Some(watched.goes_on.clone()))
            }
        };
        drop(went_on);
        let Some(let_go) = let_go else { return };
        // Until the only sender is dropped.
        let _ = let_go.recv();
        GOES_ON.set(goes_on.map(GoesOn));
    }

    /// Stops the first thread that comes to a mark, for as long as this value lives. One in a process at a time.
    #[derive(Debug)]
    pub struct Stop {
        name: &'static str,
        let_go: Option<Sender<Infallible>>,
        let_go_again: Option<Sender<Infallible>>,
    }

    impl Stop {
        /// Stops the first thread that comes to this mark from now on.
        pub fn at(name: &'static str) -> Stop {
            let (first, let_go) = crossbeam_channel::bounded(0);
            let (second, let_go_again) = crossbeam_channel::bounded(0);
            let watched = Watched {
                stop_at: name,
                let_go: Some(let_go),
                let_go_again: Some(let_go_again),
                reached: BTreeMap::new(),
                stopped: None,
                goes_on: Arc::default(),
            };
            assert!(WATCHED.lock().replace(watched).is_none(), "another test watches the marks of this process");
            IS_WATCHED.store(true, Ordering::SeqCst);
            Stop { name, let_go: Some(first), let_go_again: Some(second) }
        }

        /// Whether a thread has come to the mark.
        pub fn is_reached(&self) -> bool {
            self.count(self.name) > 0
        }

        /// How many threads have come to this mark, or another one, since the watch began.
        pub fn count(&self, name: &str) -> usize {
            WATCHED.lock().as_ref().and_then(|watched| watched.reached.get(name).copied()).unwrap_or(0)
        }

        /// Which thread is, or was, stopped.
        pub fn thread(&self) -> Option<ThreadId> {
            WATCHED.lock().as_ref().and_then(|watched| watched.stopped)
        }

        /// Whether the thread has come to its next mark since, or to its end.
        pub fn has_gone_on(&self) -> bool {
            WATCHED.lock().as_ref().is_some_and(|watched| watched.goes_on.load(Ordering::SeqCst))
        }

        /// The thread goes on, and stops once more, at its next mark.
        pub fn step(&mut self) {
            self.let_go = None;
        }

        /// The thread goes on, and nobody is stopped any more.
        pub fn let_go(&mut self) {
            if let Some(watched) = &mut *WATCHED.lock() {
                (watched.let_go, watched.let_go_again) = (None, None);
            }
            (self.let_go, self.let_go_again) = (None, None);
        }
    }

    impl Drop for Stop {
        fn drop(&mut self) {
            IS_WATCHED.store(false, Ordering::SeqCst);
            *WATCHED.lock() = None;
        }
    }
}
