//! Purging: what has expired is freed, and rows that nobody uses are deleted.

use std::time::Duration;

use crate::api::client::LockClient;
use crate::lease::{LockRecord, Step, transition};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::lock::{LockStatus, Purged};
use crate::store::fleet::Limits;
use crate::store::{Consistency, Seen, Swapped, Which};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// A purge may delete a row that had no grant for this long.
const IDLE_ROW: Duration = Duration::from_secs(30 * 24 * 3600);

/// A purge passes over at most this many consecutive rows that can't be written, because each takes the request
/// timeout.
const MOST_UNDONE: u32 = 10;

impl LockClient {
    /// Frees holders whose lease ended more than `older_than` ago. Deletes the rows of free keys that were last granted
    /// 30 days ago or earlier, also the rows of leases that nobody holds or pins. Deletes free rows without a token at
    /// once, as of a lock that another library released. With `fleet=mixed` on Cloud Spanner no lock's row is deleted.
    ///
    /// This is only housekeeping: an expired lock is granted without it, and tokens go on rising after it. But a caller
    /// that has a lock as data can renew or adopt it after its end only until it is freed: choose `older_than` so that
    /// there is time for that. Rows that are damaged or of a newer format remain, and the log names them; rows that are
    /// no locks remain as well.
    ///
    /// # Errors
    /// The store's error. What was freed before remains free; [`purge_pages`](LockClient::purge_pages) reports what
    /// that was.
    pub fn purge(&self, older_than: Duration) -> Result<Purged> {
        self.purge_pages(older_than).all()
    }

    /// What [`purge`](LockClient::purge) would do now. Nothing is written.
    ///
    /// # Errors
    /// The store's error.
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
        self.purge_pages(older_than).preview().all()
    }

    /// The same as [`purge`](LockClient::purge), a page of rows at a time, so that a store of any size needs the memory
    /// of one page. Each request to the store may take the request timeout.
    ///
    /// # Errors
    /// The store's error is the last item. Before it comes what was freed on the same page; if only some rows can't be
    /// written now, all other pages come before it, too.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// for purged in client.purge_pages(Duration::from_secs(3600)) {
    ///     println!("{} freed", purged?.freed.len());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn purge_pages(&self, older_than: Duration) -> PurgePages<'_> {
        PurgePages { client: self, older_than, writes: Writes::Yes, next: Next::Page(None), undone: None, in_a_row: 0 }
    }
}

/// What a purge does, a page of rows at a time; from [`LockClient::purge_pages`]. A page is not purged before the
/// iterator is asked for it.
#[derive(Debug)]
#[must_use = "a purge does nothing until its pages are asked for"]
pub struct PurgePages<'a> {
    client: &'a LockClient,
    older_than: Duration,
    writes: Writes,
    next: Next,
    /// The error of the first row that could be read but not written (somebody's transaction may have it). The other
    /// rows are purged all the same.
    undone: Option<Error>,
    /// How many consecutive rows could not be written. Too many mean that the store is in trouble: that ends the purge.
    in_a_row: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Yes,
    No,
}

#[derive(Debug)]
enum Next {
    /// The page that begins there.
    Page(Option<String>),
    Failed(Error),
    Nothing,
}

