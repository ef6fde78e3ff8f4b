//! `--health-cmd`: the lock is released while the check fails.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::shared::{Shared, on_each_server};
use crate::support::{Running, Store, full_pipe, leasehold, lines_after, run, state, wait_until_reaped};
use crate::wait::wait_until;

/// A check that gets the time it needs on a busy machine.
const OFTEN: [&str; 4] = ["--health-interval", "50ms", "--health-timeout", "60s"];
const LEASE: [&str; 4] = ["--lease", "30s", "--kill-after", "5s"];

fn options<'a>(check: &'a str, others: &[&'a str]) -> Vec<&'a str> {
    [&["--health-cmd", check][..], &OFTEN, &LEASE, others].concat()
}

#[test]
fn the_command_is_ended_and_the_lock_given_back_once_it_has_failed_often_enough() {
    let store = Store::new();
    let (sick, asked) = (store.path("sick"), store.path("asked"));
    let script = "trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
    let check = "kill -0 $LEASEHOLD_PID && echo $LEASEHOLD_KEY $LEASEHOLD_TOKEN >>$ASKED && test ! -e $SICK || exit 7";
    let mut command = store.reading(&options(check, &["--health-retries", "2"]), script);
    let mut running = Running::ready(command.env("SICK", &sick).env("ASKED", &asked));
    let asked = || fs::read_to_string(&asked).unwrap_or_default();
    wait_until("it was asked often", || asked().lines().count() >= 4);
    let token = store.client().get("k").unwrap().unwrap().holders()[0].fencing_token();
    assert_eq!(asked().lines().next().unwrap(), format!("k {token}"));
    fs::write(&sick, "").unwrap();
    running.expect("term");
    let ran = running.end();
    assert_eq!(ran.code, Some(80), "{}", ran.stderr);
    let said = "leasehold: the lock \"k\" is given back, since --health-cmd failed 2 times in a row: it ended with 7; \
                the command gets TERM now, and KILL in 5 s if it still runs\n";
    assert_eq!(ran.stderr, said);
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn what_fails_now_and_then_costs_nothing() {
    let store = Store::new();
    let asked = store.path("asked");
    // Every second check fails.
    let check = "echo >>$ASKED; test $(($(wc -l <$ASKED) % 2)) = 0";
    let mut command = store.reading(&options(check, &["--health-retries", "2"]), "echo ready; read go; exit 4");
    let mut running = Running::ready(command.env("ASKED", &asked));
    wait_until("it was asked often", || fs::read_to_string(&asked).unwrap_or_default().lines().count() >= 6);
    running.tell("go");
    let ran = running.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(4), ""));
}

/// Everything that the check has started is killed, too.
#[test]
fn a_check_that_hangs_has_failed_and_is_killed() {
    let store = Store::new();
    let fifo = store.fifo();
    let check = "exec >$FIFO; sh -c 'echo asked; sleep 1000'; true";
    let options =
        ["--health-cmd", check, "--health-interval", "50ms", "--health-timeout", "8s", "--health-retries", "1"];
    // A command that ignores TERM is killed.
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = store.script(&[&options[..], &["--kill-after", "100ms"]].concat(), script);
    let mut running = Running::ready(command.env("FIFO", &fifo));
    let output = lines_after("asked", &fifo);
    output.end();
    running.output_ends();
    let ran = running.end();
    assert_eq!(ran.code, Some(80));
    assert!(ran.stderr.contains("--health-cmd failed: it took more than 8 s; the command gets TERM"), "{}", ran.stderr);
}

#[test]
fn who_was_told_to_end_is_not_asked_any_more() {
    let store = Store::new();
    let (sick, asked) = (store.path("sick"), store.path("asked"));
    let script = "trap 'echo term; read go; exit 5' TERM; echo ready; while :; do read never; done";
    let check = "echo >>$ASKED; test ! -e $SICK";
    let mut command = store.reading(&[&options(check, &[])[..2], &OFTEN, &["--health-retries", "1"]].concat(), script);
    let mut running = Running::ready(command.env("SICK", &sick).env("ASKED", &asked));
    let asked = || fs::read_to_string(&asked).unwrap_or_default().len();
    wait_until("it is asked", || asked() > 0);
    running.signal(Signal::SIGTERM);
    running.expect("term");
    fs::write(&sick, "").unwrap();
    running.tell("go");
    let ran = running.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(5), ""));
}

/// Messages about the check must not delay anything.
#[test]
fn a_standard_error_that_nobody_reads_keeps_no_lock() {
    let store = Store::new();
    let (reader, full, _) = full_pipe();
    let mut command =
        store.script(&options("echo much; echo more >&2; false", &["--health-retries", "1"]), "exec sleep 1000");
    let mut child = command.stderr(full).spawn().unwrap();
    drop(command);
    assert_eq!(child.wait().unwrap().code(), Some(80));
    drop(reader);
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn a_period_in_which_it_failed_is_due_again() {
    let store = Store::new();
    let every = ["--every", "1h", "--health-retries", "1"];
    let sick = store.path("sick");
    let script = "trap 'exit 0' TERM; echo ready; while :; do read never; done";
    let mut command = store.reading(&options("test ! -e $SICK", &every), script);
    let mut running = Running::ready(command.env("SICK", &sick));
    fs::write(&sick, "").unwrap();
    assert_eq!(running.status().code(), Some(80));
    assert_eq!(run(&mut store.script(&["--every", "1h"], "true")).code, Some(0));
}

/// Many servers survive such a signal, and read their configuration again.
#[test]
fn a_command_that_lives_through_a_signal_is_asked_on() {
    let store = Store::new();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let sick = store.path(&format!("sick-{signal}"));
        let script = "trap 'echo heard' HUP INT QUIT; trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut command = store.reading(&options("test ! -e $SICK", &["--health-retries", "2"]), script);
        let mut running = Running::ready(command.env("SICK", &sick));
        running.signal(signal);
        running.expect("heard");
        fs::write(&sick, "").unwrap();
        let ran = running.end();
        assert_eq!(ran.code, Some(80), "{signal}: {}", ran.stderr);
    }
}

