//! The network of the random histories: it loses, doubles and holds back requests, and takes its time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::random_orders::LEASE;
use crate::lease::LockRecord;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::memory::Memory;
use crate::store::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which, read_key,
};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

/// A store stops this many copies of an acquire that was given up.
const MOST_COPIES: usize = 2;

/// The deadline of all calls here: over at once, so that each sends one request, and its repeat is a step of its own.
pub fn at_once() -> Deadline {
    Deadline::at(Instant::now())
}

pub fn one_in(n: u32) -> bool {
    fastrand::u32(..n) == 0
}

/// The clocks: the store's, and each process's with its rate.
#[derive(Debug)]
pub struct Clocks {
    pub store: Arc<Clock>,
    pub processes: Vec<(Arc<Clock>, f64)>,
}

impl Clocks {
    pub fn pass(&self, time: Duration) {
        self.store.advance(time);
        self.processes.iter().for_each(|(clock, speed)| clock.advance(time.mul_f64(*speed)));
    }
}

/// A request that arrives when its sender no longer waits for it.
#[derive(Debug)]
pub enum Late {
    Acquire(Attempt),
    Renew(Attempt, Renewal),
    Release(Attempt, Purpose),
}

/// What becomes of a request.
#[derive(PartialEq)]
enum Fate {
    Answered,
    Doubled,
    Lost,
    AnswerLost,
    HeldBack,
}

/// Between all processes and the store.
#[derive(Debug)]
pub struct Network {
    store: Memory,
    pub clocks: Clocks,
    late: Mutex<Vec<Late>>,
    /// How many copies of a grant's acquire were held back.
    copies: Mutex<HashMap<String, usize>>,
    /// From now on everything is answered at once.
    is_sound: Mutex<bool>,
}

impl Network {
    pub fn new(clocks: Clocks) -> Network {
        let store = Memory::open("", clocks.store.clone());
        Network { store, clocks, late: Mutex::default(), copies: Mutex::default(), is_sound: Mutex::default() }
    }

    pub fn heal(&self) {
        *self.is_sound.lock() = true;
    }

    /// Whether nothing is held back.
    pub fn is_silent(&self) -> bool {
        self.late.lock().is_empty()
    }

    /// Sends a request; `None`: no answer came.
    fn send<T>(&self, request: Late, mut apply: impl FnMut() -> Result<T>) -> Option<Result<T>> {
        if *self.is_sound.lock() {
            return Some(apply());
        }
        self.dawdle();
        let answer = match self.fate(&request) {
            Fate::Answered => Some(apply()),
            Fate::Doubled => {
                let _ = apply();
                Some(apply())
            }
            Fate::Lost => None,
            Fate::AnswerLost => {
                let _ = apply();
                None
            }
            Fate::HeldBack => {
                self.late.lock().push(request);
                None
            }
        };
        self.dawdle();
        answer
    }

    fn fate(&self, request: &Late) -> Fate {
        match fastrand::u32(..20) {
            0 => Fate::Doubled,
            1 | 2 => Fate::Lost,
            3..=5 => Fate::AnswerLost,
            6..=8 => {
                let Late::Acquire(attempt) = request else { return Fate::HeldBack };
                let mut copies = self.copies.lock();
                let copies = copies.entry(attempt.grant().as_str().to_owned()).or_default();
                *copies += 1;
                if *copies > MOST_COPIES { Fate::Lost } else { Fate::HeldBack }
            }
            _ => Fate::Answered,
        }
    }

    /// Lets time pass, now and then more than a lease.
    fn dawdle(&self) {
        if one_in(12) {
            self.clocks.pass(LEASE.mul_f64(fastrand::f64() * 1.2));
        }
    }

    /// One of those that were held back arrives.
    pub fn deliver(&self) {
        let next = {
            let mut late = self.late.lock();
            let at = fastrand::usize(..late.len());
            late.swap_remove(at)
        };
        let by = at_once();
        // Nobody waits for the answers.
        match next {
            Late::Acquire(mut attempt) => drop(self.store.acquire(&mut attempt, &by)),
            Late::Renew(mut attempt, renewal) => drop(self.store.renew(&mut attempt, renewal, &by)),
            Late::Release(mut attempt, purpose) => drop(self.store.release(&mut attempt, purpose, &by)),
        }
    }

    pub fn record(&self) -> Seen {
        read_key(&self.store, "k", &at_once()).expect("an answer")
    }
}

fn silence() -> Error {
    Error::new(ErrorKind::Ambiguous, "no answer").retryable()
}

impl Backend for Network {
    fn info(&self) -> &StoreInfo {
        self.store.info()
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        self.store.schema(what, by)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        let answer = self.send(Late::Acquire(attempt.without_native()), || self.store.acquire(attempt, by));
        answer.unwrap_or_else(|| Ok(Acquired::Unknown(silence())))
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        let request = Late::Renew(attempt.without_native(), renewal);
        let answer = self.send(request, || self.store.renew(attempt, renewal, by));
        answer.unwrap_or_else(|| Ok(Renewed::Unknown(silence())))
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        let request = Late::Release(attempt.without_native(), purpose);
        let answer = self.send(request, || self.store.release(attempt, purpose, by));
        answer.unwrap_or_else(|| Ok(Released::Unknown(silence())))
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        self.store.read(which, from, consistency, by)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.store.swap(seen, new, by)
    }
}
