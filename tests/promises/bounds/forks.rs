//! A forked child: it owns nothing of its parent's, and ends nothing there.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::alone::{alone, alone_for};
use crate::support::harness::{Folder, PATIENCE, millis};
use crate::support::process::fork;
use crate::support::servers::skip;
use crate::support::wait::wait_until;
use nix::unistd::ForkResult;
use parking_lot::Mutex;

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::{builder_over, in_users_code};
use leasehold::{CancelToken, ErrorKind, Event, LockClient, LockGuard, LockRequest, Observer, Slept};

/// A lease that does not end even on a busy machine, and heartbeats that come soon.
const LEASE: Duration = millis(60_000);
const BEAT: Duration = millis(2000);
/// In a forked child nothing measures how late the machine is. So the bound of a call there is longer than the child
/// lives: a call that waits for a thread of the parent, which takes all of the bound, is noticed.
const BOUND: Duration = Duration::from_secs(3600);
const LIVES: Duration = millis(30_000);

#[test]
fn a_forked_child_holds_nothing_and_ends_nothing() {
    alone("bounds::forks::a_forked_child_holds_nothing_and_ends_nothing", || {
        let folder = Folder::new();
        for url in ["memory:", &folder.url()] {
            forks(url, false);
        }
    });
}

/// If process 1 forks into a new namespace of processes, its child is also process 1: the process id does not tell them
/// apart.
#[test]
fn a_forked_child_with_the_number_of_its_parent_holds_nothing_and_ends_nothing() {
    const TEST: &str = "bounds::forks::a_forked_child_with_the_number_of_its_parent_holds_nothing_and_ends_nothing";
    const INSIDE: &str = "LEASEHOLD_PROCESS_ONE";
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(std::process::id(), 1);
        let folder = Folder::new();
        for url in ["memory:", &folder.url()] {
            forks(url, true);
        }
        return;
    }
    let output = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().expect("this test binary"))
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output();
    let told = format!("{output:?}");
    match output {
        Ok(output) if told.contains("running 1 test") => assert!(output.status.success(), "{told}"),
        _ => skip(&format!("no namespace of processes can be made here: {told}")),
    }
}

/// Called by a callback of a wait. The wait then goes on in both processes, and the parent's is cancelled.
fn forks_and_cancels(cancel: &CancelToken) -> ForkResult {
    let forked = fork();
    match forked {
        ForkResult::Parent { .. } => cancel.cancel(),
        // If the wait does not end in the child, an alarm ends the child.
        ForkResult::Child => drop(nix::unistd::alarm::set(60)),
    }
    forked
}

/// An observer that does nothing.
struct Told;

