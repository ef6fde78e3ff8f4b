//! A network that fails: each write is cut off before and after the server, unanswered, late, or there twice. What is
//! repeated finds itself, and what is given up leaves nothing.

use std::time::Instant;

use leasehold::internals::builder_over;
use leasehold::internals::lease::End;
use leasehold::internals::store::dynamodb::Estimate;
use leasehold::internals::store::{Consistency, Purpose, Released, Renewed};
use leasehold::internals::sys::deadline::Deadline;

use crate::dynamodb::sdk::config::SharedInterceptor;
use crate::dynamodb::time::Dateless;
use crate::dynamodb::*;
use crate::support::harness::within;
use crate::support::proxy::{Answer, Mode as Network, Rule};

const WRITE: &str = "UpdateItem";
/// Longer than a request takes, shorter than what is late.
const SHORT: Duration = Duration::from_millis(900);
const LATE: Duration = Duration::from_millis(2_500);

/// What can happen to one request, and whether it is written when the call returns.
fn networks() -> [(Network, bool); 8] {
    [
        (Network::CutBefore, false),
        (Network::ResetBefore, false),
        (Network::HoleToServer, false),
        (Network::CutAfter, true),
        (Network::ResetAfter, true),
        (Network::DropAnswer, true),
        (Network::Twice(Answer::First), true),
        (Network::Twice(Answer::Second), true),
    ]
}

fn is_answered(network: Network) -> bool {
    matches!(network, Network::Twice(_))
}

fn by() -> Deadline {
    Deadline::after(SHORT)
}

impl Behind {
    /// The next write suffers this.
    fn fault(&self, network: Network) {
        self.all_were_met();
        self.proxy.add(Rule::next(1, network).on(WRITE));
    }

    /// That the faults so far have each met a request.
    fn all_were_met(&self) {
        let unmet = self.proxy.clear();
        assert!(unmet.is_empty(), "no request met {unmet:?}");
    }

    /// Every write that is on its way has arrived.
    fn wait_for_late(&self, key: &str) {
        let of_key = format!("{{\"S\":\"{key}\"}}");
        self.proxy.wait_until("late requests are delivered", |all| {
            let mut writes = all.iter().filter(|one| one.has(WRITE) && one.has(&of_key)).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0)
        });
    }
}

fn modes() -> [Mode; 2] {
    [Mode::Exclusive, Mode::Shared]
}

/// Repeats an acquire until it is answered.
fn settled(store: &Dynamodb, attempt: &mut Attempt) -> Holder {
    let started = Instant::now();
    loop {
        attempt.sends += 1;
        match store.acquire(attempt, &by()) {
            Ok(Acquired::Granted { holder, .. }) => return holder,
            Ok(Acquired::Unknown(_)) => {}
            Err(error) if error.is_retryable() => {}
            other => panic!("{other:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn an_acquire_that_is_repeated_finds_itself() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for (network, is_written) in networks() {
            let key = format!("{mode} {network:?}");
            let mut a = attempt(&key, mode);
            at.fault(network);
            let first = at.store.acquire(&mut a, &by()).unwrap();
            assert_eq!(matches!(first, Acquired::Unknown(_)), !is_answered(network), "{key}: {first:?}");
            let stands = at.holders(&key);
            assert_eq!(stands.len(), usize::from(is_written), "{key}");
            let holder = settled(&at.store, &mut a);
            assert!(stands.is_empty() || stands == [holder.clone()], "{key}: the repeat changes nothing");
            assert_eq!(at.holders(&key), [holder]);
        }
    }
}

#[test]
fn joining_others_survives_it_too() {
    needs_server!();
    let at = Behind::new();
    for (network, _) in networks() {
        let key = format!("{network:?}");
        let other = granted(&at.beside, &mut shared(&key));
        let mut a = shared(&key);
        at.proxy.clear();
        // The second write is the one that joins.
        at.proxy.add(Rule::next(1, network).on(WRITE).after(1));
        let _ = at.store.acquire(&mut a, &by()).unwrap();
        let holder = settled(&at.store, &mut a);
        assert_eq!(at.holders(&key), [other, holder], "{key}");
    }
}

#[test]
fn a_renewal_that_is_repeated_extends() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for (network, is_written) in networks() {
            let key = format!("{mode} {network:?}");
            let mut a = attempt(&key, mode);
            let holder = granted(&at.store, &mut a);
            at.fault(network);
            let first = at.store.renew(&mut a, renewal(2 * LEASE), &by()).unwrap();
            assert_eq!(matches!(first, Renewed::Unknown(_)), !is_answered(network), "{key}: {first:?}");
            assert_eq!(at.holders(&key)[0].until > holder.until, is_written, "{key}");
            let second = at.store.renew(&mut a, renewal(2 * LEASE), &soon()).unwrap();
            assert!(matches!(second, Renewed::Until { until, .. } if until == at.holders(&key)[0].until), "{key}");
            assert_eq!(at.holders(&key)[0].token, holder.token);
        }
    }
}

