//! The transitions of a lease that a name holds: it is claimed, extended, and ends when somebody expires it.

use std::time::Duration;

use super::record::{End, GrantId, Holder, Kind, Labels, Lease, LockRecord};
use super::transition::{Step, Times};

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Names this claim, so that a repeat finds what an earlier copy of it wrote.
    pub grant: GrantId,
    /// Every holder in a record needs a lock id; that of a lease shows only in a loss to a later claim.
    pub lock_id: String,
    /// `owner` is the name that holds the lease.
    pub labels: Labels,
    /// How long the lease lasts at least.
    pub duration: Duration,
}

/// Why a lease is not in the state that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// Somebody holds it, expired or not.
    Stands,
    /// Nobody holds it.
    Free,
    /// Another name holds it.
    HeldByOther,
    /// Its time is not over.
    StillRuns,
    /// Somebody asked that it be kept.
    Pinned,
}

/// The answer to a call about a holder: the holder as it is afterwards, or as it was before it was removed.
pub type LeaseAnswer = Result<Holder, LeaseRefusal>;

/// Gives the lease to a name. A lease that somebody holds is refused, even an expired one, even to the same name.
pub fn claim(record: &LockRecord, claim: &Claim, times: &Times) -> Step<LeaseAnswer> {
    if let Some((_, mine)) = record.standing(&claim.grant) {
        return Step::keep(Ok(mine.clone()));
    }
    if record.exclusive.is_some() {
        return Step::keep(Err(LeaseRefusal::Stands));
    }
    let holder = record.grant(&claim.grant, &claim.lock_id, &claim.labels, claim.duration, times);
    let next = LockRecord { kind: Kind::Lease, token: holder.token, exclusive: Some(holder.clone()), ..record.clone() };
    Step::write(Ok(holder), next)
}

/// Makes the lease last for `duration` from now on, even if it has expired. A later end stays as it is.
pub fn extend(record: &LockRecord, owner: &str, duration: Duration, times: &Times) -> Step<LeaseAnswer> {
    let holder = match held_by(record, owner) {
        Ok(holder) => holder,
        Err(refusal) => return Step::keep(Err(refusal)),
    };
    let until = Lease::For(duration).end(times.now);
    if holder.until >= until && !times.ends_are_bounds {
        return confirm(record, Ok(holder.clone()), times);
    }
    let extended = Holder { until: until.max(holder.until), renewed: Some(times.now), ..holder.clone() };
    Step::write(Ok(extended.clone()), LockRecord { exclusive: Some(extended), ..record.clone() })
}

/// Ends the lease, if its time and the store's grace are over and nobody pins it.
pub fn expire(record: &LockRecord, times: &Times) -> Step<LeaseAnswer> {
    let refused = |refusal| Step::keep(Err(refusal));
    match &record.exclusive {
        None => refused(LeaseRefusal::Free),
        Some(holder) if holder.until > End::At(times.expired_before) => refused(LeaseRefusal::StillRuns),
        Some(_) if !record.pins.is_empty() => refused(LeaseRefusal::Pinned),
        Some(holder) => end(record, holder),
    }
}

/// Ends the lease for the name that holds it, expired or not, pinned or not.
pub fn revoke(record: &LockRecord, owner: &str, times: &Times) -> Step<LeaseAnswer> {
    match held_by(record, owner) {
        Ok(holder) => end(record, holder),
        Err(LeaseRefusal::Free) => confirm(record, Err(LeaseRefusal::Free), times),
        Err(refusal) => Step::keep(Err(refusal)),
    }
}

/// Keeps the lease from being expired, now and after a later claim, until it is unpinned. Answers whether that is new.
pub fn pin(record: &LockRecord, entity: &str, times: &Times) -> Step<bool> {
    let mut next = record.clone();
    let is_new = next.pins.insert(entity.to_owned());
    confirm(&next, is_new, times)
}

/// Takes back what [`pin`] did. Answers whether the lease was pinned.
pub fn unpin(record: &LockRecord, entity: &str, times: &Times) -> Step<bool> {
    let mut next = record.clone();
    let was_pinned = next.pins.remove(entity);
    confirm(&next, was_pinned, times)
}

/// Writes the record even if the call changes nothing in it. Otherwise an earlier call that did the opposite, and was
/// not answered, could still arrive after this one. A new row gets a token like that of a grant, so that a purge leaves
/// it for as long as after a grant.
fn confirm<A>(record: &LockRecord, answer: A, times: &Times) -> Step<A> {
    let token = if record.exists() { record.token } else { times.stamp };
    Step::write(answer, LockRecord { kind: Kind::Lease, token, ..record.clone() })
}

fn held_by<'a>(record: &'a LockRecord, owner: &str) -> Result<&'a Holder, LeaseRefusal> {
    match &record.exclusive {
        None => Err(LeaseRefusal::Free),
        Some(holder) if holder.labels.owner != owner => Err(LeaseRefusal::HeldByOther),
        Some(holder) => Ok(holder),
    }
}

fn end(record: &LockRecord, holder: &Holder) -> Step<LeaseAnswer> {
    Step::write(Ok(holder.clone()), LockRecord { exclusive: None, ..record.clone() })
}
