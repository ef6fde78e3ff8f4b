//! The rules of a lock, one by one, and their edges.

use crate::support::asks::*;
use crate::support::steps::check_written;
use leasehold::internals::lease::record::{FORMAT_MAJOR, FORMAT_MINOR};
use leasehold::internals::lease::transition::{Renewal, acquire, give_up, purge, release, renew};
use leasehold::internals::lease::{
    AcquireAnswer, Ask, End, Kind, Lease, LockRecord, Mode, Refusal, ReleaseAnswer, RenewAnswer, Times,
};

pub fn missing() -> LockRecord {
    LockRecord::missing("k")
}

fn refused(record: &LockRecord, ask: &Ask, times: &Times) -> Refusal {
    let step = acquire(record, ask, times);
    assert_eq!(step.record, None, "a refusal writes nothing");
    match step.answer {
        AcquireAnswer::Refused(refusal) => refusal,
        granted => panic!("{ask:?} on {record:?}: {granted:?}"),
    }
}

fn names(record: &LockRecord) -> Vec<&str> {
    record.holders().map(|(_, h)| h.grant.as_str()).collect()
}

pub fn renewed(
    record: &LockRecord,
    name: &str,
    lease: Lease,
    may_end_endless: bool,
    times: &Times,
) -> (End, LockRecord) {
    let step = renew(record, &grant(name), Renewal { lease, may_end_endless }, times);
    match (step.answer, step.record) {
        (RenewAnswer::Until(end), Some(record)) => (end, record),
        other => panic!("{name} was not renewed: {other:?}"),
    }
}

// Grants.

#[test]
fn a_missing_row_is_free_and_has_the_format_of_this_version() {
    let record = missing();
    assert!(!record.exists());
    assert_eq!((record.token, record.version, record.holders().count()), (0, 0, 0));
    assert_eq!(record.format, (FORMAT_MAJOR, FORMAT_MINOR));
    assert_eq!((FORMAT_MAJOR, FORMAT_MINOR), (1, 0), "a new format needs golden files");
}

#[test]
fn a_free_key_is_granted_and_the_grant_says_what_was_asked() {
    let (record, holder) = granted(&missing(), &exclusive("a"), &now(5));
    assert!(record.exists());
    assert_eq!(record.version, 1);
    assert_eq!(record.standing(&grant("a")), Some((Mode::Exclusive, &holder)));
    assert_eq!((holder.created, holder.until), (at(5), End::At(at(105))));
    assert_eq!((holder.token, record.token), (1, 1));
    assert_eq!((holder.lock_id.as_str(), holder.labels.owner.as_str()), ("id of a", "owner of a"));
}

#[test]
fn a_holder_is_live_until_its_end_and_not_at_its_end() {
    let record = held(&[exclusive("a")]);
    assert_eq!(record.live(at(99)).count(), 1);
    assert_eq!(record.live(at(100)).count(), 0);
    assert_eq!(refused(&record, &exclusive("b"), &now(99)), Refusal::Held);
    assert_eq!(names(&granted(&record, &exclusive("b"), &now(100)).0), ["b"]);
}

#[test]
fn the_cut_decides_a_takeover_and_not_now() {
    let record = held(&[exclusive("a")]);
    assert_eq!(refused(&record, &exclusive("b"), &graced(109, 10)), Refusal::Held);
    assert_eq!(refused(&record, &shared("b"), &graced(109, 10)), Refusal::Held);
    let (after, b) = granted(&record, &exclusive("b"), &graced(110, 10));
    assert_eq!((b.created, b.until), (at(110), End::At(at(210))), "the new lease counts from now");
    assert_eq!(names(&after), ["b"]);
}

#[test]
fn the_cut_decides_for_shared_holders_and_limits_too() {
    let record = held(&[shared("a")]);
    assert_eq!(refused(&record, &shared_of("b", 1), &graced(109, 10)), Refusal::Full);
    assert_eq!(refused(&record, &exclusive("b"), &graced(109, 10)), Refusal::Held);
    assert_eq!(names(&granted(&record, &shared_of("b", 2), &graced(109, 10)).0), ["a", "b"]);
    assert_eq!(names(&granted(&record, &shared_of("b", 1), &graced(110, 10)).0), ["b"]);
}

