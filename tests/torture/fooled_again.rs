//! More histories of broken locks that the checker once accepted.

use crate::checker::history::{Asked, End, Form, Line, Mode};
use crate::forge::*;

fn of(form: Form) -> Asked {
    Asked { form, ..alone() }
}

/// It is held from 1 s to 20 s.
fn held_for_long(forged: &mut Forged, asked: Asked) -> Held<'static> {
    let held = forged.grant("a", 1_000, 1, asked);
    (2..20).for_each(|second| forged.look(held, second * 1_000, LEASE));
    held
}

#[test]
fn an_adoption_of_a_lock_that_was_over_is_caught() {
    let released_at = |at: u64| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, alone());
        forged.release(old, at);
        forged.grant("b", 1_300, 2, instead_of(1));
        forged
    };
    released_at(1_200).is_caught("overlap");
    released_at(1_295).passes();
    // Somebody else had it between.
    let had = |mode: Mode| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, Asked { mode, ..alone() });
        forged.end(old, 1_200, End::Leave, "ok");
        let other = forged.grant("c", 6_000, 2, Asked { mode, ..alone() });
        forged.release(other, 6_100);
        forged.grant("b", 7_000, 3, Asked { mode, ..instead_of(1) });
        forged
    };
    had(Mode::Exclusive).is_caught("overlap");
    had(Mode::Shared).passes();
}

#[test]
fn a_reader_who_waits_behind_readers_is_caught() {
    let granted_at = |limit: u32, at: u64| {
        let mut forged = Forged::new();
        let first = held_for_long(&mut forged, shared(limit));
        let asked = Asked { wait: None, ..shared(limit) };
        let waiter = forged.ask("b", 1_500, asked);
        forged.put("b", Line::Granted { at: at * MS, id: waiter.1, token: 2, key: "job".into() });
        forged.release(first, 20_000);
        forged
    };
    for limit in [0, 2] {
        granted_at(limit, 1_500 + SLACK).passes();
        granted_at(limit, 10_000).is_caught("blocked");
    }
    granted_at(1, 20_010).passes();
    // In the line of its process it stands behind a writer.
    let mut forged = granted_at(0, 20_020);
    let writer = forged.ask("b", 1_400, waits(None));
    forged.put("b", Line::Granted { at: 20_011 * MS, id: writer.1, token: 2, key: "job".into() });
    forged
        .files
        .get_mut("b")
        .expect("its lines")
        .retain(|line| !matches!(line, Line::Granted { id, .. } if *id != writer.1));
    forged.put("b", Line::Granted { at: 20_020 * MS, id: writer.1 - 1, token: 3, key: "job".into() });
    forged.release(writer, 20_012);
    forged.passes();
}

#[test]
fn a_wait_for_all_keys_while_all_are_free_is_caught() {
    let of_all = || Asked { wait: Some(3_000 * MS), ..all(&["in", "out"]) };
    let of_one = |key: &str| Asked { keys: vec![key.into()], ..alone() };
    let mut forged = Forged::new();
    let held = forged.grant("h", 900, 1, of_one("in"));
    forged.release(held, 1_050);
    let waiter = forged.ask("b", 1_000, of_all());
    forged.put("b", Line::Refused { at: 4_010 * MS, id: waiter.1 });
    forged.is_caught("blocked");
    // One of them is held, first one, then the other.
    let mut forged = Forged::new();
    let held = forged.grant("h", 900, 1, of_one("in"));
    let other = forged.grant("i", 2_000, 1, of_one("out"));
    forged.release(held, 2_500);
    forged.look(other, 3_000, LEASE);
    let waiter = forged.ask("b", 1_000, of_all());
    forged.put("b", Line::Refused { at: 4_010 * MS, id: waiter.1 });
    forged.release(other, 4_500);
    forged.passes();
}

