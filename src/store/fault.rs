//! A store in front of a real one that adds faults. It never replaces the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;

use super::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which,
};
use crate::lease::LockRecord;
use crate::model::error::{Error, ErrorKind, Result};
use crate::sys::deadline::Deadline;
use crate::sys::thread::keeps_a_lock;

/// The calls that a fault can be meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Backend::acquire`]
    Acquire,
    /// [`Backend::renew`]
    Renew,
    /// [`Backend::release`], whatever its purpose
    Release,
    /// [`Backend::read`]
    Read,
    /// [`Backend::swap`]
    Swap,
    /// [`Backend::wake`]
    Wake,
    /// [`Backend::schema`]
    Schema,
}

/// What happens to one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It fails and the store never sees it.
    FailBefore,
    /// The store never sees it, but the caller can't know that.
    LostBefore,
    /// The store says no, and a repeat would not help.
    Refuse,
    /// The store does it, the answer is lost.
    ApplyThenFail,
    /// The store does it, no answer comes before the call's deadline.
    ApplyThenHang,
    /// The store never sees it, no answer comes before the call's deadline.
    HangBefore,
    /// No answer comes before the call's deadline, and the store gets an acquisition only after that, when
    /// [`FaultPlan::deliver`] is called; any other call never.
    Late,
    /// It hangs past its deadline, until the other end of the channel is dropped: against the contract,
    /// as a stuck disk does.
    Stuck(Receiver<()>),
    /// The store gets it after this delay.
    Delay(Duration),
    /// The store does it, the answer comes later.
    ApplyThenDelay(Duration),
    /// The store gets it twice; the answer is the second one's.
    Twice,
    /// The store does it, then the caller panics.
    ApplyThenPanic,
    /// The caller panics.
    Panic,
    /// It hangs until the other end of the channel is dropped; then the caller panics.
    PanicLater(Receiver<()>),
}

/// Which faults come next, and which calls were made. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<(Call, Fault)>,
    always: Option<(Call, Fault)>,
    never_wakes: bool,
    /// What every call meets, whatever else was ordered.
    outage: Option<Fault>,
    late: Vec<(Arc<dyn Backend>, Attempt)>,
    /// The notes below would grow for as long as the store is used.
    keeps_no_notes: bool,
    given_up: Vec<String>,
    /// Each call so far, and whether a lock depends on its thread.
    calls: Vec<(Call, bool)>,
}

impl FaultPlan {
    /// A plan that does not remember which calls were made, for users' tests, which may be long.
    pub fn without_notes() -> Self {
        FaultPlan(Arc::new(Mutex::new(Plan { keeps_no_notes: true, ..Plan::default() })))
    }

    /// The next call of this kind that has no fault yet gets this one.
    pub fn next(&self, call: Call, fault: Fault) {
        self.0.lock().next.push_back((call, fault));
    }

    /// Every call of this kind gets this fault, until `heal`.
    pub fn always(&self, call: Call, fault: Fault) {
        self.0.lock().always = Some((call, fault));
    }

    /// The store can't wake waiters: they must poll.
    pub fn never_wakes(&self) {
        self.0.lock().never_wakes = true;
    }

    /// No call reaches the store, of whatever kind, until `go_online`.
    pub fn go_offline(&self) {
        self.0.lock().outage = Some(Fault::FailBefore);
    }

    /// The same, and no call is answered.
    pub fn go_silent(&self) {
        self.0.lock().outage = Some(Fault::HangBefore);
    }

    /// Ends `go_offline` and `go_silent`.
    pub fn go_online(&self) {
        self.0.lock().outage = None;
    }

    /// Delivers the acquisitions that were [late](Fault::Late) to their stores, and returns the answers.
    pub fn deliver(&self) -> Vec<Result<Acquired>> {
        self.take_late().into_iter().map(|(store, mut attempt)| store.acquire(&mut attempt, &patient())).collect()
    }

    /// Takes the acquisitions that were late, each with the store that must get it now.
    pub fn take_late(&self) -> Vec<(Arc<dyn Backend>, Attempt)> {
        std::mem::take(&mut self.0.lock().late)
    }

    /// Ends the faults of `next` and `always`. Returns how many of those that `next` named met no call.
    pub fn heal(&self) -> usize {
        let mut plan = self.0.lock();
        plan.always = None;
        plan.next.drain(..).count()
    }

    /// Every call so far, except those for the schema, which each client makes when it connects.
    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().calls.iter().map(|(call, _)| *call).filter(|call| *call != Call::Schema).collect()
    }

    /// How many calls of this kind were made.
    pub fn count(&self, call: Call) -> usize {
        self.0.lock().calls.iter().filter(|(c, _)| *c == call).count()
    }

    /// Every call of a thread that would wait for the program's logger if the store logged something.
    pub fn loose(&self) -> Vec<Call> {
        self.0.lock().calls.iter().filter(|(_, keeps)| !keeps).map(|(call, _)| *call).collect()
    }

    /// How many times the store answered that it gave up an acquisition of this key.
    pub fn given_up(&self, key: &str) -> usize {
        self.0.lock().given_up.iter().filter(|given_up| *given_up == key).count()
    }

    /// How many of the faults that `next` named have met no call yet.
    pub fn unmet(&self) -> usize {
        self.0.lock().next.len()
    }

    fn take(&self, call: Call) -> Option<Fault> {
        let mut plan = self.0.lock();
        if !plan.keeps_no_notes {
            plan.calls.push((call, keeps_a_lock()));
        }
        if plan.outage.is_some() {
            return plan.outage.clone();
        }
        if let Some(at) = plan.next.iter().position(|(c, _)| *c == call) {
            return plan.next.remove(at).map(|(_, fault)| fault);
        }
        plan.always.as_ref().filter(|(c, _)| *c == call).map(|(_, fault)| fault.clone())
    }
}