#[test]
fn a_renewal_that_is_late_moves_no_end_back() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        let mut a = attempt(&mode.to_string(), mode);
        granted(&at.store, &mut a);
        at.fault(Network::CutLate(LATE));
        assert!(matches!(at.store.renew(&mut a, renewal(LEASE), &by()).unwrap(), Renewed::Unknown(_)));
        let newer = at.store.renew(&mut a, renewal(3 * LEASE), &soon()).unwrap();
        at.wait_for_late(&a.key);
        let end: End = at.holders(&a.key)[0].until;
        assert!(matches!(newer, Renewed::Until { until, .. } if until == end));
    }
}

#[test]
fn a_release_that_is_repeated_frees_and_frees_nobody_else() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for (network, is_written) in networks() {
            let key = format!("{mode} {network:?}");
            let mut a = attempt(&key, mode);
            granted(&at.store, &mut a);
            // So that a shared one is not the latest, and one request does it.
            let mut others = Vec::new();
            if mode == Mode::Shared {
                let mut other = shared(&key);
                granted(&at.beside, &mut other);
                at.beside.renew(&mut other, renewal(2 * LEASE), &soon()).unwrap();
                others.push(get(&at.beside, &key).record.standing(other.grant()).unwrap().1.clone());
            }
            at.fault(network);
            let first = at.store.release(&mut a, Purpose::Release, &by()).unwrap();
            assert_eq!(matches!(first, Released::Unknown(_)), !is_answered(network), "{key}: {first:?}");
            assert_eq!(at.holders(&key).len() == others.len(), is_written, "{key}");
            let second = at.store.release(&mut a, Purpose::Release, &soon()).unwrap();
            assert!(!matches!(second, Released::Unknown(_)), "{key}");
            assert_eq!(at.holders(&key), others, "{key}");
        }
    }
}

#[test]
fn a_release_that_is_late_frees_nobody_else() {
    needs_server!();
    let at = Behind::new();
    let mut a = exclusive("k");
    granted(&at.store, &mut a);
    at.fault(Network::CutLate(LATE));
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &by()).unwrap(), Released::Unknown(_)));
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
    let next = granted(&at.beside, &mut exclusive("k"));
    at.wait_for_late("k");
    assert_eq!(at.holders("k"), [next]);
}

#[test]
fn a_transfer_that_is_repeated_finds_itself() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for (network, is_written) in networks() {
            let key = format!("{mode} {network:?}");
            let old = granted(&at.store, &mut attempt(&key, mode));
            let mut b = attempt(&key, mode);
            b.ask.instead_of = Some((old.grant.clone(), old.token));
            at.fault(network);
            let first = at.store.acquire(&mut b, &by()).unwrap();
            assert_eq!(matches!(first, Acquired::Unknown(_)), !is_answered(network), "{key}: {first:?}");
            assert_eq!(at.holders(&key)[0] != old, is_written, "{key}: never a gap, never two");
            let new = settled(&at.store, &mut b);
            assert!(new.token > old.token);
            assert_eq!(at.holders(&key), [new], "{key}");
        }
    }
}

#[test]
fn what_is_given_up_leaves_nothing_however_late_it_comes() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for network in [Network::CutLate(LATE), Network::Late(LATE), Network::CutBefore, Network::CutAfter] {
            let key = format!("{mode} {network:?}");
            let mut a = attempt(&key, mode);
            at.fault(network);
            a.sends = 1;
            assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)), "{key}");
            assert!(!matches!(at.store.release(&mut a, Purpose::GiveUp, &soon()).unwrap(), Released::Unknown(_)));
            let mut next = exclusive(&key);
            granted(&at.beside, &mut next);
            at.beside.release(&mut next, Purpose::Release, &soon()).unwrap();
            if network != Network::CutBefore {
                at.wait_for_late(&key);
            }
            assert_eq!(at.holders(&key), [], "{key}");
            refused(&at.store, &mut a);
            granted(&at.beside, &mut exclusive(&key));
        }
    }
}

#[test]
fn a_transfer_that_is_given_up_leaves_nothing_however_late_it_comes() {
    needs_server!();
    let at = Behind::new();
    let mut a = exclusive("k");
    let old = granted(&at.store, &mut a);
    let mut b = exclusive("k");
    b.ask.instead_of = Some((old.grant, old.token));
    at.fault(Network::CutLate(LATE));
    assert!(matches!(at.store.acquire(&mut b, &by()).unwrap(), Acquired::Unknown(_)));
    at.store.release(&mut b, Purpose::GiveUp, &soon()).unwrap();
    at.wait_for_late("k");
    assert_eq!(at.holders("k").len(), 1, "the old one stands");
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
    assert_eq!(at.holders("k"), []);
}

