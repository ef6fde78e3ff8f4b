//! Reading records, a page at a time, without waiting for any writer.

use std::path::Path;
use std::time::Instant;

use rusqlite::params_from_iter;
use rusqlite::types::ValueRef;

use super::boot::Here;
use super::conn::{self, Begin, Tx};
use super::error::SqliteError;
use super::row::{COLUMNS, HOLDERS, LOCK_ID, Row, View, decode_key};
use super::schema::{self, Format};
use super::{Page, Seen, Sqlite, Which};
use crate::lease::Times;
use crate::model::error::{Error, Result};
use crate::store::transactional::Durability;
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::thread::keeping_a_lock;

/// How many records a page holds.
const PAGE: usize = 100;
/// How many rows a page of a lock id looks at: there is no index by holders, since each write would pay for it.
const SCAN: usize = 2000;

impl Sqlite {
    pub(super) fn read_page(&self, which: &Which, from: Option<String>, by: &Deadline) -> Result<Page> {
        let run = || match which {
            Which::Key(key) => self.one(key, by),
            Which::Prefix(prefix) => self.prefix(prefix, from.as_deref(), by),
            Which::LockId(id) => self.lock_id(id, from.as_deref(), by),
        };
        Ok(run().map_err(|error| self.target.explained(error))?)
    }

    fn one(&self, key: &str, by: &Deadline) -> Result<Page, SqliteError> {
        self.target.check()?;
        let (format, row) = {
            let conn = conn::lock(&self.reader, &self.target.path, by, conn::SLICE)?;
            conn::busy_retried(&self.target.path, by, "read the row", || Row::read(&conn, &self.target.path, key))?
        };
        self.page(format, vec![row], None)
    }

    fn prefix(&self, prefix: &str, from: Option<&str>, by: &Deadline) -> Result<Page, SqliteError> {
        let (format, rows, end) =
            self.scan(prefix, from, PAGE + 1, by, |columns, path| pass_over(Row::decode(columns, path)))?;
        self.page(format, rows, end)
    }

    fn lock_id(&self, id: &str, from: Option<&str>, by: &Deadline) -> Result<Page, SqliteError> {
        // As `holders.rs` writes it.
        let json = format!("\"lock_id\":{}", serde_json::Value::from(id));
        let (format, rows, end) = self.scan("", from, SCAN, by, |columns, path| {
            let column = |at| columns.get_ref(at).unwrap_or(ValueRef::Null);
            let shares = |holders: &str| holders.contains(&json);
            let is_it = matches!(column(LOCK_ID), ValueRef::Text(text) if text == id.as_bytes())
                || column(HOLDERS).as_str().is_ok_and(shares);
            if !is_it && column(HOLDERS) == ValueRef::Null {
                return Ok(None);
            }
            match Row::decode(columns, path) {
                Ok(row) => Ok(row.has_lock_id(id).then_some(row)),
                Err(error) if is_it => Err(error),
                // Somebody else's damage must not stop a group from being renewed or unlocked.
                Err(error) => pass_over(Err(error)),
            }
        })?;
        self.page(format, rows, end)
    }

