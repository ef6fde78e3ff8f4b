//! What happens if the system has no thread, no stack or no descriptor left. Each test is alone in its process.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::alone::alone;
use crate::support::harness::{PATIENCE, Store, millis, within};
use crate::support::threads::{no_new_threads, threads_again};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::log_is_written;
use leasehold::internals::sys::pause::Stop;
use leasehold::{Error, Event, LockClient, LockGuard, Observer};

const HOUR: Duration = Duration::from_secs(3600);

/// Counts the losses that are reported to it, and hangs in each until the sender of `until` is dropped.
struct Losses {
    told: AtomicUsize,
    until: crossbeam_channel::Receiver<()>,
}

impl Losses {
    fn told(&self) -> usize {
        self.told.load(Ordering::SeqCst)
    }
}

impl Observer for Losses {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Lost { .. }) {
            self.told.fetch_add(1, Ordering::SeqCst);
            let _ = self.until.recv();
        }
    }
}

struct Null;

impl log::Log for Null {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {}

    fn flush(&self) {}
}

/// A store, and one of its clients that loses two locks and finds no thread to report that.
fn losing(until: crossbeam_channel::Receiver<()>) -> (Store, Arc<Losses>, LockClient, [LockGuard; 2]) {
    log::set_logger(&Null).expect("the only logger of this process");
    log::set_max_level(log::LevelFilter::Warn);
    let (store, observer) = (Store::memory(), Arc::new(Losses { told: AtomicUsize::new(0), until }));
    let builder = store.builder().lease(HOUR).drop_timeout(millis(1500)).observer(observer.clone());
    let client = builder.connect().expect("a client");
    let lock = |key: &str, most| client.request(key).max_hold(most).lock().expect("a lock");
    let guards = [lock("first", HOUR / 8), lock("second", HOUR / 4)];
    // This lock has no end, so none of its heartbeats looks for a thread, which would then also report the losses.
    let held = client.request("held").lease_forever().lock().expect("a lock");
    no_new_threads();
    for guard in &guards {
        store.advance(HOUR / 8);
        guard.loss().wait_timeout(PATIENCE).expect("a loss");
    }
    // By then the second loss is left to another thread, and so is the line about it.
    let mut stop = Stop::at("watch.looks");
    wait_until("the watcher looks at the lock that is held", || stop.is_reached());
    stop.let_go();
    assert!(observer.told() == 0 && !log_is_written());
    std::mem::forget(held);
    (store, observer, client, guards)
}

#[test]
fn what_finds_no_thread_says_for_which_lock_of_which_store() {
    alone("bounds::lacks::what_finds_no_thread_says_for_which_lock_of_which_store", || {
        let client = LockClient::builder("memory:").connect().expect("a client");
        let election = client.election("k").build().expect("an election");
        no_new_threads();
        for error in [client.try_lock("k").expect_err("no thread"), election.run().expect_err("no thread")] {
            assert!(error.to_string().contains("can't be started"), "{error}");
            assert_eq!((error.key(), error.store()), (Some("k"), Some("memory")), "{error}");
        }
    });
}

#[test]
fn losses_that_find_no_thread_are_told_once_there_is_one() {
    alone("bounds::lacks::losses_that_find_no_thread_are_told_once_there_is_one", || {
        let (leave, until) = crossbeam_channel::bounded(0);
        drop(leave);
        let (_store, observer, _client, _guards) = losing(until);
        threads_again();
        wait_until("the observer is told", || observer.told() == 2);
        wait_until("the log says it", log_is_written);
    });
}

#[test]
fn losses_that_find_no_thread_are_told_by_a_close_which_no_observer_that_hangs_makes_longer() {
    alone(
        "bounds::lacks::losses_that_find_no_thread_are_told_by_a_close_which_no_observer_that_hangs_makes_longer",
        || {
            let (leave, until) = crossbeam_channel::bounded(0);
            let (_store, observer, client, _guards) = losing(until);
            let _ = within("close", millis(1500), || client.close());
            // The watcher's thread reports it, which may be later than the bound of the close.
            wait_until("the observer is told of one, and hangs", || observer.told() == 1);
            drop(leave);
            wait_until("the observer is told", || observer.told() == 2);
        },
    );
}

/// Its drop needs this many KiB of stack, as the drop of a long list does, and sends when it is done.
struct Deep(u32, crossbeam_channel::Sender<()>);

impl Drop for Deep {
    fn drop(&mut self) {
        #[inline(never)]
        fn go(deep: u32) {
            let bytes = [deep as u8; 1024];
            std::hint::black_box(&bytes);
            if deep > 0 {
                go(deep - 1);
            }
            std::hint::black_box(&bytes);
        }
        go(self.0);
        let _ = self.1.send(());
    }
}

/// A thread of the library must have as much stack for it as a thread of the standard library.
#[test]
fn what_closures_own_finds_enough_stack_to_be_dropped() {
    alone("bounds::lacks::what_closures_own_finds_enough_stack_to_be_dropped", || {
        let store = Store::memory();
        let client = store.builder().drop_timeout(millis(300)).connect().expect("a client");
        let (drops, dropped) = crossbeam_channel::unbounded();
        let election = client.election("e").stand_again(false).build().expect("an election");
        let deep = Deep(512, drops.clone());
        election.lead(move |_| deep.1.send(()).unwrap_or_default()).expect("it stands");
        for _ in 0..2 {
            dropped.recv_timeout(PATIENCE).expect("its closure ends and is dropped");
        }
        let deep = Deep(512, drops);
        let guard = client.request("k").on_loss(move |_| drop(deep)).lock().expect("a lock");
        store.plan.always(Call::Release, Fault::FailBefore);
        drop(Error::from(guard.release().expect_err("the store fails")));
        dropped.recv_timeout(PATIENCE).expect("its guard is dropped");
    });
}

/// Both while a runtime is being started and after it has started.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[test]
fn a_runtime_that_lacks_descriptors_or_threads_says_so_and_does_not_panic() {
    use leasehold::internals::sys::deadline::Deadline;
    use leasehold::internals::sys::driver::{Driver, Stopped};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    alone("bounds::lacks::a_runtime_that_lacks_descriptors_or_threads_says_so_and_does_not_panic", || {
        let start = || {
            let over = |stopped| panic!("it ended: {stopped:?}");
            Driver::<()>::start(&Deadline::after(PATIENCE), || async { Ok(()) }, over)
        };
        let says = |failed: Error| {
            assert!(failed.is_retryable() && failed.to_string().contains("can't be started"), "{failed}");
        };
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
        let mut refusals = 0;
        let driver = (3..64).find_map(|files| {
            setrlimit(Resource::RLIMIT_NOFILE, files, hard).expect("a limit");
            start().map_err(|failed| (says(failed), refusals += 1)).ok()
        });
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("no limit");
        let driver = driver.expect("a runtime");
        assert!(refusals > 3, "{refusals}");
        no_new_threads();
        says(start().map(drop).expect_err("no thread"));
        let looks_up =
            |by| driver.run(&Deadline::after(by), |_| async { tokio::task::spawn_blocking(|| 1).await.ok() });
        assert_eq!(looks_up(millis(300)), Err(Stopped::Over));
        threads_again();
        wait_until("it goes on", || looks_up(millis(300)) == Ok(Some(1)));
    });
}
