//! A network that fails: each write is cut off before and after the server, unanswered, late, or there twice. What is
//! repeated finds itself, by the driver or by us, and what is given up leaves nothing.

use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Consistency, Purpose, Released, Renewed};
use leasehold::internals::sys::deadline::Deadline;

use crate::mongodb::*;
use crate::support::contract::{LEASE, granted, refused, renewal};
use crate::support::harness::within;
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::{Answer, Mode as Network, Proxy, Rule};

const WRITE: &str = "findAndModify";
/// Longer than a request and the driver's own repeat take.
const SHORT: Duration = Duration::from_millis(1_500);
const LATE: Duration = Duration::from_secs(2);

/// A store behind a faulty network, and one beside it.
struct Behind {
    proxy: Proxy,
    store: Mongodb,
    beside: Mongodb,
    _rows: Rows,
}

fn behind() -> Behind {
    let rows = Rows::fresh();
    let proxy = Proxy::mongodb(&host(&crate::support::servers::mongod().unwrap()));
    let uri = format!("mongodb://{}/?directConnection=true&serverMonitoringMode=poll", proxy.addr());
    let store = Mongodb::open(rows.options_at(&uri), &soon()).unwrap();
    store.schema(leasehold::internals::store::Schema::Check, &soon()).unwrap();
    let beside = rows.open();
    Behind { proxy, store, beside, _rows: rows }
}

/// What can happen to a request, how often, whether it is answered in the end, and whether it is written then.
struct Case {
    network: Network,
    times: u64,
    is_answered: bool,
    is_written: bool,
}

fn cases() -> Vec<Case> {
    let case = |network, times, is_answered, is_written| Case { network, times, is_answered, is_written };
    vec![
        // The driver repeats it once, with its number.
        case(Network::CutBefore, 1, true, true),
        case(Network::CutAfter, 1, true, true),
        case(Network::ResetBefore, 1, true, true),
        case(Network::ResetAfter, 1, true, true),
        case(Network::CutBefore, 2, false, false),
        case(Network::ResetBefore, 2, false, false),
        case(Network::CutAfter, 2, false, true),
        case(Network::ResetAfter, 2, false, true),
        // Nothing tells the driver.
        case(Network::HoleToServer, 1, false, false),
        case(Network::DropAnswer, 1, false, true),
        // With one number it is done once.
        case(Network::Twice(Answer::First), 1, true, true),
        case(Network::Twice(Answer::Second), 1, true, true),
    ]
}

impl Case {
    fn key(&self, mode: Mode) -> String {
        format!("{mode} {:?} {}", self.network, self.times)
    }

    /// Those that are answered may take as long as the driver likes.
    fn by(&self) -> Deadline {
        if self.is_answered { soon() } else { by() }
    }
}

fn by() -> Deadline {
    Deadline::after(SHORT)
}

impl Behind {
    /// The next writes suffer this.
    fn fault(&self, network: Network, times: u64) {
        self.proxy.clear();
        self.proxy.add(Rule::next(times, network).on(WRITE));
    }

    fn holders(&self, key: &str) -> Vec<Holder> {
        holders(&self.beside, key)
    }

    /// Every write that is on its way has arrived.
    fn wait_for_late(&self, key: &str) {
        self.proxy.wait_until("late requests are delivered", |all| {
            all.iter().filter(|one| one.has(WRITE) && one.has(key)).all(|one| one.answered > 0)
        });
    }

    /// Repeats an acquire until it is answered.
    fn settled(&self, attempt: &mut Attempt) -> Holder {
        let started = Instant::now();
        loop {
            attempt.sends += 1;
            match self.store.acquire(attempt, &by()) {
                Ok(Acquired::Granted { holder, .. }) => return holder,
                Ok(Acquired::Unknown(_)) => {}
                Err(error) if error.is_retryable() => {}
                other => panic!("{other:?}"),
            }
            assert!(started.elapsed() < Duration::from_secs(20));
        }
    }
}

fn modes() -> [Mode; 2] {
    [Mode::Exclusive, Mode::Shared]
}

