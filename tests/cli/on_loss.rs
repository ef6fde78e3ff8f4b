//! `--on-loss cmd:..`: a command of the user's handles a loss.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::shared::{Shared, on_each_server};
use crate::support::{Running, Store, ended_before, leasehold, lines_after, run, wait_until_reaped};
use crate::wait::wait_until;

/// Gives the command of the loss half a minute, unless a test wants less.
const TIME: [&str; 4] = ["--lease", "90s", "--kill-after", "29s"];

fn take_away(store: &Store) {
    store.client().force_release("k").unwrap();
}

/// A shorter lease, because a heartbeat must find the loss; but one that tolerates a late heartbeat and gives the
/// command of the loss five seconds, of which a machine that stops for a while may take four.
fn soon<'a>(on_loss: &'a str, kill_after: &'a str) -> [&'a str; 6] {
    ["--lease", "18s", "--kill-after", kill_after, "--on-loss", on_loss]
}

#[test]
fn it_is_run_in_place_of_a_signal() {
    let store = Store::new();
    let proof = store.path("proof");
    let on_loss = "cmd:echo $LEASEHOLD_KEY: $LEASEHOLD_LOSS >$PROOF; kill -USR1 $LEASEHOLD_PID; echo seen to";
    let script = "trap 'echo usr1; exit 3' USR1; trap 'echo term' TERM; echo ready; while :; do read never; done";
    let mut command = store.reading(&["--lease", "30s", "--kill-after", "9s", "--on-loss", on_loss], script);
    let mut running = Running::ready(command.env("PROOF", &proof));
    take_away(&store);
    running.expect("usr1");
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "ready\nusr1\n"), "{}", ran.stderr);
    assert!(fs::read_to_string(&proof).unwrap().starts_with("k: released by another after "));
    assert!(ran.stderr.contains("; --on-loss has 9 s to see to that\n"), "{}", ran.stderr);
    // Its output does not come between the command's own lines.
    assert!(ran.stderr.lines().any(|line| line == "seen to"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("failed"), "{}", ran.stderr);
}

/// Then nothing is done to the command, even when its lease is over.
#[test]
fn the_command_goes_on_if_that_succeeds() {
    let store = Store::new();
    let mut running = Running::start(&mut store.reading(&soon("cmd:true", "5s"), "echo ready; read go; echo went on"));
    running.expect("ready");
    // Heartbeats can't be written any more.
    let db = store.stuck();
    running.says("was lost: expired");
    drop(db);
    let _rival = store.client().lock("k").unwrap();
    // leasehold's keeper would have killed it by now.
    running.tell("go");
    running.expect("went on");
    assert_eq!(running.end().code, Some(76));
}

#[test]
fn the_command_is_killed_if_that_fails() {
    let store = Store::new();
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::ready(&mut store.script(&soon("cmd:exit 9", "5s"), script));
    take_away(&store);
    running.output_ends();
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "ready\n"));
    let said = "the command of --on-loss failed: it ended with 9, so the command is killed";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn what_hangs_is_killed_with_the_command_before_the_lease_ends() {
    let store = Store::new();
    let fifo = store.fifo();
    let script = "exec >$FIFO; echo ready; while :; do sleep 0.05; done";
    let mut command = store.script(&soon("cmd:exec >$FIFO; sh -c 'sleep 1000'; true", "1s"), script);
    let running = Running::start(command.env("FIFO", &fifo));
    let output = lines_after("ready", &fifo);
    let (db, end) = store.stuck_lease();
    output.end();
    ended_before(end);
    drop(db);
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("--on-loss"), "{}", ran.stderr);
}

