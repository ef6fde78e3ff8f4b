//! What only the DynamoDB store must keep, on the real DynamoDB Local: requests, rows, time, errors, the table.
mod classes;
mod cost;
mod counts;
mod credentials;
mod errors;
mod faults;
mod grace;
mod growth;
mod mixed;
mod mixed_rows;
mod rights;
mod rows;
mod scans;
mod signing;
mod sort_key;
mod sweep;
mod table;
mod time;
mod ttl;
mod undo;
#[cfg(feature = "serde")]
mod upgrade;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::ClientBuilder;
use leasehold::dynamodb::aws_config::SdkConfig;
use leasehold::dynamodb::aws_sdk_dynamodb as sdk;
use leasehold::internals::lease::{Holder, Lease, LockRecord, Mode};
use leasehold::internals::store::dynamodb::{Dynamodb, DynamodbOptions, Estimate, Settings};
use leasehold::internals::store::{Acquired, Attempt, Backend, GrantForm, Renewal, Which};
use leasehold::internals::sys::clock::{BootTime, Clock};

use crate::support::calls::{LEASE, acquired, refused};
use crate::support::direct::{self, get};
use crate::support::dynamodb::{Table, config, config_at, dateless, options};
use crate::support::proxy::Proxy;
use crate::support::stores::soon;

/// What a test makes on the server; without a server the test ends here.
macro_rules! needs_server {
    ($($made:expr)?) => {{
        if $crate::support::servers::dynamodb_local().is_none() {
            return;
        }
        $($made)?
    }};
}
pub(crate) use needs_server;

/// The server's own client, as any other program would have it.
struct Raw {
    runtime: tokio::runtime::Runtime,
    client: sdk::Client,
    table: String,
}

impl Raw {
    fn new(table: &Table) -> Raw {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Raw { runtime, client: sdk::Client::new(&config()), table: table.0.clone() }
    }

    fn put(&self, item: std::collections::HashMap<String, sdk::types::AttributeValue>) {
        let request = self.client.put_item().table_name(&self.table).set_item(Some(item));
        self.runtime.block_on(request.send()).unwrap();
    }

    fn put_all(&self, items: Vec<std::collections::HashMap<String, sdk::types::AttributeValue>>) {
        let write = |item: &std::collections::HashMap<_, _>| {
            let put = sdk::types::PutRequest::builder().set_item(Some(item.clone())).build().unwrap();
            sdk::types::WriteRequest::builder().put_request(put).build()
        };
        for some in items.chunks(25) {
            let request = self.client.batch_write_item();
            let request = request.request_items(&self.table, some.iter().map(write).collect());
            let left = self.runtime.block_on(request.send()).unwrap().unprocessed_items;
            assert!(left.is_none_or(|left| left.is_empty()));
        }
    }

    fn delete(&self, key: &str) {
        let key = sdk::types::AttributeValue::S(key.to_owned());
        self.runtime.block_on(self.client.delete_item().table_name(&self.table).key("key", key).send()).unwrap();
    }

    /// Every row of the table.
    fn all(&self) -> Vec<std::collections::HashMap<String, sdk::types::AttributeValue>> {
        let request = self.client.scan().table_name(&self.table).consistent_read(true).into_paginator().items();
        self.runtime.block_on(request.send().collect::<Result<_, _>>()).unwrap()
    }

    fn get(&self, key: &str) -> std::collections::HashMap<String, sdk::types::AttributeValue> {
        let key = sdk::types::AttributeValue::S(key.to_owned());
        let request = self.client.get_item().table_name(&self.table).key("key", key).consistent_read(true);
        self.runtime.block_on(request.send()).unwrap().item.unwrap_or_default()
    }
}

fn open(options: DynamodbOptions, clock: &Arc<Clock>) -> Dynamodb {
    Dynamodb::open(options, clock.clone(), &soon()).unwrap()
}

/// A builder as a program would use it, with enough time for a server on a busy machine to answer.
fn patient(config: SdkConfig, table: impl Into<leasehold::dynamodb::Table>) -> ClientBuilder {
    crate::support::harness::patient(leasehold::dynamodb::builder(config, table))
}

/// A store on this table, with a clock and an estimate of its own.
fn client(table: &Table) -> (Dynamodb, Arc<Clock>) {
    let clock = Clock::system();
    (open(options(&table.0, &clock), &clock), clock)
}

/// The service's `Date`, with its time moved along with `clock`, and when it was read; read again if this thread
/// stalled between the two. Two answers about one moment must name the same second, or the time would be known much
/// better than to a second.
fn date_at(clock: &Clock) -> (i64, BootTime) {
    let (before, ahead) = (clock.now(), clock.now().since(Clock::system().now()));
    let (date, now) = ((jiff::Timestamp::now() + ahead).as_second(), clock.now());
    if now.since(before) < Duration::from_millis(20) { (date, now) } else { date_at(clock) }
}

/// An estimate from two hosts of the service, whose time is this far ahead of this host's, with answers that took twice
/// as long as `around`. It is confirmed already, and a slow later answer makes it no less exact.
fn told_by_two(clock: &Clock, ahead: i64, around: Duration) -> Arc<Estimate> {
    let estimate = Arc::new(Estimate::default());
    let (date, now) = date_at(clock);
    for over in [0, 1] {
        estimate.learn_corrected(date + ahead, now - around, now + around, 0, over);
    }
    estimate
}

/// A client that knows only this of the service's time, which has moved with `clock`, and learns no more.
fn knowing(table: &Table, clock: &Arc<Clock>, around: Duration) -> DynamodbOptions {
    let mut options = options(&table.0, clock);
    options.interceptors.push(dateless());
    options.estimate = Some(told_by_two(clock, 0, around));
    options
}

fn attempt(key: &str, mode: Mode) -> Attempt {
    crate::support::calls::attempt(GrantForm::Uuid, key, mode)
}

fn exclusive(key: &str) -> Attempt {
    attempt(key, Mode::Exclusive)
}

fn shared(key: &str) -> Attempt {
    attempt(key, Mode::Shared)
}

#[track_caller]
fn granted(store: &dyn Backend, attempt: &mut Attempt) -> Holder {
    acquired(store, attempt).0
}

/// A renewal for this lease.
fn renewal(lease: Duration) -> Renewal {
    crate::support::calls::renewal(Lease::For(lease))
}

/// A store behind a faulty network, and one next to it that meets no fault.
struct Behind {
    proxy: Proxy,
    table: Table,
    store: Dynamodb,
    beside: Dynamodb,
}

impl Behind {
    fn new() -> Behind {
        let (table, clock) = (Table::fresh(), Clock::system());
        let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
        let settings = Settings::Given(Box::new(config_at(&proxy.url())));
        let store = open(DynamodbOptions { settings, ..options(&table.0, &clock) }, &clock);
        let beside = client(&table).0;
        Behind { proxy, table, store, beside }
    }

    fn record(&self, key: &str) -> LockRecord {
        get(&self.beside, key).record
    }

    fn holders(&self, key: &str) -> Vec<Holder> {
        direct::holders(&self.beside, key)
    }
}