/// The command has shown that it did not mean to end.
#[test]
fn a_leader_that_is_well_after_a_hangup_stands_again() {
    let store = Store::new();
    let asked = store.path("asked");
    let mut command = store.leasehold(&["elect", "boss", "--health-cmd", "echo >>$ASKED"]);
    // The lock must not be lost between the hangup and the checks after it.
    command.args([&OFTEN[..], &["--lease", "18s", "--kill-after", "1s"]].concat());
    let script = "trap 'echo heard' HUP; echo $LEASEHOLD_TOKEN; while :; do read never; done";
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped());
    let mut running = Running::start(command.env("ASKED", &asked));
    let first: u64 = running.line().parse().unwrap();
    running.signal(Signal::SIGHUP);
    running.expect("heard");
    let times = || fs::read_to_string(&asked).unwrap_or_default().len();
    let before = times();
    // The first of them may have begun before, and the last may still run.
    wait_until("it is asked on", || times() >= before + 3);
    store.client().force_release("boss").unwrap();
    let second: u64 = running.line().parse().unwrap();
    assert!(second > first);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}

/// Otherwise it would still run while the next holder works.
#[test]
#[cfg(target_os = "linux")]
fn a_check_ends_with_the_command() {
    let store = Store::new();
    let fifo = store.fifo();
    // By itself it ends long after the test.
    let check = "exec >$FIFO; echo in; sleep 1000";
    let options = ["--health-cmd", check, "--health-interval", "50ms", "--health-timeout", "5m", "--lease", "90s"];
    let mut command = store.reading(&options, "echo ready; read go");
    let mut running = Running::ready(command.env("FIFO", &fifo));
    let output = lines_after("in", &fifo);
    // The release now hangs.
    let db = store.stuck();
    running.tell("go");
    output.end();
    // Waiting for the check took none of the release's time, which is only seconds.
    wait_until("it is released", || running.threads().iter().any(|name| name.starts_with("leasehold-rel")));
    drop(db);
    assert_eq!(running.end().code, Some(0));
}

/// The hanging store may also be why the check failed.
#[test]
fn a_signal_while_the_release_hangs_ends_an_election() {
    let store = Store::new();
    let sick = store.path("sick");
    let mut command = store.leasehold(&["elect", "boss", "--health-cmd", "test ! -e $SICK", "--health-retries", "1"]);
    command.args([&OFTEN[..], &["--lease", "90s", "--kill-after", "29s"]].concat());
    let script = "trap 'echo term; read go; exit 3' TERM; echo $$; while :; do read never; done";
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped());
    let mut running = Running::start(command.env("SICK", &sick));
    let leader = running.line();
    // The shell handles a signal that comes right before its `read` only after the next line.
    wait_until("it reads", || state(&leader) == "S");
    fs::write(&sick, "").unwrap();
    running.expect("term");
    let db = store.stuck();
    running.tell("go");
    // Otherwise leasehold would pass the signal on to the command.
    wait_until_reaped(&leader);
    running.signal(Signal::SIGTERM);
    let status = running.status();
    assert_eq!(status.code(), Some(143));
    drop(db);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = Store::new();
    for options in [
        ["--health-cmd", "true", "--health-interval", "0s"],
        ["--health-cmd", "true", "--health-timeout", "-1s"],
        ["--health-cmd", "true", "--health-retries", "0"],
    ] {
        assert_eq!(run(&mut store.script(&options, "true")).code, Some(64), "{options:?}");
    }
    for option in ["--health-interval", "--health-timeout", "--health-retries"] {
        let ran = run(&mut store.script(&[option, "1"], "true"));
        assert_eq!(ran.code, Some(64), "{option}");
        assert!(ran.stderr.contains("--health-cmd <COMMAND>"), "{}", ran.stderr);
    }
}

fn node(shared: &Shared, name: &str, sick: &str) -> Command {
    let mut command = leasehold(&["elect", "boss", "--id", name, "--health-retries", "1"]);
    command.args(options("test ! -e $SICK", &[]));
    command.args(["--", "sh", "-c", "echo $LEASEHOLD_OWNER; while :; do read never; done"]);
    command.env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone()).env("SICK", sick).stdin(Stdio::piped());
    command
}

/// A leader whose check fails steps down; other nodes go first, and then it campaigns again.
fn cases(shared: &Shared) {
    let folder = tempfile::tempdir().unwrap();
    let sick = folder.path().join("sick");
    let mut ann = Running::start(&mut node(shared, "ann", sick.to_str().unwrap()));
    ann.expect("ann");
    let mut bob = Running::start(&mut node(shared, "bob", "/nowhere"));
    fs::write(&sick, "").unwrap();
    bob.expect("bob");
    ann.says("the lock \"boss\" is given back, since --health-cmd failed: it ended with 1");
    fs::remove_file(&sick).unwrap();
    bob.signal(Signal::SIGTERM);
    assert_eq!(bob.end().code, Some(143));
    ann.expect("ann");
    ann.signal(Signal::SIGTERM);
    assert_eq!(ann.end().code, Some(143));
}

#[test]
fn on_sqlite() {
    let store = Store::new();
    cases(&Shared { url: store.url.clone(), env: Vec::new() });
}

on_each_server!(cases, "health");
