//! Processes, each with a client and an estimate of its own.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use leasehold::LockClient;

use crate::common::dynamodb::Table;
use crate::common::stores::unique;
use crate::*;

const WORKERS: usize = 6;
const ROUNDS: usize = 25;

fn connect(table: &str, lease: Duration) -> LockClient {
    let poll = Duration::from_millis(1)..=Duration::from_millis(10);
    leasehold::dynamodb::builder(config(), table).lease(lease).poll(poll).connect().unwrap()
}

/// Another process that runs one of the ignored tests below.
fn start(test: &str, table: &str, folder: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LEASEHOLD_TEST_TABLE", table)
        .env("LEASEHOLD_TEST_FOLDER", folder)
        .env("LEASEHOLD_TEST_DYNAMODB_ENDPOINT", common::servers::dynamodb_local().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn var(name: &str) -> String {
    std::env::var(name).unwrap()
}

#[test]
fn many_processes_exclude_each_other() {
    needs_server!();
    let table = Table::fresh();
    let folder = std::env::temp_dir().join(format!("leasehold-dynamodb-{}", unique()));
    std::fs::create_dir(&folder).unwrap();
    let workers: Vec<Child> =
        (0..WORKERS).map(|_| start("processes::works", &table.0, folder.to_str().unwrap())).collect();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let tokens: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), WORKERS * ROUNDS);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise over all processes");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn works() {
    // Only as a process of many_processes_exclude_each_other.
    if std::env::var_os("LEASEHOLD_TEST_TABLE").is_none() {
        return;
    }
    let client = connect(&var("LEASEHOLD_TEST_TABLE"), Duration::from_secs(20));
    let folder = PathBuf::from(var("LEASEHOLD_TEST_FOLDER"));
    for _ in 0..ROUNDS {
        let guard = client.lock("k").unwrap();
        // Fails if anybody else is inside.
        OpenOptions::new().write(true).create_new(true).open(folder.join("inside")).unwrap();
        let mut log = OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
        log.write_all(format!("{}\n", guard.fencing_token()).as_bytes()).unwrap();
        std::fs::remove_file(folder.join("inside")).unwrap();
        guard.release().unwrap();
    }
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_after_its_lease_and_the_grace() {
    needs_server!();
    let table = Table::fresh();
    let mut holder = start("processes::holds", &table.0, "");
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let token: u64 =
        lines.map(|line| line.unwrap()).find_map(|line| line.strip_prefix("token ")?.parse().ok()).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let client = connect(&table.0, Duration::from_secs(20));
    let left = client.get("k").unwrap().unwrap().holders()[0].remaining().unwrap();
    let seen = Instant::now();
    let guard = client.lock("k").unwrap();
    let took = seen.elapsed();
    assert!(guard.fencing_token() > token);
    let grace = Dynamodb::GRACE;
    assert!(took + Duration::from_millis(50) >= left, "{took:?} of {left:?}");
    assert!(took < left + grace + Duration::from_millis(1_500), "{took:?} with {left:?} left");
    println!("taken over {:?} after the lease's end as it was read", took.saturating_sub(left));
}

#[test]
fn holds() {
    // Only as a process of the_lock_of_a_killed_process_is_taken_over_after_its_lease_and_the_grace.
    if std::env::var_os("LEASEHOLD_TEST_TABLE").is_none() {
        return;
    }
    let client = connect(&var("LEASEHOLD_TEST_TABLE"), Duration::from_secs(2));
    let guard = client.lock("k").unwrap();
    println!("\ntoken {}", guard.fencing_token());
    std::thread::sleep(Duration::from_secs(60));
}
