//! The checker on trial: forged histories, at least one for each rule, that it must catch, and innocent ones next to
//! them that it must let pass.

use crate::checker::history::{Asked, End, Form, Line, lines};
use crate::checker::{RULES, Run, check, clean};
use crate::forge::{Forged, GRACE, LEASE, MS, SLACK, TIMEOUT, alone, instead_of, shared, waits};

#[test]
fn two_alone_at_the_same_time_are_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.grant("b", 999 + LEASE, 2, alone());
    forged.is_caught("overlap");
}

#[test]
fn one_after_the_other_is_fine() {
    let mut forged = Forged::new();
    let first = forged.grant("a", 1_000, 1, alone());
    forged.release(first, 2_000);
    let second = forged.grant("b", 2_001, 2, alone());
    // `b` died while it held the lock: the next holder waits for the lease.
    forged.dies("b", 2_500);
    forged.grant("a", 2_011 + LEASE, 3, alone());
    let _ = second;
    forged.passes();
}

#[test]
fn who_renews_what_another_has_had_since_is_caught() {
    for (next, at, is_over) in [(alone(), 4_600, true), (shared(0), 4_600, true), (alone(), 5_500, false)] {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, Asked { form: Form::Data, ..alone() });
        let new = forged.grant("b", at, 2, next);
        forged.release(new, at + 100);
        forged.passes();
        // Nobody holds it any more, but the token has gone on.
        forged.look(old, 5_000, 400);
        match is_over {
            true => forged.is_caught("overlap"),
            false => forged.passes(),
        }
    }
}

#[test]
fn a_guard_that_does_not_hear_of_its_adoption_for_a_lease_is_caught() {
    let mut forged = Forged::new();
    let old = forged.grant("a", 1_000, 1, alone());
    let new = forged.grant("b", 2_000, 2, instead_of(1));
    // Its heartbeat has not been sent yet, so it does not know.
    forged.look(old, 2_500, 2_000);
    forged.look(new, 4_000, LEASE);
    forged.passes();
    forged.look(old, 5_300, 1_000);
    forged.is_caught("overlap");
}

#[test]
fn a_lock_that_is_adopted_twice_is_caught() {
    let mut forged = Forged::new();
    let old = forged.grant("a", 1_000, 1, alone());
    forged.end(old, 1_200, End::Leave, "ok");
    let heir = forged.grant("b", 1_300, 2, instead_of(1));
    forged.release(heir, 1_400);
    let late = forged.ask("c", 1_500, instead_of(1));
    forged.fail(late, 1_510, "lost");
    forged.passes();
    // Nobody holds it, and the tokens rise; but the grant that it adopts was over.
    forged.grant("c", 1_600, 3, instead_of(1));
    forged.is_caught("overlap");
}

#[test]
fn tokens_that_fall_or_stay_are_caught() {
    for token in [7, 6] {
        let mut forged = Forged::new();
        let first = forged.grant("a", 1_000, 7, alone());
        forged.release(first, 1_100);
        forged.grant("b", 1_200, token, alone());
        let verdict = forged.judged();
        assert_eq!(verdict.counts.keys().copied().collect::<Vec<_>>(), ["tokens"], "{token}");
    }
}

#[test]
fn tokens_of_calls_at_the_same_time_have_no_order() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 8, shared(0));
    forged.grant("b", 1_005, 7, shared(0));
    forged.passes();
}

#[test]
fn tokens_rise_also_over_a_death_and_a_long_pause() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 7, alone());
    forged.dies("a", 1_500);
    forged.grant("b", 100_000, 5, alone());
    forged.is_caught("tokens");
}

#[test]
fn a_refusal_without_a_holder_is_caught() {
    let mut forged = Forged::new();
    let first = forged.grant("a", 1_000, 1, alone());
    forged.refuse("b", 1_100, 1_110, alone());
    forged.release(first, 1_200);
    // While it is being released.
    forged.refuse("b", 1_205, 1_215, alone());
    forged.passes();
    forged.refuse("b", 1_211, 1_220, alone());
    forged.is_caught("refusal");
}

#[test]
fn the_dead_refuse_others_for_a_lease_and_the_grace_only() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.dies("a", 2_000);
    let last = 2_000 + LEASE + GRACE + SLACK;
    forged.refuse("b", last, last + 10, alone());
    forged.passes();
    forged.refuse("b", last + 1, last + 10, alone());
    forged.is_caught("refusal");
}

#[test]
fn a_wait_that_ends_early_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.refuse("b", 1_100, 1_600, waits(Some(500)));
    forged.passes();
    forged.refuse("b", 1_100, 1_599, waits(Some(500)));
    forged.is_caught("refusal");
}

