//! Tables on a PostgreSQL, whose rows a test can make older.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::time::Duration;

use leasehold::internals::store::postgres::{Postgres, PostgresOptions};
use leasehold::internals::store::{Backend, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::servers::postgres_server;
use super::stores::unique;
use super::wait::wait_until;

/// A table that goes with its test.
pub struct Rows(pub String);

impl Rows {
    /// A new name; nothing is made.
    pub fn unmade() -> Rows {
        Rows(format!("t_{}", unique().replace('-', "")))
    }

    /// A new table.
    pub fn fresh() -> Rows {
        let rows = Rows::unmade();
        let by = Deadline::after(Duration::from_secs(60));
        rows.open().schema(Schema::Create, &by).unwrap();
        rows
    }

    /// A client of it.
    pub fn open(&self) -> Postgres {
        Postgres::open(self.options(), &Deadline::after(Duration::from_secs(30))).unwrap()
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(config(), &self.0).unwrap()
    }

    /// At another server.
    pub fn options_at(&self, host: &str) -> PostgresOptions {
        PostgresOptions::new(format!("postgres://leasehold@{host}/postgres").parse().unwrap(), &self.0).unwrap()
    }

    /// The URL of it.
    pub fn url(&self) -> String {
        format!("{}?table={}", postgres_server().unwrap(), self.0)
    }

    /// Does this as everybody else can, with the table's name for `T`.
    pub fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&config(), &sql.replace("{T}", &self.0))
    }

    /// The first value of the answer.
    pub fn one(&self, sql: &str) -> Option<String> {
        self.sql(sql).into_iter().next()?.into_iter().next()?
    }

    /// Moves every time of every row so far into the past, as if so much had passed since.
    pub fn age(&self, by: Duration) {
        let micros = i64::try_from(by.as_nanos().div_ceil(1_000)).unwrap();
        let earlier = |name: &str| format!("{name} = {name} - {micros} * interval '1 microsecond'");
        let entry = |name: &str| {
            format!(
                "CASE WHEN jsonb_typeof(e -> '{name}') = 'number' THEN jsonb_build_object('{name}', (e -> '{name}')::bigint - {micros}) ELSE '{{}}' END"
            )
        };
        let (created, renewed, until) = (earlier("created"), earlier("renewed"), earlier("until"));
        let entries = ["created", "renewed", "until"].map(entry).join(" || ");
        self.sql(&format!(
            "UPDATE {{T}} SET {created}, {renewed}, {until}, shared = (SELECT jsonb_agg(e || {entries} ORDER BY place) \
             FROM jsonb_array_elements(shared) WITH ORDINALITY AS x (e, place))"
        ));
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.sql("DROP TABLE IF EXISTS {T}");
    }
}

/// What a user's settings would be.
pub fn config() -> Config {
    postgres_server().unwrap().parse().unwrap()
}

/// Does this on a connection of its own. A thread of its own: the test may be in somebody's async task.
pub fn sql_at(config: &Config, sql: &str) -> Vec<Vec<Option<String>>> {
    let asks = || {
        block_on(async {
            let client = connect(config).await;
            let answers = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let rows = answers.into_iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => {
                    Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
                }
                _ => None,
            });
            rows.collect()
        })
    };
    std::thread::scope(|scope| scope.spawn(asks).join().unwrap())
}

/// Sets which standbys the server's commits wait for.
pub fn standbys(config: &Config, names: &str) {
    sql_at(config, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
    sql_at(config, "SELECT pg_reload_conf()");
    let is_known = || sql_at(config, "SHOW synchronous_standby_names")[0][0].as_deref() == Some(names);
    wait_until("it is known", is_known);
    // Commits wait for nobody until the checkpointer has read it, too, which it does before a checkpoint.
    sql_at(config, "CHECKPOINT");
}

/// Runs a user's own async code.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// A user's own connection.
pub async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