#[test]
fn shared_holders_share_and_exclude_the_exclusive_one() {
    let record = held(&[shared("a"), shared("b")]);
    assert_eq!(names(&record), ["a", "b"]);
    assert_eq!(refused(&record, &exclusive("c"), &now(0)), Refusal::Held);
    assert_eq!(refused(&held(&[exclusive("a")]), &shared("b"), &now(0)), Refusal::Held);
}

#[test]
fn the_limit_counts_this_holder_and_only_live_ones() {
    let record = held(&[shared("a"), shared("b")]);
    assert_eq!(refused(&record, &shared_of("c", 1), &now(0)), Refusal::Full);
    assert_eq!(refused(&record, &shared_of("c", 2), &now(0)), Refusal::Full);
    assert_eq!(names(&granted(&record, &shared_of("c", 3), &now(0)).0), ["a", "b", "c"]);
    assert_eq!(names(&granted(&record, &shared_of("c", 1), &now(100)).0), ["c"]);
}

#[test]
fn a_limit_of_nobody_is_never_granted() {
    assert_eq!(refused(&missing(), &shared_of("a", 0), &now(0)), Refusal::Full);
}

#[test]
fn an_exclusive_request_ignores_a_limit() {
    let ask = Ask { max_holders: Some(0), ..exclusive("a") };
    granted(&missing(), &ask, &now(0));
}

#[test]
fn expired_holders_are_dropped_by_the_next_grant() {
    let record = held(&[shared("a"), shared("b")]);
    let (_, record) = renewed(&record, "b", Lease::For(LEASE), false, &now(50));
    let (record, _) = granted(&record, &shared("c"), &now(120));
    assert_eq!(names(&record), ["b", "c"]);
    let (record, _) = granted(&held(&[exclusive("a")]), &shared("b"), &now(100));
    assert_eq!(names(&record), ["b"], "an expired exclusive holder goes for a shared one");
}

// Tokens.

#[test]
fn a_token_is_the_stored_one_and_one_or_the_stamp() {
    let stamped = |stamp| Times { stamp, ..now(0) };
    let mut record = missing();
    record.token = 10;
    assert_eq!(granted(&record, &exclusive("a"), &stamped(3)).1.token, 11);
    assert_eq!(granted(&record, &exclusive("a"), &stamped(11)).1.token, 11);
    let (after, a) = granted(&record, &exclusive("a"), &stamped(12));
    assert_eq!((a.token, after.token), (12, 12));
}

#[test]
fn the_token_outlasts_release_expiry_and_purge() {
    let record = held(&[exclusive("a")]);
    let free = release(&record, &grant("a"), &now(1)).record.unwrap();
    assert_eq!(free.token, 1);
    let (record, b) = granted(&free, &exclusive("b"), &now(1));
    assert_eq!(b.token, 2);
    let purged = purge(&record, at(500), 0).record.unwrap();
    assert_eq!((purged.token, purged.holders().count()), (2, 0));
    assert_eq!(granted(&purged, &exclusive("c"), &now(1)).1.token, 3);
}

#[test]
fn a_renewal_keeps_the_token() {
    let (_, record) = renewed(&held(&[exclusive("a")]), "a", Lease::For(LEASE), false, &Times { stamp: 99, ..now(1) });
    assert_eq!((record.token, record.exclusive.unwrap().token), (1, 1));
}

// Repeats and lock ids.

#[test]
fn a_repeat_finds_itself_and_changes_nothing() {
    let (record, a) = granted(&missing(), &exclusive("a"), &now(0));
    let step = acquire(&record, &exclusive("a"), &Times { stamp: 77, ..now(99) });
    assert_eq!(step.answer, AcquireAnswer::Granted { holder: a, repeated: true });
    assert_eq!(step.record, None);
}

