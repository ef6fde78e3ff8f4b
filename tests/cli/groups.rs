//! `run` of several keys, where something goes wrong on the way to all of them.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Running, Store, run};
use crate::wait::wait_until;

fn both(store: &Store, options: &[&str]) -> Running {
    let mut command = store.leasehold(&["run", "a", "b", "--lease", "30s"]);
    Running::start(command.args(options).args(["--", "sleep", "1000"]))
}

/// How long the lease of its holder still lasts, if it has one.
fn left(store: &Store, key: &str) -> Option<Duration> {
    let key = store.client().get(key).unwrap()?;
    key.holders().first().and_then(|holder| holder.remaining())
}

/// `--max-hold` limits the work, not the wait for the second key.
#[test]
fn the_longest_hold_is_counted_from_when_all_are_held() {
    let store = Store::new();
    let b = store.client().lock("b").unwrap();
    let max_hold = Duration::from_secs(1);
    let running = both(&store, &["--max-hold", "1s"]);
    wait_until("a is held", || left(&store, "a").is_some());
    let began = Instant::now();
    wait_until("it is held for longer than the work may take", || began.elapsed() > max_hold * 2);
    let freed = Instant::now();
    b.release().unwrap();
    let ran = running.end();
    assert_eq!(ran.code, Some(76), "{}", ran.stderr);
    assert!(ran.stderr.contains("held for as long as --max-hold allows"), "{}", ran.stderr);
    assert!(freed.elapsed() >= max_hold, "{:?}: {}", freed.elapsed(), ran.stderr);
}

/// Nothing ran, so nobody should have to wait until the end of the hour.
#[test]
#[cfg(feature = "sqlite")]
fn where_one_cannot_be_made_to_stand_none_does() {
    for (options, signal, code) in [(&["--wait", "10s"][..], None, 78), (&[], Some(Signal::SIGTERM), 143)] {
        let store = Store::new();
        drop(store.client());
        let an_hour = "NEW.key = CAST('b' AS BLOB) AND NEW.leased_until - NEW.created > 1800000000000";
        store.refuses(an_hour);
        let running = both(&store, &[options, &["--hold-at-least", "1h"]].concat());
        let stands = |key| left(&store, key).is_some_and(|left| left > Duration::from_secs(1800));
        if let Some(signal) = signal {
            wait_until("the first stands", || stands("a"));
            running.signal(signal);
        }
        let ran = running.end();
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert_eq!([left(&store, "a"), left(&store, "b")], [None, None], "{}", ran.stderr);
    }
}

/// A key that can't be released does not keep the others from being released, and a second signal does not suppress the
/// report.
#[test]
#[cfg(feature = "sqlite")]
fn what_stands_though_nothing_is_run_is_freed_one_by_one_and_said() {
    for signals in [0, 2] {
        let store = Store::new();
        drop(store.client());
        let refused = "NEW.key = CAST('c' AS BLOB) AND NEW.leased_until - NEW.created > 1800000000000
            OR NEW.key = CAST('a' AS BLOB) AND NEW.grant_id IS NOT OLD.grant_id";
        store.refuses(refused);
        let wait = if signals == 0 { "0s" } else { "1h" };
        let args = ["run", "a", "b", "c", "--hold-at-least", "1h", "--wait", wait, "--", "echo", "never"];
        let mut running = Running::start(&mut store.leasehold(&args));
        let stands = |key| left(&store, key).is_some_and(|left| left > Duration::from_secs(1800));
        if signals == 2 {
            wait_until("the first two stand", || stands("b"));
            running.signal(Signal::SIGTERM);
            running.says("nothing is run; until they are released some of the locks");
            running.signal(Signal::SIGTERM);
        }
        let ran = running.end();
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(if signals == 0 { 78 } else { 143 }), ""), "{}", ran.stderr);
        if signals == 0 {
            assert!(ran.stderr.contains("the lock \"a\" may stand for 1 h though nothing was run"), "{}", ran.stderr);
            assert_eq!([stands("a"), stands("b")], [true, false], "{}", ran.stderr);
        }
    }
}

/// A failed release of one key does not hide that the work was not safe.
#[test]
#[cfg(feature = "sqlite")]
fn that_one_was_lost_is_told_where_another_can_not_be_released() {
    let store = Store::new();
    drop(store.client());
    let mut command = store.reading(&["z", "--lease", "1h"], "echo ready; read go; true");
    let running = Running::ready(&mut command);
    store.refuses("NEW.key = CAST('k' AS BLOB) AND NEW.grant_id IS NOT OLD.grant_id");
    store.client().force_release("z").unwrap();
    let ran = running.end();
    assert_eq!(ran.code, Some(76), "{}", ran.stderr);
}

/// As with one key: their lease may last for hours after the store is back.
#[test]
#[cfg(feature = "sqlite")]
fn what_the_store_does_not_answer_at_the_end_is_released_once_it_is_back() {
    let store = Store::new();
    let mut running = Running::ready(&mut store.reading(&["z", "--lease", "10m"], "echo ready; read go"));
    let stuck = store.stuck();
    running.tell("go");
    running.says("could not be released yet");
    drop(stuck);
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stderr.contains("and ends with its lease"), "{}", ran.stderr);
    assert_eq!([left(&store, "k"), left(&store, "z")], [None, None], "{}", ran.stderr);
}

/// Otherwise the keys that are not lost would keep it out until the next period.
#[test]
#[cfg(feature = "sqlite")]
fn a_run_that_has_lost_one_of_several_is_due_again() {
    let store = Store::new();
    drop(store.client());
    let mut command = store.reading(&["z", "--every", "1h", "--lease", "1h"], "echo ready; read go; true");
    let running = Running::ready(&mut command);
    store.client().force_release("z").unwrap();
    let ran = running.end();
    assert_eq!(ran.code, Some(76), "{}", ran.stderr);
    let again = run(store.leasehold(&["run", "k", "z", "--every", "1h"]).args(["--", "echo", "again"]));
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "again\n"), "{}", again.stderr);
}

/// The system would refuse to start the command after all of them were taken.
#[test]
#[cfg(target_os = "linux")]
fn keys_that_fit_into_no_environment_are_refused_before_they_are_taken() {
    let store = Store::new();
    // Each key counts with its end of line, and the last one with the end of the text.
    let keys = |all: usize| {
        let keys = (0..130).map(|n| format!("{n:01000}")).collect::<Vec<_>>();
        let rest = all - keys.iter().map(|key| key.len() + 1).sum::<usize>() - 1;
        keys.into_iter().chain(["k".repeat(rest)])
    };
    let run = |keys| run(store.leasehold(&["run", "--try"]).args(keys).args(["--", "true"]));
    let most = (128 << 10) - "LEASEHOLD_KEY=".len();
    let ran = run(keys(most + 1));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    let said = ["the 131 keys", "131058 bytes", "at most 131057"];
    assert!(said.iter().all(|said| ran.stderr.contains(said)), "{}", ran.stderr);
    assert!(!store.path("locks.db").exists());
    let ran = run(keys(most));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // Nor are so many accepted that their tokens are too long, however short the keys are.
    let store = Store::new();
    let many = |count| {
        let many = (0..count).map(|n| format!("{n:04}"));
        // On a busy machine it may take longer than a usual lease to take them all.
        crate::support::run(store.leasehold(&["run", "--try", "--lease", "60s"]).args(many).args(["--", "true"]))
    };
    let ran = many(6_241);
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    assert!(ran.stderr.contains("the 6241 keys may be too long for LEASEHOLD_TOKEN"), "{}", ran.stderr);
    assert!(!store.path("locks.db").exists());
    let ran = many(6_240);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
