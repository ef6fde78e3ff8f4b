//! Each statement of each step x each fault: lost, done and lost, hung, late, twice. What is repeated until it is
//! answered ends as if nothing had happened, and what is late has no effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use leasehold::ErrorKind;
use leasehold::internals::lease::{Holder, Lease, LockRecord};
use leasehold::internals::store::{Purpose, Released, Renewal, Schema, Seen, Swapped};
use leasehold::internals::sys::deadline::Deadline;

use crate::postgres::*;
use crate::support::contract::{LEASE, raised, renewal};
use crate::support::harness::{PATIENCE, sent, within_among_many};
use crate::support::postgres::{Rows, opened, told_of, unless_late};
use crate::support::proxy::{Answer, Mode as Network, Proxy, Rule};
use crate::support::servers::{postgres, postgres_server};

/// Longer than a step takes while some others are under way.
const SHORT: Duration = Duration::from_millis(1_200);
const THREADS: usize = 12;
/// More rows than a page holds.
const MANY: usize = 201;

/// A request that is held arrives while a rival has the key, or after the rival has left.
const FAULTS: [Network; 8] = [
    Network::CutBefore,
    Network::CutAfter,
    Network::HoleToServer,
    Network::DropAnswer,
    Network::CutHeld,
    Network::Held,
    Network::Twice(Answer::First),
    Network::Twice(Answer::Second),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Acquire(Mode),
    Join,
    Transfer(Mode),
    Renew(Mode),
    EndEndless,
    Release(Mode),
    ReleaseAnothers,
    GiveUp(Mode),
    GiveUpStanding(Mode),
    Read,
    ReadPages,
    ReadLockId,
    Swap,
    Wake,
    /// Watches one more key, on the session that listens.
    WakeMore,
    Check,
    Create,
}

use Step::*;

fn steps() -> Vec<Step> {
    let mut steps =
        vec![Join, EndEndless, ReleaseAnothers, Read, ReadPages, ReadLockId, Swap, Wake, WakeMore, Check, Create];
    for mode in [Mode::Exclusive, Mode::Shared] {
        steps.extend([Acquire(mode), Transfer(mode), Renew(mode), Release(mode), GiveUp(mode), GiveUpStanding(mode)]);
    }
    steps
}

/// A table, and a client that meets no fault. All threads share it, and more connections are made for them, but a
/// server that stalls for three seconds makes none.
type Beside = (Arc<Rows>, Arc<Postgres>);

fn granted(store: &Postgres, attempt: &mut Attempt) -> Holder {
    match unless_late(|| store.acquire(attempt, &soon())) {
        Ok(Acquired::Granted { holder, repeated: false, .. }) => holder,
        other => panic!("{:?} was not granted: {other:?}", attempt.key),
    }
}

fn release(store: &Postgres, attempt: &mut Attempt) -> Released {
    unless_late(|| store.release(attempt, Purpose::Release, &soon())).unwrap()
}

fn get(store: &Postgres, key: &str) -> Seen {
    let which = Which::Key(key.to_owned());
    unless_late(|| store.read(&which, None, Consistency::Strong, &soon())).unwrap().records.remove(0)
}

fn holders(store: &Postgres, key: &str) -> Vec<Holder> {
    get(store, key).record.holders().map(|(_, holder)| holder.clone()).collect()
}

/// One case, with a key and a way to the server of its own.
struct Case {
    proxy: Proxy,
    store: Postgres,
    beside: Beside,
    step: Step,
    attempt: Attempt,
    /// Another holder of the key.
    other: Option<Attempt>,
    /// Receives what the last listener reports.
    told: Option<Receiver<String>>,
}

