//! Reads one row or many, each with the server's time. A page is one request.

use std::time::Instant;

use serde_json::json;

use super::Postgres;
use super::error::PostgresError;
use super::row::Found;
use super::send::{Lane, Statement};
use crate::store::{Consistency, Page, Which};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How many rows a page holds.
const PAGE: usize = 200;

/// The one row of a key, and an error if there are more. A table that others inherit from shows their rows as its own.
pub(super) fn only<T>(mut rows: Vec<T>) -> Result<Option<T>, String> {
    if rows.len() > 1 {
        let wrong = "two rows have it, which the unique key of one table does not allow: do others inherit from it?";
        return Err(wrong.to_owned());
    }
    Ok(rows.pop())
}

impl Postgres {
    /// The row of a key, or that there is none.
    pub(super) fn look(&self, key: &str, lane: Lane, by: &Deadline) -> Result<Found, PostgresError> {
        let (asked, sent) = (key.to_owned(), Instant::now());
        let statement = Statement::new(&self.statements.read).text(key);
        let read = move |answer: &_| Found::read(answer, Some(&asked)).map_err(|(_, wrong)| wrong);
        let row = only(self.ask(by, lane, statement, read)?);
        let found = row.and_then(|row| row.unwrap_or_else(|| Err("the query of it has no answer".to_owned())));
        let found = found.map_err(PostgresError::Damaged)?;
        self.clocked.note(found.now.time(), sent);
        Ok(found)
    }

    pub(super) fn read_page(
        &self,
        which: &Which,
        from: Option<String>,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<Page, PostgresError> {
        let lane = Lane::of(consistency);
        let (statements, from, page) = (&self.statements, from.unwrap_or_default(), PAGE as i64);
        let statement = match which {
            Which::Key(key) => {
                return Ok(Page { records: vec![self.look(key, lane, by)?.seen()], next: None });
            }
            Which::Prefix(prefix) => Statement::new(&statements.by_prefix).text(&from).text(prefix),
            Which::LockId(id) => {
                let holder = json!([{ "lock_id": id }]).to_string();
                Statement::new(&statements.by_lock_id).text(&from).text(id).text(&holder)
            }
        };
        let rows = self.ask(by, lane, statement.number(page), |answer| Found::read(answer, None))?;
        let (count, mut records, mut last) = (rows.len(), Vec::new(), None);
        for row in rows {
            let key = match &row {
                Ok(found) => found.record.key.clone(),
                Err((key, _)) => key.clone(),
            };
            // Keys are sorted by their bytes: none of those that follow has the prefix.
            if let Which::Prefix(prefix) = which
                && !key.starts_with(prefix.as_str())
            {
                return Ok(Page { records, next: None });
            }
            match row {
                // The query by lock id finds only rows that have it.
                Ok(found) if which.may_match(&found.record, |_| true) => records.push(found.seen()),
                Ok(_) => {}
                Err((_, wrong)) => {
                    let error = PostgresError::Damaged(wrong);
                    log::warn!(target: "leasehold::postgres", key:?; "a damaged row is passed over: {error}");
                }
            }
            last = Some(key);
        }
        Ok(Page { records, next: last.filter(|_| count == PAGE) })
    }
}
