//! A network that fails: each write is cut off before and after the server, gets no answer, is late, or arrives twice.
//! A repeat by the driver or by us finds the first try, and what is given up leaves nothing. These are the steps that
//! are the same for each store whose requests a proxy can tell apart. A store's `faults` has its network, and what is
//! its own.
#![allow(dead_code)] // Each store uses only a part of it.

use std::time::{Duration, Instant};

use leasehold::internals::lease::{Holder, Lease, LockRecord, Mode};
use leasehold::internals::store::{Acquired, Attempt, Backend, Consistency, Purpose, Released, Renewed, Which};
use leasehold::internals::sys::deadline::Deadline;

use crate::support::contract::{LEASE, granted, refused, release, renewal};
use crate::support::direct::{attempt, exclusive, get, instead_of, shared};
pub use crate::support::harness::sent;
use crate::support::harness::{PATIENCE, within};
use crate::support::proxy::{Answer, Mode as Network, Proxy, Rule};
use crate::support::stores::soon;
use crate::support::wait::wait_until;

mod late;
pub use late::*;

/// How long a driver looks for a server before it gives up its own repeat.
const DRIVERS_LOOK: Duration = Duration::from_secs(3);
/// Longer than a request and a driver's own repeat take, and shorter than what is late.
pub const SHORT: Duration = Duration::from_millis(1_500);
pub const LATE: Duration = Duration::from_millis(2_500);
pub const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

/// A store behind a faulty network, and one next to it that meets no fault.
pub struct Behind<Room> {
    pub proxy: Proxy,
    pub store: Box<dyn Backend>,
    pub beside: Box<dyn Backend>,
    pub kind: Kind,
    /// What must live as long as the test.
    pub room: Room,
}

/// What differs from store to store.
pub struct Kind {
    /// The text that every request that writes contains, and no request that reads.
    pub write: &'static str,
    /// The driver repeats once what was cut off, under a number that makes the server do it only once.
    pub driver_repeats: bool,
    /// Whether the store remembers given-up grants.
    pub remembers_who_gave_up: bool,
    /// The ways in which one write can end a hold.
    pub ends: &'static [Purpose],
    /// How the next write can be late and get no answer.
    pub late: Network,
    /// What happens to an acquire that is given up, in which modes, and to its key meanwhile.
    pub given_up: &'static [(Network, &'static [Mode], Meanwhile)],
}

/// What happens to a key while an acquire is on its way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    Nothing,
    /// Another holder has the key from before, and releases it before the late acquire arrives.
    Held,
    /// Another client is granted the key after the acquire was given up, and releases it.
    Left,
}

/// What can happen to a request, how often, whether it is answered in the end, and whether it is written then.
#[derive(Clone, Copy)]
pub struct Case {
    pub network: Network,
    times: u64,
    pub is_answered: bool,
    pub is_written: bool,
    /// The answer belongs to a copy, which found what the first request did.
    is_found: bool,
}

impl Case {
    fn key(&self, mode: Mode, nth: u32) -> String {
        format!("{mode} {:?} {} {nth}", self.network, self.times)
    }

    /// Whether the driver did not repeat what was cut off, because it found no server in time: the server stalled, or
    /// this host.
    fn was_left(&self, began: Instant, is_unknown: bool) -> bool {
        let is_cut = !matches!(self.network, Network::Twice(_));
        is_unknown && is_cut && self.is_answered && began.elapsed() >= DRIVERS_LOOK
    }

    /// Asserts that this is so exactly if the request is written. Without an answer, that may take a while.
    pub fn is_seen(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        if self.is_written {
            wait_until(what, is_so);
        } else {
            assert!(!is_so(), "{what}: it was written");
        }
    }

    pub fn by(&self) -> Deadline {
        by_in(self.network)
    }
}

impl Kind {
    fn cases(&self) -> Vec<Case> {
        let case = |network, times, is_answered, is_written| {
            let is_found = network == Network::Twice(Answer::Second) && !self.driver_repeats;
            Case { network, times, is_answered, is_written, is_found }
        };
        let mut cases = vec![
            case(Network::HoleToServer, 1, false, false),
            case(Network::DropAnswer, 1, false, true),
            case(Network::Twice(Answer::First), 1, true, true),
            case(Network::Twice(Answer::Second), 1, true, true),
        ];
        for (network, is_written) in [
            (Network::CutBefore, false),
            (Network::ResetBefore, false),
            (Network::CutAfter, true),
            (Network::ResetAfter, true),
        ] {
            if self.driver_repeats {
                cases.push(case(network, 1, true, true));
            }
            cases.push(case(network, 1 + u64::from(self.driver_repeats), false, is_written));
        }
        cases
    }
}

