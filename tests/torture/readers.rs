//! The checker on trial: shared holders.

use crate::forge::{Forged, LEASE, alone, shared};

#[test]
fn a_shared_holder_beside_an_exclusive_one_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(0));
    forged.grant("b", 1_100, 2, shared(0));
    forged.passes();
    forged.grant("c", LEASE + 1_050, 3, alone());
    forged.is_caught("overlap");
}

#[test]
fn one_shared_holder_too_many_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(2));
    forged.grant("b", 1_100, 2, shared(2));
    forged.passes();
    forged.grant("c", 1_200, 3, shared(2));
    forged.is_caught("limit");
}

#[test]
fn one_too_many_who_was_let_in_at_the_same_time_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(2));
    // The two calls overlap, but their tokens have an order.
    for (process, at, token) in [("b", 1_100, 2), ("c", 1_105, 3)] {
        forged.passes();
        forged.grant(process, at, token, shared(2));
    }
    forged.is_caught("limit");
    // The first hold may have been over by then.
    let mut forged = Forged::new();
    let first = forged.grant("a", 1_000, 1, shared(2));
    forged.grant("b", 1_100, 2, shared(2));
    forged.grant("c", 1_105, 3, shared(2));
    forged.release(first, 1_114);
    forged.passes();
}

#[test]
fn a_limit_counts_only_who_surely_is_there() {
    let mut forged = Forged::new();
    let first = forged.grant("a", 1_000, 1, shared(2));
    forged.grant("b", 1_100, 2, shared(2));
    // Released while the third asks.
    forged.release(first, 1_205);
    forged.grant("c", 1_200, 3, shared(2));
    forged.passes();
}

#[test]
fn a_refusal_of_a_reader_by_readers_is_caught() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, shared(0));
    forged.refuse("b", 1_100, 1_110, alone());
    forged.refuse("b", 1_100, 1_110, shared(1));
    forged.passes();
    forged.refuse("b", 1_100, 1_110, shared(0));
    forged.is_caught("refusal");
}
