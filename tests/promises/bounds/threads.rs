//! What ends leaves nothing behind: no thread, no request, no row. Each test is alone in its process.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::alone::alone;
use crate::support::harness::{PATIENCE, Store, acquire_unanswered, millis, on_each_local, on_each_server, within};
use crate::support::lateness::slack;
use crate::support::seed::{seed, sow};
use crate::support::threads::{assert_ours, no_new_threads, none_soon, of_clients, ours, threads_again};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::{ClientBuilder, ErrorKind, Event, LockClient, Observer};
use parking_lot::Mutex;

const LEASE: Duration = millis(900);
const DROP: Duration = millis(1500);
/// No heartbeat is due while a test lasts.
const HOUR: Duration = Duration::from_secs(3600);

on_each_local! {
    alone:
        a_guard_has_one_thread_and_leaves_none,
        a_loss_ends_the_heartbeat,
        close_ends_every_thread_and_every_request,
        acquirers_that_race_a_close_leave_nothing,
        an_unanswered_acquire_is_given_up_by_close,
        unanswered_acquires_have_one_thread_that_ends_with_the_last,
        a_release_during_a_heartbeat_ends_it_first,
        heartbeats_releases_drops_and_a_close_race_to_a_clean_end,
    ;
}

on_each_server! {
    a_guard_has_one_thread_and_leaves_none,
    a_loss_ends_the_heartbeat,
    an_unanswered_acquire_is_given_up_by_close,
    heartbeats_releases_drops_and_a_close_race_to_a_clean_end,
}

/// Frequent heartbeats, and a lease and bounds that a busy machine does not reach.
fn patient(store: &Store) -> ClientBuilder {
    store.builder().lease(20 * LEASE).heartbeat(LEASE / 3).request_timeout(PATIENCE).drop_timeout(PATIENCE)
}

fn client(store: &Store) -> LockClient {
    patient(store).connect().expect("a client")
}

/// Waits longer than the interval of heartbeats, because the absence of requests is no event to wait for.
fn assert_silent(store: &Store) {
    let before = store.plan.calls();
    std::thread::sleep(LEASE / 2);
    assert_eq!(store.plan.calls(), before, "a request came after the end, on {}", store.name);
}

fn a_guard_has_one_thread_and_leaves_none(store: Store) {
    let client = client(&store);
    assert_ours(&[]);
    let guard = client.lock("job").expect("a lock");
    let other = client.lock("other").expect("a lock");
    // A heartbeat's thread starts when its first beat is due.
    let all = ["leasehold-beat", "leasehold-beat", "leasehold-watch"];
    wait_until("both heartbeats have started", || of_clients() == all);
    drop(guard);
    assert_ours(&["leasehold-beat", "leasehold-watch"]);
    other.release().expect("a release");
    assert_ours(&["leasehold-watch"]);
    assert_silent(&store);
    assert!(store.is_vacant("job") && store.is_vacant("other"));
    let kept = client.lock("job").expect("a lock").into_lock();
    assert_ours(&["leasehold-watch"]);
    assert_silent(&store);
    client.release(&kept).expect("a release");
    drop(client);
    assert_ours(&[]);
}

#[test]
fn a_guard_at_rest_takes_no_processor_time() {
    alone("bounds::threads::a_guard_at_rest_takes_no_processor_time", || {
        let client = LockClient::connect("memory:").expect("a client");
        let _guard = client.lock("job").expect("a lock");
        let used = || {
            let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("its usage");
            let (user, system) = (usage.user_time(), usage.system_time());
            millis(((user.tv_sec() + system.tv_sec()) * 1000 + (user.tv_usec() + system.tv_usec()) / 1000) as u64)
        };
        let (before, started) = (used(), Instant::now());
        // A thread in a busy loop would use all processor time that it gets, even if that is not all of this second.
        while started.elapsed() < millis(1000) {
            std::thread::sleep(millis(50));
        }
        let used = used() - before;
        assert!(used < millis(100), "{used:?}");
    });
}

#[test]
fn a_guard_that_outlives_its_client_takes_the_threads_with_it() {
    alone("bounds::threads::a_guard_that_outlives_its_client_takes_the_threads_with_it", || {
        let store = Store::memory();
        let guard = client(&store).lock("job").expect("a lock");
        assert!(guard.is_held());
        drop(guard);
        none_soon();
        assert!(store.is_vacant("job"));
    });
}

