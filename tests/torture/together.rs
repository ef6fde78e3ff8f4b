//! The checker on trial: several locks that are wanted together.

use crate::checker::history::{Asked, End, Line};
use crate::forge::{Forged, LEASE, MS, SLACK, TIMEOUT, all, alone, instead_of, waits};

fn alone_on(key: &str) -> Asked {
    Asked { keys: vec![key.to_owned()], ..alone() }
}

fn all_in(keys: &[&str], wait: u64) -> Asked {
    Asked { wait: Some(wait * MS), ..all(keys) }
}

#[test]
fn each_of_several_locks_is_a_hold() {
    let two = ["in", "out"];
    let mut forged = Forged::new();
    let parts = forged.grant_all("a", 1_000, 1, &two);
    forged.refuse("b", 1_100, 1_110, alone_on("out"));
    parts.iter().for_each(|part| forged.release(*part, 1_200));
    forged.grant("b", 1_300, 2, alone_on("out"));
    forged.passes();
    forged.grant_all("c", 1_400, 3, &two);
    forged.is_caught("overlap");
}

/// What the guard reports for all is what is believed of each.
#[test]
fn several_that_are_believed_although_one_is_lost_are_caught() {
    let looked_at = |at: u64| {
        let mut forged = Forged::new();
        let parts = forged.grant_all("a", 1_000, 1, &["in", "out"]);
        let heir = forged.grant("b", 2_000, 2, Asked { keys: vec!["out".to_owned()], ..instead_of(1) });
        forged.look(heir, 4_000, LEASE);
        parts.iter().for_each(|part| forged.look(*part, at, 1_000));
        forged
    };
    // The next heartbeat notices it.
    looked_at(2_010 + LEASE - 1_000).passes();
    looked_at(2_011 + LEASE).is_caught("overlap");
}

#[test]
fn a_refusal_of_all_needs_one_that_is_held() {
    let two = ["in", "out"];
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone_on("out"));
    forged.refuse("b", 1_100, 1_110, all(&two));
    forged.release(held, 1_200);
    forged.passes();
    // That `b` itself may hold some of the keys meanwhile is no reason for its refusal.
    forged.refuse("b", 1_211, 1_220, all(&two));
    forged.is_caught("refusal");
    // That another call may hold some of them is a reason.
    forged.refuse("c", 1_215, 1_225, all(&two));
    forged.passes();
}

#[test]
fn who_wants_all_holds_the_first_meanwhile_and_no_longer() {
    let refused = |wait: u64, at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone_on("out"));
        forged.refuse("b", 1_100, 1_200 + wait, all_in(&["in", "out"], wait));
        forged.refuse("c", at, at + 5, alone_on("in"));
        forged.release(held, 2_000);
        forged
    };
    refused(0, 1_150).passes();
    // A call that does not wait gives the keys back at once.
    refused(0, 1_201).is_caught("refusal");
    refused(500, 1_700 + SLACK).passes();
    refused(500, 1_701 + SLACK).is_caught("refusal");
}

#[test]
fn who_gave_up_all_keeps_nobody_waiting() {
    let granted_at = |at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone_on("out"));
        forged.refuse("b", 1_100, 1_110, all(&["in", "out"]));
        let waiter = forged.ask("c", 1_105, Asked { keys: vec!["in".to_owned()], ..waits(None) });
        forged.put("c", Line::Granted { at: at * MS, id: waiter.1, token: 2, key: "in".to_owned() });
        forged.end(held, 1_200, End::Release, "ok");
        forged
    };
    granted_at(1_110 + SLACK).passes();
    granted_at(1_111 + SLACK).is_caught("blocked");
}

/// Each key has its own request, and the keys that were held are released before the answer.
#[test]
fn a_try_for_all_has_a_timeout_for_each() {
    let refused_after = |took: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone_on("out"));
        forged.look(held, 2_000, 3 * LEASE);
        forged.refuse("b", 1_100, 1_100 + took, all(&["in", "out"]));
        forged
    };
    let longest = 2 * TIMEOUT + LEASE + SLACK;
    refused_after(longest).passes();
    refused_after(longest + 1).is_caught("late");
}

#[test]
fn all_that_fail_without_a_fault_are_caught_with_what_was_said() {
    let mut forged = Forged::new();
    let asked = forged.ask("a", 1_000, all(&["in", "out"]));
    forged.fail(asked, 1_010, "store");
    forged.is_caught("loss");
    assert!(forged.judged().violations[0].text.contains("(store: as it was said)"));
}
