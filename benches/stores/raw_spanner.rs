//! A read-write transaction of one read and one mutation done by hand, with the same columns, through a client with the
//! same settings on a hidden runtime of its own, which a blocking program needs. One that is refused reads, and is rolled
//! back.

use std::rc::Rc;

use leasehold::internals::sys::driver::Driver;
use leasehold::spanner::google_cloud_spanner as sdk;
use leasehold::{ClientBuilder, LockClient};
use sdk::builder::{SpannerBuilder, SpannerBuilderExt};
use sdk::channel_pool::StaticChannelPoolConfig;
use sdk::client::{DatabaseClient, Spanner as Client};
use sdk::model::transaction_options::IsolationLevel;
use sdk::model::transaction_options::read_write::ReadLockMode;
use sdk::mutation::{Mutation, WriteBuilder};
use sdk::statement::Statement;
use sdk::transaction::ReadWriteTransaction;

use super::data::spanner as data;
use super::hidden::{hidden, soon};
use super::servers::spanner::{make_database, rest};
use super::servers::spanner_emulator;
use super::store::{Call, Raw, Store};

pub const SCHEME: &str = "spanner:";
const TABLE: &str = "locks";
const GRANT: &str = "0d0a2f2c-3a69-4f3e-8d0f-5f1c8d3c2b1a";
const COMMIT: &str = "spanner.commit_timestamp()";

pub fn store() -> Option<Store> {
    let host = spanner_emulator()?;
    let instance = format!("bench-{:016x}", fastrand::u64(..));
    let create = "{\"createStatement\": \"CREATE DATABASE bench\"}";
    let path = make_database(&host, "bench", &instance, "bench", create);
    let url = format!("{SCHEME}{path}@{host}");
    let schema = builder(&url).connect().expect("the emulator").schema().expect("the statements");
    let statements: Vec<&str> = schema.trim_end_matches(';').split(";\n").chain([data::SCHEMA]).collect();
    let body = serde_json::json!({ "statements": statements }).to_string();
    let (status, answer) = rest(&host, "PATCH", &format!("/v1/{path}/ddl"), &body).expect("the emulator");
    assert_eq!(status, 200, "{answer}");
    let raw = RawSpanner::new(&host, &path);
    Some(Store::new("spanner", url, Some(Box::new(raw)), true))
}

fn settings(host: &str) -> SpannerBuilder {
    Client::builder().with_endpoint(format!("http://{host}")).with_channel_pool(StaticChannelPoolConfig::new(1))
}

/// The database and the emulator, if the URL is one that this benchmark has made.
fn named(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix(SCHEME)?.split_once('@')
}

/// A user's own table next to the table of the locks.
pub fn data(url: &str) -> data::Table {
    let (path, host) = named(url).expect("one of our URLs");
    data::Table::new(settings(host), path)
}

/// A client for such a URL.
pub fn builder(url: &str) -> ClientBuilder {
    match named(url) {
        Some((path, host)) => leasehold::spanner::builder(settings(host), path, TABLE),
        None => LockClient::builder(url),
    }
}

struct RawSpanner {
    driver: Driver<DatabaseClient>,
}

impl RawSpanner {
    fn new(host: &str, path: &str) -> Self {
        let (settings, path) = (settings(host), path.to_owned());
        let driver = hidden(|| async move {
            let client = settings.build().await.expect("a client");
            Ok(client.database_client(path).build().await.expect("a session"))
        });
        let raw = RawSpanner { driver };
        // The lock that `Refused` reads.
        raw.acquire("raw-held");
        raw
    }

    fn writes(&self, key: &'static str, columns: impl Fn(WriteBuilder) -> WriteBuilder + Send + 'static) {
        self.transaction(key, move |row| Some(columns(row))).expect("the raw transaction");
    }

    /// `columns`: what it writes; with None it is rolled back, and ends with an error.
    fn transaction(
        &self,
        key: &'static str,
        columns: impl Fn(WriteBuilder) -> Option<WriteBuilder> + Send + 'static,
    ) -> Result<(), sdk::Error> {
        let read = format!(
            "SELECT CURRENT_TIMESTAMP() AS now, t.name, t.heartbeat, t.token, t.writer, t.grant_id, t.lock_id, \
             t.lease_ms, t.owner, t.host, t.comment, t.holders, t.kind, t.pins, t.format, t.given_up, t.not_after \
             FROM (SELECT 1) LEFT JOIN `{TABLE}` AS t ON t.name = @name"
        );
        let run = self.driver.run(&soon(), move |client: Rc<DatabaseClient>| async move {
            let runner = client.read_write_transaction().set_isolation_level(IsolationLevel::Serializable);
            // As ours, which locks what it read only at the commit.
            let runner = runner.set_read_lock_mode(ReadLockMode::Optimistic).build();
            let work = async |transaction: ReadWriteTransaction| {
                let statement = Statement::builder(read.as_str()).add_param("name", key).build();
                let mut rows = transaction.execute_query(statement).await?;
                while let Some(row) = rows.next().await {
                    let _ = row?;
                }
                let row = Mutation::new_insert_or_update_builder(TABLE).set("name").to(key);
                let row = columns(row).ok_or_else(|| sdk::Error::ser("it is refused"))?;
                transaction.buffer([row.build()])
            };
            runner.run(work).await.map(drop)
        });
        run.expect("an answer")
    }

    fn acquire(&self, key: &'static str) {
        self.writes(key, |row| {
            let row = row.set("heartbeat").to(COMMIT).set("token").to(COMMIT).set("writer").to(GRANT);
            let row = row.set("grant_id").to(GRANT).set("lock_id").to(GRANT).set("lease_ms").to(20_000_i64);
            row.set("owner").to("bench:1").set("host").to("bench").set("kind").to("lock").set("format").to("1.0")
        });
    }
}

impl Raw for RawSpanner {
    fn prepare(&mut self, _call: Call) {}

    fn run(&mut self, call: Call) {
        match call {
            Call::Acquire => self.acquire("raw"),
            Call::Renew => self.writes("raw", |row| row.set("heartbeat").to(COMMIT)),
            Call::Release => self.writes("raw", |row| {
                let none = None::<String>;
                let row = row.set("heartbeat").to(&none).set("grant_id").to(&none).set("lock_id").to(&none);
                row.set("owner").to(&none).set("host").to(&none)
            }),
            Call::Refused => {
                let refused = self.transaction("raw-held", |_| None).expect_err("it is refused");
                assert!(refused.is_serialization(), "{refused:?}");
            }
        }
    }
}
