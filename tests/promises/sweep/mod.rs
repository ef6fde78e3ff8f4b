//! Complete sweeps of lost answers: each request of each public call x each fault x {once, twice in a row}. The
//! requests are those of a clean run. Then the call is made again for each fault, which must be met, and must end as if
//! nothing had happened, or with an error that leaves nothing behind. Memory and SQLite always; the servers only if
//! `LEASEHOLD_TEST_LONG` is set.

mod calls;
#[cfg(target_os = "linux")]
mod pauses;
mod public;

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::internals::store::Backend;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{ClientBuilder, ErrorKind, Filter, LockClient, Mode, Result};

use crate::support::harness::{PATIENCE, connected, millis};
use crate::support::lateness::{measure, slack};
use crate::support::stores::{Opened, Store, for_each_store, is_wanted, on};
use crate::support::wait::wait_until;
use calls::{Swept, all};

/// No heartbeat is due while a case lasts.
const LEASE: Duration = Duration::from_secs(60);
/// A request that hangs takes this long, and nothing else should, even on a busy machine; without and with a server.
const TIMEOUTS: [Duration; 2] = [millis(400), millis(6_000)];
/// The stores that are always swept.
const LOCAL: [&str; 2] = ["memory", "sqlite"];
const KEYS: [&str; 3] = ["k", "k2", "e"];
const CALLS: [Call; 7] = [Call::Acquire, Call::Renew, Call::Release, Call::Read, Call::Swap, Call::Wake, Call::Schema];
/// How many cases run at a time: most of them wait.
const THREADS: usize = 12;

/// A store with one client that meets faults, and another that meets none.
pub struct Room {
    opened: Opened,
    pub plan: FaultPlan,
    faulty: Arc<Faulty>,
    pub client: LockClient,
    pub others: LockClient,
    /// The timeout of each request.
    pub timeout: Duration,
}

impl Room {
    /// `timeout` is that of each request of the client that meets faults, and `close` is the bound of its close.
    fn new(store: &Store, timeout: Duration, close: Duration) -> Room {
        let (opened, plan) = ((store.open)(), FaultPlan::default());
        let faulty = Arc::new(Faulty::new(opened.store.clone(), plan.clone()));
        let over = |store: Arc<dyn Backend>| builder(store, &opened);
        let client = || over(faulty.clone()).lease(LEASE).request_timeout(timeout).drop_timeout(close).owner("one");
        let client = connected(client);
        let others = over(opened.second.clone()).lease(LEASE).request_timeout(PATIENCE);
        let others = others.connect().expect("a bystander");
        Room { opened, plan, faulty, client, others, timeout }
    }

    /// A builder of clients that meet the faults.
    pub fn builder(&self) -> ClientBuilder {
        builder(self.faulty.clone(), &self.opened)
    }

    /// Lets all leases end.
    pub fn outlast(&self) {
        self.opened.outlast(2 * LEASE);
    }

    /// Who holds what, as other clients see it.
    fn state(&self) -> BTreeSet<String> {
        let locks = self.others.list(&Filter::new()).expect("a list");
        let leases = self.others.leases(calls::SPACE).list().expect("a list");
        let pins = self.others.leases(calls::SPACE).pinned_by(calls::NAME).expect("pins");
        let lock = |lock: &leasehold::LockStatus| {
            let (key, mode, is_expired) = (lock.key(), lock.mode(), lock.is_expired());
            format!(
                "{key} {mode} by {} of {}{}",
                lock.owner(),
                lock.lock_id().len(),
                if is_expired { ", expired" } else { "" }
            )
        };
        let mut state: BTreeSet<String> = locks.iter().map(lock).collect();
        for key in KEYS {
            let alone = locks.iter().filter(|lock| lock.key() == key && !lock.is_expired());
            let modes: Vec<Mode> = alone.map(leasehold::LockStatus::mode).collect();
            assert!(modes.len() < 2 || modes.iter().all(|mode| *mode == Mode::Shared), "{key} has two holders");
        }
        state.extend(leases.iter().map(|lease| format!("{} claimed by {}", lease.name(), lease.holder())));
        state.extend(pins.iter().map(|pin| format!("pinned by {pin}")));
        state
    }

    fn counts(&self) -> [usize; CALLS.len()] {
        CALLS.map(|call| self.plan.count(call))
    }
}

