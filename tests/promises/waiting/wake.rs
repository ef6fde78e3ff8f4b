//! Waiters that the store wakes: they do not poll, and nothing is lost if the store stops reporting.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::harness::{PATIENCE, Store, millis, on_each_local, within};
use crate::support::lateness::{at_rest, slack};
use crate::support::threads::{assert_ours, none_soon, ours, tasks};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{CancelToken, ErrorKind, LockClient, LockRequest};

const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(60);
const TELLING: [&str; 2] = ["leasehold-file", "leasehold-wake"];

on_each_local! {
    together:
        a_told_waiter_makes_no_request_until_the_release,
        the_heartbeats_of_the_holder_wake_nobody,
        the_end_of_a_lease_makes_no_event_and_is_looked_for,
        a_clock_that_jumps_lets_it_look,
        a_look_that_fails_is_repeated_however_seldom_it_polls,
        one_call_watches_for_many_waiters,
        a_line_of_waiters_makes_no_request_while_it_waits,
        a_wake_that_fails_is_tried_again_and_polled_for_meanwhile,
        a_wake_that_hangs_holds_up_nobody,
        who_comes_while_its_key_is_let_go_counts_on_nobody,
    ;
    alone:
        an_idle_waiter_is_woken_seldom,
        a_store_that_can_not_tell_is_asked_once_and_polled,
        a_cancelled_wait_and_a_close_end_the_telling,
        a_fork_during_the_telling_disturbs_nobody,
    ;
}

/// A client that never polls by itself while a test runs.
fn patient(store: &Store) -> LockClient {
    let builder = store.builder().lease(LEASE).poll(HOUR..=HOUR);
    builder.request_timeout(PATIENCE).drop_timeout(PATIENCE).connect().expect("a client")
}

/// Waits on a thread of its own, and answers with the token and when it was granted: its release takes time, too.
fn waiter(
    client: &LockClient,
    key: &str,
    ask: impl FnOnce(LockRequest) -> LockRequest + Send + 'static,
) -> JoinHandle<Result<(u64, Instant), ErrorKind>> {
    let (told, tells) = mpsc::channel();
    let request = client.request(key).on_wait(move |_| told.send(()).unwrap_or_default());
    let thread = std::thread::spawn(move || {
        ask(request).lock().map(|guard| (guard.fencing_token(), Instant::now())).map_err(|error| error.kind())
    });
    tells.recv_timeout(PATIENCE).expect("it waits");
    thread
}

/// How many requests the waiters have made.
fn asked(store: &Store) -> usize {
    store.plan.count(Call::Acquire) + store.plan.count(Call::Read)
}

/// Returns once the waiter of this key sleeps: after one acquire, and one look once the store reports on the key.
fn settled(store: &Store) {
    wait_until("it looks once more", || store.plan.count(Call::Read) == 1);
    assert_eq!(store.plan.count(Call::Acquire), 1, "on {}", store.name);
}

fn a_told_waiter_makes_no_request_until_the_release(store: Store) {
    let (client, other) = (patient(&store), store.bystander());
    let held = other.request("k").lease(HOUR).lock().expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    // Other keys change the file, too. That must have no effect, and there is no event to wait for.
    for n in 0..20 {
        drop(other.lock(&format!("other-{n}")).expect("a lock"));
        std::thread::sleep(millis(10));
    }
    assert_eq!(asked(&store), 2, "an idle waiter asks {}", store.name);
    let token = held.fencing_token();
    let released = Instant::now();
    drop(held);
    let (next, granted) = waiting.join().expect("a waiter").expect("a lock");
    assert!(next > token);
    let took = granted.duration_since(released);
    assert!(took < slack(released), "{took:?} on {}", store.name);
    // One look and one acquire are added.
    assert!(asked(&store) <= 5, "{:?} on {}", store.plan.calls(), store.name);
}