impl Observer for Told {
    fn event(&self, _: &Event<'_>) {}
}

/// Grant ids must not come from a generator whose state a fork copies: the second child would take the first one's
/// grant for its own.
#[test]
fn children_that_were_forked_alike_are_not_taken_for_one() {
    alone("bounds::forks::children_that_were_forked_alike_are_not_taken_for_one", || {
        let (folder, mut answers) = (Folder::new(), Vec::new());
        // The client that makes the file draws once more, so the file is made before the forks.
        drop(LockClient::connect(&folder.url()).expect("a client"));
        // The generator has begun, as in a program that has drawn something before it forks.
        let _ = uuid::Uuid::new_v4();
        for _ in 0..2 {
            match fork() {
                ForkResult::Child => {
                    let client = LockClient::builder(folder.url()).lease(Duration::from_secs(600)).connect();
                    let got = client.and_then(|client| client.try_lock("job"));
                    // The lock stays held, as by a process that is killed.
                    std::process::exit(match std::mem::ManuallyDrop::new(got).as_ref() {
                        Ok(Some(_)) => 1,
                        Ok(None) => 2,
                        Err(_) => 3,
                    });
                }
                ForkResult::Parent { child } => {
                    answers.push(nix::sys::wait::waitpid(child, None).expect("the end of the child"));
                }
            }
        }
        let codes = answers.iter().map(|status| match status {
            nix::sys::wait::WaitStatus::Exited(_, code) => *code,
            other => panic!("{other:?}"),
        });
        assert_eq!(codes.collect::<Vec<_>>(), [1, 2], "granted, then refused");
    });
}

#[derive(Default)]
struct Order(Mutex<Vec<String>>);

impl Observer for Order {
    fn event(&self, event: &Event<'_>) {
        if let Event::Refused { key, .. } = event {
            self.0.lock().push((*key).to_owned());
        }
    }
}

/// Otherwise all of them would ask for the same key first, and then for the same next one.
#[test]
fn children_that_were_forked_alike_try_several_keys_in_other_orders() {
    alone("bounds::forks::children_that_were_forked_alike_try_several_keys_in_other_orders", || {
        let keys: Vec<String> = (0..20).map(|at| format!("k{at}")).collect();
        let order = |url: &str| {
            let (order, holder) = (Arc::new(Order::default()), LockClient::connect(url).expect("a client"));
            let _held: Vec<_> = keys.iter().map(|key| holder.lock(key).expect("a lock")).collect();
            let client = LockClient::builder(url).observer(order.clone()).connect().expect("a client");
            assert!(client.try_lock_any(&keys).expect("an answer").is_none());
            order.0.lock().join(" ")
        };
        // The generator has begun, as in a program that has drawn something before it forks.
        order("memory:parents");
        let folder = Folder::new();
        let files = ["first", "second"].map(|name| folder.path().join(name));
        for file in &files {
            match fork() {
                ForkResult::Child => {
                    let tells = std::panic::AssertUnwindSafe(|| std::fs::write(file, order("memory:childs")));
                    let told = std::panic::catch_unwind(tells);
                    std::process::exit(i32::from(!told.is_ok_and(|told| told.is_ok())));
                }
                ForkResult::Parent { child } => {
                    let ended = nix::sys::wait::waitpid(child, None).expect("the end of the child");
                    assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
                }
            }
        }
        let orders = files.map(|file| std::fs::read_to_string(file).expect("an order"));
        assert_ne!(orders[0], orders[1]);
    });
}

/// A callback that forks makes the whole wait go on in the child, too.
#[test]
fn a_wait_that_a_callback_forks_ends_in_the_child() {
    alone("bounds::forks::a_wait_that_a_callback_forks_ends_in_the_child", || {
        let folder = Folder::new();
        for of_several in [false, true] {
            forks_in_a_wait("memory:", false, of_several, 1);
            forks_in_a_wait("memory:", false, of_several, 3);
            forks_in_a_wait("memory:", true, of_several, 1);
            forks_in_a_wait(&folder.url(), false, of_several, 1);
        }
    });
}

/// Forks in the callback's `nth` call. Just then another thread may have locked the mutex of the line of waiters, which
/// stays locked in the child.
fn forks_in_a_wait(url: &str, behind_another: bool, of_several: bool, nth: u32) {
    // A wait that the store wakes looks again by itself only after minutes.
    let builder = LockClient::builder(url).poll(Duration::from_millis(900)..=Duration::from_secs(1));
    let client = builder.observer(Arc::new(Told)).connect().expect("a client");
    let held = client.request_all(["k", "l"]).each(|one| one.lease_forever()).lock().expect("the locks");
    let (mut child, mut calls, parent) = (None, 0, std::process::id());
    let (cancel, stands, stop) = (CancelToken::new(), AtomicBool::new(false), AtomicBool::new(false));
    let (client, cancel, stands, stop) = (&client, &cancel, &stands, &stop);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                (0..1_000).for_each(|_| assert!(in_users_code(client, "k") <= 2));
                // Such a wait reports to the observer, and looks at the cancel token of each wait.
                assert!(client.request("l").wait(Duration::ZERO).cancel(cancel).lock().is_err());
            }
        });
        if behind_another {
            let waits = |_: &leasehold::Waiting| stands.store(true, Ordering::SeqCst);
            scope.spawn(move || client.request("k").cancel(cancel).lock_with_progress(waits).map(drop));
            wait_until("another stands before it", || stands.load(Ordering::SeqCst));
        }
        let progress = |_: &leasehold::Waiting| {
            calls += 1;
            if calls == nth {
                child = Some(forks_and_cancels(cancel));
            }
        };
        let answer = match of_several {
            true => client.request_any(["k", "l"]).cancel(cancel).lock_with_progress(progress).map(drop),
            false => client.request("k").cancel(cancel).lock_with_progress(progress).map(drop),
        };
        let kind = answer.map_err(|error| error.kind());
        if std::process::id() != parent {
            // The callback must not be called again in the child either.
            std::process::exit(i32::from(kind != Err(ErrorKind::Closed) || calls > nth));
        }
        stop.store(true, Ordering::SeqCst);
        assert_eq!(kind, Err(ErrorKind::Cancelled));
    });
    let Some(ForkResult::Parent { child }) = child else { panic!("it did not fork") };
    let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0), "{url} {behind_another} {of_several} {nth}");
    drop(held);
}