fn a_loss_ends_the_heartbeat(store: Store) {
    let client = client(&store);
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let request = client.request("job").on_loss(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let guard = request.lock().expect("a lock");
    store.bystander().release(&guard.info()).expect("the operator's release");
    guard.loss().wait_timeout(PATIENCE).expect("a loss");
    wait_until("the callback ran", || told.load(Ordering::SeqCst) == 1);
    wait_until("only the watcher is left", || of_clients() == ["leasehold-watch"]);
    assert_silent(&store);
    let before = store.plan.count(Call::Release);
    drop(guard);
    // Another client may hold the lock by now, so a second try is wrong.
    assert!(store.plan.count(Call::Release) <= before + 1);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    drop(client);
    assert_ours(&[]);
}

fn close_ends_every_thread_and_every_request(store: Store) {
    let client = client(&store);
    let guards: Vec<_> = (0..40).map(|n| client.lock(&format!("job-{n}")).expect("a lock")).collect();
    let blocker = store.bystander().lock("busy").expect("a lock");
    std::thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..4).map(|_| scope.spawn(|| client.lock("busy").map(drop).unwrap_err().kind())).collect();
        let before = store.plan.count(Call::Read);
        wait_until("the waiters poll", || store.plan.count(Call::Read) >= before + 8);
        client.close().expect("a close");
        let closed = Instant::now();
        for waiter in waiters {
            assert_eq!(waiter.join().expect("a waiter"), ErrorKind::Closed);
        }
        assert!(closed.elapsed() < slack(closed), "the waiters took {:?}", closed.elapsed());
    });
    // The client and its guards still exist here.
    drop(blocker);
    assert_ours(&[]);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert!((0..40).all(|n| store.is_vacant(&format!("job-{n}"))));
    assert_silent(&store);
    assert_eq!(client.try_lock("job").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.get("job").unwrap_err().kind(), ErrorKind::Closed);
    client.close().expect("a second close");
    drop(guards);
    client.close().expect("a third close");
    assert_silent(&store);
    assert_ours(&[]);
}

/// A release that hangs must neither keep the others from being sent nor make the close later.
#[test]
fn close_releases_all_within_one_bound_even_if_some_hang() {
    alone("bounds::threads::close_releases_all_within_one_bound_even_if_some_hang", || {
        let (unstick, stuck) = crossbeam_channel::bounded(0);
        for fault in [Fault::HangBefore, Fault::Stuck(stuck)] {
            // A machine that stalls may take all of a short bound.
            let released = [1, 2, 4].map(|longer| longer * DROP).into_iter().any(|bound| {
                let store = Store::memory();
                let client = patient(&store).drop_timeout(bound).connect().expect("a client");
                let _guards: Vec<_> = (0..40).map(|n| client.lock(&format!("job-{n}")).expect("a lock")).collect();
                for _ in 0..20 {
                    store.plan.next(Call::Release, fault.clone());
                }
                let half_is_released = || (0..40).filter(|n| store.is_vacant(&format!("job-{n}"))).count() >= 20;
                let what = format!("close with {fault:?}");
                let answer = std::thread::scope(|scope| {
                    let closed = scope.spawn(|| within(&what, bound, || client.close()));
                    wait_until("the others are released", || half_is_released() || closed.is_finished());
                    // The releases that hung are sent again while there is time, and hang again.
                    store.plan.always(Call::Release, Fault::HangBefore);
                    closed.join().expect("it does not panic")
                });
                store.plan.heal();
                answer.is_err() && half_is_released()
            });
            assert!(released, "too few were released each time with {fault:?}");
        }
        drop(unstick);
        none_soon();
    });
}