fn builder(store: Arc<dyn Backend>, opened: &Opened) -> ClientBuilder {
    leasehold::internals::builder_over(store, opened.clock.clone()).poll(millis(5)..=millis(20))
}

fn timeout(store: &Store) -> Duration {
    TIMEOUTS[usize::from(!is_local(store.module))]
}

/// What a call answered, and what the caller holds by it.
pub struct Answer {
    pub text: String,
    pub kept: Box<dyn Any>,
}

/// What a failed call may leave in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The state before the call: what was asked for and not obtained is given up.
    AsBefore,
    /// The state before, or nothing: what was handed over and not obtained is given up.
    OrNothing,
    /// The state before, or the state after a success: nobody can know which.
    Either,
    /// The same, or only a part of the call was done, because each key is changed by itself.
    Part,
    /// The same, but without an error: what this call did not do is done by the next one, or by the end of the lease.
    AnotherTime,
    /// As [`Leaves::Either`], and its guard is gone. The call asks only once, so one lost answer makes it fail.
    EitherAtOnce,
}

/// What may happen to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    LostBefore,
    AppliedAndLost,
    AppliedAndHung,
    Hung,
    Twice,
    /// The request arrives when the call is over.
    Late,
    /// The request arrives when everything was released.
    Last,
}

const FAULTS: [What; 7] =
    [What::LostBefore, What::AppliedAndLost, What::AppliedAndHung, What::Hung, What::Twice, What::Late, What::Last];

impl What {
    fn fault(self) -> Fault {
        match self {
            What::LostBefore => Fault::LostBefore,
            What::AppliedAndLost => Fault::ApplyThenFail,
            What::AppliedAndHung => Fault::ApplyThenHang,
            What::Hung => Fault::HangBefore,
            What::Twice => Fault::Twice,
            What::Late | What::Last => Fault::Late,
        }
    }

    /// Whether a request of this call can meet this fault in this store. Only some stores must recognize late copies
    /// themselves; on the others there is none (SQLite), or the request carries what stops it (MongoDB, Spanner).
    fn can_meet(self, call: Call, store: &Store) -> bool {
        !matches!(self, What::Late | What::Last) || (call == Call::Acquire && store.remembers_who_gave_up)
    }

    /// No answer comes within the request timeout, which is all the time of a call that does not wait.
    fn takes_long(self) -> bool {
        !matches!(self, What::LostBefore | What::AppliedAndLost | What::Twice)
    }
}

/// What a call does when nothing fails.
struct Clean {
    text: String,
    before: BTreeSet<String>,
    after: BTreeSet<String>,
    /// The state after its client was closed.
    closed: BTreeSet<String>,
    requests: [usize; CALLS.len()],
}

struct Case<'a> {
    swept: &'a Swept,
    clean: &'a Clean,
    /// Which request of the call meets the fault: the one with index `at` among those of this kind.
    call: Call,
    at: usize,
    what: What,
    times: usize,
    /// Counts the cases that proved nothing: see [`Case::run`].
    unmet: &'a AtomicUsize,
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {:?} {}, {:?} x {}", self.swept.path, self.call, self.at, self.what, self.times)
    }
}

/// From two runs: if a slow server answers too late, a request is repeated, and the next run may not make it.
fn clean(like: &Store, swept: &Swept) -> Clean {
    let once = || (0..5).find_map(|_| clean_once(like, swept)).unwrap_or_else(|| panic!("{}: late", swept.path));
    let (one, other) = (once(), once());
    let requests = std::array::from_fn(|n| one.requests[n].min(other.requests[n]));
    Clean { requests, ..one }
}

/// Returns `None` if, on a busy machine, the time of the call was over.
fn clean_once(like: &Store, swept: &Swept) -> Option<Clean> {
    let room = Room::new(like, timeout(like), PATIENCE);
    let act = (swept.prepare)(&room);
    let (before, counts) = (room.state(), room.counts());
    let started = Instant::now();
    let answer = match act(&room) {
        Ok(answer) => answer,
        Err(error) => {
            assert!(started.elapsed() >= room.timeout, "{}: {error:?}", swept.path);
            return None;
        }
    };
    let (after, now) = (room.state(), room.counts());
    let mut requests: [usize; CALLS.len()] = std::array::from_fn(|n| now[n] - counts[n]);
    if swept.waits {
        // How often it looks depends on timing.
        requests.iter_mut().for_each(|count| *count = (*count).min(1));
    }
    assert!(requests.iter().sum::<usize>() > 0, "{} makes no request", swept.path);
    drop(answer.kept);
    room.client.close().expect("it closes");
    Some(Clean { text: answer.text, before, after, closed: room.state(), requests })
}

