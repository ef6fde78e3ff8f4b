//! Named threads that can be waited for with a bound.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, ThreadId};
use std::time::Instant;

use crate::model::error::{Error, ErrorKind, Result};

/// Enough for a request to an embedded store, which takes 50 KB in a debug build, and for the program's thread-local
/// data, which glibc places in each stack; ten thousand guards must fit.
const STACK: usize = if cfg!(target_pointer_width = "64") { 512 } else { 256 } * 1024;
/// What code of the user's may expect, as on any thread of the standard library.
const USERS_STACK: usize = 2 * 1024 * 1024;

/// Whether any thread of ours may run code of the user's: an observer, or a logger that was set through the C API.
static RUNS_USERS_CODE: AtomicBool = AtomicBool::new(false);

/// Threads that start from now on have as much stack as code of the user's may expect.
pub fn expect_users_code() {
    RUNS_USERS_CODE.store(true, Ordering::SeqCst);
}

thread_local! {
    static KEEPS: Cell<Keeps> = const { Cell::new(Keeps::Nothing) };
    /// The id of this thread, if it is one of ours.
    static OWN: Cell<Option<ThreadId>> = const { Cell::new(None) };
    static RAN_USERS_CODE: Cell<bool> = const { Cell::new(false) };
    static HERE: Cell<u8> = const { Cell::new(0) };
    static LIVES: Lives = const { Lives };
}

/// Has a destructor, so that it is gone once its thread ends.
struct Lives;

impl Drop for Lives {
    fn drop(&mut self) {}
}

/// This thread is about to run code of the user's.
pub fn begin_users_code() {
    RAN_USERS_CODE.set(true);
}

/// False once this thread is ending, if this was called on it before. While a thread ends, `thread::current()` panics,
/// and so does each wait for a channel.
pub fn lives() -> bool {
    LIVES.try_with(|_| ()).is_ok()
}

/// A number that no other living thread has. It can also be had while the thread ends: a destructor of thread-local
/// data may free a guard, and `thread::current()` panics then.
pub fn here() -> usize {
    HERE.with(|here| here.as_ptr().addr())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    /// One lock depends on this thread.
    ALock,
    /// Everybody's deadlines depend on this thread.
    Time,
}

/// Everybody's deadlines depend on this thread from now on.
pub fn begin_to_keep_time() {
    KEEPS.set(Keeps::Time);
}

/// One lock depends on this thread from now on.
pub fn begin_to_keep_a_lock() {
    KEEPS.set(Keeps::ALock);
}

/// Runs this as if one lock depended on this thread.
pub fn keeping_a_lock<T>(run: impl FnOnce() -> T) -> T {
    /// Restores the value also after a panic of a store, since the thread may be the user's.
    struct Before(Keeps);
    impl Drop for Before {
        fn drop(&mut self) {
            KEEPS.set(self.0);
        }
    }
    let before = Before(KEEPS.get());
    if before.0 == Keeps::Nothing {
        KEEPS.set(Keeps::ALock);
    }
    run()
}

/// Whether everybody else would have to wait while this thread waits for code of the user's.
pub fn keeps_time() -> bool {
    KEEPS.get() == Keeps::Time
}

/// Whether a lock may be lost while this thread waits for code of the user's.
pub fn keeps_a_lock() -> bool {
    KEEPS.get() != Keeps::Nothing
}

/// A thread of ours.
#[derive(Debug)]
pub struct Thread {
    handle: JoinHandle<()>,
    end: Arc<End>,
}

/// Whether the thread's body is over. It uses the standard library's mutex, since a thread that ends may wait here: a
/// wait for a channel calls `thread::current()`, see [`here`], and a wait for a lock of `parking_lot` makes
/// thread-local data, which would be left behind then.
#[derive(Debug, Default)]
struct End {
    is_there: Mutex<bool>,
    ran_users_code: AtomicBool,
    came: Condvar,
}

impl End {
    fn is_there(&self) -> MutexGuard<'_, bool> {
        self.is_there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropped at the end of the body, also by a panic.
struct Running(Arc<End>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ran_users_code.store(RAN_USERS_CODE.get(), Ordering::SeqCst);
        *self.0.is_there() = true;
        self.0.came.notify_all();
    }
}

