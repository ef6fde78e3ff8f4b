//! Listing: which locks there are.

use std::cmp::Reverse;

use crate::api::client::LockClient;
use crate::api::filter::Filter;
use crate::lease::Kind;
use crate::model::error::Result;
use crate::model::key;
use crate::model::lock::LockStatus;
use crate::store::observed::is_readable;
use crate::store::{Consistency, Page, Seen, Which};
use crate::sys::clock::BootTime;

impl LockClient {
    /// The locks that fit the filter, live and expired, newest first (by fencing token).
    ///
    /// It reads page by page, so the answer is no picture of one moment: a lock that is granted or
    /// released meanwhile may be missing or still be there. The store itself can find a key, a prefix
    /// or, if it has an index for it, a lock id; a filter without any of them reads every row, and on
    /// DynamoDB so does each without a key. A damaged row is left out, and the log names it; for a
    /// filter of a single key it is an error.
    ///
    /// # Errors
    /// `InvalidInput` for a text of the filter that is out of bounds; otherwise the store's error, after
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
        self.read_all(&filter.which(), Consistency::Strong, |seen, _| {
            let record = &seen.record;
            // Leaves out the rows of diagnoses.
            if record.kind == Kind::Lock && key::parts(&record.key).is_none() && is_readable(&seen) {
                let all = record.holders().map(|(mode, h)| LockStatus::new(&seen, mode, h));
                found.extend(all.filter(|status| filter.matches(status)));
            }
            Ok(())
        })?;
        newest_first(&mut found);
        Ok(found)
    }

    /// Every record that `which` names, page by page, each with the time from before it was asked for.
    pub(crate) fn read_all(
        &self,
        which: &Which,
        how: Consistency,
        mut take: impl FnMut(Seen, BootTime) -> Result<()>,
    ) -> Result<()> {
        let mut from = None;
        loop {
            let (page, asked) = self.read_page(which, from.as_ref(), how)?;
            page.records.into_iter().try_for_each(|seen| take(seen, asked))?;
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }

    pub(crate) fn read_page(&self, which: &Which, from: Option<&String>, how: Consistency) -> Result<(Page, BootTime)> {
        let by = self.family.request_deadline();
        // Each try has all the time that is left, since a single page may take long.
        self.family.repeated_until(&by, |_| {
            let asked = self.family.clock.now();
            Ok((self.family.backend.read(which, from.cloned(), how, &by)?, asked))
        })
    }
}

/// Tokens are made from the time, so they order the grants of all keys.
pub(crate) fn newest_first(statuses: &mut [LockStatus]) {
    statuses.sort_by_key(|status| Reverse(status.fencing_token()));
}
