//! The transitions of a [`LockRecord`]: each a pure function of the record, the request and the times.

use std::time::Duration;

use super::record::{End, GrantId, Holder, Kind, Labels, Lease, LockRecord, Mode, StoreTime};

/// The times that a transition decides by, all of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The store's current time. DynamoDB's is known only within bounds: a grant or a renewal is written by their
    /// middle. With a row that was read comes a time that is no earlier, and later where the bounds are wide.
    pub now: StoreTime,
    /// A lease that ended by then holds no longer. It is at least the store's grace before `now`.
    pub expired_before: StoreTime,
    /// The store's time in microseconds since 1970, from which tokens are made.
    pub stamp: u64,
    /// An end in the record may be only the latest that it can be, because a process with another clock wrote it. So a
    /// lease that looks long enough already is written all the same.
    pub ends_are_bounds: bool,
}

impl Times {
    /// The times of a store whose clock all its clients share, so that it needs no grace.
    pub fn without_grace(now: StoreTime, stamp: u64) -> Self {
        Times { now, expired_before: now, stamp, ends_are_bounds: false }
    }
}

impl LockRecord {
    /// The holder that a grant puts here now. Its token is above all earlier ones, and at least the time (`stamp`).
    pub fn grant(&self, grant: &GrantId, lock_id: &str, labels: &Labels, lease: Duration, times: &Times) -> Holder {
        Holder {
            grant: grant.clone(),
            lock_id: lock_id.to_owned(),
            labels: labels.clone(),
            token: self.token.saturating_add(1).max(times.stamp),
            created: times.now,
            renewed: None,
            until: Lease::For(lease).end(times.now),
        }
    }
}

/// What an acquisition asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Names this acquisition.
    pub grant: GrantId,
    /// Alone or together with others.
    pub mode: Mode,
    /// The group that the holder will belong to.
    pub lock_id: String,
    /// What people read about the holder.
    pub labels: Labels,
    /// How long the first lease lasts.
    pub lease: Duration,
    /// Shared mode: how many may hold at the same time, this one included.
    pub max_holders: Option<u32>,
    /// A live exclusive holder with the same owner label is replaced.
    pub replace_same_owner: bool,
    /// A transfer: take the place of this grant, which must still hold with this token.
    pub instead_of: Option<(GrantId, u64)>,
}

impl Ask {
    /// The plain case: an exclusive lock that replaces no other holder.
    pub fn exclusive(grant: GrantId, lock_id: String, labels: Labels, lease: Duration) -> Self {
        Ask {
            grant,
            mode: Mode::Exclusive,
            lock_id,
            labels,
            lease,
            max_holders: None,
            replace_same_owner: false,
            instead_of: None,
        }
    }
}

/// The part of a request that decides which holders it must wait for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Alone or together with others.
    pub mode: Mode,
    /// As in [`Ask`].
    pub max_holders: Option<u32>,
    /// The group that was asked for: a request waits for the other holders of its own group, too.
    pub lock_id: Option<&'a str>,
    /// An exclusive holder with this owner label is replaced.
    pub replaces: Option<&'a str>,
}

impl Wanted<'_> {
    /// The plain case: an exclusive lock.
    pub const EXCLUSIVE: Wanted<'static> =
        Wanted { mode: Mode::Exclusive, max_holders: None, lock_id: None, replaces: None };

    fn replaces(&self, mode: Mode, holder: &Holder) -> bool {
        let both = self.mode == Mode::Exclusive && mode == Mode::Exclusive;
        both && self.replaces == Some(&holder.labels.owner)
    }
}

impl<'a> From<&'a Ask> for Wanted<'a> {
    fn from(ask: &'a Ask) -> Self {
        let replaces = ask.replace_same_owner.then_some(ask.labels.owner.as_str());
        Wanted { mode: ask.mode, max_holders: ask.max_holders, lock_id: Some(&ask.lock_id), replaces }
    }
}

/// What a transition answers, and the record to write; with `None` nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<A> {
    /// The answer.
    pub answer: A,
    /// The record to write, with its version raised.
    pub record: Option<LockRecord>,
}

impl<A> Step<A> {
    pub(super) fn keep(answer: A) -> Self {
        Step { answer, record: None }
    }

