//! The checker on trial: what a fault explains, and what none does.

use std::collections::BTreeMap;

use crate::checker::history::Line;
use crate::forge::{Forged, MS, alone};

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
    // Nor what is right, for it would have been excused, too.
    let held = forged.grant("a", 1_020, 1, alone());
    forged.release(held, 1_040);
    let verdict = forged.judged();
    assert_eq!((of(&verdict.judged), of(&verdict.blind), of(&verdict.excused)), (0, 1, 1));
    // Its fault was over before.
    let held = forged.grant("a", 9_000, 2, alone());
    forged.release(held, 9_100);
    let verdict = forged.judged();
    assert_eq!((of(&verdict.judged), of(&verdict.blind), of(&verdict.excused)), (1, 1, 1));
}
