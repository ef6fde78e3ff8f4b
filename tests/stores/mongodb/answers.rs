//! A server that answers with an error, once or twice, at every step: it steps down or shuts down, is in conflict or
//! limits the rate, before the write or after it. What is repeated until it is answered ends as if nothing had
//! happened, and a caller that is told that nothing was written finds the row as it was.

mod other_commands;

use std::cell::Cell;
use std::time::{Duration, Instant};

use leasehold::internals::lease::{Lease, LockRecord};
use leasehold::internals::store::{Acquired, Consistency, Purpose, Released, Renewed, Schema, Swapped};
use leasehold::mongodb::driver::bson::{Document, doc};

use crate::mongodb::failpoints::{At, POLL};
use crate::mongodb::*;
use crate::support::contract::{LEASE, granted, raised, renewal};
use crate::support::wait::wait_until;

/// Errors before which nothing was written, in the order of the codes: HostUnreachable, HostNotFound, LockTimeout,
/// MaxTimeMSExpired, NetworkTimeout, ShutdownInProgress, WriteConflict, PrimarySteppedDown, ExceededTimeLimit,
/// TemporarilyUnavailable, IngressRequestRateLimitExceeded, SocketException, NotWritablePrimary, InterruptedAtShutdown,
/// InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk.
const BEFORE: [i32; 16] = [6, 7, 24, 50, 89, 91, 112, 189, 262, 365, 462, 9001, 10107, 11600, 11602, 13435];
/// Errors after a write that the majority did not confirm: WriteConcernFailed, ShutdownInProgress,
/// UnsatisfiableWriteConcern, PrimarySteppedDown, InterruptedAtShutdown, InterruptedDueToReplStateChange.
const AFTER: [i32; 6] = [64, 91, 100, 189, 11600, 11602];

/// How often the error comes, and whether it has the label that makes the driver repeat by itself.
const VARIANTS: [(i32, bool); 3] = [(1, true), (1, false), (2, true)];

/// The failures before a write.
fn before() -> Vec<(i32, Document)> {
    BEFORE.map(|code| (code, doc! { "errorCode": code })).to_vec()
}

/// The failures after a write.
fn after() -> Vec<(i32, Document)> {
    AFTER.map(|code| (code, doc! { "writeConcernError": { "code": code, "errmsg": "made by the test" } })).to_vec()
}

fn before_and_after() -> Vec<(i32, Document)> {
    [before(), after()].concat()
}

impl At {
    fn two_stores(&self) -> [Mongodb; 2] {
        let stores = [POLL; 2].map(|more| self.open_with(more));
        stores[0].schema(Schema::Create, &soon()).unwrap();
        stores
    }

    /// Runs `case` with each of these answers to `command`, in each variant. It is given a name and what starts the
    /// answers.
    fn under_each(&self, command: &str, answers: Vec<(i32, Document)>, mut case: impl FnMut(&str, &dyn Fn())) {
        for (nth, (code, answer)) in answers.iter().enumerate() {
            for (times, is_labeled) in VARIANTS {
                let name = format!("{command} {nth} {code} {times} {is_labeled}");
                let mut data = answer.clone();
                if !is_labeled {
                    data.insert("errorLabels", Vec::<String>::new());
                }
                self.under(&name, (command, times), data, |fault| case(&name, fault));
            }
        }
    }

    /// Runs `case` with this answer to the command, which must be met `times` times. It is given a closure that starts
    /// the answers.
    fn under<T>(
        &self,
        name: &str,
        (command, times): (&str, i32),
        mut data: Document,
        case: impl FnOnce(&dyn Fn()) -> T,
    ) -> T {
        data.insert("failCommands", vec![command.to_owned()]);
        let (met, started) = (Cell::new(0), Instant::now());
        let value = case(&|| {
            let mode = doc! { "times": times };
            let on = self.admin(doc! { "configureFailPoint": "failCommand", "mode": mode, "data": &data });
            met.set(on.get_i32("count").unwrap());
        });
        let off = self.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" });
        assert_eq!(off.get_i32("count").unwrap() - met.get(), times, "{name}: it was not met");
        println!("{name}: {:?}", started.elapsed());
        value
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    Transfer,
    Renew,
    Release,
    GiveUp,
}

/// One case, with a key of its own.
struct Case<'a> {
    store: &'a Mongodb,
    beside: &'a Mongodb,
    step: Step,
    attempt: Attempt,
}

