//! No call outlives its deadline and no drop its bound, whatever the store does.
#![cfg(target_os = "linux")]

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use crate::bounds::faults::faults;
use crate::bounds::{DROP, LONG, REQUEST, STALL};
use crate::support::alone::alone;
use crate::support::harness::{Folder, PATIENCE, Store, acquire_unanswered, connected, millis, on_each_local, within};
use crate::support::lateness::slack;
use crate::support::process::Worker;
use crate::support::threads::{no_new_threads, ours, threads_again};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{CancelToken, ErrorKind, Event, LockClient, LossReason, Mutex, Observer, Operation};

on_each_local! {
    together:
        a_wait_ends_on_its_deadline_while_another_holds_the_lock,
        a_cancelled_wait_ends_at_once_in_every_phase,
        a_stuck_heartbeat_delays_neither_the_loss_nor_the_drop,
    ;
}

fn client(store: &Store) -> LockClient {
    connected(|| store.builder().lease(LONG).request_timeout(REQUEST).drop_timeout(DROP))
}

fn a_wait_ends_on_its_deadline_while_another_holds_the_lock(store: Store) {
    // The request timeout is shorter than the wait.
    let asks_for = |timeout: Duration| connected(|| store.builder().lease(LONG).request_timeout(timeout));
    let client = asks_for(millis(400));
    let _held = store.bystander().lock("job").expect("a lock");
    // A machine that stalls may use up the time of the only request, or all of a short wait.
    let is_refused = [1, 4, 16].map(|longer| longer * millis(500)).into_iter().any(|wait| {
        let client = asks_for(wait * 4 / 5);
        let started = Instant::now();
        let refused = within("the wait", wait, || client.try_lock_for("job", wait));
        assert!(started.elapsed() >= wait, "it gave up early");
        match refused {
            Ok(refused) => {
                assert!(refused.is_none());
                true
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
                false
            }
        }
    });
    assert!(is_refused, "there was never an answer");
    // Now the polls fail or hang: that is no reason to wait longer or to give up. The wait then ends with the trouble,
    // since nobody knows whether the holder of half a second ago still holds. A poll that the end of the wait cut off
    // before a second had passed is no trouble.
    for fault in faults() {
        let fails = matches!(fault, Fault::FailBefore | Fault::ApplyThenFail);
        store.plan.always(Call::Read, fault.clone());
        let (started, polls) = (Instant::now(), store.plan.count(Call::Read));
        match within(&format!("{fault:?}"), millis(500), || client.try_lock_for("job", millis(500))) {
            // On a busy machine the wait's only poll, if there was any, may be one that the end of the wait cut off.
            Ok(refused) => {
                assert!(refused.is_none() && (!fails || store.plan.count(Call::Read) <= polls + 1), "{fault:?}");
            }
            Err(error) => assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{fault:?}: {error:?}"),
        }
        assert!(started.elapsed() >= millis(500), "it gave up early");
    }
    store.plan.heal();
}

