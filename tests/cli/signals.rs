//! Signals to leasehold, and its end by one.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Running, Store, run, until};

/// Says which signals it gets, until TERM.
const TELLS: &str = "for s in INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done
trap 'echo TERM; exit 7' TERM; echo ready; while :; do read never; done";

#[test]
fn signals_are_passed_on() {
    let store = Store::new();
    let mut running = Running::start(&mut store.reading(&[], TELLS));
    running.expect("ready");
    for signal in ["INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "TERM"] {
        running.signal(format!("SIG{signal}").parse().unwrap());
        running.expect(signal);
    }
    assert_eq!(running.end().code, Some(7));
}

#[test]
fn signals_reach_grandchildren() {
    let store = Store::new();
    let deep = "trap \"echo deep; exit\" TERM; echo ready; while :; do read never; done";
    let script = format!("exec 3<&0; trap : TERM; sh -c '{deep}' <&3 & wait; wait");
    let mut running = Running::start(&mut store.reading(&[], &script));
    running.expect("ready");
    running.signal(Signal::SIGTERM);
    running.expect("deep");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn what_was_ignored_stays_ignored() {
    let store = Store::new();
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_leasehold")).args(["run", "k", "--", "sh", "-c"]);
    command.args(["echo ready; kill -HUP $$; read go; echo went on"]).env("LEASEHOLD_STORE", &store.url);
    let mut running = Running::start(command.stdin(std::process::Stdio::piped()));
    running.expect("ready");
    running.signal(Signal::SIGHUP);
    running.tell("go");
    running.expect("went on");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let store = Store::new();
    let guard = store.client().lock("k").unwrap();
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129), (Signal::SIGQUIT, 131)]
    {
        let command = &mut store.script(&["-vv"], "echo never");
        let mut waiting = Running::start(command);
        // Its handlers stand before it asks for the first time.
        until("it waits", || threads(&waiting).iter().any(|name| name.starts_with("leasehold-wait")));
        waiting.signal(signal);
        assert_eq!(waiting.status().code(), Some(code));
        let ran = waiting.end();
        assert_eq!(ran.stdout, "");
    }
    assert_eq!(store.client().get("k").unwrap().unwrap().holders().len(), 1);
    drop(guard);
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

fn threads(running: &Running) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).into_iter().flatten().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
}

#[test]
fn a_killed_leasehold_takes_its_command_along() {
    let store = Store::new();
    let mut running =
        Running::start(&mut store.leasehold(&["run", "k", "--", "sh", "-c", "echo ready; exec sleep 1000"]));
    running.expect("ready");
    running.signal(Signal::SIGKILL);
    // The command had the other end.
    running.output_ends();
    assert!(!store.client().get("k").unwrap().unwrap().is_free(), "nobody released it: it ends with its lease");
}

#[test]
fn the_command_has_the_signal_masks_of_any_other() {
    let store = Store::new();
    // Not by a shell, which may change them.
    let args = ["-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let plain = run(Command::new("grep").args(args));
    assert_eq!(run(store.leasehold(&["run", "k", "--", "grep"]).args(args)).stdout, plain.stdout);
}

#[test]
fn the_lock_is_kept_until_all_of_the_group_is_gone() {
    let store = Store::new();
    // The shell is gone and was waited for, what it started is not.
    let stays = "while kill -0 $0 2>/dev/null; do sleep 0.01; done; echo ready; read go; exit 9";
    let script = format!("exec 3<&0; sh -c '{stays}' $$ <&3 3<&- & exit 5");
    let mut running = Running::start(&mut store.reading(&[], &script));
    running.expect("ready");
    assert!(store.client().try_lock_for("k", Duration::from_secs(1)).unwrap().is_none());
    running.tell("go");
    assert_eq!(running.end().code, Some(5), "the command's own code");
    assert!(store.client().try_lock("k").unwrap().is_some());
}
