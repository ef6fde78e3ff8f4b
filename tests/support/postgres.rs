//! Tables on a PostgreSQL, whose rows a test can make older.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::error::Error as _;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use leasehold::internals::store::postgres::{Postgres, PostgresOptions};
use leasehold::internals::store::{Backend, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};
use leasehold::{ClientBuilder, Error, LockClient, Result};

use super::servers::postgres_server;
use super::stores::{soon, unique};
use super::wait::wait_until;

/// A table that is dropped with this value.
pub struct Rows(pub String);

impl Rows {
    /// A new name; nothing is created.
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
        opened(self.options())
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(config(), &self.0).unwrap()
    }

    /// The same at another server.
    pub fn options_at(&self, host: &str) -> PostgresOptions {
        PostgresOptions::new(format!("postgres://leasehold@{host}/postgres").parse().unwrap(), &self.0).unwrap()
    }

    /// The URL of the table.
    pub fn url(&self) -> String {
        format!("{}?table={}", postgres_server().unwrap(), self.0)
    }

    /// Runs this statement as any other program can, with the table's name for `{T}`.
    pub fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&config(), &sql.replace("{T}", &self.0))
    }

    /// The first value of the answer.
    pub fn one(&self, sql: &str) -> Option<String> {
        self.sql(sql).into_iter().next()?.into_iter().next()?
    }

    /// Moves every time of every row into the past, as if this much time had passed.
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

/// Repeats this while the error is one that only a slow machine or server explains: the library gives a connection
/// three seconds, and a role may end sessions that were silent for less.
pub fn unless_late<T>(ask: impl FnMut() -> Result<T>) -> Result<T> {
    // A session that ended before anything was asked is reported as closed.
    let late = ["no connection in the time", "idle-session timeout", "transaction timeout", "connection closed"];
    unless_one_of(&[&late[..], &UNMADE[..]].concat(), ask)
}

/// The same for a call that must not wait for others: if its time is over before anything was sent, it fails.
pub fn unless_unmade<T>(ask: impl FnMut() -> Result<T>) -> Result<T> {
    unless_one_of(&UNMADE, ask)
}

/// What the library says of a connection that was not made in those three seconds.
const UNMADE: [&str; 1] = ["not made in"];

fn unless_one_of<T>(late: &[&str], mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let mut answer = ask();
    wait_until("a connection is made in its time", || {
        let is_late = answer.as_ref().is_err_and(|error| says_one_of(error, late));
        if is_late {
            answer = ask();
        }
        !is_late
    });
    answer
}

fn says_one_of(error: &Error, late: &[&str]) -> bool {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&source.to_string());
        next = source.source();
    }
    late.iter().any(|late| text.contains(late))
}

/// Whether this becomes true within a time that is far more than enough: for what may never happen if the server
/// stopped for a while.
pub fn comes_soon(mut cond: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !cond() {
        if began.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A store that must open.
pub fn opened(options: PostgresOptions) -> Postgres {
    unless_late(|| Postgres::open(options.clone(), &soon())).unwrap()
}

/// A client that must connect.
pub fn connected(builder: impl Fn() -> ClientBuilder) -> LockClient {
    unless_late(|| builder().connect()).unwrap()
}

/// The channel on which a store tells of this key, which it must. A store that does not hear its own notification
/// within a second reports that it tells nothing; then this tries again.
pub fn told_of(store: &Postgres, key: &str) -> Receiver<String> {
    let mut told = None;
    wait_until("it tells", || {
        let (to, hears) = crossbeam_channel::unbounded();
        told = Some(hears);
        unless_late(|| store.wake(&[key.to_owned()], to.clone(), &soon())).unwrap()
    });
    told.unwrap()
}

/// Settings as a user would make them.
pub fn config() -> Config {
    postgres_server().unwrap().parse().unwrap()
}

/// Runs this statement on a connection of its own, and on a thread of its own, because the test may run in an async
/// task.
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

/// Sets the standbys that the server's commits wait for.
pub fn standbys(config: &Config, names: &str) {
    sql_at(config, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
    sql_at(config, "SELECT pg_reload_conf()");
    let is_known = || sql_at(config, "SHOW synchronous_standby_names")[0][0].as_deref() == Some(names);
    wait_until("it is known", is_known);
    // Commits wait for no standby until the checkpointer has read the setting, too, which it does before a checkpoint.
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
