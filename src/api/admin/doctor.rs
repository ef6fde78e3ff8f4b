//! The diagnosis of a store, for an operator: whether it works, and what is wrong.

use std::time::{Duration, Instant, SystemTime};

use crate::api::admin::writers::Writer;
use crate::api::client::LockClient;
use crate::engine::options::default_labels;
use crate::lease::{Ask, Lease};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key;
use crate::store::observed::Unknowable;
use crate::store::{Attempt, Consistency, Purpose, Renewal, Schema, Seen, Which, read_key};
use crate::sys::deadline::Deadline;
use crate::sys::random;

/// The operations that a diagnosis tries, in this order.
const RIGHTS: [&str; 6] =
    ["look at a lock", "list locks", "acquire a lock", "renew a lock", "release a lock", "purge: delete a row"];
/// How often the round trip is measured.
const READS: usize = 5;
/// The lease of the lock that it acquires: short, for the case that the diagnosis is cut off and the lock remains.
const LEASE: Duration = Duration::from_secs(1);

/// What [`diagnose`](LockClient::diagnose) found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The store as scheme, host and database.
    pub store: String,
    /// Which clock decides in this store, as a text for people.
    pub clock: &'static str,
    /// How long after its end a lease is still respected, because clocks differ. On DynamoDB it is what all clients of
    /// the table agreed on.
    pub grace: Duration,
    /// Whether the schema is right: what is there, or what is wrong with it.
    pub schema: Result<String>,
    /// The median time of a few reads; the error of the first read that failed.
    pub round_trip: Result<Duration>,
    /// The store's time less this host's wall clock, in milliseconds, as exact as half a round trip (DynamoDB: half a
    /// second). `None` when it can't be read. No lock is decided by this host's wall clock; it is shown to people.
    pub clock_difference_ms: Option<i64>,
    /// Which libraries have locks in the store, by the first rows of the table. Empty if no other library has the
    /// store's format, or if the schema is wrong: then nothing was read. An error if the rows can't be listed.
    pub writers: Result<Vec<Writer>>,
    /// After how many rows the search for `writers` stopped: later rows may be of other libraries. `None` if it was not
    /// cut.
    pub writers_cut_at: Option<usize>,
    /// What this client may do, each tried on a row of its own.
    pub rights: Vec<Right>,
}

/// Something that a client needs to be allowed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Right {
    /// The operation, like `acquire a lock`.
    pub what: &'static str,
    /// The result of trying it. The error's kind is `Permission` when the store denies it, and `Schema` when it was not
    /// tried because of the schema. An operation that needs a row counts as not tried if no row could be made.
    pub outcome: Result<()>,
}

impl Diagnosis {
    /// Whether nothing is wrong.
    pub fn is_well(&self) -> bool {
        self.problem().is_none()
    }

    /// The first thing that is wrong, if there is one.
    pub fn problem(&self) -> Option<&Error> {
        let first = self.round_trip.as_ref().err().or(self.schema.as_ref().err());
        first.or_else(|| self.rights.iter().find_map(|right| right.outcome.as_ref().err()))
    }
}

