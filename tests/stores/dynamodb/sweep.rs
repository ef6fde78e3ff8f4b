//! Each numbered request of each step x each fault: what is repeated until it is answered ends as if nothing had
//! happened, and what arrives late has no effect, neither on a free row nor while another holds it.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::internals::store::{Purpose, Released, Renewed, Swapped};
use leasehold::internals::sys::deadline::Deadline;

use crate::dynamodb::*;
use crate::support::proxy::{Answer, Mode as Network, Rule};

/// Longer than a request takes when a hundred are under way, and shorter than what is late.
const SHORT: Duration = Duration::from_millis(900);
const LATE: Duration = Duration::from_secs(2);

/// Fails before, is applied and then fails, is late, arrives twice; and a repeat that is late although the first one
/// was applied. The client of a late request sees the connection end, or nothing.
const FAULTS: [&[Network]; 7] = [
    &[Network::CutBefore],
    &[Network::CutAfter],
    &[Network::CutLate(LATE)],
    &[Network::Late(LATE)],
    &[Network::Twice(Answer::First)],
    &[Network::Twice(Answer::Second)],
    &[Network::CutAfter, Network::CutLate(LATE)],
];

/// One step; see `requests` for how many requests it takes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(Mode),
    AcquireRaised,
    Replace,
    Join,
    Renew(Mode),
    RenewBelow,
    Release(Mode),
    ReleaseLast,
    Transfer(Mode),
    GiveUp(Mode),
    GiveUpStanding(Mode),
}

fn steps() -> Vec<Step> {
    let mut steps = vec![Step::AcquireRaised, Step::Replace, Step::Join, Step::RenewBelow, Step::ReleaseLast];
    for mode in [Mode::Exclusive, Mode::Shared] {
        steps.extend([Step::Acquire(mode), Step::Renew(mode), Step::Release(mode)]);
        steps.extend([Step::GiveUp(mode), Step::GiveUpStanding(mode), Step::Transfer(mode)]);
    }
    steps
}

/// How many requests the step takes if nothing fails, counted on a row of its own.
fn requests(at: &Behind, step: Step) -> usize {
    let mut case = Case::new(at, format!("{step:?} counted"), step);
    case.prepare();
    assert!(case.once(5), "{}: it was not answered", case.name);
    let requests = at.proxy.requests();
    let count = requests.iter().filter(|one| one.has(&of_key(&case.name))).count();
    assert!(count > 0, "{}: it took no request", case.name);
    count
}

/// What all requests for a key contain in their body.
fn of_key(key: &str) -> String {
    format!("{{\"S\":\"{key}\"}}")
}

/// The state of the row when the late requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    /// It was released, and nobody has come since.
    Untouched,
    /// Somebody was granted it and released it.
    Free,
    Held,
}

/// One case: it has a key of its own, so that all can run at once.
struct Case<'a> {
    at: &'a Behind,
    name: String,
    step: Step,
    attempt: Attempt,
    /// Other holders next to it.
    others: Vec<Attempt>,
    /// The grant that it replaces.
    old: Option<Attempt>,
}

/// The first tries meet the faults. For the others, a server on a busy machine may take longer.
fn by(tries: u32) -> Deadline {
    Deadline::after(if tries < 5 { SHORT } else { 10 * SHORT })
}

