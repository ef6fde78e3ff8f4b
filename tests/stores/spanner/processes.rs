//! Locks in Cloud Spanner among real processes: killed, stopped, and all at once.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::support::harness::{Folder, SLACK, millis};
use crate::support::oracle::{Oracle, Resource, assert_rising};
use crate::support::process::Worker;
use crate::support::servers::spanner_emulator;
use crate::support::spanner::{Database, TABLE, settings};
use leasehold::LockClient;

const LEASE: Duration = millis(2_000);
const PROCESSES: u32 = 8;
const EACH: u32 = 125;
/// For all of them, on an emulator that does one transaction at a time.
const ALL: Duration = Duration::from_secs(400);

fn start(database: &Database, lease: Duration) -> Worker {
    let url = format!("spanner:{}?table={TABLE}", database.path);
    Worker::start_at(&database.host, &url, lease)
}

fn bystander(database: &Database) -> LockClient {
    leasehold::spanner::builder(settings(&database.host), &database.path, TABLE).connect().expect("a client")
}

#[test]
fn a_killed_holder_is_taken_over_at_the_end_of_its_lease() {
    if spanner_emulator().is_none() {
        return;
    }
    let database = Database::fresh();
    let (mut holder, mut waiter) = (start(&database, LEASE), start(&database, LEASE));
    let client = bystander(&database);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    holder.kill();
    let status = client.get("job").expect("a look").expect("a row");
    let (left, seen) = (status.holders()[0].remaining().expect("a lease with an end"), Instant::now());
    let token = waiter.granted();
    let took = seen.elapsed();
    assert!(token > old, "{token} after {old}");
    // The answer that told what was left may have been on its way for a while.
    assert!(took + millis(100) >= left, "taken after {took:?}, with {left:?} left");
    assert!(took <= left + SLACK, "taken after {took:?}, with {left:?} left");
    println!("taken over {:?} after the lease's end as it was read", took.saturating_sub(left));
}

#[test]
fn a_stopped_holder_knows_that_it_is_lost_and_its_token_is_refused() {
    if spanner_emulator().is_none() {
        return;
    }
    let database = Database::fresh();
    let (mut holder, mut rival) = (start(&database, LEASE), start(&database, LEASE));
    let old = holder.token("lock job");
    holder.tell("stopped job 1000");
    assert_eq!(holder.answer(), "spinning");
    holder.stop();
    let new = rival.token("lock job");
    holder.go_on();
    assert_eq!(holder.answer(), "held false", "at its very first look");
    assert!(["loss Expired", "loss TakenOver"].contains(&holder.ask("loss job").as_str()));
    let mut resource = Resource::default();
    assert!(resource.write(new) && !resource.write(old));
    assert_eq!(rival.ask("held job"), "held true");
    // What it still sends frees nobody else.
    holder.ask("release job");
    assert_eq!(rival.ask("held job"), "held true");
    assert_eq!(bystander(&database).get("job").unwrap().unwrap().fencing_token(), new);
}

#[test]
fn eight_processes_exclude_each_other_a_thousand_times() {
    if spanner_emulator().is_none() {
        return;
    }
    let (database, folder) = (Database::fresh(), Folder::new());
    // Nothing is lost on a busy machine: a lease is longer than all of it.
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start(&database, ALL)).collect();
    let (started, shown) = (Instant::now(), folder.path().display());
    for worker in &mut workers {
        worker.tell(&format!("exclude job {EACH} {shown}"));
    }
    for worker in &workers {
        assert_eq!(worker.answer_by(started + ALL).expect("an answer"), "overlaps 0");
    }
    let oracle = Oracle::new(folder.path(), "job");
    assert!(!oracle.saw_overlap());
    let tokens = oracle.tokens();
    assert_eq!(tokens.len(), (PROCESSES * EACH) as usize);
    assert_rising(&tokens);
    println!("{} acquisitions in {:?}", tokens.len(), started.elapsed());

    // The negative control: without the lock they meet, and the oracle sees it.
    for worker in &mut workers {
        worker.tell(&format!("intrude other {shown}"));
    }
    let met = workers.iter().filter(|worker| worker.answer() == "overlaps 1").count();
    assert!(met > 0 && Oracle::new(folder.path(), "other").saw_overlap());
}
