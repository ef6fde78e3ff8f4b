//! The checker on trial: what is left behind at the end.

use crate::checker::history::{End, Line, lines};
use crate::forge::{Forged, GRACE, LEASE, MS, SLACK, alone, shared};

fn kept(holders: u64) -> Line {
    Line::Kept { at: 100_000 * MS, key: "job".to_owned(), holders }
}

fn left(at: u64, holders: u64) -> Line {
    Line::Left { at: at * MS, key: "job".to_owned(), holders }
}

#[test]
fn a_closed_client_that_leaves_a_thread_or_a_descriptor_is_caught() {
    for (threads, descriptors) in [(1, 0), (0, 1)] {
        let mut forged = Forged::new();
        forged.put("a", Line::Closed { at: 1_000 * MS, threads: 0, descriptors: 0 });
        forged.passes();
        assert_eq!(forged.judged().judged["left"], 1);
        forged.put("b", Line::Closed { at: 1_000 * MS, threads, descriptors });
        // The worker had enough time for all of this.
        forged.told(Line::Stopped { from: 100 * MS, to: 999 * MS, process: "b".to_owned() });
        forged.told(Line::Late { from: 100 * MS, to: 999 * MS });
        forged.told(Line::Server { from: 100 * MS, to: 999 * MS, kind: "restart".to_owned() });
        forged.is_caught("left");
    }
}

#[test]
fn who_was_killed_says_nothing_and_is_not_judged() {
    let mut forged = Forged::new();
    forged.grant("a", 1_000, 1, alone());
    forged.dies("a", 2_000);
    forged.passes();
    assert_eq!(forged.judged().judged.get("left"), None);
}

#[test]
fn a_row_with_more_holders_than_can_stand_is_caught() {
    let row = || {
        let mut forged = Forged::new();
        let first = forged.grant("a", 1_000, 1, shared(0));
        forged.release(first, 1_100);
        // The lease of `b` is over when the last hold is granted, that of `c` is not.
        forged.grant("b", 1_200, 2, shared(0));
        forged.dies("b", 1_300);
        let last = 1_300 + LEASE + GRACE + SLACK + 1;
        forged.grant("c", last - 100, 3, shared(0));
        forged.dies("c", last);
        forged.grant("d", last, 4, shared(0));
        forged.dies("d", last + 100);
        forged
    };
    let mut forged = row();
    forged.told(kept(2));
    forged.passes();
    let mut forged = row();
    forged.told(kept(3));
    forged.is_caught("left");
    // Nobody knows whether this call was granted.
    forged.ask("e", 1_300 + LEASE, shared(0));
    forged.dies("e", 1_300 + LEASE + 10);
    forged.passes();
    // Nor may a row have a holder of which no history knows.
    let mut forged = Forged::new();
    forged.told(kept(1));
    forged.is_caught("left");
}

#[test]
fn a_dead_holder_that_outlives_a_purge_is_caught() {
    let purged_at = |at: u64, holders: u64| {
        let mut forged = Forged::new();
        forged.grant("a", 1_000, 1, alone());
        forged.dies("a", 2_000);
        forged.told(left(at, holders));
        forged
    };
    let over = 2_000 + LEASE + GRACE + SLACK;
    purged_at(over, 1).passes();
    assert_eq!(purged_at(over, 1).judged().excused["left"], 1);
    purged_at(over + 1, 1).is_caught("left");
    purged_at(over + 1, 0).passes();
    // A hold that was released must be gone at once.
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.end(held, 1_100, End::Release, "ok");
    forged.told(left(1_111, 1));
    forged.is_caught("left");
}

#[test]
fn what_is_told_of_the_end_is_read_as_it_was_written() {
    let all = [
        Line::Closed { at: 1, threads: 2, descriptors: 3 },
        Line::Jumped { at: 4, seconds: -300 },
        Line::Kept { at: 5, key: "job".to_owned(), holders: 6 },
        Line::Left { at: 7, key: "job".to_owned(), holders: 8 },
    ];
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(lines(&text).as_deref(), Ok(&all[..]));
}
