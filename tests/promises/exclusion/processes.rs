//! Locks among real processes: killed, stopped, forked, abandoned, and all at once.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::support::alone::alone;
use crate::support::harness::{Folder, PATIENCE, SLACK, millis};
use crate::support::lateness::slack;
use crate::support::oracle::{Oracle, Resource, assert_rising};
use crate::support::process::Worker;
use crate::support::servers::skip;
use crate::support::wait::wait_until;
use leasehold::{ErrorKind, LockClient, LockGuard, LockRequest, LossReason};

const LEASE: Duration = millis(2000);
/// Nobody waits for the end of this one.
const LONG: Duration = Duration::from_secs(600);

fn bystander(url: &str) -> LockClient {
    LockClient::connect(url).expect("a client")
}

/// What is left of the holder's lease, and when that was seen.
fn left(client: &LockClient, key: &str) -> (Duration, Instant) {
    let status = client.get(key).expect("a look").expect("a row");
    (status.holders()[0].remaining().expect("a lease with an end"), Instant::now())
}

/// The waiter gets the lock of a holder that is gone at the end of its lease: not before, not much after.
#[track_caller]
fn assert_taken_at_the_end(waiter: &Worker, old: u64, (left, seen): (Duration, Instant)) {
    let token = waiter.granted();
    let took = seen.elapsed();
    assert!(token > old, "{token} after {old}");
    assert!(took + millis(20) >= left, "taken after {took:?}, with {left:?} left");
    assert!(took <= left + slack(seen), "taken after {took:?}, with {left:?} left");
}

#[test]
fn a_killed_holder_is_taken_over_by_a_waiter_at_the_end_of_its_lease() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    let mut waiter = Worker::start(&folder.url(), LEASE);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    holder.kill();
    let left = left(&bystander(&folder.url()), "job");
    assert_taken_at_the_end(&waiter, old, left);
}

#[test]
fn a_killed_holder_is_taken_over_by_a_process_that_asks_only_once() {
    let folder = Folder::new();
    let client = bystander(&folder.url());
    // Only meaningful while the lease runs, which a busy machine may have used up.
    let (old, answer) = (0..5)
        .find_map(|doublings| {
            let lease = LEASE * 2_u32.pow(doublings);
            let mut early = Worker::start(&folder.url(), LEASE);
            let mut holder = Worker::start(&folder.url(), lease);
            let old = holder.token("lock job");
            holder.kill();
            let answer = early.ask("try job");
            (!left(&client, "job").0.is_zero()).then_some((old, answer))
        })
        .expect("a lease that is longer than it takes to ask");
    assert_eq!(answer, "none");
    wait_until("the lease ends", || client.get("job").expect("a look").expect("a row").is_free());
    // It never saw the holder alive, and asks once.
    let mut late = Worker::start(&folder.url(), LEASE);
    assert!(late.token("try job") > old);
}

/// Asking all the time gets it no earlier than waiting for it.
#[test]
fn a_killed_holder_is_not_taken_over_before_the_end_of_its_lease() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    holder.token("lock job");
    holder.kill();
    let client = bystander(&folder.url());
    let (left, seen) = left(&client, "job");
    wait_until("it is taken over", || client.try_lock("job").expect("an answer").is_some());
    let took = seen.elapsed();
    assert!(took + millis(20) >= left, "taken after {took:?}, with {left:?} left");
}

#[test]
fn a_released_lock_goes_to_the_waiter_at_once() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LONG);
    let mut waiter = Worker::start(&folder.url(), LONG);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    assert_eq!(waiter.answer_by(Instant::now() + millis(300)), None, "two hold it");
    assert_eq!(holder.ask("release job"), "released");
    let released = Instant::now();
    assert!(waiter.granted() > old);
    assert!(released.elapsed() <= slack(released), "it took {:?}", released.elapsed());
}

#[test]
fn two_processes_get_their_fair_share() {
    const TOTAL: usize = 1000;
    let folder = Folder::new();
    let mut workers = [Worker::start(&folder.url(), LONG), Worker::start(&folder.url(), LONG)];
    // Neither is ahead: it begins when both wait.
    let held = bystander(&folder.url()).lock("job").expect("a lock");
    for worker in &mut workers {
        worker.tell(&format!("share job 8 {TOTAL} {}", folder.path().display()));
        assert_eq!(worker.answer_by(Instant::now() + millis(200)), None, "two hold it");
    }
    drop(held);
    let by = Instant::now() + 3 * PATIENCE;
    let granted = workers.map(|worker| {
        let answer = worker.answer_by(by).expect("all grants are made");
        answer.strip_prefix("granted ").and_then(|count| count.parse::<usize>().ok()).expect("a number")
    });
    println!("{granted:?} of {TOTAL}");
    assert_eq!(granted.iter().sum::<usize>(), TOTAL);
    assert!(granted.iter().all(|count| (TOTAL * 3 / 10..=TOTAL * 7 / 10).contains(count)), "{granted:?}");
}