impl Case<'_> {
    fn record(&self) -> LockRecord {
        get(self.beside, &self.attempt.key).record
    }

    /// Does the step once. Returns `None` if it was not answered; an error says that nothing was written.
    fn once(&mut self) -> leasehold::Result<Option<()>> {
        let Case { store, step, attempt, .. } = self;
        match step {
            Step::Acquire | Step::Transfer => {
                attempt.sends += 1;
                store.acquire(attempt, &soon()).map(|answer| match answer {
                    Acquired::Granted { .. } => Some(()),
                    Acquired::Unknown(_) => None,
                    Acquired::Refused(seen) => panic!("{}: refused by {:?}", attempt.key, seen.record),
                })
            }
            Step::Renew => store.renew(attempt, renewal(Lease::For(2 * LEASE)), &soon()).map(|answer| match answer {
                Renewed::Until { .. } => Some(()),
                Renewed::Unknown(_) => None,
                Renewed::Lost(seen) => panic!("{}: lost to {:?}", attempt.key, seen.record),
            }),
            Step::Release | Step::GiveUp => {
                let purpose = if matches!(step, Step::GiveUp) { Purpose::GiveUp } else { Purpose::Release };
                let answer = store.release(attempt, purpose, &soon());
                answer.map(|answer| match answer {
                    Released::Done | Released::Free => Some(()),
                    Released::Unknown(_) => None,
                    Released::HeldByOther(seen) => panic!("{}: held by {:?}", attempt.key, seen.record),
                })
            }
        }
    }

    fn run(mut self, fault: impl FnOnce()) {
        let key = self.attempt.key.clone();
        let mut old = None;
        match self.step {
            Step::Acquire => {}
            Step::Transfer => {
                let mut from = attempt(self.beside, &key, self.attempt.ask.mode);
                let holder = granted(self.beside, &mut from);
                self.attempt.ask.instead_of = Some((holder.grant, holder.token));
                old = Some(from);
            }
            _ => drop(granted(self.store, &mut self.attempt)),
        }
        let before = self.record();
        fault();
        let (mut may_be_done, started) = (false, Instant::now());
        loop {
            match self.once() {
                Ok(Some(())) => break,
                Ok(None) => may_be_done = true,
                Err(error) => {
                    assert!(error.is_retryable(), "{key}: {error:?}");
                    assert!(may_be_done || self.record() == before, "{key}: it says that nothing was written: {error}");
                }
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{key}: no answer");
        }
        let record = self.record();
        let stands = record.standing(self.attempt.grant()).map(|(_, holder)| holder.clone());
        match self.step {
            Step::Acquire | Step::Transfer => {
                assert_eq!(stands.map(|holder| holder.token), Some(record.token), "{key}")
            }
            Step::Renew => {
                let was = before.standing(self.attempt.grant()).expect("it stood").1;
                assert!(stands.is_some_and(|holder| holder.until > was.until && holder.token == was.token), "{key}");
            }
            Step::Release | Step::GiveUp => assert_eq!((stands, record.token), (None, before.token), "{key}"),
        }
        let right = usize::from(!matches!(self.step, Step::Release | Step::GiveUp));
        assert_eq!(record.holders().count(), right, "{key}: {record:?}");
        if let Some(mut old) = old {
            let lost = self.beside.renew(&mut old, renewal(Lease::For(LEASE)), &soon()).unwrap();
            assert!(matches!(lost, Renewed::Lost(_)) && record.token > before.token, "{key}: {lost:?}");
        }
    }
}

#[test]
fn every_step_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let [store, beside] = at.two_stores();
    let mut modes = [Mode::Exclusive, Mode::Shared].into_iter().cycle();
    for step in [Step::Acquire, Step::Transfer, Step::Renew, Step::Release, Step::GiveUp] {
        at.under_each("findAndModify", before_and_after(), |name, fault| {
            let mode = modes.next().unwrap();
            let attempt = attempt(&store, &format!("{step:?} {mode} {name}"), mode);
            Case { store: &store, beside: &beside, step, attempt }.run(fault);
        });
    }
}

/// A whole record is made, changed and deleted by one command each.
#[test]
fn every_swap_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let [store, beside] = at.two_stores();
    for command in ["insert", "update", "delete"] {
        at.under_each(command, before_and_after(), |key, fault| {
            if command != "insert" {
                granted(&beside, &mut exclusive(&beside, key));
            }
            let seen = get(&store, key);
            let mut new = raised(&seen.record);
            new.pins.insert("pin".to_owned());
            let written = Some(&new).filter(|_| command != "delete");
            fault();
            let (mut may_be_done, mut is_duplicate) = (false, false);
            wait_until("it is swapped", || match store.swap(&seen, written, &soon()) {
                Ok(Swapped::Done) => true,
                Ok(Swapped::Changed) => {
                    assert!(may_be_done, "{key}: nobody else has changed it");
                    is_duplicate = command == "insert";
                    true
                }
                Ok(Swapped::Unknown(_)) => {
                    may_be_done = true;
                    false
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{key}: {error:?}");
                    let stands = get(&beside, key).record;
                    assert!(may_be_done || stands == seen.record, "{key}: it says that nothing was written: {error}");
                    false
                }
            });
            if is_duplicate {
                // The duplicate is reported before the majority has the other document, and a strong look sees only
                // what the majority has.
                wait_until("the majority has it", || get(&beside, key).record.exists());
            }
            let stands = get(&beside, key).record;
            match command {
                "insert" => assert_eq!(stands.pins, new.pins, "{key}"),
                "update" => assert_eq!((stands.pins, stands.version), (new.pins.clone(), new.version), "{key}: once"),
                _ => assert!(!stands.exists(), "{key}"),
            }
        });
    }
}

#[test]
fn every_look_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let [store, beside] = at.two_stores();
    let held = granted(&beside, &mut exclusive(&beside, "k"));
    at.under_each("find", before(), |name, fault| {
        fault();
        for which in [Which::Key("k".to_owned()), Which::Prefix("k".to_owned())] {
            let page = sent(|| store.read(&which, None, Consistency::Strong, &soon()));
            let holders: Vec<_> = page.records.iter().flat_map(|seen| seen.record.holders()).collect();
            assert_eq!(holders, [(Mode::Exclusive, &held)], "{name}: {which:?}");
        }
    });
}