#[test]
fn a_lock_that_was_handed_over_stands_no_longer_than_its_heir_holds_it() {
    let refused_at = |at: u64| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, alone());
        forged.end(old, 1_200, End::Leave, "ok");
        let heir = forged.grant("b", 1_300, 2, instead_of(1));
        forged.refuse("c", at, at + 10, alone());
        forged.release(heir, 1_400);
        forged
    };
    refused_at(1_350).passes();
    refused_at(2_000).is_caught("refusal");
}

#[test]
fn the_lease_of_a_name_is_held_until_it_ends() {
    let claimed_at = |at: u64| {
        let mut forged = Forged::new();
        let first = forged.grant("a", 1_000, 1, of(Form::Name));
        forged.end(first, 1_100, End::Leave, "ok");
        forged.grant("b", at, 2, of(Form::Name));
        forged
    };
    claimed_at(1_200).is_caught("overlap");
    claimed_at(1_010 + LEASE).passes();
    let revoked_at = |at: u64| {
        let mut forged = Forged::new();
        let first = forged.grant("a", 1_000, 1, of(Form::Name));
        forged.end(first, at, End::Release, "invalid_lease");
        forged
    };
    revoked_at(1_100).is_caught("loss");
    revoked_at(1_010 + LEASE).passes();
}

#[test]
fn who_waits_without_a_limit_or_adopts_is_not_refused() {
    let refused = |asked: Asked| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.refuse("b", 1_100, 1_110, asked);
        forged.release(held, 1_200);
        forged
    };
    refused(alone()).passes();
    refused(waits(None)).is_caught("refusal");
    refused(instead_of(1)).is_caught("refusal");
    // Who is refused takes nobody's place.
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.refuse("b", 1_300, 1_310, instead_of(1));
    forged.grant("c", 1_400, 2, alone());
    assert!(forged.judged().counts.contains_key("overlap"));
}

#[test]
fn a_lock_as_data_is_held_until_its_lease_ends() {
    let released = |at: u64, answer: &str| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, of(Form::Data));
        forged.end(held, at, End::Release, answer);
        forged
    };
    for answer in ["held", "lost", "invalid_input"] {
        released(1_100, answer).is_caught("loss");
    }
    released(1_010 + LEASE, "held").passes();
    released(1_010 + LEASE, "invalid_input").is_caught("loss");
    // Nothing brings it back.
    let looked = |left: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, of(Form::Data));
        forged.put("a", Line::Lost { at: 4_500 * MS, id: held.1, reason: "lost".into() });
        forged.look(held, 4_600, left);
        forged
    };
    looked(LEASE).is_caught("loss");
    looked(0).passes();
}

#[test]
fn a_grant_of_something_else_than_was_asked_for_is_caught() {
    let of_both = |got: &[&str]| {
        let mut forged = Forged::new();
        let of = forged.ask("a", 1_000, all(&["in", "out"])).1;
        for (n, key) in got.iter().enumerate() {
            let id = 100 + n as u64;
            forged.put("a", Line::Part { at: 1_010 * MS, of, id, token: 1, key: (*key).into() });
            forged.look(Held("a", id), 1_020, LEASE);
        }
        forged
    };
    of_both(&["in", "out"]).passes();
    of_both(&["in"]).is_caught("tokens");
    of_both(&["in", "out", "other"]).is_caught("tokens");
    let mut forged = Forged::new();
    let asked = forged.ask("a", 1_000, alone());
    forged.put("a", Line::Granted { at: 1_010 * MS, id: asked.1, token: 1, key: "other".into() });
    forged.is_caught("tokens");
    // A lock that was left with a token that it never had.
    let adopted = |token: u64| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 5, alone());
        forged.end(old, 1_200, End::Leave, "ok");
        let heir = forged.ask("b", 1_300, instead_of(token));
        if token == 5 {
            forged.put("b", Line::Granted { at: 1_310 * MS, id: heir.1, token: 6, key: "job".into() });
        } else {
            forged.fail(heir, 1_310, "lost");
        }
        forged
    };
    adopted(5).passes();
    adopted(6).is_caught("tokens");
}

