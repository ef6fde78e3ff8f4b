//! A store in front of a real one that lets a test act between two requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use leasehold::internals::lease::LockRecord;
use leasehold::internals::store::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which,
};
use leasehold::internals::sys::deadline::Deadline;

use super::stores::soon;

type Act = Box<dyn FnMut() + Send>;

/// At which point a test's action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    AfterRead,
    BeforeSwap,
    AfterSwap,
    AfterRenewal,
    BeforeAcquire,
    AfterAcquire,
}

/// See the module. Clones share all state.
#[derive(Clone)]
pub struct Between {
    inner: Arc<dyn Backend>,
    acts: Arc<Mutex<VecDeque<(When, Act)>>>,
    swapped: Arc<Mutex<Vec<String>>>,
    late: Arc<Mutex<Late>>,
}

/// A swap that arrives right before the one after it, or when the test asks for it.
enum Late {
    None,
    Next,
    Sent(Seen, Option<LockRecord>),
}

impl Between {
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Between { inner, acts: Arc::default(), swapped: Arc::default(), late: Arc::new(Mutex::new(Late::None)) }
    }

    /// Runs `act` in the next call that reaches this point and has no action there yet.
    pub fn next(&self, when: When, act: impl FnMut() + Send + 'static) {
        self.acts.lock().unwrap().push_back((when, Box::new(act)));
    }

    /// Lets the next swap arrive right before the one after it. A fault must drop the answer of the delayed swap.
    pub fn hold_back(&self) {
        *self.late.lock().unwrap() = Late::Next;
    }

    /// Lets the delayed swap arrive now, and returns whether it still changes anything.
    pub fn deliver(&self) -> bool {
        match std::mem::replace(&mut *self.late.lock().unwrap(), Late::None) {
            Late::Sent(seen, late) => match self.inner.swap(&seen, late.as_ref(), &soon()).unwrap() {
                Swapped::Done => true,
                Swapped::Changed => false,
                Swapped::Unknown(error) => panic!("{error}"),
            },
            Late::None | Late::Next => panic!("nothing was held back"),
        }
    }

    /// The keys of all swaps so far, in their order.
    pub fn swapped(&self) -> Vec<String> {
        self.swapped.lock().unwrap().clone()
    }

    fn act(&self, when: When) {
        let act = {
            let mut acts = self.acts.lock().unwrap();
            let at = acts.iter().position(|(w, _)| *w == when);
            at.and_then(|at| acts.remove(at))
        };
        if let Some((_, mut act)) = act {
            act();
        }
    }
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Between")
    }
}

impl Backend for Between {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    fn schema(&self, what: Schema, by: &Deadline) -> leasehold::Result<String> {
        self.inner.schema(what, by)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> leasehold::Result<Acquired> {
        self.act(When::BeforeAcquire);
        let answer = self.inner.acquire(attempt, by);
        self.act(When::AfterAcquire);
        answer
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> leasehold::Result<Renewed> {
        let answer = self.inner.renew(attempt, renewal, by);
        self.act(When::AfterRenewal);
        answer
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> leasehold::Result<Released> {
        self.inner.release(attempt, purpose, by)
    }

    fn read(
        &self,
        which: &Which,
        from: Option<String>,
        consistency: Consistency,
        by: &Deadline,
    ) -> leasehold::Result<Page> {
        let answer = self.inner.read(which, from, consistency, by);
        self.act(When::AfterRead);
        answer
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> leasehold::Result<Swapped> {
        self.swapped.lock().unwrap().push(seen.record.key.clone());
        let late = std::mem::replace(&mut *self.late.lock().unwrap(), Late::None);
        match late {
            Late::None => {}
            Late::Next => {
                // Nobody has changed the record yet. The read has a deadline of its own, however little time the caller
                // has left.
                let which = Which::Key(seen.record.key.clone());
                let seen = self.inner.read(&which, None, Consistency::Strong, &soon())?.records.remove(0);
                *self.late.lock().unwrap() = Late::Sent(seen, new.cloned());
                return Ok(Swapped::Changed);
            }
            Late::Sent(seen, late) => assert!(matches!(self.inner.swap(&seen, late.as_ref(), by)?, Swapped::Done)),
        }
        self.act(When::BeforeSwap);
        let answer = self.inner.swap(seen, new, by);
        self.act(When::AfterSwap);
        answer
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> leasehold::Result<bool> {
        self.inner.wake(keys, to, by)
    }
}
