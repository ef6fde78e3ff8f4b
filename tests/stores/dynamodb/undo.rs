//! A grant by a wrong time that replaced a live holder: it is undone, or nobody uses it.

use std::sync::Mutex;

use leasehold::internals::store::{Purpose, Released, Renewed};

use crate::dynamodb::time::{holding, idle, sent};
use crate::dynamodb::*;
use crate::support::dynamodb::on_answer;
use crate::support::proxy::{self, Rule};

#[test]
fn a_grant_that_its_own_answer_contradicts_is_undone() {
    needs_server!();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let at = Behind::new();
        let (idle, clock) = idle(&at);
        let (store, mut held) = holding(&at);
        let before = get(&at.beside, "k").record;
        // The host's clock jumps, while the estimate is too young to be doubted.
        clock.advance(Duration::from_secs(60));
        let (seen, requests) = sent(&at, || refused(&idle, &mut attempt("k", mode)));
        assert_eq!(seen.live().count(), 1, "{seen:?}");
        assert_eq!(requests, 4, "the acquire, then the time, the row and what undoes it");
        let mut after = get(&at.beside, "k").record;
        assert_eq!(after.given_up.len(), 1, "a copy of what was undone can't be granted");
        (after.version, after.given_up) = (before.version, before.given_up.clone());
        assert_eq!(after, before, "the holder stands as before");
        assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
        // A lock that nobody holds is granted all the same.
        clock.advance(Duration::from_secs(60));
        granted(&idle, &mut attempt("free", mode));
    }
}

/// A mark with a time that is too early would seem old at once: a purge drops it, and then a copy on its way is
/// granted.
#[test]
fn a_mark_by_what_one_host_told_is_not_stamped_too_early() {
    const DAYS: i64 = 4 * 86_400;
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    clock.advance(Duration::from_secs(DAYS as u64));
    // After days, a host tells a time in one answer that is 100 s behind, which contradicts nothing.
    at.proxy.shift_dates(DAYS - 100);
    let gives_up = |key| idle.release(&mut exclusive(key), Purpose::GiveUp, &soon()).unwrap();
    assert!(matches!(gives_up("other"), Released::Free));
    at.proxy.shift_dates(DAYS);
    assert!(matches!(gives_up("k"), Released::Free));
    let service = (jiff::Timestamp::now().as_microsecond() + DAYS * 1_000_000) as u64;
    let row = Raw::new(&at.table).get("k");
    let stamp: u64 = row["givenUpAt"].as_n().unwrap().parse().unwrap();
    assert!(stamp > service, "{stamp} is behind {service}");
}

#[test]
fn an_undoing_that_is_not_answered_is_done_by_the_repeat() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let (store, mut held) = holding(&at);
    clock.advance(Duration::from_secs(60));
    at.proxy.add(Rule::next(1, proxy::Mode::CutBefore).on("UpdateItem").after(1));
    let mut late = exclusive("k");
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    refused(&idle, &mut late);
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
}

#[test]
fn who_gives_up_what_it_could_not_undo_gives_it_back_too() {
    needs_server!();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let at = Behind::new();
        let (idle, clock) = idle(&at);
        let (store, mut held) = holding(&at);
        clock.advance(Duration::from_secs(60));
        at.proxy.add(Rule::next(2, proxy::Mode::CutBefore).on("UpdateItem").after(1));
        let mut late = attempt("k", mode);
        assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
        // As the engine does when the time of the call is over. The first try is not answered either.
        assert!(matches!(idle.release(&mut late, Purpose::GiveUp, &soon()).unwrap(), Released::Unknown(_)));
        let other = idle.release(&mut late, Purpose::GiveUp, &soon()).unwrap();
        assert!(matches!(other, Released::HeldByOther(_)), "{other:?}");
        assert!(get(&at.beside, "k").record.given_up.contains(late.grant()));
        refused(&at.beside, &mut exclusive("k"));
        assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    }
}

#[test]
fn a_wrong_takeover_that_was_not_answered_is_used_by_nobody() {
    needs_server!();
    for repeats in 0..2 {
        let at = Behind::new();
        let (idle, clock) = idle(&at);
        let (store, mut held) = holding(&at);
        clock.advance(Duration::from_secs(60));
        at.proxy.add(Rule::next(1, proxy::Mode::CutAfter).on("UpdateItem"));
        let mut late = exclusive("k");
        for _ in 0..=repeats {
            let answer = idle.acquire(&mut late, &soon()).unwrap();
            assert!(matches!(answer, Acquired::Unknown(_)), "{answer:?}");
        }
        assert!(!matches!(idle.release(&mut late, Purpose::GiveUp, &soon()).unwrap(), Released::Unknown(_)));
        // The grant remains until the holder that it replaced has learned of it.
        let seen = refused(&at.beside, &mut exclusive("k"));
        let (_, stands) = seen.record.standing(late.grant()).unwrap();
        assert!(stands.until.left(seen.times.now).unwrap() < LEASE + Duration::from_secs(3), "{stands:?}");
        assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Lost(_)));
        refused(&idle, &mut late);
    }
}

