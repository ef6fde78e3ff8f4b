//! What acquire, renew and release must do.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::internals::lease::{End, Kind, Lease, Mode};
use leasehold::internals::store::{Attempt, Purpose, Released, Renewal};

use crate::support::contract::*;
use crate::support::stores::{Store, soon};

pub fn a_held_key_is_refused_and_the_holder_is_named(store: &Store) {
    let at = (store.open)();
    let a = granted(&*at.store, &mut exclusive(&at, "k"));
    for by in [&at.store, &at.second] {
        let seen = refused(&**by, &mut exclusive(&at, "k"));
        assert_eq!(seen.live().collect::<Vec<_>>(), [(Mode::Exclusive, &a)]);
        assert_eq!(seen.record.key, "k");
    }
    granted(&*at.second, &mut exclusive(&at, "another"));
}

pub fn a_holder_is_live_until_its_end_and_then_replaced(store: &Store) {
    let at = (store.open)();
    granted(&*at.store, &mut exclusive(&at, "k"));
    at.advance(LEASE - Duration::from_secs(20));
    refused(&*at.second, &mut exclusive(&at, "k"));
    at.outlast(Duration::from_secs(20));
    let b = granted(&*at.second, &mut exclusive(&at, "k"));
    assert_eq!(at.holders("k"), [b], "the expired one went in the same write");
}

pub fn who_was_replaced_learns_it_and_frees_nobody(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    at.expire();
    let b = granted(&*at.second, &mut exclusive(&at, "k"));
    assert_eq!(lost(&*at.store, &mut a).live().map(|(_, h)| h).collect::<Vec<_>>(), [&b]);
    match release(&*at.store, &mut a) {
        Released::HeldByOther(seen) => assert_eq!(seen.live().map(|(_, h)| h).collect::<Vec<_>>(), [&b]),
        other => panic!("{other:?}"),
    }
    assert_eq!(at.holders("k"), [b]);
}

pub fn exclusive_and_shared_holders_exclude_each_other(store: &Store) {
    let at = (store.open)();
    let (mut a, mut b) = (shared(&at, "k"), shared(&at, "k"));
    granted(&*at.store, &mut a);
    granted(&*at.second, &mut b);
    refused(&*at.store, &mut exclusive(&at, "k"));
    release(&*at.store, &mut a);
    refused(&*at.store, &mut exclusive(&at, "k"));
    release(&*at.store, &mut b);
    granted(&*at.store, &mut exclusive(&at, "k"));
    refused(&*at.second, &mut shared(&at, "k"));
    at.expire();
    granted(&*at.second, &mut shared(&at, "k"));
    assert!(at.record("k").exclusive.is_none(), "the expired one went in the same write");
}

pub fn the_limit_of_shared_holders_counts_live_ones(store: &Store) {
    let at = (store.open)();
    let limited = |limit| {
        let mut attempt = shared(&at, "k");
        attempt.ask.max_holders = Some(limit);
        attempt
    };
    let a = granted(&*at.store, &mut limited(2));
    let b = granted(&*at.second, &mut limited(2));
    let seen = refused(&*at.store, &mut limited(2));
    assert_eq!(seen.live().map(|(_, h)| h).collect::<Vec<_>>(), [&a, &b], "in the order of their grants");
    let c = granted(&*at.store, &mut limited(3));
    assert_eq!(at.holders("k"), [a, b, c]);
    at.expire();
    let d = granted(&*at.store, &mut limited(1));
    assert_eq!(at.holders("k"), [d]);
}

pub fn a_grant_is_what_was_asked_for(store: &Store) {
    let at = (store.open)();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&*at.store, &mode.to_string(), mode);
        a.ask.labels.host = Some("host".to_owned());
        let before = at.get(&a.key).times.now;
        let holder = granted(&*at.store, &mut a);
        let seen = at.get(&a.key);
        assert_eq!(seen.record.standing(a.grant()), Some((mode, &holder)), "it is stored as it was told");
        assert_eq!((&holder.lock_id, &holder.labels), (&a.ask.lock_id, &a.ask.labels));
        let (created, now) = (holder.created, seen.times.now);
        assert!(before <= created && created <= now, "{before:?} <= {created:?} <= {now:?}");
        assert_eq!((holder.until, holder.renewed), (End::At(holder.created.plus(LEASE)), None));
        assert_eq!(seen.record.kind, Kind::Lock);
    }
}

pub fn a_repeat_finds_itself_and_writes_nothing(store: &Store) {
    let at = (store.open)();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&*at.store, &mode.to_string(), mode);
        a.ask.max_holders = Some(1);
        let holder = granted(&*at.store, &mut a);
        let before = at.record(&a.key);
        for by in [&at.store, &at.second] {
            assert_eq!(acquired(&**by, &mut a), (holder.clone(), true));
        }
        assert_eq!(at.record(&a.key), before);
    }
}

