//! Histories that show too little to prove anything, and what excuses a store.

use std::time::Duration;

use leasehold::ErrorKind;

use crate::checker::history::Line;
use crate::checker::{Least, RULES, Run, check, missing};
use crate::forge::{Forged, MS, SLACK, alone, shared, waits};
use crate::probe::{Finding, judge};

/// What the history lacks to prove anything.
fn lacks(forged: &Forged, slots: usize, time: Option<u64>) -> Vec<String> {
    let run = Run::new(forged.files.clone().into_iter().collect()).expect("a history");
    missing(&run, &check(&run), Least { slots, time: time.map(|time| time * MS) })
}

#[test]
fn a_run_in_which_a_worker_was_granted_nothing_is_void() {
    let mut forged = Forged::new();
    assert_eq!(lacks(&forged, 0, None), ["nothing was granted"]);
    forged.grant("w0.3", 1_000, 1, alone());
    assert_eq!(lacks(&forged, 1, None), [""; 0]);
    assert_eq!(lacks(&forged, 2, None), ["nothing was granted to any process of w1"]);
    forged.refuse("w1.0", 1_100, 1_110, alone());
    assert_eq!(lacks(&forged, 0, None), ["nothing was granted to any process of w1"]);
    forged.files.remove("parent");
    assert!(lacks(&forged, 1, None)[0].contains("names the terms"));
}

#[test]
fn a_long_run_in_which_a_rule_had_nothing_to_judge_is_void() {
    let mut forged = Forged::new();
    forged.grant("w0.0", 1_000, 1, alone());
    assert_eq!(lacks(&forged, 1, Some(59_999)), [""; 0]);
    let idle = |rule: &&str| lacks(&forged, 1, Some(60_000)).iter().any(|why| why.contains(&format!("rule {rule} ")));
    assert_eq!(
        RULES.iter().map(|(rule, _)| *rule).filter(idle).collect::<Vec<_>>(),
        ["refusal", "resource", "blocked", "left"]
    );
    // Without a time the history's own length counts.
    forged.told(Line::Over { at: 61_000 * MS });
    assert_eq!(lacks(&forged, 1, None).len(), 4);
}

#[test]
fn only_a_slow_store_is_an_excuse() {
    let lease = Duration::from_secs(30);
    let of = judge;
    let judge = |failed, millis| of(failed, Duration::from_millis(millis), lease, false);
    assert_eq!(judge(None, 500), Finding::Well);
    assert_eq!(judge(None, 501), Finding::Late);
    for kind in [ErrorKind::Store, ErrorKind::Ambiguous, ErrorKind::TimedOut] {
        assert_eq!(judge(Some(kind), 501), Finding::Late, "{kind:?}");
        assert_eq!(judge(Some(kind), 10), Finding::Broken(kind.name().to_owned()), "it was not slow");
        let fails_at_once = of(Some(kind), Duration::from_millis(10), lease, true);
        assert_eq!(fails_at_once, Finding::Late, "the server was killed, for example");
    }
    // Nobody else asks for the probe's key.
    for kind in [ErrorKind::Held, ErrorKind::Lost, ErrorKind::AlreadyHeld, ErrorKind::ClockSkew] {
        assert_eq!(judge(Some(kind), 10), Finding::Broken(kind.name().to_owned()));
    }
    assert_eq!(judge(Some(ErrorKind::Held), 40_000), Finding::Broken("held".to_owned()));
    assert_eq!(judge(Some(ErrorKind::Lost), 30_000), Finding::Late);
}

/// A command that did nothing to the server shows nothing.
#[test]
fn a_fault_of_the_server_counts_where_a_request_felt_it() {
    let felt = |forged: &Forged| {
        let run = Run::new(forged.files.clone().into_iter().collect()).expect("a history");
        run.was_felt(1_000 * MS, 2_000 * MS)
    };
    let request = |from: u64, to: u64| Line::Request { from: from * MS, to: to * MS, why: "no answer came".to_owned() };
    let mut forged = Forged::new();
    forged.grant("w0.0", 1_500, 1, alone());
    forged.put("w0.0", request(900, 999));
    forged.put("w0.0", request(2_001 + SLACK, 4_000));
    assert!(!felt(&forged));
    forged.put("w1.0", request(1_900, 2_100));
    assert!(felt(&forged));
    // The process had a fault of its own.
    forged.told(Line::Net { from: 1_800 * MS, to: 1_900 * MS, process: "w1.0".to_owned(), kind: "cut".to_owned() });
    assert!(!felt(&forged));
    // Nor does a failed request explain anything.
    let asked = forged.ask("w0.0", 9_000, alone());
    forged.fail(asked, 9_010, "store");
    forged.put("w0.0", request(9_000, 9_010));
    assert_eq!(forged.judged().counts["loss"], 1);
}

/// The wait was over while its last request was under way, which may have been granted until it is given up.
#[test]
fn a_request_that_failed_within_a_wait_may_hold_what_it_is_for() {
    let refused = |step: &str, key: &str, from: u64, at: u64| {
        let mut forged = Forged::new();
        let held = forged.grant("a", 1_000, 1, alone());
        forged.refuse("b", 1_100, 1_600, waits(Some(500)));
        forged.release(held, 1_500);
        let why = format!("{step} lock \"{key}\" on a store: no answer came");
        forged.put("b", Line::Request { from: from * MS, to: 1_599 * MS, why });
        forged.refuse("c", at, at + 10, alone());
        forged
    };
    refused("acquire", "job", 1_550, 1_610).passes();
    let last = 1_600 + 2 * SLACK;
    refused("acquire", "job", 1_550, last).passes();
    refused("acquire", "job", 1_550, last + 1).is_caught("refusal");
    refused("acquire", "other", 1_550, 1_610).is_caught("refusal");
    refused("acquire", "job", 1_050, 1_610).is_caught("refusal");
    refused("renew", "job", 1_550, 1_610).is_caught("refusal");
    // Nor does it explain its own refusal, or need another one in addition to the holder for that.
    for asked in [alone(), shared(0)] {
        for is_held in [true, false] {
            let mut forged = Forged::new();
            let held = forged.grant("a", 1_000, 1, alone());
            forged.release(held, if is_held { 1_400 } else { 1_050 });
            forged.refuse("b", 1_100, 1_600, asked.clone());
            let why = "acquire lock \"job\" on a store: no answer came".to_owned();
            forged.put("b", Line::Request { from: 1_200 * MS, to: 1_300 * MS, why });
            if is_held { forged.passes() } else { forged.is_caught("refusal") }
        }
    }
}