#[test]
fn a_copy_of_what_was_sent_twice_and_released_is_not_granted() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        let mut a = attempt(&mode.to_string(), mode);
        at.fault(Network::CutLate(LATE));
        a.sends = 1;
        assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
        settled(&at.store, &mut a);
        at.store.release(&mut a, Purpose::Release, &soon()).unwrap();
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [], "{mode}");
    }
}

/// A copy of the acquire that is still on its way when the lock is handed on, to a client that takes the time to be
/// earlier: the new token is behind the copy's.
#[test]
fn a_copy_of_what_was_handed_on_is_not_granted() {
    needs_server!();
    let at = Behind::new();
    let clock = Clock::system();
    let mut behind_by_20_s = options(&at.table.0, &clock);
    behind_by_20_s.interceptors = vec![SharedInterceptor::new(Dateless)];
    let (estimate, now) = (Arc::new(Estimate::default()), clock.now());
    estimate.learn(jiff::Timestamp::now().as_second() - 20, now, now);
    behind_by_20_s.estimate = Some(estimate);
    let other = open(behind_by_20_s, &clock);
    for mode in modes() {
        let mut a = attempt(&mode.to_string(), mode);
        at.all_were_met();
        at.proxy.add(Rule::next(1, Network::CutAfter).on(WRITE));
        at.proxy.add(Rule::next(1, Network::CutLate(LATE)).on(WRITE));
        let old = settled(&at.store, &mut a);
        assert!(a.sends >= 3, "granted, a copy under way, found");
        let mut b = attempt(&a.key, mode);
        b.ask.instead_of = Some((old.grant.clone(), old.token));
        let new = granted(&other, &mut b);
        assert_eq!(new.token, old.token + 1, "{mode}: it would be more, were the time not behind");
        assert!(matches!(other.release(&mut b, Purpose::Release, &soon()).unwrap(), Released::Done));
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [], "{mode}");
        granted(&at.beside, &mut exclusive(&a.key));
    }
}

#[test]
fn giving_up_survives_it_too() {
    needs_server!();
    let at = Behind::new();
    for mode in modes() {
        for (network, is_written) in networks() {
            let key = format!("{mode} {network:?}");
            let mut a = attempt(&key, mode);
            at.fault(network);
            let first = at.store.release(&mut a, Purpose::GiveUp, &by()).unwrap();
            assert_eq!(matches!(first, Released::Unknown(_)), !is_answered(network), "{key}: {first:?}");
            assert_eq!(at.record(&key).given_up.len(), usize::from(is_written), "{key}");
            assert!(matches!(at.store.release(&mut a, Purpose::GiveUp, &soon()).unwrap(), Released::Free), "{key}");
            refused(&at.store, &mut a);
        }
    }
}

#[test]
fn a_dead_network_holds_up_no_call_beyond_its_deadline() {
    needs_server!();
    let at = Behind::new();
    let mut a = exclusive("k");
    granted(&at.store, &mut a);
    at.proxy.add(Rule::always(Network::HoleToServer));
    let answer = within("the renewal", SHORT, || at.store.renew(&mut a, renewal(LEASE), &by())).unwrap();
    assert!(matches!(answer, Renewed::Unknown(_)));
    let read = || at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by());
    let error = within("the look", SHORT, read).unwrap_err();
    assert!(error.is_retryable() && error.kind() == leasehold::ErrorKind::Store, "{error:?}");
    // The connections that hang are not used again.
    at.proxy.clear();
    assert!(matches!(at.store.renew(&mut a, renewal(2 * LEASE), &soon()).unwrap(), Renewed::Until { .. }));
}

/// An end is a time of the service's, so a copy that arrives after its lease arrives after its end, too: what nobody
/// could give up is granted to nobody, and holds up nobody.
#[test]
fn what_could_not_be_given_up_within_its_lease_is_over_by_then() {
    needs_server!();
    let at = Behind::new();
    let clock = Clock::system();
    let settings = Settings::Given(Box::new(config_at(&at.proxy.url())));
    let store = Arc::new(open(DynamodbOptions { settings, ..options(&at.table.0, &clock) }, &clock));
    let client = builder_over(store, clock).lease(Dynamodb::MIN_LEASE).request_timeout(SHORT).connect().unwrap();
    let other = leasehold::dynamodb::builder(config(), &at.table.0).connect().unwrap();
    let arrived = |key: &str| {
        let of_key = format!("{{\"S\":\"{key}\"}}");
        at.proxy.wait_until("it arrives", |all| {
            all.iter().any(|one| one.has(WRITE) && one.has(&of_key) && one.answered > 0)
        });
    };
    // Twice the lease, and half of it for how long the call takes.
    let late = Network::CutLate(Dynamodb::MIN_LEASE * 5 / 2);
    for (key, fault) in [("done", Network::CutAfter), ("late", late), ("held", late)] {
        at.fault(fault);
        at.proxy.add(Rule::always(Network::CutBefore).on(WRITE));
        client.request(key).wait(SHORT).lock().unwrap_err();
        let held = (key == "held").then(|| granted(&at.beside, &mut exclusive(key)));
        arrived(key);
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