#[test]
fn a_wait_for_a_lease_with_a_fixed_end_ends_with_it() {
    let store = Store::memory();
    let client = store.builder().connect().expect("a client");
    let _held = store.bystander().lock("job").expect("a lock");
    let request = client.request("job").lease_until(SystemTime::now() + millis(3000));
    let error = within("the wait", millis(3000), || request.lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// Runs a wait on a thread, cancels it when `ready`, and expects it to end at once.
fn cancelled_at_once(what: &str, client: &LockClient, ready: impl FnMut() -> bool) {
    let cancel = CancelToken::new();
    let (over, end) = mpsc::channel();
    std::thread::scope(|scope| {
        let request = client.request("job").cancel(&cancel);
        scope.spawn(move || over.send(request.lock().map(drop)));
        wait_until(what, ready);
        cancel.cancel();
        let cancelled = Instant::now();
        let answer = end.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Cancelled, "{what}");
        assert!(cancelled.elapsed() < slack(cancelled), "{what}: it took {:?}", cancelled.elapsed());
    });
}

fn a_cancelled_wait_ends_at_once_in_every_phase(store: Store) {
    let patient = store.builder().lease(LONG).request_timeout(STALL).drop_timeout(DROP);
    // The next poll comes late, and a cancelled wait must not last until then either.
    let client = patient.poll(STALL..=STALL).connect().expect("a client");
    let begun = |kind: Call| {
        let before = store.plan.count(kind);
        let plan = store.plan.clone();
        move || plan.count(kind) > before
    };
    for fault in [Fault::HangBefore, Fault::ApplyThenHang] {
        store.plan.next(Call::Acquire, fault.clone());
        cancelled_at_once(&format!("acquire with {fault:?}"), &client, begun(Call::Acquire));
        wait_until("what it left behind is given up", || store.is_vacant("job"));
        store.plan.next(Call::Renew, fault.clone());
        cancelled_at_once(&format!("first renewal with {fault:?}"), &client, begun(Call::Renew));
        wait_until("what it left behind is given up", || store.is_vacant("job"));
    }
    // Between repeats of a request that fails.
    store.plan.always(Call::Acquire, Fault::FailBefore);
    cancelled_at_once("repeats", &client, begun(Call::Acquire));
    store.plan.heal();
    let held = store.bystander().lock("job").expect("a lock");
    cancelled_at_once("between two polls", &client, begun(Call::Acquire));
    let quick = store.builder().request_timeout(STALL).connect().expect("a client");
    store.plan.always(Call::Read, Fault::HangBefore);
    cancelled_at_once("in a poll", &quick, begun(Call::Read));
    store.plan.heal();
    drop(held);
}

/// A store that hangs must not use up the time that another client's guard needs for its release.
#[test]
fn a_guard_that_goes_with_one_of_another_client_has_a_bound_of_its_own() {
    let (hanging, other) = (Store::memory(), Store::memory());
    // The inner drop needs hardly any of its bound, unless the machine stalls.
    let inner = other.builder().lease(LONG).drop_timeout(PATIENCE).connect().expect("a client");
    let inner = inner.lock("job").expect("a lock");
    let outer = client(&hanging).request("job").lease(millis(20_000)).on_loss(move |_| drop(inner)).lock();
    let outer = outer.expect("a lock");
    hanging.plan.always(Call::Release, Fault::HangBefore);
    other.plan.next(Call::Release, Fault::FailBefore);
    within("the drop of both", 2 * DROP, || drop(outer));
    let status = other.bystander().get("job").expect("an answer").expect("a row");
    assert!(status.is_free(), "it was left to its lease");
}

/// Closes the client when it learns of the release that gives up an acquisition.
struct Closes(Mutex<Option<(LockClient, mpsc::Sender<()>)>>);

impl Observer for Closes {
    fn event(&self, event: &Event<'_>) {
        if let Event::Request { operation: Operation::Release, .. } = event
            && let Some((client, told)) = { self.0.lock().take() }
        {
            // The library contains a panic here, and then the test gets no message.
            let _ = within("the close", DROP, || client.close());
            let _ = told.send(());
        }
    }
}

#[test]
fn a_close_by_an_observer_does_not_wait_for_itself() {
    let store = Store::memory();
    let observer = Arc::new(Closes(Mutex::default()));
    let client = store.builder().drop_timeout(STALL).observer(observer.clone()).connect().expect("a client");
    let (told, tells) = mpsc::channel();
    *observer.0.lock() = Some((client.clone(), told));
    acquire_unanswered(&store.plan, &client, "job");
    tells.recv_timeout(STALL).expect("the close hangs");
}

/// The heartbeat never returns, as on a disk that hangs. This breaks the contract of a store.
fn a_stuck_heartbeat_delays_neither_the_loss_nor_the_drop(store: Store) {
    let lease = millis(1000);
    let client = store.builder().lease(lease).drop_timeout(DROP).connect().expect("a client");
    let (unstick, stuck) = crossbeam_channel::bounded(0);
    store.plan.always(Call::Renew, Fault::Stuck(stuck));
    let guard = client.lock("job").expect("a lock");
    let granted = Instant::now();
    let loss = within("the loss", lease, || guard.loss().wait_timeout(PATIENCE)).expect("a loss");
    assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss:?}");
    assert!(!guard.is_held());
    assert!(granted.elapsed() <= lease + slack(granted));
    within("the drop of a lost guard", DROP, || drop(guard));

    // From here on no lease ends meanwhile. Only the last quarter of the bound is left for the release, and a machine
    // that stalls just then leaves none of it.
    let bounds = [5, 10, 15].map(|drops| drops * DROP);
    let stuck = |bound: Duration, key: &str| {
        let builder = store.builder().lease(2 * PATIENCE).heartbeat(millis(300)).drop_timeout(bound);
        let client = builder.connect().expect("a client");
        let before = store.plan.count(Call::Renew);
        let guard = client.lock(key).expect("a lock");
        wait_until("the heartbeat is stuck", || store.plan.count(Call::Renew) > before);
        (client, guard)
    };
    let is_released = bounds.into_iter().any(|bound| {
        let key = format!("other, {bound:?}");
        let (_client, guard) = stuck(bound, &key);
        within("the drop of a guard that is held", bound, || drop(guard));
        // The drop did more than give up: the copy of the attempt released the lock.
        store.is_vacant(&key)
    });
    assert!(is_released, "by no drop on {}", store.name);

    let is_released = bounds.into_iter().any(|bound| {
        let key = format!("third, {bound:?}");
        let (client, _guard) = stuck(bound, &key);
        let closed = within("the close", bound, || client.close());
        assert!(closed.is_err() || store.is_vacant(&key), "on {}", store.name);
        closed.is_ok()
    });
    assert!(is_released, "by no close on {}", store.name);
    drop(unstick);
}