impl Case<'_> {
    fn new(at: &Behind, name: String, step: Step) -> Case<'_> {
        let mode = match step {
            Step::Join | Step::RenewBelow | Step::ReleaseLast => Mode::Shared,
            Step::Acquire(mode) | Step::Renew(mode) | Step::Release(mode) => mode,
            Step::Transfer(mode) | Step::GiveUp(mode) | Step::GiveUpStanding(mode) => mode,
            Step::AcquireRaised | Step::Replace => Mode::Exclusive,
        };
        Case { at, attempt: attempt(&name, mode), name, step, others: Vec::new(), old: None }
    }

    fn record(&self) -> LockRecord {
        self.at.record(&self.name)
    }

    fn mode(&self) -> Mode {
        self.attempt.ask.mode
    }

    /// Adds another shared holder, whose end is later or earlier than that of the attempt.
    fn other(&mut self, is_later: bool) {
        let mut other = shared(&self.name);
        other.ask.lease = if is_later { LEASE * 10 } else { LEASE / 2 };
        granted(&self.at.beside, &mut other);
        self.others.push(other);
    }

    fn hold(&mut self) {
        self.attempt.sends = 1;
        granted(&self.at.beside, &mut self.attempt);
    }

    /// Makes what the step needs.
    fn prepare(&mut self) {
        match self.step {
            Step::Acquire(_) | Step::GiveUp(_) => {}
            Step::AcquireRaised => {
                let seen = get(&self.at.beside, &self.name);
                let token = seen.times.stamp + 3_600_000_000;
                let ahead = LockRecord { token, ..seen.record.clone() };
                assert!(matches!(self.at.beside.swap(&seen, Some(&ahead), &soon()), Ok(Swapped::Done)));
            }
            Step::Replace => {
                let mut old = exclusive(&self.name);
                granted(&self.at.beside, &mut old);
                self.attempt.ask.replace_same_owner = true;
                self.attempt.ask.labels.owner = old.ask.labels.owner.clone();
                self.old = Some(old);
            }
            Step::Join => self.other(true),
            Step::RenewBelow => {
                self.hold();
                self.other(true);
            }
            Step::Renew(_) | Step::GiveUpStanding(_) => self.hold(),
            Step::Release(mode) => {
                self.hold();
                if mode == Mode::Shared {
                    self.other(true);
                }
            }
            Step::ReleaseLast => {
                self.hold();
                self.other(false);
            }
            Step::Transfer(mode) => {
                let mut old = attempt(&self.name, mode);
                old.sends = 1;
                let holder = granted(&self.at.beside, &mut old);
                self.attempt.ask.instead_of = Some((holder.grant, holder.token));
                self.old = Some(old);
            }
        }
    }

    /// Does the step once, after this many tries. Returns whether it was answered.
    fn once(&mut self, tries: u32) -> bool {
        let (store, by) = (&self.at.store, by(tries));
        let answer = match self.step {
            Step::Acquire(_) | Step::AcquireRaised | Step::Replace | Step::Join | Step::Transfer(_) => {
                self.attempt.sends += 1;
                store.acquire(&mut self.attempt, &by).map(|answer| match answer {
                    Acquired::Granted { .. } => true,
                    Acquired::Unknown(_) => false,
                    Acquired::Refused(seen) => panic!("{}: refused by {:?}", self.name, seen.record),
                })
            }
            Step::Renew(_) | Step::RenewBelow => {
                store.renew(&mut self.attempt, renewal(2 * LEASE), &by).map(|answer| match answer {
                    Renewed::Until { .. } => true,
                    Renewed::Unknown(_) => false,
                    Renewed::Lost(seen) => panic!("{}: lost to {:?}", self.name, seen.record),
                })
            }
            Step::Release(_) | Step::ReleaseLast | Step::GiveUp(_) | Step::GiveUpStanding(_) => {
                let purpose = match self.step {
                    Step::GiveUp(_) | Step::GiveUpStanding(_) => Purpose::GiveUp,
                    _ => Purpose::Release,
                };
                let answer = store.release(&mut self.attempt, purpose, &by);
                answer.map(|answer| !matches!(answer, Released::Unknown(_)))
            }
        };
        answer.unwrap_or_else(|error| {
            assert!(error.is_retryable(), "{}: {error}", self.name);
            false
        })
    }

    /// Asserts that the attempt holds once, or not at all, and the others as they did.
    fn check(&self, others: &[Holder]) {
        let record = self.record();
        let holds =
            !matches!(self.step, Step::Release(_) | Step::ReleaseLast | Step::GiveUp(_) | Step::GiveUpStanding(_));
        let standing: Vec<&Holder> = record.holders().map(|(_, holder)| holder).collect();
        assert_eq!(standing.len(), usize::from(holds) + others.len(), "{}: {record:?}", self.name);
        assert_eq!(record.standing(self.attempt.grant()).is_some(), holds, "{}: {record:?}", self.name);
        assert!(others.iter().all(|other| standing.contains(&other)), "{}: {record:?}", self.name);
    }

    /// Ends all holders, as a guard would.
    fn end_all(&mut self, purpose: Purpose) {
        let ends = !matches!(self.step, Step::GiveUp(_) | Step::GiveUpStanding(_));
        if ends {
            // A step takes one request less if the service's time passed the old token before it began. Then the fault
            // meets this release, which a guard would also repeat.
            let released = (0..3).any(|_| {
                let ended = self.at.store.release(&mut self.attempt, purpose, &soon()).unwrap();
                !matches!(ended, Released::Unknown(_))
            });
            assert!(released, "{}: no answer to the release", self.name);
        }
        for other in &mut self.others {
            assert!(
                matches!(self.at.beside.release(other, Purpose::Release, &soon()).unwrap(), Released::Done),
                "{}",
                self.name
            );
        }
        assert_eq!(self.record().holders().count(), 0, "{}", self.name);
    }

    fn wait_for_late(&self) {
        let of_key = of_key(&self.name);
        self.at.proxy.wait_until("late requests are delivered", |all| {
            all.iter().filter(|one| one.has(&of_key)).all(|one| one.sent == 0 || one.answered == one.sent)
        });
        self.at.proxy.wait_until("the faulty one too", |all| {
            let mut writes = all.iter().filter(|one| one.has(&of_key) && one.has("UpdateItem")).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0 || !self.name.contains("Late"))
        });
    }

    fn run(&mut self, meanwhile: Meanwhile) {
        self.prepare();
        let others: Vec<Holder> = {
            let record = self.record();
            let stands = self.others.iter().filter_map(|other| record.standing(other.grant()));
            stands.map(|(_, holder)| holder.clone()).collect()
        };
        let before = self.record().token;
        let mut tries = 0;
        while !self.once(tries) {
            tries += 1;
            assert!(tries < 20, "{}: no answer", self.name);
        }
        self.check(&others);
        let token = self.record().token;
        assert!(token >= before, "{}", self.name);
        if let Some(old) = &mut self.old {
            let lost = self.at.beside.renew(old, renewal(2 * LEASE), &soon()).unwrap();
            assert!(matches!(lost, Renewed::Lost(_)), "{}: {lost:?}", self.name);
        }
        // A guard gives up what it had to repeat, but a plain release must work as well.
        let gives_up = self.attempt.sends > 1 && meanwhile == Meanwhile::Free;
        self.end_all(if gives_up { Purpose::GiveUp } else { Purpose::Release });
        let mut highest = self.record().token;
        let mut stays = Vec::new();
        if meanwhile == Meanwhile::Free {
            let mut next = exclusive(&self.name);
            highest = granted(&self.at.beside, &mut next).token;
            self.at.beside.release(&mut next, Purpose::Release, &soon()).unwrap();
        }
        if meanwhile == Meanwhile::Held {
            let mut holder = attempt(&self.name, self.mode());
            stays.push(granted(&self.at.beside, &mut holder));
            highest = stays[0].token;
        }
        self.wait_for_late();
        let record = self.record();
        let standing: Vec<Holder> = record.holders().map(|(_, holder)| holder.clone()).collect();
        assert_eq!(standing, stays, "{}: something came of what was late", self.name);
        assert_eq!(record.token, highest, "{}", self.name);
        if self.attempt.sends > 0 && !matches!(self.step, Step::Renew(_) | Step::RenewBelow) {
            self.attempt.ask.instead_of = None;
            if self.attempt.sends > 1 || matches!(self.step, Step::GiveUp(_)) {
                refused(&self.at.store, &mut self.attempt);
            }
        }
    }
}

#[test]
fn every_request_of_every_step_survives_every_fault() {
    let at = needs_server!(Behind::new());
    let mut cases = Vec::new();
    for step in steps() {
        for (number, fault) in (0..requests(&at, step)).flat_map(|number| FAULTS.map(|fault| (number, fault))) {
            for meanwhile in [Meanwhile::Untouched, Meanwhile::Free, Meanwhile::Held] {
                let name = format!("{step:?} {number} {fault:?} {meanwhile:?}");
                for network in fault {
                    at.proxy.add(Rule::next(1, *network).on(&of_key(&name)).after(number as u64));
                }
                cases.push((name, step, meanwhile));
            }
        }
    }
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = cases
            .chunks(cases.len().div_ceil(48))
            .map(|cases| {
                let (at, done) = (&at, &done);
                scope.spawn(move || {
                    for (name, step, meanwhile) in cases {
                        Case::new(at, name.clone(), *step).run(*meanwhile);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), cases.len());
    let unmet = at.proxy.clear();
    assert!(unmet.is_empty(), "no request met {unmet:?}");
    println!("{} cases", cases.len());
}
