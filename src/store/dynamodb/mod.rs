//! A store in a DynamoDB table, which it can share with dynamodb-lock-go.
//!
//! Atomic: each call is one conditional write with the meaning of the pure transition of the same name. Where the row
//! that came back shows that the condition does not cover the case, the transition is applied to that row and written
//! by compare-and-swap. Clock: the service's, by the `Date` of its answers; see `estimate`. A lease is respected for
//! one grace beyond its end, since two clients' estimates differ. Unanswered: timeouts, lost connections and 5xx after
//! a request may have left this host.
//!
//! The AWS SDK lives on one thread, the `driver`. Its own retries are off: a caller that repeats a request must know
//! that it was sent before.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{
    Acquired, Attempt, Backend, Consistency, MostShared, Page, Purpose, Released, Renewal, Renewed, Schema, Seen,
    StoreInfo, Swapped, Which,
};
use crate::lease::LockRecord;
use crate::model::error::Result;
use crate::store::fleet::{Fleet, Watch};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::driver::Driver;
use crate::sys::log;

mod acquire;
mod connections;
mod credentials;
mod error;
mod estimate;
mod expr;
pub mod fence;
mod grace;
mod mixed;
mod open;
mod read;
mod release;
mod renew;
mod row;
mod schema;
mod send;
mod shell;
mod swap;
mod target;
mod undo;

use error::{DynamodbError, Own};
pub use estimate::Estimate;
use estimate::Moment;
use expr::Item;
pub use open::{DynamodbOptions, Protection, Settings};
pub use target::SortKey;

/// A key that no lock has. It is read for the service's time, and its row notes the grace.
const NOBODYS: &str = "\u{1}time";
/// When a row has more given-up grant ids than this, a floor under all later tokens replaces them.
const MANY_GIVEN_UP: usize = 8;
/// A row with more bytes than this is logged as a warning.
const LARGE: usize = 20 * 1_024;
/// Our time plus the grace and this is later than any client's time: the times of two clients, each off by half of its
/// interval, differ by at most a second plus the time that an answer took, or by the grace if that is more.
const AHEAD: Duration = Duration::from_secs(2);

/// Decodes a row that a test made up, and encodes what this store would write over it.
#[cfg(feature = "_internals")]
pub fn decoded(item: Item) -> std::result::Result<crate::lease::LockRecord, String> {
    let found = row::DecodedRow::new("k", Some(item)).map_err(|error| error.to_string())?;
    let _ = (row::shared(&found.record, found.row.as_ref()), row::row_end(&found.record), found.floor());
    let _ = found.row.as_ref().map(row::size);
    found.record.exclusive.iter().for_each(|holder| drop(row::fields(holder)));
    Ok(found.record)
}

/// See the module.
pub struct Dynamodb {
    info: StoreInfo,
    target: target::Target,
    protection: Protection,
    clock: Arc<Clock>,
    estimate: Arc<Estimate>,
    noted: grace::Noted,
    driver: Driver<connections::Owned>,
    fleet: Fleet,
    /// Whether a warning about a large row was logged.
    warned: AtomicBool,
    watch: Watch,
}

impl fmt::Debug for Dynamodb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dynamodb").field("info", &self.info).field("estimate", &self.estimate).finish_non_exhaustive()
    }
}

