//! The user writes the logger: a panic in it ends no thread and no call. Alone in its process, because there is one
//! logger.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::alone::alone;
use crate::support::bench::{Bench, LONG, loss_of};
use crate::support::harness::acquire_unanswered;
use crate::support::wait::wait_until;
use leasehold::LossReason;
use leasehold::internals::store::fault::{Call, Fault};

struct Panics;

static PANICS: AtomicUsize = AtomicUsize::new(0);

impl log::Log for Panics {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // The crates below have log calls of their own, which are not tested here.
        if record.target().starts_with("leasehold") {
            PANICS.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("the logger panics"));
        }
    }

    fn flush(&self) {}
}

/// Asserts that `call` logs something.
#[track_caller]
fn logged<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let before = PANICS.load(Ordering::SeqCst);
    let value = call();
    assert!(PANICS.load(Ordering::SeqCst) > before, "{what} is not logged any more");
    value
}

#[test]
fn a_logger_that_panics_ends_neither_a_thread_nor_a_call() {
    alone("errors::log_panics::a_logger_that_panics_ends_neither_a_thread_nor_a_call", || {
        log::set_logger(&Panics).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let bench = Bench::new();
        let client = bench.builder().drop_timeout(Duration::from_secs(2)).connect().unwrap();

        logged("a loss", || {
            let (told, tells) = mpsc::channel();
            let guards = ["a", "b", "c"].map(|key| {
                let told = told.clone();
                client.request(key).on_loss(move |loss| told.send(loss.key).unwrap()).lock().unwrap()
            });
            bench.clock.advance(Duration::from_secs(21));
            let mut lost = guards.each_ref().map(|_| tells.recv_timeout(LONG).expect("a loss is not told"));
            lost.sort();
            assert_eq!(lost, ["a", "b", "c"]);
        });
        logged("a dead heartbeat", || {
            let hasty = bench.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
            let (told, tells) = mpsc::channel();
            bench.faults.next(Call::Renew, Fault::Panic);
            let guard = hasty.request("beats").on_loss(move |_| told.send(()).unwrap()).lock().unwrap();
            assert!(matches!(loss_of(&guard).reason, LossReason::HeartbeatDied));
            tells.recv_timeout(LONG).expect("the callback does not run");
            drop(guard);
            let renewed = bench.faults.count(Call::Renew);
            bench.faults.next(Call::Renew, Fault::FailBefore);
            let guard = hasty.lock("beats").unwrap();
            bench.wait_for_call(Call::Renew, renewed + 1);
            assert!(guard.is_held());
        });
        logged("an acquire that fails", || {
            bench.faults.next(Call::Acquire, Fault::FailBefore);
            drop(client.lock("fails").unwrap());
        });
        logged("an undo that fails", || {
            bench.faults.next(Call::Release, Fault::FailBefore);
            acquire_unanswered(&bench.faults, &client, "undone");
            wait_until("what was given up is free", || bench.rival().get("undone").unwrap().unwrap().is_free());
        });
        logged("a store that can't tell", || {
            bench.faults.next(Call::Wake, Fault::FailBefore);
            let held = bench.rival().lock("told").unwrap();
            let (waits, waiting) = mpsc::channel();
            let request = client.request("told").on_wait(move |_| waits.send(()).unwrap_or_default());
            let waiter = std::thread::spawn(move || request.lock().map(drop));
            waiting.recv_timeout(LONG).unwrap();
            bench.wait_for_call(Call::Read, bench.faults.count(Call::Read));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        logged("an election", || {
            let (won, wins) = mpsc::channel();
            // The drop timeout leaves time to resign even if the machine stalls.
            let client = bench.builder().drop_timeout(LONG).connect().unwrap();
            let election = client.election("leads").on_won(move |_| won.send(()).unwrap()).build().unwrap();
            election.run().unwrap();
            wins.recv_timeout(LONG).expect("the callback does not run");
            election.stop().unwrap();
        });
        logged("a drop that fails", || {
            bench.faults.always(Call::Release, Fault::FailBefore);
            drop(client.lock("drops").unwrap());
            bench.faults.heal();
        });
        // Otherwise the close would have only its bound for that release.
        wait_until("what was not released is free", || bench.rival().get("drops").unwrap().unwrap().is_free());
        wait_until("nothing is left to release", || client.close().is_ok());
    });
}