/// The command of the loss may have more to do than to end the command.
#[test]
fn it_is_waited_for_when_the_command_has_ended() {
    let store = Store::new();
    let proof = store.path("proof");
    let on_loss = "cmd:kill -KILL $LEASEHOLD_PID; sleep 1; echo $LEASEHOLD_LOSS >$PROOF";
    let mut command =
        store.script(&[&TIME[..], &["--on-loss", on_loss, "--max-hold", "5s"]].concat(), "echo ready; exec sleep 1000");
    let running = Running::ready(command.env("PROOF", &proof));
    assert_eq!(running.end().code, Some(76));
    let loss = fs::read_to_string(&proof).unwrap();
    assert!(loss.contains("as --max-hold allows"), "{loss}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = Store::new();
    for (options, why) in [
        (["--on-loss", "cmd:", "--kill-after", "1s"], "there is no command"),
        (["--health-cmd", " ", "--kill-after", "1s"], "there is no command"),
        (["--on-loss", "cmd:true", "--kill-after", "0s"], "must be above 0"),
        (["--on-loss", "cmd:true", "--kill-after", "1h"], "--kill-after is 1 h, too long"),
        (["--on-loss", "signal:USR1", "--kill-after", "1h"], "--kill-after is 1 h, too long"),
        (["--on-loss", "run:true", "--kill-after", "1s"], "or cmd:COMMAND"),
    ] {
        let ran = run(&mut store.script(&options, "true"));
        assert_eq!(ran.code, Some(64), "{options:?}");
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn hold_has_it_too() {
    let store = Store::new();
    let proof = store.path("proof");
    let process = |script: &str| Running::ready(Command::new("sh").args(["-c", script]).stdin(Stdio::piped()));
    let hold = |options: &[&str], stdin: Stdio| {
        let mut command = store.leasehold(&["hold", "k", "--max-hold", "5s"]);
        let mut holds = Running::start(command.args(TIME).args(options).env("PROOF", &proof).stdin(stdin));
        holds.line();
        holds
    };
    // A process that gets its signal, and lives on.
    let mut ears = process("trap 'echo usr1' USR1; echo ready; while :; do read line && echo $line; done");
    let pid = ears.child.id().to_string();
    let on_loss = "cmd:kill -USR1 $LEASEHOLD_PID; echo $LEASEHOLD_KEY: $LEASEHOLD_LOSS >$PROOF";
    let ran = hold(&["--pid", &pid, "--on-loss", on_loss], Stdio::null()).end();
    assert_eq!(ran.code, Some(76), "{}", ran.stderr);
    ears.expect("usr1");
    ears.tell("there");
    ears.expect("there");
    assert!(fs::read_to_string(&proof).unwrap().starts_with("k: held for as long as "));
    // If the command of the loss fails, the process is killed.
    let ran = hold(&["--pid", &pid, "--on-loss", "cmd:exit 4"], Stdio::null()).end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains(&format!("it ended with 4, so process {pid} is killed")), "{}", ran.stderr);
    ears.status();
    // For a pipe there is no process. Its end, which reports the loss, waits a quarter of a second for messages before
    // it.
    fs::remove_file(&proof).unwrap();
    let on_loss = "cmd:echo pipe >$PROOF; exit ${LEASEHOLD_PID-5}";
    let said = |_| {
        let mut holds = hold(&["--fd", "0", "--on-loss", on_loss], Stdio::piped());
        assert_eq!(holds.status().code(), Some(76));
        assert_eq!(fs::read_to_string(&proof).unwrap(), "pipe\n");
        holds.end().stderr
    };
    let failed = "the command of --on-loss failed: it ended with 5";
    assert!((0..3).map(said).any(|said| said.contains(failed)), "it is never said");
}

/// The same on each store.
#[allow(dead_code)] // Where no server is compiled in.
fn cases(shared: &Shared) {
    let mut command = leasehold(&["run", "k", "--max-hold", "5s", "--on-loss", "cmd:kill $LEASEHOLD_PID"]);
    command.args(TIME).env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone());
    let script = "trap 'echo term; exit 0' TERM; echo ready; while :; do read never; done";
    let mut running = Running::ready(command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()));
    running.expect("term");
    assert_eq!(running.end().code, Some(76));
}

on_each_server!(cases, "on_loss");

/// A stopped leasehold cannot run the command of the loss either.
#[test]
fn the_command_is_killed_if_leasehold_stands_still() {
    let store = Store::new();
    let fifo = store.fifo();
    let script = "exec >$FIFO; echo ready; while :; do sleep 0.05; done";
    let mut command = store.script(&soon("cmd:true", "1s"), script);
    let mut running = Running::start(command.env("FIFO", &fifo));
    let output = lines_after("ready", &fifo);
    running.signal(Signal::SIGSTOP);
    output.end();
    running.signal(Signal::SIGCONT);
    assert_eq!(running.status().code(), Some(76));
    wait_until("it is free", || store.client().get("k").unwrap().unwrap().is_free());
}

