//! An observer that forks: the call that told it goes on in the child, too, and ends there as closed.
#![cfg(target_os = "linux")]

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm};
use parking_lot::Mutex;

use crate::support::alone::alone;
use crate::support::harness::millis;
use crate::support::process::fork;
use leasehold::internals::store::fault::{FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::{builder_over, in_users_code};
use leasehold::{CancelToken, ErrorKind, Event, LockClient, Observer, Operation, SameOwner};

/// Forks at such events of the thread that made it, until it has so many children.
struct Forks {
    at: fn(&Event<'_>) -> bool,
    most: usize,
    parent: u32,
    thread: ThreadId,
    children: Mutex<Vec<Pid>>,
    /// Cancelled with the last of them.
    cancel: CancelToken,
}

impl Forks {
    fn at(at: fn(&Event<'_>) -> bool, most: usize) -> Arc<Forks> {
        let (parent, thread, cancel) = (process::id(), std::thread::current().id(), CancelToken::new());
        Arc::new(Forks { at, most, parent, thread, children: Mutex::default(), cancel })
    }

    fn is_done(&self) -> bool {
        self.children.lock().len() >= self.most
    }

    /// The parent's answer. A child ends here.
    fn ended<T>(&self, answer: leasehold::Result<T>) -> Result<T, ErrorKind> {
        let answer = answer.map_err(|error| error.kind());
        if process::id() != self.parent {
            process::exit(i32::from(!matches!(answer, Err(ErrorKind::Closed))));
        }
        answer
    }

    #[track_caller]
    fn all_closed(&self) {
        assert!(self.is_done());
        for child in self.children.lock().drain(..) {
            let status = waitpid(child, None).expect("the end of the child");
            assert_eq!(status, WaitStatus::Exited(child, 0));
        }
    }
}

impl Observer for Forks {
    fn event(&self, event: &Event<'_>) {
        let is_here = std::thread::current().id() == self.thread && process::id() == self.parent;
        if !is_here || !(self.at)(event) || self.is_done() {
            return;
        }
        match fork() {
            // If the call does not end in the child, an alarm ends the child.
            ForkResult::Child => drop(alarm::set(60)),
            ForkResult::Parent { child } => {
                self.children.lock().push(child);
                if self.is_done() {
                    self.cancel.cancel();
                }
            }
        }
    }
}

/// What the client notes of each of its acquisitions may be locked by another thread at the fork, and stays so in the
/// child.
#[test]
fn a_wait_whose_read_an_observer_forks_ends_in_the_child() {
    alone("bounds::forking_observers::a_wait_whose_read_an_observer_forks_ends_in_the_child", || {
        let (clock, faults) = (Clock::system(), FaultPlan::without_notes());
        faults.never_wakes();
        let store = Arc::new(Memory::open("", clock.clone()));
        let forks = Forks::at(|event| matches!(event, Event::Request { operation: Operation::Read, .. }), 50);
        let builder = builder_over(Arc::new(Faulty::new(store, faults)), clock).observer(forks.clone());
        let client = builder.poll(millis(1)..=millis(1)).connect().expect("a client");
        let _held = client.request("k").owner("job").lock().expect("the lock");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for key in ["a", "b", "c"] {
                let (client, stop) = (&client, &stop);
                scope.spawn(move || {
                    let request = || client.request(key).owner("job").same_owner(SameOwner::Replace);
                    while !stop.load(Ordering::SeqCst) {
                        drop(request().try_lock().expect("an answer"));
                    }
                });
            }
            let waits = client.request("k").owner("other").same_owner(SameOwner::Replace).cancel(&forks.cancel).lock();
            let answer = forks.ended(waits.map(drop));
            stop.store(true, Ordering::SeqCst);
            assert_eq!(answer, Err(ErrorKind::Cancelled));
        });
        forks.all_closed();
    });
}

/// The next key is not asked for there: another thread may have locked the lines of waiters at the fork.
#[test]
fn a_call_for_several_keys_that_an_observer_forks_ends_in_the_child() {
    alone("bounds::forking_observers::a_call_for_several_keys_that_an_observer_forks_ends_in_the_child", || {
        let forks = Forks::at(|event| matches!(event, Event::Refused { .. }), 50);
        let client = LockClient::builder("memory:").observer(forks.clone()).connect().expect("a client");
        let (_held, stop) = (client.lock_all(["k", "l"]).expect("the locks"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    (0..1_000).for_each(|_| assert_eq!(in_users_code(&client, "k"), 0));
                }
            });
            let mut answer = Ok(None);
            while matches!(answer, Ok(None)) && !forks.is_done() {
                answer = forks.ended(client.try_lock_any(["k", "l"]));
            }
            stop.store(true, Ordering::SeqCst);
            assert!(matches!(answer, Ok(None)), "{answer:?}");
        });
        forks.all_closed();
    });
}

/// Otherwise both processes would take the lock for theirs.
#[test]
fn a_lock_as_data_is_not_the_childs_if_an_observer_forks() {
    alone("bounds::forking_observers::a_lock_as_data_is_not_the_childs_if_an_observer_forks", || {
        let granted: fn(&Event<'_>) -> bool = |event| matches!(event, Event::Granted { .. });
        let handed_over: fn(&Event<'_>) -> bool = |event| matches!(event, Event::HandedOver { .. });
        for (at, of_several) in [(granted, false), (handed_over, false), (granted, true)] {
            let forks = Forks::at(at, 1);
            let client = LockClient::builder("memory:").observer(forks.clone()).connect().expect("a client");
            let acquires = if of_several { client.request_any(["k"]).acquire() } else { client.request("k").acquire() };
            client.release(&forks.ended(acquires).expect("a lock")).expect("a release");
            forks.all_closed();
        }
    });
}
