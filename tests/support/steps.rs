//! Runs every transition through one function, which checks the rules that each single step must keep.

use std::collections::BTreeSet;

use leasehold::internals::lease::{
    AcquireAnswer, Ask, End, GrantId, Holder, Kind, Lease, LockRecord, Mode, Refusal, ReleaseAnswer, RenewAnswer,
    Times, transition,
};

/// A request as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Acquire(Ask),
    Renew { grant: GrantId, lease: Lease, may_end_endless: bool },
    Release(GrantId),
    GiveUp(GrantId),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Acquired(AcquireAnswer),
    Renewed(RenewAnswer),
    Released(ReleaseAnswer),
}

/// Runs the request, panics where a rule is broken, and returns the answer and the record to write.
pub fn apply(before: &LockRecord, request: &Request, times: &Times) -> (Answer, Option<LockRecord>) {
    match request {
        Request::Acquire(ask) => {
            let step = transition::acquire(before, ask, times);
            match &step.answer {
                AcquireAnswer::Granted { holder, repeated: true } => {
                    assert_eq!(step.record, None, "a repeat changes nothing");
                    let standing = before.standing(&ask.grant).expect("a repeat finds itself").1;
                    assert_eq!(standing, holder);
                    assert!(holder.until.is_after(times.expired_before), "a repeat finds a live grant");
                }
                AcquireAnswer::Granted { holder, repeated: false } => {
                    let after = step.record.as_ref().expect("a grant is written");
                    check_written(before, after);
                    check_grant(before, after, ask, holder, times);
                }
                AcquireAnswer::Refused(refusal) => {
                    assert_eq!(step.record, None, "a refusal writes nothing");
                    check_refusal(before, ask, *refusal, times);
                }
            }
            (Answer::Acquired(step.answer), step.record)
        }
        Request::Renew { grant, lease, may_end_endless } => {
            let step = transition::renew(
                before,
                grant,
                transition::Renewal { lease: *lease, may_end_endless: *may_end_endless },
                times,
            );
            check_renewal(before, step.record.as_ref(), grant, *lease, *may_end_endless, step.answer, times);
            (Answer::Renewed(step.answer), step.record)
        }
        Request::Release(grant) => {
            let step = transition::release(before, grant, times);
            check_end(before, step.record.as_ref().unwrap_or(before), grant, step.answer, times);
            assert_eq!(step.record.is_some(), step.answer == ReleaseAnswer::Released, "only a release writes");
            if let Some(after) = &step.record {
                check_written(before, after);
                assert_eq!(after.given_up, before.given_up);
            }
            (Answer::Released(step.answer), step.record)
        }
        Request::GiveUp(grant) => {
            let step = transition::give_up(before, grant, times);
            let after = step.record.as_ref().unwrap_or(before);
            check_end(before, after, grant, step.answer, times);
            assert!(after.given_up.contains(grant), "a late copy must find that it was given up");
            if step.record.is_some() {
                check_written(before, after);
            } else {
                assert!(before.given_up.contains(grant));
            }
            (Answer::Released(step.answer), step.record)
        }
    }
}

/// The rules for every record that is written.
pub fn check_written(before: &LockRecord, after: &LockRecord) {
    assert_eq!(after.version, before.version + 1, "the version rises with each write");
    assert_eq!(
        (&after.key, after.kind, &after.pins, after.format),
        (&before.key, before.kind, &before.pins, before.format)
    );
    assert!(after.token >= before.token, "the token never goes back");
    assert!(after.given_up.is_superset(&before.given_up));
    assert!(after.exclusive.is_none() || after.shared.is_empty(), "never exclusive with shared: {after:?}");
    let holders: Vec<&Holder> = after.holders().map(|(_, h)| h).collect();
    let distinct = |of: fn(&Holder) -> String| holders.iter().map(|h| of(h)).collect::<BTreeSet<_>>().len();
    assert_eq!(distinct(|h| h.grant.as_str().to_owned()), holders.len(), "a grant stands once");
    assert_eq!(distinct(|h| h.lock_id.clone()), holders.len(), "a lock id stands once on a key: {after:?}");
    assert_eq!(distinct(|h| h.token.to_string()), holders.len(), "no two grants have one token");
    for holder in holders {
        assert!(holder.token <= after.token, "the record's token is the highest");
        assert!(!after.given_up.contains(&holder.grant), "what was given up never stands");
    }
}