/// The lock is a long write transaction of another process in the same file.
#[test]
fn a_locked_database_ends_no_bound() {
    let folder = Folder::new();
    let builder = LockClient::builder(folder.url()).request_timeout(REQUEST).drop_timeout(DROP);
    // Only the lock whose loss is waited for may be lost, even if the machine stalls before that.
    let client = builder.lease(millis(20_000)).connect().expect("a client");
    let (guard, second, third) = (client.lock("a").unwrap(), client.lock("b").unwrap(), client.lock("c").unwrap());
    let mut writer = Worker::start(&folder.url(), LONG);
    // The calls take about 30 s, plus what a stalling machine adds.
    assert_eq!(writer.ask(&format!("block {} {}", folder.file().display(), 3 * STALL.as_millis())), "blocked");
    let blocked = Instant::now();

    assert!(guard.is_held());
    within("the drop", DROP, || drop(guard));
    let failed = within("the release", DROP, || second.release()).unwrap_err();
    assert!(failed.error().is_retryable(), "{failed:?}");
    let error = within("try_lock", REQUEST, || client.try_lock("free")).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let error = within("try_lock_for", millis(600), || client.try_lock_for("free", millis(600))).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    // Readers wait for no writer.
    assert!(client.get("c").expect("a look").is_some());
    let loss = third.loss().wait_timeout(PATIENCE).expect("a loss");
    assert!(matches!(loss.reason, LossReason::Expired { last_error: Some(_) }), "{loss:?}");
    assert!(!third.is_held());
    drop(failed.into_guard().into_lock());
    within("the close", DROP, || client.close()).ok();
    assert!(blocked.elapsed() < 3 * STALL, "the writer was not there to the end");
}

