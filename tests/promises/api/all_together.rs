//! How long all of several locks take together.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{ErrorKind, LockRequest, Mutex};

use crate::api::LONG;
use crate::support::harness::Store;
use crate::support::wait::wait_until;

const SHORT: Duration = Duration::from_millis(150);

/// One after the other, many would take longer than all may take together.
#[test]
fn all_are_released_at_the_same_time() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let store = Store::memory();
    let client = store.builder().drop_timeout(LONG).connect().unwrap();
    let guard = client.lock_all(KEYS).unwrap();
    let (goes_on, hangs) = crossbeam_channel::bounded(0);
    store.plan.next(Call::Release, Fault::Stuck(hangs));
    thread::scope(|scope| {
        let releases = scope.spawn(|| guard.release());
        wait_until("the others are free", || KEYS.into_iter().filter(|key| store.is_vacant(key)).count() == 2);
        drop(goes_on);
        releases.join().unwrap().unwrap();
    });
}

/// By that the caller, the warning and the polls know a long wait.
#[test]
fn how_long_it_has_waited_is_counted_over_all_its_keys() {
    let store = Store::memory();
    let (client, rival) = (store.builder().connect().unwrap(), store.bystander());
    let [a, b] = ["a", "b"].map(|key| rival.lock(key).unwrap());
    let told = Arc::new(Mutex::new(Vec::<(String, Duration)>::new()));
    let first = |key: &str, least: Duration| {
        let told = told.lock();
        told.iter().find(|(of, waited)| of == key && *waited > least).map(|(_, waited)| *waited)
    };
    let each = |one: LockRequest| {
        let told = told.clone();
        one.on_wait(move |waiting| told.lock().push((waiting.key.clone(), waiting.waited)))
    };
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_all(["a", "b"]).each(each).lock());
        wait_until("it has waited for a", || first("a", 2 * SHORT).is_some());
        a.release().unwrap();
        wait_until("it waits for b", || first("b", Duration::ZERO).is_some());
        b.release().unwrap();
        assert!(waits.join().unwrap().unwrap().is_held());
    });
    let waited = first("b", Duration::ZERO).unwrap();
    assert!(waited > 2 * SHORT, "the time before does not count: {waited:?}");
}

#[test]
fn a_try_that_did_not_wait_does_not_say_that_it_did() {
    let store = Store::memory();
    let (client, _a) = (store.builder().connect().unwrap(), store.bystander().lock("a").unwrap());
    for (wait, says) in [(Duration::ZERO, "others hold it: "), (SHORT, "others held it until the wait was over: ")] {
        let error = client.request_all(["a", "b"]).wait(wait).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains(says), "{error}");
    }
}
