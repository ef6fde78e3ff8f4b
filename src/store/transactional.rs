//! Acquire, renew and release for stores that apply the pure transitions inside a serializable transaction.

use super::{Acquired, Attempt, Purpose, Released, Renewal, Renewed, Seen};
use crate::lease::record::NewerFormat;
use crate::lease::{
    AcquireAnswer, LockRecord, MAX_ACQUIRE_LEASE, ReleaseAnswer, RenewAnswer, Step, StoreTime, Times, transition,
};
use crate::model::error::{Error, ErrorKind, Result};
use crate::sys::deadline::Deadline;

/// A store with serializable read-write transactions.
pub trait Transactional {
    /// Reads the record of `key` (a missing one where there is no row), applies `transition` and
    /// writes its record if it gives one, all in one transaction.
    ///
    /// A store may stamp what it writes with the time of its commit; then the answer has the times of the record that was written.
    fn transact<A: Send + 'static>(
        &self,
        key: &str,
        durability: Durability,
        by: &Deadline,
        transition: impl FnMut(&LockRecord, &Times) -> Step<A> + Send + 'static,
    ) -> Result<Transacted<A>>;
}

/// What a commit must outlive, if the store has a choice; the weaker one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of the process. A power cut may undo a heartbeat or a release of a lease of up to a minute. Then the
    /// lease only ends sooner or later than its holder was told, and the holders' host is down anyway.
    Process,
    /// A power cut: a token that was given out is never given out again, and an end that others rely on after the
    /// process is gone stays. A longer lease, such as a minimum hold of hours, may be all that keeps the lock; and a
    /// longer one that a power cut brings back may never end.
    PowerCut,
}

impl Durability {
    /// How durable the commit of this change of holders must be.
    pub fn of(old: &LockRecord, new: &LockRecord, now: StoreTime) -> Self {
        let changes_long = |of: &LockRecord, to: &LockRecord| {
            of.holders().any(|(_, holder)| {
                let is_long = holder.until.left(now).is_none_or(|left| left > MAX_ACQUIRE_LEASE);
                is_long && to.standing(&holder.grant).is_none_or(|(_, same)| same.until != holder.until)
            })
        };
        if changes_long(old, new) || changes_long(new, old) { Durability::PowerCut } else { Durability::Process }
    }
}

/// How a transaction went.
#[derive(Debug)]
pub enum Transacted<A> {
    /// It is committed, or there was nothing to write. The record as it is now.
    Done(A, Seen),
    /// There was nothing to write, and what was found may be the work of an earlier try of this same transaction that
    /// was not answered: the error says so.
    Found(A, Seen, Error),
    /// The commit was not answered.
    Unknown(Error),
}

/// [`Backend::acquire`](super::Backend::acquire)
pub fn acquire(store: &impl Transactional, attempt: &Attempt, by: &Deadline) -> Result<Acquired> {
    let ask = attempt.ask.clone();
    let transition = move |record: &LockRecord, times: &Times| transition::acquire(record, &ask, times);
    let (answer, seen) = match store.transact(&attempt.key, Durability::PowerCut, by, transition)? {
        Transacted::Done(answer, seen) | Transacted::Found(answer, seen, _) => (answer, seen),
        Transacted::Unknown(error) => return Ok(Acquired::Unknown(error)),
    };
    match answer {
        AcquireAnswer::Granted { holder, repeated } => {
            let holder = seen.record.standing(attempt.grant()).map_or(holder, |(_, stands)| stands.clone());
            Ok(Acquired::Granted { holder, repeated, now: seen.times.now })
        }
        AcquireAnswer::Refused(_) => {
            seen.record.check_format()?;
            Ok(Acquired::Refused(seen))
        }
    }
}

/// [`Backend::renew`](super::Backend::renew)
pub fn renew(store: &impl Transactional, attempt: &Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
    let grant = attempt.grant().clone();
    let transacted = store.transact(&attempt.key, Durability::Process, by, move |record, times| {
        transition::renew(record, &grant, renewal, times)
    })?;
    Ok(match transacted {
        Transacted::Done(RenewAnswer::Until(until), seen) | Transacted::Found(RenewAnswer::Until(until), seen, _) => {
            let until = seen.record.standing(attempt.grant()).map_or(until, |(_, stands)| stands.until);
            Renewed::Until { until, now: seen.times.now }
        }
        Transacted::Done(RenewAnswer::Lost, seen) | Transacted::Found(RenewAnswer::Lost, seen, _) => {
            Renewed::Lost(seen)
        }
        Transacted::Unknown(error) => Renewed::Unknown(error),
    })
}

/// [`Backend::release`](super::Backend::release)
pub fn release(store: &impl Transactional, attempt: &Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
    let how = match purpose {
        Purpose::Release => transition::release,
        Purpose::GiveUp => transition::give_up,
    };
    let grant = attempt.grant().clone();
    let transacted =
        store.transact(&attempt.key, Durability::Process, by, move |record, times| how(record, &grant, times))?;
    Ok(match transacted {
        Transacted::Done(ReleaseAnswer::Released, _) => Released::Done,
        Transacted::Done(ReleaseAnswer::Free, _) => Released::Free,
        Transacted::Done(ReleaseAnswer::HeldByOther, seen) => Released::HeldByOther(seen),
        // An earlier try of this release, which was not answered, may have freed the key.
        Transacted::Found(_, _, error) | Transacted::Unknown(error) => Released::Unknown(error),
    })
}

impl From<NewerFormat> for Error {
    fn from(found: NewerFormat) -> Error {
        Error::new(ErrorKind::Schema, format!("its record has {found}"))
    }
}
