//! The checker on trial: what a write that came twice explains, and that a wrong date explains nothing.

use std::process::Command;

use crate::checker::history::{Asked, Line};
use crate::forge::{Forged, GRACE, LEASE, MS, SLACK, alone, waits};
use crate::runs::binary;

/// The request that `b` sent at `asked` came once more at `at`.
fn copy(asked: u64, at: u64, known_again: bool) -> Line {
    let (process, key) = ("b".to_owned(), "job".to_owned());
    let [asked, at] = [asked, at].map(|ms| ms * MS);
    Line::Twice { asked, from: at, to: at, process, key, known_again, answered: true }
}

/// `a` has held it. `b` was refused meanwhile, or has held it after that. At 1.6 s nobody holds it.
fn free_at_1_600(b_is_refused: bool) -> Forged {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    if b_is_refused {
        forged.refuse("b", 1_100, 1_110, alone());
    }
    forged.release(held, 1_200);
    if !b_is_refused {
        let held = forged.grant("b", 1_300, 2, alone());
        forged.release(held, 1_400);
    }
    forged
}

#[test]
fn a_copy_of_what_was_refused_may_hold_it_for_a_lease() {
    let refused = |line: Option<Line>, at: u64| {
        let mut forged = free_at_1_600(true);
        line.into_iter().for_each(|line| forged.told(line));
        forged.refuse("c", at, at + 10, alone());
        forged
    };
    refused(None, 1_700).is_caught("refusal");
    refused(Some(copy(1_105, 1_600, true)), 1_700).passes();
    let last = 1_600 + LEASE + GRACE + SLACK;
    refused(Some(copy(1_105, 1_600, true)), last).passes();
    refused(Some(copy(1_105, 1_600, true)), last + 1).is_caught("refusal");
    refused(Some(copy(1_105, 1_720, true)), 1_700).is_caught("refusal");
    // The refused call was not under way at that time.
    refused(Some(copy(1_120, 1_600, true)), 1_700).is_caught("refusal");
    // The copy is not of that key, or not of the process that was refused.
    for (other, which) in [("a", "job"), ("b", "other")] {
        let Line::Twice { asked, from, to, known_again, answered, .. } = copy(1_105, 1_600, true) else {
            unreachable!()
        };
        let (process, key) = (other.to_owned(), which.to_owned());
        let line = Line::Twice { asked, from, to, process, key, known_again, answered };
        refused(Some(line), 1_700).is_caught("refusal");
    }
}

#[test]
fn a_copy_of_what_was_granted_is_known_again() {
    let refused = |known_again: bool| {
        let mut forged = free_at_1_600(false);
        forged.told(copy(1_305, 1_600, known_again));
        forged.refuse("c", 1_700, 1_710, alone());
        forged
    };
    refused(true).is_caught("refusal");
    refused(false).passes();
    // A call for two keys that was granted one was refused the other.
    let two = Asked { keys: vec!["job".to_owned(), "other".to_owned()], ..alone() };
    let mut forged = Forged::new();
    let held = forged.grant("b", 1_300, 2, two);
    forged.release(held, 1_400);
    forged.told(copy(1_305, 1_600, true));
    forged.refuse("c", 1_700, 1_710, alone());
    forged.passes();
}

#[test]
fn a_wait_for_a_copy_is_explained_and_not_for_longer() {
    let granted = |line: Option<Line>, at: u64| {
        let mut forged = free_at_1_600(true);
        line.into_iter().for_each(|line| forged.told(line));
        let waiter = forged.ask("c", 1_600, waits(None));
        forged.put("c", Line::Granted { at: at * MS, id: waiter.1, token: 3, key: "job".to_owned() });
        forged
    };
    granted(None, 3_000).is_caught("blocked");
    granted(Some(copy(1_105, 1_600, true)), 3_000).passes();
    granted(Some(copy(1_105, 1_600, false)), 3_000).passes();
    // The wait in vain is longer than the copy can hold the key.
    granted(Some(copy(1_105, 1_600, true)), 1_600 + LEASE + GRACE + 3 * SLACK).is_caught("blocked");
    let mut forged = free_at_1_600(false);
    forged.told(copy(1_305, 1_600, true));
    let waiter = forged.ask("c", 1_600, waits(None));
    forged.put("c", Line::Granted { at: 3_000 * MS, id: waiter.1, token: 3, key: "job".to_owned() });
    forged.is_caught("blocked");
}

#[test]
fn what_copies_leave_in_a_row_is_explained_each_by_one() {
    // A hold that was released may remain in the row until the next grant.
    let kept = |holders: u64, copies: &[u64]| {
        let mut forged = free_at_1_600(true);
        copies.iter().for_each(|asked| forged.told(copy(*asked, 1_600, true)));
        forged.told(Line::Kept { at: 9_000 * MS, key: "job".to_owned(), holders });
        forged
    };
    kept(2, &[]).is_caught("left");
    kept(2, &[1_105]).passes();
    kept(3, &[1_105]).is_caught("left");
    kept(3, &[1_105, 1_106]).passes();
    let left = |at: u64| {
        let mut forged = free_at_1_600(true);
        forged.told(copy(1_105, 4_000, true));
        forged.told(Line::Left { at: at * MS, key: "job".to_owned(), holders: 1 });
        forged
    };
    let last = 4_000 + LEASE + GRACE + SLACK;
    left(last).passes();
    left(last + 1).is_caught("left");
}

/// Two holders at the same time are still caught, and no call may fail because of either fault.
#[test]
fn neither_excuses_anything_else() {
    let date = |process: &str| Line::Date { at: 1_000 * MS, process: process.to_owned(), seconds: 300 };
    let mut forged = Forged::new();
    forged.told(date("b"));
    forged.told(copy(1_205, 1_210, false));
    let failing = forged.ask("b", 1_200, alone());
    forged.fail(failing, 1_220, "ambiguous");
    forged.is_caught("loss");
    let mut forged = Forged::new();
    forged.told(date("b"));
    forged.told(copy(1_100, 1_200, false));
    forged.grant("a", 1_000, 1, alone());
    forged.grant("b", 1_100, 2, alone());
    forged.is_caught("overlap");
}

/// The report counts a copy that was answered, and each wrong date.
#[test]
fn what_really_hit_is_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = "terms 3000000000 1000000000 0 1000000000 1000000000 0\n\
                 twice 1000 2000 3000 w0.0 job 1 1\ntwice 1000 2000 3000 w0.0 job 1 0\n\
                 date 1000 w0.0 -7\ndate 2000 w0.0 -7\n";
    std::fs::write(dir.path().join("parent.log"), lines).expect("a file");
    let ran = Command::new(binary()).arg("--check").arg(dir.path()).output().expect("the example starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("faults that met something: date 2, twice 1\n"), "{said}");
    let json = std::fs::read_to_string(dir.path().join("report.json")).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["faults_that_hit"], serde_json::json!({"date": 2, "twice": 1}));
}

/// A store that can't have these faults does not have them by default.
#[test]
fn a_fault_that_the_store_can_not_have_is_a_usage_error() {
    for (store, fault) in [
        ("sqlite:x", "twice"),
        ("postgres://127.0.0.1:1/x", "twice"),
        ("spanner:projects/p/instances/i/databases/d", "twice"),
        ("sqlite:x", "date"),
        ("mongodb://127.0.0.1:1/x", "date"),
    ] {
        let ran = Command::new(binary()).args(["--store", store, "--faults", fault]).output().expect("it starts");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && said.contains(&format!("names {fault}, but only")), "{store}: {said}");
    }
}
