//! A lock that is lost while the command runs.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use leasehold::LockClient;
use nix::sys::signal::Signal;

use crate::lateness::{measure, slack};
use crate::support::{Running, Store, ended_before, full_pipe, lines_after, lines_of, run, state};
use crate::wait::wait_until;

/// Takes the lock away, as an operator does.
fn take_away(client: &LockClient) {
    let key = client.get("k").unwrap().unwrap();
    assert_eq!(client.unlock(key.holders()[0].lock_id()).unwrap().len(), 1);
}

#[test]
fn the_command_gets_term() {
    let store = Store::new();
    let script = "trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
    let mut running = Running::ready(&mut store.reading(&["--lease", "18s", "--kill-after", "5s"], script));
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
    let mut running = Running::ready(&mut store.script(&["--lease", "9s", "--kill-after", "0s"], script));
    take_away(&store.client());
    running.output_ends();
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "ready\n"));
}

/// Nothing of the command may run once another client could get the lock.
#[test]
fn who_ignores_term_is_killed_before_the_lease_ends() {
    let store = Store::new();
    // Only the command and its children have this pipe.
    let fifo = store.fifo();
    let script =
        "exec >$FIFO; trap '' TERM; sh -c 'while :; do sleep 0.05; done' & echo ready; while :; do sleep 0.05; done";
    // A tenth of the lease lies between the end of the command and the end of the lease, enough for a busy machine.
    let mut command = store.script(&["--lease", "12s", "--kill-after", "1s"], script);
    let running = Running::start(command.env("FIFO", &fifo));
    let output = lines_after("ready", &fifo);
    // Heartbeats can't be written any more.
    let (db, end) = store.stuck_lease();
    output.end();
    ended_before(end);
    drop(db);
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("was lost: expired"), "{}", ran.stderr);
}

/// The same where leasehold stands still, so that its keeper kills: a lease this short leaves it less than 20 ms.
#[test]
fn the_keeper_kills_before_a_short_lease_ends() {
    let is_in_time = || {
        let store = Store::new();
        let (client, proof) = (store.client(), store.path("proof"));
        let mut command = store.script(&["--lease", "200ms"], "trap '' TERM; echo $$ >$PROOF; exec sleep 1000");
        let mut running = Running::start(command.env("PROOF", &proof));
        let mut pid = String::new();
        // On a busy machine the lock may be lost before the command begins.
        wait_until("it begins", || {
            pid = std::fs::read_to_string(&proof).unwrap_or_default();
            pid.ends_with('\n') || running.child.try_wait().unwrap().is_some()
        });
        if pid.is_empty() {
            return false;
        }
        running.signal(Signal::SIGSTOP);
        let own = running.child.id().to_string();
        wait_until("it stands still", || ["T", "Z"].contains(&state(&own).as_str()));
        let end = client.get("k").unwrap().and_then(|key| key.holders().first()?.leased_until());
        let is_alive = || !["Z", ""].contains(&state(pid.trim()).as_str());
        let was_alive = is_alive();
        wait_until("it is killed", || !is_alive());
        was_alive && end.is_some_and(|end| SystemTime::now() < end)
    };
    // Only a hundredth of a second lies between the kill and the end of the lease; a busy machine uses it up.
    assert!((0..20).any(|_| is_in_time()), "never in time");
}

/// Whether the command ends by itself or because of the loss, an unanswered release is given up when the lease ends.
#[test]
fn nothing_is_waited_for_after_the_end_of_the_lease() {
    measure();
    let began = Instant::now();
    let ends = [("read go", Some(0)), ("exec sleep 1000", Some(76))].map(|(script, code)| {
        std::thread::spawn(move || {
            let store = Store::new();
            let mut running = Running::start(&mut store.reading(&["--lease", "9s"], &format!("echo ready; {script}")));
            running.expect("ready");
            let (_db, end) = store.stuck_lease();
            running.tell("go");
            let ended = running.end().code;
            // 76 if the lock was lost before the command had ended.
            assert!(ended == code || ended == Some(76), "{ended:?}");
            SystemTime::now().duration_since(end).unwrap_or_default()
        })
    });
    for late in ends.map(|end| end.join().unwrap()) {
        // Two drop timeouts would be ten seconds, one is five.
        assert!(late < Duration::from_secs(4) + slack(began), "{late:?} after the end of the lease");
    }
}