/// Each acquire fails, and the callback that is told so forks.
#[test]
fn a_wait_in_trouble_that_a_callback_forks_sends_nothing_in_the_child() {
    alone("bounds::forks::a_wait_in_trouble_that_a_callback_forks_sends_nothing_in_the_child", || {
        let (clock, faults, parent) = (Clock::system(), FaultPlan::default(), std::process::id());
        let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
        let client = builder_over(Arc::new(store), clock).connect().expect("a client");
        faults.always(Call::Acquire, Fault::FailBefore);
        let (mut child, mut sent, cancel) = (None, 0, CancelToken::new());
        let answer = client.request("k").cancel(&cancel).lock_with_progress(|_| {
            if child.is_none() {
                sent = faults.count(Call::Acquire);
                child = Some(forks_and_cancels(&cancel));
            }
        });
        let kind = answer.map(drop).map_err(|error| error.kind());
        if std::process::id() != parent {
            let sends = faults.count(Call::Acquire) > sent;
            std::process::exit(i32::from(kind != Err(ErrorKind::Closed) || sends));
        }
        assert_eq!(kind, Err(ErrorKind::Cancelled));
        let Some(ForkResult::Parent { child }) = child else { panic!("it did not fork") };
        let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
    });
}

/// The work itself forks, and in the child it was protected by no lock.
#[test]
fn work_that_forks_was_not_locked_in_the_child() {
    alone("bounds::forks::work_that_forks_was_not_locked_in_the_child", || {
        let client = LockClient::connect("memory:").expect("a client");
        match client.with_lock("k", |_| fork()) {
            Ok(ForkResult::Parent { child }) => {
                let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
                assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
            Ok(ForkResult::Child) => std::process::exit(1),
            Err(error) => std::process::exit(i32::from(error.error().kind() != ErrorKind::Closed)),
        }
    });
}

/// The parent's threads may have locked the mutexes of its named stores at the fork, and these stay locked in the
/// child.
#[test]
fn a_fork_in_the_middle_of_a_connect_leaves_a_child_free_to_connect_to_each_name() {
    const TEST: &str = "bounds::forks::a_fork_in_the_middle_of_a_connect_leaves_a_child_free_to_connect_to_each_name";
    // Two hundred forks beside four busy threads take long where there are few processors.
    alone_for(TEST, 20 * PATIENCE, || {
        const URL: &str = "memory:forked";
        let (kept, stop) = (LockClient::connect(URL).expect("a client"), AtomicBool::new(false));
        let held = kept.lock("job").expect("a lock");
        std::thread::scope(|scope| {
            let until_stopped = |call: fn(&LockClient)| {
                let (kept, stop) = (&kept, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        call(kept);
                    }
                });
            };
            for _ in 0..2 {
                until_stopped(|_| drop(LockClient::connect(URL).expect("a client")));
                until_stopped(|kept| drop(kept.get("job").expect("a look")));
            }
            let in_the_child = || {
                // Otherwise a child that hangs would last as long as the whole test may.
                nix::unistd::alarm::set(60);
                let client = LockClient::connect(URL).expect("a client");
                assert!(client.get("job").expect("a look").is_none(), "it is the parent's store");
            };
            let forked = |_| match fork() {
                ForkResult::Child => {
                    let body = std::panic::AssertUnwindSafe(in_the_child);
                    std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
                }
                ForkResult::Parent { child } => nix::sys::wait::waitpid(child, None).expect("the end of the child"),
            };
            let is_bad = |status: &_| !matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0));
            let bad = (0..200).map(forked).find(is_bad);
            stop.store(true, Ordering::SeqCst);
            assert!(bad.is_none(), "{bad:?}");
        });
        held.release().expect("a release");
    });
}