impl LockClient {
    /// Finds out whether the store can be reached, whether its schema is right, how far its clock is off, how long a
    /// round trip takes, and what this client may do there.
    ///
    /// It writes a row of its own, which no listing shows and whose key no lock can have, and deletes it again, unless
    /// the store denies that or does not answer in time. Then the row remains until a `purge` at least 30 days later;
    /// with `fleet=mixed` on Cloud Spanner a `purge` does not delete it either. The whole diagnosis takes at most twice
    /// the request timeout; what was not tried by then is reported as not answered.
    ///
    /// # Errors
    /// `Closed`. What is wrong with the store is in the [`Diagnosis`].
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let diagnosis = client.diagnose()?;
    /// assert!(diagnosis.is_well(), "{:?}", diagnosis.problem());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn diagnose(&self) -> Result<Diagnosis> {
        self.family.check_open()?;
        let info = self.family.backend.info();
        let row = key::of("leasehold", &format!("diagnosis-{}", random::uuid()))?;
        let all =
            Deadline::after(self.family.options.request_timeout.saturating_mul(2)).or_cancel(self.family.closing());
        let asked = Instant::now();
        let schema = self.family.backend.schema(Schema::Check, &self.by(&all));
        let answered = asked.elapsed();
        let is_wrong = |error: &Error| error.kind() == ErrorKind::Schema;
        let measured = self.measured(&row, &all);
        let clock_difference_ms = measured.as_ref().ok().map(|(_, difference)| *difference);
        // A store that reports that something is missing was reached: the time of that answer counts.
        let round_trip = match measured {
            Err(error) if is_wrong(&error) && schema.as_ref().is_err_and(is_wrong) => Ok(answered),
            measured => measured.map(|(round_trip, _)| round_trip),
        };
        let rights = match &schema {
            Err(error) if is_wrong(error) => not_tried(error),
            _ => self.rights(&row, &all),
        };
        let writers = match &schema {
            Err(error) if is_wrong(error) => Ok((Vec::new(), None)),
            _ => self.writers(|| self.by(&all)),
        };
        let writers_cut_at = writers.as_ref().ok().and_then(|(_, cut_at)| *cut_at);
        Ok(Diagnosis {
            store: info.label.clone(),
            clock: info.clock,
            grace: self.family.backend.grace(),
            schema,
            round_trip,
            clock_difference_ms,
            writers: writers.map(|(writers, _)| writers),
            writers_cut_at,
            rights,
        })
    }

    /// The deadline of the next request, within that of the whole diagnosis.
    fn by(&self, all: &Deadline) -> Deadline {
        all.clone().within(self.family.options.request_timeout)
    }

    fn row(&self, row: &str, all: &Deadline) -> Result<Seen> {
        read_key(&*self.family.backend, row, &self.by(all))
    }

    /// The median round trip, and the clock's difference in the shortest one.
    fn measured(&self, row: &str, all: &Deadline) -> Result<(Duration, i64)> {
        let mut reads = Vec::with_capacity(READS);
        for _ in 0..READS {
            let (sent, started) = (SystemTime::now(), Instant::now());
            let seen = self.row(row, all)?;
            let took = started.elapsed();
            let middle = sent.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
            let millis = |micros: u128| i64::try_from(micros / 1000).unwrap_or(i64::MAX);
            reads.push((took, millis(u128::from(seen.times.stamp)) - millis(middle.as_micros())));
        }
        reads.sort();
        let difference = reads.first().map(|(_, difference)| *difference).unwrap_or_default();
        Ok((reads.get(READS / 2).map(|(took, _)| *took).unwrap_or_default(), difference))
    }

    /// Tries each operation even if the one before failed, because many stores deny an operation even if there is
    /// nothing to do. But if no row could be made, a success proves nothing: some stores then send nothing that could
    /// be denied.
    fn rights(&self, row: &str, all: &Deadline) -> Vec<Right> {
        let backend = &self.family.backend;
        let lease = LEASE.max(backend.info().bounds.min_lease);
        let (grant, lock_id) = (backend.info().grant_form.fresh(), random::uuid().to_string());
        let ask = Ask::exclusive(grant, lock_id, default_labels(std::process::id()), lease);
        let mut attempt = Attempt::new(row, ask);
        attempt.sends = 1;
        let read = self.row(row, all).map(drop);
        let list = backend.read(&Which::Prefix(row.to_owned()), None, Consistency::Strong, &self.by(all)).map(drop);
        let acquired = backend.acquire(&mut attempt, &self.by(all)).and_then(Unknowable::known).map(drop);
        let renewal = Renewal::heartbeat(Lease::For(lease));
        let renewed = backend.renew(&mut attempt, renewal, &self.by(all)).and_then(Unknowable::known).map(drop);
        let released = backend.release(&mut attempt, Purpose::Release, &self.by(all));
        let released = released.and_then(Unknowable::known).map(drop);
        let deleted = self.row(row, all).and_then(|seen| backend.swap(&seen, None, &self.by(all))?.known()).map(drop);
        let not_tried = || Error::new(ErrorKind::Store, "not tried, since no lock could be acquired");
        let made = acquired.is_ok();
        let of_a_row = |outcome: Result<()>| outcome.and_then(|()| made.then_some(()).ok_or_else(not_tried));
        let [renewed, released, deleted] = [renewed, released, deleted].map(of_a_row);
        let outcomes = [read, list, acquired, renewed, released, deleted];
        RIGHTS.into_iter().zip(outcomes).map(|(what, outcome)| Right { what, outcome }).collect()
    }
}

/// All operations count as not tried: each would only report what is wrong with the schema.
fn not_tried(schema: &Error) -> Vec<Right> {
    RIGHTS.map(|what| Right { what, outcome: Err(schema.clone()) }).into()
}
