//! What is warned of in the log. Alone in its process, since there is one logger.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::alone::alone;
use crate::support::wait::wait_until;
use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::log_is_written;
use leasehold::testing::{Failure, MemoryStore};
use leasehold::{ErrorKind, Operation};

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        // As a plain logger writes it, without the fields.
        KEPT.lock().unwrap().push(format!("{} {}: {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

fn listen() {
    log::set_logger(&Keep).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
}

/// What was warned of since the last call.
fn warnings() -> Vec<String> {
    wait_until("the log is written", log_is_written);
    std::mem::take(&mut KEPT.lock().unwrap())
}

/// Of this and of nothing else.
#[track_caller]
fn assert_warned(of: &str) {
    let warned = warnings();
    assert!(warned.len() == 1 && warned[0].starts_with(of), "{warned:#?}");
}

#[test]
fn warnings_tell_what_went_wrong_and_nothing_else() {
    alone("errors::logs::warnings_tell_what_went_wrong_and_nothing_else", || {
        listen();
        let store = MemoryStore::new();
        let client = store.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        assert!(client.try_lock_for("k", Duration::from_millis(500)).unwrap().is_none());
        wait_until("a heartbeat is answered", || guard.info().renewed().is_some());
        guard.release().unwrap();
        drop(client.lock("k").unwrap());
        client.close().unwrap();
        assert_eq!(warnings(), [""; 0]);

        let client = store.builder().drop_timeout(Duration::from_secs(2)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        store.fail_next(Operation::Release, Failure::AnswerHangs);
        drop(guard);
        assert_warned("WARN leasehold::guard: lock \"k\" could not be released");

        let guard = client.lock("k").unwrap();
        store.advance(Duration::from_secs(21));
        guard.loss().wait().unwrap();
        drop(guard);
        assert_warned("WARN leasehold::guard: lock \"k\" lost: expired after");
        drop(client);
        what_fails_names_the_lock_and_the_time_left(&store);
        a_telling_that_fails_is_warned_of_once();
    });
}

fn what_fails_names_the_lock_and_the_time_left(store: &MemoryStore) {
    let client = store.builder().lease(Duration::from_secs(10)).connect().unwrap();
    // At a third of the lease the first heartbeat fails, and then it is warned of.
    let guard = client.request("k").warn_before(Duration::from_secs(5)).lock().unwrap();
    store.go_offline();
    store.advance(Duration::from_secs(5));
    wait_until("both are warned of", || KEPT.lock().unwrap().len() >= 2);
    store.advance(Duration::from_secs(5));
    guard.loss().wait().unwrap();
    store.go_online();
    drop(guard);
    let warned = warnings();
    for text in [
        "WARN leasehold::heartbeat: a heartbeat of lock \"k\" failed and is repeated, ",
        "WARN leasehold::guard: heartbeats of lock \"k\" fail; it will be lost in ",
        "WARN leasehold::guard: lock \"k\" lost: expired (lock \"k\" on memory: ",
    ] {
        assert!(warned.iter().any(|line| line.starts_with(text)), "{text} in {warned:#?}");
    }
}

/// Stands in certain lines until it is let on, as where nobody reads standard error.
struct Stands(&'static str);

static STANDS: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

impl log::Log for Stands {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        if record.args().to_string().contains(self.0) {
            let stands = STANDS.0.lock().unwrap();
            drop(STANDS.1.wait_while(stands, |stands| *stands).unwrap());
        }
        Keep.log(record);
    }

    fn flush(&self) {}
}

impl Stands {
    fn go_on() {
        *STANDS.0.lock().unwrap() = false;
        STANDS.1.notify_all();
    }
}

#[test]
fn a_logger_that_hangs_in_a_heartbeat_costs_no_lock() {
    alone("errors::logs::a_logger_that_hangs_in_a_heartbeat_costs_no_lock", || {
        log::set_logger(&Stands("a heartbeat of lock")).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let store = MemoryStore::new();
        let client = store.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
        store.fail_next(Operation::Renew, Failure::NotSent);
        let guard = client.lock("k").unwrap();
        wait_until("a heartbeat is answered", || guard.info().renewed().is_some());
        assert_eq!(*KEPT.lock().unwrap(), [""; 0]);
        Stands::go_on();
        assert_warned("WARN leasehold::heartbeat: a heartbeat of lock \"k\" failed and is repeated, ");
    });
}

#[test]
fn a_logger_that_hangs_in_a_loss_keeps_nothing_else_from_being_told() {
    alone("errors::logs::a_logger_that_hangs_in_a_loss_keeps_nothing_else_from_being_told", || {
        log::set_logger(&Stands(" lost: ")).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let store = MemoryStore::new();
        let client = store.client();
        let (to, losses) = std::sync::mpsc::channel();
        let lock = |key: &str| {
            let to = to.clone();
            client.request(key).on_loss(move |loss| to.send(loss.key).unwrap()).lock().unwrap()
        };
        for key in ["first", "second"] {
            let guard = lock(key);
            // The watcher declares it.
            store.go_offline();
            store.advance(Duration::from_secs(60));
            assert_eq!(losses.recv_timeout(Duration::from_secs(60)).as_deref(), Ok(key));
            store.go_online();
            drop(guard);
        }
        Stands::go_on();
        wait_until("both are written", || KEPT.lock().unwrap().len() == 2);
    });
}

/// By the real time, for a wait has no other.
#[test]
fn a_wait_is_warned_of_after_half_a_minute() {
    alone("errors::logs::a_wait_is_warned_of_after_half_a_minute", || {
        listen();
        let client = MemoryStore::new().client();
        let _held = client.lock("k").unwrap();
        // Whoever stands by for a leader who is well waits for weeks.
        let _leads = client.election("web").build().unwrap().campaign().unwrap();
        let stands_by = client.election("web").build().unwrap();
        thread::scope(|scope| {
            let campaign = scope.spawn(|| stands_by.campaign().unwrap_err());
            assert!(client.try_lock_for("k", Duration::from_secs(32)).unwrap().is_none());
            stands_by.stop().unwrap();
            assert_eq!(campaign.join().unwrap().kind(), ErrorKind::Cancelled);
        });
        assert_warned("WARN leasehold::client: still waiting for lock \"k\" after 30 s, held by \"");
    });
}

/// However often it is tried again while somebody waits.
fn a_telling_that_fails_is_warned_of_once() {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = builder_over(Arc::new(store), clock).connect().unwrap();
    faults.always(Call::Wake, Fault::FailBefore);
    let held = client.request("k").acquire().unwrap();
    while faults.count(Call::Wake) < 3 {
        assert!(client.try_lock_for("k", Duration::from_millis(200)).unwrap().is_none());
    }
    client.release(&held).unwrap();
    client.close().unwrap();
    assert_warned("WARN leasehold::wake: the store does not wake waiters when a lock is free");
}