pub fn by() -> Deadline {
    Deadline::after(SHORT)
}

/// Asserts that each of the faults so far has met a request, and ends them.
#[track_caller]
pub fn all_were_met(proxy: &Proxy) {
    let unmet = proxy.clear();
    assert!(unmet.is_empty(), "no request met {unmet:?}");
}

/// The deadline of a call whose request meets this. If the time was over before the request has left this host, which
/// may stall for seconds, the fault would meet the next request.
fn by_in(network: Network) -> Deadline {
    match network {
        // The request arrives soon after the deadline.
        Network::Late(_) => by(),
        Network::HoleToServer | Network::DropAnswer => Deadline::after(2 * LATE),
        // The caller learns the outcome.
        _ => soon(),
    }
}

impl<Room> Behind<Room> {
    /// The next writes meet this fault.
    fn faults(&self, times: u64, network: Network) {
        self.all_were_met();
        self.proxy.add(Rule::next(times, network).on(self.kind.write));
    }

    /// The next write meets this fault.
    pub fn fault(&self, network: Network) {
        self.faults(1, network);
    }

    pub fn all_were_met(&self) {
        all_were_met(&self.proxy);
    }

    pub fn record(&self, key: &str) -> LockRecord {
        get(&*self.beside, key).record
    }

    pub fn holders(&self, key: &str) -> Vec<Holder> {
        self.record(key).holders().map(|(_, holder)| holder.clone()).collect()
    }

