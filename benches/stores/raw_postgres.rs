//! The PostgreSQL store's statements done by hand: an upsert, updates by the grant id, and a refusal that reads,
//! through a client with the same settings on a hidden runtime of its own, which a blocking program needs. They are
//! prepared once, as a careful program does. Also what people use instead: the same statements without preparing, as
//! behind a pooler of transactions, an advisory lock, and a row that a transaction has locked.

use std::rc::Rc;

use leasehold::internals::sys::driver::Driver;
use leasehold::postgres::tokio_postgres::types::{ToSql, Type};
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls, Statement};

use super::data::postgres::Texts;
use super::hidden::{hidden, soon};
use super::servers::postgres_synced;
use super::store::{Call, Peer, Raw, Store, builder};

const GRANT: &str = "0d0a2f2c-3a69-4f3e-8d0f-5f1c8d3c2b1a";
const OTHER: &str = "7c1d5f0e-95d2-4e0b-a5a3-2f0f6f8a9b3c";
/// In microseconds.
const LEASE: i64 = 20_000_000;
/// Gives the same promise about power cuts as the store.
const DURABLE: &str = "set_config('synchronous_commit', 'on', true)";

pub fn store() -> Option<Store> {
    let server = postgres_synced()?;
    let table = format!("bench_{:016x}", fastrand::u64(..));
    let url = format!("{server}?table={table}");
    builder(&url).connect().expect("the server").create_schema().expect("a table");
    let config: Config = server.parse().expect("the server's URL");
    let raw = |sent| Box::new(RawPostgres::new(&config, &table, sent));
    let mut store = Store::new("postgres", url, Some(raw(Sent::Prepared)), true);
    store.peers = vec![
        ("the same raw, not prepared", raw(Sent::AsText)),
        ("pg_advisory_lock, unlock", Box::new(Advisory::new(&config))),
        ("SELECT FOR UPDATE, COMMIT", Box::new(RowLock::new(&config, &table))),
    ];
    Some(store)
}

/// Drops the tables, which nobody else does.
pub fn tidy(url: &str) {
    if let Some((server, table)) = url.split_once("?table=") {
        let config: Config = server.parse().expect("the server's URL");
        let ended = format!("DROP TABLE IF EXISTS {table}, {table}_texts, {table}_rows");
        Session::new(&config).batch(&ended);
    }
}

/// A user's own table next to the table of the locks.
pub fn data(url: &str) -> Texts {
    let (server, table) = url.split_once("?table=").expect("one of our URLs");
    Texts::new(server.parse().expect("the server's URL"), &format!("{table}_texts"), false)
}

/// One connection.
struct Session(Driver<Client>);

impl Session {
    fn new(config: &Config) -> Self {
        let config = config.clone();
        Session(hidden(|| async move {
            let (client, connection) = config.connect(NoTls).await.expect("a connection");
            tokio::task::spawn_local(connection);
            Ok(client)
        }))
    }

    fn batch(&self, sql: &str) {
        let sql = sql.to_owned();
        let run = self.0.run(&soon(), move |client: Rc<Client>| async move { client.batch_execute(&sql).await });
        run.expect("an answer").expect("the statement");
    }

    fn prepare(&self, sql: &str, types: &[Type]) -> Statement {
        let (sql, types) = (sql.to_owned(), types.to_vec());
        let run =
            self.0.run(&soon(), move |client: Rc<Client>| async move { client.prepare_typed(&sql, &types).await });
        run.expect("an answer").expect("the raw statement")
    }

    /// Runs a prepared statement, and returns the first column of the first row.
    fn ask_prepared(&self, statement: &Statement, values: Vec<Value>) -> Option<bool> {
        let statement = statement.clone();
        let run = self.0.run(&soon(), move |client: Rc<Client>| async move {
            let values: Vec<_> = values.iter().map(|(value, _)| &**value as &(dyn ToSql + Sync)).collect();
            client.query(&statement, &values).await.map(|rows| rows.first().map(|row| row.get(0)))
        });
        run.expect("an answer").expect("the raw statement")
    }

    /// The same with the statement's text, in one message.
    fn ask(&self, sql: &str, values: Vec<Value>) -> Option<bool> {
        let sql = sql.to_owned();
        let run = self.0.run(&soon(), move |client: Rc<Client>| async move {
            let values: Vec<_> = values.iter().map(|(value, kind)| (&**value as _, kind.clone())).collect();
            client.query_typed(&sql, &values).await.map(|rows| rows.first().map(|row| row.get(0)))
        });
        run.expect("an answer").expect("the raw statement")
    }
}

type Value = (Box<dyn ToSql + Sync + Send>, Type);

fn text(value: &'static str) -> Value {
    (Box::new(value), Type::TEXT)
}

fn number(value: i64) -> Value {
    (Box::new(value), Type::INT8)
}

/// How the statements are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Prepared,
    AsText,
}

struct RawPostgres {
    session: Session,
    sent: Sent,
    acquire: (String, Statement),
    renew: (String, Statement),
    release: (String, Statement),
}