impl Case<'_> {
    /// Returns `false` if the machine was measurably too late for a verdict, or if the fault was not met for the first
    /// time.
    fn run(&self, like: &Store, is_again: bool) -> bool {
        // A busy machine may need longer to close. Only if a release hangs is the bound short.
        let timeout = timeout(like);
        let bound = if self.call == Call::Release { 2 * timeout } else { PATIENCE };
        let room = Room::new(like, timeout, bound);
        let act = (self.swept.prepare)(&room);
        let tokens = self.tokens(&room);
        assert_eq!(room.state(), self.clean.before, "{self}: prepared");
        for _ in 0..self.at {
            room.plan.next(self.call, Fault::Delay(Duration::ZERO));
        }
        for _ in 0..self.times {
            room.plan.next(self.call, self.what.fault());
        }
        let started = Instant::now();
        let answer = act(&room);
        // On a busy machine the time of a call may be over before it could repeat anything, or got that far. Few cases
        // may.
        let is_over = started.elapsed() >= room.timeout;
        let is_met = || room.plan.unmet() < self.times;
        wait_until(&format!("{self} is met"), || is_met() || (is_over && started.elapsed() > PATIENCE));
        if !is_met() {
            println!("{self}: not met");
            self.unmet.fetch_add(usize::from(is_again), Ordering::Relaxed);
            return is_again;
        }
        room.plan.heal();
        if self.what == What::Late {
            room.plan.deliver();
        }
        let clean = self.clean;
        let part = clean.before.iter().take(1).cloned().collect();
        let is_double = self.what == What::Twice && [Call::Release, Call::Swap].contains(&self.call);
        let right: &[&BTreeSet<String>] = match &answer {
            Ok(answer) => {
                // The second copy of a change answers that there is nothing to change.
                assert!(is_double || answer.text == clean.text, "{self}: {:?} after {:?}", answer.text, clean.text);
                let may_come_later = self.swept.leaves == Leaves::AnotherTime;
                if may_come_later { &[&clean.before, &clean.after] } else { &[&clean.after] }
            }
            // The second copy can't tell that no operator released the lock.
            Err(error) if is_double && [ErrorKind::Lost, ErrorKind::InvalidLease].contains(&error.kind()) => {
                &[&clean.after]
            }
            Err(error) => {
                let may_fail = is_over || self.what.takes_long() || self.swept.leaves == Leaves::EitherAtOnce;
                let kinds = [ErrorKind::Ambiguous, ErrorKind::Store, ErrorKind::TimedOut];
                assert!(may_fail && kinds.contains(&error.kind()), "{self}: {error:?}");
                match self.swept.leaves {
                    Leaves::AsBefore => &[&clean.before],
                    Leaves::OrNothing => &[&clean.before, &clean.closed],
                    Leaves::Either | Leaves::AnotherTime => &[&clean.before, &clean.after],
                    Leaves::EitherAtOnce => &[&clean.before, &clean.after, &clean.closed],
                    Leaves::Part => &[&clean.before, &part, &clean.after],
                }
            }
        };
        self.comes_to_be(&room, "answered", right);
        let is_sure = answer.is_ok() && self.swept.leaves != Leaves::AnotherTime;
        let ending = Instant::now();
        drop(answer);
        let closing = Instant::now();
        let closed = room.client.close();
        // Nothing hangs any more, but a short bound may be over all the same: a disk may be late, too, and no thread
        // measures that.
        let took_all = bound < PATIENCE && closing.elapsed() >= bound * 9 / 10;
        if slack(ending) > bound || (closed.is_err() && took_all) {
            self.unmet.fetch_add(usize::from(took_all), Ordering::Relaxed);
            return false;
        }
        assert!(closed.is_ok(), "{self}: {closed:?}");
        if self.what == What::Last {
            room.plan.deliver();
        }
        let either = [&clean.closed, &clean.before, &part, &clean.after];
        // What was given up stays so, whatever arrives when everything is over.
        let is_given_up = self.swept.leaves == Leaves::AsBefore;
        let closed = if is_sure { 1 } else { either.len() - if is_given_up { 2 } else { 0 } };
        self.comes_to_be(&room, "closed", &either[..closed]);
        self.leaves_nothing(&room, tokens);
        true
    }

    /// Waits until the store has one of these states: what is given up in the background takes a moment.
    #[track_caller]
    fn comes_to_be(&self, room: &Room, when: &str, right: &[&BTreeSet<String>]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.of_any(room.state());
            if right.contains(&&state) {
                return;
            }
            assert!(Instant::now() < until, "{self}, {when}: {state:?}, but right is {right:?}");
            std::thread::sleep(millis(2));
        }
    }

    /// For a call that wants any of several keys, each key is as good.
    fn of_any(&self, state: BTreeSet<String>) -> BTreeSet<String> {
        let first = |text: String| match text.split_once(' ') {
            Some((_, rest)) if self.swept.path == "leasehold::LockAnyRequest::lock" => format!("k {rest}"),
            _ => text,
        };
        state.into_iter().map(first).collect()
    }

    /// The highest token of each key.
    fn tokens(&self, room: &Room) -> [u64; KEYS.len()] {
        KEYS.map(|key| room.others.get(key).expect("a look").map_or(0, |status| status.fencing_token()))
    }

    /// Once all leases are over nobody holds anything, and tokens rise.
    fn leaves_nothing(&self, room: &Room, before: [u64; KEYS.len()]) {
        let known = self.tokens(room);
        room.outlast();
        for (n, key) in KEYS.into_iter().enumerate() {
            let guard = room.others.try_lock(key).expect("an answer");
            let guard = guard.unwrap_or_else(|| panic!("{self}: {key} is still held: {:?}", room.state()));
            let token = guard.fencing_token();
            assert!(token > known[n].max(before[n]), "{self}: {key} {token} after {known:?}, {before:?}");
        }
    }
}

