//! Whether a grant holds, asked inside a user's own transaction.

use std::path::PathBuf;

use rusqlite::Connection;

use super::error::SqliteError;
use super::file::Log;
use super::row::Row;
use super::{Sqlite, identity, label};
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::fence::Standing;

/// Matches no row, but takes the write lock of the file with the locks; a write to an attached file would not take it.
/// SQLite refuses the statement if the transaction's view of the file is out of date.
const CLAIM: &str = "UPDATE main.locks SET version = version WHERE key IS NULL";

/// Writes the row as it is, which takes the write lock, and returns a row only if the grant is in it. So one statement
/// is enough, for drivers that are not ours; looking without a write would take two.
#[cfg(feature = "capi")]
const ASSERT: &str = "UPDATE main.locks SET version = version WHERE key = {key} AND (grant_id = ?2 \
                      OR EXISTS (SELECT 1 FROM json_each(holders) WHERE json_extract(value, '$.grant_id') = ?2)) \
                      RETURNING 1";

/// The assertion as a statement with its parameters, if the lock is in a file.
#[cfg(feature = "capi")]
pub fn statement(standing: Standing<'_>) -> Option<[String; 3]> {
    let is_utf8 = standing.store::<Sqlite>()?.target.is_utf8;
    let lock = standing.lock;
    // The same text for all keys, because a driver may keep every statement that it has prepared. But in a file in
    // UTF-16 a text would give other bytes, so there the key is in the statement. The first parameter stays in it,
    // because callers bind two, and SQLite refuses one that the statement does not have.
    let bytes = || lock.key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let key = if is_utf8 { "CAST(?1 AS BLOB)".to_owned() } else { format!("coalesce(x'{}', ?1)", bytes()) };
    Some([ASSERT.replace("{key}", &key), lock.key.clone(), lock.grant.as_str().to_owned()])
}

/// An error of kind `Lost` unless the grant holds in the file of `conn`, by what `conn`'s transaction sees.
pub fn assert_in(standing: Standing<'_>, conn: &Connection) -> Result<()> {
    let lock = standing.lock;
    let failed = |error: SqliteError| Error::from(error).with_key(&lock.key);
    let path = &*file_of(conn).map_err(|source| {
        let doing = "ask for the name of the transaction's file";
        failed(SqliteError::Engine { path: PathBuf::new(), doing, source })
    })?;
    // One file may have several paths.
    let is_here = |store: &&Sqlite| identity(path).is_ok_and(|file| file == Some(store.target.file));
    let Some(store) = standing.store().filter(is_here) else {
        let message = format!("the transaction is one of {}, where this lock is not", label(path));
        return Err(standing.error(ErrorKind::InvalidInput, message));
    };
    let claimed = conn.prepare_cached(CLAIM).and_then(|mut statement| statement.execute([]));
    if let Err(source) = claimed {
        let message = "the file is being written to, or was written to since the transaction read it; \
                       roll the transaction back and begin it again";
        return Err(match SqliteError::is_busy(&source) {
            true => standing.error(ErrorKind::Store, message).retryable().caused_by(source),
            false => failed(SqliteError::Engine { path: path.to_owned(), doing: "assert the lock", source }),
        });
    }
    // With another log, this transaction would not see that a rival was granted the lock, and nobody would see its
    // writes.
    store.target.check().map_err(failed)?;
    let log = Log::of(path).map_err(|source| failed(SqliteError::looking(path, source)))?;
    if !log.is_some_and(|log| log.is_same(&store.target.log)) {
        return Err(failed(SqliteError::OtherPath { path: path.to_owned(), who: "this process" }));
    }
    let (_, row) = Row::read(conn, path, &lock.key).map_err(failed)?;
    if row.token_of(&lock.grant) == Some(lock.token) {
        return Ok(());
    }
    Err(standing.error(ErrorKind::Lost, "it is not held any more; the transaction must not be committed"))
}

/// The path of the main database; empty for one in memory.
fn file_of(conn: &Connection) -> rusqlite::Result<PathBuf> {
    // `path()` has it only if it is UTF-8.
    if let Some(path) = conn.path() {
        return Ok(PathBuf::from(path));
    }
    // The first row is that of `main`, with number, name and file.
    conn.prepare_cached("PRAGMA database_list")?.query_row([], |row| Ok(path_of(row.get_ref(2)?.as_bytes()?)))
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(bytes).into_owned())
}
