//! Locks among real processes, on every store that they can share: killed, stopped, abandoned, with wrong wall clocks,
//! and all at once.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::harness::{Folder, PATIENCE, millis};
use crate::support::oracle::{Oracle, Resource, assert_rising};
use crate::support::process::{Worker, poll};
use crate::support::urls::{Shared, of};
use crate::support::wait::wait_until;
use crate::support::worker::wall_millis;

const LEASE: Duration = millis(3000);
/// No test waits for the end of this lease.
const LONG: Duration = Duration::from_secs(600);
/// Nor for the end of this one, the longest that one write can grant.
const MINUTE: Duration = Duration::from_secs(60);

macro_rules! suite {
    (memory) => {};
    ($store:ident) => {
        crate::support::stores::tests_of! { crate::support::urls::on, $store:
            a_killed_holder_is_taken_over_by_a_waiter_at_the_end_of_its_lease
            a_killed_holder_is_taken_over_by_a_process_that_asks_only_once
            a_killed_holder_is_not_taken_over_before_the_end_of_its_lease
            an_abandoned_lock_is_taken_over_at_the_end_of_its_lease
            a_released_lock_goes_to_the_waiter_at_once
            a_stopped_holder_knows_at_once_that_it_lost_the_lock
            eight_processes_never_overlap
        }
    };
}

crate::support::stores::for_each_store!(suite);

fn worker(store: &Shared, lease: Duration) -> Worker {
    Worker::polling(&store.url, lease, poll(&store.url), store.env.as_ref())
}

/// What is left of the lease of the holder with this token, and when that was asked; `None` if another one has the
/// lock.
fn left(store: &Shared, old: u64) -> Option<(Duration, Instant)> {
    let client = (store.client)();
    // Read before the look: nobody may get the lock earlier than what is left then, counted from here.
    let seen = Instant::now();
    let status = client.get("job").expect("a look").expect("a row");
    let holder = &status.holders()[0];
    (holder.fencing_token() == old).then(|| (holder.remaining().expect("a lease with an end"), seen))
}

/// Asserts that the waiter gets the lock of a vanished holder at the end of its lease: not before, and not much after.
#[track_caller]
fn assert_taken_at_the_end(
    store: &Shared,
    lease: Duration,
    workers: impl Fn(Duration) -> (Worker, Worker),
    go: impl Fn(&mut Worker, &mut Worker),
) {
    store.measure();
    // The look only proves something while the lease runs, and a busy machine may use up the lease.
    let is_seen = (0..4).any(|doublings| {
        let lease = lease * 2_u32.pow(doublings);
        let (mut holder, mut waiter) = workers(lease);
        let began = Instant::now();
        let old = holder.token("lock job");
        waiter.tell("lock job");
        go(&mut holder, &mut waiter);
        let left = left(store, old);
        let Some((left, seen)) = left else {
            assert!(began.elapsed() + store.early >= lease, "taken after {:?}", began.elapsed());
            assert!(waiter.granted() > old);
            assert_eq!(waiter.ask("release job"), "released");
            return false;
        };
        let token = waiter.granted();
        let took = seen.elapsed();
        assert!(token > old, "{token} after {old}");
        assert!(took + store.early >= left, "taken after {took:?}, with {left:?} left");
        assert!(took <= left + store.grace + store.slack(seen), "taken after {took:?}, with {left:?} left");
        true
    });
    assert!(is_seen, "taken over each time before it was looked at");
}

fn a_killed_holder_is_taken_over_by_a_waiter_at_the_end_of_its_lease(store: &Shared) {
    let workers = |lease| (worker(store, lease), worker(store, lease));
    assert_taken_at_the_end(store, LEASE, workers, |holder, _| holder.kill());
}

fn a_killed_holder_is_taken_over_by_a_process_that_asks_only_once(store: &Shared) {
    // This only proves something while the lease runs, and a busy machine may use up the lease.
    let (old, answer) = (0..5)
        .find_map(|doublings| {
            let mut early = worker(store, LEASE);
            let mut holder = worker(store, LEASE * 2_u32.pow(doublings));
            let old = holder.token("lock job");
            holder.kill();
            let answer = early.ask("try job");
            left(store, old).filter(|(left, _)| !left.is_zero()).map(|_| (old, answer))
        })
        .expect("a lease that is longer than it takes to ask");
    assert_eq!(answer, "none");
    let client = (store.client)();
    wait_until("the lease ends", || client.get("job").expect("a look").expect("a row").is_free());
    std::thread::sleep(store.grace);
    // This process never saw the holder alive, and asks once.
    assert!(worker(store, LEASE).token("try job") > old);
}