/// See the module.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Backend>,
    plan: FaultPlan,
    connects: bool,
}

impl Faulty {
    /// Puts faults in front of `inner`.
    pub fn new(inner: Arc<dyn Backend>, plan: FaultPlan) -> Self {
        Faulty { inner, plan, connects: false }
    }

    /// The same, but the schema check of a client that connects gets no fault.
    pub fn that_connects(inner: Arc<dyn Backend>, plan: FaultPlan) -> Self {
        Faulty { inner, plan, connects: true }
    }

    fn run<T>(
        &self,
        call: Call,
        by: &Deadline,
        apply: impl FnMut(&Deadline) -> Result<T>,
        unknown: impl FnOnce(Error) -> Result<T>,
    ) -> Result<T> {
        Faulty::suffer(self.plan.take(call), call, by, apply, unknown)
    }

    fn suffer<T>(
        fault: Option<Fault>,
        call: Call,
        by: &Deadline,
        mut apply: impl FnMut(&Deadline) -> Result<T>,
        unknown: impl FnOnce(Error) -> Result<T>,
    ) -> Result<T> {
        let Some(fault) = fault else {
            return apply(by);
        };
        match fault {
            Fault::FailBefore => Err(injected(ErrorKind::Store, "the request was not sent")),
            Fault::LostBefore => unknown(injected(ErrorKind::Ambiguous, "the request was lost")),
            Fault::Refuse => Err(Error::new(ErrorKind::Permission, "injected fault: the store refused the request")
                .caused_by(std::io::Error::from(std::io::ErrorKind::PermissionDenied))),
            Fault::ApplyThenFail => {
                apply(by)?;
                unknown(injected(ErrorKind::Ambiguous, "the answer was lost"))
            }
            Fault::ApplyThenHang => {
                apply(&patient())?;
                by.wait();
                unknown(injected(ErrorKind::Ambiguous, "no answer came in time"))
            }
            Fault::HangBefore | Fault::Late => {
                by.wait();
                unknown(injected(ErrorKind::Ambiguous, "no answer came in time"))
            }
            Fault::Stuck(until) => {
                while until.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {}
                unknown(injected(ErrorKind::Ambiguous, "the request was stuck"))
            }
            Fault::Delay(delay) => {
                by.wait_for(delay);
                apply(by)
            }
            Fault::ApplyThenDelay(delay) => {
                let answer = apply(by);
                by.wait_for(delay);
                answer
            }
            Fault::Twice => {
                apply(by)?;
                apply(by)
            }
            Fault::PanicLater(at) => {
                while at.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {}
                panicked(call)
            }
            Fault::ApplyThenPanic => {
                apply(by)?;
                panicked(call)
            }
            Fault::Panic => panicked(call),
        }
    }
}

/// Panics without the panic hook, whose backtraces would take longer than everything that is tested.
fn panicked(call: Call) -> ! {
    std::panic::resume_unwind(Box::new(format!("injected panic in {call:?}")))
}

/// The deadline of what the store does although its caller no longer waits.
fn patient() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn injected(kind: ErrorKind, what: &str) -> Error {
    Error::new(kind, format!("injected fault: {what}")).retryable()
}

impl Backend for Faulty {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        if self.connects && matches!(what, Schema::Connect(_)) {
            return self.inner.schema(what, by);
        }
        self.run(Call::Schema, by, |by| self.inner.schema(what, by), Err)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        let fault = self.plan.take(Call::Acquire);
        if let Some(Fault::Late) = fault {
            self.plan.0.lock().late.push((self.inner.clone(), attempt.without_native()));
        }
        let apply = |by: &Deadline| self.inner.acquire(attempt, by);
        Faulty::suffer(fault, Call::Acquire, by, apply, |error| Ok(Acquired::Unknown(error)))
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        self.run(Call::Renew, by, |by| self.inner.renew(attempt, renewal, by), |error| Ok(Renewed::Unknown(error)))
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        let is_noted = purpose == Purpose::GiveUp && !self.plan.0.lock().keeps_no_notes;
        let key = is_noted.then(|| attempt.key.clone());
        let released = self.run(
            Call::Release,
            by,
            |by| self.inner.release(attempt, purpose, by),
            |error| Ok(Released::Unknown(error)),
        )?;
        self.plan.0.lock().given_up.extend(key.filter(|_| !matches!(released, Released::Unknown(_))));
        Ok(released)
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        self.run(Call::Read, by, |by| self.inner.read(which, from.clone(), consistency, by), Err)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.run(Call::Swap, by, |by| self.inner.swap(seen, new, by), |error| Ok(Swapped::Unknown(error)))
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        let never = self.plan.0.lock().never_wakes;
        self.run(Call::Wake, by, |by| if never { Ok(false) } else { self.inner.wake(keys, to.clone(), by) }, Err)
    }
}