impl Dynamodb {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);
    /// The smallest margin: with less, the uncertainty of the service's time could let two clients hold one lock.
    pub const MIN_MARGIN: Duration = estimate::SLACK;
    /// The default grace.
    pub const GRACE: Duration = Duration::from_secs(1);

    /// Warns once that a row has become large: each acquire, renewal and release of it costs a unit for each KB.
    fn watch_size(&self, key: &str, row: Option<&Item>) {
        let size = row.map_or(0, row::size);
        if size > LARGE && !self.warned.swap(true, Ordering::Relaxed) {
            let kb = size.div_ceil(1_024);
            log::warn!(
                target: "leasehold::dynamodb", key:?;
                "its row has {kb} KB, mostly shared holders: each acquire, renewal and release writes all of it, and \
                 the service writes no more than 1,000 KB of a row in a second"
            );
        }
    }

    /// Now, by the service's clock.
    fn moment(&self) -> Result<Moment, DynamodbError> {
        let missing = || DynamodbError::Config(Own::Untold.to_string());
        // The clock is read before its correction, so that every correction in the time that was read is counted.
        let now = self.clock.now();
        self.clock.slew().into_iter().for_each(|slew| self.estimate.slewed(slew));
        self.estimate.moment(now, self.grace_now()).ok_or_else(missing)
    }

    /// Now, for a write that needs the time to within the grace, or to within `most` if that is more. Reads the time
    /// from the service first if it is known less well and the last answer is old, or if the last answer contradicts
    /// those before. If that did not help, it is logged once.
    fn sure_moment(&self, most: Duration, by: &Deadline) -> Result<Moment, DynamodbError> {
        let moment = self.moment()?;
        if !moment.is_contradicted() && !self.is_untold(&moment, most) {
            return Ok(moment);
        }
        self.read_time(by)?;
        let moment = self.moment()?;
        if self.is_untold(&moment, most) && !self.target.said_untold.swap(true, Ordering::Relaxed) {
            log::warn!(target: "leasehold::dynamodb", table:? = self.target.table; "{}", Own::Untold);
        }
        Ok(moment)
    }

    /// The same, to within the grace, for a decision on who may be taken over: a time that only one host of the service
    /// may have reported is not enough for that.
    fn confirmed_moment(&self, by: &Deadline) -> Result<Moment, DynamodbError> {
        self.confirmed(self.sure_moment(Duration::ZERO, by)?, by)
    }

    /// This moment or, if only one host of the service may have reported it, a later one after reading the time again.
    fn confirmed(&self, moment: Moment, by: &Deadline) -> Result<Moment, DynamodbError> {
        if !moment.is_unconfirmed() {
            return Ok(moment);
        }
        self.read_time(by)?;
        self.sure_moment(Duration::ZERO, by)
    }

    /// Returns `moment`, which comes after an answer, to a caller that would take a holder over or is refused that. It
    /// is an error if the answers no longer report the time, since that takeover would wait for longer and longer.
    fn told(&self, moment: Moment) -> Result<Moment, DynamodbError> {
        if self.is_untold(&moment, Duration::ZERO) { Err(DynamodbError::Own(Own::Untold, None)) } else { Ok(moment) }
    }

    /// Whether the time is known too inexactly, and no answer has reported it for a while.
    fn is_untold(&self, moment: &Moment, most: Duration) -> bool {
        // In a mixed fleet the grace is for the clocks of the other library's hosts. Only the default part of it is for
        // our own.
        let grace = if self.fleet.is_mixed() { Dynamodb::GRACE } else { self.grace_now().own };
        moment.is_wider(grace, most)
    }
}

/// How many shared holders can renew at this interval: each renewal writes the whole row, 256 bytes for each of them,
/// the service writes 1,000 KB of a row in a second, and a row may have 400 KB.
fn most_shared(heartbeat: Duration) -> MostShared {
    let by_rate = (4_000.0 * heartbeat.as_secs_f64()).sqrt();
    // Rounded down, and no more holders than a row has room for.
    let holders = by_rate.min(1_400.0) as u32;
    let why = format!(
        "each renewal writes the holders of the key all over, 256 bytes each, and the store writes 1,000 KB of a key in a \
         second ({holders} x {holders} x 256 bytes in a heartbeat) and keeps 400 KB; a longer lease allows more"
    );
    MostShared { holders, why }
}

impl Backend for Dynamodb {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn grace(&self) -> Duration {
        self.grace_now().own
    }

    fn check_time(&self) -> Result<()> {
        self.told(self.moment()?)?;
        Ok(())
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        Ok(self.table_schema(what, by)?)
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        Ok(self.acquire_key(attempt, by)?)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        Ok(self.renew_grant(attempt, renewal, by)?)
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        Ok(self.release_grant(attempt, purpose, by)?)
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        Ok(self.read_page(which, from, consistency, by)?)
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        Ok(self.swap_record(seen, new, by)?)
    }
}
