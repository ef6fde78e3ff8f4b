//! The checker on trial: what a thread that was stopped at a mark explains, and a run with such threads.

use std::process::Command;

use crate::checker::history::{Asked, End, Line};
use crate::forge::{Forged, Held, LEASE, MS, SLACK, TIMEOUT, all, alone, waits};
use crate::runs::binary;

/// A thread of `a` was stopped in these calls.
fn stopped(from: u64, to: u64, calls: &[Held]) -> Line {
    let calls = calls.iter().map(|held| held.1).collect();
    Line::Point { from: from * MS, to: to * MS, mark: "some.mark".to_owned(), calls }
}

/// A hold that is lost at `at`. A thread was stopped from 1.5 s on, in calls on this hold (`own`), on another one, or
/// in none.
fn lost_by(reason: &str, until: u64, at: u64, whose: &str) -> Forged {
    let mut forged = Forged::new();
    let other = forged.grant("a", 900, 1, Asked { keys: vec!["other".to_owned()], ..alone() });
    let held = forged.grant("a", 1_000, 1, alone());
    let calls = match whose {
        "own" => vec![held],
        "other" => vec![other],
        _ => Vec::new(),
    };
    forged.put("a", stopped(1_500, until, &calls));
    forged.look(held, at, 0);
    forged.put("a", Line::Lost { at: (at + 1) * MS, id: held.1, reason: reason.to_owned() });
    forged
}

#[test]
fn it_explains_the_loss_of_its_own_hold_and_of_no_other() {
    let over = 1_010 + LEASE;
    for reason in ["expired", "taken_over", "released_by_other", "gone", "unknown"] {
        for whose in ["own", "nobody"] {
            lost_by(reason, over, over + 100, whose).passes();
            // The thread went on long before the loss.
            lost_by(reason, 1_600, 1_602 + LEASE + 2 * SLACK, whose).is_caught("loss");
        }
        lost_by(reason, over, over + 100, "other").is_caught("loss");
    }
    // Nobody can have taken it over before its lease was over.
    lost_by("taken_over", 1_900, 2_000, "own").is_caught("loss");
    lost_by("heartbeat_died", over, over + 100, "own").is_caught("loss");
}

/// A release hands the lock over to the next call in its process, even if its thread is stopped in the middle of that.
#[test]
fn it_explains_the_loss_of_what_was_asked_for_meanwhile() {
    let lost = |from: u64, to: u64| {
        let mut forged = Forged::new();
        let before = forged.grant("a", 500, 1, alone());
        forged.put("a", stopped(from, to, &[before]));
        forged.release(before, 990);
        let held = forged.grant("a", 1_000, 2, alone());
        forged.look(held, 1_100, 0);
        forged.put("a", Line::Lost { at: 1_101 * MS, id: held.1, reason: "expired".to_owned() });
        forged
    };
    lost(900, 1_005).passes();
    lost(1_011, 1_050).is_caught("loss");
}

#[test]
fn it_explains_a_failure_of_its_own_call_and_of_those_behind_it() {
    let fails = |whose: &str, error: &str, asked: Asked| {
        let mut forged = Forged::new();
        let [other, same] = ["other", "job"].map(|key| {
            let held = forged.grant("a", 500, 1, Asked { keys: vec![key.to_owned()], ..alone() });
            forged.release(held, 600);
            held
        });
        let asked = forged.ask("a", 1_000, asked);
        let calls = match whose {
            "own" => vec![asked],
            "same" => vec![same],
            "other" => vec![other],
            _ => Vec::new(),
        };
        forged.put("a", stopped(1_001, 1_005, &calls));
        forged.fail(asked, 1_010, error);
        forged
    };
    fails("own", "store", alone()).passes();
    fails("same", "store", alone()).passes();
    fails("other", "store", alone()).is_caught("loss");
    fails("nobody", "store", alone()).is_caught("loss");
    // A call that wants all keys holds some of them, which the library's own threads renew.
    fails("nobody", "lost", all(&["job", "third"])).passes();
    fails("nobody", "store", all(&["job", "third"])).is_caught("loss");
}

#[test]
fn it_explains_lateness_of_its_own_call_alone() {
    let late = |whose: &str| {
        let mut forged = Forged::new();
        let held = forged.grant("b", 900, 1, alone());
        forged.look(held, 2_000, 3 * LEASE);
        let asked = forged.ask("a", 1_000, alone());
        let calls = match whose {
            "own" => vec![asked],
            "other" => vec![Held("a", asked.1 + 1)],
            _ => Vec::new(),
        };
        forged.put("a", stopped(1_001, 4_000, &calls));
        forged.put("a", Line::Refused { at: (1_001 + TIMEOUT + SLACK) * MS, id: asked.1 });
        forged
    };
    late("own").passes();
    late("other").is_caught("late");
    late("nobody").is_caught("late");
    // It explains no more delay than the time of the stop.
    let hangs = |answered: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("b", 900, 1, alone());
        forged.look(held, 2_000, 9 * LEASE);
        let asked = forged.ask("a", 1_000, alone());
        forged.put("a", stopped(1_100, 1_600, &[asked]));
        forged.put("a", Line::Refused { at: answered * MS, id: asked.1 });
        forged
    };
    let last = 1_000 + TIMEOUT + SLACK + 500 + SLACK;
    hangs(last).passes();
    hangs(last + 1).is_caught("late");
    // After that the whole process is stopped, from `from` on.
    let both = |from: u64, after: u64| {
        let mut forged = hangs(from + 2_000 + after);
        forged.told(Line::Stopped { from: from * MS, to: (from + 1_999) * MS, process: "a".to_owned() });
        forged
    };
    both(last, 0).passes();
    both(last + 1, 0).is_caught("late");
    both(last, SLACK).is_caught("late");
    let release = |whose: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.put("a", stopped(1_101, 9_000, &[Held("a", whose)]));
        forged.put("a", Line::Ending { at: 1_100 * MS, id: held.1, how: End::Release });
        let at = (1_101 + LEASE + SLACK) * MS;
        forged.put("a", Line::Ended { at, id: held.1, answer: "ok".to_owned() });
        forged
    };
    release(1).passes();
    release(2).is_caught("late");
}

