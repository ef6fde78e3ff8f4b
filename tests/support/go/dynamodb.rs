//! dynamodb-lock-go: its five requests. The host's own wall clock, which a test sets, decides each of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leasehold::dynamodb::aws_sdk_dynamodb as sdk;
use leasehold::internals::sys::clock::Clock;
use parking_lot::Mutex;
use sdk::operation::delete_item::DeleteItemError;
use sdk::operation::put_item::PutItemError;
use sdk::types::AttributeValue;

use super::Unavailable;
use crate::support::dynamodb::{Table, config};

/// For how long it still respects a lease that has ended.
pub const GRACE: SignedDuration = SignedDuration::from_secs(5);
const TTL: SignedDuration = SignedDuration::from_hours(48);
const FREE: &str = "attribute_not_exists(#key) OR #leasedUntil < :cut OR #owner = :owner";

/// A process that uses the Go library.
pub struct Go {
    runtime: tokio::runtime::Runtime,
    client: sdk::Client,
    table: String,
    clock: Arc<Clock>,
    system: Arc<Clock>,
    /// How far this host's wall clock is ahead, in milliseconds.
    ahead: Mutex<i64>,
    /// The times that its clock shows next, before it runs on.
    shown: Mutex<VecDeque<Timestamp>>,
}

/// What the Go library knows of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoLock {
    pub key: String,
    pub owner: String,
    pub leased_until: Timestamp,
}

impl Go {
    /// Its time passes with `clock`.
    pub fn new(table: &Table, clock: &Arc<Clock>) -> Go {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (clock, system, client) = (clock.clone(), Clock::system(), sdk::Client::new(&config()));
        Go { runtime, client, table: table.0.clone(), clock, system, ahead: Mutex::default(), shown: Mutex::default() }
    }

    /// Sets the clock of its host.
    pub fn is_ahead_by(&self, ms: i64) {
        *self.ahead.lock() = ms;
    }

    /// Sets the times that its host's clock shows at the next looks.
    pub fn shows(&self, times: &[&str]) {
        self.shown.lock().extend(times.iter().map(|time| time.parse::<Timestamp>().unwrap()));
    }

    pub fn now(&self) -> Timestamp {
        if let Some(shown) = self.shown.lock().pop_front() {
            return shown;
        }
        let passed = self.clock.now().since(self.system.now());
        Timestamp::now() + SignedDuration::try_from(passed).unwrap() + SignedDuration::from_millis(*self.ahead.lock())
    }

    pub fn acquire(&self, key: &str, owner: &str, lease: Duration) -> Result<GoLock, Unavailable> {
        let until = self.now() + SignedDuration::try_from(lease).unwrap();
        self.acquire_until(key, owner, until, until.to_string())
    }

    /// Acquires with an end that is written as in the caller's time zone.
    pub fn acquire_until(&self, key: &str, owner: &str, until: Timestamp, text: String) -> Result<GoLock, Unavailable> {
        let item = self.item(key, owner, until, text);
        let cut = (self.now() - GRACE).to_string();
        self.put(item, FREE, &[("#key", "key"), ("#leasedUntil", "leasedUntil")], &[(":cut", cut)], owner)?;
        Ok(GoLock { key: key.to_owned(), owner: owner.to_owned(), leased_until: until })
    }

    /// Only the owner's text shows whether anybody else had the lock meanwhile.
    pub fn heartbeat(&self, lock: &GoLock, lease: Duration) -> Result<GoLock, Unavailable> {
        let until = self.now() + SignedDuration::try_from(lease).unwrap();
        let item = self.item(&lock.key, &lock.owner, until, until.to_string());
        self.put(item, "#owner = :owner", &[], &[], &lock.owner)?;
        Ok(GoLock { leased_until: until, ..lock.clone() })
    }

