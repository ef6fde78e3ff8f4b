//! The table, the format's version, and how a file gets both.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::Sqlite;
use super::conn::{self, Begin, LAST_PAUSE, Tx, busy_retried};
use super::error::SqliteError;
use crate::lease::record::{FORMAT_MAJOR, FORMAT_MINOR};
use crate::model::error::Result;
use crate::store::Schema;
use crate::store::transactional::Durability;
use crate::sys::deadline::Deadline;

/// The table. The key is a BLOB so that it is compared byte by byte.
pub(super) const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS locks (
  key BLOB PRIMARY KEY,
  kind TEXT NOT NULL,
  token INTEGER NOT NULL,
  version INTEGER NOT NULL,
  clock TEXT NOT NULL,
  sightings TEXT,
  grant_id TEXT,
  lock_id TEXT,
  owner TEXT,
  host TEXT,
  comment TEXT,
  holder_token INTEGER,
  created INTEGER,
  renewed INTEGER,
  leased_until INTEGER,
  holders TEXT,
  pins TEXT
) WITHOUT ROWID";

/// Name, type, NOT NULL and whether it is the key of every column of [`TABLE`].
///
/// `sightings`: when clocks other than a holder's own first saw it in its present state. `holder_token`: null if it is
/// the same as `token`. `leased_until`: null in a row with a grant id means a lease without end.
const COLUMNS: [(&str, &str, bool, bool); 17] = [
    ("key", "BLOB", true, true),
    ("kind", "TEXT", true, false),
    ("token", "INTEGER", true, false),
    ("version", "INTEGER", true, false),
    ("clock", "TEXT", true, false),
    ("sightings", "TEXT", false, false),
    ("grant_id", "TEXT", false, false),
    ("lock_id", "TEXT", false, false),
    ("owner", "TEXT", false, false),
    ("host", "TEXT", false, false),
    ("comment", "TEXT", false, false),
    ("holder_token", "INTEGER", false, false),
    ("created", "INTEGER", false, false),
    ("renewed", "INTEGER", false, false),
    ("leased_until", "INTEGER", false, false),
    ("holders", "TEXT", false, false),
    ("pins", "TEXT", false, false),
];

/// `PRAGMA user_version` of a file in this version's format: major * 1000 + minor.
pub(super) const USER_VERSION: i64 = (FORMAT_MAJOR * 1000 + FORMAT_MINOR) as i64;

/// How long a file with nothing in it may be one that another process is making at this moment.
const MAKING: Duration = Duration::from_secs(1);

/// Major and minor.
pub(super) type Format = (u32, u32);

/// The format of the file, which is also that of its rows. An error if this version can't read it.
pub(super) fn format(conn: &Connection, path: &Path) -> Result<Format, SqliteError> {
    let found = user_version(conn).map_err(|e| failed(path, "read the format's version", e))?;
    format_of(found, path)
}

fn format_of(found: i64, path: &Path) -> Result<Format, SqliteError> {
    match found {
        // Not set yet, or lost in a dump.
        0 => Ok((FORMAT_MAJOR, FORMAT_MINOR)),
        found if found >= USER_VERSION + 1000 => Err(SqliteError::NewerFormat { path: path.to_owned(), found }),
        found if found < USER_VERSION => Err(SqliteError::ForeignVersion { path: path.to_owned(), found }),
        found => Ok((FORMAT_MAJOR, u32::try_from(found % 1000).unwrap_or(FORMAT_MINOR))),
    }
}

fn user_version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

fn failed(path: &Path, doing: &'static str, source: rusqlite::Error) -> SqliteError {
    SqliteError::Engine { path: path.to_owned(), doing, source }
}

