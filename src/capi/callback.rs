//! Functions of C's that the library calls.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::handle;
use crate::sys::aside::{self, Weight};
use crate::sys::deadline::far_from;
use crate::sys::process::ProcessId;
use crate::sys::thread::{here, keeps_time};

/// A function of C's, and the pointer that it is called with.
#[derive(Clone, Copy)]
pub struct Callback<F> {
    pub function: F,
    pub user: *mut c_void,
}

// SAFETY: the program that gave it promised that any thread may call it.
unsafe impl<F: Send> Send for Callback<F> {}
// SAFETY: nothing can be done with a shared one but to copy it.
unsafe impl<F: Sync> Sync for Callback<F> {}

/// How long the calls of a callback may still go on, once it is ended for good, for the reports that wait for it.
pub const REST: Duration = Duration::from_secs(5);
/// Makes reports to code of the user's. A thread that others' deadlines depend on must not wait for that code, so
/// another thread makes its reports, in the same order.
#[derive(Clone, Default)]
pub struct Aside(aside::Aside);

impl Aside {
    /// Makes a report on this thread, or soon on a thread that does nothing else.
    pub fn tell(&self, tell: impl FnOnce() + Send + 'static) {
        self.tell_of(None, Weight::Light, tell);
    }

    /// The same, after the reports that still wait for this key. If there are any, this one is left to the other
    /// thread, too: a heartbeat would have to wait for them.
    pub fn tell_of(&self, key: Option<&str>, weight: Weight, tell: impl FnOnce() + Send + 'static) {
        if !keeps_time() && key.is_none_or(|key| self.0.has_told(key)) {
            tell();
        } else {
            self.0.push(key, weight, Box::new(tell));
        }
    }

    /// Makes the reports that still wait, on this thread, before the callback is ended for good: each lock has a report
    /// that says how its hold ended. After [`REST`] the others are left out, since the callback is slow.
    pub fn tell_rest(&self) {
        self.0.tell_all(Some(Instant::now() + REST));
    }
}

/// The threads that are inside: in callbacks of an object that may be freed, or in the one call that ends a guard.
///
/// A thread that waits until the others have left may itself be inside another gate, because a callback may call the
/// whole library. So each wait is recorded. A thread does not wait if the others wait for this very thread, be it by
/// way of more threads: they would wait for ever.
#[derive(Default)]
pub struct Gate(Arc<Inside>);

#[derive(Default)]
struct Inside {
    state: Mutex<GateState>,
    left: Condvar,
    /// In a forked child of this process nobody is or gets inside, because the mutex may be locked there for ever.
    process: ProcessId,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    /// A thread may be inside several times: a callback calls the library, which calls another callback.
    inside: Vec<usize>,
}

/// A thread that waits until others have left.
struct Waits {
    thread: usize,
    until_left: Arc<Inside>,
}

// Kept like an object with a handle, since those have a table for each process: in a forked child the mutex of a common
// table could be held for ever.
handle::object!(Waits = 14, WaitsHandle, "wait");

#[derive(Clone, Copy)]
struct WaitsHandle {
    id: u64,
}

impl GateState {
    fn others(&self, me: usize) -> impl Iterator<Item = usize> {
        self.inside.iter().copied().filter(move |thread| *thread != me)
    }
}

impl Inside {
    fn others(&self, me: usize) -> Vec<usize> {
        self.state.lock().others(me).collect()
    }

    fn leave(&self, me: usize) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(at) = state.inside.iter().position(|thread| *thread == me) {
            state.inside.swap_remove(at);
        }
        self.left.notify_all();
    }

    /// Whether a thread inside waits, be it by way of more threads, until this thread has left some gate.
    fn waits_for(&self, me: usize) -> bool {
        let waits = handle::all::<Waits>();
        let (mut known, mut open) = (Vec::new(), self.others(me));
        while let Some(thread) = open.pop() {
            if thread == me {
                return true;
            }
            if !known.contains(&thread) {
                known.push(thread);
                let of_thread = waits.iter().filter(|wait| wait.thread == thread);
                open.extend(of_thread.flat_map(|wait| wait.until_left.others(thread)));
            }
        }
        false
    }

    /// Waits until no other thread is inside; `None` when it must not wait for them, or they have not left by `by`.
    fn wait_until_left(self: &Arc<Self>, me: usize, by: Option<Instant>) -> Option<MutexGuard<'_, GateState>> {
        if !self.process.is_current() {
            return None;
        }
        let state = self.state.lock();
        if state.others(me).next().is_none() {
            return Some(state);
        }
        drop(state);
        // If threads would wait for each other, the last one to record its wait finds that out.
        let waits = handle::insert(Waits { thread: me, until_left: self.clone() }).ok();
        let all_left = || {
            if self.waits_for(me) {
                return None;
            }
            let mut state = self.state.lock();
            while state.others(me).next().is_some() {
                match by {
                    Some(by) if self.left.wait_until(&mut state, by).timed_out() => return None,
                    Some(_) => {}
                    None => self.left.wait(&mut state),
                }
            }
            Some(state)
        };
        let left = all_left();
        waits.map(handle::remove::<Waits>);
        left
    }
}

/// Says that its thread is the only one inside. The thread leaves when this is dropped.
pub struct Alone<'a>(&'a Inside);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.leave(here());
    }
}