pub fn a_live_lock_id_is_refused_on_its_key_only(store: &Store) {
    let at = (store.open)();
    let in_group = |key: &str| {
        let mut attempt = shared(&at, key);
        attempt.ask.lock_id = "group".to_owned();
        attempt
    };
    granted(&*at.store, &mut in_group("k"));
    refused(&*at.second, &mut in_group("k"));
    granted(&*at.second, &mut in_group("other"));
    at.expire();
    granted(&*at.second, &mut in_group("k"));
}

pub fn tokens_rise_whatever_happens_to_the_row(store: &Store) {
    let at = (store.open)();
    let mut tokens = vec![];
    let mut next = |by: &dyn leasehold::internals::store::Backend| {
        let mut attempt = exclusive(&at, "k");
        let token = granted(by, &mut attempt).token;
        assert!(tokens.iter().all(|earlier| *earlier < token), "{token} after {tokens:?}");
        assert_eq!(at.record("k").token, token, "the record's token is the highest");
        tokens.push(token);
        attempt
    };
    let started = at.get("k").times.stamp;
    let mut first = next(&*at.store);
    assert!(at.record("k").token >= started, "tokens are made from the store's time");
    release(&*at.store, &mut first);
    next(&*at.second);
    at.expire();
    let mut expired = next(&*at.store);
    give_up(&*at.store, &mut expired);
    // The wall clock of SQLite and memory goes back an hour.
    at.clock.set_wall_offset(-3_600_000_000);
    let mut behind = next(&*at.second);
    release(&*at.store, &mut behind);
    at.clock.set_wall_offset(1_000_000);
    // The row is deleted.
    let seen = at.get("k");
    at.store.swap(&seen, None, &soon()).unwrap();
    assert!(!at.record("k").exists());
    next(&*at.store);
}

pub fn a_hold_has_one_token(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    let token = granted(&*at.store, &mut a).token;
    renewed(&*at.store, &mut a, renewal(Lease::For(LEASE)));
    renewed(&*at.store, &mut a, renewal(Lease::Forever));
    assert_eq!(at.holders("k")[0].token, token);
    assert_eq!(at.record("k").token, token);
    assert_eq!(acquired(&*at.second, &mut a).0.token, token);
}

pub fn a_transfer_takes_the_place_once(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    let old = granted(&*at.store, &mut a);
    let mut wrong = instead_of(&at, "k", &old);
    wrong.ask.instead_of = Some((old.grant.clone(), old.token + 1));
    refused(&*at.store, &mut wrong);
    let mut b = instead_of(&at, "k", &old);
    let new = granted(&*at.second, &mut b);
    assert!(new.token > old.token);
    assert_eq!(at.holders("k"), std::slice::from_ref(&new));
    assert_eq!(acquired(&*at.second, &mut b), (new.clone(), true), "its repeat finds itself");
    refused(&*at.second, &mut instead_of(&at, "k", &old));
    lost(&*at.store, &mut a);
    assert!(matches!(release(&*at.store, &mut a), Released::HeldByOther(_)));
    assert_eq!(at.holders("k"), [new]);
    refused(&*at.store, &mut instead_of(&at, "free", &old));
    assert!(!at.record("free").exists(), "a refusal writes nothing");
}

pub fn replace_takes_over_from_the_same_owner(store: &Store) {
    let at = (store.open)();
    let of = |owner: &str| {
        let mut attempt = exclusive(&at, "k");
        attempt.ask.labels.owner = owner.to_owned();
        attempt.ask.replace_same_owner = true;
        attempt
    };
    let mut a = of("one");
    let old = granted(&*at.store, &mut a);
    refused(&*at.second, &mut of("two"));
    let new = granted(&*at.second, &mut of("one"));
    assert!(new.token > old.token);
    assert_eq!(at.holders("k"), [new]);
    lost(&*at.store, &mut a);
}

pub fn a_renewal_moves_no_end_back(store: &Store) {
    let at = (store.open)();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&*at.store, &mode.to_string(), mode);
        let granted = granted(&*at.store, &mut a);
        let end = renewed(&*at.store, &mut a, renewal(Lease::For(2 * LEASE)));
        assert!(end > granted.until);
        assert_eq!(renewed(&*at.second, &mut a, renewal(Lease::For(LEASE))), end);
        assert_eq!(at.holders(&a.key)[0].until, end);
        assert_eq!(at.holders(&a.key)[0].created, granted.created);
    }
}

pub fn a_renewal_revives_what_nobody_took(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    at.expire();
    renewed(&*at.store, &mut a, renewal(Lease::For(LEASE)));
    refused(&*at.second, &mut exclusive(&at, "k"));
    release(&*at.store, &mut a);
    lost(&*at.store, &mut a);
    assert_eq!(at.holders("k"), [], "a renewal behind the release revives nothing");
}