#[test]
fn an_abandoned_lock_is_taken_over_at_the_end_of_its_lease() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    let mut waiter = Worker::start(&folder.url(), LEASE);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    assert_eq!(holder.ask("abandon"), "abandoned");
    holder.end();
    let left = left(&bystander(&folder.url()), "job");
    assert_taken_at_the_end(&waiter, old, left);
}

#[test]
fn a_stopped_holder_knows_at_once_that_it_lost_the_lock() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    let mut rival = Worker::start(&folder.url(), LEASE);
    let mut resource = Resource::default();
    let old = holder.token("lock job");
    assert!(resource.write(old));
    holder.tell(&format!("stopped job {}", LEASE.as_millis()));
    assert_eq!(holder.answer(), "spinning");
    let stopped = Instant::now();
    holder.stop();
    let new = rival.token("lock job");
    assert!(resource.write(new));
    // The gap must be seen for what it is, even if the stop came late in the lease.
    wait_until("a whole lease has passed", || stopped.elapsed() > LEASE + millis(100));
    holder.go_on();
    assert_eq!(holder.answer(), "held false");
    let loss = holder.ask("loss job");
    assert!(loss == "loss Expired" || loss == "loss TakenOver", "{loss}");
    let stale = holder.token("token job");
    assert!(!resource.write(stale), "the resource took {stale} after {new}");
    // The release of what is lost leaves the rival alone.
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(rival.ask("held job"), "held true");
    assert_eq!(bystander(&folder.url()).try_lock("job").expect("an answer").map(drop), None);
}

#[test]
fn a_forked_child_holds_nothing_and_ends_nothing() {
    alone("exclusion::processes::a_forked_child_holds_nothing_and_ends_nothing", || {
        let folder = Folder::new();
        for url in ["memory:", &folder.url()] {
            forks(url, false);
        }
    });
}