/// A process that asks all the time gets the lock no earlier than one that waits for it.
fn a_killed_holder_is_not_taken_over_before_the_end_of_its_lease(store: &Shared) {
    let mut holder = worker(store, LEASE);
    let old = holder.token("lock job");
    holder.kill();
    let (client, (left, seen)) = ((store.client)(), left(store, old).expect("nobody else asks"));
    wait_until("it is taken over", || client.try_lock("job").expect("an answer").is_some());
    let took = seen.elapsed();
    assert!(took + store.early >= left, "taken after {took:?}, with {left:?} left");
}

fn an_abandoned_lock_is_taken_over_at_the_end_of_its_lease(store: &Shared) {
    let workers = |lease| (worker(store, lease), worker(store, lease));
    assert_taken_at_the_end(store, LEASE, workers, |holder, _| {
        assert_eq!(holder.ask("abandon"), "abandoned");
        holder.end();
    });
}

fn a_released_lock_goes_to_the_waiter_at_once(store: &Shared) {
    store.measure();
    let (mut holder, mut waiter) = (worker(store, LONG), worker(store, LONG));
    let old = holder.token("lock job");
    waiter.tell("lock job");
    assert_eq!(waiter.answer_by(Instant::now() + millis(300)), None, "two hold it");
    assert_eq!(holder.ask("release job"), "released");
    let released = Instant::now();
    assert!(waiter.granted() > old);
    assert!(released.elapsed() <= store.slack(released), "it took {:?}", released.elapsed());
}

fn a_stopped_holder_knows_at_once_that_it_lost_the_lock(store: &Shared) {
    // This only proves something if the holder still held the lock when it was stopped, which a busy machine may
    // prevent.
    let told = (0..5).any(|doublings| is_told_after_a_stop(store, LEASE * 2_u32.pow(doublings)));
    assert!(told, "lost each time before the stop");
}

/// Returns `false` if the holder lost the lock before it was stopped.
fn is_told_after_a_stop(store: &Shared, lease: Duration) -> bool {
    // The rival's lease is so long that it keeps what it is granted, even if the machine stalls.
    let (mut holder, mut rival) = (worker(store, lease), worker(store, LONG));
    let mut resource = Resource::default();
    let old = holder.token("lock job");
    assert!(resource.write(old));
    holder.tell(&format!("stopped job {}", lease.as_millis()));
    assert_eq!(holder.answer(), "spinning");
    holder.stop();
    let stopped = Instant::now();
    let new = rival.token("lock job");
    assert!(resource.write(new));
    // Even if the stop came late in the lease, the holder must see the gap as a stop.
    wait_until("a whole lease has passed", || stopped.elapsed() > lease + millis(100));
    holder.go_on();
    let held = holder.answer();
    if held == "lost before the stop" {
        assert_eq!(rival.ask("release job"), "released");
        return false;
    }
    assert_eq!(held, "held false", "at its very first look");
    let loss = holder.ask("loss job");
    assert!(loss == "loss Expired" || loss == "loss TakenOver", "{loss}");
    let stale = holder.token("token job");
    assert!(!resource.write(stale), "the resource took {stale} after {new}");
    // Releasing the lost lock must leave the rival's grant alone.
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(rival.ask("held job"), "held true");
    let client = (store.client)();
    assert_eq!(client.get("job").expect("a look").expect("a row").fencing_token(), new);
    assert_eq!(client.try_lock("job").expect("an answer").map(drop), None);
    assert_eq!(rival.ask("release job"), "released");
    true
}

fn eight_processes_never_overlap(store: &Shared) {
    // A server takes longer for each grant. Seven processes that look all the time would keep it from granting; with
    // this poll they still look so often that several find the lock free at once.
    let (each, poll) = match store.module {
        "sqlite" => (250, millis(5)),
        // The emulator handles one transaction at a time.
        "spanner" => (40, millis(80)),
        _ => (60, millis(80)),
    };
    let worker = |_| Worker::polling(&store.url, MINUTE, poll, store.env.as_ref());
    exclude((0..8).map(worker).collect(), each);
}