    pub(super) fn write(answer: A, mut record: LockRecord) -> Self {
        // It must not overflow: a row may hold any number.
        record.version = record.version.saturating_add(1);
        Step { answer, record: Some(record) }
    }

    /// The same step, unless it writes nothing and what was read `may_be_undone`: then it writes the record again as it
    /// is, since only a write proves that it stays. For an answer that says that all is as the caller wants it.
    pub fn settled(self, record: &LockRecord, may_be_undone: bool) -> Self {
        match self.record {
            None if may_be_undone && record.exists() => Step::write(self.answer, record.clone()),
            _ => self,
        }
    }
}

/// The answer to [`acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The holder as it is now.
    Granted {
        /// The entry in the record.
        holder: Holder,
        /// Whether an earlier copy of the same request put it there.
        repeated: bool,
    },
    /// Nothing was written.
    Refused(Refusal),
}

/// Why an acquisition was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Others hold the key.
    Held,
    /// A live holder has the same lock id.
    SameLockId,
    /// As many shared holders as the request allows are there already.
    Full,
    /// A transfer from a grant that does not hold any more.
    NotStanding,
    /// This acquisition was given up.
    GivenUp,
    /// The key is a lease, which only the lease calls may take.
    Lease,
    /// The row was written by a newer major version.
    NewerFormat,
}

/// How far a renewal extends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The lease from now on.
    pub lease: Lease,
    /// Whether the renewal may give an endless lease an end.
    pub may_end_endless: bool,
}

impl Renewal {
    /// The renewal of a heartbeat: an endless lease stays endless.
    pub fn heartbeat(lease: Lease) -> Self {
        Renewal { lease, may_end_endless: false }
    }
}

/// The answer to [`renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The grant holds until then.
    Until(End),
    /// The grant does not hold any more.
    Lost,
}

/// The answer to [`release`] and [`give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The grant was in the record, expired or not, and is removed.
    Released,
    /// Nobody holds the key.
    Free,
    /// Others hold the key, this grant does not.
    HeldByOther,
}

/// Grants the key, finds an earlier grant of the same request, or refuses.
///
/// Expired holders are dropped in the same write, so correctness never needs a purge.
pub fn acquire(record: &LockRecord, ask: &Ask, times: &Times) -> Step<AcquireAnswer> {
    if record.check_format().is_err() {
        return Step::keep(AcquireAnswer::Refused(Refusal::NewerFormat));
    }
    if record.given_up.contains(&ask.grant) {
        return Step::keep(AcquireAnswer::Refused(Refusal::GivenUp));
    }
    if let Some((_, holder)) = record.standing(&ask.grant).filter(|(_, h)| h.until.is_after(times.expired_before)) {
        return Step::keep(AcquireAnswer::Granted { holder: holder.clone(), repeated: true });
    }
    if record.kind == Kind::Lease {
        return Step::keep(AcquireAnswer::Refused(Refusal::Lease));
    }
    if let Some(refusal) = refusal(record, ask, times) {
        return Step::keep(AcquireAnswer::Refused(refusal));
    }
    let holder = record.grant(&ask.grant, &ask.lock_id, &ask.labels, ask.lease, times);
    let mut next = record.clone();
    next.token = holder.token;
    if let Some((old, _)) = &ask.instead_of {
        next.take(old);
    }
    next.shared.retain(|h| h.until.is_after(times.expired_before));
    match ask.mode {
        Mode::Exclusive => next.exclusive = Some(holder.clone()),
        Mode::Shared => {
            next.exclusive = None;
            next.shared.push(holder.clone());
        }
    }
    Step::write(AcquireAnswer::Granted { holder, repeated: false }, next)
}

