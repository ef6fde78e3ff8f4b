//! What a client does over many keys at a time: list and purge.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::api::filter::Filter;
use crate::lease::record::FORMAT_MAJOR;
use crate::lease::{Kind, Step, transition};
use crate::model::error::{ErrorKind, Result};
use crate::model::key;
use crate::model::lock::{LockStatus, Purged};
use crate::store::{Seen, Swapped, Which};
use crate::sys::clock::BootTime;
use crate::sys::log;

/// Rows that nobody had a grant of for so long may be deleted by a purge.
const IDLE_ROW: Duration = Duration::from_secs(30 * 24 * 3600);

impl LockClient {
    /// The locks that fit the filter, live and expired, newest first (by fencing token).
    ///
    /// It reads page by page, so the answer is no picture of one moment: a lock that is granted or
    /// released meanwhile may be missing or still be there. What the store finds by itself is a key,
    /// a prefix or, where it has an index for it, a lock id; a filter without any of them looks at
    /// every row. A damaged row is left out; the log names it.
    ///
    /// # Errors
    /// `InvalidInput` for a text of the filter that is out of bounds; else what the store says, after
    /// repeats within the request timeout for each page.
    ///
    /// # Example
    /// ```
    /// use leasehold::Filter;
    ///
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let _guards = [client.lock("tables/a")?, client.lock("tables/b")?, client.lock("report")?];
    /// let found = client.list(&Filter::new().key_prefix("tables/").live())?;
    /// let keys: Vec<&str> = found.iter().map(|status| status.key()).collect();
    /// assert_eq!(keys, ["tables/b", "tables/a"]);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn list(&self, filter: &Filter) -> Result<Vec<LockStatus>> {
        self.family.check_open()?;
        filter.check().map_err(|error| self.family.in_context(error))?;
        let mut found = Vec::new();
        self.read_all(&filter.which(), |seen, _| {
            let record = &seen.record;
            // Not what a diagnosis tries the store with.
            if record.kind == Kind::Lock && key::parts(&record.key).is_none() {
                let all = record.holders().map(|(mode, h)| LockStatus::new(&seen, mode, h));
                found.extend(all.filter(|status| filter.matches(status)));
            }
            Ok(())
        })?;
        newest_first(&mut found);
        Ok(found)
    }

    /// Frees holders whose lease ended more than `older_than` ago, and deletes rows that nobody
    /// had a grant of for 30 days, also of leases that nobody holds or pins. Only housekeeping: an
    /// expired lock is granted without it, and tokens go on rising after it. Damaged rows, those of a newer
    /// version of this library (the log names them), and those that are no locks, stay.
    ///
    /// # Errors
    /// What the store says. What was freed before stays so.
    pub fn purge(&self, older_than: Duration) -> Result<Purged> {
        self.family.check_open()?;
        let mut purged = Purged::default();
        let all = Which::Prefix(String::new());
        self.read_all(&all, |seen, _| {
            let Some(step) = purge_step(&seen, older_than) else { return Ok(()) };
            let Some(next) = &step.record else { return Ok(()) };
            let new = Some(next).filter(|_| !step.answer.delete);
            match self.repeated(|by| self.family.backend.swap(&seen, new, by)) {
                Ok(Swapped::Done) => purged.add(&seen, &step.answer),
                // Changed, or perhaps so: somebody uses it, and the next purge looks again.
                Ok(Swapped::Changed | Swapped::Unknown(_)) => {}
                // Changed by a newer version.
                Err(error) if error.kind() == ErrorKind::Schema => pass_over(&seen, &error),
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        Ok(purged.sorted())
    }

    /// What [`purge`](LockClient::purge) would do now. Nothing is written.
    ///
    /// # Errors
    /// What the store says.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// client.request("report").acquire()?;
    /// assert!(client.purge_preview(Duration::ZERO)?.freed.is_empty(), "its lease is running");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn purge_preview(&self, older_than: Duration) -> Result<Purged> {
        self.family.check_open()?;
        let mut purged = Purged::default();
        self.read_all(&Which::Prefix(String::new()), |seen, _| {
            purge_step(&seen, older_than).iter().for_each(|step| purged.add(&seen, &step.answer));
            Ok(())
        })?;
        Ok(purged.sorted())
    }

    /// Every record that `which` names, page by page, each with the time from before it was asked for.
    pub(crate) fn read_all(&self, which: &Which, mut take: impl FnMut(Seen, BootTime) -> Result<()>) -> Result<()> {
        let mut from = None;
        loop {
            let mut asked = self.family.clock.now();
            let page = self.repeated(|by| {
                asked = self.family.clock.now();
                self.family.backend.read(which, from.clone(), true, by)
            })?;
            page.records.into_iter().try_for_each(|seen| take(seen, asked))?;
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// `None`: a newer version's row, which only it may change.
fn purge_step(seen: &Seen, older_than: Duration) -> Option<Step<transition::Purge>> {
    let (major, minor) = seen.record.format;
    if major > FORMAT_MAJOR {
        pass_over(seen, &format_args!("its format is {major}.{minor}, of a newer version"));
        return None;
    }
    let idle = u64::try_from(IDLE_ROW.as_micros()).unwrap_or(u64::MAX);
    Some(transition::purge(&seen.record, seen.cut.minus(older_than), seen.stamp.saturating_sub(idle)))
}

fn pass_over(seen: &Seen, why: &dyn fmt::Display) {
    log::warn!(target: "leasehold::client", key:? = seen.record.key; "a purge leaves a row as it is: {why}");
}

impl Purged {
    fn add(&mut self, seen: &Seen, purge: &transition::Purge) {
        self.freed.extend(purge.freed.iter().map(|(mode, h)| LockStatus::new(seen, *mode, h)));
        self.deleted += usize::from(purge.delete);
    }

    /// A store may read them in any order.
    fn sorted(mut self) -> Self {
        self.freed.sort_by(|a, b| a.key().cmp(b.key()));
        self
    }
}

/// Tokens are made from the time, so they order the grants of all keys.
pub(crate) fn newest_first(statuses: &mut [LockStatus]) {
    statuses.sort_by_key(|status| Reverse(status.fencing_token()));
}