impl Thread {
    /// Starts a thread with a name that `ps -L` and debuggers show.
    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
        let stack = if RUNS_USERS_CODE.load(Ordering::SeqCst) { USERS_STACK } else { STACK };
        Thread::spawn_with(stack, name, body)
    }

    /// The same for code of the user's.
    pub fn spawn_for_user(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
        Thread::spawn_with(USERS_STACK, name, body)
    }

    /// The same as [`Thread::spawn`] with a stack of this size, of which only what is used costs memory.
    pub fn spawn_with(stack: usize, name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
        let end = Arc::<End>::default();
        let running = Running(end.clone());
        let builder = Builder::new().name(name.to_owned()).stack_size(stack);
        let handle = builder
            .spawn(move || {
                let _running = running;
                OWN.set(Some(std::thread::current().id()));
                // Called now, so that it works while the thread ends.
                lives();
                body();
            })
            .map_err(|e| {
                let message = format!("the thread {name:?} can't be started; too many threads?");
                Error::new(ErrorKind::Store, message).retryable().caused_by(e)
            })?;
        Ok(Thread { handle, end })
    }

    /// Whether the caller runs on it.
    pub fn is_here(&self) -> bool {
        OWN.get() == Some(self.handle.thread().id())
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        *self.end.is_there()
    }

    /// Waits for its end until `by`; whether it ended. Called on the thread itself, it does not wait.
    pub fn wait_until(&self, by: Instant) -> bool {
        if self.is_here() {
            return false;
        }
        let left = by.saturating_duration_since(Instant::now());
        let waited = self.end.came.wait_timeout_while(self.end.is_there(), left, |is_there| !*is_there);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The same. A thread that has not ended by then goes on by itself.
    pub fn join_by(self, by: Instant) -> bool {
        let ended = self.wait_until(by);
        // A destructor of what code of the user's has left in the thread may wait for the caller, so such a thread is
        // not joined. In any other the body is over, a panic was contained in it, and the join returns at once.
        if ended && !self.end.ran_users_code.load(Ordering::SeqCst) {
            let _ = self.handle.join();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn a_thread_is_waited_for_until_its_end_but_not_for_longer_than_is_wanted() {
        let long = || Instant::now() + Duration::from_secs(20);
        let soon = || Instant::now() + Duration::from_millis(20);
        let ((release, let_go), (ended, ends)) = (bounded::<()>(0), bounded(1));
        let thread = Thread::spawn("leasehold-test", move || {
            let _ = let_go.recv();
            let _ = ended.send(());
        })
        .unwrap();
        assert!(!thread.is_over() && !thread.wait_until(soon()));
        assert!(!thread.join_by(soon()), "it goes on by itself");
        drop(release);
        assert_eq!(ends.recv_deadline(long()), Ok(()));
        let (release, let_go) = bounded::<()>(0);
        let thread = Thread::spawn("leasehold-test", move || {
            let _ = let_go.recv();
        })
        .unwrap();
        drop(release);
        assert!(thread.join_by(long()));
        let thread = Thread::spawn("leasehold-test", || panic!("as a test")).unwrap();
        assert!(thread.wait_until(long()) && thread.is_over() && thread.join_by(long()));
    }

    /// Like a destructor of what a callback in C++ has left in its thread.
    #[test]
    fn what_a_thread_leaves_behind_may_wait_for_who_waits_for_the_thread() {
        struct Waits(crossbeam_channel::Receiver<()>, crossbeam_channel::Sender<()>);
        impl Drop for Waits {
            fn drop(&mut self) {
                let _ = (self.0.recv(), self.1.send(()));
            }
        }
        thread_local! {
            static LEFT: Cell<Option<Waits>> = const { Cell::new(None) };
        }
        let ((release, let_go), (gone, goes), (ended, ends)) = (bounded(0), bounded(1), bounded(1));
        let body = move || {
            begin_users_code();
            LEFT.set(Some(Waits(let_go, gone)));
        };
        let thread = Thread::spawn("leasehold-test", body).unwrap();
        let long = Duration::from_secs(20);
        std::thread::spawn(move || ended.send(thread.join_by(Instant::now() + long)));
        assert_eq!(ends.recv_timeout(long), Ok(true), "it waits for the destructor");
        drop(release);
        assert_eq!(goes.recv_timeout(long), Ok(()));
    }
}