/// Two holders at the same time, a token that falls, a refusal without a reason.
#[test]
fn it_explains_nothing_else() {
    let mut forged = Forged::new();
    let one = forged.grant("a", 1_000, 1, alone());
    let other = forged.grant("b", 1_100, 2, alone());
    forged.put("a", stopped(1_001, 4_000, &[one]));
    forged
        .put("b", Line::Point { from: 1_101 * MS, to: 4_000 * MS, mark: "some.mark".to_owned(), calls: vec![other.1] });
    forged.is_caught("overlap");
    let mut forged = Forged::new();
    let one = forged.grant("a", 1_000, 2, alone());
    forged.release(one, 1_100);
    let other = forged.grant("b", 1_200, 1, alone());
    forged.put("b", stopped(1_201, 1_205, &[other]));
    forged.is_caught("tokens");
    let mut forged = Forged::new();
    forged.refuse("a", 1_000, 1_010, alone());
    forged.put("a", stopped(1_001, 1_005, &[Held("a", 1)]));
    forged.is_caught("refusal");
}

/// A call for the same key in its process waits behind the stopped thread, and the library's own thread may have to
/// wake it.
#[test]
fn a_wait_for_the_same_key_in_its_process_is_explained() {
    let waited = |process: &'static str, stopped_in: &str| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        let other = forged.grant("a", 1_000, 1, Asked { keys: vec!["other".to_owned()], ..alone() });
        forged.release(held, 1_100);
        let calls = match stopped_in {
            "its line" => vec![held],
            "another call" => vec![other],
            _ => Vec::new(),
        };
        forged.put("a", stopped(1_160, 4_000, &calls));
        let waiter = forged.ask(process, 1_200, waits(None));
        forged.put(process, Line::Granted { at: 4_000 * MS, id: waiter.1, token: 2, key: "job".to_owned() });
        forged
    };
    waited("a", "its line").passes();
    waited("a", "no call").passes();
    waited("a", "another call").is_caught("blocked");
    waited("c", "its line").is_caught("blocked");
    waited("c", "no call").is_caught("blocked");
    // A call that misses its wakeup hangs for longer than the thread was stopped.
    let hangs = |woken: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.release(held, 1_100);
        let waiter = forged.ask("a", 1_050, waits(None));
        forged.put("a", stopped(1_160, 1_660, &[waiter]));
        forged.put("a", Line::Granted { at: woken * MS, id: waiter.1, token: 2, key: "job".to_owned() });
        forged
    };
    hangs(1_660 + LEASE).passes();
    hangs(1_660 + 4 * LEASE).is_caught("blocked");
}

/// A call that was granted the lock, but learns of that too late, is refused, and gives the lock up.
#[test]
fn who_was_refused_by_it_may_have_held_it() {
    let refused = |line: bool, at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("b", 900, 1, alone());
        forged.release(held, 1_400);
        let asked = forged.ask("a", 1_000, waits(Some(500)));
        if line {
            forged.put("a", stopped(1_450, 1_550, &[asked]));
        }
        forged.put("a", Line::Refused { at: 1_600 * MS, id: asked.1 });
        forged.refuse("c", at, at + 10, alone());
        forged
    };
    refused(false, 1_500).is_caught("refusal");
    refused(true, 1_500).passes();
    let last = 1_550 + SLACK + 2 * SLACK;
    refused(true, last).passes();
    refused(true, last + 1).is_caught("refusal");
}

/// The report counts the stopped threads by their marks.
#[test]
fn what_was_stopped_is_counted_by_its_mark() {
    let dir = tempfile::tempdir().expect("a folder");
    let history = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
    history("parent.log", "terms 3000000000 1000000000 0 1000000000 1000000000 0\n");
    history("w0.0.log", "point 1000 2000 renew.sent -\npoint 3000 4000 renew.sent -\npoint 5000 6000 hand.given 1,2\n");
    let ran = Command::new(binary()).arg("--check").arg(dir.path()).output().expect("the example starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("faults that met something: points 3\n"), "{said}");
    assert!(said.contains("threads that were stopped: hand.given 1, renew.sent 2\n"), "{said}");
    let json = std::fs::read_to_string(dir.path().join("report.json")).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["stopped_at"], serde_json::json!({"hand.given": 1, "renew.sent": 2}));
}

#[test]
#[cfg(feature = "sqlite")]
fn sqlite_with_threads_that_are_stopped() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", dir.path().join("locks.db").display());
    crate::runs::Run { store, minutes: 0.35, faults: "points,kill,fork", ..Default::default() }.is_clean(dir.path());
}