impl Sqlite {
    /// [`Backend::schema`](crate::store::Backend::schema)
    pub(super) fn run_schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        if what == Schema::Describe {
            return Ok(format!("PRAGMA journal_mode = WAL;\n{TABLE};\nPRAGMA user_version = {USER_VERSION};"));
        }
        let run = || {
            self.target.check()?;
            if what == Schema::Create {
                let mut writer = conn::lock(&self.writer, &self.target.path, by, conn::SLICE)?;
                writer.promise(Durability::PowerCut, &self.target.path, by)?;
                // Remembered until it is reported. If this call has no time left for its reads, a later call reports
                // it.
                let made = create(&writer, &self.target.path, by)?;
                self.made.fetch_or(made, Ordering::Relaxed);
                if made {
                    conn::copy_log(&writer);
                }
            }
            let conn = conn::lock(&self.reader, &self.target.path, by, conn::SLICE)?;
            busy_retried(&self.target.path, by, "read the database", || {
                let format = format(&conn, &self.target.path)?;
                match check_table(&conn, &self.target.path)? {
                    true => Ok(format),
                    false => Err(SqliteError::NoTable { path: self.target.path.clone() }),
                }
            })
        };
        let (major, minor) = run().map_err(|error| self.target.explained(error))?;
        let made = what == Schema::Create && self.made.swap(false, Ordering::Relaxed);
        let is = if made { "was made" } else { "is there" };
        Ok(format!("{}: the table `locks` {is}, format {major}.{minor}", self.target.path.display()))
    }
}

/// Whether the table is there; an error if it is another one.
pub(super) fn check_table(conn: &Connection, path: &Path) -> Result<bool, SqliteError> {
    let read = || -> rusqlite::Result<Vec<(String, String, bool, bool)>> {
        let mut statement = conn.prepare("SELECT name, type, \"notnull\", pk > 0 FROM pragma_table_info('locks')")?;
        let columns = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        columns.collect()
    };
    let found = read().map_err(|e| failed(path, "look at the table `locks`", e))?;
    if found.is_empty() {
        return Ok(false);
    }
    let other = |what: String| Err(SqliteError::OtherTable { path: path.to_owned(), what });
    for (name, kind, not_null, key) in COLUMNS {
        match found.iter().find(|column| column.0 == name) {
            None => return other(format!("no column {name}")),
            Some(column) if (column.1.as_str(), column.2, column.3) != (kind, not_null, key) => {
                return other(format!("column {name} is not {kind} as it should be"));
            }
            Some(_) => {}
        }
    }
    Ok(true)
}

/// Makes what is missing; safe while other processes do the same. Changes nothing in a file that is not ours to use.
/// Returns whether the table was made here.
pub(super) fn create(conn: &Connection, path: &Path, by: &Deadline) -> Result<bool, SqliteError> {
    // One transaction, so that the table and the version belong together.
    let look = || {
        conn.execute_batch("BEGIN").map_err(|e| failed(path, "read the database", e))?;
        let ready = is_ready(conn, path);
        conn.execute_batch("COMMIT").map_err(|e| failed(path, "read the database", e))?;
        ready
    };
    let ready = busy_retried(path, by, "read the database", look)?;
    write_ahead_log(conn, path, by)?;
    // Looks once more, because the first read opens the log.
    if ready && busy_retried(path, by, "read the database", look)? {
        return Ok(false);
    }
    let tx = Tx::begin(conn, Begin::Write, path, by)?;
    let is_missing = !is_ready(&tx, path)?;
    if is_missing {
        let set = format!("{TABLE}; PRAGMA user_version = {}", user_version_to_set(&tx, path)?);
        tx.execute_batch(&set).map_err(|e| failed(path, "create the table", e))?;
    }
    tx.commit(by)?.map_or(Ok(is_missing), Err)
}

