//! A network that fails at every request of every step: the request does not arrive, its answer does not, or it arrives
//! late; and a service that reports trouble, whether it did the work or not. A repeat finds the first try, and what is
//! given up leaves nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use leasehold::ErrorKind;
use leasehold::internals::lease::{GrantId, LockRecord};
use leasehold::internals::store::{Acquired, Consistency, Purpose, Released, Renewed};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;

use crate::spanner::*;
use crate::support::bench::builder_over;
use crate::support::grpc::{Fault, Grpc};
use crate::support::harness::connected;
use crate::support::lateness::{Slowness, measure, slack};
use crate::support::servers::spanner::aborts_at_random;
use crate::support::spanner::Database;
use crate::support::wait::wait_until;

/// Longer than a step takes, and shorter than what is late.
const SHORT: Duration = Duration::from_millis(700);
const LATE: Duration = Duration::from_secs(2);
/// The time for repeats: the emulator handles one transaction at a time, and one that was cut off delays the others.
const PATIENCE: Duration = Duration::from_secs(60);

const FAULTS: [Fault; 6] =
    [Fault::CutBefore, Fault::CutAfter, Fault::Lost, Fault::AnswerLost, Fault::CutLate(LATE), Fault::Late(LATE)];
/// The codes of a service in trouble: cancelled, unknown, too late, exhausted (it limits the rate), internal,
/// unavailable. They do not show whether the work was done.
const TROUBLE: [u8; 6] = [1, 2, 4, 8, 13, 14];
/// This code comes only if nothing was done.
const ABORTED: u8 = 10;
const UNAUTHENTICATED: u8 = 16;

fn faults() -> Vec<Fault> {
    let said = TROUBLE.iter().flat_map(|code| [Fault::Refused(*code), Fault::DoneThenRefused(*code)]);
    FAULTS.into_iter().chain(said).chain([Fault::Refused(ABORTED)]).collect()
}

/// A store behind a faulty network, and one next to it that meets no fault.
struct Behind {
    grpc: Grpc,
    store: Spanner,
    beside: Spanner,
}

fn behind() -> Behind {
    let database = Database::fresh();
    let grpc = Grpc::new(&database.host);
    let store = Spanner::open(database.options_at(&grpc.host), &soon()).unwrap();
    Behind { grpc, store, beside: database.open() }
}

/// The first tries meet the faults. For the others, the emulator on a busy machine may take longer.
fn by(tries: u32) -> Deadline {
    Deadline::after(if tries < 5 { SHORT } else { 10 * SHORT })
}

impl Behind {
    fn record(&self, key: &str) -> LockRecord {
        get(&self.beside, key).record
    }

    fn holders(&self, key: &str) -> Vec<Holder> {
        self.record(key).holders().map(|(_, holder)| holder.clone()).collect()
    }

    fn grants(&self, key: &str) -> Vec<GrantId> {
        self.holders(key).into_iter().map(|holder| holder.grant).collect()
    }

    /// Runs `step` with each fault at each of its two requests, for both modes. It is given a key of its own and what
    /// sets the fault, and returns which grants must be holders in the end.
    fn sweep(&self, step: impl Fn(&str, Mode, &dyn Fn()) -> Vec<GrantId>) {
        let (mut stand, mut late) = (Vec::new(), Vec::new());
        for mode in [Mode::Exclusive, Mode::Shared] {
            for request in 0..2 {
                for fault in faults() {
                    let key = format!("{mode} {request} {fault:?}");
                    // Which of all requests meets the fault.
                    let meets = Cell::new(0);
                    let grants = step(&key, mode, &|| {
                        meets.set(self.grpc.methods().len() + request);
                        self.grpc.fault("", request, fault);
                    });
                    assert_eq!(self.grpc.clear(), 0, "{key}: the fault was not met");
                    assert_eq!(self.grants(&key), grants, "{key}");
                    if matches!(fault, Fault::CutLate(_) | Fault::Late(_)) {
                        late.push(meets.get());
                    }
                    stand.push((key, grants));
                }
            }
        }
        self.grpc.wait_until("what was late is answered", |calls| late.iter().all(|nth| calls[*nth].answered));
        for (key, grants) in stand {
            assert_eq!(self.grants(&key), grants, "{key}, after what was late");
        }
    }

