//! Which process this is. What was made before a fork is of no use in the child: its threads, connections and mutexes
//! are the parent's.
//!
//! The number alone is not enough: a process 1 that forks into a new namespace has a child 1. So forks are counted, too,
//! by a hook that the system's `fork()` runs in the child; and the number shows a clone that does not run the hook.
//! (What the kernel clears in a child, `MADV_WIPEONFORK`, no crate offers as safe code.) Only a process 1 that calls
//! `clone` itself, for a new namespace, is not noticed.

use std::process;

/// One process, and none that was forked from it.
#[derive(Clone, Debug)]
pub(crate) struct ProcessId {
    number: u32,
    #[cfg(unix)]
    forks: Option<forkguard::atfork::Guard>,
}

impl ProcessId {
    /// The one that asks.
    pub fn current() -> ProcessId {
        ProcessId {
            number: process::id(),
            #[cfg(unix)]
            forks: counted::forks(),
        }
    }

    /// Whether it is the one that asks. No I/O and no mutex: a number of the system and a count.
    pub fn is_current(&self) -> bool {
        #[cfg(unix)]
        if self.forks.clone().is_some_and(|mut forks| forks.detected_fork()) {
            return false;
        }
        self.number == process::id()
    }
}

#[cfg(unix)]
mod counted {
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use forkguard::atfork::Guard;

    const NEW: u8 = 0;
    const BEGUN: u8 = 1;
    const DONE: u8 = 2;
    const GIVEN_UP: u8 = 3;

    /// How long the first call, which begins to count, may take in another thread.
    const BEGINNING: Duration = Duration::from_millis(100);

    /// The count so far; `None` where there is none.
    pub fn forks() -> Option<Guard> {
        static STATE: AtomicU8 = AtomicU8::new(NEW);
        let pass = |from, to| STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        if pass(NEW, BEGUN).is_ok() {
            let first = Guard::try_new().ok();
            STATE.store(DONE, Ordering::SeqCst);
            return first;
        }
        // In the child of a fork at this very moment nobody ends what was begun, and asking would wait for ever.
        let until = Instant::now() + BEGINNING;
        while STATE.load(Ordering::SeqCst) == BEGUN {
            if Instant::now() >= until {
                let _ = pass(BEGUN, GIVEN_UP);
            }
            thread::yield_now();
        }
        if STATE.load(Ordering::SeqCst) == DONE { Guard::try_new().ok() } else { None }
    }
}
