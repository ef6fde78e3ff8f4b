//! Leases of a named holder: any client can claim and extend them for the holder, and expire them after their time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use crate::api::client::{LockClient, attempt_of};
use crate::api::update::Snapshot;
use crate::engine::options::check_duration;
use crate::engine::spec::{Callbacks, Chain, Granted};
use crate::lease::claim::{self, Claim, LeaseAnswer, LeaseRefusal};
use crate::lease::{Holder, Kind, Lease, LockRecord, Step, Times, Wanted, backoff, transition};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::{self, check_text};
use crate::model::lease_status::LeaseStatus;
use crate::store::{Consistency, Seen, Which};
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::Deadline;
use crate::sys::random;

mod keeper;

pub use keeper::LeaseKeeper;

/// The leases of one namespace, from [`LockClient::leases`]. Cheap to clone.
///
/// A lease is not held by a thread or a process: somebody *claims* a name for a holder, anyone may *extend* it for
/// that holder, and it ends only when somebody *expires* it after its time, or the holder *revokes* it. So it lasts
/// over restarts: "this unit leads that application". No purge and no time-to-live ends it.
///
/// # What is promised
/// - A claim that succeeds, and an extension that does, promise the holder the lease until at least `duration` after
///   the *start of the call*, whatever the network did meanwhile. They do not promise that it ends soon after that: it
///   ends when somebody expires it. On DynamoDB the promised time may be up to 50 ms shorter, and on MongoDB 1 ms:
///   clients may differ by that much on the store's time. On MongoDB and PostgreSQL it is also shorter by as much as the
///   clocks of the servers differ (routers, a later primary): stop a margin earlier, or let [`keep`](Leases::keep) do so.
/// - The store decides by its own clock. The times that are shown are this host's: compare them only with each other,
///   and only on this host.
/// - A call that is impossible fails with [`InvalidLease`](ErrorKind::InvalidLease). That is normal; the error
///   [carries](Error::lease) the lease as it was found, so that the caller need not read it again. Every call reads
///   the store.
/// - Leases and locks of one store never meet, whatever their names.
///
/// # What identifies the holder
/// Only the text `holder`. A process that was stopped, and goes on, shares, extends or revokes the lease of a successor
/// with the same text. If two processes, or two lives of one, could use the same text, put something unique in it. If it
/// must stay the same, compare the [`fencing_token`](LeaseStatus::fencing_token) with that of your claim before `keep`
/// or `revoke`.
///
/// # Example
/// ```
/// use leasehold::{ErrorKind, LockClient};
/// use std::time::Duration;
///
/// let leases = LockClient::connect("memory:")?.leases("application-leader");
/// let minute = Duration::from_secs(60);
/// leases.claim("wordpress", "wordpress/0", minute)?;
///
/// let refused = leases.claim("wordpress", "wordpress/1", minute).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::InvalidLease);
/// assert_eq!(refused.lease().unwrap().holder(), "wordpress/0");
///
/// leases.extend("wordpress", "wordpress/0", 2 * minute)?;
/// assert_eq!(leases.expire("wordpress").unwrap_err().kind(), ErrorKind::InvalidLease);
/// leases.revoke("wordpress", "wordpress/0")?;
/// assert!(leases.get("wordpress")?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leases {
    client: LockClient,
    namespace: String,
}

impl LockClient {
    /// The leases of a namespace. Does no I/O; a namespace out of bounds is reported by the calls on the leases.
    pub fn leases(&self, namespace: &str) -> Leases {
        Leases { client: self.clone(), namespace: namespace.to_owned() }
    }
}

