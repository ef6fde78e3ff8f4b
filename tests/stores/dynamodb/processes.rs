//! Processes, each with a client and an estimate of its own: all at once, killed, stopped, and with wall clocks that
//! are off.

use std::process::Command;
use std::time::Instant;

use leasehold::LockClient;

use crate::dynamodb::*;
use crate::support::dynamodb::Table;
use crate::support::harness::{Folder, PATIENCE, SLACK, millis};
use crate::support::oracle::{Oracle, Resource, assert_rising};
use crate::support::process::Worker;
use crate::support::servers::{dynamodb_local, skip};
use crate::support::wait::wait_until;
use crate::support::worker::wall_millis;

const LEASE: Duration = millis(2_000);
const LONG: Duration = Duration::from_secs(20);
/// What two clients may take the service's time to be apart, and a holder's own time to be behind.
const APART: Duration = millis(1_100);

fn url(table: &Table) -> String {
    format!("dynamodb://{}?region=us-east-1&endpoint={}", table.0, dynamodb_local().unwrap())
}

fn bystander(table: &Table) -> LockClient {
    leasehold::dynamodb::builder(config(), &table.0).connect().unwrap()
}

/// So many processes enter the section that often each, under the lock.
fn exclude(mut workers: Vec<Worker>, each: usize) {
    let folder = Folder::new();
    for worker in &mut workers {
        worker.tell(&format!("exclude job {each} {}", folder.path().display()));
    }
    let by = Instant::now() + 6 * PATIENCE;
    for worker in &workers {
        assert_eq!(worker.answer_by(by).as_deref(), Some("overlaps 0"));
    }
    let tokens = Oracle::new(folder.path(), "job").tokens();
    assert_eq!(tokens.len(), workers.len() * each);
    assert_rising(&tokens);
}

#[test]
fn eight_processes_never_overlap_in_2000_acquisitions() {
    needs_server!();
    let url = url(&Table::fresh());
    exclude((0..8).map(|_| Worker::start(&url, LONG)).collect(), 250);
}

/// The negative control: the oracle does see what happens without the lock.
#[test]
fn processes_without_the_lock_do_overlap() {
    needs_server!();
    let (url, folder) = (url(&Table::fresh()), Folder::new());
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start(&url, LEASE)).collect();
    for worker in &mut workers {
        worker.tell(&format!("intrude job {}", folder.path().display()));
    }
    let answers: Vec<String> = workers.iter().map(Worker::answer).collect();
    assert!(answers.iter().any(|answer| answer == "overlaps 1"), "{answers:?}");
}

/// Kills the holder; whoever waits gets the lock after the lease and the grace, not before and not much after.
#[track_caller]
fn kill_and_take_over(table: &Table, holder: &mut Worker, waiter: &Worker, old: u64) {
    holder.kill();
    let status = bystander(table).get("job").unwrap().unwrap();
    let (left, seen) = (status.holders()[0].remaining().unwrap(), Instant::now());
    let new = waiter.granted();
    let took = seen.elapsed();
    assert!(new > old, "{new} after {old}");
    // Both read the service's time; each is off by half a second at most.
    assert!(took + APART >= left + Dynamodb::GRACE, "taken after {took:?}, with {left:?} left");
    assert!(took <= left + Dynamodb::GRACE + APART + SLACK, "taken after {took:?}, with {left:?} left");
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_after_its_lease_and_the_grace() {
    needs_server!();
    let table = Table::fresh();
    let (mut holder, mut waiter) = (Worker::start(&url(&table), LEASE), Worker::start(&url(&table), LEASE));
    let old = holder.token("lock job");
    waiter.tell("lock job");
    kill_and_take_over(&table, &mut holder, &waiter, old);
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_by_one_that_comes_late_and_asks_once() {
    needs_server!();
    let table = Table::fresh();
    let mut holder = Worker::start(&url(&table), LEASE);
    let old = holder.token("lock job");
    holder.kill();
    let client = bystander(&table);
    wait_until("the lease ends", || client.get("job").unwrap().unwrap().is_free());
    std::thread::sleep(Dynamodb::GRACE + APART);
    // It never saw the holder alive, and asks once.
    assert!(Worker::start(&url(&table), LEASE).token("try job") > old);
}

#[test]
fn a_stopped_process_knows_at_once_that_it_lost_the_lock() {
    needs_server!();
    let table = Table::fresh();
    let (mut holder, mut rival) = (Worker::start(&url(&table), LEASE), Worker::start(&url(&table), LEASE));
    let mut resource = Resource::default();
    let old = holder.token("lock job");
    assert!(resource.write(old));
    holder.tell(&format!("stopped job {}", LEASE.as_millis()));
    assert_eq!(holder.answer(), "spinning");
    let stopped = Instant::now();
    holder.stop();
    let new = rival.token("lock job");
    assert!(resource.write(new));
    wait_until("a whole lease has passed", || stopped.elapsed() > LEASE + millis(100));
    holder.go_on();
    assert_eq!(holder.answer(), "held false");
    let stale = holder.token("token job");
    assert!(!resource.write(stale), "the resource took {stale} after {new}");
    // The release of what is lost leaves the rival alone.
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(rival.ask("held job"), "held true");
    assert!(bystander(&table).try_lock("job").unwrap().is_none());
}

/// Whether other processes can be given another wall clock.
fn has_faketime() -> bool {
    let is_there = Command::new("faketime").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip("no program `faketime`; install it (on Debian: faketime)");
    }
    is_there
}

/// A worker whose wall clock is so many seconds off, as it says itself.
fn off(url: &str, seconds: i32) -> Worker {
    let mut worker = Worker::start_off(url, LEASE, seconds);
    let told = worker.ask("wall");
    let told: i64 = told.strip_prefix("wall ").and_then(|millis| millis.parse().ok()).expect("a time");
    let off = told - wall_millis();
    assert!((off - i64::from(seconds) * 1_000).abs() < 5_000, "{off} ms instead of {seconds} s");
    worker
}

#[test]
fn wall_clocks_that_are_off_let_nobody_overlap() {
    needs_server!();
    if has_faketime() {
        let url = url(&Table::fresh());
        exclude([-30, 30, 0, -30, 30].into_iter().map(|seconds| off(&url, seconds)).collect(), 40);
    }
}

#[test]
fn wall_clocks_that_are_off_take_nobody_over_early_or_late() {
    needs_server!();
    if !has_faketime() {
        return;
    }
    for (holds, waits) in [(-30, 30), (30, -30)] {
        let table = Table::fresh();
        let (mut holder, mut waiter) = (off(&url(&table), holds), off(&url(&table), waits));
        let old = holder.token("lock job");
        waiter.tell("lock job");
        assert_eq!(waiter.answer_by(Instant::now() + 2 * LEASE), None, "two hold it");
        assert_eq!(holder.ask("held job"), "held true");
        kill_and_take_over(&table, &mut holder, &waiter, old);
    }
}
