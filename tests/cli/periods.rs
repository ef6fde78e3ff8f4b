//! `run --hold-at-least` and `run --every`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::LockStatus;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::shared::{Shared, on_each_server};
use crate::support::{Ran, Running, Store, leasehold, run, run_until_answered};
#[cfg(all(feature = "sqlite", target_os = "linux"))]
use crate::wait::wait_until;

const HOUR: Duration = Duration::from_secs(3600);

/// `run` of one key with these options.
fn job(shared: &Shared, key: &str, options: &[&str], script: &str) -> Command {
    let mut command = leasehold(&["run", key]);
    command.env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone());
    command.args(options).args(["--", "sh", "-c", script]);
    command
}

#[track_caller]
fn ends(ran: &Ran, code: i32, stdout: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), stdout), "{}", ran.stderr);
}

/// What a refusal says about the lease. A clock that is known only to the second may be slightly behind that of the
/// grant.
fn ends_in_an_hour(ran: &Ran) -> bool {
    ["59 min", "1 h more ("].iter().any(|left| ran.stderr.contains(&format!("leased for {left}")))
}

fn cases(shared: &Shared) {
    // Repeated if the store did not answer, because then nothing has run.
    let ran = |key, options: &[&str], script| run_until_answered(&mut job(shared, key, options, script));
    // However the command ends.
    for (key, script, code) in [("a", "true", 0), ("b", "exit 3", 3)] {
        ends(&ran(key, &["--hold-at-least", "1h"], script), code, "");
        let held = ran(key, &["--try"], "echo never");
        ends(&held, 75, "");
        assert!(ends_in_an_hour(&held), "{}", held.stderr);
    }

    let every = |options: &[&str], script| ran("nightly", &[&["--every", "1h"], options].concat(), script);
    ends(&every(&[], "echo fails; exit 3"), 3, "fails\n");
    ends(&every(&[], "kill -9 $$"), 137, "");
    ends(&every(&["--owner", "ann"], "echo ran"), 0, "ran\n");
    for options in [&[][..], &["--wait", "300ms"]] {
        // A wait may end during a request whose outcome is then unknown: leasehold is run again.
        let early = every(options, "echo never");
        ends(&early, 79, "");
        assert!(early.stderr.contains("not due, since it ran in this period or runs now"), "{}", early.stderr);
        assert!(early.stderr.contains("held by \"ann\"") && ends_in_an_hour(&early), "{}", early.stderr);
    }
    let early = every(&["--json"], "echo never");
    let told: Value = serde_json::from_str(&early.stderr).unwrap();
    assert_eq!((early.code, &told["error"]["exit_code"]), (Some(79), &79.into()));
    ends(&every(&["--conflict-exit-code", "7"], "echo never"), 7, "");
    let silent = every(&["--quiet", "-E", "0"], "echo never");
    assert_eq!((silent.code, silent.stderr.as_str()), (Some(0), ""));
    // Another key has its own period; and releasing the lock makes it due again.
    ends(&ran("weekly", &["--every", "1w"], "echo ran"), 0, "ran\n");
    let mut free = leasehold(&["release", "nightly", "--force", "--yes"]);
    let free = free.env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone());
    assert_eq!(run_until_answered(free).code, Some(0));
    ends(&every(&[], "echo again"), 0, "again\n");

    // A command that waits runs when it is due, counted from the last start.
    let (started, period) = (Instant::now(), Duration::from_secs(2));
    for _ in 0..2 {
        ends(&ran("often", &["--every", "2s", "--wait", "50s"], "echo ran"), 0, "ran\n");
    }
    assert!(started.elapsed() >= period, "{:?}", started.elapsed());
}

#[test]
fn a_job_runs_once_in_a_period_and_a_lock_stands_for_its_least_time() {
    let store = Store::new();
    cases(&Shared { url: store.url.clone(), env: Vec::new() });
}

on_each_server!(cases, "periods");

/// spindle's nodes use a duration of their own.
#[test]
#[cfg(feature = "spanner")]
fn where_others_would_not_respect_it_nothing_is_run() {
    let Some(mut shared) = crate::shared::spanner("mixed") else { return };
    shared.init();
    shared.url += "&fleet=mixed&spindle_duration=30s";
    for option in ["--every", "--hold-at-least"] {
        let ran = run_until_answered(&mut job(&shared, "k", &[option, "1h"], "echo never"));
        ends(&ran, 64, "");
        let said = ["--hold-at-least is ", "has no place for a lease of "].map(|text| ran.stderr.contains(text));
        assert_eq!(said, [true, true], "{}", ran.stderr);
    }
    ends(&run_until_answered(&mut job(&shared, "k", &["--try"], "echo free")), 0, "free\n");
}

#[test]
fn a_period_is_counted_from_the_start_of_the_command() {
    let stands = || {
        let store = Store::new();
        ends(&run(&mut store.script(&["--every", "1h"], "sleep 1.5; echo ran")), 0, "ran\n");
        let key = store.client().get("k").unwrap().unwrap();
        // Both times come from the same look.
        let (since, until) = (key.holders()[0].created(), key.holders()[0].leased_until().expect("it ends"));
        until.duration_since(since).unwrap().as_secs_f64()
    };
    // A disk or a machine that is late while the store writes shifts one of the times, but not in each try.
    let all: Vec<f64> = (0..5).map(|_| stands()).take_while(|stands| (stands - 3600.0).abs() >= 1.0).collect();
    assert!(all.len() < 5, "{all:?}");
}