#[test]
fn a_repeat_finds_itself_among_shared_holders_even_when_full() {
    let record = held(&[shared_of("a", 2), shared_of("b", 2)]);
    let step = acquire(&record, &shared_of("a", 2), &now(0));
    assert!(matches!(step.answer, AcquireAnswer::Granted { repeated: true, .. }) && step.record.is_none());
}

#[test]
fn a_repeat_within_the_grace_finds_itself_and_after_it_is_granted_anew() {
    let record = held(&[exclusive("a")]);
    let step = acquire(&record, &exclusive("a"), &graced(109, 10));
    assert!(matches!(step.answer, AcquireAnswer::Granted { repeated: true, .. }));
    let (after, a) = granted(&record, &exclusive("a"), &graced(110, 10));
    assert_eq!((a.token, names(&after)), (2, vec!["a"]));
    let (after, _) = granted(&held(&[shared("a")]), &shared("a"), &now(100));
    assert_eq!(names(&after), ["a"], "it does not stand twice");
}

#[test]
fn a_live_lock_id_is_refused_on_the_same_key() {
    let same = |name, mode| Ask { lock_id: "id of a".to_owned(), ..ask(name, mode) };
    let record = held(&[shared("a"), shared("b")]);
    assert_eq!(refused(&record, &same("c", Mode::Shared), &now(99)), Refusal::SameLockId);
    assert_eq!(refused(&record, &same("c", Mode::Exclusive), &now(99)), Refusal::SameLockId);
    assert_eq!(refused(&held(&[exclusive("a")]), &same("c", Mode::Shared), &graced(109, 10)), Refusal::SameLockId);
    granted(&record, &same("c", Mode::Shared), &now(100));
}

// Transfers.

#[test]
fn a_transfer_replaces_its_grant_in_one_write_with_a_new_token() {
    let (record, a) = granted(&missing(), &exclusive("a"), &now(0));
    let (after, b) = granted(&record, &instead("b", &a), &now(10));
    assert_eq!((names(&after), b.token, b.created), (vec!["b"], 2, at(10)));
    assert_eq!(after.version, record.version + 1);
    assert_eq!(renew(&after, &a.grant, Renewal::heartbeat(Lease::For(LEASE)), &now(10)).answer, RenewAnswer::Lost);
    let again = acquire(&after, &instead("b", &a), &now(10));
    assert!(matches!(again.answer, AcquireAnswer::Granted { repeated: true, .. }), "its repeat finds itself");
    assert_eq!(refused(&after, &instead("c", &a), &now(10)), Refusal::NotStanding);
}

#[test]
fn a_transfer_needs_the_token_as_well_as_the_grant() {
    let (record, a) = granted(&missing(), &exclusive("a"), &now(0));
    for token in [0, 2] {
        let ask = Ask { instead_of: Some((a.grant.clone(), token)), ..exclusive("b") };
        assert_eq!(refused(&record, &ask, &now(0)), Refusal::NotStanding);
    }
    let unknown = Ask { instead_of: Some((grant("x"), a.token)), ..exclusive("b") };
    assert_eq!(refused(&record, &unknown, &now(0)), Refusal::NotStanding);
    assert_eq!(refused(&missing(), &unknown, &now(0)), Refusal::NotStanding);
}

#[test]
fn a_transfer_starts_from_an_expired_grant_that_nobody_took() {
    let (record, a) = granted(&missing(), &exclusive("a"), &now(0));
    assert_eq!(names(&granted(&record, &instead("b", &a), &now(500)).0), ["b"]);
}

#[test]
fn a_transfer_may_keep_the_lock_id_and_change_the_mode() {
    let (record, a) = granted(&missing(), &exclusive("a"), &now(0));
    let ask = Ask { lock_id: a.lock_id.clone(), mode: Mode::Shared, ..instead("b", &a) };
    let (record, b) = granted(&record, &ask, &now(0));
    assert_eq!((record.exclusive.is_none(), record.shared.len()), (true, 1));
    let (record, _) = granted(&record, &instead("c", &b), &now(0));
    assert_eq!((record.exclusive.is_some(), record.shared.len()), (true, 0));
}