#[test]
fn what_was_not_answered_may_hold_until_it_is_given_up() {
    let mut forged = Forged::new();
    let asked = forged.ask("a", 1_000, alone());
    forged.told(Line::Net { from: 900 * MS, to: 1_800 * MS, process: "a".to_owned(), kind: "cut".to_owned() });
    forged.fail(asked, 1_500, "ambiguous");
    // The end of the fault, the time to recover, the same to give up, and the machine's slack.
    let last = 1_800 + 3 * SLACK;
    forged.refuse("b", last, last + 10, alone());
    forged.passes();
    forged.refuse("b", last + 1, last + 10, alone());
    forged.is_caught("refusal");
}

#[test]
fn a_resource_that_takes_an_old_token_is_caught() {
    let accepted = |at: u64, token| Line::Accepted { at: at * MS, key: "job".to_owned(), token };
    let outdated = |at: u64, token, highest| Line::Outdated { at: at * MS, key: "job".to_owned(), token, highest };
    let mut forged = Forged::new();
    forged.put("resource", accepted(1_000, 5));
    forged.put("resource", accepted(1_001, 5));
    forged.put("resource", outdated(1_002, 4, 5));
    forged.passes();
    let mut other = Forged::new();
    other.put("resource", accepted(1_000, 5));
    other.put("resource", outdated(1_001, 5, 5));
    other.is_caught("resource");
    forged.put("resource", accepted(1_003, 4));
    forged.is_caught("resource");
}

#[test]
fn a_holder_whose_write_is_refused_is_caught() {
    let write = |at: u64, id| Line::Write { from: at * MS, to: (at + 5) * MS, id, token: 1, accepted: false };
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.put("a", write(1_008 + LEASE, held.1));
    forged.passes();
    forged.put("a", write(1_500, held.1));
    forged.is_caught("resource");
}

#[test]
fn a_wait_for_what_nobody_holds_is_caught() {
    let wait_until = |until: u64| {
        let mut forged = Forged::new();
        forged.grant("a", 1_000, 1, alone());
        forged.dies("a", 2_000);
        let waiter = forged.ask("b", 1_500, waits(None));
        let granted = Line::Granted { at: until * MS, id: waiter.1, token: 2, key: "job".to_owned() };
        forged.put("b", granted);
        forged
    };
    // The lease, the grace, and what the machine may add to each.
    let last = 2_000 + LEASE + GRACE + 2 * SLACK;
    wait_until(last).passes();
    wait_until(last + 1).is_caught("blocked");
}

#[test]
fn one_who_waits_in_vain_does_not_explain_the_wait_of_another() {
    let mut forged = Forged::new();
    for name in ["a", "b"] {
        let waiter = forged.ask(name, 1_000, waits(None));
        forged.fail(waiter, 9_000, "cancelled");
    }
    let verdict = forged.judged();
    assert_eq!(verdict.counts.get("blocked"), Some(&2), "{:#?}", verdict.violations);
    // A call whose process died can have had the key only at its last moment, and has waited in vain, too.
    let mut forged = Forged::new();
    forged.ask("a", 1_000, waits(None));
    forged.dies("a", 9_000);
    let waiter = forged.ask("b", 1_000, waits(None));
    forged.put("b", Line::Granted { at: 9_000 * MS, id: waiter.1, token: 1, key: "job".to_owned() });
    let verdict = forged.judged();
    assert_eq!(verdict.counts.get("blocked"), Some(&2), "{:#?}", verdict.violations);
}

#[test]
fn a_loss_without_a_fault_is_caught() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.look(held, 5_000, 0);
    forged.put("a", Line::Lost { at: 5_001 * MS, id: held.1, reason: "expired".to_owned() });
    forged.end(held, 5_002, End::Drop, "ok");
    forged.is_caught("loss");
    forged.told(Line::Stopped { from: 1_500 * MS, to: 4_900 * MS, process: "a".to_owned() });
    forged.passes();
}

#[test]
fn a_release_that_finds_nothing_is_a_loss() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.end(held, 2_000, End::Release, "lost");
    forged.is_caught("loss");
}

#[test]
fn a_call_that_fails_without_a_fault_is_caught() {
    let mut forged = Forged::new();
    let asked = forged.ask("a", 1_000, alone());
    forged.fail(asked, 1_010, "store");
    forged.is_caught("loss");
}

#[test]
fn a_guard_that_comes_back_to_life_is_caught() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.told(Line::Stopped { from: 1_500 * MS, to: 4_900 * MS, process: "a".to_owned() });
    forged.look(held, 5_000, 0);
    forged.passes();
    forged.look(held, 5_100, 2_000);
    forged.is_caught("loss");
}

#[test]
fn a_forked_child_that_holds_is_caught() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.put("a", Line::Forked { at: 1_100 * MS, id: held.1, held: false });
    forged.passes();
    forged.put("a", Line::Forked { at: 1_100 * MS, id: held.1, held: true });
    forged.is_caught("fork");
}