    /// Repeats an acquire until it is answered. An error says that its try wrote nothing. An unanswered try may arrive
    /// at any time, but only once: then its grant stays as it is, and is found.
    fn settled(&self, attempt: &mut Attempt) -> Holder {
        let (key, own) = (attempt.key.clone(), attempt.ask.grant.clone());
        let is_done = |stands: &[Holder]| matches!(stands, [holder] if holder.grant == own);
        let (mut stood, mut may_be_done) = (self.holders(&key), false);
        until_answered(|by| {
            attempt.sends += 1;
            match self.store.acquire(attempt, by) {
                Ok(Acquired::Granted { holder, repeated, .. }) => {
                    let is_found = repeated && stood == [holder.clone()];
                    assert!(is_found || !is_done(&stood), "{key}: {stood:?}, then {holder:?}, {repeated}");
                    return Some(holder);
                }
                Ok(Acquired::Unknown(_)) => may_be_done = true,
                Err(error) if error.is_retryable() => {}
                other => panic!("{key}: {other:?}"),
            }
            let stands = self.holders(&key);
            let has_come = may_be_done && !is_done(&stood) && is_done(&stands);
            assert!(stands == stood || has_come, "{key}: {stood:?}, then {stands:?}");
            stood = stands;
            None
        })
    }
}

/// Repeats the step while it is not answered.
fn until_answered<T>(mut step: impl FnMut(&Deadline) -> Option<T>) -> T {
    let started = Instant::now();
    for tries in 0.. {
        if let Some(answer) = step(&by(tries)) {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE);
    }
    unreachable!("it is tried for ever")
}

fn released(store: &Spanner, attempt: &mut Attempt, purpose: Purpose) -> Released {
    until_answered(|by| match store.release(attempt, purpose, by) {
        Ok(Released::Unknown(_)) => None,
        Err(error) if error.is_retryable() => None,
        answer => Some(answer.unwrap()),
    })
}

#[test]
fn an_acquire_that_is_repeated_finds_itself() {
    needs_server!();
    let at = behind();
    measure();
    // On a database of its own: on this one its transactions would be in the way.
    let beside = Arc::new(Database::fresh().open());
    let server = Slowness::of(connected(|| builder_over(beside.clone(), Clock::system())));
    at.sweep(|key, mode, fault| {
        let mut a = attempt(key, mode);
        fault();
        let started = Instant::now();
        let holder = at.settled(&mut a);
        let (took, bound) = (started.elapsed(), Duration::from_secs(10) + slack(started) + server.slack(started));
        assert!(took < bound, "{key}: {took:?}, not {bound:?}");
        assert_eq!(at.holders(key), [holder], "{key}: what is answered is what stands");
        vec![a.ask.grant]
    });
}

#[test]
fn a_renewal_that_is_repeated_extends() {
    needs_server!();
    let at = behind();
    at.sweep(|key, mode, fault| {
        let mut a = attempt(key, mode);
        let holder = granted(&at.store, &mut a);
        fault();
        let renewal = Renewal { lease: Lease::For(2 * LEASE), may_end_endless: false };
        let (mut stood, mut may_be_done) = (holder.clone(), false);
        let until = until_answered(|by| {
            match at.store.renew(&mut a, renewal, by) {
                Ok(Renewed::Until { until, .. }) => return Some(until),
                Ok(Renewed::Unknown(_)) => may_be_done = true,
                Err(error) if error.is_retryable() => {}
                other => panic!("{key}: {other:?}"),
            }
            // An error says that its try wrote nothing. An unanswered try moves no end back, whenever it arrives.
            let stands = at.holders(key).remove(0);
            let has_come = may_be_done && stands.token == stood.token && stands.until > stood.until;
            assert!(stands == stood || has_come, "{key}: {stood:?}, then {stands:?}");
            stood = stands;
            None
        });
        let stands = &at.holders(key)[0];
        assert!(until > holder.until && stands.until == until && stands.token == holder.token, "{key}");
        assert!(until >= stood.until, "{key}");
        vec![a.ask.grant]
    });
}

#[test]
fn a_release_that_is_repeated_frees_and_frees_nobody_else() {
    needs_server!();
    let at = behind();
    at.sweep(|key, mode, fault| {
        let mut a = attempt(key, mode);
        granted(&at.store, &mut a);
        let mut others = Vec::new();
        if mode == Mode::Shared {
            let mut other = shared(key);
            granted(&at.beside, &mut other);
            others.push(other.ask.grant);
        }
        fault();
        released(&at.store, &mut a, Purpose::Release);
        others
    });
}

