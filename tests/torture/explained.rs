//! A fault explains what happens until it is over and a little later, not the whole of a call that it meets.

use crate::checker::history::Line;
use crate::forge::*;

const FAULT: (u64, u64) = (2_000, 2_100);
/// By then the client has recovered, and what was granted meanwhile, too late, was given up or its lease is over.
const OVER: u64 = 2_100 + SLACK + LEASE + GRACE + SLACK;

fn troubled(forged: &mut Forged, process: &str) {
    forged.told(Line::Net { from: FAULT.0 * MS, to: FAULT.1 * MS, process: process.into(), kind: "reset".into() });
}

#[test]
fn a_wait_in_vain_long_after_a_fault_is_caught() {
    let waited_until = |at: u64| {
        let mut forged = Forged::new();
        let waiter = forged.ask("b", 1_900, waits(None));
        troubled(&mut forged, "b");
        forged.put("b", Line::Granted { at: at * MS, id: waiter.1, token: 1, key: "job".into() });
        forged
    };
    waited_until(OVER + SLACK).passes();
    waited_until(OVER + SLACK + 1).is_caught("blocked");
}

/// Nobody had the key while another waited for it: the winner's wait may have had it next to the fault only.
#[test]
fn a_winner_who_met_a_fault_long_before_does_not_explain_that_others_waited() {
    let waited_beside = |process: &'static str| {
        let mut forged = Forged::new();
        let winner = forged.ask("b", 1_900, waits(None));
        troubled(&mut forged, "b");
        let other = forged.ask(process, 4_000, waits(None));
        forged.put("b", Line::Granted { at: 30_000 * MS, id: winner.1, token: 1, key: "job".into() });
        forged.look(winner, 30_000, LEASE);
        forged.release(winner, 30_100);
        forged.put(process, Line::Granted { at: 30_200 * MS, id: other.1, token: 2, key: "job".into() });
        forged.judged().counts
    };
    // Both waits.
    assert_eq!(waited_beside("c").get("blocked"), Some(&2));
}

#[test]
fn a_fault_does_not_explain_a_refusal_long_after_it() {
    let refused_at = |at: u64, fails: bool| {
        let mut forged = Forged::new();
        let waiter = forged.ask("b", 1_900, waits(None));
        troubled(&mut forged, "b");
        for n in 8..60 {
            let held = forged.grant("q", n * 1_000, n, alone());
            forged.release(held, n * 1_000 + 500);
        }
        forged.refuse("p", at, at + 10, alone());
        if fails {
            forged.fail(waiter, 60_000, "cancelled");
            forged.told(Line::Over { at: 59_990 * MS });
        } else {
            forged.put("b", Line::Granted { at: 60_000 * MS, id: waiter.1, token: 61, key: "job".into() });
        }
        forged
    };
    for fails in [false, true] {
        refused_at(3_000, fails).passes();
        refused_at(30_600, fails).is_caught("refusal");
        refused_at(59_500, fails).passes();
    }
}

#[test]
fn a_fault_does_not_explain_a_failure_long_after_it() {
    let failed_at = |at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        let waiter = forged.ask("b", 1_900, waits(None));
        troubled(&mut forged, "b");
        forged.fail(waiter, at, "store");
        forged.release(held, at + 10);
        forged
    };
    failed_at(2_500).passes();
    failed_at(30_000).is_caught("loss");
}

/// A reader may be refused if others fill the room at the same time, not one after the other.
#[test]
fn readers_who_came_one_after_the_other_do_not_fill_the_room() {
    let second_at = |at: u64| {
        let mut forged = Forged::new();
        let first = forged.grant("a", 1_000, 1, shared(2));
        forged.release(first, 1_100);
        let second = forged.grant("c", at, 2, shared(2));
        let waiting = crate::checker::history::Asked { wait: Some(900 * MS), ..shared(2) };
        forged.refuse("b", 1_050, 1_960, waiting);
        forged.release(second, 2_000);
        forged
    };
    second_at(1_200).is_caught("refusal");
    second_at(1_080).passes();
}

/// A wait without a deadline is cancelled at the end of the run.
#[test]
fn a_cancelled_call_that_goes_on_is_late() {
    let ended_at = |at: u64, answer: Option<&str>| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        for n in 2..10 {
            forged.look(held, n * 1_000, LEASE);
        }
        let waiter = forged.ask("b", 2_000, waits(None));
        forged.told(Line::Over { at: 5_000 * MS });
        match answer {
            Some(error) => forged.fail(waiter, at, error),
            None => forged.dies("b", at),
        }
        forged.release(held, 9_100);
        forged
    };
    let due = 5_000 + TIMEOUT + SLACK;
    for answer in [Some("cancelled"), None] {
        ended_at(due, answer).passes();
        ended_at(due + 1, answer).is_caught("late");
    }
}