/// leasehold itself stands still, because nobody reads its output.
#[test]
fn the_command_ends_though_nobody_reads_standard_error() {
    let store = Store::new();
    let (reader, full, _) = full_pipe();
    let fifo = store.fifo();
    let script = "exec >$FIFO; trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = store.script(&["--lease", "9s", "--kill-after", "1s"], script);
    let mut child = command.env("FIFO", &fifo).stderr(full).spawn().unwrap();
    let output = lines_after("ready", &fifo);
    take_away(&store.client());
    output.end();
    drop((command, reader));
    assert_eq!(child.wait().unwrap().code(), Some(76));
}

/// Somebody sets the clock while the command runs.
#[test]
fn the_wall_clock_decides_nothing() {
    if !crate::faketime::is_there() {
        return;
    }
    let store = Store::new();
    let clock = store.path("clock");
    for jump in ["+3600", "-3600"] {
        std::fs::write(&clock, "+0").unwrap();
        let script = "unset LD_PRELOAD; trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
        let mut command = store.reading(&["--lease", "18s", "--kill-after", "5s"], script);
        command.env("LD_PRELOAD", crate::faketime::library()).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
        let mut running = Running::ready(&mut command);
        std::fs::write(&clock, jump).unwrap();
        take_away(&store.client());
        running.expect("term");
        assert_eq!(running.end().code, Some(76));
    }
}

#[test]
fn the_command_may_be_told_or_left_alone() {
    let store = Store::new();
    let script = "trap 'echo usr1; exit 3' USR1; echo ready; while :; do read never; done";
    let mut running = Running::ready(&mut store.reading(&["--lease", "6s", "--on-loss", "signal:usr1"], script));
    take_away(&store.client());
    running.expect("usr1");
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("the command gets SIGUSR1"), "{}", ran.stderr);

    let script = "echo ready; read go; echo went on; exit 3";
    let mut running = Running::ready(&mut store.reading(&["--lease", "6s", "--on-loss", "ignore", "-v"], script));
    take_away(&store.client());
    let rival = store.client().lock("k").unwrap();
    // The next heartbeat notices the loss.
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
    let ends: [(&[&str], i32, serde_json::Value); 2] = [
        (&["--kill-after", "0s", "--max-hold", "300ms"], 76, "Lost".into()),
        (&["--health-cmd", "false", "--health-interval", "100ms"], 80, serde_json::Value::Null),
    ];
    for (ends, code, kind) in ends {
        let options = [&["--json", "-v"][..], ends].concat();
        let ran = run(&mut store.script(&options, "exec sleep 1000"));
        let lines = ran.stderr.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
        let lines: Vec<serde_json::Value> = lines.collect();
        assert!(lines.len() >= 3, "{}", ran.stderr);
        let last = &lines.last().unwrap()["error"];
        assert_eq!((ran.code, &last["exit_code"], &last["kind"]), (Some(code), &code.into(), &kind), "{}", ran.stderr);
        assert!(last["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", ran.stderr);
        let (key, reason): (serde_json::Value, serde_json::Value) =
            if kind == "Lost" { ("k".into(), "max_hold".into()) } else { Default::default() };
        assert_eq!((&last["key"], &last["reason"]), (&key, &reason), "{}", ran.stderr);
        assert_eq!(last["store"].as_str().is_some(), kind == "Lost", "{}", ran.stderr);
    }
    // A `max_hold` that does not end before `hold` has printed the lock.
    let holds = ["--json", "hold", "k", "--pid", &std::process::id().to_string(), "--max-hold", "5s"];
    let ran = run(&mut store.leasehold(&[&holds[..], &["--on-loss", "ignore"]].concat()));
    let last: serde_json::Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    let last = &last["error"];
    assert_eq!((ran.code, &last["exit_code"]), (Some(76), &76.into()), "{}", ran.stderr);
    assert_eq!([&last["key"], &last["reason"]], ["k", "max_hold"], "{}", ran.stderr);
    assert!(last["store"].as_str().is_some_and(|store| store.starts_with("sqlite:")), "{}", ran.stderr);
}

