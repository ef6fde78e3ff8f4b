//! The rules of a lease that a name holds: tokens, repeats and edge cases that can't be reached at will on a store.

use crate::support::asks::{LEASE, at, grant, now};
use leasehold::internals::lease::claim::{Claim, LeaseRefusal, claim, expire, extend, pin, revoke, unpin};
use leasehold::internals::lease::{End, Kind, Labels, LockRecord};

fn asked(name: &str) -> Claim {
    Claim { grant: grant(name), lock_id: format!("id of {name}"), labels: Labels::of("unit/0"), duration: LEASE }
}

fn claimed(record: &LockRecord, name: &str, second: i64) -> LockRecord {
    let step = claim(record, &asked(name), &now(second));
    let (holder, record) = (step.answer.unwrap(), step.record.expect("a claim is written"));
    assert_eq!(record.exclusive.as_ref(), Some(&holder));
    assert_eq!((record.kind, record.token, holder.token), (Kind::Lease, holder.token, record.token));
    assert_eq!((holder.created, holder.until, holder.renewed), (at(second), End::At(at(second + 100)), None));
    record
}

fn ended(record: &LockRecord) -> LockRecord {
    revoke(record, "unit/0", &now(6)).record.expect("a revocation is written")
}

#[test]
fn the_token_rises_also_when_the_stores_time_stands_still() {
    let mut times = now(5);
    times.stamp = 7;
    let mut record = LockRecord::missing("k");
    for token in [7, 8, 9] {
        record = claim(&record, &asked(&format!("{token}")), &times).record.unwrap();
        assert_eq!((record.token, record.exclusive.as_ref().map(|h| h.token)), (token, Some(token)));
        record = ended(&record);
        assert_eq!((record.token, record.kind), (token, Kind::Lease));
    }
}

#[test]
fn a_repeated_claim_finds_itself_and_another_of_the_same_name_does_not() {
    let record = claimed(&LockRecord::missing("k"), "a", 5);
    let repeat = claim(&record, &asked("a"), &now(500));
    assert_eq!((repeat.answer.ok(), repeat.record), (record.exclusive.clone(), None));
    assert_eq!(claim(&record, &asked("b"), &now(500)).answer, Err(LeaseRefusal::Stands));
}

#[test]
fn an_extension_that_is_no_later_changes_nothing() {
    let record = claimed(&LockRecord::missing("k"), "a", 5);
    for lease in [LEASE, LEASE / 2] {
        let step = extend(&record, "unit/0", lease, &now(5));
        assert_eq!((step.answer.ok(), step.record), (record.exclusive.clone(), Some(written_again(&record))));
    }
    let step = extend(&record, "unit/0", LEASE, &now(6));
    let longer = step.answer.unwrap();
    assert_eq!((longer.until, longer.renewed), (End::At(at(106)), Some(at(6))));
    assert_eq!(step.record.unwrap().version, record.version + 1);
    assert_eq!(extend(&record, "unit/1", LEASE, &now(6)).answer, Err(LeaseRefusal::HeldByOther));
    assert_eq!(extend(&ended(&record), "unit/0", LEASE, &now(6)).answer, Err(LeaseRefusal::Free));
}

#[test]
fn it_expires_at_its_end_by_the_earliest_time() {
    let record = claimed(&LockRecord::missing("k"), "a", 5);
    let mut times = now(200);
    times.expired_before = at(104);
    assert_eq!(expire(&record, &times).answer, Err(LeaseRefusal::StillRuns));
    times.expired_before = at(105);
    let step = expire(&record, &times);
    assert_eq!((step.answer.ok(), step.record.unwrap().exclusive), (record.exclusive.clone(), None));
    assert_eq!(expire(&ended(&record), &times).answer, Err(LeaseRefusal::Free));
    let pinned = pin(&record, "upgrade", &now(6)).record.unwrap();
    assert_eq!(expire(&pinned, &times).answer, Err(LeaseRefusal::Pinned));
}

#[test]
fn a_pin_is_written_also_where_it_stands_and_makes_the_row_a_lease() {
    let pinned = pin(&LockRecord::missing("k"), "upgrade", &now(5));
    assert!(pinned.answer);
    let record = pinned.record.unwrap();
    assert_eq!((record.kind, record.version, record.pins.len()), (Kind::Lease, 1, 1));
    assert_eq!(record.token, now(5).stamp, "a purge leaves it for as long as what was granted then");
    let again = pin(&record, "upgrade", &now(6));
    assert_eq!((again.answer, again.record), (false, Some(written_again(&record))));
    let unpinned = unpin(&record, "upgrade", &now(6));
    assert!(unpinned.answer && unpinned.record.as_ref().is_some_and(|record| record.pins.is_empty()));
    let record = unpinned.record.unwrap();
    let again = unpin(&record, "upgrade", &now(6));
    assert_eq!((again.answer, again.record), (false, Some(written_again(&record))));
}

/// The record after another write, which refuses all writes that were decided on the record before.
fn written_again(record: &LockRecord) -> LockRecord {
    LockRecord { kind: Kind::Lease, version: record.version + 1, ..record.clone() }
}