impl Leases {
    pub(crate) fn client(&self) -> &LockClient {
        &self.client
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Claims the lease `name` for `holder`.
    ///
    /// # Errors
    /// `InvalidLease` when somebody holds it, even the same holder, and even if it is expired; `InvalidInput` for a
    /// name out of bounds or a duration below the store's shortest lease or above 30 days; `Ambiguous` or `Store` when
    /// the call was not answered within the request timeout: then the lease may be claimed, at once or a moment later.
    /// [`extend`](Leases::extend) succeeds once it is; after [`revoke`](Leases::revoke) it cannot be any more.
    pub fn claim(&self, name: &str, holder: &str, duration: Duration) -> Result<LeaseStatus> {
        let key = self.key(name)?;
        self.check_holder(&key, holder)?;
        self.check_duration(&key, duration)?;
        let family = &self.client.family;
        let claim = Claim {
            grant: family.backend.info().grant_form.fresh(),
            lock_id: random::uuid().to_string(),
            labels: family.labels(Some(holder.to_owned())),
            duration,
        };
        self.change(&key, |record, times| claim::claim(record, &claim, times), decided_again)
    }

    /// Makes the lease of `holder` last for `duration` from now on; never shortens it. Its time may be over already, as
    /// long as nobody has expired it. Concurrent extensions do no harm. In SQLite a process with another clock (after a
    /// reboot, in a container with its own, outside Linux) cannot know the end that was written: it counts the whole
    /// lease from when it first saw the lease. Extended there, the lease may last until then.
    ///
    /// # Errors
    /// `InvalidLease` when nobody or another holder has it; otherwise as [`claim`](Leases::claim).
    pub fn extend(&self, name: &str, holder: &str, duration: Duration) -> Result<LeaseStatus> {
        let key = self.key(name)?;
        self.extended(&key, holder, duration).map(|(status, _, _)| status)
    }

    fn extended(&self, key: &str, holder: &str, duration: Duration) -> Result<(LeaseStatus, Holder, Snapshot)> {
        self.check_holder(key, holder)?;
        self.check_duration(key, duration)?;
        self.settled(key, |record, times| claim::extend(record, holder, duration, times), decided_again)
    }

    /// Ends the lease `name` if its time is over. In SQLite each reboot can make it last for its whole time
    /// [once more](crate::guide::guarantees#assumptions); [`revoke`](Leases::revoke) ends it.
    ///
    /// # Errors
    /// `InvalidLease` when nobody holds it, its time is not over, or somebody [pins](Leases::pin) it; `Store` when its time
    /// may be over, but the store does not report the time any more (DynamoDB behind a proxy that hides it); otherwise
    /// as [`claim`](Leases::claim).
    pub fn expire(&self, name: &str) -> Result<()> {
        let key = self.key(name)?;
        self.change(&key, claim::expire, is_gone).map(drop)
    }

    /// Ends the lease of `holder`, even before its time, and even if it is pinned. If nobody holds the lease, the call
    /// still writes its row, so that an earlier claim that was not answered cannot take effect afterwards.
    ///
    /// # Errors
    /// `InvalidLease` when nobody or another holder has it; otherwise as [`claim`](Leases::claim).
    pub fn revoke(&self, name: &str, holder: &str) -> Result<()> {
        let key = self.key(name)?;
        self.check_holder(&key, holder)?;
        self.change(&key, |record, times| claim::revoke(record, holder, times), is_gone).map(drop)
    }

    /// The lease `name`; `None` when nobody holds it.
    ///
    /// # Errors
    /// `InvalidInput` for a name out of bounds; otherwise the store's error.
    pub fn get(&self, name: &str) -> Result<Option<LeaseStatus>> {
        let found = self.found(&self.key(name)?)?;
        Ok(LeaseStatus::seen(&found.seen))
    }

    /// Every lease of the namespace that somebody holds, expired or not, by name.
    ///
    /// # Errors
    /// `InvalidInput` for a namespace out of bounds; otherwise the store's error.
    pub fn list(&self) -> Result<Vec<LeaseStatus>> {
        self.client.family.check_open()?;
        let prefix = self.check(key::prefix(&self.namespace))?;
        let mut all = Vec::new();
        self.client.read_all(&Which::Prefix(prefix), Consistency::Strong, |seen, _| {
            all.extend(LeaseStatus::seen(&seen));
            Ok(())
        })?;
        all.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(all)
    }

    /// Reads a lease again and updates `lease`, which may be of any namespace.
    ///
    /// # Errors
    /// `InvalidLease`, with the lease as it is now, when this claim of it has ended; otherwise the store's error. After
    /// an error `lease` is unchanged.
    pub fn refresh(&self, lease: &mut LeaseStatus) -> Result<()> {
        self.client.family.check_open()?;
        let found = self.found(&lease.lock.key)?;
        match LeaseStatus::seen(&found.seen) {
            Some(now) if now.fencing_token() == lease.fencing_token() => {
                *lease = now;
                Ok(())
            }
            Some(now) => Err(self.invalid(&found, "it was claimed anew since").with_lease(now)),
            None => Err(self.refused(&found, LeaseRefusal::Free)),
        }
    }

    /// Keeps the name from being expired until [`unpin`](Leases::unpin), on behalf of `entity`. Several entities may
    /// pin it, and a pin outlasts the claim. Pinning again changes nothing, but still writes the row, so that an
    /// earlier [`unpin`](Leases::unpin) that was not answered cannot take effect afterwards.
    ///
    /// # Errors
    /// `InvalidInput` for a text out of bounds; otherwise the store's error.
    pub fn pin(&self, name: &str, entity: &str) -> Result<()> {
        self.pinned(name, entity, claim::pin)
    }

    /// Takes back what [`pin`](Leases::pin) did for `entity`. If there is nothing to take back it succeeds, and still
    /// writes the row, so that an earlier [`pin`](Leases::pin) that was not answered cannot take effect afterwards.
    ///
    /// # Errors
    /// As [`pin`](Leases::pin).
    pub fn unpin(&self, name: &str, entity: &str) -> Result<()> {
        self.pinned(name, entity, claim::unpin)
    }

    /// The entities that pin the name, whether it is held or not.
    ///
    /// # Errors
    /// As [`get`](Leases::get).
    pub fn pinned_by(&self, name: &str) -> Result<BTreeSet<String>> {
        Ok(self.found(&self.key(name)?)?.seen.record.pins)
    }

    fn pinned(&self, name: &str, entity: &str, rule: fn(&LockRecord, &str, &Times) -> Step<bool>) -> Result<()> {
        let key = self.key(name)?;
        self.check(check_text("entity", entity)).map_err(|error| error.with_key(&key))?;
        let by = self.client.family.request_deadline();
        let found = self.client.look_to_change(&key, &by)?;
        self.client
            .update(found, &by, |found| Ok(rule(&found.seen.record, entity, &found.seen.times)), decided_again)
            .map(drop)
    }

    /// Waits until the lease can be expired: until its time is over, or nobody holds it. It does not expire it, and
    /// an extension may come before anybody does.
    ///
    /// It polls at the client's [poll](crate::ClientBuilder::poll) interval, and at the very end of the lease, because
    /// the store sends no event when a lease's time runs out. It does not wait for pins to be taken back.
    ///
    /// # Errors
    /// `Cancelled`; `Closed`; `InvalidInput` for a name out of bounds; the store's error if a repeat can't help.
    pub fn wait_until_expired(&self, name: &str, cancel: &CancelToken) -> Result<()> {
        let key = self.key(name)?;
        let family = &self.client.family;
        let by = Deadline::after(Duration::MAX).or_cancel(family.closing()).or_cancel(cancel);
        let started = Instant::now();
        loop {
            let (waited, random) = (started.elapsed(), random::fraction());
            let within = by.clone().within(family.options.request_timeout);
            let found = match self.client.glance(&key, &within) {
                // That may be out of date, or a failover may undo it.
                Ok(found) if free_in(&found) == Some(Duration::ZERO) => self.client.look(&key, &within),
                found => found,
            };
            let delay = match found.map(|found| free_in(&found)) {
                Ok(Some(Duration::ZERO)) => return Ok(()),
                Ok(free_in) => backoff::poll_delay(&family.options.poll, waited, free_in, random),
                Err(error) if error.is_retryable() || by.is_over() => {
                    backoff::failed_look_delay(&family.options.poll, waited, random)
                }
                Err(error) => return Err(error),
            };
            if !by.wait_for(delay) {
                family.check_open()?;
                return Err(self.client.error(ErrorKind::Cancelled, &key, "the wait was cancelled"));
            }
        }
    }

    /// Extends the lease of `holder` now; then a thread of its own goes on extending it until the keeper is dropped.
    ///
    /// Dropping it does not end the lease: it ends when it is expired or [revoked](Leases::revoke).
    ///
    /// # Errors
    /// As [`extend`](Leases::extend).
    pub fn keep(&self, name: &str, holder: &str, duration: Duration) -> Result<LeaseKeeper> {
        let key = self.key(name)?;
        let family = &self.client.family;
        let _call = family.obtaining()?;
        let terms = family.options.terms_of_named_lease(duration);
        let wall = SystemTime::now();
        let (status, holder, found) = self.extended(&key, holder, duration)?;
        let now = found.seen.times.now;
        let granted = Granted {
            attempt: attempt_of(&status.lock),
            // Counted to the lease's own end: it may be later than `duration` from now, since extending never shortens.
            held_until: terms.held_until(Lease::Forever, found.asked, holder.until, now),
            chain: Chain { times: 0, since: found.asked },
            holder,
            now,
            wall,
            noted: None,
        };
        family.keep(granted, terms, Callbacks::default()).map(|hold| LeaseKeeper::new(hold, family.clone(), name))
    }

    /// The key of a lease's row.
    fn key(&self, name: &str) -> Result<String> {
        self.client.family.check_open()?;
        let limits = self.client.family.backend.info().bounds.limits;
        self.check(limits.map_or(Ok(()), |limits| limits.check_names()))?;
        self.check(key::of(&self.namespace, name))
    }

    fn check<T>(&self, checked: Result<T>) -> Result<T> {
        checked.map_err(|error| self.client.family.in_context(error))
    }

    fn check_holder(&self, key: &str, holder: &str) -> Result<()> {
        self.check(check_text("holder", holder)).map_err(|error| error.with_key(key))
    }

    fn check_duration(&self, key: &str, duration: Duration) -> Result<()> {
        let least = self.client.family.backend.info().bounds.min_lease;
        self.check(check_duration("duration", duration, least, "")).map_err(|error| error.with_key(key))
    }

    fn found(&self, key: &str) -> Result<Snapshot> {
        self.client.look(key, &self.client.family.request_deadline())
    }

    fn change(
        &self,
        key: &str,
        rule: impl Fn(&LockRecord, &Times) -> Step<LeaseAnswer>,
        arrived: impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool,
    ) -> Result<LeaseStatus> {
        self.settled(key, rule, arrived).map(|(status, _, _)| status)
    }

    /// The lease after the rule was applied, and the record that it was applied to.
    fn settled(
        &self,
        key: &str,
        rule: impl Fn(&LockRecord, &Times) -> Step<LeaseAnswer>,
        arrived: impl Fn(&LockRecord, &LockRecord, &LockRecord) -> bool,
    ) -> Result<(LeaseStatus, Holder, Snapshot)> {
        let decide = |found: &Snapshot| {
            let step = rule(&found.seen.record, &found.seen.times);
            match step.answer {
                Err(refusal) if step.record.is_none() => Err(self.refused(found, refusal)),
                _ => Ok(step),
            }
        };
        let by = self.client.family.request_deadline();
        let (answer, found) = self.client.update(self.client.look_to_change(key, &by)?, &by, decide, arrived)?;
        let holder = answer.map_err(|refusal| self.refused(&found, refusal))?;
        let now = found.now(self.client.family.clock.now());
        let status = LeaseStatus::new(&found.seen, &holder, now);
        Ok((status, holder, found))
    }

    fn refused(&self, found: &Snapshot, refusal: LeaseRefusal) -> Error {
        let lease = LeaseStatus::seen(&found.seen);
        // By the estimated time the lease may be over. If the store's time is not known any more, that is the error.
        if refusal == LeaseRefusal::StillRuns
            && lease.as_ref().is_some_and(|lease| lease.remaining().is_zero())
            && let Err(error) = self.client.family.backend.check_time()
        {
            return self.client.family.in_context(error.with_key(&found.seen.record.key));
        }
        let stands = lease.as_ref().map(ToString::to_string).unwrap_or_default();
        let pins: Vec<String> = found.seen.record.pins.iter().map(|pin| format!("{pin:?}")).collect();
        let why = match refusal {
            LeaseRefusal::Stands => format!("somebody holds it: {stands}"),
            LeaseRefusal::Free => "nobody holds it".to_owned(),
            LeaseRefusal::HeldByOther => format!("another holds it: {stands}"),
            LeaseRefusal::StillRuns => format!("its time is not over: {stands}"),
            LeaseRefusal::Pinned => format!("it is pinned by {}: {stands}", pins.join(", ")),
        };
        let error = self.invalid(found, &why);
        match lease {
            Some(lease) => error.with_lease(lease),
            None => error,
        }
    }

    fn invalid(&self, found: &Snapshot, why: &str) -> Error {
        self.client.error(ErrorKind::InvalidLease, &found.seen.record.key, why)
    }
}

/// How long until the lease can be expired.
fn free_in(found: &Snapshot) -> Option<Duration> {
    transition::free_in(&found.seen.record, &Wanted::EXCLUSIVE, found.seen.times.expired_before)
}

/// Never claims that an unanswered change arrived, because that need not be known: the change's rule decides again on
/// what is there now, and then writes nothing, or the same once more.
fn decided_again(_: &LockRecord, _: &LockRecord, _: &LockRecord) -> bool {
    false
}

/// Whether the holder that was there before the change has gone.
fn is_gone(_: &LockRecord, before: &LockRecord, now: &LockRecord) -> bool {
    before.exclusive.as_ref().is_some_and(|holder| now.standing(&holder.grant).is_none())
}

impl LeaseStatus {
    /// The lease in a record, if somebody holds it.
    fn seen(seen: &Seen) -> Option<LeaseStatus> {
        let record = &seen.record;
        let holder = record.exclusive.as_ref().filter(|_| record.kind == Kind::Lease)?;
        Some(LeaseStatus::new(seen, holder, seen.times.now))
    }
}
