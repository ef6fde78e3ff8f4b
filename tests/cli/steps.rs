//! `acquire`, and `release` and `renew` of the lock that it printed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use leasehold::Lock;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::shared::{Shared, on_each_server};
use crate::support::{PATIENCE, Ran, Running, Store, full_pipe, leasehold, run};
use crate::wait::wait_until;

/// Runs a step on this store, with this standard input. Repeats it while a server that stopped did not answer in time,
/// so each step must be one that may be done twice.
#[track_caller]
fn step(shared: &Shared, args: &[&str], input: &str) -> Ran {
    let once = || {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone()).stdin(Stdio::piped());
        let mut running = Running::start(&mut command);
        // A command that reads nothing may have ended already.
        let _ = running.stdin.as_mut().unwrap().write_all(input.as_bytes());
        running.end()
    };
    (0..20).map(|_| once()).find(|ran| ran.code != Some(69)).expect("an answer")
}

#[track_caller]
fn ends(ran: Ran, code: i32) -> Ran {
    assert_eq!(ran.code, Some(code), "{}{}", ran.stdout, ran.stderr);
    ran
}

fn cases(shared: &Shared) {
    let step = |args: &[&str], input: &str| step(shared, args, input);
    let status = |key: &str| serde_json::from_str::<Value>(&step(&["status", key, "--json"], "").stdout).unwrap();
    let taken = ends(step(&["acquire", "k", "--lease", "1h", "--owner", "ann", "--comment", "why"], ""), 0).stdout;
    let lock: Lock = serde_json::from_str(&taken).unwrap();
    assert_eq!((lock.key(), lock.owner(), lock.comment()), ("k", "ann", Some("why")));
    let (key, json) = (status("k"), serde_json::from_str::<Value>(&taken).unwrap());
    assert_eq!([&key[0]["token"], &key[0]["lock_id"]], [&json["fencing_token"], &json["lock_id"]]);
    assert_eq!(key[0]["expired"], false);

    for (options, code) in [(&["--try"][..], 75), (&["--wait", "0", "-E", "9"], 9), (&["-n", "-E", "0", "-q"], 0)] {
        let refused = ends(step(&[&["acquire", "k"], options].concat(), ""), code);
        assert_eq!(
            (refused.stdout.as_str(), refused.stderr.contains("held by \"ann\"")),
            ("", code != 0),
            "{refused:?}"
        );
    }

    // The lease counts from the renewal, and never becomes shorter.
    let left = |key: &str| status(key)[0]["remaining_ms"].as_u64().unwrap();
    let token = lock.fencing_token();
    for lease in [&["--lease", "5h"][..], &[]] {
        let said = ends(step(&[&["renew", "--from", "-"], lease].concat(), &taken), 0).stdout;
        let start = format!("renewed \"k\", token {token}, for ");
        let left = said.strip_prefix(&start).and_then(|rest| rest.split_once(" (until 20")).expect(&said).0;
        assert!(["4 h 59 min", "5 h"].contains(&left), "{said}");
    }
    assert!(left("k") > 4 * 3_600_000, "{}", left("k"));
    let renewed = ends(step(&["renew", "--from", "-", "--json"], &taken), 0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&renewed).unwrap()["grant_id"], json["grant_id"]);

    // The text that was printed first is still valid for the release.
    assert!(ends(step(&["release", "--from", "-"], &taken), 0).stdout.starts_with("released: nobody holds \"k\""));
    assert_eq!(status("k"), Value::Array(Vec::new()));
    // The answer does not show whether this release or an earlier one freed it.
    let again = ends(step(&["release", "--from", "-"], &taken), 0).stdout;
    assert_eq!(again, format!("released: nobody holds \"k\" under token {} any more\n", lock.fencing_token()));
    ends(step(&["renew", "--from", "-"], &taken), 76);

    // A lock of somebody else is left alone.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), ends(step(&["acquire", "k"], ""), 0).stdout).unwrap();
    let stale = ends(step(&["release", "--from", "-", "--json"], &taken), 75);
    assert_eq!(serde_json::from_str::<Value>(&stale.stderr).unwrap()["error"]["kind"], "Held");
    let from = file.path().to_str().unwrap();
    let released = ends(step(&["release", "--from", from, "--json"], ""), 0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&released).unwrap()["key"], "k");

    // Several clients have a shared lock, each its own hold. Those that may have it wait, because an unanswered try may
    // leave something behind.
    let shared = |wait, n| ends(step(&["acquire", "k", "-s", "--max-holders", "2", "--wait", wait], ""), n).stdout;
    let both = [shared("10m", 0), shared("10m", 0)];
    shared("0", 75);
    both.iter().for_each(|one| drop(ends(step(&["release", "--from", "-"], one), 0)));
    assert_eq!(status("k"), Value::Array(Vec::new()));
}