#[test]
fn who_came_later_to_the_line_of_a_process_is_not_served_first() {
    let came_at = |at: u64, process: &'static str| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.look(held, 3_000, LEASE);
        let first = forged.ask("b", 1_500, waits(None));
        let second = forged.ask(process, at, waits(None));
        forged.release(held, 4_000);
        forged.put(process, Line::Granted { at: 4_020 * MS, id: second.1, token: 2, key: "job".into() });
        forged.release(second, 4_100);
        forged.put("b", Line::Granted { at: 4_200 * MS, id: first.1, token: 3, key: "job".into() });
        forged.release(first, 4_300);
        forged
    };
    came_at(1_501 + SLACK, "b").is_caught("blocked");
    came_at(1_500 + SLACK, "b").passes();
    came_at(1_501 + SLACK, "c").passes();
}

#[test]
fn writers_who_come_later_do_not_explain_that_a_reader_waits() {
    let mut forged = Forged::new();
    let reader = forged.ask("b", 1_000, Asked { wait: None, ..shared(0) });
    (2..18).for_each(|n| forged.refuse("b", n * 1_000 + 500, n * 1_000 + 1_400, waits(Some(900))));
    forged.put("b", Line::Granted { at: 20_000 * MS, id: reader.1, token: 2, key: "job".into() });
    forged.is_caught("blocked");
}

/// A grant that its thread learns of too late is given up, and others have to wait for that.
#[test]
fn others_wait_for_what_a_stopped_call_had_before_its_grant() {
    let waited_until = |at: u64| {
        let mut forged = Forged::new();
        let stopped = forged.ask("b", 1_000, waits(None));
        let (from, to) = (1_500 * MS, 6_000 * MS);
        forged.put("b", Line::Point { from, to, mark: "acquire.answered".into(), calls: vec![stopped.1] });
        let other = forged.ask("c", 2_000, waits(None));
        forged.put("c", Line::Granted { at: at * MS, id: other.1, token: 2, key: "job".into() });
        forged.release(other, at + 10);
        for n in 0..20 {
            let held = forged.grant("q", at + 100 + n * 1_000, 3 + n, alone());
            forged.release(held, at + 1_000 + n * 1_000);
        }
        let again = at + 20_050;
        forged.put("b", Line::Granted { at: again * MS, id: stopped.1, token: 30, key: "job".into() });
        forged.release(stopped, again + 10);
        forged
    };
    waited_until(4_600).passes();
    // Both waited in vain.
    assert_eq!(waited_until(13_000).judged().counts.get("blocked"), Some(&2));
}

/// A call for any of several keys may have had one, too late to use it, before it got another.
#[test]
fn a_call_that_got_another_key_may_have_been_in_the_way() {
    let refused_at = |at: u64, key: &str| {
        let mut forged = Forged::new();
        let any = Asked { keys: vec!["in".into(), "out".into()], ..waits(Some(9_000)) };
        let asked = forged.ask("a", 1_000, any);
        let why = "acquire \"in\": no answer".to_owned();
        forged.put("a", Line::Request { from: 1_010 * MS, to: 2_010 * MS, why });
        forged.told(Line::Net { from: 1_010 * MS, to: 2_010 * MS, process: "a".into(), kind: "hole".into() });
        forged.put("a", Line::Granted { at: 2_500 * MS, id: asked.1, token: 1, key: "out".into() });
        forged.look(asked, 2_500, LEASE);
        forged.refuse("b", at, at + 10, Asked { keys: vec![key.into()], ..alone() });
        forged.release(asked, 2_600);
        forged
    };
    refused_at(2_700, "in").passes();
    refused_at(9_000, "in").is_caught("refusal");
    refused_at(2_700, "out").is_caught("refusal");
}