#[test]
fn the_name_of_a_lease_stands_until_it_is_revoked_or_claimed_anew() {
    let name = || Asked { form: Form::Name, ..alone() };
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, name());
    forged.refuse("b", 100_000, 100_010, name());
    forged.release(held, 100_100);
    forged.passes();
    forged.refuse("b", 100_200, 100_210, name());
    forged.is_caught("refusal");
}

/// A process died while it claimed a name: nobody knows whether it got it, and if so, it has it until somebody expires
/// it.
#[test]
fn a_claim_without_an_answer_stands_until_the_name_is_claimed_anew() {
    let name = || Asked { form: Form::Name, ..alone() };
    let mut forged = Forged::new();
    forged.ask("a", 1_000, name());
    forged.dies("a", 1_100);
    forged.refuse("b", 100_000, 100_010, name());
    forged.passes();
    let held = forged.grant("b", 100_100, 1, name());
    forged.release(held, 100_200);
    forged.refuse("c", 100_300, 100_310, name());
    forged.is_caught("refusal");
}

#[test]
fn a_call_that_outlives_its_deadline_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.refuse("b", 1_100, 9_000, waits(Some(500)));
    forged.is_caught("late");
    let stopped = |process: &str| Line::Stopped { from: 2_000 * MS, to: 8_000 * MS, process: process.to_owned() };
    // The stop of another process explains nothing, nor do the faults that its deadline is made for.
    forged.told(stopped("a"));
    forged.told(Line::Net { from: 2_000 * MS, to: 2_100 * MS, process: "b".to_owned(), kind: "cut".to_owned() });
    forged.told(Line::Server { from: 1_000 * MS, to: 9_000 * MS, kind: "restart".to_owned() });
    forged.is_caught("late");
    forged.told(stopped("b"));
    forged.passes();
    for (asked, wait) in [(alone(), 0), (waits(Some(500)), 500)] {
        let mut forged = Forged::new();
        forged.grant("a", 1_000, 1, alone());
        let last = 1_100 + wait + TIMEOUT + SLACK;
        forged.refuse("b", 1_100, last, asked.clone());
        forged.passes();
        forged.refuse("b", 1_100, last + 1, asked);
        forged.is_caught("late");
    }
}

#[test]
fn a_call_that_is_never_answered_is_late() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.ask("b", 1_100, alone());
    forged.passes();
    forged.dies("b", 40_000);
    forged.is_caught("late");
    // The call was late before that stop.
    forged.told(Line::Stopped { from: 30_000 * MS, to: 31_000 * MS, process: "b".to_owned() });
    forged.is_caught("late");
    // No stop explains that it is still under way long after that.
    forged.told(Line::Stopped { from: 1_200 * MS, to: 1_300 * MS, process: "b".to_owned() });
    forged.is_caught("late");
    forged.told(Line::Stopped { from: 1_400 * MS, to: 29_000 * MS, process: "b".to_owned() });
    forged.told(Line::Stopped { from: 32_000 * MS, to: 39_000 * MS, process: "b".to_owned() });
    forged.passes();
    // A stop that holds up all processes counts once.
    for (took, is_late) in [(9_900, false), (10_100, true)] {
        let mut forged = Forged::new();
        forged.is_crowded();
        forged.grant("a", 1_000, 1, alone());
        forged.told(Line::Stopped { from: 1_200 * MS, to: 11_200 * MS - TIMEOUT * MS, process: "b".to_owned() });
        forged.refuse("b", 1_100, 1_100 + took + 2 * SLACK, alone());
        if is_late { forged.is_caught("late") } else { forged.passes() }
    }
}

#[test]
fn an_end_that_outlives_its_deadline_is_caught() {
    for how in [End::Release, End::Drop, End::Leave] {
        let ended_after = |time: u64| {
            let mut forged = Forged::new();
            let held = forged.grant("a", 1_000, 1, alone());
            forged.put("a", Line::Ending { at: 2_000 * MS, id: held.1, how });
            forged.put("a", Line::Ended { at: (2_000 + time) * MS, id: held.1, answer: "ok".to_owned() });
            forged
        };
        // A call that ends a hold may take a lease.
        ended_after(LEASE + SLACK).passes();
        ended_after(LEASE + SLACK + 1).is_caught("late");
    }
}

#[test]
fn a_handed_over_lock_that_is_lost_in_its_lease_is_caught() {
    let adopted_at = |at: u64| {
        let mut forged = Forged::new();
        let old = forged.grant("a", 1_000, 1, alone());
        forged.end(old, 1_200, End::Leave, "ok");
        let heir = forged.ask("b", at, instead_of(1));
        forged.fail(heir, at + 10, "lost");
        forged
    };
    // Its lease has run out.
    adopted_at(1_000 + LEASE).passes();
    let mut forged = adopted_at(2_000);
    forged.is_caught("loss");
    forged.told(Line::Stopped { from: 1_000 * MS, to: 1_100 * MS, process: "a".to_owned() });
    forged.passes();
    // Another call adopts it, too.
    let mut forged = adopted_at(2_000);
    forged.grant("c", 1_900, 2, instead_of(1));
    forged.passes();
}

