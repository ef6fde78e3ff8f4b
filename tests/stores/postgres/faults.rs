//! A network that fails: each write is cut off before and after the server, unanswered, late, or there twice. What is
//! repeated finds itself, and what is given up leaves nothing.

use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Consistency, Purpose, Released, Renewed};
use leasehold::internals::sys::deadline::Deadline;

use crate::postgres::*;
use crate::support::contract::{LEASE, granted, refused, renewal};
use crate::support::postgres::Rows;
use crate::support::proxy::{Answer, Mode as Network, Proxy, Rule};
use crate::support::servers::{postgres, postgres_server};

/// What every statement that writes has, and none that reads.
const WRITE: &str = "RETURNING";
const SHORT: Duration = Duration::from_millis(1_500);
const LATE: Duration = Duration::from_secs(2);

/// A store behind a faulty network, and one beside it.
struct Behind {
    proxy: Proxy,
    store: Postgres,
    beside: Postgres,
    rows: Rows,
}

fn behind() -> Behind {
    let rows = Rows::fresh();
    let proxy = Proxy::postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
    let store = Postgres::open(rows.options_at(&proxy.addr().to_string()), &soon()).unwrap();
    let beside = rows.open();
    Behind { proxy, store, beside, rows }
}

/// What can happen to a request, whether it is answered, and whether it is written then.
struct Case {
    network: Network,
    is_answered: bool,
    is_written: bool,
}

fn cases() -> Vec<Case> {
    let case = |network, is_answered, is_written| Case { network, is_answered, is_written };
    vec![
        case(Network::CutBefore, false, false),
        case(Network::CutAfter, false, true),
        case(Network::ResetBefore, false, false),
        case(Network::ResetAfter, false, true),
        case(Network::HoleToServer, false, false),
        case(Network::DropAnswer, false, true),
        case(Network::Twice(Answer::First), true, true),
        // The second one finds what the first one did.
        case(Network::Twice(Answer::Second), true, true),
    ]
}

impl Case {
    fn key(&self, mode: Mode) -> String {
        format!("{mode} {:?}", self.network)
    }

    fn by(&self) -> Deadline {
        if self.is_answered { soon() } else { by() }
    }
}

fn by() -> Deadline {
    Deadline::after(SHORT)
}

impl Behind {
    /// The next write suffers this.
    fn fault(&self, network: Network) {
        self.proxy.clear();
        self.proxy.add(Rule::next(1, network).on(WRITE));
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
            at.fault(case.network);
            let first = at.store.acquire(&mut a, &case.by()).unwrap();
            assert_eq!(matches!(first, Acquired::Unknown(_)), !case.is_answered, "{key}: {first:?}");
            if let Acquired::Granted { repeated, .. } = first {
                assert_eq!(repeated, case.network == Network::Twice(Answer::Second), "{key}");
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
            at.fault(case.network);
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
        at.fault(Network::Late(LATE));
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
                at.fault(case.network);
                let first = at.store.release(&mut a, purpose, &case.by()).unwrap();
                assert_eq!(matches!(first, Released::Unknown(_)), !case.is_answered, "{key}: {first:?}");
                if case.network == Network::Twice(Answer::First) {
                    assert!(matches!(first, Released::Done), "{key}: {first:?}");
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
    at.fault(Network::Late(LATE));
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
            at.fault(case.network);
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
            // Who reads first sends nothing then.
            if is_held && mode == Mode::Shared {
                continue;
            }
            let key = format!("given up {mode} {is_held}");
            let mut other = exclusive(&at.beside, &key);
            if is_held {
                granted(&at.beside, &mut other);
            }
            let mut a = attempt(&at.store, &key, mode);
            at.fault(Network::Late(LATE));
            a.sends = 1;
            assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)), "{key}");
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

/// The same where nobody remembers who gave up: what would happen then. Else the test above would prove nothing.
#[test]
fn what_is_forgotten_comes_back() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "negative control");
    at.fault(Network::Late(LATE));
    assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
    let released = at.store.release(&mut a, Purpose::GiveUp, &soon()).unwrap();
    assert!(matches!(released, Released::Free), "{released:?}");
    at.rows.sql("UPDATE {T} SET given_up = NULL");
    at.wait_for_late("negative control");
    assert_eq!(at.holders("negative control").len(), 1);
}

/// The network was slow, or the server's clock was set: what the statement does not do is done by the answer's time.
#[test]
fn what_comes_too_late_and_is_waited_for_is_granted_all_the_same() {
    needs_server!();
    let at = behind();
    at.fault(Network::Delay(Duration::from_millis(10_500)));
    granted(&at.store, &mut exclusive(&at.store, "missing"));
}

/// A copy that comes ten seconds late does nothing, whoever remembers it: here the clock tells so at once.
#[test]
fn a_copy_that_is_too_late_by_the_servers_clock_does_nothing() {
    needs_server!();
    let at = behind();
    let row = "INSERT INTO {T} (key, kind, fence, version, format) VALUES ('k', 'lock', 1, 1, '1.0')";
    at.rows.sql(row);
    let mut a = exclusive(&at.store, "k");
    at.fault(Network::Late(Duration::from_millis(10_500)));
    assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
    at.wait_for_late("k");
    assert_eq!(at.holders("k"), []);
    assert_eq!(at.rows.one("SELECT version FROM {T}").as_deref(), Some("1"), "it wrote something");
}

#[test]
fn a_transfer_that_is_given_up_leaves_nothing_however_late_it_comes() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "passed on");
    let old = granted(&at.store, &mut a);
    let mut b = instead_of(&at.store, "passed on", Mode::Exclusive, &old);
    at.fault(Network::Late(LATE));
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
        let mut a = attempt(&at.store, &format!("copy {mode}"), mode);
        at.fault(Network::Late(LATE));
        a.sends = 1;
        assert!(matches!(at.store.acquire(&mut a, &by()).unwrap(), Acquired::Unknown(_)));
        at.settled(&mut a);
        assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [], "{mode}");
    }
}

#[test]
fn a_dead_network_holds_up_no_call_beyond_its_deadline() {
    needs_server!();
    let at = behind();
    let mut a = exclusive(&at.store, "k");
    granted(&at.store, &mut a);
    at.proxy.add(Rule::always(Network::HoleToServer));
    let started = Instant::now();
    let short = || Deadline::after(Duration::from_millis(250));
    assert!(matches!(at.store.renew(&mut a, renewal(Lease::For(LEASE)), &short()).unwrap(), Renewed::Unknown(_)));
    let error = at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &short()).unwrap_err();
    assert!(error.is_retryable() && error.kind() == leasehold::ErrorKind::Store, "{error:?}");
    assert!(started.elapsed() < Duration::from_millis(1_500), "{:?}", started.elapsed());
    // The connections that hang are not used again.
    at.proxy.clear();
    assert!(matches!(at.store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()).unwrap(), Renewed::Until { .. }));
    refused(&at.beside, &mut exclusive(&at.beside, "k"));
}
