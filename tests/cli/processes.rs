//! Many processes at once, on each store that processes can share.

use std::fs;

use crate::shared::{Shared, on_each_server};
use crate::support::{Running, Store, leasehold, run_until_answered};

const PROCESSES: u32 = 6;
const ROUNDS: u32 = 4;

/// Each process adds one to a number in a file, again and again: it reads, waits a moment, and writes. The sum is right
/// only if no other process comes in between. Each also writes down its token.
#[track_caller]
fn counts_right(shared: &Shared) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let count = folder.join("count");
    fs::write(&count, "0\n").unwrap();
    let script = "read n < count; sleep 0.01; echo $((n + 1)) > count; echo $LEASEHOLD_TOKEN >> tokens";
    let command = |n: u32| {
        let binary = env!("CARGO_BIN_EXE_leasehold");
        let rounds =
            format!("for i in $(seq {ROUNDS}); do {binary} run count --owner p{n} -- sh -c '{script}' || exit; done");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &rounds]).current_dir(folder).env("LEASEHOLD_STORE", &shared.url);
        command.envs(shared.env.clone());
        command
    };
    let all: Vec<Running> = (0..PROCESSES).map(|n| Running::start(&mut command(n))).collect();
    for running in all {
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!(fs::read_to_string(&count).unwrap(), format!("{}\n", PROCESSES * ROUNDS));
    let tokens = fs::read_to_string(folder.join("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise: {tokens:?}");
    let mut status = leasehold(&["status", "--json"]);
    let ran = run_until_answered(status.env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone()));
    assert_eq!(ran.stdout, "[]\n", "{}", ran.stderr);
}

#[test]
fn on_sqlite() {
    let store = Store::new();
    counts_right(&Shared { url: store.url.clone(), env: Vec::new() });
}

on_each_server!(counts_right, "counts");