impl Case {
    /// Makes the case, and what must exist before the step.
    fn new(shared: &Beside, name: &str, step: Step) -> Case {
        let beside = if step == Create {
            let rows = Arc::new(Rows::unmade());
            let store = Arc::new(rows.open());
            (rows, store)
        } else {
            shared.clone()
        };
        let proxy = Proxy::telling_postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
        let store = opened(beside.0.options_at(&proxy.addr().to_string()));
        let mode = match step {
            Acquire(mode) | Transfer(mode) | Renew(mode) | Release(mode) | GiveUp(mode) | GiveUpStanding(mode) => mode,
            Join => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let mut case =
            Case { attempt: attempt(&store, name, mode), proxy, store, beside, step, other: None, told: None };
        case.prepare();
        case
    }

    fn prepare(&mut self) {
        let (rows, beside) = self.beside.clone();
        let mut other = attempt(&*beside, &self.attempt.key, self.attempt.ask.mode);
        match self.step {
            Acquire(_) | GiveUp(_) | Create => {}
            Join | ReleaseAnothers => {
                granted(&beside, &mut other);
                self.other = Some(other);
            }
            Transfer(_) => {
                let old = granted(&beside, &mut other);
                self.attempt.ask.instead_of = Some((old.grant, old.token));
            }
            _ => drop(granted(&beside, &mut self.attempt)),
        }
        if self.step == WakeMore {
            told_of(&self.store, "another");
        }
        if self.step == EndEndless {
            let endless = unless_late(|| beside.renew(&mut self.attempt, renewal(Lease::Forever), &soon()));
            assert!(matches!(endless, Ok(Renewed::Until { .. })), "{endless:?}");
        }
        if self.step == ReadPages {
            rows.sql(&format!(
                "INSERT INTO {{T}} (key, kind, fence, version, format) \
                 SELECT '{}/' || n, 'lock', 1, 1, '1.0' FROM generate_series(1, {MANY}) AS n",
                self.attempt.key
            ));
        }
    }

    /// Whether its grant is a holder in the end.
    fn holds(&self) -> bool {
        !matches!(self.step, Release(_) | ReleaseAnothers | GiveUp(_) | GiveUpStanding(_) | Create)
    }

    fn record(&self) -> LockRecord {
        get(&self.beside.1, &self.attempt.key).record
    }

    /// What a swap replaces, read before the swap's time begins.
    fn seen(&self) -> Option<Seen> {
        (self.step == Swap).then(|| get(&self.beside.1, &self.attempt.key))
    }

    /// Does the step once. Returns whether its outcome is known.
    fn once(&mut self, seen: Option<Seen>, by: &Deadline) -> leasehold::Result<bool> {
        let (store, attempt) = (&self.store, &mut self.attempt);
        let unknown = |error: leasehold::Error| {
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
            false
        };
        let pages = |which: &Which| -> leasehold::Result<usize> {
            let (mut count, mut from) = (0, None);
            loop {
                let page = store.read(which, from, Consistency::Strong, by)?;
                count += page.records.len();
                from = page.next;
                if from.is_none() {
                    return Ok(count);
                }
            }
        };
        Ok(match self.step {
            Acquire(_) | Join | Transfer(_) => {
                attempt.sends += 1;
                match store.acquire(attempt, by)? {
                    Acquired::Granted { .. } => true,
                    Acquired::Unknown(error) => unknown(error),
                    Acquired::Refused(seen) => panic!("refused by {:?}", seen.record),
                }
            }
            Renew(_) | EndEndless => {
                let longer = Renewal { may_end_endless: true, ..renewal(Lease::For(2 * LEASE)) };
                match store.renew(attempt, longer, by)? {
                    Renewed::Until { .. } => true,
                    Renewed::Unknown(error) => unknown(error),
                    Renewed::Lost(seen) => panic!("lost to {:?}", seen.record),
                }
            }
            Release(_) | ReleaseAnothers | GiveUp(_) | GiveUpStanding(_) => {
                let gives_up = matches!(self.step, GiveUp(_) | GiveUpStanding(_));
                match store.release(attempt, if gives_up { Purpose::GiveUp } else { Purpose::Release }, by)? {
                    Released::Unknown(error) => unknown(error),
                    _ => true,
                }
            }
            Read => pages(&Which::Key(attempt.key.clone()))? == 1,
            ReadPages => pages(&Which::Prefix(attempt.key.clone()))? == MANY + 1,
            ReadLockId => pages(&Which::LockId(attempt.ask.lock_id.clone()))? == 1,
            Swap => {
                let seen = seen.expect("it was read");
                match store.swap(&seen, Some(&raised(&seen.record)), by)? {
                    Swapped::Unknown(error) => unknown(error),
                    swapped => matches!(swapped, Swapped::Done),
                }
            }
            Wake | WakeMore => {
                let (to, told) = crossbeam_channel::unbounded();
                self.told = Some(told);
                store.wake(&[attempt.key.clone(), "another".to_owned()], to, by)?
            }
            Check => !store.schema(Schema::Check, by)?.is_empty(),
            Create => !store.schema(Schema::Create, by)?.is_empty(),
        })
    }

    /// The state of the lock. If a give-up noted itself before its last look failed, that does not count as a change.
    fn lock(&self) -> LockRecord {
        let record = self.record();
        match self.step {
            GiveUp(_) => LockRecord { version: 0, gave_up_at: 0, given_up: Default::default(), ..record },
            _ => record,
        }
    }

    /// Repeats the step until it is answered, each time within its deadline.
    fn settle(&mut self, name: &str) {
        let before = (self.step != Create).then(|| self.lock());
        let mut may_be_done = false;
        for tries in 0..20 {
            // The first tries meet the faults. For the others, a server on a busy machine may take longer.
            let time = if tries < 5 { SHORT } else { 10 * SHORT };
            let seen = self.seen();
            match within_among_many(name, time, || self.once(seen, &Deadline::after(time))) {
                Ok(true) => return,
                Ok(false) => may_be_done = true,
                Err(error) => {
                    let is_right =
                        matches!((error.kind(), self.step), (ErrorKind::Store, _) | (ErrorKind::Ambiguous, Create));
                    assert!(is_right && error.is_retryable(), "{name}: {error}");
                    let is_same = may_be_done || before.as_ref().is_none_or(|before| self.lock() == *before);
                    assert!(is_same, "{name}: it was written, but for {before:?} it says {error}");
                }
            }
        }
        panic!("{name}: no answer");
    }

    fn run(mut self, name: &str, network: Network) {
        self.settle(name);
        let beside = self.beside.1.clone();
        unless_late(|| beside.schema(Schema::Check, &soon())).unwrap();
        let record = self.record();
        let standing = |attempt: &Attempt| record.standing(attempt.grant()).is_some();
        assert_eq!(standing(&self.attempt), self.holds(), "{name}: {record:?}");
        assert!(self.other.iter().all(standing), "{name}: {record:?}");
        let right = usize::from(self.holds()) + usize::from(self.other.is_some());
        assert_eq!(record.holders().count(), right, "{name}: {record:?}");
        if self.holds() {
            let released = sent(|| self.store.release(&mut self.attempt, Purpose::Release, &soon()));
            assert!(matches!(released, Released::Done), "{name}: {released:?}");
        }
        if let Some(told) = &self.told {
            assert_eq!(told.recv_timeout(PATIENCE).as_ref(), Ok(&self.attempt.key), "{name}: what a release tells");
        }
        if let Some(other) = &mut self.other {
            assert!(matches!(release(&beside, other), Released::Done), "{name}");
        }
        let mut rival = exclusive(&*beside, &self.attempt.key);
        let holder = granted(&beside, &mut rival);
        if network == Network::Held {
            assert!(matches!(release(&beside, &mut rival), Released::Done), "{name}");
            self.proxy.deliver();
            assert_eq!(holders(&beside, &rival.key), [], "{name}, after what was late");
        } else {
            self.proxy.deliver();
            assert_eq!(holders(&beside, &rival.key), [holder], "{name}, after what was late");
            assert!(matches!(release(&beside, &mut rival), Released::Done), "{name}");
        }
        granted_anew(&self.store, &mut exclusive(&self.store, &rival.key));
        let unmet = self.proxy.clear();
        assert!(unmet.is_empty(), "{name}: no statement met {unmet:?}");
    }
}

/// For each request that the step makes if nothing fails, whether it begins a session.
fn requests(shared: &Beside, step: Step) -> Vec<bool> {
    // While a server stalls, a listener gets no connection in three seconds, or does not hear itself in one.
    let counted = (0..5).find_map(|nth| {
        let mut case = Case::new(shared, &format!("{step:?} counted {nth}"), step);
        let before = case.proxy.requests().len();
        match case.once(case.seen(), &soon()) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                assert!(error.is_retryable(), "{step:?}: {error:?}");
                return None;
            }
        }
        Some(case.proxy.requests()[before..].iter().map(|request| request.body.starts_with('\0')).collect())
    });
    counted.unwrap_or_else(|| panic!("{step:?} is not answered"))
}

#[test]
fn every_statement_of_every_step_survives_every_fault() {
    needs_server!();
    let began = Instant::now();
    let rows = Arc::new(Rows::fresh());
    let shared = (rows.clone(), Arc::new(rows.open()));
    let mut cases = Vec::new();
    for step in steps() {
        let requests = requests(&shared, step);
        println!("{step:?}: {} requests", requests.len());
        for (number, begins) in requests.into_iter().enumerate() {
            // A session can't begin twice.
            let fits = |network: &Network| !(begins && matches!(network, Network::Twice(_)));
            cases.extend(FAULTS.into_iter().filter(fits).map(|network| (step, number as u64, network)));
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, cases) = (&shared, &cases);
            scope.spawn(move || {
                // Each thread has some cases of each step, because those of one step take equally long.
                for (step, number, network) in cases.iter().skip(thread).step_by(THREADS) {
                    let name = format!("{step:?} {number} {network:?}");
                    let case = Case::new(shared, &name, *step);
                    case.proxy.add(Rule::next(1, *network).after(*number));
                    case.run(&name, *network);
                }
            });
        }
    });
    println!("{} cases in {:?}", cases.len(), began.elapsed());
}