/// 500 acquirers against a close.
fn acquirers_that_race_a_close_leave_nothing(store: Store) {
    let rounds = if store.name == "memory" { 10 } else { 2 };
    for _ in 0..rounds {
        let client = client(&store);
        // The guards are kept, so only the close can have released their locks.
        let kept = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("some are granted", || kept.lock().len() > 50);
                let _ = client.close();
            });
            let acquirer = |n| {
                let (client, kept) = (&client, &kept);
                let body = move || match client.try_lock(&format!("job-{n}")) {
                    Ok(guard) => kept.lock().extend(guard),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
                };
                std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, body).expect("an acquirer")
            };
            // If a handle was dropped just as its thread ends, glibc would read unmapped memory. So all are kept until
            // all have started.
            let acquirers: Vec<_> = (0..500).map(acquirer).collect();
            acquirers.into_iter().for_each(|acquirer| acquirer.join().expect("an acquirer"));
        });
        assert_ours(&[]);
        let left: Vec<_> = (0..500).filter(|n| !store.is_vacant(&format!("job-{n}"))).collect();
        assert!(left.is_empty(), "rows are left on {}: {left:?}", store.name);
        assert!(kept.lock().iter().all(|guard| !guard.is_held()));
        assert_silent(&store);
    }
}

/// The store carries out an acquire without an answer, and then the client is closed.
fn an_unanswered_acquire_is_given_up_by_close(store: Store) {
    let client = client(&store);
    store.plan.next(Call::Acquire, Fault::ApplyThenHang);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("job").map(drop).unwrap_err().kind());
        wait_until("it stands in the row", || !store.is_vacant("job"));
        client.close().expect("a close");
        assert_eq!(waiter.join().expect("a waiter"), ErrorKind::Closed);
    });
    assert!(store.is_vacant("job"), "a row is left on {}", store.name);
    assert_ours(&[]);
    assert_silent(&store);
}

/// The same when the last handle is dropped: one bound applies to all that it leaves to do.
#[test]
fn an_unanswered_acquire_is_given_up_by_the_last_drop() {
    alone("bounds::threads::an_unanswered_acquire_is_given_up_by_the_last_drop", || {
        for round in 0..30 {
            let store = Store::sqlite();
            let client = client(&store);
            acquire_unanswered(&store.plan, &client, "job");
            drop(client);
            assert!(store.is_vacant("job"), "a row is left in round {round}");
            assert_ours(&[]);
        }
    });
}

/// One thread for any number, while no release is answered. It gives up what it can, even if other releases hang.
fn unanswered_acquires_have_one_thread_that_ends_with_the_last(store: Store) {
    const ACQUIRES: usize = 60;
    let client = store.builder().request_timeout(millis(300)).drop_timeout(DROP).connect().expect("a client");
    let undoing = || ours().iter().filter(|name| *name == "leasehold-undo").count();
    store.plan.always(Call::Release, Fault::HangBefore);
    for n in 0..ACQUIRES {
        acquire_unanswered(&store.plan, &client, &format!("job-{n}"));
    }
    wait_until("one thread gives them up", || undoing() == 1);
    assert!((0..ACQUIRES).all(|n| !store.is_vacant(&format!("job-{n}"))));
    store.plan.heal();
    for _ in 0..3 {
        store.plan.next(Call::Release, Fault::HangBefore);
    }
    wait_until("all are given up", || (0..ACQUIRES).all(|n| store.is_vacant(&format!("job-{n}"))));
    wait_until("its thread ends", || undoing() == 0);

    // An acquisition that has ended by itself is no longer tried.
    store.plan.always(Call::Release, Fault::FailBefore);
    acquire_unanswered(&store.plan, &client, "late");
    wait_until("it is tried", || undoing() == 1);
    store.advance(Duration::from_secs(21));
    wait_until("nobody tries that any more", || undoing() == 0);

    // A lock that may have been renewed can remain for longer than an acquisition.
    let renewals = store.plan.count(Call::Renew);
    // These are more renewals than there is time for: none of them is answered.
    (0..20).for_each(|_| store.plan.next(Call::Renew, Fault::ApplyThenHang));
    // On a busy machine the time may be over before one is sent. Each try has its own key: it may leave something.
    let long = (0..10).map(|n| format!("long-{n}")).find(|key| {
        let request = client.request(key).lease(Duration::from_secs(3600)).wait(millis(2000));
        assert!(request.lock().is_err(), "a renewal was answered");
        store.plan.count(Call::Renew) > renewals
    });
    let long = long.expect("a renewal is sent");
    wait_until("it is tried", || undoing() == 1);
    store.advance(Duration::from_secs(90));
    let before = store.plan.count(Call::Release);
    wait_until("it is still tried", || store.plan.count(Call::Release) > before + 1);
    store.plan.heal();
    wait_until("it is given up", || store.is_vacant(&long));

    store.plan.always(Call::Release, Fault::HangBefore);
    for n in 0..10 {
        acquire_unanswered(&store.plan, &client, &format!("left-{n}"));
    }
    within("the drop", DROP, || drop(client));
    none_soon();
}

