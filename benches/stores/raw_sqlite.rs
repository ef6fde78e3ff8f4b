//! The SQLite store's statements done by hand: one connection, each statement prepared once, nothing unnecessary.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use super::data::sqlite::Table;
use super::store::{Call, Raw};

const SCHEMA: &str = "\
PRAGMA journal_mode = WAL;
CREATE TABLE locks (key BLOB PRIMARY KEY, kind TEXT NOT NULL, token INTEGER NOT NULL, version INTEGER NOT NULL, \
clock TEXT NOT NULL, sightings TEXT, grant_id TEXT, lock_id TEXT, owner TEXT, host TEXT, comment TEXT, \
holder_token INTEGER, created INTEGER, renewed INTEGER, leased_until INTEGER, holders TEXT, pins TEXT) WITHOUT ROWID";

const READ: &str = "SELECT key, kind, token, version, clock, sightings, grant_id, lock_id, owner, host, comment, \
                    holder_token, created, renewed, leased_until, holders, pins FROM locks WHERE key = ?1";

const WRITE: &str = "\
INSERT INTO locks (key, kind, token, version, clock, sightings, grant_id, lock_id, owner, host, comment, \
holder_token, created, renewed, leased_until, holders, pins) \
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) \
ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, token = excluded.token, version = excluded.version, \
clock = excluded.clock, sightings = excluded.sightings, grant_id = excluded.grant_id, lock_id = excluded.lock_id, \
owner = excluded.owner, host = excluded.host, comment = excluded.comment, holder_token = excluded.holder_token, \
created = excluded.created, renewed = excluded.renewed, leased_until = excluded.leased_until, \
holders = excluded.holders, pins = excluded.pins";

const CLOCK: &str = "6f1b6a55-1c1e-4a58-9d51-3d0a0b7f2d11:0.0";
const GRANT: &str = "0d0a2f2c-3a69-4f3e-8d0f-5f1c8d3c2b1a";
const OWNER: &str = "some-host:12345:stores";

/// A user's own table in the file of the locks.
pub fn data(url: &str) -> Table {
    Table::new(Path::new(url.strip_prefix("sqlite:").expect("one of our URLs")))
}

pub struct RawSqlite {
    conn: Connection,
    token: i64,
}

impl RawSqlite {
    pub fn new(path: &Path) -> Self {
        let made = Connection::open(path).expect("the raw file");
        made.execute_batch(SCHEMA).expect("the raw table");
        drop(made);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut raw = RawSqlite { conn: Connection::open_with_flags(path, flags).expect("the raw file"), token: 1 };
        raw.run(Call::Acquire);
        raw
    }

    fn transaction(&mut self, call: Call) -> rusqlite::Result<()> {
        let conn = &self.conn;
        let statement = |sql| conn.prepare_cached(sql);
        statement("BEGIN IMMEDIATE")?.execute([])?;
        let key: &[u8] = b"bench";
        let seen: Option<(i64, i64, Option<String>, Option<i64>)> = {
            let mut read = statement(READ)?;
            let mut rows = read.query([key])?;
            match rows.next()? {
                Some(row) => Some((row.get(2)?, row.get(3)?, row.get(6)?, row.get(14)?)),
                None => None,
            }
        };
        let (_, version, _, _) = seen.unwrap_or((0, 0, None, None));
        let none = None::<&str>;
        if call != Call::Refused {
            let held = (call != Call::Release).then_some(());
            let text = |text: &'static str| held.map(|()| text);
            self.token += i64::from(call == Call::Acquire);
            let created = held.map(|()| 1_000_000_000_000_i64 + self.token);
            let renewed = created.filter(|_| call == Call::Renew);
            statement(WRITE)?.execute(params![
                key,
                "lock",
                1_700_000_000_000_000_i64 + self.token,
                version + 1,
                CLOCK,
                none,
                text(GRANT),
                text(GRANT),
                text(OWNER),
                text("some-host"),
                none,
                None::<i64>,
                created,
                renewed,
                created.map(|at| at + 20_000_000_000),
                none,
                none,
            ])?;
        }
        statement("COMMIT")?.execute([]).map(drop)
    }
}

impl Raw for RawSqlite {
    fn prepare(&mut self, call: Call) {
        let level = if matches!(call, Call::Acquire | Call::Refused) { "FULL" } else { "NORMAL" };
        self.conn.pragma_update(None, "synchronous", level).expect("the durability");
    }

    fn run(&mut self, call: Call) {
        self.transaction(call).expect("the raw statements");
    }
}
