//! Whether a grant stands, asked inside a user's own transaction.

use std::path::Path;

use rusqlite::Connection;

use super::row::Row;
use super::{Sqlite, identity, label};
use crate::backend::fence::Standing;
use crate::error::{Error, ErrorKind, Result};

/// An error of kind `Lost` unless the grant stands in the file of `conn`, by what `conn`'s transaction sees.
pub fn assert_in(standing: Standing<'_>, conn: &Connection) -> Result<()> {
    let lock = standing.lock;
    let path = Path::new(conn.path().unwrap_or_default());
    // One file may have several paths.
    let is_here = |store: &Sqlite| identity(path).is_ok_and(|file| file == Some(store.place.file));
    if !standing.store().is_some_and(is_here) {
        let message = format!("the transaction is one of {}, where this lock is not", label(path));
        return Err(standing.error(ErrorKind::InvalidInput, message));
    }
    let (_, row) = Row::read(conn, path, &lock.key).map_err(|e| Error::from(e).with_key(&lock.key))?;
    if row.token_of(&lock.grant) == Some(lock.token) {
        return Ok(());
    }
    Err(standing.error(ErrorKind::Lost, "it is not held any more; the transaction must not be committed"))
}
