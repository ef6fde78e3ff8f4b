//! The one way from the client to its store. Every request except a wait for reports (`wake`) is reported to the
//! observer, and every error gets the key and the store that it is about. A user's own fenced transaction does not go
//! through here.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Acquired, Attempt, Backend, Consistency, Page, Purpose, Released, Renewal, Renewed, Schema, Seen, StoreInfo,
    Swapped, Which,
};
use crate::lease::LockRecord;
use crate::model::error::{Error, Result};
use crate::model::event::Operation;
use crate::model::key::shown;
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::observing::{Asked, Observing};
use crate::sys::process::ProcessId;
use crossbeam_channel::Sender;

/// See the module.
#[derive(Debug)]
pub struct Observed {
    inner: Arc<dyn Backend>,
    observing: Observing,
    /// The process that connected. A forked child of it sends nothing: over a connection of the parent's it would renew
    /// or release the parent's locks.
    process: ProcessId,
}

impl Observed {
    pub(crate) fn new(inner: Arc<dyn Backend>, observing: Observing) -> Self {
        Observed { inner, observing, process: ProcessId::current() }
    }

    fn run<T: Unknowable>(
        &self,
        operation: Operation,
        key: Option<&str>,
        call: impl FnOnce(&dyn Backend) -> Result<T>,
    ) -> Result<T> {
        let store = &self.info().label;
        let name = |error: Error| match key {
            Some(key) => error.with_key(key).with_store(store),
            None => error.with_store(store),
        };
        let started = Instant::now();
        let mut answer = self.process.check().and_then(|()| call(&*self.inner)).map_err(&name);
        let took = started.elapsed();
        let unanswered = answer.as_mut().ok().and_then(T::unknown).map(|error| {
            *error = name(error.clone().of_unknown());
            error.clone()
        });
        let unknown = unanswered.as_ref().map(|error| (error, Asked::Unknown));
        let error = unknown.or(answer.as_ref().err().map(|error| (error, Asked::Failed)));
        // The key as every other event shows it: the stored key of a lease has another form.
        self.observing.asked(operation, key.map(shown).as_deref(), took, error);
        answer
    }
}

/// The store behind `backend`, if it is a `B`. For features that only one store has.
pub fn native<B: Backend>(backend: &dyn Backend) -> Option<&B> {
    let any: &dyn Any = backend;
    match any.downcast_ref::<Observed>() {
        Some(observed) => native(&*observed.inner),
        None => any.downcast_ref(),
    }
}

impl Backend for Observed {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    fn grace(&self) -> Duration {
        self.inner.grace()
    }

    fn check_time(&self) -> Result<()> {
        self.inner.check_time()
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        self.run(Operation::Schema, None, |store| {
            let answer = store.schema(what, by);
            if what == Schema::Create { answer } else { answer.map_err(Error::of_read) }
        })
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        let key = attempt.key.clone();
        self.run(Operation::Acquire, Some(&key), |store| store.acquire(attempt, by))
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        let key = attempt.key.clone();
        self.run(Operation::Renew, Some(&key), |store| store.renew(attempt, renewal, by))
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        let key = attempt.key.clone();
        self.run(Operation::Release, Some(&key), |store| store.release(attempt, purpose, by))
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        let key = match which {
            Which::Key(key) => Some(key.as_str()),
            _ => None,
        };
        self.run(Operation::Read, key, |store| {
            let mut page = store.read(which, from, consistency, by).map_err(Error::of_read)?;
            // A row that a newer version wrote may have another meaning, even if its key seems to be free.
            match which {
                Which::Key(_) => page.records.iter().try_for_each(|s| s.record.check_format())?,
                Which::Prefix(_) => page.records.retain(is_readable),
                // A list skips such a row, but a group must not.
                Which::LockId(_) => {}
            }
            Ok(page)
        })
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.run(Operation::Swap, Some(&seen.record.key), |store| store.swap(seen, new, by))
    }

    fn wake(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        let answer = self.process.check().and_then(|()| self.inner.wake(keys, to, by));
        answer.map_err(|error| error.with_store(&self.info().label))
    }
}

/// Whether a list shows this row. It skips a row of a newer format, like a damaged one.
pub(crate) fn is_readable(seen: &Seen) -> bool {
    let newer = seen.record.check_format().err();
    if let Some(newer) = &newer {
        log::warn!(target: "leasehold::client", key:? = seen.record.key; "a row is passed over: it has {newer}");
    }
    newer.is_none()
}

/// An answer of a store, which may be that no answer came.
pub(crate) trait Unknowable: Sized {
    fn unknown(&mut self) -> Option<&mut Error> {
        None
    }

    /// The answer; an error if none came.
    fn known(mut self) -> Result<Self> {
        self.unknown().cloned().map_or(Ok(self), Err)
    }
}

impl Unknowable for String {}
impl Unknowable for Page {}

macro_rules! may_be_unknown {
    ($($answer:ident)*) => {$(
        impl Unknowable for $answer {
            fn unknown(&mut self) -> Option<&mut Error> {
                if let $answer::Unknown(error) = self { Some(error) } else { None }
            }
        }
    )*};
}
may_be_unknown!(Acquired Renewed Released Swapped);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::orders::spec;
    use crate::lease::Lease;
    use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
    use crate::store::memory::Memory;
    use crate::sys::clock::Clock;

    #[test]
    fn every_error_names_its_key_and_its_store() {
        let (faults, soon) = (FaultPlan::default(), Deadline::after(Duration::from_secs(60)));
        let memory = Arc::new(Memory::open("named", Clock::system()));
        let store = Observed::new(Arc::new(Faulty::new(memory, faults.clone())), Observing::default());
        let which = Which::Key("k".to_owned());
        let mut attempt = spec().attempt(store.info().grant_form.fresh(), Duration::from_secs(60));
        let seen = store.read(&which, None, Consistency::Strong, &soon).unwrap().records.remove(0);
        for fault in [|| Fault::FailBefore, || Fault::ApplyThenFail] {
            for call in [Call::Acquire, Call::Renew, Call::Release, Call::Read, Call::Swap, Call::Schema] {
                faults.next(call, fault());
                let lease = Renewal::heartbeat(Lease::For(Duration::from_secs(60)));
                let error = match call {
                    Call::Acquire => failed(store.acquire(&mut attempt, &soon)),
                    Call::Renew => failed(store.renew(&mut attempt, lease, &soon)),
                    Call::Release => failed(store.release(&mut attempt, Purpose::Release, &soon)),
                    Call::Read => failed(store.read(&which, None, Consistency::Strong, &soon)),
                    Call::Swap => failed(store.swap(&seen, None, &soon)),
                    _ => failed(store.schema(Schema::Check, &soon)),
                };
                let key = Some("k").filter(|_| call != Call::Schema);
                assert_eq!((error.key(), error.store()), (key, Some("memory:named")), "{call:?} {error:?}");
            }
        }
    }

    fn failed<T: Unknowable>(answer: Result<T>) -> Error {
        match answer {
            Ok(mut answer) => answer.unknown().expect("a fault").clone(),
            Err(error) => error,
        }
    }
}
