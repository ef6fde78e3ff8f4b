//! Reads one row or many, each with the service's time. A page is one request.

use google_cloud_spanner::result::ResultSet;
use google_cloud_spanner::statement::Statement;

use super::error::{Own, SpannerError};
use super::mixed::{self, LEFT_OVER};
use super::open::Heard;
use super::row::{COLUMNS, Row, SEE_HOLDERS, micros};
use super::{Spanner, Target};
use crate::lease::{LockRecord, StoreTime, Times};
use crate::store::{Page, Seen, Which};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How many rows a page holds.
const PAGE: usize = 100;
/// How many rows one request examines for a page. Spindle leaves many rows that are only a name, and any row with
/// shared holders may have one of the lock id that is asked for.
const LOOKED_AT: usize = 1_000;

/// The place of the column that says whether there may be more rows, after the time, the name and the columns.
const MORE: usize = 2 + COLUMNS.len();

/// A row and the record in it, at this time.
#[derive(Debug)]
pub(super) struct Read {
    pub now: StoreTime,
    pub row: Option<Row>,
    pub record: LockRecord,
}

/// The native part of what was read: the row, which a swap compares.
#[derive(Debug)]
pub(super) struct Native(pub Option<Row>);

impl Read {
    pub fn seen(self) -> Seen {
        let times = self.times();
        Seen::new(self.record, times, Some(Box::new(Native(self.row))))
    }

    pub fn times(&self) -> Times {
        Times::without_grace(self.now, micros(self.now))
    }
}

impl Target {
    pub fn record(&self, key: &str, row: Option<&Row>) -> Result<LockRecord, SpannerError> {
        match row {
            Some(row) => row.decode(key, self.foreign_lease).map_err(SpannerError::Damaged),
            None => Ok(LockRecord::missing(key)),
        }
    }

    /// The query for one key. Its answer always has one row, so that it brings the time even if the lock has no row.
    pub fn query_key(&self, key: &str) -> Statement {
        let columns = columns();
        let sql = format!(
            "SELECT CURRENT_TIMESTAMP() AS now, t.name, {columns} FROM (SELECT 1) LEFT JOIN `{}` AS t ON t.name = @name",
            self.table
        );
        Statement::builder(sql).add_param("name", key).build()
    }

    fn query_prefix(&self, prefix: &str, from: &str) -> Statement {
        let shown = format!("t.format IS NOT NULL OR t.writer IS NOT NULL OR {LEFT_OVER}");
        self.query("", "STARTS_WITH(t.name, @value)", &shown, prefix, from)
    }

    fn query_lock_id(&self, id: &str, from: &str) -> Statement {
        // The second hint is for the emulator, whose check does not see that the query asks for no null; other servers
        // ignore it.
        let hints = format!(
            "@{{FORCE_INDEX=`{}`, spanner_emulator.disable_query_null_filtered_index_check=true}}",
            self.index()
        );
        let looked_at = format!("t.lock_id IS NOT NULL AND t.lock_id IN (@value, '{SEE_HOLDERS}')");
        let shown = "t.lock_id = @value OR EXISTS \
             (SELECT 1 FROM UNNEST(JSON_QUERY_ARRAY(t.holders)) AS h WHERE JSON_VALUE(h, '$.lock_id') = @value)";
        self.query(&hints, &looked_at, shown, id, from)
    }

    /// The query for a page: it examines [`LOOKED_AT`] rows that match `looked_at`, and returns those that match
    /// `shown`.
    fn query(&self, hints: &str, looked_at: &str, shown: &str, value: &str, from: &str) -> Statement {
        let columns = columns();
        // The answer also has the last row that was examined, even if it does not match: the next page begins there.
        let sql = format!(
            "WITH seen AS (SELECT t.name, {columns} FROM `{}`{hints} AS t WHERE t.name > @from AND {looked_at} \
             ORDER BY t.name LIMIT {LOOKED_AT}) \
             SELECT CURRENT_TIMESTAMP() AS now, t.name, {columns}, looked.n = {LOOKED_AT} AS more FROM seen AS t \
             CROSS JOIN (SELECT COUNT(*) AS n, MAX(name) AS last FROM seen) AS looked \
             WHERE {shown} OR t.name = looked.last ORDER BY t.name LIMIT {PAGE}",
            self.table
        );
        Statement::builder(sql).add_param("from", from).add_param("value", value).build()
    }
}