/// Forks while there are things that the child must leave alone. In a namespace of its own the child is process 1.
fn forks(url: &str, into_a_namespace: bool) {
    use nix::sched::{CloneFlags, setns, unshare};
    let builder = || LockClient::builder(url).lease(LEASE).heartbeat(BEAT);
    let connect = || builder().request_timeout(BOUND).drop_timeout(BOUND).connect();
    let client = connect().expect("a client");
    let (guard, other) = (client.lock("job").expect("a lock"), client.lock("other").expect("a lock"));
    let token = guard.fencing_token();
    // `request` becomes the last handle of this client, whose watcher runs.
    let another = connect().expect("a client");
    drop(another.lock("another").expect("a lock"));
    let request = another.request("another");
    drop(another);
    let own = into_a_namespace.then(|| {
        let own = std::fs::File::open("/proc/self/ns/pid").expect("the own namespace");
        unshare(CloneFlags::CLONE_NEWPID).expect("a namespace for the next child");
        own
    });
    // Locked during the fork, as a heartbeat may have it locked just then.
    let shown = guard.shared_info();
    let locked = shown.lock();
    let forked = fork();
    drop(locked);
    match forked {
        ForkResult::Child => {
            // An alarm does not end a process 1.
            std::thread::spawn(|| {
                std::thread::sleep(LIVES);
                std::process::exit(2)
            });
            std::mem::forget(shown.lock());
            let body = std::panic::AssertUnwindSafe(|| in_the_child(client, guard, other, request));
            std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
        }
        ForkResult::Parent { child } => {
            if let Some(own) = own {
                // Until then this process can start no thread.
                setns(own, CloneFlags::CLONE_NEWPID).expect("the way back");
            }
            let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "on {url}: {status:?}");
            assert!(guard.is_held() && other.is_held());
            let status = client.get("job").expect("a look").expect("a row");
            assert_eq!(status.holders()[0].fencing_token(), token);
            // A renewal from before the fork does not count: the parent's heartbeat must go on.
            let renewed = guard.info().renewed();
            wait_until("the parent's heartbeat goes on", || guard.info().renewed() != renewed);
            guard.release().expect("a release");
            other.release().expect("a release");
        }
    }
}

fn in_the_child(client: LockClient, guard: LockGuard, other: LockGuard, request: LockRequest) {
    let closed = |kind: ErrorKind| assert_eq!(kind, ErrorKind::Closed);
    assert!(!guard.is_held());
    assert!(guard.shared_info().try_lock().is_some(), "nobody frees what a thread of the parent's has locked");
    assert_eq!(guard.remaining(), Duration::ZERO);
    closed(guard.ensure_held().unwrap_err().kind());
    closed(client.lock("job").unwrap_err().kind());
    closed(client.try_lock("free").unwrap_err().kind());
    closed(client.get("job").unwrap_err().kind());
    closed(client.purge(Duration::ZERO).unwrap_err().kind());
    closed(client.heartbeat(&guard.info(), LEASE).unwrap_err().kind());
    closed(client.release(&guard.info()).unwrap_err().kind());
    closed(client.adopt(guard.info()).unwrap_err().kind());
    closed(client.close().unwrap_err().kind());
    assert!(client.held().is_empty());
    assert!(format!("{guard:?}").contains("is_held: false"));
    assert!(guard.loss().get().is_none());
    assert!(matches!(guard.sleep(Duration::ZERO, &CancelToken::new()), Slept::Released));
    assert!(guard.loss().wait().is_none());
    assert!(guard.loss().receiver().recv().is_err());
    drop(request);
    let failed = other.release().unwrap_err();
    closed(failed.error().kind());
    drop((failed, guard, client));
}