#[test]
fn a_lock_goes_from_step_to_step() {
    let store = Store::new();
    cases(&Shared { url: store.url.clone(), env: Vec::new() });
}

on_each_server!(cases, "steps");

#[test]
fn a_program_may_take_up_what_a_step_has_left() {
    let store = Store::new();
    let taken = run(&mut store.leasehold(&["acquire", "k", "--lease", "1h"])).stdout;
    let guard = store.client().adopt(serde_json::from_str(&taken).unwrap()).unwrap();
    assert!(guard.is_held());
}

/// Nobody has its JSON, so nobody could release it.
#[test]
#[cfg(target_os = "linux")]
fn a_lock_that_cannot_be_printed_is_released() {
    let store = Store::new();
    let process = std::process::id().to_string();
    for verb in [&["acquire", "k"][..], &["hold", "k", "--pid", &process, "--on-loss", "ignore"]] {
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        for out in [Stdio::from(File::create("/dev/full").unwrap()), Stdio::from(closed)] {
            let output = store.leasehold(verb).stdout(out).stderr(Stdio::piped()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(74), "{said}");
            assert!(said.contains("could not be written, so it is given back"), "{said}");
            assert!(store.client().get("k").unwrap().unwrap().is_free());
        }
    }
}

#[test]
#[cfg(all(feature = "sqlite", target_os = "linux"))]
fn a_lock_that_can_neither_be_printed_nor_released_is_named() {
    let store = Store::new();
    drop(store.client());
    store.refuses("NEW.grant_id IS NOT OLD.grant_id");
    let full = Stdio::from(File::create("/dev/full").unwrap());
    let ran = Running::start_to(full, &mut store.leasehold(&["acquire", "k", "--lease", "12h"])).end();
    assert_eq!(ran.code, Some(74), "{}", ran.stderr);
    assert!(ran.stderr.contains("the lock \"k\" ends with its lease only: "), "{}", ran.stderr);
    assert!(!store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn a_lock_is_not_printed_to_nobody() {
    let store = Store::new();
    for out in [">&-", "> /dev/null"] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{} acquire k {out}", env!("CARGO_BIN_EXE_leasehold"))]);
        let ran = run(command.env("LEASEHOLD_STORE", &store.url));
        assert_eq!(ran.code, Some(64), "{out}: {}", ran.stderr);
        assert!(ran.stderr.contains("keep it with > FILE"), "{out}: {}", ran.stderr);
    }
    assert!(store.client().get("k").unwrap().is_none());
}

/// Rust reports such a write as successful.
#[test]
fn a_lock_is_not_printed_where_nothing_can_be_written() {
    let store = Store::new();
    let process = std::process::id().to_string();
    for verb in [&["acquire", "k"][..], &["hold", "k", "--pid", &process, "--on-loss", "ignore"]] {
        let read_only = Stdio::from(File::open("/etc/passwd").unwrap());
        let ran = Running::start_to(read_only, &mut store.leasehold(verb)).end();
        assert_eq!(ran.code, Some(64), "{verb:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("standard output is open for reading only"), "{verb:?}: {}", ran.stderr);
    }
    assert!(store.client().get("k").unwrap().is_none());
}

#[test]
fn a_signal_takes_back_a_lock_that_nobody_reads() {
    let store = Store::new();
    let is_free = || store.client().get("k").unwrap().is_none_or(|key| key.is_free());
    let (mut reader, stdout, full) = full_pipe();
    let mut prints = Running::start_to(stdout, &mut store.leasehold(&["acquire", "k", "--lease", "1h"]));
    wait_until("it is held", || !is_free());
    prints.signal(Signal::SIGTERM);
    assert_eq!(prints.status().code(), Some(143));
    assert!(is_free());
    reader.read_exact(&mut vec![0; full]).unwrap();
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "");
}

#[test]
fn a_signal_ends_the_wait_of_a_step() {
    let store = Store::new();
    let _held = store.client().lock("k").unwrap();
    let mut waits = Running::start(&mut store.leasehold(&["acquire", "k", "-vv"]));
    waits.says("refused: \"k\"");
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.end().code, Some(143));
}