impl RawPostgres {
    fn new(config: &Config, table: &str, sent: Sent) -> Self {
        const ALL: &str = "key, kind, fence, grant_id, lock_id, owner, host, comment, token, created, renewed, until, \
                           shared::text, pins, given_up::text, version, format";
        let stamp = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let end = "clock_timestamp() + $3 * interval '1 microsecond'";
        let answer = |write: &str| {
            format!(
                "WITH w AS ({write} RETURNING t.*, {DURABLE}) SELECT true, clock_timestamp(), {ALL} FROM w \
                 UNION ALL SELECT false, clock_timestamp(), {ALL} FROM {table} WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM w)"
            )
        };
        let free = "grant_id IS NULL OR until <= clock_timestamp()";
        let session = Session::new(config);
        let [key, grant, lease] = [Type::TEXT, Type::TEXT, Type::INT8];
        let both = |sql: String, types: &[Type]| {
            let prepared = session.prepare(&sql, types);
            (sql, prepared)
        };
        let lasting = [key.clone(), grant.clone(), lease];
        let raw = RawPostgres {
            sent,
            acquire: both(
                answer(&format!(
                    "INSERT INTO {table} AS t (key, kind, fence, token, grant_id, lock_id, owner, host, created, until, version, \
                 format) SELECT $1, 'lock', {stamp}, {stamp}, $2, $2, 'some-host:12345', 'some-host', clock_timestamp(), {end}, \
                 1, '1.0' WHERE NOT EXISTS (SELECT FROM {table} WHERE key = $1 AND NOT ({free})) \
                 ON CONFLICT (key) DO UPDATE SET fence = greatest(t.fence + 1, {stamp}), \
                 token = greatest(t.fence + 1, {stamp}), grant_id = $2, lock_id = $2, owner = 'some-host:12345', \
                 host = 'some-host', created = clock_timestamp(), renewed = NULL, until = {end}, version = t.version + 1 \
                 WHERE t.{}",
                    free.replace("until", "t.until")
                )),
                &lasting,
            ),
            renew: both(
                answer(&format!(
                    "UPDATE {table} AS t SET until = greatest(t.until, {end}), renewed = clock_timestamp(), \
                 version = t.version + 1 WHERE t.key = $1 AND t.grant_id = $2"
                )),
                &lasting,
            ),
            release: both(
                format!(
                    "WITH w AS (UPDATE {table} AS t SET grant_id = NULL, lock_id = NULL, owner = NULL, host = NULL, token = NULL, \
                 created = NULL, renewed = NULL, until = NULL, version = t.version + 1 \
                 WHERE t.key = $1 AND t.grant_id = $2 \
                 RETURNING t.*, set_config('synchronous_commit', 'off', true)) \
                 SELECT true, clock_timestamp(), {ALL}, pg_notify('raw', hashtextextended(key, 0)::text) FROM w \
                 UNION ALL SELECT false, clock_timestamp(), {ALL}, NULL FROM {table} WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM w)"
                ),
                &[key, grant],
            ),
            session,
        };
        // The lock that `Refused` tries to acquire.
        if sent == Sent::Prepared {
            assert_eq!(
                raw.ask(&raw.acquire, vec![text("raw-held"), text(OTHER), number(LEASE * 1_000_000)]),
                Some(true)
            );
        }
        raw
    }

    fn ask(&self, (sql, prepared): &(String, Statement), values: Vec<Value>) -> Option<bool> {
        match self.sent {
            Sent::Prepared => self.session.ask_prepared(prepared, values),
            Sent::AsText => self.session.ask(sql, values),
        }
    }
}

impl Peer for RawPostgres {
    fn hold(&mut self) {
        self.run(Call::Acquire);
        self.run(Call::Release);
    }
}

impl Raw for RawPostgres {
    fn prepare(&mut self, _: Call) {}

    fn run(&mut self, call: Call) {
        let key = match self.sent {
            Sent::Prepared => "raw",
            Sent::AsText => "raw-text",
        };
        let held = vec![text(key), text(GRANT)];
        let lasting = vec![text(key), text(GRANT), number(LEASE)];
        let done = match call {
            Call::Acquire => self.ask(&self.acquire, lasting),
            Call::Renew => self.ask(&self.renew, lasting),
            Call::Release => self.ask(&self.release, held),
            Call::Refused => {
                let refused = vec![text("raw-held"), text(GRANT), number(LEASE)];
                self.ask(&self.acquire, refused).map(|granted| !granted)
            }
        };
        assert_eq!(done, Some(true), "the raw {call:?}");
    }
}

/// A lock of the session: nothing is written, only the session's end or an unlock ends it, and there is no token.
struct Advisory {
    session: Session,
}

impl Advisory {
    fn new(config: &Config) -> Self {
        Advisory { session: Session::new(config) }
    }
}

impl Peer for Advisory {
    fn hold(&mut self) {
        let lock = "SELECT pg_advisory_lock(hashtextextended($1, 0)) IS NOT NULL";
        assert_eq!(self.session.ask(lock, vec![text("bench")]), Some(true));
        let unlock = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        assert_eq!(self.session.ask(unlock, vec![text("bench")]), Some(true));
    }
}

/// A row that is locked by a transaction, which stays open as long as the lock is held.
struct RowLock {
    session: Session,
    lock: String,
}

impl RowLock {
    fn new(config: &Config, table: &str) -> Self {
        let (session, rows) = (Session::new(config), format!("{table}_rows"));
        session.batch(&format!("CREATE TABLE {rows} (key text PRIMARY KEY); INSERT INTO {rows} VALUES ('bench')"));
        RowLock { session, lock: format!("SELECT true FROM {rows} WHERE key = $1 FOR UPDATE") }
    }
}

impl Peer for RowLock {
    fn hold(&mut self) {
        self.session.batch("BEGIN");
        assert_eq!(self.session.ask(&self.lock, vec![text("bench")]), Some(true));
        self.session.batch("COMMIT");
    }
}