#[test]
fn a_transfer_that_is_repeated_finds_itself() {
    needs_server!();
    let at = behind();
    at.sweep(|key, mode, fault| {
        let mut old = attempt(key, mode);
        let from = granted(&at.store, &mut old);
        let mut new = attempt(key, mode);
        new.ask.instead_of = Some((from.grant.clone(), from.token));
        fault();
        let held = at.settled(&mut new);
        assert!(held.token > from.token);
        assert!(matches!(at.store.renew(&mut old, RENEWAL, &soon()).unwrap(), Renewed::Lost(_)), "{key}");
        vec![held.grant]
    });
}

#[test]
fn a_give_up_that_is_repeated_frees() {
    needs_server!();
    let at = behind();
    at.sweep(|key, mode, fault| {
        let mut a = attempt(key, mode);
        granted(&at.store, &mut a);
        fault();
        released(&at.store, &mut a, Purpose::GiveUp);
        Vec::new()
    });
}

/// What happens to the key while a commit is on its way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// Nothing, so the commit is granted.
    Nothing,
    /// The acquire is given up, before anything else happens.
    GivenUp,
    /// Another client gives it up, as when its own client hangs.
    GivenUpBeside,
    /// It is given up, and another client is granted the key.
    Held,
    /// The same, and the other client releases the key.
    Released,
}

/// Each case has a database of its own: on the emulator, another transaction of the same session, or at the same time,
/// would already stop the late one.
fn late(mode: Mode, is_missing: bool, meanwhile: Meanwhile) {
    // What happens meanwhile must be done before the commit arrives, even if ten such tests share the emulator.
    // Otherwise this begins again.
    let is_in_time = |times: u32| given_up_before(times * LATE, mode, is_missing, meanwhile);
    assert!([3, 6, 12].into_iter().any(is_in_time), "{mode} {meanwhile:?}: too late each time");
}

/// Returns whether the commit left in time, and was given up before it arrived, this much later.
fn given_up_before(late: Duration, mode: Mode, is_missing: bool, meanwhile: Meanwhile) -> bool {
    let (at, what) = (behind(), format!("{mode}, missing: {is_missing}, {meanwhile:?}"));
    if !is_missing {
        let mut before = exclusive("k");
        granted(&at.beside, &mut before);
        at.beside.release(&mut before, Purpose::Release, &soon()).unwrap();
    }
    let mut a = attempt("k", mode);
    at.grpc.fault("Commit", 0, Fault::Late(late));
    let mut sent = Instant::now();
    // On a busy machine the time may be over before there is a commit, which is an error.
    let unanswered = until_answered(|by| {
        sent = Instant::now();
        match at.store.acquire(&mut a, by) {
            Err(error) if error.is_retryable() => None,
            answer => Some(answer.unwrap()),
        }
    });
    assert!(matches!(unanswered, Acquired::Unknown(_)), "{what}: {unanswered:?}");
    // Its time was over when the commit was about to leave.
    if at.grpc.clear() > 0 {
        return false;
    }
    let mut stands = Vec::new();
    let given_up = match meanwhile {
        Meanwhile::Nothing => {
            stands.push(a.ask.grant.clone());
            None
        }
        Meanwhile::GivenUpBeside => Some(released(&at.beside, &mut a.without_native(), Purpose::GiveUp)),
        _ => Some(released(&at.store, &mut a, Purpose::GiveUp)),
    };
    if given_up.is_some() && sent.elapsed() >= late {
        return false;
    }
    assert!(given_up.is_none_or(|given_up| matches!(given_up, Released::Free)), "{what}");
    if matches!(meanwhile, Meanwhile::Held | Meanwhile::Released) {
        let mut other = attempt("k", mode);
        granted(&at.beside, &mut other);
        if meanwhile == Meanwhile::Released {
            at.beside.release(&mut other, Purpose::Release, &soon()).unwrap();
        } else {
            stands.push(other.ask.grant);
        }
    }
    at.grpc.wait_until("the late commit is answered", |calls| {
        calls.iter().filter(|call| call.method == "Commit").all(|call| call.answered)
    });
    let grants = at.grants("k");
    // One of the emulators aborts commits at random, and may abort this one as well.
    let is_aborted = meanwhile == Meanwhile::Nothing && grants.is_empty() && aborts_at_random();
    assert!(grants == stands || is_aborted, "{what}: {grants:?}, not {stands:?}");
    true
}