/// Its rival's grant had an answer with a wrong date, and was given back.
#[test]
fn what_is_given_back_may_be_held_again() {
    let dated = |process: &str, at: u64, asked: Asked, form: Form| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, of(form));
        forged.put("a", Line::Lost { at: 4_500 * MS, id: held.1, reason: "lost".into() });
        let rival = forged.ask("b", 9_390, asked);
        forged.told(Line::Date { at: at * MS, process: process.into(), seconds: 60 });
        forged.fail(rival, 9_550, "timed_out");
        forged.told(Line::Net { from: 9_400 * MS, to: 9_410 * MS, process: "b".into(), kind: "cut".into() });
        if form == Form::Guard {
            forged.look(held, 9_550, 0);
        }
        forged.look(held, 9_600, LEASE);
        forged
    };
    let (other, least) = (Asked { keys: vec!["other".into()], ..alone() }, 9_600 - LEASE - TIMEOUT - SLACK);
    dated("b", 9_400, alone(), Form::Data).passes();
    for (process, at, asked, form) in [
        ("b", 9_700, alone(), Form::Data),
        ("b", least - 1, alone(), Form::Data),
        ("b", 9_400, other, Form::Data),
        ("a", 9_400, alone(), Form::Data),
    ] {
        dated(process, at, asked, form).is_caught("loss");
    }
    // Nothing brings a guard back.
    assert!(dated("b", 9_400, alone(), Form::Guard).judged().counts.contains_key("loss"));
}

#[test]
fn who_finds_no_gap_in_a_crowd_may_be_served_late() {
    let crowded = |is_crowded: bool| {
        let mut forged = Forged::new();
        if is_crowded {
            forged.is_crowded();
        }
        let first = forged.ask("b", 1_000, waits(None));
        let why = "acquire \"job\": it was sent away".to_owned();
        forged.put("b", Line::Request { from: 1_010 * MS, to: 2_400 * MS, why });
        let second = forged.ask("b", 2_100, waits(None));
        forged.put("b", Line::Granted { at: 2_150 * MS, id: second.1, token: 1, key: "job".into() });
        forged.release(second, 2_160);
        forged.put("b", Line::Granted { at: 2_410 * MS, id: first.1, token: 2, key: "job".into() });
        forged.release(first, 2_500);
        forged
    };
    crowded(true).passes();
    crowded(false).is_caught("blocked");
}

#[test]
fn short_stops_do_not_add_up_to_any_wait() {
    let waited_until = |at: u64| {
        let mut forged = Forged::new();
        let waiter = forged.ask("a", 1_000, waits(None));
        for n in (0..).take_while(|n| 1_000 + n * 5_600 < at) {
            let (from, to) = ((1_000 + n * 5_600) * MS, (1_600 + n * 5_600) * MS);
            forged.put("a", Line::Point { from, to, mark: "some.mark".into(), calls: Vec::new() });
        }
        forged.put("a", Line::Granted { at: at * MS, id: waiter.1, token: 1, key: "job".into() });
        forged
    };
    waited_until(5_000).passes();
    waited_until(60_000).is_caught("blocked");
    // Nor beside another fault.
    let mut late = waited_until(60_000);
    late.put("a", Line::Late { from: 1_000 * MS, to: 1_001 * MS });
    late.is_caught("blocked");
}

/// Two locks may be handed over to one call for any of several; it gives one back after its answer.
#[test]
fn who_was_handed_two_locks_may_have_held_both_for_a_moment() {
    let refused_at = |at: u64, key: &str| {
        let mut forged = Forged::new();
        let of = |key: &str| Asked { keys: vec![key.into()], ..alone() };
        let [one, two] = ["in", "out"].map(|key| forged.grant("a", 900, 1, of(key)));
        let any = forged.ask("a", 1_000, Asked { keys: vec!["in".into(), "out".into()], ..waits(None) });
        forged.release(one, 2_980);
        forged.release(two, 2_980);
        forged.put("a", Line::Granted { at: 3_000 * MS, id: any.1, token: 2, key: "in".into() });
        forged.release(any, 3_001);
        forged.refuse("b", at, at + 10, of(key));
        forged
    };
    refused_at(3_100, "out").passes();
    refused_at(3_000 + SLACK + 1, "out").is_caught("refusal");
}
