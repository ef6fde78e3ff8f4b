//! What a client does over many keys at a time: list and purge.

use std::cmp::Reverse;
use std::time::Duration;

use crate::backend::{Seen, Swapped, Which};
use crate::client::LockClient;
use crate::error::Result;
use crate::filter::Filter;
use crate::lease::{Kind, transition};
use crate::lock::{LockStatus, Purged};
use crate::rt::clock::BootTime;

/// Rows that nobody had a grant of for so long may be deleted by a purge.
const IDLE_ROW: Duration = Duration::from_secs(30 * 24 * 3600);

impl LockClient {
    /// The locks that fit the filter, live and expired, newest first (by fencing token).
    ///
    /// It reads page by page, so the answer is no picture of one moment: a lock that is granted or
    /// released meanwhile may be missing or still be there. What the store finds by itself is a key,
    /// a prefix or, where it has an index for it, a lock id; a filter without any of them looks at
    /// every row.
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
        filter.check().map_err(|error| error.with_store(&self.family.backend.info().label))?;
        let mut found = Vec::new();
        self.read_all(&filter.which(), |seen, _| {
            let record = &seen.record;
            if record.kind == Kind::Lock {
                let all = record.holders().map(|(mode, h)| LockStatus::new(&record.key, mode, h, seen.now));
                found.extend(all.filter(|status| filter.matches(status)));
            }
            Ok(())
        })?;
        newest_first(&mut found);
        Ok(found)
    }

    /// Frees holders whose lease ended more than `older_than` ago, and deletes rows that nobody
    /// had a grant of for 30 days. Only housekeeping: an expired lock is granted without it, and
    /// tokens go on rising after it.
    ///
    /// # Errors
    /// What the store says. What was freed before stays so.
    pub fn purge(&self, older_than: Duration) -> Result<Purged> {
        self.family.check_open()?;
        let mut purged = Purged::default();
        let all = Which::Prefix(String::new());
        self.read_all(&all, |seen, _| self.purge_row(&seen, older_than, &mut purged))?;
        Ok(purged)
    }

    fn purge_row(&self, seen: &Seen, older_than: Duration, purged: &mut Purged) -> Result<()> {
        let idle = u64::try_from(IDLE_ROW.as_micros()).unwrap_or(u64::MAX);
        let step = transition::purge(&seen.record, seen.now.minus(older_than), seen.stamp.saturating_sub(idle));
        let Some(next) = step.record else { return Ok(()) };
        let new = Some(&next).filter(|_| !step.answer.delete);
        let swapped = self.repeated(|by| self.family.backend.swap(seen, new, by))?;
        // Changed, or perhaps so: somebody uses it, and the next purge looks again.
        if let Swapped::Done = swapped {
            let key = &seen.record.key;
            purged.freed.extend(step.answer.freed.iter().map(|(mode, h)| LockStatus::new(key, *mode, h, seen.now)));
            purged.deleted += usize::from(step.answer.delete);
        }
        Ok(())
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

/// Tokens are made from the time, so they order the grants of all keys.
pub(crate) fn newest_first(statuses: &mut [LockStatus]) {
    statuses.sort_by_key(|status| Reverse(status.fencing_token()));
}