fn columns() -> String {
    COLUMNS.map(|(column, _)| format!("t.{column}")).join(", ")
}

/// Reads the one row of `Target::query_key`. The outer error is one of the request, the inner one of what was read.
pub(super) async fn of_key(
    target: &Target,
    key: &str,
    mut rows: ResultSet,
) -> google_cloud_spanner::Result<Result<Read, SpannerError>> {
    let mut found = None;
    while let Some(row) = rows.next().await {
        found = Some(row?);
    }
    Ok(match found.as_ref().map(Row::read) {
        None => Err(SpannerError::Damaged("the query of it has no answer".to_owned())),
        Some(Err(wrong)) => Err(SpannerError::Damaged(wrong)),
        Some(Ok((now, row))) => {
            let row = row.map(|(_, row)| row);
            let read = target.record(key, row.as_ref()).map(|record| Read { now, row, record });
            read.inspect(|read| target.watch_fleet(read))
        }
    })
}

impl Spanner {
    pub(super) fn read_page(&self, which: &Which, from: Option<String>, by: &Deadline) -> Result<Page, SpannerError> {
        let (target, which) = (self.target.clone(), which.clone());
        self.ask(by, move |handles, limit| async move {
            let read = async {
                let single = handles.live(limit).await.database.single_use().build();
                let from = from.as_deref().unwrap_or_default();
                let statement = match &which {
                    Which::Key(key) => {
                        let rows = single.execute_query(target.query_key(key)).await;
                        let rows = rows.map_err(|error| target.classify(&error))?;
                        let read = of_key(&target, key, rows).await.map_err(|error| target.classify(&error))??;
                        return Ok(Page { records: vec![read.seen()], next: None });
                    }
                    Which::Prefix(prefix) => target.query_prefix(prefix, from),
                    Which::LockId(id) => target.query_lock_id(id, from),
                };
                let mut rows = single.execute_query(statement).await.map_err(|error| target.classify(&error))?;
                let (mut page, mut seen, mut more, mut last) = (Vec::new(), 0, false, None);
                while let Some(row) = rows.next().await {
                    let row = row.map_err(|error| target.classify(&error))?;
                    more = row.get(MORE).map_err(|error| SpannerError::Damaged(error.to_string()))?;
                    let (now, found) = Row::read(&row).map_err(SpannerError::Damaged)?;
                    let Some((name, row)) = found else { continue };
                    let is_left_over = mixed::is_left_over(&name, &row, now);
                    match target.record(&name, Some(&row)) {
                        // Nobody holds anything by this row of an old takeover. It is shown so that a purge deletes it.
                        Ok(record) if is_left_over => {
                            let record = LockRecord { exclusive: None, ..record };
                            page.push(Read { now, row: Some(row), record }.seen());
                        }
                        Ok(record) if row.is_lock() && which.may_match(&record, |id| row.names(id)) => {
                            let read = Read { now, row: Some(row), record };
                            target.watch_fleet(&read);
                            page.push(read.seen());
                        }
                        Ok(_) => {}
                        Err(error) => {
                            log::warn!(target: "leasehold::spanner", key:? = name; "a damaged row is passed over: {error}");
                        }
                    }
                    (seen, last) = (seen + 1, Some(name));
                }
                Ok(Page { records: page, next: last.filter(|_| more || seen == PAGE) })
            };
            let heard = |read: &Result<Page, SpannerError>| match read {
                Err(SpannerError::Own(Own::NoSession, _)) => Heard::NoSession,
                Err(SpannerError::Own(Own::NotAccepted, _)) => Heard::NotAccepted,
                Err(SpannerError::Unreachable { .. }) => Heard::Nothing,
                _ => Heard::Answer,
            };
            handles.within(limit, read, heard).await.unwrap_or(Err(SpannerError::NotSent))
        })
    }
}
