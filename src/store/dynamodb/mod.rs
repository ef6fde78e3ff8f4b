//! A store in a DynamoDB table, which it can share with dynamodb-lock-go.
//!
//! Atomic: each call is one conditional write that means the pure transition of its name. Where the row that
//! came back says that the condition was not all there is to it, the transition is applied to that row and
//! written by compare-and-swap. Clock: the service's, by the `Date` of its answers; see `estimate`. An end is
//! respected for a grace longer, since two clients' estimates differ. Unanswered: timeouts, lost connections
//! and 5xx after a request may have left.
//!
//! The AWS SDK lives on one thread, the `driver`. Its own retries are off: who repeats a request must know that
//! it was sent before.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use crossbeam_channel::Sender;

use super::{
    Acquired, Attempt, Backend, GrantForm, Page, Released, Renewal, Renewed, Schema, Seen, StoreInfo, Swapped, Which,
};
use crate::lease::record::FORMAT_MAJOR;
use crate::lease::{End, GrantId, LockRecord, Times};
use crate::model::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::driver::Driver;
use crate::sys::log;

mod acquire;
mod error;
mod estimate;
mod expr;
pub mod fence;
mod grace;
mod open;
mod read;
mod release;
mod row;
mod schema;
mod send;
mod swap;
mod undo;

use error::DynamodbError;
pub use estimate::Estimate;
use estimate::Moment;
use expr::Item;
pub use open::{DynamodbOptions, Protection, Settings};

/// The key that nobody has, which is read for the service's time. Its row says the grace.
const NOBODYS: &str = "\u{1}time";
/// One answer can tell the time no better than to a second; more than this beside it is worth another.
const GOOD_ENOUGH: Duration = Duration::from_millis(1_050);
/// More given-up grant ids than this make place for a floor.
const MANY_GIVEN_UP: usize = 8;
/// A row of so many bytes is warned of.
const LARGE: usize = 20 * 1_024;
/// With the grace, which bounds how far two clients' times are apart, farther ahead than any client's time.
const AHEAD: Duration = Duration::from_secs(2);

/// See the module.
pub struct Dynamodb {
    info: StoreInfo,
    place: send::Place,
    protection: Protection,
    clock: Arc<Clock>,
    estimate: Arc<Estimate>,
    noted: grace::Noted,
    driver: Driver<Client>,
    /// A large row was warned of.
    warned: AtomicBool,
}

impl fmt::Debug for Dynamodb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dynamodb").field("info", &self.info).field("estimate", &self.estimate).finish_non_exhaustive()
    }
}

impl Dynamodb {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);
    /// The smallest margin: with less, what is not known of the service's time could let two hold one lock.
    pub const MIN_MARGIN: Duration = estimate::SLACK;
    /// The grace where none is set.
    pub const GRACE: Duration = Duration::from_secs(1);

    /// Connects and learns the service's time. The table may be missing.
    pub fn open(options: DynamodbOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Dynamodb> {
        let label = options.label();
        Dynamodb::connect(options, clock, by).map_err(|error| error.with_store(&label))
    }

    fn connect(options: DynamodbOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Dynamodb> {
        options.validate()?;
        let info = StoreInfo {
            label: options.label(),
            clock: "DynamoDB's, by the Date of its answers",
            grace: options.grace,
            min_lease: Dynamodb::MIN_LEASE,
            min_margin: Dynamodb::MIN_MARGIN,
            grant_form: GrantForm::Uuid,
            most_shared: Some(most_shared),
        };
        let place = send::Place::new(&options.table, &options.partition_key);
        let protection = options.protection;
        let estimate = options.estimate.clone().unwrap_or_default();
        let over = |_| DynamodbError::NotSent.into();
        let driver = Driver::start(by, move || open::client(options), over)?;
        let (noted, warned) = Default::default();
        let store = Dynamodb { info, place, protection, clock, estimate, noted, driver, warned };
        // A second answer where the first took long.
        for _ in 0..2 {
            store.read_time(by)?;
            store.check_grace()?;
            if store.moment()?.width <= GOOD_ENOUGH {
                break;
            }
        }
        Ok(store)
    }

    /// Says once that a row has become large: each step on it costs a unit for each KB.
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
        let text = "the service's answers have no headers Date and x-amzn-RequestId, from which its time is known";
        let missing = || DynamodbError::Config(text.to_owned());
        self.estimate.moment(self.clock.now(), self.grace_now()).ok_or_else(missing)
    }

    /// Now, for a write that needs it known to the grace or to `most`: another answer is asked for first where the last
    /// one is too old for that, or in doubt.
    fn sure_moment(&self, most: Duration, by: &Deadline) -> Result<Moment, DynamodbError> {
        if self.moment()?.is_old(most) {
            self.read_time(by)?;
        }
        self.moment()
    }

    fn told(&self, error: DynamodbError, key: &str) -> Error {
        Error::from(error).with_store(&self.info.label).with_key(key)
    }
}