/// How often the threads of this process slept and were woken, and how long they ran.
fn woken() -> (u64, Duration) {
    let switches = |task: std::path::PathBuf| {
        // The tests' own measurement of lateness does not count.
        if std::fs::read_to_string(task.join("comm")).ok()?.trim_end() == "lateness" {
            return None;
        }
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    };
    let switches = tasks().into_iter().filter_map(switches).sum();
    let ran = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock");
    (switches, ran.into())
}

/// How often a second some thread was woken during `doing`.
fn woken_a_second(what: &str, doing: impl FnOnce()) -> f64 {
    let (started, before) = (Instant::now(), woken());
    doing();
    let (took, after) = (started.elapsed().as_secs_f64(), woken());
    let (woken, ran) = (after.0.saturating_sub(before.0) as f64 / took, (after.1 - before.1).as_secs_f64() / took);
    eprintln!("{what}: woken {woken:.0} times a second, {:.2} % of a core", ran * 100.0);
    woken
}

/// Counts what an idle waiter costs: each wake-up takes some microseconds.
fn an_idle_waiter_is_woken_seldom(store: Store) {
    let (client, other) = (patient(&store), store.bystander());
    let held = other.request("k").lease(LEASE).acquire().expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    let idle = woken_a_second(&format!("idle on {}", store.name), || std::thread::sleep(millis(2000)));
    // Ten looks a second at a file that nobody writes to, and one wake-up of each thread.
    assert!(idle < 25.0, "{idle} on {}", store.name);
    let (began, mut written) = (Instant::now(), Duration::ZERO);
    let writes = || {
        for n in 0..10 {
            let asked = Instant::now();
            drop(other.lock(&format!("other-{n}")).expect("a lock"));
            written += asked.elapsed();
            std::thread::sleep(millis(200));
        }
    };
    let busy = woken_a_second(&format!("with ten writes on {}", store.name), writes);
    // While a commit is synced, and for twice as long afterwards, the thread looks every 5 ms.
    let most = 100.0 + 600.0 * written.as_secs_f64() / began.elapsed().as_secs_f64();
    assert!(busy < most, "{busy}, at most {most}, on {}", store.name);
    other.release(&held).expect("a release");
    assert!(waiting.join().expect("a waiter").is_ok());
}

fn the_heartbeats_of_the_holder_wake_nobody(store: Store) {
    let client = patient(&store);
    let other = store.bystander();
    let mut held = other.request("k").lease(LEASE).acquire().expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    for _ in 0..20 {
        held = other.heartbeat(&held, LEASE).expect("a heartbeat");
        std::thread::sleep(millis(10));
    }
    assert_eq!(asked(&store), 2, "on {}", store.name);
    other.release(&held).expect("a release");
    assert!(waiting.join().expect("a waiter").is_ok());
}

fn the_end_of_a_lease_makes_no_event_and_is_looked_for(store: Store) {
    let client = patient(&store);
    let lease = millis(700);
    store.bystander().request("k").lease(lease).acquire().expect("a lock");
    // Here the waiter does not report that it waits: on a busy machine the lease might be over by then.
    let taken = within("the takeover", 2 * lease, || client.try_lock_for("k", 2 * PATIENCE));
    assert!(taken.expect("an answer").is_some());
    assert!(asked(&store) <= 5, "{:?} on {}", store.plan.calls(), store.name);
}

fn a_clock_that_jumps_lets_it_look(store: Store) {
    let client = patient(&store);
    store.bystander().request("k").lease(LEASE).acquire().expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    store.advance(2 * LEASE);
    assert!(waiting.join().expect("a waiter").is_ok());
}

/// Otherwise the grant of a dead holder would block the waiter for a whole pause.
fn a_look_that_fails_is_repeated_however_seldom_it_polls(store: Store) {
    let _dead = store.bystander().request("k").lease(millis(1_000)).acquire().expect("a lock");
    store.plan.next(Call::Read, Fault::FailBefore);
    let granted = patient(&store).try_lock_for("k", PATIENCE).expect("an answer");
    assert!(store.plan.count(Call::Read) > 1, "{:?} on {}", store.plan.calls(), store.name);
    assert!(granted.is_some(), "its lease is over on {}", store.name);
}