#[test]
fn a_forked_child_that_hangs_is_caught() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.put("a", Line::Hung { from: 1_100 * MS, to: 6_100 * MS, id: held.1 });
    forged.is_caught("fork");
    forged.told(Line::Late { from: 5_000 * MS, to: 6_000 * MS });
    forged.passes();
}

#[test]
fn a_forked_child_that_crashes_is_caught() {
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.told(Line::Late { from: 900 * MS, to: 6_000 * MS });
    forged.passes();
    forged.put("a", Line::Crashed { at: 1_100 * MS, id: held.1 });
    forged.is_caught("fork");
}

#[test]
fn a_fault_of_the_server_explains_what_failed_meanwhile_for_everybody_and_no_overlap() {
    let mut forged = Forged::new();
    for process in ["a", "b"] {
        let asked = forged.ask(process, 5_000, alone());
        forged.fail(asked, 5_010, "store");
    }
    assert_eq!(forged.judged().counts["loss"], 2);
    forged.told(Line::Server { from: 4_900 * MS, to: 5_005 * MS, kind: "restart".to_owned() });
    forged.passes();
    forged.grant("a", 5_000, 1, alone());
    forged.grant("b", 5_100, 2, alone());
    forged.is_caught("overlap");
}

/// The emulator of Spanner has one transaction at a time, and sends all others away.
#[test]
fn a_call_that_had_all_its_time_is_fine_where_it_waits_or_the_store_is_crowded() {
    let failed_after = |took: u64, asked: Asked, is_crowded: bool| {
        let mut forged = Forged::new();
        if is_crowded {
            forged.is_crowded();
        }
        let asked = forged.ask("a", 1_000, asked);
        forged.fail(asked, 1_000 + took, "store");
        forged
    };
    for (asked, time, may_be_calm) in [(alone(), TIMEOUT, false), (waits(Some(1_800)), 1_800, true)] {
        for (is_crowded, is_fine) in [(true, true), (false, may_be_calm)] {
            let (all, less) = (time / 10 * 9, time / 10 * 9 - 1);
            failed_after(less, asked.clone(), is_crowded).is_caught("loss");
            match is_fine {
                true => failed_after(all, asked.clone(), is_crowded).passes(),
                false => failed_after(all, asked.clone(), is_crowded).is_caught("loss"),
            }
        }
    }
}

/// PostgreSQL's docs say so; the lock then remains for its lease.
#[test]
fn a_release_may_be_lost_with_the_server_that_answered_it() {
    let killed_at = |at: u64, refused: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.release(held, 1_990);
        forged.told(Line::Server { from: at * MS, to: (at + 100) * MS, kind: "kill".to_owned() });
        forged.refuse("b", refused, refused + 10, alone());
        forged
    };
    let settled = 3_100 + SLACK;
    killed_at(2_000 + SLACK, settled + 1).passes();
    // A lease after the last renewal, which may have been on its way until the fault was over.
    let last = 2_000 + SLACK + LEASE + GRACE + SLACK;
    killed_at(1_900, last).passes();
    // The release was on the server's disk.
    killed_at(2_001 + SLACK, settled + 2).is_caught("refusal");
    killed_at(1_900, last + 1).is_caught("refusal");
}

#[test]
fn only_the_last_line_may_be_torn() {
    let whole = "refused 10 1\nrefused 20 2\n";
    assert_eq!(lines(whole).map(|lines| lines.len()), Ok(2));
    assert_eq!(lines(&whole[..whole.len() - 3]).map(|lines| lines.len()), Ok(1));
    assert!(lines("refused 10\nrefused 20 2\n").is_err());
    assert!(lines("refused 10 1 1\nrefused 20 2\n").is_err());
}

#[test]
fn each_rule_judges_a_clean_history_and_lets_it_pass() {
    let (operations, started) = (50_000, std::time::Instant::now());
    let run = Run::new(clean(operations, 8)).expect("a history");
    let verdict = check(&run);
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
    // A million take less than a minute in a release build: `torture --synthetic 1000000`.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    // None of these histories has forks or an end, and no shared holder is refused.
    for (rule, _) in RULES.iter().filter(|(rule, _)| !["fork", "left"].contains(rule)) {
        let judged = verdict.judged.get(rule).copied().unwrap_or_default();
        assert!(judged >= operations / 10, "{rule} has judged {judged}");
    }
}
