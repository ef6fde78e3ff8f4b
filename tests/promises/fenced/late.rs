//! Holders in processes of their own are stopped past their leases, before their transactions or in the middle of one,
//! and write when they go on: 200 times, while others use the store.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LockClient, LockGuard};

use crate::fenced::data::Data;
use crate::fenced::{LONG, Open, SHORT, Store, builder};
use crate::support::harness::{PATIENCE, connected, millis, release};
use crate::support::process::Worker;
use crate::support::worker::say;

const PROCESSES: u32 = 4;
const KEYS: u32 = 10;

pub fn a_holder_that_wakes_too_late_never_writes<S: Store>(open: &Open<S>) {
    assert_eq!(late_writes(open, 5, "fenced"), (200, 0));
}

/// The negative control.
pub fn without_the_assertion_the_late_write_gets_through<S: Store>(open: &Open<S>) {
    assert_eq!(late_writes(open, 1, "bare"), (40, 40));
}

/// How many late writes there were, and how many of them got through.
fn late_writes<S: Store>(open: &Open<S>, rounds: u32, how: &str) -> (u32, u32) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| load(open, &over));
        let processes: Vec<_> =
            (0..PROCESSES).map(|process| scope.spawn(move || writes(open, process, rounds, how))).collect();
        let late: Vec<_> = processes.into_iter().map(|process| process.join()).collect();
        // The load must end, even if one of them failed.
        over.store(true, Ordering::Relaxed);
        (PROCESSES * KEYS * rounds, late.into_iter().map(|late| late.unwrap()).sum())
    })
}

/// What other clients do with the store meanwhile.
fn load<S: Store>(open: &Open<S>, over: &AtomicBool) {
    let (client, mut count) = (open.client(LONG), 0);
    while !over.load(Ordering::Relaxed) {
        let guard = client.lock("busy").unwrap();
        open.data.write(&guard, "busy", &count.to_string()).unwrap();
        release(guard);
        count += 1;
        // The pause keeps this load from taking all that the store has.
        thread::sleep(millis(100));
    }
    println!("{}: {count} others wrote meanwhile", S::NAME);
}

fn writes<S: Store>(open: &Open<S>, process: u32, rounds: u32, how: &str) -> u32 {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("{process}-{key}")).collect();
    let mut holder = Worker::start_as("fenced::worker", &open.url, SHORT);
    let rival = open.client(LONG);
    let mut late = 0;
    for round in 0..rounds {
        holder.tell(&format!("take {}", keys.join(" ")));
        // If a busy store grants a lock only after the end of its lease, the lock is asked for again.
        let tokens = holder.answer_by(Instant::now() + 20 * PATIENCE).expect("all are granted");
        let tokens: Vec<u64> = tokens.split(' ').map(|token| token.parse().unwrap()).collect();
        assert_eq!(holder.ask(&format!("write {how} {round}")), "in the middle of a transaction");
        holder.stop();
        let guards: Vec<LockGuard> = keys.iter().map(|key| rival.lock(key).unwrap()).collect();
        for ((key, guard), token) in keys.iter().zip(&guards).zip(tokens) {
            assert!(guard.fencing_token() > token);
            open.data.write(guard, key, "the rival's").unwrap();
        }
        holder.go_on();
        let answers = holder.ask("go on");
        for (key, answer) in keys.iter().zip(answers.split(' ')) {
            let through = open.data.text(key).as_deref() != Some("the rival's");
            assert_eq!(answer, if through { "written" } else { "Lost" }, "{key} in round {round}");
            late += u32::from(through);
        }
        guards.into_iter().for_each(release);
    }
    late
}

/// What the other process does, following the lines of its standard input: it takes locks, and writes for each of them.
/// For the first one it is stopped in the middle of the transaction.
pub fn holder<S: Store>(url: &str, lease: Duration) {
    let client = connected(|| builder::<S>(url).lease(lease));
    holds(&client, &S::data(url));
}

fn holds(client: &LockClient, data: &impl Data) {
    let mut guards: Vec<LockGuard> = Vec::new();
    say("connected");
    while let Some(line) = next_line() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["take", ref keys @ ..] => {
                guards = keys.iter().map(|key| client.lock(key).unwrap()).collect();
                let tokens: Vec<String> = guards.iter().map(|guard| guard.fencing_token().to_string()).collect();
                say(&tokens.join(" "));
            }
            ["write", how, round] => {
                let text = format!("written late in round {round}");
                let answers = guards.drain(..).enumerate().map(|(n, guard)| write(data, &guard, &text, how, n == 0));
                let answers: Vec<String> = answers.collect();
                say(&answers.join(" "));
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

fn write(data: &impl Data, guard: &LockGuard, text: &str, how: &str, is_first: bool) -> String {
    // The transaction may be begun again, but is stopped once.
    let mut stops = is_first;
    let mut meanwhile = || {
        if std::mem::take(&mut stops) {
            say("in the middle of a transaction");
            assert_eq!(next_line().as_deref(), Some("go on"));
        }
    };
    if how == "bare" {
        data.write_bare(guard.key(), text, &mut meanwhile);
        return "written".to_owned();
    }
    match data.transact(Some(guard), guard.key(), text, &mut meanwhile) {
        Ok(_) => "written".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

pub fn next_line() -> Option<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("a command");
    line.strip_suffix('\n').map(str::to_owned)
}