/// Why `ask` cannot be granted now, if it can't.
fn refusal(record: &LockRecord, ask: &Ask, times: &Times) -> Option<Refusal> {
    let stands = |(grant, token): &(GrantId, u64)| record.standing(grant).is_some_and(|(_, h)| h.token == *token);
    let replaced = match &ask.instead_of {
        Some(old) if !stands(old) => return Some(Refusal::NotStanding),
        Some((old, _)) => Some(old),
        None => None,
    };
    let others = || record.live(times.expired_before).filter(|(_, h)| Some(&h.grant) != replaced);
    let wanted = Wanted::from(ask);
    // A transfer keeps the place of its old grant: the limit was checked when that was granted.
    let limit = ask.max_holders.filter(|_| replaced.is_none());
    let blocking = || others().filter(|(mode, h)| !wanted.replaces(*mode, h));
    if blocking().any(|(_, h)| h.lock_id == ask.lock_id) {
        return Some(Refusal::SameLockId);
    }
    match ask.mode {
        Mode::Exclusive => blocking().next().map(|_| Refusal::Held),
        Mode::Shared if blocking().any(|(mode, _)| mode == Mode::Exclusive) => Some(Refusal::Held),
        Mode::Shared => limit.filter(|n| blocking().count() >= *n as usize).map(|_| Refusal::Full),
    }
}

/// Extends a lease for as long as its grant holds, expired or not.
///
/// An end never moves backwards, so a delayed renewal behind a newer one changes
/// nothing. An endless lease stays endless unless the renewal may end it.
pub fn renew(record: &LockRecord, grant: &GrantId, renewal: Renewal, times: &Times) -> Step<RenewAnswer> {
    let Some((_, holder)) = record.standing(grant) else {
        return Step::keep(RenewAnswer::Lost);
    };
    let asked = renewal.lease.end(times.now);
    let until = if holder.until == End::Never && renewal.may_end_endless { asked } else { holder.until.max(asked) };
    if until == holder.until && asked != until && !times.ends_are_bounds {
        return Step::keep(RenewAnswer::Until(until));
    }
    let mut next = record.clone();
    if let Some(holder) = next.standing_mut(grant) {
        holder.until = until;
        holder.renewed = Some(times.now);
    }
    Step::write(RenewAnswer::Until(until), next)
}

/// Removes the holder and keeps the record with its token.
pub fn release(record: &LockRecord, grant: &GrantId, times: &Times) -> Step<ReleaseAnswer> {
    let mut next = record.clone();
    match next.take(grant) {
        Some(_) => Step::write(ReleaseAnswer::Released, next),
        None if record.live(times.expired_before).next().is_none() => Step::keep(ReleaseAnswer::Free),
        None => Step::keep(ReleaseAnswer::HeldByOther),
    }
}

/// The answer to [`keep_standing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAnswer {
    /// The place of the grant is kept until the time is over.
    Kept,
    /// The time is over, or the grant does not hold any more.
    Over,
}

/// The least time that a grant must remain in the store, as its guard knows it.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    /// When it was granted, by the store's clock: the record may say something else where a process with another clock has
    /// renewed it.
    pub granted: StoreTime,
    /// How long the grant must remain in the store at least, counted from `granted`.
    pub time: Duration,
    /// At most this much of that time is left, by the guard's own count.
    pub left: Duration,
}

impl Least {
    fn end(&self, now: StoreTime) -> End {
        // `left` bounds it, since the store's clock may have been set back since the grant.
        Lease::For(self.time).end(self.granted).min(Lease::For(self.left).end(now))
    }
}

/// Ends a grant before its least time is over: until then its place is kept by an entry that nobody can renew, since
/// no guard has its grant id, `kept_as`, and no group its lock id, which is the same text.
pub fn keep_standing(
    record: &LockRecord,
    grant: &GrantId,
    kept_as: &GrantId,
    least: Least,
    times: &Times,
) -> Step<KeepAnswer> {
    if record.standing(kept_as).is_some() {
        return Step::keep(KeepAnswer::Kept);
    }
    let end = least.end(times.now);
    let mut next = record.clone();
    match next.standing_mut(grant) {
        Some(holder) if end.is_after(times.expired_before) => {
            holder.until = end;
            holder.created = least.granted;
            // A process with another clock counts what is left of the lease from this time on.
            holder.renewed = Some(times.now);
            holder.grant = kept_as.clone();
            kept_as.as_str().clone_into(&mut holder.lock_id);
            Step::write(KeepAnswer::Kept, next)
        }
        _ => Step::keep(KeepAnswer::Over),
    }
}