/// A process 1 that forks into a new namespace of processes has a child 1: its number does not tell.
#[test]
fn a_forked_child_with_the_number_of_its_parent_holds_nothing_and_ends_nothing() {
    const TEST: &str =
        "exclusion::processes::a_forked_child_with_the_number_of_its_parent_holds_nothing_and_ends_nothing";
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

/// Forks with what the child must leave alone; in a namespace of its own it is process 1.
fn forks(url: &str, into_a_namespace: bool) {
    use nix::sched::{CloneFlags, setns, unshare};
    let client = LockClient::builder(url).lease(LEASE).connect().expect("a client");
    let (guard, other) = (client.lock("job").expect("a lock"), client.lock("other").expect("a lock"));
    let token = guard.fencing_token();
    // The last handle of its client, whose watcher runs.
    let another = LockClient::connect(url).expect("a client");
    drop(another.lock("another").expect("a lock"));
    let request = another.request("another");
    drop(another);
    let own = into_a_namespace.then(|| {
        let own = std::fs::File::open("/proc/self/ns/pid").expect("the own namespace");
        unshare(CloneFlags::CLONE_NEWPID).expect("a namespace for the next child");
        own
    });
    // SAFETY: only this thread goes on in the child, and it may allocate: glibc keeps its heap
    // usable over a fork. Locks that a heartbeat may have held are what the test is about.
    #[allow(unsafe_code)]
    let forked = unsafe { nix::unistd::fork() }.expect("a fork");
    match forked {
        nix::unistd::ForkResult::Child => {
            let body = std::panic::AssertUnwindSafe(|| in_the_child(client, guard, other, request));
            std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
        }
        nix::unistd::ForkResult::Parent { child } => {
            if let Some(own) = own {
                // No thread could be started there.
                setns(own, CloneFlags::CLONE_NEWPID).expect("the way back");
            }
            let status = nix::sys::wait::waitpid(child, None).expect("the end of the child");
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "on {url}: {status:?}");
            assert!(guard.is_held() && other.is_held());
            let status = client.get("job").expect("a look").expect("a row");
            assert_eq!(status.holders()[0].fencing_token(), token);
            // Not from what was there before the fork: its heartbeat goes on.
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
    let started = Instant::now();
    assert!(guard.loss().wait_timeout(PATIENCE).is_none());
    assert!(guard.loss().receiver().recv_timeout(PATIENCE).is_err());
    drop(request);
    assert!(started.elapsed() < millis(500), "it waited for threads that are not here");
    let started = Instant::now();
    let failed = other.release().unwrap_err();
    closed(failed.error().kind());
    drop((failed, guard, client));
    assert!(started.elapsed() < SLACK, "it waited for threads that are not here");
}

#[test]
fn eight_processes_never_overlap() {
    const EACH: usize = 250;
    let folder = Folder::new();
    let mut workers: Vec<Worker> = (0..8).map(|_| Worker::start(&folder.url(), Duration::from_secs(20))).collect();
    for worker in &mut workers {
        worker.tell(&format!("exclude job {EACH} {}", folder.path().display()));
    }
    let by = Instant::now() + 3 * PATIENCE;
    for worker in &workers {
        assert_eq!(worker.answer_by(by).as_deref(), Some("overlaps 0"));
    }
    let tokens = Oracle::new(folder.path(), "job").tokens();
    assert_eq!(tokens.len(), 8 * EACH);
    assert_rising(&tokens);
}

/// The negative control: the oracle does see what happens without the lock.
#[test]
fn processes_without_the_lock_do_overlap() {
    let folder = Folder::new();
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start(&folder.url(), LEASE)).collect();
    for worker in &mut workers {
        worker.tell(&format!("intrude job {}", folder.path().display()));
    }
    let answers: Vec<String> = workers.iter().map(Worker::answer).collect();
    assert!(answers.iter().any(|answer| answer == "overlaps 1"), "{answers:?}");
    assert!(answers.iter().any(|answer| answer == "overlaps 0"), "{answers:?}");
}

/// The files of the database: the log and its index belong to it.
fn database(folder: &Folder) -> Vec<std::path::PathBuf> {
    ["", "-wal", "-shm"].iter().map(|end| format!("{}{end}", folder.file().display()).into()).collect()
}

#[test]
fn a_database_that_is_removed_under_a_guard_is_a_loss() {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    let old = holder.token("lock job");
    for file in database(&folder) {
        std::fs::remove_file(file).expect("a file of the database");
    }
    let removed = Instant::now();
    assert_eq!(holder.ask("loss job"), "loss Gone");
    // The next heartbeat tells it, long before the lease is over.
    assert!(removed.elapsed() <= LEASE / 2 + slack(removed), "it took {:?}", removed.elapsed());
    assert_eq!(holder.ask("held job"), "held false");
    // Whoever comes now makes a new file, and tokens rise over it.
    let mut next = Worker::start(&folder.url(), LEASE);
    assert!(next.token("try job") > old);
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(next.ask("held job"), "held true");
}

#[test]
fn an_older_copy_put_in_place_is_a_loss_and_tokens_still_rise() {
    let folder = Folder::new();
    let copy = folder.path().join("copy.db");
    let first = bystander(&folder.url());
    let mut highest = first.lock("job").expect("a lock").fencing_token();
    drop(first);
    // The last connection is closed: everything is in the one file.
    std::fs::copy(folder.file(), &copy).expect("a copy");

    let client = LockClient::builder(folder.url()).lease(LEASE).connect().expect("a client");
    for _ in 0..10 {
        highest = highest.max(client.lock("job").expect("a lock").fencing_token());
    }
    let guard = client.lock("job").expect("a lock");
    highest = highest.max(guard.fencing_token());
    for file in &database(&folder)[1..] {
        std::fs::remove_file(file).expect("a file of the database");
    }
    std::fs::rename(&copy, folder.file()).expect("the copy in place");
    let loss = guard.loss().wait_timeout(PATIENCE).expect("a loss");
    assert!(matches!(loss.reason, LossReason::Gone), "{loss:?}");
    assert!(!guard.is_held());

    let after = bystander(&folder.url());
    let next = after.try_lock("job").expect("an answer").expect("it is free in the copy");
    assert!(next.fencing_token() > highest, "{} after {highest}", next.fencing_token());
    drop((guard, client));
    assert!(next.is_held());
    assert!(!after.get("job").expect("a look").expect("a row").is_free(), "the old guard released the new lock");
}