impl Gate {
    /// Runs a callback, unless the gate is closed.
    pub fn pass<T>(&self, callback: impl FnOnce() -> T) -> Option<T> {
        let here = here();
        if !self.0.process.is_current() {
            return None;
        }
        {
            let mut state = self.0.state.lock();
            if state.closed {
                return None;
            }
            state.inside.push(here);
        }
        let answer = callback();
        self.0.leave(here);
        Some(answer)
    }

    /// After this no callback begins any more, and none runs on another thread, except those that wait for this thread.
    pub fn close(&self) {
        if self.0.process.is_current() {
            self.0.state.lock().closed = true;
        }
        drop(self.0.wait_until_left(here(), None));
    }

    /// How many threads wait to be inside.
    #[cfg(all(test, feature = "_internals"))]
    pub fn waiting(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Whether this thread is inside.
    pub fn is_inside(&self) -> bool {
        self.0.process.is_current() && self.0.state.lock().inside.contains(&here())
    }

    /// Goes inside once no other thread is; `None` if that takes longer than until `by`, if this thread is inside
    /// already, or if a thread inside waits for it.
    pub fn alone(&self, by: Option<Instant>) -> Option<Alone<'_>> {
        let here = here();
        let mut state = self.0.wait_until_left(here, by)?;
        if !state.inside.is_empty() {
            return None;
        }
        state.inside.push(here);
        Some(Alone(&self.0))
    }

    /// The same, but waits for at most as long as a drop may take.
    pub fn alone_within(&self, drop_timeout: Duration) -> Option<Alone<'_>> {
        self.alone(Some(far_from(Instant::now(), drop_timeout)))
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{bounded, unbounded};

    use super::*;
    use crate::sys::thread::begin_to_keep_time;

    const LONG: Duration = Duration::from_secs(20);

    /// As with a health check that runs at the same time as another callback: each may take long.
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

    /// Each of two callbacks ends the object of the other; the same with more callbacks in a circle.
    #[test]
    fn callbacks_that_end_each_other_do_not_wait_for_ever() {
        for number in [2, 3, 8] {
            let gates: Vec<_> = (0..number).map(|_| Gate::default()).collect();
            let (gates, (ended, ends)) = (Arc::new(gates), bounded(number));
            let all_inside = Arc::new(std::sync::Barrier::new(number));
            for at in 0..number {
                let (gates, ended, all_inside) = (gates.clone(), ended.clone(), all_inside.clone());
                std::thread::spawn(move || {
                    gates[at].pass(|| {
                        all_inside.wait();
                        gates[(at + 1) % number].close();
                    });
                    ended.send(())
                });
            }
            (0..number).for_each(|_| assert_eq!(ends.recv_timeout(LONG), Ok(()), "{number} wait for each other"));
            // A thread from outside waits for all of them.
            assert!(gates.iter().all(|gate| gate.alone(None).is_some()));
        }
        // The eight threads of another test may have a wait each for a moment.
        let by = Instant::now() + LONG;
        while handle::all::<Waits>().len() >= 8 {
            assert!(Instant::now() < by, "waits that are over are kept");
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_that_close_one_gate_from_inside_get_out_of_it() {
        let (gate, (ended, ends)) = (Arc::new(Gate::default()), bounded(8));
        let all_inside = Arc::new(std::sync::Barrier::new(8));
        for _ in 0..8 {
            let (gate, ended, all_inside) = (gate.clone(), ended.clone(), all_inside.clone());
            std::thread::spawn(move || {
                gate.pass(|| {
                    all_inside.wait();
                    gate.close();
                });
                ended.send(())
            });
        }
        (0..8).for_each(|_| assert_eq!(ends.recv_timeout(LONG), Ok(()), "they wait for each other"));
    }

    #[test]
    fn what_waits_for_a_slow_callback_is_told_before_its_end() {
        let (aside, (told, tells), (go_on, slow)) = (Aside::default(), unbounded(), bounded::<()>(0));
        let (for_watcher, first) = (aside.clone(), told.clone());
        let watcher = std::thread::spawn(move || {
            begin_to_keep_time();
            for_watcher.tell(move || {
                let _ = first.send(0);
                let _ = slow.recv();
            });
            for number in 1..4 {
                let told = told.clone();
                for_watcher.tell(move || told.send(number).unwrap_or_default());
            }
        });
        assert!(watcher.join().is_ok(), "it waits for no callback");
        assert_eq!(tells.recv_timeout(LONG), Ok(0));
        aside.tell_rest();
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        drop(go_on);
    }

    #[test]
    fn one_at_a_time_is_alone_inside() {
        let gate = Gate::default();
        let alone = gate.alone(None);
        assert!(alone.is_some() && gate.alone(None).is_none(), "it would wait for itself");
        std::thread::scope(|scope| {
            let soon = Some(Instant::now() + Duration::from_millis(20));
            let gate = &gate;
            let refused = scope.spawn(move || gate.alone(soon).is_none()).join();
            assert!(refused.is_ok_and(|refused| refused));
            let (entered, enters) = bounded(1);
            scope.spawn(move || entered.send(gate.alone(None).is_some()));
            drop(alone);
            assert_eq!(enters.recv_timeout(LONG), Ok(true));
        });
    }
}