/// An error unless the table is there. A copy may be without the write-ahead log and the version, which is accepted.
pub(super) fn require(conn: &Connection, path: &Path, by: &Deadline) -> Result<(), SqliteError> {
    let look = || busy_retried(path, by, "read the database", || what_is_there(conn, path));
    let making = by.clone().within(MAKING);
    while look()? == There::Nothing && making.wait_for(LAST_PAUSE) {}
    if look()? == There::Table {
        write_ahead_log(conn, path, by)?;
        // Looks once more, because the first read opens the log.
        if look()? == There::Table {
            return Ok(());
        }
    }
    Err(SqliteError::NoTable { path: path.to_owned() })
}

/// What a file has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Table,
    /// Only other tables, or none any more.
    NoTable,
    /// It never had any table: somebody may be about to make it.
    Nothing,
}

fn what_is_there(conn: &Connection, path: &Path) -> Result<There, SqliteError> {
    format(conn, path)?;
    if check_table(conn, path)? {
        return Ok(There::Table);
    }
    // Raised by every change of a table.
    let changes = conn.query_row("PRAGMA schema_version", [], |row| row.get::<_, i64>(0));
    let changes = changes.map_err(|e| failed(path, "look for tables", e))?;
    Ok(if changes == 0 { There::Nothing } else { There::NoTable })
}

fn is_ready(conn: &Connection, path: &Path) -> Result<bool, SqliteError> {
    format(conn, path)?;
    let said = user_version(conn).map_err(|e| failed(path, "read the format's version", e))?;
    Ok(check_table(conn, path)? && said != 0)
}

/// The version to set. A higher minor version stays.
fn user_version_to_set(conn: &Connection, path: &Path) -> Result<i64, SqliteError> {
    let said = user_version(conn).map_err(|e| failed(path, "read the format's version", e))?;
    Ok(said.max(USER_VERSION))
}

fn write_ahead_log(conn: &Connection, path: &Path, by: &Deadline) -> Result<(), SqliteError> {
    let doing = "switch to a write-ahead log";
    let pragma = |sql: &str| -> Result<String, SqliteError> {
        let mode = conn.query_row(sql, [], |row| row.get::<_, String>(0)).optional();
        Ok(mode.map_err(|e| failed(path, doing, e))?.unwrap_or_default().to_lowercase())
    };
    let mode = busy_retried(path, by, doing, || match pragma("PRAGMA journal_mode")?.as_str() {
        "wal" => Ok("wal".to_owned()),
        _ => pragma("PRAGMA journal_mode = WAL"),
    })?;
    match mode.as_str() {
        "wal" => Ok(()),
        _ => Err(SqliteError::NoWriteAheadLog { path: path.to_owned(), mode }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions_are_used_and_others_are_not() {
        let of = |found| format_of(found, Path::new("x"));
        assert_eq!(of(0).unwrap(), (1, 0));
        assert_eq!(of(1000).unwrap(), (1, 0));
        assert_eq!(of(1999).unwrap(), (1, 999));
        assert!(matches!(of(2000), Err(SqliteError::NewerFormat { .. })));
        assert!(matches!(of(7), Err(SqliteError::ForeignVersion { .. })));
        assert!(matches!(of(-1), Err(SqliteError::ForeignVersion { .. })));
    }

    #[test]
    fn the_column_list_is_the_table() {
        let conn = Connection::open_in_memory().unwrap();
        assert!(!check_table(&conn, Path::new("x")).unwrap());
        conn.execute_batch(TABLE).unwrap();
        assert!(check_table(&conn, Path::new("x")).unwrap());
        let columns: i64 =
            conn.query_row("SELECT count(*) FROM pragma_table_info('locks')", [], |row| row.get(0)).unwrap();
        assert_eq!(columns, COLUMNS.len() as i64);
        conn.execute_batch("ALTER TABLE locks ADD COLUMN of_a_later_minor TEXT").unwrap();
        assert!(check_table(&conn, Path::new("x")).unwrap());
        conn.execute_batch("ALTER TABLE locks DROP COLUMN pins").unwrap();
        assert!(matches!(check_table(&conn, Path::new("x")), Err(SqliteError::OtherTable { .. })));
    }
}