/// Each of these processes enters the section `each` times, under the lock.
fn exclude(mut workers: Vec<Worker>, each: usize) {
    // Only the processes of two stores run at a time.
    static TURNS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) % TURNS.len();
    let _turn = TURNS[turn].lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    for worker in &mut workers {
        worker.tell(&format!("exclude job {each} {}", folder.path().display()));
    }
    let by = Instant::now() + 30 * PATIENCE;
    for worker in &workers {
        assert_eq!(worker.answer_by(by).as_deref(), Some("overlaps 0"));
    }
    let oracle = Oracle::new(folder.path(), "job");
    assert!(!oracle.saw_overlap());
    let tokens = oracle.tokens();
    assert_eq!(tokens.len(), workers.len() * each);
    assert_rising(&tokens);
}

/// The negative control: without the lock, the oracle does see overlaps. No store is needed for that.
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
    assert!(Oracle::new(folder.path(), "job").saw_overlap());
}

#[test]
fn two_processes_get_their_fair_share() {
    // While one of them does not run, the other gets all grants, which says nothing about fairness. The more grants
    // there are, the less such a stall counts.
    assert!([1000, 2000, 4000, 8000].into_iter().any(shares_are_fair), "one had far more than its share each time");
}

fn shares_are_fair(total: usize) -> bool {
    let (store, folder) = (of("sqlite").expect("a file"), Folder::new());
    let mut workers = [worker(&store, MINUTE), worker(&store, MINUTE)];
    // Neither has a head start: the first grant comes when both wait.
    let client = (store.client)();
    let held = client.lock("job").expect("a lock");
    for worker in &mut workers {
        worker.tell(&format!("share job 8 {total} {}", folder.path().display()));
        assert_eq!(worker.answer_by(Instant::now() + millis(200)), None, "two hold it");
    }
    drop(held);
    let by = Instant::now() + 30 * PATIENCE;
    let granted = workers.map(|worker| {
        let answer = worker.answer_by(by).expect("all grants are made");
        answer.strip_prefix("granted ").and_then(|count| count.parse::<usize>().ok()).expect("a number")
    });
    println!("{granted:?} of {total}");
    assert_eq!(granted.iter().sum::<usize>(), total);
    granted.iter().all(|count| (total * 3 / 10..=total * 7 / 10).contains(count))
}

/// DynamoDB, whose clients estimate the service's time; `None` if other processes can't be given another wall clock.
#[cfg(feature = "dynamodb")]
fn with_other_clocks() -> Option<Shared> {
    crate::support::faketime::is_there().then(|| of("dynamodb")).flatten()
}

/// A worker whose wall clock is this many seconds off, which the worker itself confirms.
fn off(store: &Shared, lease: Duration, seconds: i32) -> Worker {
    let mut worker = Worker::start_off(&store.url, lease, seconds);
    let told = worker.ask("wall");
    let told: i64 = told.strip_prefix("wall ").and_then(|millis| millis.parse().ok()).expect("a time");
    let off = told - wall_millis();
    // The answer may be late.
    assert!((off - i64::from(seconds) * 1_000).abs() < 15_000, "{off} ms instead of {seconds} s");
    worker
}

#[cfg(feature = "dynamodb")]
#[test]
fn wall_clocks_that_are_off_let_nobody_overlap() {
    // If wall clocks decided, this lease would be over for the process that is ahead. Even a busy machine does not let
    // it end.
    let lease = Duration::from_secs(20);
    if let Some(store) = with_other_clocks() {
        exclude([-30, 30, 0, -30, 30].into_iter().map(|seconds| off(&store, lease, seconds)).collect(), 20);
    }
}

#[cfg(feature = "dynamodb")]
#[test]
fn wall_clocks_that_are_off_take_nobody_over_early_or_late() {
    for (holds, waits) in [(-30, 30), (30, -30)] {
        let Some(store) = with_other_clocks() else { return };
        let workers = |lease| (off(&store, lease, holds), off(&store, lease, waits));
        // The lease is so long that heartbeats are answered in time, on a busy server and even if everything stalls for
        // long.
        assert_taken_at_the_end(&store, 4 * LEASE, workers, |holder, waiter| {
            assert_eq!(waiter.answer_by(Instant::now() + 2 * LEASE), None, "two hold it");
            assert_eq!(holder.ask("held job"), "held true");
            holder.kill();
        });
    }
}
