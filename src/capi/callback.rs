//! Functions of C's that the library calls.

use std::ffi::c_void;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

/// A function of C's, and what it wants to be called with.
#[derive(Clone, Copy)]
pub struct Callback<F> {
    pub function: F,
    pub user: *mut c_void,
}

// SAFETY: whoever made it promised that any thread may call it.
unsafe impl<F: Send> Send for Callback<F> {}
// SAFETY: nothing can be done with a shared one but to copy it.
unsafe impl<F: Sync> Sync for Callback<F> {}

/// Keeps callbacks from running once what they belong to was freed.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    inside: Option<ThreadId>,
}

impl Gate {
    /// Runs a callback, unless the gate is closed. The library calls them one after the other.
    pub fn pass(&self, callback: impl FnOnce()) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.inside = Some(std::thread::current().id());
        }
        callback();
        self.state.lock().inside = None;
        self.left.notify_all();
    }

    /// No callback begins any more, and none runs on another thread.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        while state.inside.is_some_and(|thread| thread != std::thread::current().id()) {
            self.left.wait(&mut state);
        }
    }
}