/// So many shared holders can renew at this interval: each renewal writes the whole row, 256 bytes for each of them,
/// the service writes 1,000 KB of a row in a second, and a row may have 400 KB.
fn most_shared(heartbeat: Duration) -> u32 {
    let by_rate = (4_000.0 * heartbeat.as_secs_f64()).sqrt();
    // No fraction, and nothing beyond the row's size.
    by_rate.min(1_600.0) as u32
}

/// A row and the record in it.
#[derive(Debug)]
struct Found {
    record: LockRecord,
    row: Option<Item>,
}

impl Found {
    fn new(key: &str, row: Option<Item>) -> Result<Found, DynamodbError> {
        let record = match &row {
            Some(row) => row::decode(key, row).map_err(DynamodbError::Damaged)?,
            None => LockRecord::missing(key),
        };
        Ok(Found { record, row })
    }

    /// Rows of a newer major version stay as they are.
    fn check_format(&self) -> Result<(), DynamodbError> {
        let found = self.record.format;
        if found.0 > FORMAT_MAJOR { Err(DynamodbError::NewerFormat { found }) } else { Ok(()) }
    }

    fn seen(self, moment: &Moment) -> Seen {
        let native = swap::Row { row: self.row, is_doubted: moment.is_doubted() };
        let cut = moment.times().cut;
        Seen { record: self.record, now: moment.late(), cut, stamp: moment.stamp(), native: Some(Box::new(native)) }
    }

    /// Every later grant of this key has a token above it.
    fn floor(&self) -> u64 {
        let floor = self.row.as_ref().and_then(|row| row::get_number(row, "floor").ok()?);
        floor.unwrap_or(0)
    }

    /// The times to grant by.
    fn times(&self, moment: &Moment) -> Times {
        let times = moment.times();
        Times { stamp: times.stamp.max(self.floor().saturating_add(1)), ..times }
    }

    /// Whether so many gave up that they make place for a floor.
    fn is_crowded(&self) -> bool {
        self.record.given_up.len() > MANY_GIVEN_UP
    }

    /// Above every token that was asked for until now. A copy that waits for `fence` asks for one more than that, if
    /// not for its client's time.
    fn above_all(&self, moment: &Moment) -> u64 {
        let stored = self.record.token.max(self.floor()).saturating_add(1);
        moment.late_stamp(AHEAD).max(stored)
    }

    /// Whether the row's own end is later than this one.
    fn row_ends_after(&self, end: End) -> bool {
        let until = self.row.as_ref().and_then(|row| row.get("leasedUntil")?.as_s().ok());
        until.is_some_and(|until| *until > row::end(end))
    }

    /// The end of a shared holder, letter by letter.
    fn shared_end(&self, grant: &GrantId) -> Option<String> {
        let shared = self.row.as_ref()?.get("shared")?.as_m().ok()?;
        shared.get(grant.as_str())?.as_m().ok()?.get("leasedUntil")?.as_s().ok().cloned()
    }
}

impl Backend for Dynamodb {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn grace(&self) -> Duration {
        self.grace_now().own
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        self.table_schema(what, by).map_err(|error| Error::from(error).with_store(&self.info.label))
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        self.acquire_key(attempt, by).map_err(|error| self.told(error, &attempt.key))
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        self.renew_grant(attempt, renewal, by).map_err(|error| self.told(error, &attempt.key))
    }

    fn release(&self, attempt: &mut Attempt, give_up: bool, by: &Deadline) -> Result<Released> {
        self.release_grant(attempt, give_up, by).map_err(|error| self.told(error, &attempt.key))
    }

    fn read(&self, which: &Which, from: Option<String>, strong: bool, by: &Deadline) -> Result<Page> {
        self.read_page(which, from, strong, by).map_err(|error| match which {
            Which::Key(key) => self.told(error, key),
            _ => Error::from(error).with_store(&self.info.label),
        })
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.swap_record(seen, new, by).map_err(|error| self.told(error, &seen.record.key))
    }

    fn wake(&self, _keys: &[String], _to: Sender<String>, _by: &Deadline) -> Result<bool> {
        Ok(false)
    }
}
