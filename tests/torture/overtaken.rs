//! Claims of one name that are under way at once: only their tokens tell in which order they were granted.

use crate::checker::history::{Asked, End, Form, Line};
use crate::forge::*;

/// Two claims of a name are under way at once, and the one that was asked for first is granted last.
fn overtaken(how: End) -> Forged {
    let name = || Asked { form: Form::Name, ..alone() };
    let mut forged = Forged::new();
    let slow = forged.ask("a", 1_000, name());
    let quick = forged.grant("b", 1_050, 1, name());
    forged.end(quick, 1_100, how, "ok");
    forged.put("a", Line::Granted { at: 1_300 * MS, id: slow.1, token: 2, key: "job".into() });
    forged.look(slow, 1_300, LEASE);
    forged.release(slow, 1_500);
    forged
}

#[test]
fn a_claim_that_was_overtaken_stands_after_the_one_that_overtook_it() {
    let refused_at = |at: u64| {
        let mut forged = overtaken(End::Release);
        forged.refuse("c", at, at + 10, Asked { form: Form::Name, ..alone() });
        forged
    };
    refused_at(1_400).passes();
    refused_at(1_520).is_caught("refusal");
}

/// Nothing else shows when the lease was over that was claimed later and granted earlier.
#[test]
fn a_claim_that_overtook_another_was_over_when_that_was_granted() {
    let mut forged = overtaken(End::Drop);
    forged.passes();
    forged.refuse("c", 100_000, 100_010, Asked { form: Form::Name, ..alone() });
    forged.is_caught("refusal");
}

/// A claim that is answered shows that all before it were over, not only the one right before it.
#[test]
fn a_claim_shows_that_all_before_it_were_over() {
    let name = || Asked { form: Form::Name, ..alone() };
    let mut forged = Forged::new();
    let first = forged.grant("a", 1_000, 1, name());
    forged.end(first, 1_100, End::Drop, "ok");
    let slow = forged.ask("b", 1_100, name());
    forged.put("parent", Line::Stopped { from: 1_150 * MS, to: 50_000 * MS, process: "b".into() });
    let quick = forged.grant("d", 2_000, 3, name());
    forged.release(quick, 2_100);
    forged.put("b", Line::Granted { at: 50_000 * MS, id: slow.1, token: 2, key: "job".into() });
    forged.release(slow, 50_010);
    forged.passes();
    forged.refuse("c", 10_000, 10_010, name());
    forged.is_caught("refusal");
}