#[test]
fn what_is_not_the_json_of_a_lock_is_wrong_usage_and_is_not_shown() {
    let store = Store::new();
    let shared = Shared { url: store.url.clone(), env: Vec::new() };
    // It is there, so the lock's path leads to another file.
    let elsewhere = Store::new();
    let other = run(&mut elsewhere.leasehold(&["acquire", "k"])).stdout;
    let taken = run(&mut store.leasehold(&["acquire", "k", "--lock-id", "x"]));
    assert_eq!(taken.code, Some(64), "a step has a lock id of its own");
    let taken = run(&mut store.leasehold(&["acquire", "k"])).stdout;
    let newer = taken.replace("\"version\":\"1.", "\"version\":\"9.");
    // Whatever its other fields look like.
    let changed = newer.replace("\"fencing_token\":", "\"fencing_token\":\"s3cr3t\",\"x\":");
    let canary = taken.replace("\"fencing_token\":", "\"fencing_token\":\"s3cr3t\",\"x\":");
    let huge = format!("{}{taken}", " ".repeat(70_000));
    for (input, why) in [
        ("", "it is empty"),
        ("\n", "it is empty"),
        ("{\"key\":\"s3cr3t\"", "line 1, column 15"),
        ("[]", "a field has another type"),
        ("{\"key\":\"s3cr3t\"}", "missing field"),
        (&newer, "version is \"9.0\", but must be 1.x"),
        (&changed, "version is \"9.0\", but must be 1.x"),
        (&canary, "a field has another type"),
        (&huge, "it is empty"),
        (&other, "lock \"k\""),
    ] {
        for verb in ["release", "renew"] {
            let ran = ends(step(&shared, &[verb, "--from", "-"], input), 64);
            assert!(ran.stderr.contains(why) && !ran.stderr.contains("s3cr3t"), "{input}: {}", ran.stderr);
        }
    }
    let shown = ends(step(&shared, &["release", "--from", &taken], ""), 64);
    assert!(shown.stderr.contains("give - and the lock") && !shown.stderr.contains("grant_id"), "{}", shown.stderr);
    let missing = ends(step(&shared, &["release", "--from", "/no/such/file"], ""), 64);
    assert!(missing.stderr.contains("--from: /no/such/file cannot be read"), "{}", missing.stderr);
    for args in [&["release", "--from", "-", "k"][..], &["release", "--from", "-", "--group", "g"], &["acquire"]] {
        ends(step(&shared, args, &taken), 64);
    }
    assert!(!store.client().get("k").unwrap().unwrap().is_free(), "nothing was released");
}

/// All of the lease is left: nothing is kept back for a command, and nothing renews it.
#[test]
fn what_a_step_has_taken_ends_with_its_lease() {
    let store = Store::new();
    let client = store.client();
    let once = |_| run(&mut store.leasehold(&["acquire", "k", "--lease", "1s"]));
    // If the machine stopped for a whole lease, there was nothing to print.
    let ran = (0..5).map(once).find(|ran| ran.code != Some(76)).expect("a lease that is longer than a grant");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let guard = client.request("k").wait(PATIENCE).lock().unwrap();
    let taken: Lock = serde_json::from_str(&ran.stdout).unwrap();
    // The tokens are the microseconds of the grants.
    let (first, second) = (taken.fencing_token(), guard.fencing_token());
    assert!(second - first > 900_000, "{first}, {second}");
}