#[test]
fn a_shared_transfer_keeps_its_place_among_the_others() {
    let record = held(&[shared_of("a", 2), shared_of("b", 2)]);
    let a = record.shared[0].clone();
    let ask = Ask { mode: Mode::Shared, max_holders: Some(2), ..instead("c", &a) };
    assert_eq!(names(&granted(&record, &ask, &now(0)).0), ["b", "c"]);
    assert_eq!(refused(&record, &instead("c", &a), &now(0)), Refusal::Held, "the other one is in the way");
    let same = Ask { lock_id: "id of b".to_owned(), ..ask };
    assert_eq!(refused(&record, &same, &now(0)), Refusal::SameLockId);
}

// The same owner.

#[test]
fn replace_takes_over_from_a_live_exclusive_holder_of_the_same_owner() {
    let record = held(&[exclusive("a")]);
    let mut ask = Ask { replace_same_owner: true, ..exclusive("b") };
    assert_eq!(refused(&record, &ask, &now(0)), Refusal::Held, "another owner");
    ask.labels.owner = "owner of a".to_owned();
    assert_eq!(names(&granted(&record, &ask, &now(0)).0), ["b"]);
    let same_id = Ask { lock_id: "id of a".to_owned(), ..ask.clone() };
    assert_eq!(names(&granted(&record, &same_id, &now(0)).0), ["b"], "also with its lock id");
    assert_eq!(refused(&record, &Ask { replace_same_owner: false, ..ask }, &now(0)), Refusal::Held);
}

#[test]
fn replace_is_for_exclusive_holders_only() {
    let mut ask = Ask { replace_same_owner: true, ..exclusive("b") };
    ask.labels.owner = "owner of a".to_owned();
    assert_eq!(refused(&held(&[shared("a")]), &ask, &now(0)), Refusal::Held);
    assert_eq!(refused(&held(&[exclusive("a")]), &Ask { mode: Mode::Shared, ..ask }, &now(0)), Refusal::Held);
}

// Rows that are not ours to grant.

#[test]
fn a_newer_major_format_is_refused_and_a_newer_minor_is_used() {
    let mut record = missing();
    record.format = (FORMAT_MAJOR, FORMAT_MINOR + 1);
    assert_eq!(granted(&record, &exclusive("a"), &now(0)).0.format, (FORMAT_MAJOR, FORMAT_MINOR + 1));
    record.format = (FORMAT_MAJOR + 1, 0);
    assert_eq!(refused(&record, &exclusive("a"), &now(0)), Refusal::NewerFormat);
}

#[test]
fn a_lease_is_not_granted_as_a_lock() {
    let mut record = held(&[exclusive("a")]);
    record.kind = Kind::Lease;
    assert_eq!(refused(&record, &exclusive("b"), &now(500)), Refusal::Lease);
    let repeat = acquire(&record, &exclusive("a"), &now(0));
    assert!(matches!(repeat.answer, AcquireAnswer::Granted { repeated: true, .. }));
}

// Renewals.

#[test]
fn a_renewal_extends_and_says_when() {
    let (end, record) = renewed(&held(&[exclusive("a")]), "a", Lease::For(LEASE), false, &now(30));
    let a = record.exclusive.as_ref().unwrap();
    assert_eq!((end, a.until, a.renewed, a.created), (End::At(at(130)), End::At(at(130)), Some(at(30)), at(0)));
    assert_eq!(record.version, 2);
}

#[test]
fn a_renewal_finds_its_grant_among_shared_ones() {
    let (_, record) = renewed(&held(&[shared("a"), shared("b")]), "b", Lease::For(LEASE), false, &now(30));
    assert_eq!(record.shared.iter().map(|h| h.until).collect::<Vec<_>>(), [End::At(at(100)), End::At(at(130))]);
}

#[test]
fn a_late_renewal_moves_no_end_back_and_writes_nothing() {
    let record = held(&[exclusive("a")]);
    let step = renew(&record, &grant("a"), Renewal::heartbeat(Lease::For(ms(10))), &now(89));
    assert_eq!((step.answer, step.record), (RenewAnswer::Until(End::At(at(100))), None));
    let (end, record) = renewed(&record, "a", Lease::For(ms(10)), false, &now(90));
    assert_eq!(end, End::At(at(100)));
    assert_eq!(record.exclusive.unwrap().renewed, Some(at(90)), "it was renewed, if only to the same end");
}

