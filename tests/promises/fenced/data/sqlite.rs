//! A table in the lock file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::Error;
use leasehold::fence::Fenced;
use leasehold::sqlite::{AssertIn, rusqlite};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use super::{Change, Data};

pub struct Table(PathBuf);

impl Table {
    /// Creates the table if it is missing.
    pub fn new(file: &Path) -> Table {
        let table = Table(file.to_owned());
        table.open().execute_batch("CREATE TABLE IF NOT EXISTS data (key TEXT PRIMARY KEY, text TEXT)").unwrap();
        table
    }

    pub fn open(&self) -> Connection {
        let db = Connection::open(&self.0).unwrap();
        db.busy_timeout(Duration::from_secs(30)).unwrap();
        db
    }
}

/// Whether another connection has written since the transaction's first read.
fn is_conflict(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

impl Data for Table {
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error> {
        let Change { key, text, meanwhile } = change;
        let mut db = self.open();
        for begun in 1.. {
            let transaction = db.transaction().unwrap();
            let select = "SELECT text FROM data WHERE key = ?1";
            transaction.query_row(select, [key], |row| row.get::<_, String>(0)).optional().unwrap();
            meanwhile();
            let written = transaction.execute("INSERT OR REPLACE INTO data VALUES (?1, ?2)", [key, text]);
            if written.as_ref().is_err_and(is_conflict) {
                continue;
            }
            written.unwrap();
            held.map_or(Ok(()), |held| held.assert_in(&transaction))?;
            transaction.commit().unwrap();
            return Ok(begun);
        }
        unreachable!("it is begun for ever")
    }

    fn text(&self, key: &str) -> Option<String> {
        let select = "SELECT text FROM data WHERE key = ?1";
        self.open().query_row(select, [key], |row| row.get(0)).optional().unwrap()
    }
}
