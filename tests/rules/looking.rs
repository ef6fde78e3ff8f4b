//! When to look again at a lock that others hold.

use std::time::Duration;

use crate::lease::{missing, renewed};
use crate::support::asks::*;
use leasehold::internals::lease::transition::free_in;
use leasehold::internals::lease::{Ask, Lease, LockRecord, Mode, Wanted};

#[test]
fn free_in_is_the_end_of_the_last_one_in_the_way() {
    let exclusive_free = |record: &LockRecord, when| free_in(record, &Wanted::EXCLUSIVE, at(when));
    assert_eq!(exclusive_free(&missing(), 0), Some(Duration::ZERO));
    assert_eq!(exclusive_free(&held(&[exclusive("a")]), 40), Some(ms(60)));
    assert_eq!(exclusive_free(&held(&[exclusive("a")]), 100), Some(Duration::ZERO));
    let (_, record) = renewed(&held(&[shared("a"), shared("b")]), "a", Lease::For(LEASE), false, &now(30));
    assert_eq!(exclusive_free(&record, 0), Some(ms(130)));
    let (_, endless) = renewed(&record, "b", Lease::Forever, false, &now(0));
    assert_eq!(exclusive_free(&endless, 0), None, "never by itself");
}

#[test]
fn free_in_for_shared_waits_for_the_exclusive_one_only() {
    let (exclusively, limited) = (Wanted::EXCLUSIVE, Some(5));
    let sharing = Wanted { mode: Mode::Shared, ..Wanted::EXCLUSIVE };
    assert_eq!(free_in(&held(&[exclusive("a")]), &sharing, at(40)), Some(ms(60)));
    assert_eq!(free_in(&held(&[exclusive("a")]), &sharing, at(100)), Some(Duration::ZERO));
    assert_eq!(free_in(&held(&[exclusive("a")]), &Wanted { max_holders: limited, ..sharing }, at(40)), Some(ms(60)));
    assert_eq!(free_in(&held(&[shared("a")]), &sharing, at(40)), Some(Duration::ZERO));
    assert_eq!(free_in(&held(&[shared("a")]), &Wanted { max_holders: limited, ..exclusively }, at(40)), Some(ms(60)));
}

#[test]
fn free_in_knows_who_is_replaced_and_which_group_is_in_the_way() {
    let of = |asks: &[Ask]| {
        let record = held(asks);
        let (_, holder) = record.holders().next().unwrap();
        (record.clone(), holder.clone())
    };
    let (record, holder) = of(&[exclusive("a")]);
    let replacing = Wanted { replaces: Some(&holder.labels.owner), ..Wanted::EXCLUSIVE };
    assert_eq!(free_in(&record, &replacing, at(40)), Some(Duration::ZERO));
    assert_eq!(free_in(&record, &Wanted { replaces: Some("another"), ..replacing }, at(40)), Some(ms(60)));
    assert_eq!(free_in(&record, &Wanted { mode: Mode::Shared, ..replacing }, at(40)), Some(ms(60)));
    let (record, holder) = of(&[shared("a")]);
    assert_eq!(free_in(&record, &replacing, at(40)), Some(ms(60)), "who shares is replaced by nobody");
    let same_group = Wanted { mode: Mode::Shared, lock_id: Some(&holder.lock_id), ..Wanted::EXCLUSIVE };
    assert_eq!(free_in(&record, &same_group, at(40)), Some(ms(60)));
    assert_eq!(free_in(&record, &Wanted { lock_id: Some("another"), ..same_group }, at(40)), Some(Duration::ZERO));
}

#[test]
fn free_in_for_a_limit_waits_until_enough_have_gone() {
    // Their leases end at 100, 110, 120 and never, in another order than that of their grants.
    let mut record = held(&[shared("a"), shared("b"), shared("c"), shared("d")]);
    for (name, lease) in [("d", Lease::For(ms(110))), ("b", Lease::For(ms(120))), ("a", Lease::Forever)] {
        record = renewed(&record, name, lease, false, &now(0)).1;
    }
    let of = |max| Wanted { mode: Mode::Shared, max_holders: Some(max), ..Wanted::EXCLUSIVE };
    let free = |max| free_in(&record, &of(max), at(0));
    assert_eq!(free(5), Some(Duration::ZERO));
    assert_eq!(free(4), Some(ms(100)));
    assert_eq!(free(3), Some(ms(110)));
    assert_eq!(free(2), Some(ms(120)));
    assert_eq!(free(1), None);
    assert_eq!(free_in(&record, &of(4), at(100)), Some(Duration::ZERO), "the expired one does not count");
}