/// The heartbeat's thread is started when it is first needed. Here that fails.
#[test]
fn a_heartbeat_that_finds_no_thread_is_tried_again_and_then_told() {
    alone("bounds::calls::a_heartbeat_that_finds_no_thread_is_tried_again_and_then_told", || {
        let client = LockClient::builder("memory:").heartbeat(millis(4000)).connect().expect("a client");
        let (warn, warned) = mpsc::channel();
        // This call starts the watcher. No heartbeat is due yet, so there is no heartbeat thread yet.
        let kept = client.request("kept").lease(millis(60_000)).lock().expect("a lock");
        no_new_threads();
        // Between the heartbeat and the loss a machine may stall for long and still leave time to warn.
        let lost = client.request("lost").lease(millis(12_000)).warn_before(millis(9000));
        let lost = lost.on_warning(move |left| warn.send(left).expect("the test listens")).lock().expect("a lock");
        let loss = within("the loss", millis(12_000), || lost.loss().wait_timeout(PATIENCE)).expect("a loss");
        let LossReason::Expired { last_error: Some(error) } = &loss.reason else { panic!("{loss:?}") };
        assert!(error.to_string().contains("can't be started") && error.is_retryable(), "{error}");

        // The first try to start a thread for "kept" failed as well; a repeat succeeds.
        let before = kept.remaining();
        std::thread::sleep(millis(1000));
        assert!(kept.remaining() < before, "it was renewed without a thread");
        threads_again();
        wait_until("the lock is renewed", || kept.remaining() > before);
        // The warning has waited for a thread, too, and by now no time is left.
        assert_eq!(warned.recv_timeout(PATIENCE), Ok(Duration::ZERO));
        kept.release().expect("a release");
    });
}

/// The same for the thread that gives up unanswered acquisitions.
#[test]
fn what_was_not_answered_is_given_up_without_a_thread_or_once_there_is_one() {
    alone("bounds::calls::what_was_not_answered_is_given_up_without_a_thread_or_once_there_is_one", || {
        let store = Store::memory();
        let client = store.builder().lease(LONG).drop_timeout(PATIENCE).connect().expect("a client");
        let abandon = |key: &str| {
            acquire_unanswered(&store.plan, &client, key);
            assert!(!store.is_vacant(key));
        };
        no_new_threads();
        abandon("first");
        threads_again();
        // The next call can start the thread.
        let held = client.request("second").acquire().expect("a lock");
        wait_until("it is given up", || store.is_vacant("first"));
        client.release(&held).expect("a release");
        // Otherwise this thread may give up the next one as well.
        wait_until("its thread ends", || ours().iter().all(|name| name != "leasehold-undo"));

        no_new_threads();
        abandon("third");
        drop(client);
        assert!(store.is_vacant("third"), "nobody gave it up");
    });
}

/// The same for a release that failed, without any further call.
#[test]
fn what_was_not_released_is_given_up_once_there_is_a_thread() {
    alone("bounds::calls::what_was_not_released_is_given_up_once_there_is_a_thread", || {
        let store = Store::memory();
        let client = store.builder().drop_timeout(millis(200)).connect().expect("a client");
        let guard = client.request("job").lease_forever().lock().expect("a lock");
        no_new_threads();
        store.plan.always(Call::Release, Fault::FailBefore);
        drop(guard);
        assert!(!store.is_vacant("job"), "its release failed");
        store.plan.heal();
        threads_again();
        wait_until("it is given up", || store.is_vacant("job"));
    });
}

/// Without the watcher's thread nobody would renew the lock, so no guard is returned.
#[test]
fn a_grant_that_finds_no_thread_is_released_within_the_time_of_its_call() {
    alone("bounds::calls::a_grant_that_finds_no_thread_is_released_within_the_time_of_its_call", || {
        let store = Store::memory();
        let client = store.builder().drop_timeout(PATIENCE).connect().expect("a client");
        store.plan.always(Call::Release, Fault::HangBefore);
        no_new_threads();
        // On a busy machine the time may be over before the lock is granted.
        wait_until("it is granted and finds no thread", || {
            let (what, wait) = ("try_lock_for", millis(50));
            let failed = within(what, wait, || client.try_lock_for("job", wait)).expect_err("there is no thread");
            failed.to_string().contains("leasehold-watch")
        });
        store.plan.heal();
        drop(client);
        assert!(store.is_vacant("job"), "nobody gave it up");
    });
}