#[test]
fn an_acquire_that_is_repeated_finds_itself() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        for case in cases() {
            let key = case.key(mode);
            let mut a = attempt(&at.store, &key, mode);
            at.fault(case.network, case.times);
            let first = at.store.acquire(&mut a, &case.by()).unwrap();
            assert_eq!(matches!(first, Acquired::Unknown(_)), !case.is_answered, "{key}: {first:?}");
            if let Acquired::Granted { repeated, .. } = first {
                assert!(!repeated, "{key}: the driver's repeat is the same request");
            }
            let stands = at.holders(&key);
            assert_eq!(stands.len(), usize::from(case.is_written), "{key}");
            let holder = at.settled(&mut a);
            assert!(stands.is_empty() || stands == [holder.clone()], "{key}: the repeat changes nothing");
            assert_eq!(at.holders(&key), [holder]);
        }
    }
}

#[test]
fn a_renewal_that_is_repeated_extends() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        for case in cases() {
            let key = case.key(mode);
            let mut a = attempt(&at.store, &key, mode);
            let holder = at.settled(&mut a);
            at.fault(case.network, case.times);
            let first = at.store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &case.by()).unwrap();
            assert_eq!(matches!(first, Renewed::Unknown(_)), !case.is_answered, "{key}: {first:?}");
            assert_eq!(at.holders(&key)[0].until > holder.until, case.is_written, "{key}");
            let second = at.store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()).unwrap();
            assert!(matches!(second, Renewed::Until { until, .. } if until == at.holders(&key)[0].until), "{key}");
            assert_eq!(at.holders(&key)[0].token, holder.token);
        }
    }
}

#[test]
fn a_renewal_that_is_late_moves_no_end_back() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        let mut a = attempt(&at.store, &format!("{mode} late"), mode);
        granted(&at.store, &mut a);
        at.fault(Network::Late(LATE), 1);
        assert!(matches!(at.store.renew(&mut a, renewal(Lease::For(LEASE)), &by()).unwrap(), Renewed::Unknown(_)));
        let newer = at.store.renew(&mut a, renewal(Lease::For(3 * LEASE)), &soon()).unwrap();
        at.wait_for_late(&a.key);
        let end = at.holders(&a.key)[0].until;
        assert!(matches!(newer, Renewed::Until { until, .. } if until == end));
    }
}

#[test]
fn a_release_that_is_repeated_frees_and_frees_nobody_else() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        for purpose in [Purpose::Release, Purpose::GiveUp] {
            for case in cases() {
                let key = format!("{} {purpose:?}", case.key(mode));
                let mut a = attempt(&at.store, &key, mode);
                at.settled(&mut a);
                let others: Vec<Holder> = match mode {
                    Mode::Exclusive => Vec::new(),
                    Mode::Shared => vec![granted(&at.beside, &mut shared(&at.beside, &key))],
                };
                at.fault(case.network, case.times);
                let first = at.store.release(&mut a, purpose, &case.by()).unwrap();
                assert_eq!(matches!(first, Released::Unknown(_)), !case.is_answered, "{key}: {first:?}");
                if case.is_answered {
                    assert!(matches!(first, Released::Done), "{key}: the driver's repeat has the first answer");
                }
                assert_eq!(at.holders(&key).len() == others.len(), case.is_written, "{key}");
                let second = at.store.release(&mut a, purpose, &soon()).unwrap();
                assert!(!matches!(second, Released::Unknown(_)), "{key}");
                assert_eq!(at.holders(&key), others, "{key}");
            }
        }
    }
}

#[test]
fn a_release_that_is_late_frees_nobody_else() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "late release");
    granted(&at.store, &mut a);
    at.fault(Network::Late(LATE), 1);
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &by()).unwrap(), Released::Unknown(_)));
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
    let next = granted(&at.beside, &mut exclusive(&at.beside, "late release"));
    at.wait_for_late("late release");
    assert_eq!(at.holders("late release"), [next]);
}

#[test]
fn a_transfer_that_is_repeated_finds_itself() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        for case in cases() {
            let key = case.key(mode);
            let old = at.settled(&mut attempt(&at.store, &key, mode));
            let mut b = instead_of(&at.store, &key, mode, &old);
            at.fault(case.network, case.times);
            let first = at.store.acquire(&mut b, &case.by()).unwrap();
            assert_eq!(matches!(first, Acquired::Unknown(_)), !case.is_answered, "{key}: {first:?}");
            assert_eq!(at.holders(&key)[0] != old, case.is_written, "{key}: never a gap, never two");
            let new = at.settled(&mut b);
            assert!(new.token > old.token);
            assert_eq!(at.holders(&key), [new], "{key}");
        }
    }
}