fn every_request_of_every_call(like: &Store) {
    measure();
    let only = std::env::var("LEASEHOLD_TEST_CALL").ok();
    let mut swept = all();
    swept.retain(|swept| only.as_ref().is_none_or(|only| swept.path.ends_with(only)));
    let runs: Vec<Clean> = swept.iter().map(|swept| clean(like, swept)).collect();
    let (mut cases, unmet) = (Vec::new(), &AtomicUsize::new(0));
    for (swept, clean) in swept.iter().zip(&runs) {
        for (call, requests) in CALLS.into_iter().zip(clean.requests) {
            for what in FAULTS.into_iter().filter(|what| what.can_meet(call, like)) {
                let each = (0..requests).flat_map(|at| [1, 2].map(|times| (at, times)));
                cases.extend(each.map(|(at, times)| Case { swept, clean, call, at, what, times, unmet }));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let (next, all) = (&next, &cases);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(move || {
                    let mut wrong = Vec::new();
                    while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // Repeated if the machine was late.
                        let runs = || assert!((0..20).any(|nth| case.run(like, nth > 0)), "{case}: late each time");
                        if std::panic::catch_unwind(AssertUnwindSafe(runs)).is_err() {
                            wrong.push(case.to_string());
                        }
                    }
                    wrong
                })
            })
            .collect();
        let wrong = threads.into_iter().flat_map(|thread| thread.join().expect("no panic leaves it"));
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "wrong, for the reasons above: {wrong:#?}");
    });
    let unmet = unmet.load(Ordering::Relaxed);
    println!("{}: {} calls, {} cases, of which {unmet} were not met", like.module, swept.len(), cases.len());
    assert!(
        unmet <= cases.len().div_ceil(100),
        "too many calls were over before their fault was met, or closes before they were done"
    );
}

macro_rules! sweep {
    ($store:ident) => {
        mod $store {
            #[test]
            fn every_request_of_every_call() {
                let store = stringify!($store);
                if super::is_swept(store) {
                    super::on(store, super::every_request_of_every_call);
                }
            }
        }
    };
}
for_each_store!(sweep);

fn is_local(store: &str) -> bool {
    LOCAL.contains(&store)
}

/// Also decides whether the threads on this store are stopped at each mark.
fn is_swept(store: &str) -> bool {
    is_wanted(store) && (is_local(store) || std::env::var_os("LEASEHOLD_TEST_LONG").is_some())
}

/// A call in the table of calls.
pub type Act = Box<dyn FnOnce(&Room) -> Result<Answer>>;