fn one_call_watches_for_many_waiters(store: Store) {
    const KEYS: usize = 100;
    let (client, other) = (patient(&store), store.bystander());
    // The leases outlast all of this: a lease that ended sooner would be looked for.
    let hold = |n: usize| other.request(&format!("k{n}")).lease(LEASE).lock().expect("a lock");
    let held: Vec<_> = (0..KEYS).map(hold).collect();
    let waiting: Vec<_> = (0..KEYS).map(|n| waiter(&client, &format!("k{n}"), |request| request)).collect();
    wait_until("each looks once more", || store.plan.count(Call::Read) >= KEYS);
    // Each key gets one look: keys that were already watched are not looked at again when the set changes.
    assert!(asked(&store) <= 2 * KEYS + 10, "{} requests", asked(&store));
    drop(held);
    for waiter in waiting {
        assert!(waiter.join().expect("a waiter").is_ok());
    }
}

fn a_line_of_waiters_makes_no_request_while_it_waits(store: Store) {
    let client = patient(&store);
    let held = store.bystander().request("k").lease(LEASE).lock().expect("a lock");
    let first = waiter(&client, "k", |request| request);
    settled(&store);
    let line: Vec<_> = (0..50).map(|_| waiter(&client, "k", |request| request)).collect();
    // Each of them has reported that it waits.
    assert_eq!(at_rest("they ask no more", || asked(&store)), 2, "on {}", store.name);
    drop(held);
    for waiter in [first].into_iter().chain(line) {
        assert!(waiter.join().expect("a waiter").is_ok());
    }
}

fn a_store_that_can_not_tell_is_asked_once_and_polled(store: Store) {
    store.plan.never_wakes();
    let client = store.builder().lease(LEASE).connect().expect("a client");
    let held = store.bystander().lock("k").expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    // A thread of its own does this, which may be late.
    wait_until("it is asked", || store.plan.count(Call::Wake) > 0);
    let looks = store.plan.count(Call::Read);
    wait_until("it polls", || store.plan.count(Call::Read) > looks + 10);
    assert_eq!(store.plan.count(Call::Wake), 1);
    let none = || !ours().iter().any(|thread| TELLING.contains(&thread.as_str()));
    wait_until("no thread is left for it", none);
    drop(held);
    assert!(waiting.join().expect("a waiter").is_ok());
}

fn a_wake_that_fails_is_tried_again_and_polled_for_meanwhile(store: Store) {
    for fault in [Fault::FailBefore, Fault::Refuse, Fault::ApplyThenFail, Fault::Panic] {
        let store = store.again();
        store.plan.always(Call::Wake, fault.clone());
        let client = store.builder().lease(LEASE).connect().expect("a client");
        let held = store.bystander().lock("k").expect("a lock");
        let waiting = waiter(&client, "k", |request| request);
        wait_until("it polls", || store.plan.count(Call::Read) > 10);
        let tried = store.plan.count(Call::Wake);
        store.plan.heal();
        wait_until("it is tried again", || store.plan.count(Call::Wake) > tried);
        // Only after the poll that was under way, and the look after the store began to report.
        let what = format!("it polls {} no more after {fault:?}", store.name);
        at_rest(&what, || store.plan.count(Call::Read));
        drop(held);
        assert!(waiting.join().expect("a waiter").is_ok());
    }
}