    /// Looks at up to `limit` rows after `from`, or at fewer if the time is over. Returns the last key that it looked
    /// at if there may be more.
    fn scan(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
        by: &Deadline,
        mut take: impl FnMut(&rusqlite::Row<'_>, &Path) -> Result<Option<Row>, SqliteError>,
    ) -> Result<Scanned, SqliteError> {
        let doing = "read the rows";
        let failed = |source| SqliteError::Engine { path: self.target.path.clone(), doing, source };
        self.target.check()?;
        let conn = conn::lock(&self.reader, &self.target.path, by, conn::SLICE)?;
        let (sql, bounds) = range(prefix, from);
        conn::busy_retried(&self.target.path, by, doing, || {
            let format = schema::format(&conn, &self.target.path)?;
            let (mut found, mut looked_at) = (Vec::new(), 0);
            let mut statement = conn.prepare_cached(&sql).map_err(failed)?;
            let mut rows = statement.query(params_from_iter(&bounds)).map_err(failed)?;
            while let Some(columns) = rows.next().map_err(failed)? {
                found.extend(take(columns, &self.target.path)?);
                looked_at += 1;
                if (looked_at >= limit || (looked_at % 64 == 0 && by.is_over()))
                    && let Ok(key) = decode_key(columns, &self.target.path)
                {
                    return Ok((format, found, Some(key)));
                }
            }
            Ok((format, found, None))
        })
    }

    /// The records on our clock. If our clock sees a holder of another clock for the first time, this is written down.
    /// `end`: the last key that was looked at, if there may be more.
    fn page(&self, format: Format, mut rows: Vec<Row>, end: Option<String>) -> Result<Page, SqliteError> {
        let mut next = end;
        if rows.len() > PAGE {
            rows.truncate(PAGE);
            next = rows.last().map(|row| row.key().to_owned());
        }
        let times = self.target.times()?;
        let views: Vec<View> = rows.iter().map(|row| row.view(format, self.target.here(&times))).collect();
        let unseen = rows.iter().zip(&views).filter(|(_, view)| view.sightings.is_some()).map(|(row, _)| row);
        if unseen.clone().next().is_some()
            && let Err(error) = self.sight(unseen, self.target.here(&times))
        {
            // The next read tries again.
            keeping_a_lock(|| log::debug!(target: "leasehold::sqlite", "{}", Error::from(error)));
        }
        let records = views
            .into_iter()
            .map(|view| Seen::new(view.record, Times { ends_are_bounds: view.is_foreign, ..times }, None))
            .collect();
        Ok(Page { records, next })
    }

    /// Writes down that our clock saw these rows. Tries only once, because a read waits for no writer.
    pub(super) fn sight<'a>(&self, seen: impl Iterator<Item = &'a Row>, here: Here<'_>) -> Result<(), SqliteError> {
        let mut writer =
            self.writer.try_lock().ok_or_else(|| SqliteError::NoTurn { path: self.target.path.clone() })?;
        let now = Deadline::at(Instant::now());
        writer.promise(Durability::Process, &self.target.path, &now)?;
        let tx = Tx::begin(&writer, Begin::Write, &self.target.path, &now)?;
        for row in seen {
            // The row is read again: another clock may have noted its sighting since, which raises no version.
            let (format, now) = match Row::read(&tx, &self.target.path, row.key()) {
                Err(SqliteError::Damaged { .. }) => continue,
                read => read?,
            };
            let is_same = (now.token, now.version) == (row.token, row.version);
            if let Some(sightings) = now.view(format, here).sightings.filter(|_| is_same) {
                now.write_sightings(&tx, &self.target.path, &sightings)?;
            }
        }
        writer.reserve(&tx)?;
        self.target.check()?;
        writer.check_seen(&self.target.path)?;
        tx.commit(&now)?.map_or(Ok(()), Err)
    }
}

/// Format, rows, and the last key looked at.
type Scanned = (Format, Vec<Row>, Option<String>);

/// A damaged row must not hide the others.
fn pass_over(decoded: Result<Row, SqliteError>) -> Result<Option<Row>, SqliteError> {
    match decoded {
        Err(error @ SqliteError::Damaged { .. }) => {
            keeping_a_lock(|| log::warn!(target: "leasehold::sqlite", "{}", Error::from(error)));
            Ok(None)
        }
        decoded => decoded.map(Some),
    }
}

/// The statement and its bounds for the keys that start with `prefix` and come after `from`.
pub(super) fn range(prefix: &str, from: Option<&str>) -> (String, Vec<Vec<u8>>) {
    // Only one lower bound: with two, SQLite seeks by the first one and reads everything between them, on each page.
    let (above, lowest) = match from {
        Some(from) if from >= prefix => (">", from),
        _ => (">=", prefix),
    };
    let mut bounds = vec![lowest.as_bytes().to_vec()];
    let mut condition = format!("key {above} ?1");
    if let Some((last, rest)) = prefix.as_bytes().split_last() {
        // No byte of UTF-8 is 255, so there is a next value.
        bounds.push([rest, &[last.saturating_add(1)]].concat());
        condition.push_str(" AND key < ?2");
    }
    (format!("SELECT {COLUMNS} FROM locks WHERE {condition} ORDER BY key"), bounds)
}
