//! What is warned of in the log. Alone in its process, since there is one logger.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Operation;
use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::testing::{Failure, MemoryStore};

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        let waited = record.key_values().get("waited_s".into()).map(|s| format!(" after {s} s")).unwrap_or_default();
        KEPT.lock().unwrap().push(format!("{} {}: {}{waited}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// What was warned of since the last call.
fn warnings() -> Vec<String> {
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
    log::set_logger(&Keep).unwrap();
    log::set_max_level(log::LevelFilter::Warn);

    let store = MemoryStore::new();
    let client = store.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    assert!(client.try_lock_for("k", Duration::from_millis(500)).unwrap().is_none());
    assert!(guard.info().renewed().is_some());
    guard.release().unwrap();
    drop(client.lock("k").unwrap());
    client.close().unwrap();
    assert_eq!(warnings(), [""; 0]);

    let client = store.builder().drop_timeout(Duration::from_secs(2)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    store.fail_next(Operation::Release, Failure::AnswerHangs);
    drop(guard);
    assert_warned("WARN leasehold::guard: the lock could not be released");

    let guard = client.lock("k").unwrap();
    store.advance(Duration::from_secs(21));
    guard.loss().wait().unwrap();
    drop(guard);
    assert_warned("WARN leasehold::guard: lock lost: expired after");
    drop(client);
    a_telling_that_fails_is_warned_of_once();
    a_wait_is_warned_of_after_half_a_minute();
}

/// By the real time, for a wait has no other.
fn a_wait_is_warned_of_after_half_a_minute() {
    let client = MemoryStore::new().client();
    let _held = client.lock("k").unwrap();
    assert!(client.try_lock_for("k", Duration::from_secs(32)).unwrap().is_none());
    let warned = warnings();
    assert!(warned.len() == 1 && warned[0].contains("still waiting for the lock after 30 s"), "{warned:#?}");
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
    assert_warned("WARN leasehold::wake: the store does not tell waiters when a lock is free");
}