pub fn an_endless_lease_ends_on_demand_only(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    assert_eq!(renewed(&*at.store, &mut a, renewal(Lease::Forever)), End::Never);
    at.advance(1_000 * LEASE);
    assert_eq!(renewed(&*at.store, &mut a, renewal(Lease::For(LEASE))), End::Never);
    refused(&*at.second, &mut exclusive(&at, "k"));
    let end = renewed(&*at.store, &mut a, Renewal { lease: Lease::For(LEASE), may_end_endless: true });
    assert!(matches!(end, End::At(_)));
    at.expire();
    granted(&*at.second, &mut exclusive(&at, "k"));
}

pub fn a_release_frees_one_holder_and_keeps_the_token(store: &Store) {
    let at = (store.open)();
    let (mut a, mut b) = (shared(&at, "k"), shared(&at, "k"));
    granted(&*at.store, &mut a);
    let other = granted(&*at.store, &mut b);
    assert!(matches!(release(&*at.second, &mut a), Released::Done));
    assert_eq!(at.holders("k"), std::slice::from_ref(&other));
    assert!(matches!(release(&*at.store, &mut a), Released::HeldByOther(_)));
    assert!(matches!(release(&*at.store, &mut b), Released::Done));
    assert!(matches!(release(&*at.store, &mut b), Released::Free));
    assert_eq!((at.holders("k"), at.record("k").token), (vec![], other.token));
    assert!(matches!(release(&*at.store, &mut exclusive(&at, "free")), Released::Free));
}

pub fn giving_up_leaves_nothing(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    assert!(matches!(give_up(&*at.store, &mut a), Released::Free));
    let mut b = shared(&at, "k");
    granted(&*at.store, &mut b);
    let other = granted(&*at.store, &mut shared(&at, "k"));
    assert!(matches!(give_up(&*at.store, &mut b), Released::Done));
    assert_eq!(at.holders("k"), [other]);
    assert!(matches!(give_up(&*at.store, &mut exclusive(&at, "k")), Released::HeldByOther(_)));
}

pub fn giving_up_stops_the_copy_that_comes_later(store: &Store) {
    if !store.remembers_who_gave_up {
        println!("{}: leaves no copy on its way", store.module);
        return;
    }
    let at = (store.open)();
    let stopped = |attempt: &mut Attempt, key: &str| {
        for by in [&at.store, &at.second, &at.store] {
            refused(&**by, attempt);
        }
        assert!(at.holders(key).iter().all(|h| h.grant != attempt.ask.grant));
    };
    // Two were given up on a free row, one while another holder was there, and one that was a holder itself.
    let (mut a, mut b, mut c) = (exclusive(&at, "k"), shared(&at, "k"), exclusive(&at, "k"));
    give_up(&*at.store, &mut a);
    give_up(&*at.second, &mut b);
    stopped(&mut a, "k");
    stopped(&mut b, "k");
    let mut other = exclusive(&at, "k");
    granted(&*at.store, &mut other);
    give_up(&*at.store, &mut c);
    give_up(&*at.store, &mut other);
    for attempt in [&mut a, &mut b, &mut c, &mut other] {
        stopped(attempt, "k");
    }
    granted(&*at.store, &mut exclusive(&at, "k"));
}

pub fn a_lease_is_not_granted_as_a_lock(store: &Store) {
    let at = (store.open)();
    at.edit("k", |record| {
        record.kind = Kind::Lease;
        record.pins.insert("somebody".to_owned());
    });
    refused(&*at.store, &mut exclusive(&at, "k"));
    refused(&*at.store, &mut shared(&at, "k"));
    let record = at.record("k");
    assert_eq!((record.kind, record.pins.len(), record.holders().count()), (Kind::Lease, 1, 0));
}

pub fn a_newer_major_format_is_an_error_and_stays(store: &Store) {
    if !store.rows_have_format {
        println!("{}: the format is the whole store's", store.module);
        return;
    }
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    at.edit("k", |record| record.format.0 += 1);
    let before = at.get("k");
    let errors = [
        at.store.acquire(&mut exclusive(&at, "k"), &soon()).map(drop),
        at.store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()).map(drop),
        at.store.release(&mut a, Purpose::Release, &soon()).map(drop),
        at.store.release(&mut a, Purpose::GiveUp, &soon()).map(drop),
        at.store.swap(&before, Some(&raised(&before.record)), &soon()).map(drop),
        at.store.swap(&before, None, &soon()).map(drop),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.expect_err(&format!("call {i} took a row that it cannot read"));
        assert_eq!(error.kind(), ErrorKind::Schema, "call {i}: {error}");
    }
    assert_eq!(at.record("k"), before.record, "it stays as it is");
}

pub fn a_newer_minor_format_is_used_and_stays(store: &Store) {
    if !store.rows_have_format {
        println!("{}: the format is the whole store's", store.module);
        return;
    }
    let at = (store.open)();
    at.edit("k", |record| record.format.1 += 1);
    let format = at.record("k").format;
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    renewed(&*at.store, &mut a, renewal(Lease::For(LEASE)));
    release(&*at.store, &mut a);
    assert_eq!(at.record("k").format, format);
}