#[test]
fn what_is_given_up_leaves_nothing_however_late_it_comes() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        for is_held in [false, true] {
            let key = format!("given up {mode} {is_held}");
            let mut other = exclusive(&at.beside, &key);
            if is_held {
                granted(&at.beside, &mut other);
            }
            let mut a = attempt(&at.store, &key, mode);
            at.fault(Network::Late(LATE), 1);
            a.sends = 1;
            assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)), "{key}");
            // The release goes by in its session, also where there is no document.
            let released = at.store.release(&mut a, Purpose::GiveUp, &soon()).unwrap();
            assert_eq!(matches!(released, Released::HeldByOther(_)), is_held, "{key}: {released:?}");
            if is_held {
                assert!(matches!(at.beside.release(&mut other, Purpose::Release, &soon()), Ok(Released::Done)));
            }
            at.wait_for_late(&key);
            assert_eq!(at.holders(&key), [], "{key}");
            granted(&at.beside, &mut exclusive(&at.beside, &key));
        }
    }
}

/// The same without its session: what would happen, were there none. Else the test above would prove nothing.
#[test]
fn what_is_given_up_in_another_session_comes_back() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "negative control");
    // Late enough that a busy machine gives it up before.
    at.fault(Network::Late(3 * LATE), 1);
    assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
    let released = at.store.release(&mut a.without_native(), Purpose::GiveUp, &soon()).unwrap();
    assert!(matches!(released, Released::Free), "{released:?}");
    at.wait_for_late("negative control");
    assert_eq!(at.holders("negative control").len(), 1);
}

#[test]
fn a_transfer_that_is_given_up_leaves_nothing_however_late_it_comes() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "passed on");
    let old = granted(&at.store, &mut a);
    let mut b = instead_of(&at.store, "passed on", Mode::Exclusive, &old);
    at.fault(Network::Late(LATE), 1);
    assert!(matches!(at.store.acquire(&mut b, &by()).unwrap(), Acquired::Unknown(_)));
    at.store.release(&mut b, Purpose::GiveUp, &soon()).unwrap();
    at.wait_for_late("passed on");
    assert_eq!(at.holders("passed on"), [old], "the old one stands");
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
    assert_eq!(at.holders("passed on"), []);
}

#[test]
fn a_copy_of_what_was_granted_and_released_is_not_granted() {
    needs_server!();
    let at = behind();
    for mode in modes() {
        // By the one that has the session, and by one that has not.
        for has_session in [true, false] {
            let mut a = attempt(&at.store, &format!("copy {mode} {has_session}"), mode);
            at.fault(Network::Late(LATE), 1);
            a.sends = 1;
            assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
            at.settled(&mut a);
            let mut releasing = if has_session { a } else { a.without_native() };
            assert!(matches!(at.store.release(&mut releasing, Purpose::Release, &soon()).unwrap(), Released::Done));
            at.wait_for_late(&releasing.key);
            assert_eq!(at.holders(&releasing.key), [], "{mode}");
        }
    }
}

#[test]
fn a_dead_network_holds_up_no_call_beyond_its_deadline() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "k");
    granted(&at.store, &mut a);
    at.proxy.add(Rule::always(Network::HoleToServer));
    let by = || Deadline::after(SHORT);
    let renew = || at.store.renew(&mut a, renewal(Lease::For(LEASE)), &by());
    assert!(matches!(within("the renewal", SHORT, renew).unwrap(), Renewed::Unknown(_)));
    let read = || at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by());
    let error = within("the look", SHORT, read).unwrap_err();
    assert!(error.is_retryable() && error.kind() == leasehold::ErrorKind::Store, "{error:?}");
    // The connections that hang are not used again.
    at.proxy.clear();
    assert!(matches!(at.store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()).unwrap(), Renewed::Until { .. }));
    refused(&at.beside, &mut exclusive(&at.beside, "k"));
}
