//! A network that fails: what it can do between this store and its service, and what only this store does then.

use leasehold::internals::builder_over;
use leasehold::internals::lease::End;
use leasehold::internals::store::dynamodb::Estimate;
use leasehold::internals::store::{Purpose, Released, Renewed};

use crate::dynamodb::*;
use crate::network::{Kind, LATE, MODES, Meanwhile, by, sent};
use crate::support::dynamodb::dateless;
use crate::support::proxy::{Mode as Network, Request, Rule};
use crate::support::wait::wait_until;

const WRITE: &str = "UpdateItem";
/// Shorter than the least lease.
const SHORT: Duration = Duration::from_millis(900);

fn behind() -> crate::network::Behind<Table> {
    let Behind { proxy, table, store, beside } = Behind::new();
    let kind = Kind {
        write: WRITE,
        driver_repeats: false,
        remembers_who_gave_up: true,
        // Giving up a grant that holds the key takes two writes.
        ends: &[Purpose::Release],
        late: Network::CutLate(LATE),
        given_up: &[
            (Network::CutLate(LATE), &MODES, Meanwhile::Left),
            (Network::Late(LATE), &MODES, Meanwhile::Left),
            (Network::CutBefore, &MODES, Meanwhile::Left),
            (Network::CutAfter, &MODES, Meanwhile::Left),
        ],
    };
    crate::network::Behind { proxy, store: Box::new(store), beside: Box::new(beside), kind, room: table }
}

crate::network::steps!(behind);

#[test]
fn joining_others_survives_it_too() {
    let at = needs_server!(behind());
    at.each(|key, mode, case| {
        if mode == Mode::Exclusive {
            return true;
        }
        let other = granted(&*at.beside, &mut shared(key));
        let mut a = shared(key);
        at.all_were_met();
        // The second write is the one that joins.
        at.proxy.add(Rule::next(1, case.network).on(WRITE).after(1));
        let _ = sent(|| at.store.acquire(&mut a, &by()));
        let holder = at.settled(&mut a);
        assert_eq!(at.holders(key), [other, holder], "{key}");
        true
    });
}

#[test]
fn giving_up_survives_it_too() {
    let at = needs_server!(behind());
    at.each(|key, mode, case| {
        let mut a = attempt(key, mode);
        at.fault(case.network);
        let first = sent(|| at.store.release(&mut a, Purpose::GiveUp, &case.by()));
        assert_eq!(matches!(first, Released::Unknown(_)), !case.is_answered, "{key}: {first:?}");
        case.is_seen(key, || at.record(key).given_up.len() == 1);
        assert!(matches!(at.store.release(&mut a, Purpose::GiveUp, &soon()).unwrap(), Released::Free), "{key}");
        refused(&*at.store, &mut a);
        true
    });
}

/// The renewal was sent twice, and then the lock was given an end.
#[test]
fn a_first_renewal_that_is_late_takes_back_no_end_that_was_given_since() {
    let at = needs_server!(behind());
    for mode in MODES {
        let mut a = attempt(&format!("{mode} endless"), mode);
        granted(&*at.store, &mut a);
        at.fault(at.kind.late);
        let forever = crate::support::calls::renewal(Lease::Forever);
        let late = sent(|| at.store.renew(&mut a, forever, &soon()));
        assert!(matches!(late, Renewed::Unknown(_)), "{late:?}");
        // The second of these repeats what was done already.
        for _ in 0..2 {
            let endless = sent(|| at.store.renew(&mut a, forever, &soon()));
            assert!(matches!(endless, Renewed::Until { until: End::Never, .. }), "{endless:?}");
        }
        let ends = Renewal { may_end_endless: true, ..renewal(LEASE) };
        let ended = sent(|| at.store.renew(&mut a, ends, &soon()));
        at.wait_for_late(&a.key);
        let stands = at.holders(&a.key)[0].until;
        assert!(stands != End::Never, "{mode}");
        assert!(matches!(ended, Renewed::Until { until, .. } if until == stands), "{mode}: {ended:?}");
    }
}

