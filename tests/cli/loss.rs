//! A lock that is lost while the command runs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::SystemTime;

use leasehold::LockClient;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::{Running, Store, run};

/// Takes the lock away, as an operator does.
fn take_away(client: &LockClient) {
    let key = client.get("k").unwrap().unwrap();
    assert_eq!(client.unlock(key.holders()[0].lock_id()).unwrap().len(), 1);
}

#[test]
fn the_command_gets_term() {
    let store = Store::new();
    let script = "trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
    let mut running = Running::start(&mut store.reading(&["--lease", "6s", "--kill-after", "1s"], script));
    running.expect("ready");
    take_away(&store.client());
    running.expect("term");
    let ran = running.end();
    assert_eq!(ran.code, Some(76), "not the command's own");
    assert!(ran.stderr.starts_with("leasehold: the lock \"k\" was lost: released by another after "), "{}", ran.stderr);
}

#[test]
fn grandchildren_get_term() {
    let store = Store::new();
    let script = "sleep 1000 & echo ready; sleep 1000; echo not reached";
    let mut running = Running::start(&mut store.script(&["--lease", "3s", "--kill-after", "0s"], script));
    running.expect("ready");
    take_away(&store.client());
    running.output_ends();
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "ready\n"));
}

/// Nothing of the command may run when another could be granted the lock.
#[test]
fn who_ignores_term_is_killed_before_the_lease_ends() {
    let store = Store::new();
    // What only the command and its children have.
    let fifo = store.path("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let script =
        "exec >$FIFO; trap '' TERM; sh -c 'while :; do sleep 0.05; done' & echo ready; while :; do sleep 0.05; done";
    let mut command = store.script(&["--lease", "6s", "--kill-after", "1s"], script);
    let running = Running::start(command.env("FIFO", &fifo));
    let mut output = BufReader::new(File::open(&fifo).unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let client = store.client();
    // Heartbeats can't be written any more.
    let db = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let end = client.get("k").unwrap().unwrap().holders()[0].leased_until().unwrap();
    assert_eq!(output.read_line(&mut line).unwrap(), 0, "nobody has it any more");
    let now = SystemTime::now();
    assert!(now < end, "it ran on for {:?}", now.duration_since(end));
    drop(db);
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("was lost: expired"), "{}", ran.stderr);
}

#[test]
fn the_command_may_be_told_or_left_alone() {
    let store = Store::new();
    let script = "trap 'echo usr1; exit 3' USR1; echo ready; while :; do read never; done";
    let mut running = Running::start(&mut store.reading(&["--lease", "1s", "--on-loss", "signal:usr1"], script));
    running.expect("ready");
    take_away(&store.client());
    running.expect("usr1");
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("the command gets SIGUSR1"), "{}", ran.stderr);

    let script = "echo ready; read go; echo went on; exit 3";
    let mut running = Running::start(&mut store.reading(&["--lease", "1s", "--on-loss", "ignore", "-v"], script));
    running.expect("ready");
    take_away(&store.client());
    let rival = store.client().lock("k").unwrap();
    // The next heartbeat notices.
    running.says("the command goes on");
    running.tell("go");
    running.expect("went on");
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(rival.is_held(), "the late release took nothing away");
}

#[test]
fn machines_are_told_as_json() {
    let store = Store::new();
    let options = ["--json", "-v", "--lease", "3s", "--kill-after", "0s", "--max-hold", "300ms"];
    let ran = run(&mut store.script(&options, "exec sleep 1000"));
    let lines = ran.stderr.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    assert!(lines.count() >= 2 && ran.code == Some(76), "{}", ran.stderr);
}

#[test]
fn a_command_that_hangs_is_ended_by_max_hold() {
    let store = Store::new();
    let options = ["--lease", "3s", "--kill-after", "0s", "--max-hold", "300ms"];
    let ran = run(&mut store.script(&options, "exec sleep 1000"));
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("held for as long as max_hold allows"), "{}", ran.stderr);
}