/// Whether [`keep_standing`] made this change: a holder has the same token as before, but a new grant id.
pub fn keeps(before: &LockRecord, after: &LockRecord) -> bool {
    let is_kept = |holder: &Holder| {
        before.holders().any(|(_, old)| old.token == holder.token && before.standing(&holder.grant).is_none())
    };
    after.holders().any(|(_, holder)| is_kept(holder))
}

/// Releases an acquisition that was never answered and makes sure that no late copy of it is granted.
pub fn give_up(record: &LockRecord, grant: &GrantId, times: &Times) -> Step<ReleaseAnswer> {
    let released = release(record, grant, times);
    if released.record.is_none() && record.given_up.contains(grant) {
        return released;
    }
    let mut next = record.clone();
    next.take(grant);
    next.given_up.insert(grant.clone());
    next.gave_up_at = next.gave_up_at.max(times.stamp);
    Step::write(released.answer, next)
}

/// What [`purge`] did to one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The holders that were freed.
    pub freed: Vec<(Mode, Holder)>,
    /// The row is free and old: it may be deleted, since later tokens, made from the time, are higher even without it.
    pub delete: bool,
}

/// Frees the holders whose lease ended at or before `ended_before`. A name that holds a lease keeps it until somebody
/// expires it, and pins stay until they are taken back.
///
/// A row that is free afterwards may be deleted, if its token and the last acquisition that was given up are older than
/// `idle_before`. A late copy of an acquisition would be granted if the row is missing, but no copy takes that long.
pub fn purge(record: &LockRecord, ended_before: StoreTime, idle_before: u64) -> Step<Purge> {
    let mut next = record.clone();
    let mut freed = Vec::new();
    if record.kind == Kind::Lock {
        let ended = |h: &Holder| !h.until.is_after(ended_before);
        freed.extend(next.exclusive.take_if(|h| ended(h)).map(|h| (Mode::Exclusive, h)));
        freed.extend(next.shared.extract_if(.., |h| ended(h)).map(|h| (Mode::Shared, h)));
    }
    let delete = record.exists()
        && next.holders().next().is_none()
        && next.pins.is_empty()
        && next.token.max(next.gave_up_at) < idle_before;
    if freed.is_empty() && !delete {
        return Step::keep(Purge { freed, delete });
    }
    Step::write(Purge { freed, delete }, next)
}

/// Whether somebody may get the lock after this change, or sooner than before it: a holder went, or an end moved
/// back. Then a store wakes its waiters.
pub fn frees(before: &LockRecord, after: &LockRecord) -> bool {
    let ends = |record: &LockRecord| {
        let mut ends: Vec<End> = record.shared.iter().map(|h| h.until).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends
    };
    let sooner = |before: Option<&End>, after: Option<&End>| before.is_some_and(|end| after.is_none_or(|e| e < end));
    let exclusive = [before, after].map(|record| record.exclusive.as_ref().map(|h| h.until));
    let (shared, left) = (ends(before), ends(after));
    sooner(exclusive[0].as_ref(), exclusive[1].as_ref())
        || (0..shared.len()).any(|at| sooner(shared.get(at), left.get(at)))
}

/// How long it takes at least until `wanted` could be granted if nobody releases; `None`: never.
///
/// Zero when the lock looks free already. A waiter looks again at the moment that this gives.
pub fn free_in(record: &LockRecord, wanted: &Wanted<'_>, now: StoreTime) -> Option<Duration> {
    let keeps_out =
        |mode: Mode, h: &Holder| [wanted.mode, mode].contains(&Mode::Exclusive) || wanted.lock_id == Some(&h.lock_id);
    let blocking = record.live(now).filter(|(mode, h)| keeps_out(*mode, h) && !wanted.replaces(*mode, h));
    let mut ends: Vec<End> = blocking.map(|(_, h)| h.until).collect();
    if let (Mode::Shared, Some(max)) = (wanted.mode, wanted.max_holders) {
        let mut shared: Vec<End> = record.shared.iter().map(|h| h.until).filter(|end| end.is_after(now)).collect();
        shared.sort();
        // How many must go before one more fits.
        let surplus = (shared.len() + 1).saturating_sub(max as usize);
        ends.extend(shared.into_iter().take(surplus));
    }
    ends.into_iter().max().map_or(Some(Duration::ZERO), |end| end.left(now))
}
