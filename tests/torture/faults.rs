//! The checker on trial: what a fault explains, and what none does.

use std::collections::BTreeMap;

use crate::checker::history::{Asked, Line};
use crate::forge::{Forged, MS, TIMEOUT, alone, instead_of, waits};

#[test]
fn who_was_late_itself_is_no_excuse_for_others() {
    let late_is = |process: &str| {
        let mut forged = Forged::new();
        forged.put(process, Line::Late { from: 900 * MS, to: 1_100 * MS });
        let asked = forged.ask("a", 1_000, alone());
        forged.fail(asked, 1_010, "store");
        forged
    };
    late_is("a").passes();
    late_is("parent").passes();
    late_is("b").is_caught("loss");
}

#[test]
fn what_a_fault_excuses_is_not_judged() {
    let mut forged = Forged::new();
    let asked = forged.ask("a", 1_000, alone());
    forged.fail(asked, 1_010, "store");
    forged.told(Line::Late { from: 900 * MS, to: 1_100 * MS });
    let verdict = forged.judged();
    let of = |counts: &BTreeMap<&str, usize>| counts.get("loss").copied().unwrap_or_default();
    assert_eq!((of(&verdict.judged), of(&verdict.blind), of(&verdict.excused)), (0, 0, 1));
    // A case that is right is not judged either, because it would have been excused, too.
    let held = forged.grant("a", 1_020, 1, alone());
    forged.release(held, 1_040);
    let verdict = forged.judged();
    assert_eq!((of(&verdict.judged), of(&verdict.blind), of(&verdict.excused)), (0, 1, 1));
    // The fault was over before this case.
    let held = forged.grant("a", 9_000, 2, alone());
    forged.release(held, 9_100);
    let verdict = forged.judged();
    assert_eq!((of(&verdict.judged), of(&verdict.blind), of(&verdict.excused)), (1, 1, 1));
}

#[test]
fn a_loss_that_no_fault_can_explain_is_caught() {
    for reason in ["taken_over", "released_by_other", "gone", "heartbeat_died", "unknown"] {
        let lost = |at: u64| {
            let mut forged = Forged::new();
            let held = forged.grant("a", 1_000, 1, alone());
            let (process, kind) = ("a".to_owned(), "black-hole".to_owned());
            forged.told(Line::Net { from: 1_500 * MS, to: (at - 100) * MS, process, kind });
            forged.look(held, at, 0);
            forged.put("a", Line::Lost { at: (at + 1) * MS, id: held.1, reason: reason.to_owned() });
            forged
        };
        let stopped = |to: u64| Line::Stopped { from: 1_500 * MS, to: to * MS, process: "a".to_owned() };
        let mut forged = lost(2_000);
        forged.is_caught("loss");
        // A process that did not run may not have learned of it, but its lease was not over.
        forged.told(stopped(1_900));
        match reason {
            "unknown" => forged.passes(),
            _ => forged.is_caught("loss"),
        }
        // After the lease others may have had the lock, or have removed what was over.
        let mut forged = lost(5_000);
        forged.is_caught("loss");
        forged.told(stopped(4_900));
        match reason {
            "heartbeat_died" => forged.is_caught("loss"),
            _ => forged.passes(),
        }
    }
}

#[test]
fn who_adopts_it_later_does_not_explain_a_loss() {
    let adopted_at = |at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.look(held, 2_000, 0);
        forged.put("a", Line::Lost { at: 2_001 * MS, id: held.1, reason: "taken_over".to_owned() });
        forged.grant("b", at, 2, instead_of(1));
        forged
    };
    adopted_at(1_900).passes();
    adopted_at(2_100).is_caught("loss");
}

#[test]
fn a_wait_that_fails_long_before_its_end_is_caught() {
    let failed_after = |took: u64, error: &str, asked: Asked| {
        let mut forged = Forged::new();
        let asked = forged.ask("a", 1_000, asked);
        forged.fail(asked, 1_000 + took, error);
        forged
    };
    for error in ["store", "ambiguous", "timed_out"] {
        // Also a short wait.
        for wait in [50, 1_400] {
            failed_after(wait / 10 * 9 - 1, error, waits(Some(wait))).is_caught("loss");
            failed_after(wait / 10 * 9, error, waits(Some(wait))).passes();
        }
    }
    // A call that does not wait has the time of a request.
    failed_after(TIMEOUT / 10 * 9 - 1, "timed_out", alone()).is_caught("loss");
    failed_after(TIMEOUT / 10 * 9, "timed_out", alone()).passes();
    failed_after(10, "timed_out", waits(None)).is_caught("loss");
    // Nothing is cancelled before the run is over.
    let mut forged = failed_after(10, "cancelled", waits(Some(1_400)));
    forged.told(Line::Over { at: 1_011 * MS });
    forged.is_caught("loss");
    let mut forged = failed_after(10, "cancelled", waits(Some(1_400)));
    forged.told(Line::Over { at: 1_005 * MS });
    forged.passes();
}