fn a_release_during_a_heartbeat_ends_it_first(store: Store) {
    // The request timeout makes a heartbeat hang for long, and the drop timeout lets a release wait for its end.
    let builder = store.builder().lease(millis(60_000)).heartbeat(millis(5)).request_timeout(PATIENCE);
    let builder = builder.drop_timeout(PATIENCE);
    let client = builder.connect().expect("a client");
    for (n, fault) in
        [Fault::Delay(millis(50)), Fault::HangBefore, Fault::ApplyThenHang, Fault::ApplyThenFail, Fault::Twice]
            .into_iter()
            .cycle()
            .take(15)
            .enumerate()
    {
        store.plan.next(Call::Renew, fault);
        let before = store.plan.count(Call::Renew);
        let guard = client.lock("job").expect("a lock");
        wait_until("a heartbeat is under way", || store.plan.count(Call::Renew) > before);
        let release = || if n % 2 == 0 { drop(guard) } else { guard.release().expect("a release") };
        within("the release", 3 * DROP, release);
        assert_eq!(store.plan.calls().last(), Some(&Call::Release), "a heartbeat came after the release");
        assert!(store.is_vacant("job"), "revived on {}", store.name);
        assert_ours(&["leasehold-watch"]);
    }
    assert_silent(&store);
    drop(client);
    assert_ours(&[]);
}

/// Heartbeats as often as possible, and all kinds of ends at once.
fn heartbeats_releases_drops_and_a_close_race_to_a_clean_end(store: Store) {
    let seed = seed();
    for round in 0..6 {
        // The lease is long: what a close leaves to give up must not expire before that and remain in its row, even if
        // the machine stalls.
        let builder = store.builder().lease(2 * PATIENCE).heartbeat(millis(2));
        let client = builder.request_timeout(PATIENCE).drop_timeout(PATIENCE).connect().expect("a client");
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (client, end) = (&client, &end);
                scope.spawn(move || {
                    sow(seed, 8 * round + n);
                    while !end.load(Ordering::SeqCst) {
                        let Ok(guard) = client.lock(&format!("job-{n}")) else { return };
                        std::thread::sleep(millis(fastrand::u64(0..6)));
                        if fastrand::bool() { drop(guard) } else { drop(guard.release()) }
                    }
                });
            }
            std::thread::sleep(millis(100));
            match round % 2 {
                0 => drop(client.close()),
                _ => end.store(true, Ordering::SeqCst),
            }
        });
        drop(client);
        assert_ours(&[]);
        assert!((0..8).all(|n| store.is_vacant(&format!("job-{n}"))), "a row is left on {}", store.name);
        assert_silent(&store);
    }
}

fn without_threads<T>(call: impl FnOnce() -> T) -> T {
    no_new_threads();
    let value = call();
    threads_again();
    value
}

#[test]
fn a_thread_that_can_not_be_started_leaves_no_lock() {
    alone("bounds::threads::a_thread_that_can_not_be_started_leaves_no_lock", || {
        let store = Store::memory();
        let client = client(&store);
        // No thread for the watcher. A heartbeat that finds no thread is tested in `calls.rs`.
        let error = without_threads(|| client.try_lock("job").map(drop)).unwrap_err();
        assert!(error.to_string().contains("leasehold-watch"), "{error}");
        assert!(error.is_retryable());
        assert!(store.is_vacant("job"));
        // A transfer must not be repeated.
        let lock = client.request("job").acquire().expect("a lock");
        let error = without_threads(|| client.adopt(lock).map(drop)).unwrap_err();
        assert!(error.kind() == ErrorKind::Ambiguous && !error.is_retryable(), "{error}");
        assert!(store.is_vacant("job"));
        assert_ours(&[]);
        // A drop and a close need no new thread.
        let other = client.lock("other").expect("a lock");
        without_threads(|| drop(other));
        let _other = client.lock("other").expect("a lock");
        without_threads(|| client.close()).expect("a close");
        assert!(store.is_vacant("other"));
        assert_ours(&[]);
    });
}

