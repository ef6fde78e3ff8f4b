//! Histories of broken locks that the checker once accepted.

use crate::checker::history::{Asked, End, Form, Line};
use crate::forge::*;

#[test]
fn a_lock_as_data_that_is_gone_in_its_lease_is_caught() {
    let data = || Asked { form: Form::Data, ..alone() };
    let lost_at = |at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, data());
        forged.put("a", Line::Lost { at: at * MS, id: held.1, reason: "lost".into() });
        forged.release(held, at + 10);
        forged
    };
    lost_at(2_000).is_caught("loss");
    // Nobody has renewed it.
    lost_at(1_010 + LEASE).passes();
    // A fault may have hidden a renewal.
    let mut forged = lost_at(2_000);
    forged.told(Line::Net { from: 1_500 * MS, to: 1_600 * MS, process: "a".into(), kind: "reset".into() });
    forged.passes();
}

#[test]
fn a_reader_who_finds_room_is_not_refused() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(2));
    forged.refuse("b", 1_100, 1_110, shared(2));
    forged.is_caught("refusal");
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(2));
    forged.grant("c", 1_020, 2, shared(2));
    forged.refuse("b", 1_100, 1_110, shared(2));
    // Of its own limit.
    forged.refuse("d", 1_120, 1_130, shared(1));
    forged.passes();
}

#[test]
fn a_lock_that_is_handed_over_is_held_until_its_lease_ends() {
    let granted_at = |at: u64| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, alone());
        forged.end(old, 1_200, End::Leave, "ok");
        forged.grant("b", at, 2, alone());
        forged
    };
    granted_at(1_300).is_caught("overlap");
    granted_at(1_010 + LEASE).passes();
    // Its heir has it.
    let mut forged = Forged::new();
    let old = forged.grant("a", 1_000, 1, alone());
    forged.end(old, 1_200, End::Leave, "ok");
    forged.grant("b", 1_300, 2, instead_of(1));
    forged.passes();
}

#[test]
fn who_waits_does_not_explain_a_refusal_long_before_its_grant() {
    let refused_at = |at: u64| {
        let mut forged = Forged::new();
        let waiter = forged.ask("b", 1_000, waits(None));
        for n in 1..60 {
            let held = forged.grant("q", n * 1_000, n, alone());
            forged.release(held, n * 1_000 + 20);
        }
        forged.refuse("p", at, at + 10, alone());
        let granted = Line::Granted { at: 60_010 * MS, id: waiter.1, token: 60, key: "job".into() };
        forged.put("b", granted);
        forged
    };
    // Nobody had it from 30.03 to 31.00 s.
    refused_at(30_500).is_caught("refusal");
    refused_at(30_015).passes();
    // The waiter may have been granted it by then.
    refused_at(60_010 - SLACK + 100).passes();
}

#[test]
fn a_write_with_another_token_than_that_of_the_grant_is_caught() {
    let wrote = |token: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 5, alone());
        forged.put("a", Line::Write { from: 1_100 * MS, to: 1_110 * MS, id: held.1, token, accepted: true });
        forged.told(Line::Accepted { at: 1_105 * MS, key: "job".into(), token });
        forged.release(held, 1_200);
        forged
    };
    wrote(5).passes();
    wrote(9).is_caught("tokens");
}

/// A grant may come while its thread is stopped, and be given up before the one that ends the wait.
#[test]
fn a_wait_that_was_stopped_on_its_way_may_have_held_the_lock_before() {
    let mut forged = Forged::new();
    let waiter = forged.ask("b", 1_000, waits(None));
    forged.put(
        "b",
        Line::Point { from: 1_500 * MS, to: 6_000 * MS, mark: "acquire.answered".into(), calls: vec![waiter.1] },
    );
    forged.refuse("p", 2_000, 2_010, alone());
    for n in 8..20 {
        let held = forged.grant("q", n * 1_000, n, alone());
        forged.release(held, n * 1_000 + 900);
    }
    forged.put("b", Line::Granted { at: 20_000 * MS, id: waiter.1, token: 30, key: "job".into() });
    forged.passes();
}
