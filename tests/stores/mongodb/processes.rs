//! Locks in MongoDB among real processes: killed, stopped, and all at once.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::support::harness::{Folder, SLACK, millis};
use crate::support::mongodb::Rows;
use crate::support::oracle::{Oracle, assert_rising};
use crate::support::process::Worker;
use leasehold::LockClient;

const LEASE: Duration = millis(3_000);
const LONG: Duration = Duration::from_secs(600);

/// A collection of its own, if there is a server.
fn rows() -> Option<Rows> {
    crate::support::servers::mongod().map(|_| Rows::fresh())
}

#[test]
fn a_killed_holder_is_taken_over_at_the_end_of_its_lease() {
    let Some(rows) = rows() else { return };
    let mut holder = Worker::start(&rows.url(), LEASE);
    let mut waiter = Worker::start(&rows.url(), LEASE);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    holder.kill();
    let client = LockClient::connect(&rows.url()).unwrap();
    let status = client.get("job").unwrap().unwrap();
    let (left, seen) = (status.holders()[0].remaining().unwrap(), Instant::now());
    let token = waiter.granted();
    let took = seen.elapsed();
    assert!(token > old, "{token} after {old}");
    assert!(took + millis(20) >= left && took <= left + SLACK, "taken after {took:?}, with {left:?} left");
}

#[test]
fn a_stopped_holder_knows_that_it_lost() {
    let Some(rows) = rows() else { return };
    let mut holder = Worker::start(&rows.url(), LEASE);
    let mut rival = Worker::start(&rows.url(), LEASE);
    let old = holder.token("lock job");
    holder.stop();
    assert!(rival.token("lock job") > old);
    holder.go_on();
    assert_eq!(holder.ask("held job"), "held false");
    assert!(["loss Expired", "loss TakenOver"].contains(&holder.ask("loss job").as_str()));
    assert_eq!(rival.ask("held job"), "held true");
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(rival.ask("release job"), "released");
}

#[test]
fn a_released_lock_goes_to_the_waiter_of_another_process_at_once() {
    let Some(rows) = rows() else { return };
    let mut holder = Worker::start(&rows.url(), LONG);
    let mut waiter = Worker::start(&rows.url(), LONG);
    let old = holder.token("lock job");
    waiter.tell("lock job");
    assert_eq!(waiter.answer_by(Instant::now() + millis(300)), None, "two hold it");
    assert_eq!(holder.ask("release job"), "released");
    let released = Instant::now();
    assert!(waiter.granted() > old);
    assert!(released.elapsed() <= SLACK, "it took {:?}", released.elapsed());
}

const PROCESSES: usize = 8;
const ROUNDS: usize = 5;
const EACH: usize = 50;

#[test]
fn eight_processes_exclude_each_other_two_thousand_times() {
    let Some(rows) = rows() else { return };
    let folder = Folder::new();
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&rows.url(), LONG)).collect();
    for _ in 0..ROUNDS {
        let command = format!("exclude job {EACH} {}", folder.path().display());
        workers.iter_mut().for_each(|worker| worker.tell(&command));
        for worker in &workers {
            let answer = worker.answer_by(Instant::now() + Duration::from_secs(180));
            assert_eq!(answer.as_deref(), Some("overlaps 0"));
        }
    }
    let oracle = Oracle::new(folder.path(), "job");
    assert!(!oracle.saw_overlap());
    let tokens = oracle.tokens();
    assert_eq!(tokens.len(), PROCESSES * ROUNDS * EACH);
    assert_rising(&tokens);
}

/// Without the lock the oracle sees them meet: else the test above would prove nothing.
#[test]
fn without_the_lock_they_meet() {
    let Some(rows) = rows() else { return };
    let folder = Folder::new();
    let mut workers: Vec<Worker> = (0..2).map(|_| Worker::start(&rows.url(), LONG)).collect();
    let command = format!("intrude job {}", folder.path().display());
    workers.iter_mut().for_each(|worker| worker.tell(&command));
    let mut answers: Vec<String> = workers.iter().map(Worker::answer).collect();
    answers.sort();
    assert_eq!(answers, ["overlaps 0", "overlaps 1"]);
    assert!(Oracle::new(folder.path(), "job").saw_overlap());
}