impl PurgePages<'_> {
    /// Only reports what would be done.
    pub fn preview(mut self) -> Self {
        self.writes = Writes::No;
        self
    }

    fn all(self) -> Result<Purged> {
        let mut all = Purged::default();
        for page in self {
            let page = page?;
            all.freed.extend(page.freed);
            all.deleted += page.deleted;
        }
        Ok(all.sorted())
    }

    fn page(&mut self, from: Option<String>) -> Result<Purged> {
        self.client.family.check_open()?;
        let (page, _) = self.client.read_page(&Which::Prefix(String::new()), from.as_ref(), Consistency::Strong)?;
        self.next = page.next.map_or(Next::Nothing, |next| Next::Page(Some(next)));
        let mut purged = Purged::default();
        for seen in page.records {
            match self.row(&seen, &mut purged) {
                Err(error) if error.is_retryable() && self.in_a_row < MOST_UNDONE && self.now(&seen).is_ok() => {
                    self.in_a_row += 1;
                    self.undone.get_or_insert(error);
                }
                Err(error) => {
                    self.next = Next::Failed(error);
                    break;
                }
                Ok(()) => self.in_a_row = 0,
            }
        }
        Ok(purged.sorted())
    }

    fn row(&self, seen: &Seen, purged: &mut Purged) -> Result<()> {
        let step = purge_step(seen, self.older_than, self.client.family.backend.info().bounds.limits);
        let Some(next) = &step.record else { return Ok(()) };
        let new = Some(next).filter(|_| !step.answer.delete);
        let is_done = match self.writes {
            Writes::No => true,
            Writes::Yes => {
                let (family, mut may_be_done) = (&self.client.family, false);
                let swap = |by: &Deadline| match family.backend.swap(seen, new, by)? {
                    Swapped::Unknown(error) => {
                        may_be_done = true;
                        Err(error)
                    }
                    swapped => Ok(swapped),
                };
                match family.repeated_until(&family.request_deadline(), swap) {
                    // `Changed`: somebody uses the row, and the next purge looks again; or the change is this purge's
                    // own write, which was not answered.
                    Ok(swapped) => matches!(swapped, Swapped::Done) || may_be_done && self.is_left(seen, new),
                    // Since it was read, the row has become one of a newer format, or damaged.
                    Err(error) if error.kind() == ErrorKind::Schema && !self.stands(seen) => {
                        log::warn!(
                            target: "leasehold::client", key:? = seen.record.key;
                            "a purge passes over a row: {}", error.with_causes()
                        );
                        false
                    }
                    Err(error) => return Err(family.in_context(error.with_key(&seen.record.key))),
                }
            }
        };
        if is_done {
            purged.add(seen, &step.answer);
        }
        Ok(())
    }
}

impl PurgePages<'_> {
    fn now(&self, seen: &Seen) -> Result<Seen> {
        self.client.look_to_change(&seen.record.key, &self.client.family.request_deadline()).map(|found| found.seen)
    }

    /// Whether the row is as this purge would have left it.
    fn is_left(&self, seen: &Seen, new: Option<&LockRecord>) -> bool {
        let grants = |record: &LockRecord| record.holders().map(|(_, holder)| holder.grant.clone()).collect::<Vec<_>>();
        let is_as = |now: &LockRecord, new: &LockRecord| now.token == new.token && grants(now) == grants(new);
        self.now(seen).is_ok_and(|now| match new {
            Some(new) => is_as(&now.record, new),
            None => !now.record.exists(),
        })
    }

    /// Whether the row can be read, and is as it was.
    fn stands(&self, seen: &Seen) -> bool {
        self.now(seen).is_ok_and(|now| now.record.version == seen.record.version)
    }
}

impl Iterator for PurgePages<'_> {
    type Item = Result<Purged>;

    fn next(&mut self) -> Option<Result<Purged>> {
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Page(from) => Some(self.page(from)),
            Next::Failed(error) => Some(Err(error)),
            Next::Nothing => self.undone.take().map(Err),
        }
    }
}

fn purge_step(seen: &Seen, older_than: Duration, limits: Option<Limits>) -> Step<transition::Purge> {
    let idle = u64::try_from(IDLE_ROW.as_micros()).unwrap_or(u64::MAX);
    let idle_before = match limits {
        // Deletes only a row that was never granted, because that is no lock's row.
        Some(Limits { keeps_rows: true, .. }) => 1,
        _ => seen.times.stamp.saturating_sub(idle),
    };
    transition::purge(&seen.record, seen.times.expired_before.minus(older_than), idle_before)
}

impl Purged {
    fn add(&mut self, seen: &Seen, purge: &transition::Purge) {
        self.freed.extend(purge.freed.iter().map(|(mode, h)| LockStatus::new(seen, *mode, h)));
        self.deleted += usize::from(purge.delete);
    }

    /// By key: a store may read the rows in any order.
    fn sorted(mut self) -> Self {
        self.freed.sort_by(|a, b| a.key().cmp(b.key()));
        self
    }
}
