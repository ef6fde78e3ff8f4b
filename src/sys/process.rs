//! Which process this is. What was made before a fork is of no use in the child: its threads, connections and mutexes
//! are the parent's.
//!
//! The number alone is not enough: a process 1 that forks into a new namespace has a child 1. So forks are counted, too,
//! by a hook that the system's `fork()` runs in the child; and the number shows a clone that does not run the hook.
//! (Memory that the kernel clears in a child, `MADV_WIPEONFORK`, would do, but no crate offers it as safe code.) One
//! case is not noticed: the child of a process 1 that calls `clone` itself, for a new namespace.

use std::ops::{Deref, DerefMut};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::model::error::{Error, ErrorKind, Result as Answer};
use crate::sys::deadline::Deadline;

/// Why a client does nothing in a child of the process that connected it.
const FORKED: &str = "the client belongs to the process that this one was forked from; connect again here, but \
     not to SQLite if a file was open at the fork";
/// The pause between two tries to get a [`ForkMutex`], which is locked for moments.
const PAUSE: Duration = Duration::from_millis(1);

/// One process, and none that was forked from it.
#[derive(Clone, Debug)]
pub(crate) struct ProcessId {
    number: u32,
    #[cfg(unix)]
    forks: Option<forkguard::atfork::Guard>,
}

impl Default for ProcessId {
    fn default() -> ProcessId {
        ProcessId::current()
    }
}

impl ProcessId {
    /// The calling process.
    pub fn current() -> ProcessId {
        ProcessId {
            number: process::id(),
            #[cfg(unix)]
            forks: counted::forks(),
        }
    }

    /// Whether it is the calling process. Needs no I/O and no mutex: it compares a number of the system and a count.
    pub fn is_current(&self) -> bool {
        #[cfg(unix)]
        if self.forks.clone().is_some_and(|mut forks| forks.detected_fork()) {
            return false;
        }
        self.number == process::id()
    }

    /// Refuses a call in a child of this process, to a client that this process connected. Any code of the user's that
    /// is called may fork, and return in the child, too.
    pub fn check(&self) -> Answer<()> {
        if self.is_current() { Ok(()) } else { Err(Error::new(ErrorKind::Closed, FORKED)) }
    }
}

/// A mutex that is held for moments only. A forked child can see that a thread of its parent held it at the fork, so
/// that nobody will ever free it in the child.
#[derive(Debug)]
pub(crate) struct ForkMutex<T> {
    /// The number of the process whose thread has it; 0 for none. (A process 1 that was forked from a process 1 waits
    /// until its deadline.)
    holder: AtomicU32,
    value: Mutex<T>,
}

/// Who has a [`ForkMutex`] that can't be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// A thread of this process, which had it until the deadline.
    ForNow,
    /// A thread of the process that this one was forked from.
    ForEver,
}

/// A [`ForkMutex`] that is locked.
#[derive(Debug)]
pub(crate) struct ForkGuard<'a, T> {
    // Unlocked before the holder is cleared, so that a child that finds no holder finds the mutex unlocked, too.
    value: MutexGuard<'a, T>,
    _holder: Holder<'a>,
}

#[derive(Debug)]
struct Holder<'a>(&'a AtomicU32);

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl<T> ForkMutex<T> {
    pub const fn new(value: T) -> Self {
        ForkMutex { holder: AtomicU32::new(0), value: Mutex::new(value) }
    }

    /// Never parks the thread, since in a child nobody would wake it.
    pub fn lock(&self, by: &Deadline) -> Result<ForkGuard<'_, T>, InUse> {
        let now = process::id();
        loop {
            match self.holder.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    let _holder = Holder(&self.holder);
                    return Ok(ForkGuard { value: self.value.lock(), _holder });
                }
                Err(holder) if holder != now => return Err(InUse::ForEver),
                Err(_) if !by.wait_for(PAUSE) => return Err(InUse::ForNow),
                Err(_) => {}
            }
        }
    }
}

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
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

    /// How long to wait for the first call, which begins to count, in another thread.
    const BEGINNING: Duration = Duration::from_millis(100);

    /// The count of forks so far; `None` if forks can't be counted.
    pub fn forks() -> Option<Guard> {
        static STATE: AtomicU8 = AtomicU8::new(NEW);
        let pass = |from, to| STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        if pass(NEW, BEGUN).is_ok() {
            let first = Guard::try_new().ok();
            STATE.store(DONE, Ordering::SeqCst);
            return first;
        }
        // If the process was forked at this very moment, nobody ends in the child what was begun, and `try_new` would
        // wait there for ever.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_of_another_process_has_is_not_waited_for() {
        let mutex = ForkMutex::new(1);
        let (long, over) = (|| Deadline::after(Duration::from_secs(60)), Deadline::after(Duration::ZERO));
        let lock = |by: &Deadline| mutex.lock(by).map(|value| *value);
        assert_eq!(lock(&over), Ok(1));
        let guard = mutex.lock(&over);
        assert!(guard.is_ok());
        assert_eq!(lock(&over), Err(InUse::ForNow));
        // As a child finds it.
        mutex.holder.store(process::id() + 1, Ordering::SeqCst);
        assert_eq!(lock(&long()), Err(InUse::ForEver));
        drop(guard);
        assert_eq!(lock(&long()), Ok(1));
    }
}