#[test]
fn an_acquire_that_was_given_up_is_never_granted_however_late_it_comes() {
    needs_server!();
    use Meanwhile::*;
    std::thread::scope(|scope| {
        for mode in [Mode::Exclusive, Mode::Shared] {
            for meanwhile in [Nothing, GivenUp, GivenUpBeside, Held, Released] {
                scope.spawn(move || [true, false].map(|is_missing| late(mode, is_missing, meanwhile)));
            }
        }
    });
}

impl Behind {
    /// Makes one more read that is not answered. Returns how often the store has connected since the calls were
    /// restarted.
    fn unheard(&self) -> usize {
        let by = Deadline::after(Duration::from_millis(400));
        self.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by).unwrap_err();
        self.grpc.methods().iter().filter(|method| *method == "CreateSession").count()
    }
}

#[test]
fn a_service_that_is_slow_is_connected_to_anew_ever_more_seldom() {
    needs_server!();
    let at = behind();
    at.grpc.restart();
    let started = Instant::now();
    (0..100).for_each(|_| at.grpc.fault("ExecuteStreamingSql", 0, Fault::Lost));
    // This takes so long that, without pauses, three more connections would be made.
    let made = (0..24).map(|_| at.unheard()).last().unwrap();
    assert!(at.grpc.clear() < 100, "nothing was lost");
    // After 1.5, 3, 6 seconds, and so on.
    let due = (1..).take_while(|n| Duration::from_millis(1500) * (2_u32.pow(*n) - 1) < started.elapsed()).count();
    assert!((1..=due).contains(&made), "{made} of {due} in {:?}", started.elapsed());
    get(&at.store, "k");
}

#[test]
fn a_connection_that_is_forgotten_after_a_slow_spell_is_noticed_as_soon_as_any() {
    needs_server!();
    assert!((0..4).any(|_| is_noticed_after_a_slow_spell()), "a busy machine may be late, but not each time");
}

fn is_noticed_after_a_slow_spell() -> bool {
    let at = behind();
    at.grpc.restart();
    (0..200).for_each(|_| at.grpc.fault("ExecuteStreamingSql", 0, Fault::Lost));
    // This is the spell: the next connection would be made only after six seconds.
    assert!((0..100).any(|_| at.unheard() == 2), "{:?}", at.grpc.methods());
    assert!(at.grpc.clear() < 200, "nothing was lost");
    // A slow answer does not end the spell.
    wait_until("it is not slow any more", || {
        let asked = Instant::now();
        get(&at.store, "k");
        asked.elapsed() < Duration::from_secs(1)
    });
    at.grpc.restart();
    (0..200).for_each(|_| at.grpc.fault("ExecuteStreamingSql", 0, Fault::Lost));
    // About five seconds, of which one and a half are needed.
    let is_noticed = (0..12).any(|_| at.unheard() == 1);
    assert!(at.grpc.clear() < 200, "nothing was lost");
    get(&at.store, "k");
    is_noticed
}

/// The SDK renews a token by a clock that stops while the host is suspended.
#[test]
fn a_token_that_has_ended_is_trouble_for_a_moment_and_another_client_is_made() {
    needs_server!();
    for method in ["ExecuteStreamingSql", "Commit"] {
        let at = behind();
        at.grpc.restart();
        let mut attempt = exclusive("k");
        at.grpc.fault(method, 0, Fault::Refused(UNAUTHENTICATED));
        let error = at.store.acquire(&mut attempt, &soon()).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
        let connected = || at.grpc.methods().iter().filter(|method| *method == "CreateSession").count();
        wait_until("another client is made", || connected() == 1);
        granted(&at.store, &mut attempt);
        // A refused token must not be asked about with each request.
        (0..1000).for_each(|_| at.grpc.fault("", 0, Fault::Refused(UNAUTHENTICATED)));
        let (started, before) = (Instant::now(), connected());
        for _ in 0..20 {
            let read = at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon());
            assert!(read.unwrap_err().is_retryable());
        }
        assert!(connected() - before <= 1 + started.elapsed().as_secs() as usize / 2, "{}", connected());
        assert!(at.grpc.clear() > 900);
        get(&at.store, "k");
    }
}