#[test]
fn a_renewal_revives_what_expired_and_nobody_took() {
    let record = held(&[exclusive("a")]);
    assert_eq!(renewed(&record, "a", Lease::For(LEASE), false, &now(900)).0, End::At(at(1000)));
    let (taken, _) = granted(&record, &exclusive("b"), &now(900));
    let step = renew(&taken, &grant("a"), Renewal::heartbeat(Lease::For(LEASE)), &now(900));
    assert_eq!((step.answer, step.record), (RenewAnswer::Lost, None));
}

#[test]
fn an_endless_lease_ends_only_on_demand() {
    let (end, record) = renewed(&held(&[exclusive("a")]), "a", Lease::Forever, false, &now(0));
    assert_eq!(end, End::Never);
    assert_eq!(refused(&record, &exclusive("b"), &now(i64::from(u32::MAX))), Refusal::Held);
    let step = renew(&record, &grant("a"), Renewal::heartbeat(Lease::For(LEASE)), &now(50));
    assert_eq!((step.answer, step.record), (RenewAnswer::Until(End::Never), None), "a heartbeat does not end it");
    let (end, record) = renewed(&record, "a", Lease::For(LEASE), true, &now(50));
    assert_eq!(end, End::At(at(150)));
    let step = renew(&record, &grant("a"), Renewal { lease: Lease::For(ms(1)), may_end_endless: true }, &now(50));
    assert_eq!(step.answer, RenewAnswer::Until(End::At(at(150))), "a finite end does not move back even then");
    assert_eq!(renewed(&record, "a", Lease::Forever, true, &now(50)).0, End::Never);
}

// Releasing and giving up.

#[test]
fn a_release_removes_its_holder_only_and_is_quiet_when_free() {
    let record = held(&[shared("a"), shared("b")]);
    let step = release(&record, &grant("a"), &now(0));
    let left = step.record.unwrap();
    assert_eq!((step.answer, names(&left)), (ReleaseAnswer::Released, vec!["b"]));
    check_written(&record, &left);
    let again = release(&left, &grant("a"), &now(0));
    assert_eq!((again.answer, again.record), (ReleaseAnswer::HeldByOther, None));
    assert_eq!(release(&left, &grant("a"), &now(100)).answer, ReleaseAnswer::Free, "the other one expired");
    assert_eq!(release(&left, &grant("a"), &graced(109, 10)).answer, ReleaseAnswer::HeldByOther, "not by its grace");
    assert_eq!(release(&missing(), &grant("a"), &now(0)).answer, ReleaseAnswer::Free);
    let last = release(&left, &grant("b"), &now(0)).record.unwrap();
    assert_eq!(last.holders().count(), 0);
}

#[test]
fn an_expired_holder_can_be_released() {
    assert_eq!(release(&held(&[exclusive("a")]), &grant("a"), &now(500)).answer, ReleaseAnswer::Released);
}

#[test]
fn giving_up_stops_the_copy_that_comes_later() {
    let step = give_up(&missing(), &grant("a"), &now(0));
    assert_eq!(step.answer, ReleaseAnswer::Free);
    let record = step.record.unwrap();
    check_written(&missing(), &record);
    assert_eq!(refused(&record, &exclusive("a"), &now(0)), Refusal::GivenUp);
    granted(&record, &exclusive("b"), &now(0));
    let again = give_up(&record, &grant("a"), &now(0));
    assert_eq!((again.answer, again.record), (ReleaseAnswer::Free, None));
}