/// The service tells a wrong time between two sends of one acquisition, and the second one, which arrived, was wrong.
#[test]
fn a_wrong_takeover_by_a_repeat_is_used_by_nobody_either() {
    let at = needs_server!(Behind::new());
    let idle = idle(&at).0;
    let (store, mut held) = holding(&at);
    let mut late = exclusive("k");
    at.proxy.add(Rule::next(1, proxy::Mode::CutBefore).on("UpdateItem"));
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    at.proxy.shift_dates(3_600);
    // A time that was told twice is believed.
    for _ in 0..2 {
        get(&idle, "other");
    }
    at.proxy.add(Rule::next(1, proxy::Mode::CutAfter).on("UpdateItem"));
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    at.proxy.shift_dates(0);
    let answer = idle.acquire(&mut late, &soon()).unwrap();
    assert!(matches!(answer, Acquired::Unknown(_)), "{answer:?}");
    assert!(!matches!(idle.release(&mut late, Purpose::GiveUp, &soon()).unwrap(), Released::Unknown(_)));
    let seen = refused(&at.beside, &mut exclusive("k"));
    let (_, stands) = seen.record.standing(late.grant()).unwrap();
    let left = stands.until.left(seen.times.now).unwrap();
    assert!(left > Duration::from_secs(3_500), "until what it may have replaced is over by the wrong time: {left:?}");
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Lost(_)));
}

/// The service tells a time that is behind, while rivals go by the right one.
#[test]
fn who_finds_itself_by_a_wrong_time_counts_its_lease_by_the_right_one() {
    let at = needs_server!(Behind::new());
    let idle = idle(&at).0;
    let behind = 20;
    at.proxy.shift_dates(-behind);
    // A time that was told twice is believed.
    for _ in 0..2 {
        get(&idle, "other");
    }
    let mut late = exclusive("k");
    at.proxy.add(Rule::next(1, proxy::Mode::CutAfter).on("UpdateItem"));
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    at.proxy.shift_dates(0);
    let answer = idle.acquire(&mut late, &soon()).unwrap();
    let Acquired::Granted { holder, now, repeated: true } = answer else { panic!("{answer:?}") };
    let left = holder.until.left(now).unwrap();
    assert!(left < LEASE - Duration::from_secs(behind as u64 - 2), "{left:?}");
}

#[test]
fn nobody_is_put_back_beside_those_who_share_the_lock_by_now() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let (store, mut held) = holding(&at);
    clock.advance(Duration::from_secs(60));
    at.proxy.add(Rule::next(1, proxy::Mode::CutBefore).on("UpdateItem").after(1));
    let mut late = shared("k");
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    let mut joined = shared("k");
    granted(&at.beside, &mut joined);
    let seen = refused(&idle, &mut late);
    assert_eq!(seen.record.holders().map(|(_, h)| &h.grant).collect::<Vec<_>>(), [joined.grant()]);
    let (fence, record) = (seen.record.token, at.record("k"));
    assert_eq!(record.holders().map(|(_, h)| &h.grant).collect::<Vec<_>>(), [joined.grant()]);
    assert_eq!((record.token, record.given_up.len()), (fence, 1));
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Lost(_)));
    assert!(matches!(at.beside.renew(&mut joined, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
}

/// A client that joins has counted the holders that it saw. Only the token shows that there are more when it writes.
#[test]
fn nobody_joins_those_who_were_put_back_without_having_counted_them() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let idle = Arc::new(idle);
    let mut held = [shared("k"), shared("k")];
    for one in &mut held {
        one.ask.lease = Duration::from_secs(20);
        granted(&at.beside, one);
    }
    clock.advance(Duration::from_secs(60));
    at.proxy.add(Rule::next(1, proxy::Mode::CutBefore).on("UpdateItem").after(1));
    let mut late = shared("k");
    assert!(matches!(idle.acquire(&mut late, &soon()).unwrap(), Acquired::Unknown(_)));
    granted(&at.beside, &mut shared("k"));
    // This runs between the answer with the holders that it has to count and the join that it sends then.
    let undoing = Arc::new(Mutex::new(None::<(Arc<Dynamodb>, Attempt)>));
    let (own, theirs) = (Clock::system(), undoing.clone());
    let mut all = options(&at.table.0, &own);
    // The grace that the table notes.
    all.grace = Duration::from_secs(5);
    all.interceptors.push(on_answer(move |_| {
        if let Some((idle, mut late)) = theirs.lock().unwrap().take() {
            refused(&*idle, &mut late);
        }
        Ok(())
    }));
    let store = open(all, &own);
    *undoing.lock().unwrap() = Some((idle.clone(), late));
    let mut fourth = shared("k");
    fourth.ask.max_holders = Some(3);
    // It ends before another one, with and without those who are put back.
    fourth.ask.lease = LEASE / 2;
    assert_eq!(refused(&store, &mut fourth).live().count(), 3);
    assert!(undoing.lock().unwrap().is_none() && at.holders("k").len() == 3);
    for one in &mut held {
        assert!(matches!(at.beside.renew(one, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    }
}