fn check_grant(before: &LockRecord, after: &LockRecord, ask: &Ask, holder: &Holder, times: &Times) {
    assert_eq!(after.standing(&ask.grant), Some((ask.mode, holder)));
    assert_eq!((&holder.lock_id, &holder.labels, holder.renewed), (&ask.lock_id, &ask.labels, None));
    assert_eq!((holder.created, holder.until), (times.now, Lease::For(ask.lease).end(times.now)));
    assert_eq!(holder.token, (before.token + 1).max(times.stamp), "the token rule");
    assert_eq!(after.token, holder.token, "the record's token is that of the newest grant");
    assert_eq!(before.kind, Kind::Lock, "a lease is not granted as a lock");
    assert!(!before.given_up.contains(&ask.grant), "what was given up is never granted");
    if let Some((old, token)) = &ask.instead_of {
        let stood = before.standing(old).expect("a transfer starts from a standing grant");
        assert_eq!(stood.1.token, *token);
        assert!(*old == ask.grant || after.standing(old).is_none(), "a transfer leaves the old grant nothing");
    }
    for (mode, stood) in before.holders().filter(|(_, h)| h.grant != ask.grant) {
        if let Some(stands) = after.standing(&stood.grant) {
            assert_eq!(stands, (mode, stood), "a grant changes no other holder");
            assert!(stood.until.is_after(times.expired_before), "expired holders are dropped in the same write");
            assert_ne!(stood.lock_id, ask.lock_id);
        } else {
            let by_order = ask.instead_of.as_ref().is_some_and(|(old, _)| *old == stood.grant)
                || is_replaced(ask, mode, stood)
                || !stood.until.is_after(times.expired_before);
            assert!(by_order, "{stood:?} was live and is gone");
        }
    }
    assert!(after.holders().all(|(_, h)| h.grant == ask.grant || before.standing(&h.grant).is_some()));
    match ask.mode {
        Mode::Exclusive => assert_eq!(after.holders().count(), 1, "an exclusive holder is alone"),
        Mode::Shared => {
            assert_eq!(after.shared.last().map(|h| &h.grant), Some(&ask.grant), "in the order of the grants");
            if let (Some(max), None) = (ask.max_holders, &ask.instead_of) {
                assert!(after.shared.len() <= max as usize, "never above the limit that was granted under");
            }
        }
    }
}

fn is_replaced(ask: &Ask, mode: Mode, stood: &Holder) -> bool {
    ask.replace_same_owner
        && (ask.mode, mode) == (Mode::Exclusive, Mode::Exclusive)
        && stood.labels.owner == ask.labels.owner
}

/// Each refusal must have its reason.
fn check_refusal(before: &LockRecord, ask: &Ask, refusal: Refusal, times: &Times) {
    let old = ask.instead_of.as_ref();
    let in_the_way =
        |(mode, h): &(Mode, &Holder)| old.is_none_or(|(g, _)| *g != h.grant) && !is_replaced(ask, *mode, h);
    let mut blocking = before.live(times.expired_before).filter(in_the_way);
    let is_there = match refusal {
        Refusal::GivenUp => before.given_up.contains(&ask.grant),
        Refusal::NotStanding => old.is_some_and(|(g, token)| before.standing(g).is_none_or(|(_, h)| h.token != *token)),
        Refusal::SameLockId => blocking.any(|(_, h)| h.lock_id == ask.lock_id && h.grant != ask.grant),
        Refusal::Held => blocking.any(|(mode, _)| ask.mode == Mode::Exclusive || mode == Mode::Exclusive),
        Refusal::Full => {
            ask.mode == Mode::Shared
                && before.exclusive.as_ref().is_none_or(|h| !h.until.is_after(times.expired_before))
                && ask.max_holders.is_some_and(|max| blocking.count() >= max as usize)
        }
        Refusal::Lease => before.kind == Kind::Lease,
        Refusal::NewerFormat => before.format.0 > LockRecord::missing("").format.0,
    };
    assert!(is_there, "{refusal:?} without reason for {ask:?} on {before:?}");
}

fn check_renewal(
    before: &LockRecord,
    after: Option<&LockRecord>,
    grant: &GrantId,
    lease: Lease,
    may_end_endless: bool,
    answer: RenewAnswer,
    times: &Times,
) {
    let Some((_, stood)) = before.standing(grant) else {
        assert_eq!((answer, after), (RenewAnswer::Lost, None), "who does not stand is lost, and nothing is written");
        return;
    };
    let asked = lease.end(times.now);
    let right = match (stood.until, asked) {
        (End::Never, End::At(_)) if may_end_endless => asked,
        _ => stood.until.max(asked),
    };
    assert_eq!(answer, RenewAnswer::Until(right), "an end never moves back");
    let Some(after) = after else {
        assert!(stood.until == right && asked != right, "an extension is written");
        return;
    };
    check_written(before, after);
    let mut as_it_should_be = before.clone();
    as_it_should_be.version = after.version;
    let holders = as_it_should_be.exclusive.iter_mut().chain(&mut as_it_should_be.shared);
    for holder in holders.filter(|h| h.grant == *grant) {
        holder.until = right;
        holder.renewed = Some(times.now);
    }
    assert_eq!(*after, as_it_should_be, "a renewal changes an end and nothing else");
}

fn check_end(before: &LockRecord, after: &LockRecord, grant: &GrantId, answer: ReleaseAnswer, times: &Times) {
    let stood = before.standing(grant).is_some();
    let held = before.live(times.expired_before).next().is_some();
    let right = match (stood, held) {
        (true, _) => ReleaseAnswer::Released,
        (false, false) => ReleaseAnswer::Free,
        (false, true) => ReleaseAnswer::HeldByOther,
    };
    assert_eq!(answer, right);
    assert_eq!(after.token, before.token, "the token outlasts the release");
    let others: Vec<_> = before.holders().filter(|(_, h)| h.grant != *grant).collect();
    assert_eq!(after.holders().collect::<Vec<_>>(), others, "a release removes its holder and nobody else");
}