/// A node that is told to end meanwhile does not campaign again, and lets the command of the loss finish.
#[test]
fn a_signal_during_it_ends_an_election_when_it_is_done() {
    let store = Store::new();
    let (go, proof) = (store.path("go"), store.path("proof"));
    let on_loss = "cmd:kill -KILL $LEASEHOLD_PID; echo seeing to it; \
                   while test ! -e $GO; do sleep 0.05; done; echo done >$PROOF";
    let mut command = store.leasehold(&["elect", "boss", "--max-hold", "5s", "--on-loss", on_loss]);
    command.args(TIME).args(["--", "sh", "-c", "echo $$; while :; do read never; done"]).stdin(Stdio::piped());
    let mut running = Running::start(command.env("GO", &go).env("PROOF", &proof));
    let leader = running.line();
    running.says("seeing to it");
    // Otherwise leasehold would pass the signal on to the command.
    wait_until_reaped(&leader);
    running.signal(Signal::SIGTERM);
    fs::write(&go, "").unwrap();
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.trim()), (Some(143), &*leader), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&proof).unwrap(), "done\n");
}

/// Nobody else would end what the command of the loss has started.
#[test]
fn it_ends_with_leasehold_and_when_leasehold_stands_still() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let store = Store::new();
        let fifo = store.fifo();
        let on_loss = "cmd:exec >$FIFO; echo on; sh -c 'sleep 1000'; true";
        let mut command = store.script(&soon(on_loss, "5s"), "echo ready; exec sleep 1000");
        let mut running = Running::ready(command.env("FIFO", &fifo));
        take_away(&store);
        let output = lines_after("on", &fifo);
        // From this message on another process watches over it.
        running.says(" to see to that");
        running.signal(signal);
        output.end();
    }
}

#[test]
fn each_key_that_is_lost_is_seen_to() {
    let store = Store::new();
    let proof = store.path("proof");
    let on_loss = "cmd:echo $LEASEHOLD_LOST_KEY: $LEASEHOLD_LOSS >>$PROOF; test $LEASEHOLD_LOST_KEY != c";
    let mut command = store.leasehold(&["run", "a", "b", "c"]);
    command.args(soon(on_loss, "5s")).args(["--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let running = Running::ready(command.env("PROOF", &proof));
    let seen_to = || fs::read_to_string(&proof).unwrap_or_default();
    for (key, lines) in [("b", 1), ("a", 2), ("c", 3)] {
        store.client().force_release(key).unwrap();
        wait_until("it is seen to", || seen_to().lines().count() == lines);
        assert!(seen_to().lines().last().unwrap().starts_with(&format!("{key}: released by another after ")));
    }
    // The one for `c` failed.
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    for key in ["a", "b", "c"] {
        assert_eq!(ran.stderr.matches(&format!("the lock {key:?} was lost: ")).count(), 1, "{}", ran.stderr);
    }
}

/// What works under the second key may be outside the command's group. The first run ends the command, or fails.
#[test]
fn each_key_that_is_lost_is_seen_to_also_once_the_command_is_gone() {
    std::thread::scope(|scope| {
        for first in ["kill -KILL $LEASEHOLD_PID", "exit 1"] {
            scope.spawn(move || each_is_seen_to(first));
        }
    });
}

fn each_is_seen_to(first: &str) {
    let store = Store::new();
    let proof = store.path("proof");
    // The second key is lost as much later as it was granted later; that must be before the first run ends.
    let wait = "test -e $PROOF || first=6; echo $LEASEHOLD_LOST_KEY >>$PROOF; sleep ${first-0}";
    let on_loss = format!("cmd:{wait}; {first}");
    // Long enough that the command starts before it.
    let mut command = store.leasehold(&["run", "a", "b", "--max-hold", "6s", "--lease", "90s", "--kill-after", "29s"]);
    command.args(["--on-loss", &on_loss, "--", "sleep", "1000"]);
    let ran = Running::start(command.env("PROOF", &proof)).end();
    assert_eq!(fs::read_to_string(&proof).unwrap().lines().count(), 2, "{}", ran.stderr);
    for key in ["a", "b"] {
        assert_eq!(ran.stderr.matches(&format!("the lock {key:?} was lost: ")).count(), 1, "{}", ran.stderr);
    }
}

/// Nothing is done about the loss, but it is reported.
#[test]
fn each_loss_is_told_where_the_command_goes_on() {
    let store = Store::new();
    let mut command = store.leasehold(&["run", "a", "b", "--lease", "12s", "--on-loss", "ignore"]);
    command.args(["--", "sh", "-c", "echo ready; read go"]).stdin(Stdio::piped());
    let mut running = Running::ready(&mut command);
    for key in ["b", "a"] {
        store.client().force_release(key).unwrap();
        running.says(&format!("the lock {key:?} was lost: released by another after "));
    }
    running.tell("go");
    assert_eq!(running.end().code, Some(76));
}
