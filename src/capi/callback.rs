//! Functions of C's that the library calls.

use std::cell::Cell;
use std::ffi::c_void;

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
    /// A thread may be inside several times: a callback calls the library, which calls another one.
    inside: Vec<usize>,
}

/// Which thread this is among those that live, also while it ends: a guard may be freed by a destructor of its data,
/// when `thread::current()` panics.
fn here() -> usize {
    thread_local! {
        static HERE: Cell<u8> = const { Cell::new(0) };
    }
    HERE.with(|here| here.as_ptr().addr())
}

impl Gate {
    /// Runs a callback, unless the gate is closed.
    pub fn pass<T>(&self, callback: impl FnOnce() -> T) -> Option<T> {
        let here = here();
        {
            let mut state = self.state.lock();
            if state.closed {
                return None;
            }
            state.inside.push(here);
        }
        let answer = callback();
        let mut state = self.state.lock();
        if let Some(at) = state.inside.iter().position(|thread| *thread == here) {
            state.inside.swap_remove(at);
        }
        self.left.notify_all();
        Some(answer)
    }

    /// No callback begins any more, and none runs on another thread.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let here = here();
        while state.inside.iter().any(|thread| *thread != here) {
            self.left.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// A health check beside another callback, each of which may take long.
    #[test]
    fn a_gate_closes_when_the_last_of_several_has_left() {
        let gate = Gate::default();
        let (entered, enters) = bounded(2);
        let leave: Vec<_> = (0..2).map(|_| bounded::<()>(1)).collect();
        std::thread::scope(|scope| {
            for (_, leave) in &leave {
                scope.spawn(|| gate.pass(|| (entered.send(()), leave.recv_timeout(LONG))));
            }
            assert_eq!((enters.recv(), enters.recv()), (Ok(()), Ok(())));
            let (closed, closes) = bounded(1);
            let gate = &gate;
            scope.spawn(move || (gate.close(), closed.send(())));
            for (leaves, _) in &leave {
                assert!(closes.recv_timeout(Duration::from_millis(200)).is_err(), "it did not wait for all");
                assert!(leaves.send(()).is_ok());
            }
            assert_eq!(closes.recv(), Ok(()));
        });
        assert_eq!(gate.pass(|| 1), None);
    }

    #[test]
    fn what_closes_a_gate_from_inside_does_not_wait_for_itself() {
        let (ended, ends) = bounded(1);
        std::thread::spawn(move || {
            let gate = Gate::default();
            let inside = gate.pass(|| gate.pass(|| gate.close()));
            ended.send((inside, gate.pass(|| 1)))
        });
        assert_eq!(ends.recv_timeout(LONG), Ok((Some(Some(())), None)));
    }
}