    /// Waits until every write that is on its way has arrived.
    pub fn wait_for_late(&self, key: &str) {
        self.proxy.wait_until("late requests are delivered", |all| {
            let mut writes = all.iter().filter(|one| one.has(self.kind.write) && one.has(key)).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0)
        });
    }

    /// An acquire that gets no answer.
    #[track_caller]
    pub fn unanswered(&self, attempt: &mut Attempt) {
        let answer = sent(|| self.store.acquire(attempt, &by()));
        assert!(matches!(answer, Acquired::Unknown(_)), "{}: {answer:?}", attempt.key);
    }

    /// Repeats an acquire until it is answered.
    pub fn settled(&self, attempt: &mut Attempt) -> Holder {
        let started = Instant::now();
        loop {
            let answer = sent(|| {
                attempt.sends += 1;
                self.store.acquire(attempt, &by())
            });
            match answer {
                Acquired::Granted { holder, .. } => return holder,
                Acquired::Unknown(_) if started.elapsed() < PATIENCE => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Runs `step` for each mode and each case, with a key of its own; again if it returns that the driver left the
    /// case.
    pub fn each(&self, step: impl Fn(&str, Mode, Case) -> bool) {
        for mode in MODES {
            for case in self.kind.cases() {
                let met = (0..5).any(|nth| step(&case.key(mode, nth), mode, case));
                assert!(met, "no server in time, each time: {}", case.key(mode, 0));
            }
        }
    }
}

/// Makes a test of each step, for a store behind its network.
macro_rules! steps {
    ($behind:ident: $($step:ident),+ $(,)?) => {$(
        #[test]
        fn $step() {
            needs_server!();
            crate::network::$step(&$behind());
        }
    )+};
    ($behind:ident) => {
        crate::network::steps! {
            $behind:
            an_acquire_that_is_repeated_finds_itself,
            a_renewal_that_is_repeated_extends,
            a_renewal_that_is_late_moves_no_end_back,
            a_release_that_is_repeated_frees_and_frees_nobody_else,
            a_release_that_is_late_frees_nobody_else,
            a_transfer_that_is_repeated_finds_itself,
            what_is_given_up_leaves_nothing_however_late_it_comes,
            a_transfer_that_is_given_up_leaves_nothing_however_late_it_comes,
            a_late_copy_replaces_no_later_grant_of_the_same_owner,
            a_copy_of_what_was_granted_and_released_is_not_granted,
            a_dead_network_holds_up_no_call_beyond_its_deadline,
        }
    };
}
pub(crate) use steps;

pub fn an_acquire_that_is_repeated_finds_itself<R>(at: &Behind<R>) {
    at.each(|key, mode, case| {
        let mut a = attempt(&*at.store, key, mode);
        at.faults(case.times, case.network);
        let began = Instant::now();
        let first = sent(|| at.store.acquire(&mut a, &case.by()));
        if case.was_left(began, matches!(first, Acquired::Unknown(_))) {
            return false;
        }
        assert_eq!(matches!(first, Acquired::Unknown(_)), !case.is_answered, "{key}: {first:?}");
        if let Acquired::Granted { repeated, .. } = first {
            assert_eq!(repeated, case.is_found, "{key}");
        }
        case.is_seen(key, || at.holders(key).len() == 1);
        let stands = at.holders(key);
        let holder = at.settled(&mut a);
        assert!(stands.is_empty() || stands == [holder.clone()], "{key}: the repeat changes nothing");
        assert_eq!(at.holders(key), [holder], "{key}");
        true
    });
}

pub fn a_renewal_that_is_repeated_extends<R>(at: &Behind<R>) {
    at.each(|key, mode, case| {
        let mut a = attempt(&*at.store, key, mode);
        let holder = at.settled(&mut a);
        at.faults(case.times, case.network);
        let (longer, began) = (renewal(Lease::For(2 * LEASE)), Instant::now());
        let first = sent(|| at.store.renew(&mut a, longer, &case.by()));
        if case.was_left(began, matches!(first, Renewed::Unknown(_))) {
            return false;
        }
        assert_eq!(matches!(first, Renewed::Unknown(_)), !case.is_answered, "{key}: {first:?}");
        case.is_seen(key, || at.holders(key)[0].until > holder.until);
        let second = sent(|| at.store.renew(&mut a, longer, &soon()));
        let stands = &at.holders(key)[0];
        assert!(matches!(second, Renewed::Until { until, .. } if until == stands.until), "{key}: {second:?}");
        assert!(stands.token == holder.token && stands.until > holder.until, "{key}");
        true
    });
}

pub fn a_renewal_that_is_late_moves_no_end_back<R>(at: &Behind<R>) {
    for mode in MODES {
        let mut a = attempt(&*at.store, &format!("{mode} late"), mode);
        granted(&*at.store, &mut a);
        at.fault(at.kind.late);
        let late = sent(|| at.store.renew(&mut a, renewal(Lease::For(LEASE)), &by_in(at.kind.late)));
        assert!(matches!(late, Renewed::Unknown(_)), "{late:?}");
        let newer = sent(|| at.store.renew(&mut a, renewal(Lease::For(3 * LEASE)), &soon()));
        at.wait_for_late(&a.key);
        let end = at.holders(&a.key)[0].until;
        assert!(matches!(newer, Renewed::Until { until, .. } if until == end), "{newer:?}");
    }
}

pub fn a_release_that_is_repeated_frees_and_frees_nobody_else<R>(at: &Behind<R>) {
    for purpose in at.kind.ends {
        let purpose = *purpose;
        at.each(|key, mode, case| {
            let key = format!("{key} {purpose:?}");
            let mut a = attempt(&*at.store, &key, mode);
            at.settled(&mut a);
            let mut others = Vec::new();
            if mode == Mode::Shared {
                let mut other = shared(&*at.beside, &key);
                granted(&*at.beside, &mut other);
                // On a store that also notes the latest end, that is now this holder's, so one request does the
                // release.
                sent(|| at.beside.renew(&mut other, renewal(Lease::For(2 * LEASE)), &soon()));
                others.push(at.record(&key).standing(other.grant()).unwrap().1.clone());
            }
            at.faults(case.times, case.network);
            let began = Instant::now();
            let first = sent(|| at.store.release(&mut a, purpose, &case.by()));
            if case.was_left(began, matches!(first, Released::Unknown(_))) {
                return false;
            }
            assert_eq!(matches!(first, Released::Unknown(_)), !case.is_answered, "{key}: {first:?}");
            if case.is_answered && !case.is_found {
                assert!(matches!(first, Released::Done), "{key}: {first:?}");
            }
            case.is_seen(&key, || at.holders(&key).len() == others.len());
            let second = sent(|| at.store.release(&mut a, purpose, &soon()));
            assert!(!matches!(second, Released::Unknown(_)), "{key}");
            assert_eq!(at.holders(&key), others, "{key}");
            true
        });
    }
}

pub fn a_transfer_that_is_repeated_finds_itself<R>(at: &Behind<R>) {
    at.each(|key, mode, case| {
        let old = at.settled(&mut attempt(&*at.store, key, mode));
        let mut b = instead_of(&*at.store, key, mode, &old);
        at.faults(case.times, case.network);
        let began = Instant::now();
        let first = sent(|| at.store.acquire(&mut b, &case.by()));
        if case.was_left(began, matches!(first, Acquired::Unknown(_))) {
            return false;
        }
        assert_eq!(matches!(first, Acquired::Unknown(_)), !case.is_answered, "{key}: {first:?}");
        // There is never a gap between the two holders.
        case.is_seen(key, || at.holders(key)[0] != old);
        let new = at.settled(&mut b);
        assert!(new.token > old.token, "{key}");
        assert_eq!(at.holders(key), [new], "{key}");
        true
    });
}

pub fn what_is_given_up_leaves_nothing_however_late_it_comes<R>(at: &Behind<R>) {
    for (network, modes, meanwhile) in at.kind.given_up {
        for mode in *modes {
            let key = format!("given up {mode} {network:?} {meanwhile:?}");
            let mut other = exclusive(&*at.beside, &key);
            if *meanwhile == Meanwhile::Held {
                granted(&*at.beside, &mut other);
            }
            let mut a = attempt(&*at.store, &key, *mode);
            at.fault(*network);
            a.sends = 1;
            let answer = sent(|| at.store.acquire(&mut a, &by_in(*network)));
            assert!(matches!(answer, Acquired::Unknown(_)), "{key}: {answer:?}");
            // If a session stops the late acquire, this release goes through that session, even if there is no row.
            let released = sent(|| at.store.release(&mut a, Purpose::GiveUp, &soon()));
            assert!(!matches!(released, Released::Unknown(_)), "{key}: {released:?}");
            let is_held = matches!(released, Released::HeldByOther(_));
            assert_eq!(is_held, *meanwhile == Meanwhile::Held, "{key}: {released:?}");
            if *meanwhile == Meanwhile::Left {
                granted(&*at.beside, &mut other);
            }
            if *meanwhile != Meanwhile::Nothing {
                assert!(matches!(release(&*at.beside, &mut other), Released::Done), "{key}");
            }
            if *network != Network::CutBefore {
                at.wait_for_late(&key);
            }
            assert_eq!(at.holders(&key), [], "{key}");
            if at.kind.remembers_who_gave_up {
                refused(&*at.store, &mut a);
            }
            granted(&*at.beside, &mut exclusive(&*at.beside, &key));
        }
    }
}

pub fn a_copy_of_what_was_granted_and_released_is_not_granted<R>(at: &Behind<R>) {
    for mode in MODES {
        // Released with the acquire's session, and without it, where there is one.
        for has_native in [true, false] {
            let mut a = attempt(&*at.store, &format!("copy {mode} {has_native}"), mode);
            at.fault(at.kind.late);
            a.sends = 1;
            at.unanswered(&mut a);
            at.settled(&mut a);
            let mut releasing = if has_native { a } else { a.without_native() };
            assert!(matches!(release(&*at.store, &mut releasing), Released::Done), "{}", releasing.key);
            at.wait_for_late(&releasing.key);
            assert_eq!(at.holders(&releasing.key), [], "{mode}");
        }
    }
}

pub fn a_dead_network_holds_up_no_call_beyond_its_deadline<R>(at: &Behind<R>) {
    let mut a = exclusive(&*at.store, "k");
    granted(&*at.store, &mut a);
    at.proxy.add(Rule::always(Network::HoleToServer));
    let mut renew = || at.store.renew(&mut a, renewal(Lease::For(LEASE)), &by());
    let renewed = sent(|| within("the renewal", SHORT, &mut renew));
    assert!(matches!(renewed, Renewed::Unknown(_)), "{renewed:?}");
    let read = || at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by());
    let error = within("the look", SHORT, read).unwrap_err();
    assert!(error.is_retryable() && error.kind() == leasehold::ErrorKind::Store, "{error:?}");
    // The connections that hang are not used again.
    at.all_were_met();
    let longer = renewal(Lease::For(2 * LEASE));
    assert!(matches!(sent(|| at.store.renew(&mut a, longer, &soon())), Renewed::Until { .. }));
    refused(&*at.beside, &mut exclusive(&*at.beside, "k"));
}