/// A copy of the acquire is still on its way when the lock is handed over to a client that believes the time to be
/// earlier, so that the new token is below the copy's.
#[test]
fn a_copy_of_what_was_handed_on_is_not_granted() {
    let at = needs_server!(behind());
    let clock = Clock::system();
    let mut behind_by_20_s = options(&at.room.0, &clock);
    behind_by_20_s.interceptors = vec![dateless()];
    let estimate = Arc::new(Estimate::default());
    let (date, now) = date_at(&clock);
    for over in [0, 1] {
        estimate.learn_corrected(date - 20, now, now, 0, over);
    }
    behind_by_20_s.estimate = Some(estimate);
    let other = open(behind_by_20_s, &clock);
    for mode in MODES {
        let mut a = attempt(&mode.to_string(), mode);
        // The acquire is granted, then a copy is under way, then it is found: one request each, apart from any that was
        // not sent.
        for network in [Network::CutAfter, Network::CutHeld] {
            at.fault(network);
            let answer = sent(|| {
                a.sends += 1;
                at.store.acquire(&mut a, &soon())
            });
            assert!(matches!(answer, Acquired::Unknown(_)), "{mode}, {network:?}: {answer:?}");
        }
        at.all_were_met();
        let (old, repeated) = acquired(&*at.store, &mut a);
        let writes = at.proxy.requests().into_iter().filter(|one| one.has(WRITE) && one.has(&a.ask.lock_id));
        assert_eq!((repeated, writes.count()), (true, 3), "{mode}");
        let mut b = attempt(&a.key, mode);
        b.ask.instead_of = Some((old.grant.clone(), old.token));
        let new = granted(&other, &mut b);
        assert_eq!(new.token, old.token + 1, "{mode}: it would be more, were the time not behind");
        assert!(matches!(other.release(&mut b, Purpose::Release, &soon()).unwrap(), Released::Done));
        assert_eq!(at.proxy.deliver(), 1, "{mode}");
        assert_eq!(at.holders(&a.key), [], "{mode}");
        granted(&*at.beside, &mut exclusive(&a.key));
    }
}

/// An end is a time of the service, so a copy that arrives after its lease also arrives after its end: what nobody
/// could give up is granted to nobody, and holds nobody up.
#[test]
fn what_could_not_be_given_up_within_its_lease_is_over_by_then() {
    let at = needs_server!(behind());
    let clock = Clock::system();
    let settings = Settings::Given(Box::new(config_at(&at.proxy.url())));
    let store = Arc::new(open(DynamodbOptions { settings, ..options(&at.room.0, &clock) }, &clock));
    let builder = || builder_over(store.clone(), clock.clone()).lease(Dynamodb::MIN_LEASE);
    let client = sent(|| builder().request_timeout(SHORT).connect());
    let other = patient(config(), &at.room.0).connect().unwrap();
    let of_key = |key: &str| format!("{{\"S\":\"{key}\"}}");
    let is_write = |one: &Request, key: &str| one.has(WRITE) && one.has(&of_key(key));
    // Twice the lease, plus half of it for the duration of the call; for the key that is held, time to acquire it
    // first.
    let late = |halves| Network::CutLate(Dynamodb::MIN_LEASE * halves / 2);
    for (key, fault) in [("done", Network::CutAfter), ("late", late(5)), ("held", late(12))] {
        at.all_were_met();
        // What was done for the last key may still be given up in the background.
        at.proxy.add(Rule::next(1, fault).on(WRITE).on(&of_key(key)));
        at.proxy.add(Rule::always(Network::CutBefore).on(WRITE));
        // The time of the call may be over before it is sent.
        wait_until("it is sent", || {
            client.request(key).wait(SHORT).lock().unwrap_err();
            at.proxy.requests().iter().any(|one| is_write(one, key))
        });
        let held = (key == "held").then(|| granted(&*at.beside, &mut exclusive(key)));
        at.proxy.wait_until("it arrives", |all| all.iter().any(|one| is_write(one, key) && one.answered > 0));
        if let Some(held) = held {
            assert_eq!(at.holders(key), [held]);
            continue;
        }
        let stood = at.holders(key).remove(0);
        let guard = other.request(key).wait(Duration::from_secs(20)).lock().unwrap();
        assert!(guard.fencing_token() > stood.token, "{key}");
        assert_eq!(at.record(key).given_up.len(), 0, "{key}: nobody could give it up");
    }
}
