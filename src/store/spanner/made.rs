//! What the service says of the database and of the table.

use std::collections::BTreeMap;

use google_cloud_spanner::result::Row as Answer;
use google_cloud_spanner::statement::Statement;

use super::Spanner;
use super::error::SpannerError;
use super::transact::heard;
use crate::sys::deadline::Deadline;

/// A column as the service describes it.
#[derive(Debug)]
pub(super) struct Column {
    pub kind: String,
    pub nullable: bool,
    pub stamped: bool,
    pub generated: bool,
    pub has_default: bool,
}

/// The table as the service describes it. Without columns there is no table.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Its name as it was made: the service ignores case in names.
    pub name: Option<String>,
    /// The table in whose rows its own are interleaved.
    pub parent: Option<String>,
    /// The row deletion policy, by which the service deletes rows of a certain age.
    pub deletes: Option<String>,
    pub columns: BTreeMap<String, Column>,
    /// The columns of each index, the primary key among them.
    pub indexes: BTreeMap<String, Vec<String>>,
    /// The indexes that are still being filled, which can't be used to read yet.
    pub unready: Vec<String>,
}

impl Spanner {
    /// Refuses a database of the PostgreSQL dialect. This is also the first request, so it fails if the database does
    /// not exist.
    pub(super) fn check_dialect(&self, by: &Deadline) -> Result<(), SpannerError> {
        let sql = "SELECT option_value FROM information_schema.database_options \
                   WHERE option_name = 'database_dialect'";
        let rows = self.rows(Statement::builder(sql).build(), by)?;
        let dialect: Option<String> = rows.first().and_then(|row| row.get(0).ok());
        match dialect.as_deref() {
            Some("POSTGRESQL") => Err(SpannerError::Config(format!(
                "the database {:?} has the dialect PostgreSQL; leasehold needs one of GoogleSQL",
                self.target.database
            ))),
            _ => Ok(()),
        }
    }

    /// An error if our index is missing and its name is taken, by a table or by an index of another table.
    pub(super) fn check_name(&self, found: &Made, by: &Deadline) -> Result<(), SpannerError> {
        let Some(index) = self.target.missing_index(found) else { return Ok(()) };
        let sql = "SELECT table_name FROM information_schema.indexes WHERE table_schema = '' \
                   AND LOWER(index_name) = LOWER(@index) AND LOWER(table_name) != LOWER(@table) \
                   UNION ALL SELECT table_name FROM information_schema.tables \
                   WHERE table_schema = '' AND LOWER(table_name) = LOWER(@index)";
        let statement = Statement::builder(sql).add_param("table", &self.target.table).add_param("index", &index);
        let rows = self.rows(statement.build(), by)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let owner: String = row.get(0).map_err(unread)?;
        let is_table = owner.eq_ignore_ascii_case(&index);
        let whose = if is_table { "a table".to_owned() } else { format!("one of the table {owner}") };
        Err(SpannerError::Schema(format!(
            "the table {} lacks its index {index}, whose name {whose} has: drop that, or name another table for the locks",
            self.target.table
        )))
    }

    pub(super) fn found(&self, by: &Deadline) -> Result<Made, SpannerError> {
        // Only `INTERLEAVE IN PARENT`, which needs the parent's row, has an action on delete.
        let sql = "SELECT 0 AS place, c.column_name AS name, c.spanner_type, c.is_nullable, o.option_value, \
                   c.is_generated, c.column_default IS NOT NULL AS has_default \
                   FROM information_schema.columns AS c LEFT JOIN information_schema.column_options AS o \
                   ON o.table_schema = c.table_schema AND o.table_name = c.table_name \
                   AND o.column_name = c.column_name AND o.option_name = 'allow_commit_timestamp' \
                   WHERE c.table_schema = '' AND LOWER(c.table_name) = LOWER(@table) \
                   UNION ALL SELECT -1, table_name, IF(on_delete_action IS NULL, '', parent_table_name), \
                   NULL, row_deletion_policy_expression, NULL, NULL FROM information_schema.tables \
                   WHERE table_schema = '' AND LOWER(table_name) = LOWER(@table) \
                   UNION ALL SELECT ordinal_position, index_name, column_name, NULL, NULL, NULL, NULL \
                   FROM information_schema.index_columns \
                   WHERE table_schema = '' AND LOWER(table_name) = LOWER(@table) AND ordinal_position IS NOT NULL \
                   UNION ALL SELECT -2, index_name, index_state, NULL, NULL, NULL, NULL FROM information_schema.indexes \
                   WHERE table_schema = '' AND LOWER(table_name) = LOWER(@table) AND index_state != 'READ_WRITE' \
                   ORDER BY name, place";
        let mut found = Made::default();
        for row in self.rows(Statement::builder(sql).add_param("table", &self.target.table).build(), by)? {
            let at: i64 = row.get(0).map_err(unread)?;
            let (name, kind): (String, String) = (row.get(1).map_err(unread)?, row.get(2).map_err(unread)?);
            match at {
                0 => {
                    let is = |at: usize, right: &str| {
                        row.get(at).map(|text: Option<String>| text.as_deref() == Some(right)).map_err(unread)
                    };
                    let (nullable, stamped, generated) = (is(3, "YES")?, is(4, "TRUE")?, is(5, "ALWAYS")?);
                    let has_default = row.get(6).map_err(unread)?;
                    // The service ignores case in names of columns, too.
                    found
                        .columns
                        .insert(name.to_ascii_lowercase(), Column { kind, nullable, stamped, generated, has_default });
                }
                1.. => found.indexes.entry(name).or_default().push(kind.to_ascii_lowercase()),
                -2 => found.unready.push(name),
                _ => {
                    (found.name, found.parent) = (Some(name), Some(kind).filter(|parent| !parent.is_empty()));
                    found.deletes = row.get(4).map_err(unread)?;
                }
            }
        }
        Ok(found)
    }

    fn rows(&self, statement: Statement, by: &Deadline) -> Result<Vec<Answer>, SpannerError> {
        let target = self.target.clone();
        self.ask(by, move |handles, limit| async move {
            let read = async {
                let live = handles.live(limit).await;
                let mut rows = live.database.single_use().build().execute_query(statement).await?;
                let mut found = Vec::new();
                while let Some(row) = rows.next().await {
                    found.push(row?);
                }
                Ok(found)
            };
            match handles.within(limit, read, heard).await {
                Some(read) => read.map_err(|error| target.classify(&error)),
                None => Err(SpannerError::NotSent),
            }
        })
    }
}

fn unread(error: google_cloud_spanner::Error) -> SpannerError {
    SpannerError::Schema(format!("what the table is made of can't be read: {error}"))
}