#[test]
fn giving_up_releases_what_stands_and_leaves_others() {
    let record = held(&[shared("a"), shared("b")]);
    let step = give_up(&record, &grant("a"), &now(0));
    let left = step.record.unwrap();
    check_written(&record, &left);
    assert_eq!((step.answer, names(&left)), (ReleaseAnswer::Released, vec!["b"]));
    assert_eq!(refused(&left, &shared("a"), &now(0)), Refusal::GivenUp);
    let step = give_up(&left, &grant("c"), &now(0));
    assert_eq!(step.answer, ReleaseAnswer::HeldByOther);
    assert_eq!(step.record.unwrap().given_up.len(), 2);
}

#[test]
fn giving_up_also_releases_what_stands_although_it_was_given_up_before() {
    // A store that writes by conditions of its own can get into this state.
    let mut record = held(&[exclusive("a")]);
    record.given_up.insert(grant("a"));
    let step = give_up(&record, &grant("a"), &now(0));
    assert_eq!((step.answer, step.record.unwrap().holders().count()), (ReleaseAnswer::Released, 0));
}

// Purging.

#[test]
fn a_purge_frees_who_ended_by_then_and_nobody_else() {
    let record = held(&[shared("a"), shared("b")]);
    let (_, record) = renewed(&record, "b", Lease::For(ms(101)), false, &now(0));
    let none = purge(&record, at(99), 0);
    assert_eq!((none.answer.freed.len(), none.record), (0, None));
    let one = purge(&record, at(100), 0);
    assert_eq!(
        one.answer.freed.iter().map(|(mode, h)| (*mode, h.grant.as_str())).collect::<Vec<_>>(),
        [(Mode::Shared, "a")]
    );
    let left = one.record.unwrap();
    assert_eq!((names(&left), one.answer.delete), (vec!["b"], false));
    check_written(&record, &left);
    let alone = purge(&held(&[exclusive("a")]), at(100), 0);
    assert_eq!((alone.answer.freed[0].0, alone.record.unwrap().holders().count()), (Mode::Exclusive, 0));
}

#[test]
fn a_purge_spares_endless_holders_and_leases() {
    let (_, endless) = renewed(&held(&[exclusive("a")]), "a", Lease::Forever, false, &now(0));
    assert_eq!(purge(&endless, at(i64::from(u32::MAX)), u64::MAX).record, None);
    let mut lease = held(&[exclusive("a")]);
    lease.kind = Kind::Lease;
    let step = purge(&lease, at(500), u64::MAX);
    assert_eq!((step.answer.freed.len(), step.answer.delete, step.record), (0, false, None));
    let mut free = release(&lease, &grant("a"), &now(0)).record.unwrap();
    assert!(purge(&free, at(500), u64::MAX).answer.delete, "nobody holds it");
    free.pins.insert("somebody".to_owned());
    assert!(!purge(&free, at(500), u64::MAX).answer.delete, "whoever claims it is to be kept");
}

#[test]
fn a_row_is_deleted_when_it_is_free_and_its_token_is_old() {
    let record = held(&[exclusive("a")]);
    let free = release(&record, &grant("a"), &now(0)).record.unwrap();
    let deletes = |record: &LockRecord, idle_before| purge(record, at(500), idle_before).answer.delete;
    assert_eq!((deletes(&free, 1), deletes(&free, 2)), (false, true));
    assert!(deletes(&record, 2), "also when this purge frees it");
    assert!(!purge(&record, at(0), 2).answer.delete, "not while it is held");
    assert!(!deletes(&missing(), 2), "what is missing is not deleted");
    let mut pinned = free.clone();
    pinned.pins.insert("somebody".to_owned());
    assert!(!deletes(&pinned, 2));
}

#[test]
fn a_row_on_which_somebody_gave_up_lately_is_not_deleted() {
    let stamped = |stamp| Times { stamp, ..now(0) };
    let fresh = give_up(&missing(), &grant("a"), &stamped(70)).record.unwrap();
    let step = purge(&fresh, at(0), 70);
    assert_eq!((step.answer.delete, step.record), (false, None), "a late copy would be granted to nobody");
    assert!(purge(&fresh, at(0), 71).answer.delete);
    let twice = give_up(&fresh, &grant("b"), &stamped(60)).record.unwrap();
    assert_eq!(twice.gave_up_at, 70, "it never goes back");
}
