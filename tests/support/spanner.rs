//! Databases on the emulator of Cloud Spanner, and a client of its own SDK.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use leasehold::internals::store::spanner::{Settings, Spanner, SpannerOptions};
use leasehold::internals::store::{Backend, Schema};
pub use leasehold::spanner::google_cloud_spanner as sdk;
use sdk::builder::{SpannerBuilder, SpannerBuilderExt};
use sdk::channel_pool::StaticChannelPoolConfig;
use sdk::client::{DatabaseClient, Spanner as Client};
use sdk::mutation::Mutation;
use sdk::statement::Statement;
use sdk::value::Value;

use super::servers::spanner::{make_database, rest};
use super::servers::spanner_emulator;
use super::stores::{soon, unique};

/// The table of the tests.
pub const TABLE: &str = "locks";

/// A database that only one test uses.
#[derive(Clone, Debug)]
pub struct Database {
    /// Where the emulator serves gRPC.
    pub host: String,
    /// `projects/P/instances/I/databases/D`.
    pub path: String,
}

impl Database {
    /// With the table, created together with the database: each check of a schema costs the emulator as much as ten of
    /// a row.
    pub fn fresh() -> Database {
        static SCHEMA: OnceLock<String> = OnceLock::new();
        let schema = SCHEMA.get_or_init(|| Database::empty().open().schema(Schema::Describe, &soon()).unwrap());
        let statements: Vec<&str> = schema.split_terminator(';').map(str::trim).collect();
        Database::with(&statements)
    }

    /// Without a table.
    pub fn empty() -> Database {
        Database::with(&[])
    }

    fn with(statements: &[&str]) -> Database {
        let request =
            serde_json::json!({ "createStatement": "CREATE DATABASE `locks`", "extraStatements": statements });
        Database::made_by(&spanner_emulator().unwrap(), &request.to_string())
    }

    /// A database in the emulator at `host`, made by this request, in which its name must be `locks`.
    pub fn made_by(host: &str, request: &str) -> Database {
        let instance = format!("i{}", &unique().replace('-', "")[..20]);
        let path = make_database(host, "tests", &instance, "locks", request);
        Database { host: host.to_owned(), path }
    }

    /// Changes its schema.
    pub fn ddl(&self, statement: &str) {
        let body = serde_json::json!({ "statements": [statement] }).to_string();
        let (status, answer) = rest(&self.host, "PATCH", &format!("/v1/{}/ddl", self.path), &body).unwrap();
        assert!(status == 200 && !answer.contains("\"error\""), "{answer}");
    }

    pub fn options(&self) -> SpannerOptions {
        self.options_at(&self.host)
    }

    /// Options that reach the service through another host, like a proxy.
    pub fn options_at(&self, host: &str) -> SpannerOptions {
        let settings = Settings::Given(Box::new(settings(host)));
        let (name, port) = self.host.rsplit_once(':').unwrap();
        let port = port.parse::<u16>().unwrap() + 10;
        let mut options = SpannerOptions::new(&self.path, TABLE, settings);
        options.admin_endpoint = Some(format!("http://{name}:{port}"));
        options
    }

    pub fn open(&self) -> Spanner {
        Spanner::open(self.options(), &soon()).unwrap()
    }

    pub fn raw(&self) -> Raw {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let client = settings(&self.host).build().await.unwrap();
            client.database_client(&self.path).build().await.unwrap()
        });
        Raw { client, runtime }
    }
}

/// Settings for an emulator, which accepts any client.
pub fn settings(host: &str) -> SpannerBuilder {
    Client::builder().with_endpoint(format!("http://{host}")).with_channel_pool(StaticChannelPoolConfig::new(1))
}

/// The SDK's own client, as any other program would have one.
pub struct Raw {
    pub client: DatabaseClient,
    runtime: tokio::runtime::Runtime,
}

impl Raw {
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn write(&self, mutation: Mutation) {
        self.wait(self.client.write_only_transaction().build().write(vec![mutation])).unwrap();
    }

    pub fn update(&self, statement: Statement) {
        let runner = self.client.read_write_transaction().build();
        self.wait(runner.run(async |tx| tx.execute_update(statement.clone()).await)).unwrap();
    }

    /// The rows of a query, each a map from column name to the value as the service writes it.
    pub fn query(&self, statement: Statement) -> Vec<BTreeMap<String, Value>> {
        self.wait(async {
            let mut rows = self.client.single_use().build().execute_query(statement).await.unwrap();
            let names: Vec<String> = rows.metadata().column_names().iter().map(ToString::to_string).collect();
            let mut found = Vec::new();
            while let Some(row) = rows.next().await {
                found.push(names.iter().cloned().zip(row.unwrap().into_values()).collect());
            }
            found
        })
    }

    /// Moves the end of every lease of ours into the past by this much, since a test cannot move the emulator's clock.
    pub fn age(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap();
        let runner = self.client.read_write_transaction().build();
        let aged = runner.run(async |tx| {
            let sql =
                format!("UPDATE {TABLE} SET lease_ms = lease_ms - @by WHERE lease_ms IS NOT NULL AND holders IS NULL");
            tx.execute_update(Statement::builder(sql).add_param("by", by).build()).await?;
            let sql = format!("SELECT name, holders FROM {TABLE} WHERE holders IS NOT NULL");
            let mut rows = tx.execute_query(Statement::builder(sql).build()).await?;
            while let Some(row) = rows.next().await {
                let row = row?;
                let (name, mut holders): (String, serde_json::Value) = (row.get(0)?, row.get(1)?);
                for holder in holders.as_array_mut().unwrap() {
                    if let Some(until) = holder["until"].as_i64() {
                        holder["until"] = (until - by * 1_000).into();
                    }
                }
                let update = Mutation::new_update_builder(TABLE).set("name").to(name);
                tx.buffer([update.set("holders").to(holders.to_string()).build()])?;
            }
            Ok(())
        });
        self.wait(aged).unwrap();
    }
}