    /// Deletes the row, on the condition by which it acquires.
    pub fn release(&self, lock: &GoLock) -> Result<(), Unavailable> {
        let request = self.client.delete_item().table_name(&self.table).key("key", text(&lock.key));
        let request = request.condition_expression(FREE).expression_attribute_names("#key", "key");
        let request = request.expression_attribute_names("#leasedUntil", "leasedUntil");
        let request = request.expression_attribute_names("#owner", "owner");
        let request = request.expression_attribute_values(":cut", text(&(self.now() - GRACE).to_string()));
        let request = request.expression_attribute_values(":owner", text(&lock.owner));
        match self.runtime.block_on(request.send()).map_err(sdk::error::SdkError::into_service_error) {
            Ok(_) => Ok(()),
            Err(DeleteItemError::ConditionalCheckFailedException(_)) => Err(Unavailable),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// `None` where there is no row; an attribute that a row lacks is empty.
    pub fn current(&self, key: &str) -> Option<GoLock> {
        let request = self.client.get_item().table_name(&self.table).key("key", text(key)).consistent_read(true);
        let item = self.runtime.block_on(request.send()).unwrap().item?;
        let of = |name: &str| item.get(name).map(|value| value.as_s().unwrap().clone());
        // The Go library decodes it into a time, from a text or a number of seconds.
        if let Some(ttl) = item.get("ttl") {
            let text = ttl.as_s().is_ok_and(|ttl| ttl.parse::<Timestamp>().is_ok());
            assert!(text || ttl.as_n().is_ok_and(|ttl| ttl.parse::<i64>().is_ok()), "it can't read {ttl:?}");
        }
        Some(GoLock {
            key: key.to_owned(),
            owner: of("owner").unwrap_or_default(),
            leased_until: of("leasedUntil").unwrap_or_default().parse().unwrap(),
        })
    }

    fn item(&self, key: &str, owner: &str, until: Timestamp, written: String) -> HashMap<String, AttributeValue> {
        // The TTL is written in the same time zone as the end.
        let offset = jiff::fmt::temporal::Pieces::parse(&written).unwrap().to_numeric_offset();
        let ttl = until + TTL;
        let ttl = match offset.filter(|offset| offset.seconds() != 0) {
            Some(offset) => ttl.display_with_offset(offset).to_string(),
            None => ttl.to_string(),
        };
        HashMap::from([
            ("key".to_owned(), text(key)),
            ("owner".to_owned(), text(owner)),
            ("leasedUntil".to_owned(), text(&written)),
            ("createdAt".to_owned(), text(&self.now().to_string())),
            ("ttl".to_owned(), text(&ttl)),
        ])
    }

    fn put(
        &self,
        item: HashMap<String, AttributeValue>,
        condition: &str,
        names: &[(&str, &str)],
        values: &[(&str, String)],
        owner: &str,
    ) -> Result<(), Unavailable> {
        let mut request = self.client.put_item().table_name(&self.table).set_item(Some(item));
        request = request.condition_expression(condition).expression_attribute_names("#owner", "owner");
        request = request.expression_attribute_values(":owner", text(owner));
        for (name, attribute) in names {
            request = request.expression_attribute_names(*name, *attribute);
        }
        for (name, value) in values {
            request = request.expression_attribute_values(*name, text(value));
        }
        match self.runtime.block_on(request.send()).map_err(sdk::error::SdkError::into_service_error) {
            Ok(_) => Ok(()),
            Err(PutItemError::ConditionalCheckFailedException(_)) => Err(Unavailable),
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// One process of a fleet.
#[cfg(target_os = "linux")]
pub struct Worker {
    go: Go,
    owner: String,
    lease: Duration,
    lock: Option<GoLock>,
}

#[cfg(target_os = "linux")]
impl Worker {
    pub fn new(table: &str, owner: String, lease: Duration) -> Worker {
        let go = Go::new(&Table(table.to_owned()), &Clock::system());
        Worker { go, owner, lease, lock: None }
    }
}

#[cfg(target_os = "linux")]
impl super::member::Member for Worker {
    fn take(&mut self, key: &str, number: u64) -> Option<u64> {
        self.lock = self.go.acquire(key, &self.owner, self.lease).ok();
        self.lock.as_ref().map(|_| number)
    }

    fn holds(&mut self, _key: &str) -> bool {
        self.lock.as_ref().is_some_and(|lock| self.go.now() < lock.leased_until)
    }

    fn renew(&mut self, _key: &str) {
        self.lock = self.lock.take().and_then(|lock| self.go.heartbeat(&lock, self.lease).ok());
    }

    fn leave(&mut self, _key: &str) {
        let _ = self.lock.take().map(|lock| self.go.release(&lock));
    }
}