/// Reports on which thread it is dropped.
struct Drops(crossbeam_channel::Sender<std::thread::ThreadId>);

impl Drop for Drops {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

/// That drop may take long: the closure of a guard can own a guard of another client.
#[test]
fn what_a_callback_owns_is_dropped_by_who_drops_the_guard() {
    alone("bounds::threads::what_a_callback_owns_is_dropped_by_who_drops_the_guard", || {
        let store = Store::memory();
        let client = client(&store);
        let (drops, dropped) = crossbeam_channel::bounded(1);
        let owned = Drops(drops);
        let mut stop = Stop::at("watch.looks");
        let guard = client.request("job").on_loss(move |_| drop(owned)).lock().expect("a lock");
        // From now on the watcher has the hold, too.
        wait_until("the watcher looks", || stop.is_reached());
        drop(guard);
        assert_eq!(dropped.try_recv(), Ok(std::thread::current().id()));
        stop.let_go();
    });
}

/// The callback would hang on the thread that declares losses if it were called there.
#[test]
fn a_callback_that_finds_no_thread_waits_for_one_and_holds_up_no_loss() {
    alone("bounds::threads::a_callback_that_finds_no_thread_waits_for_one_and_holds_up_no_loss", || {
        let store = Store::memory();
        let client = store.builder().lease(HOUR).connect().expect("a client");
        let ((called, calls), (leave, left)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded::<()>(0));
        let hangs = client.request("first").max_hold(HOUR / 2).on_loss(move |_| {
            let _ = (called.send(()), left.recv());
        });
        let first = hangs.lock().expect("a lock");
        let second = client.lock("second").expect("a lock");
        no_new_threads();
        store.advance(HOUR / 2);
        first.loss().wait_timeout(PATIENCE).expect("the first loss");
        store.advance(HOUR);
        second.loss().wait_timeout(PATIENCE).expect("the callback of the first holds it up");
        assert!(calls.is_empty(), "it was called without a thread of its own");
        threads_again();
        calls.recv_timeout(PATIENCE).expect("it is called once there is a thread");
        drop(leave);
    });
}

/// Counts the renewals that are reported to it, and hangs in them once `hangs` is set.
struct Renewals {
    told: AtomicUsize,
    hangs: AtomicBool,
    until: crossbeam_channel::Receiver<()>,
}

impl Observer for Renewals {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Renewed { .. }) {
            self.told.fetch_add(1, Ordering::SeqCst);
            if self.hangs.load(Ordering::SeqCst) {
                let _ = self.until.recv();
            }
        }
    }
}

/// What found no thread to report it is reported by a close at the latest.
#[test]
fn an_observer_that_finds_no_thread_holds_up_no_heartbeat() {
    alone("bounds::threads::an_observer_that_finds_no_thread_holds_up_no_heartbeat", || {
        let store = Store::memory();
        let (leave, until) = crossbeam_channel::bounded(0);
        let observer = Arc::new(Renewals { told: AtomicUsize::new(0), hangs: AtomicBool::new(false), until });
        let builder = store.builder().lease(2 * PATIENCE).heartbeat(millis(50)).observer(observer.clone());
        let client = builder.connect().expect("a client");
        let guard = client.lock("job").expect("a lock");
        let told = || observer.told.load(Ordering::SeqCst);
        wait_until("its heartbeat has a thread", || told() > 0);
        no_new_threads();
        // The reporting thread exists only while there is something to report.
        wait_until("nobody else tells", || ours().iter().all(|name| name != "leasehold-told"));
        observer.hangs.store(true, Ordering::SeqCst);
        let (renewed, told_before) = (store.plan.count(Call::Renew), told());
        wait_until("heartbeats go on", || store.plan.count(Call::Renew) > renewed + 3);
        assert!(guard.is_held());
        drop(leave);
        client.close().expect("a close");
        assert!(told() >= told_before + 3, "{} of them were told", told() - told_before);
    });
}