#[test]
fn a_command_that_is_told_to_end_is_due_again_whatever_its_code() {
    let store = Store::new();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let script = "trap 'exit 0' TERM INT; echo ready; read go";
        let mut running = Running::ready(&mut store.reading(&["--every", "1h"], script));
        running.signal(signal);
        assert_eq!(running.status().code(), Some(0));
    }
    ends(&run(&mut store.script(&["--every", "1h"], "echo again")), 0, "again\n");
}

/// Runs `a` and `b` with `--every`, where the store refuses some updates once the command runs.
#[cfg(feature = "sqlite")]
fn run_where_is_refused(store: &Store, updates: &str) -> Ran {
    let mut command = store.leasehold(&["run", "a", "b", "--every", "1h", "--lease", "12s", "--"]);
    let mut running = Running::start(command.args(["sh", "-c", "echo ready; read go"]).stdin(Stdio::piped()));
    running.expect("ready");
    store.refuses(updates);
    running.tell("go");
    running.end()
}

#[test]
#[cfg(feature = "sqlite")]
fn what_does_not_stand_until_it_is_due_and_what_is_not_released_is_said() {
    // The second lock can't be made to last for the hour.
    let store = Store::new();
    let an_hour = "NEW.leased_until - NEW.created > 1800000000000";
    let ran = run_where_is_refused(&store, &format!("NEW.key = CAST('b' AS BLOB) AND {an_hour}"));
    ends(&ran, 0, "ready\n");
    let may_be_free = "the locks \"a\", \"b\" may be free before the command is due again";
    assert!(ran.stderr.contains(may_be_free), "{}", ran.stderr);
    let left = |key: &str| store.client().get(key).unwrap().unwrap().holders().first().and_then(LockStatus::remaining);
    assert!(left("a").is_some_and(|left| left > HOUR / 2), "{:?}", left("a"));
    assert!(left("b").is_none_or(|left| left < HOUR / 2), "{:?}", left("b"));

    // Both locks last for the hour, and can't be released.
    let store = Store::new();
    let ran = run_where_is_refused(&store, "NEW.grant_id IS NOT OLD.grant_id");
    ends(&ran, 0, "ready\n");
    let stands = "could not be released, but will stand for at least 1 h from the grant";
    assert!(ran.stderr.contains(stands), "{}", ran.stderr);
    for key in ["a", "b"] {
        let held = store.client().get(key).unwrap().unwrap();
        assert!(held.holders()[0].remaining().is_some_and(|left| left > HOUR / 2), "{held:?}");
    }
}

/// A host that dies has not done the work; but a lock with a least time still lasts for that time.
#[test]
fn what_is_killed_is_due_again_and_stands_for_its_least_time() {
    for (option, again) in [("--every", Some("ran")), ("--hold-at-least", None)] {
        let store = Store::new();
        let options = [option, "1h", "--lease", "9s", "--kill-after", "0s"];
        let mut running = Running::start(&mut store.reading(&options, "echo ready; read go"));
        running.expect("ready");
        // While it runs it is not due either.
        if again.is_some() {
            assert_eq!(run(&mut store.script(&options, "echo never")).code, Some(79));
        }
        running.signal(Signal::SIGKILL);
        running.status();
        let wait = if again.is_some() { "50s" } else { "3s" };
        let next = run(&mut store.script(&["--wait", wait, option, "1h"], "echo ran"));
        assert_eq!(next.stdout.lines().next(), again, "{}", next.stderr);
    }
}

#[test]
fn a_period_that_makes_no_sense_is_wrong_usage() {
    let store = Store::new();
    for (options, why) in [
        (&["--every", "0"][..], "above zero"),
        (&["--every", "31d"], "at most 30 days"),
        (&["--hold-at-least", "31d"], "at most 30 days"),
        (&["--hold-at-least", "0s"], "above zero"),
        (&["--every", "1h", "--shared"], "cannot be used with"),
        (&["--every", "1h", "--max-holders", "2"], "cannot be used with"),
    ] {
        let ran = run(&mut store.script(options, "echo never"));
        ends(&ran, 64, "");
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

/// However long the lock lasts, leasehold does not wait that long for the store, and a signal still works.
#[test]
#[cfg(all(feature = "sqlite", target_os = "linux"))]
fn a_store_that_is_away_at_the_end_holds_nobody_up() {
    for signal in [Some(Signal::SIGTERM), None] {
        let store = Store::new();
        // leasehold waits for the store until a third of the lease after the lease's end; a release that then fails for
        // good takes five seconds.
        let lease = if signal.is_some() { "30m" } else { "9s" };
        let options = ["--hold-at-least", "10h", "--every", "20h", "--lease", lease];
        let mut running = Running::ready(&mut store.reading(&options, "echo ready; read go"));
        let _db = store.stuck();
        running.tell("go");
        // An earlier signal may count as coming together with the command's end.
        wait_until("it releases", || running.threads().iter().any(|name| name.starts_with("leasehold-relea")));
        signal.into_iter().for_each(|signal| running.signal(signal));
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("so it may run again in this period: the store does not answer"), "{}", ran.stderr);
    }
}

/// The release finds that the lease is over.
#[test]
#[cfg(all(feature = "sqlite", target_os = "linux"))]
fn what_is_over_after_its_command_has_ended_was_not_lost() {
    let both = ["1h", "10s"].map(|max_hold| {
        let store = Store::new();
        let options = ["--every", "20h", "--lease", "18s", "--max-hold", max_hold];
        let mut running = Running::ready(&mut store.reading(&options, "echo ready; read go"));
        let db = store.stuck();
        running.tell("go");
        (running, db, store)
    });
    for (running, _db, _store) in both {
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("so it may run again in this period"), "{}", ran.stderr);
    }
}