fn a_wake_that_hangs_holds_up_nobody(store: Store) {
    let (unstick, stuck) = crossbeam_channel::bounded(0);
    for fault in [Fault::HangBefore, Fault::Stuck(stuck)] {
        let store = store.again();
        store.plan.next(Call::Wake, fault.clone());
        let bound = millis(1000);
        let client = store.builder().lease(LEASE).drop_timeout(bound).connect().expect("a client");
        let held = store.bystander().lock("k").expect("a lock");
        let waiting = waiter(&client, "k", |request| request);
        drop(held);
        assert!(waiting.join().expect("a waiter").is_ok());
        within("close", bound, || client.close()).expect("a close");
    }
    drop(unstick);
}

/// The store reported on the key until just before, and from then on reports on nothing.
fn who_comes_while_its_key_is_let_go_counts_on_nobody(store: Store) {
    // A waiter that relies on reports would look a hundredth as often.
    let longest = millis(500);
    let client = store.builder().lease(LEASE).poll(millis(300)..=longest).connect().expect("a client");
    let other = store.bystander();
    let held = ["j", "k"].map(|key| other.request(key).lease(HOUR).acquire().expect("a lock"));
    let leaves = CancelToken::new();
    let stays = waiter(&client, "j", |request| request);
    wait_until("the one is told of", || store.plan.count(Call::Wake) == 1);
    let left = {
        let leaves = leaves.clone();
        waiter(&client, "k", move |request| request.cancel(&leaves))
    };
    wait_until("both are told of", || store.plan.count(Call::Wake) == 2);
    at_rest("and asks no more", || asked(&store));
    let calls = store.plan.count(Call::Wake);
    store.plan.next(Call::Wake, Fault::ApplyThenDelay(millis(500)));
    store.plan.always(Call::Wake, Fault::FailBefore);
    leaves.cancel();
    assert!(left.join().expect("a waiter").is_err());
    wait_until("its key is let go", || store.plan.count(Call::Wake) > calls);
    let comes = waiter(&client, "k", |request| request);
    wait_until("the store tells of nothing", || store.plan.count(Call::Wake) > calls + 1);
    let released = Instant::now();
    other.release(&held[1]).expect("a release");
    let (_, granted) = comes.join().expect("a waiter").expect("a lock");
    let took = granted.duration_since(released);
    assert!(took < longest + slack(released), "{took:?} on {}", store.name);
    other.release(&held[0]).expect("a release");
    assert!(stays.join().expect("a waiter").is_ok());
}

#[test]
fn a_close_waits_for_the_thread_that_the_store_tells() {
    let store = Store::memory();
    let (unstick, stuck) = crossbeam_channel::bounded(0);
    store.plan.next(Call::Wake, Fault::Stuck(stuck));
    let client = store.builder().lease(LEASE).drop_timeout(PATIENCE).connect().expect("a client");
    let _held = store.bystander().lock("k").expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    wait_until("the store is asked", || store.plan.count(Call::Wake) > 0);
    let (closed, closes) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || closed.send(client.close()));
    assert_eq!(waiting.join().expect("a waiter"), Err(ErrorKind::Closed));
    assert!(closes.recv_timeout(millis(300)).is_err(), "its thread goes on after the close");
    drop(unstick);
    closes.recv_timeout(PATIENCE).expect("it ends").expect("a close");
}

#[test]
fn a_store_that_is_slow_to_tell_is_not_asked_for_each_waiter_that_goes() {
    let store = Store::memory();
    store.plan.always(Call::Wake, Fault::Delay(millis(50)));
    let (client, other) = (patient(&store), store.bystander());
    let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
    let held: Vec<_> = keys.iter().map(|key| other.lock(key).expect("a lock")).collect();
    let waiting: Vec<_> = keys.iter().map(|key| waiter(&client, key, |request| request)).collect();
    // Each of them looks once more when the store begins to report on its key.
    let looks = || store.plan.count(Call::Read);
    wait_until("all are told", || looks() >= keys.len());
    assert_eq!(at_rest("they look no more", looks), keys.len());
    let (started, before) = (Instant::now(), store.plan.count(Call::Wake));
    for (held, waiting) in held.into_iter().zip(waiting) {
        drop(held);
        assert!(waiting.join().expect("a waiter").is_ok());
        // Longer than the watching of a key lingers in case a waiter comes back.
        std::thread::sleep(millis(150));
    }
    // At most one call for each ten times the duration of a call, and one more.
    let asked = store.plan.count(Call::Wake) - before;
    let most = started.elapsed().as_millis() / 500 + 1;
    assert!(asked as u128 <= most, "{asked} calls in {:?}", started.elapsed());
}