/// The exit code alone could also be that of a command ended by the same signal.
#[test]
fn machines_are_told_that_a_signal_was_for_leasehold() {
    let store = Store::new();
    let is_told = |runs: Running| {
        let ran = runs.end();
        let last: serde_json::Value = serde_json::from_str(ran.stderr.lines().last().unwrap_or("{}")).unwrap();
        assert_eq!(ran.code, Some(143), "{}", ran.stderr);
        assert!(last["error"].is_null() || last["error"]["exit_code"] == 143, "{}", ran.stderr);
        !last["error"].is_null()
    };
    let guard = store.client().lock("k").unwrap();
    let own = std::process::id().to_string();
    // Otherwise any failure here may kill the whole test process.
    let hold = ["hold", "k", "--pid", &own, "--on-loss", "ignore"];
    let waits: [&[&str]; 4] = [&["run", "k", "--", "true"], &["elect", "k", "--", "true"], &["acquire", "k"], &hold];
    for args in waits {
        let mut waits = Running::start(store.leasehold(&["--json", "-vv"]).args(args));
        waits.says("refused: ");
        waits.signal(Signal::SIGTERM);
        assert!(is_told(waits), "{args:?}");
    }
    drop(guard);
    let mut holds = Running::start(store.leasehold(&hold).arg("--json"));
    holds.line();
    holds.signal(Signal::SIGTERM);
    assert!(is_told(holds));
    // The command survived the signal, and then the term was lost.
    let script = "trap 'echo term' TERM; echo ready; while :; do read never; done";
    let mut command = store.leasehold(&["--json", "elect", "k", "--lease", "18s", "--", "sh", "-c", script]);
    let mut leads = Running::ready(command.stdin(Stdio::piped()));
    leads.signal(Signal::SIGTERM);
    leads.expect("term");
    take_away(&store.client());
    assert!(is_told(leads));
    let runs = Running::ready(&mut store.script(&["--json"], "echo ready; exec sleep 1000"));
    runs.signal(Signal::SIGTERM);
    assert!(!is_told(runs), "it is the command's");
}

#[test]
fn a_command_that_hangs_is_ended_by_max_hold() {
    let store = Store::new();
    let options = ["--lease", "30", "--kill-after", "0", "--max-hold", "300ms"];
    let ran = run(&mut store.script(&options, "exec sleep 1000"));
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("held for as long as --max-hold allows"), "{}", ran.stderr);
}

/// leasehold stands still between the grant and the start, because nobody reads its message about the grant.
#[test]
fn a_lock_that_was_lost_before_the_start_starts_nothing() {
    // It waits half a second for a reader of its message, so on a busy machine this is tried again.
    assert!((0..3).any(|_| said_of_a_loss_before_the_start().contains("lost")), "nothing is said of the loss");
}

fn said_of_a_loss_before_the_start() -> String {
    let store = Store::new();
    let (mut reader, full, _) = full_pipe();
    let options = ["-v", "--lease", "3s", "--max-hold", "300ms", "--on-loss", "ignore"];
    let mut command = store.script(&options, "echo ran >$PROOF");
    let proof = store.path("proof");
    let mut child = command.env("PROOF", &proof).stderr(full).spawn().unwrap();
    drop(command);
    let client = store.client();
    // The row exists since the grant.
    wait_until("it is lost", || client.get("k").unwrap().is_some_and(|key| key.is_free()));
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        reader.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    assert_eq!(child.wait().unwrap().code(), Some(76));
    assert!(!proof.exists(), "it ran");
    said.join().unwrap().unwrap()
}

/// Nobody reads its message about the loss.
#[test]
fn signals_are_passed_on_after_a_loss_though_nobody_reads_standard_error() {
    let store = Store::new();
    let (reader, full, _) = full_pipe();
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo $$; while :; do read never; done";
    let mut command = store.reading(&["--lease", "6s", "--on-loss", "signal:USR1"], script);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(full).spawn().unwrap();
    drop(command);
    let output = lines_of(child.stdout.take().unwrap());
    let shell = output.line();
    take_away(&store.client());
    output.expect("usr1");
    // The shell handles a signal that comes right before its `read` only after the next line.
    wait_until("it reads again", || state(&shell) == "S");
    nix::sys::signal::kill(crate::support::pid(&child), nix::sys::signal::Signal::SIGTERM).unwrap();
    output.expect("term");
    assert_eq!(child.wait().unwrap().code(), Some(76));
    drop(reader);
}