#[test]
fn a_telling_that_breaks_off_is_noticed_and_begun_again() {
    let store = Store::memory();
    let client = store.builder().lease(LEASE).connect().expect("a client");
    let held = store.bystander().lock("k").expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    // The waiter polls until the store has begun to report, which may be late.
    let looks = at_rest("it is told", || store.plan.count(Call::Read));
    assert_eq!(store.plan.count(Call::Acquire), 1);
    // Like a stream that ends: the store drops the channel. No new one may begin before the waiter was seen to poll.
    store.plan.always(Call::Wake, Fault::FailBefore);
    store.stop_telling();
    wait_until("it polls", || store.plan.count(Call::Read) > looks + 4);
    let tried = store.plan.count(Call::Wake);
    store.plan.heal();
    wait_until("it is tried again", || store.plan.count(Call::Wake) > tried);
    at_rest("it polls no more", || store.plan.count(Call::Read));
    drop(held);
    assert!(waiting.join().expect("a waiter").is_ok());
}

#[test]
fn a_file_that_is_gone_ends_the_wait() {
    let store = Store::sqlite();
    let client = patient(&store);
    let held = store.bystander().request("k").lease(HOUR).lock().expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    std::fs::rename(store.folder.file(), store.folder.path().join("elsewhere.db")).expect("a move");
    let moved = Instant::now();
    assert_eq!(waiting.join().expect("a waiter"), Err(ErrorKind::Store));
    // While a commit may still come, the place of the file is only checked once a second.
    assert!(moved.elapsed() < millis(1000) + slack(moved), "{:?}", moved.elapsed());
    drop(held);
}

fn a_cancelled_wait_and_a_close_end_the_telling(store: Store) {
    let telling = if store.name == "memory" { &TELLING[1..] } else { &TELLING };
    let client = patient(&store);
    let _held = store.bystander().request("k").lease(LEASE).acquire().expect("a lock");
    assert_ours(&[]);
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let waiting = waiter(&client, "k", move |request| request.cancel(&token));
    settled(&store);
    wait_until("it tells", || ours() == telling);
    cancel.cancel();
    assert_eq!(waiting.join().expect("a waiter"), Err(ErrorKind::Cancelled));
    none_soon();
    let waiting = waiter(&client, "k", |request| request);
    wait_until("it tells again", || ours() == telling);
    client.close().expect("a close");
    assert_ours(&[]);
    assert_eq!(waiting.join().expect("a waiter"), Err(ErrorKind::Closed));
    // Without a close: the drop of the last handle ends it.
    let client = patient(&store);
    // A machine that stalls may use up the time of the only request.
    let refused = [1, 20, 200].into_iter().find_map(|longer| client.try_lock_for("k", longer * millis(100)).ok());
    assert!(refused.expect("an answer").is_none());
    drop(client);
    assert_ours(&[]);
}

fn a_fork_during_the_telling_disturbs_nobody(store: Store) {
    let client = patient(&store);
    let held = store.bystander().lock("k").expect("a lock");
    let waiting = waiter(&client, "k", |request| request);
    settled(&store);
    match crate::support::process::fork() {
        nix::unistd::ForkResult::Child => {
            let body = std::panic::AssertUnwindSafe(|| {
                assert_eq!(client.lock("k").map(drop).unwrap_err().kind(), ErrorKind::Closed);
                drop(client);
            });
            std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "{status:?}");
            drop(held);
            assert!(waiting.join().expect("a waiter").is_ok());
        }
    }
}
