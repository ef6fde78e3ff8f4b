//! The table: checked, described, made.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::error::{Own, SpannerError, Stage};
use super::made::{Column, Made};
use super::open::Handles;
use super::row::{COLUMNS, STAMPED};
use super::{Spanner, Target};
use crate::store::Schema;
use crate::store::failure::{Cause, Fate};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// The default endpoint of the SDK.
const GOOGLES: &str = "https://spanner.googleapis.com";
/// How long to wait between two looks at a table that is being made.
const LOOK: Duration = Duration::from_millis(250);
/// How often the log says that a table is still being made.
const PROGRESS: Duration = Duration::from_secs(10);
/// A column of this many characters holds every text that is stored: texts are bounded in bytes.
const LONGEST: u32 = 1024;

impl Spanner {
    pub(super) fn table_schema(&self, what: Schema, by: &Deadline) -> Result<String, SpannerError> {
        let table = &self.target.table;
        let right = |is: &str| format!("{table}: the table {is}, with all its columns and its index");
        match what {
            Schema::Describe => {
                let found = match self.found(by) {
                    // A user that may not look gets the statements for everything.
                    Err(SpannerError::Own(Own::Denied { .. }, _)) => Made::default(),
                    found => found?,
                };
                self.target.check(&found)?;
                let missing = self.target.statements(&found);
                let all = || self.target.statements(&Made::default());
                Ok(if missing.is_empty() { all() } else { missing }.join(";\n") + ";")
            }
            Schema::Check | Schema::Connect(_) => {
                let found = self.found(by)?;
                self.target.check(&found)?;
                match self.target.lacks(&found) {
                    Some(missing @ SpannerError::Own(Own::NoTable { .. }, _)) if what.needs_table() => Err(missing),
                    // Only a warning here: each use that needs what is missing is an error.
                    Some(lacks) if matches!(what, Schema::Connect(_)) => {
                        log::warn!(target: "leasehold::spanner", table:? = self.target.table; "{lacks}");
                        Ok(lacks.to_string())
                    }
                    Some(lacks) => Err(lacks),
                    None => Ok(right("is there")),
                }
            }
            Schema::Create => {
                let (was_missing, done) = self.create(&by.long())?;
                Ok(match (was_missing, done.is_empty()) {
                    (true, _) => right("was made"),
                    (false, true) => right("is there"),
                    (false, false) => {
                        format!("{table}: the table is there, and got what it lacked: {}", done.join("; "))
                    }
                })
            }
        }
    }

    /// Makes what is missing. The answer: whether there was no table, and the statements that were carried out.
    fn create(&self, by: &Deadline) -> Result<(bool, Vec<String>), SpannerError> {
        let (mut was_missing, mut done) = (false, Vec::new());
        loop {
            let found = self.found(&by.of_request())?;
            self.target.check(&found)?;
            let statements = self.target.statements(&found);
            if statements.is_empty() && self.target.unready_index(&found).is_none() {
                return Ok((was_missing, done));
            }
            let is_missing = found.columns.is_empty();
            // If another process was faster, the next look sees what it made.
            let made = !statements.is_empty() && self.make(statements.clone(), by)?;
            if made {
                was_missing |= is_missing;
                done.extend(statements.clone());
            }
            if !made && !statements.is_empty() {
                self.check_name(&found, &by.of_request())?;
            }
            if !made && !by.wait_for(LOOK) {
                return Err(SpannerError::NotReady);
            }
        }
    }

    /// Carries out the statements. `false`: another change of the schema is under way, or was faster.
    fn make(&self, statements: Vec<String>, by: &Deadline) -> Result<bool, SpannerError> {
        let (target, each) = (self.target.clone(), by.of_request().remaining());
        self.ask(by, move |handles, limit| async move {
            let making = make(handles, target, statements, each.min(limit));
            tokio::time::timeout(limit, making).await.unwrap_or(Err(SpannerError::NotReady))
        })
    }
}

/// `each`: how long one request may take.
async fn make(
    handles: Rc<Handles>,
    target: std::sync::Arc<Target>,
    statements: Vec<String>,
    each: Duration,
) -> Result<bool, SpannerError> {
    let mut builder = handles.live(each).await.client.database_admin_builder();
    if let Some(endpoint) = &handles.admin_endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let admin = builder.build().await.map_err(|error| SpannerError::Unreachable { cause: Cause::of(&error) })?;
    let silent = |cause| {
        let endpoint = handles.admin_endpoint.clone().unwrap_or_else(|| GOOGLES.to_owned());
        Err(SpannerError::Own(Own::NoAdmin { endpoint }, cause))
    };
    let request = admin.update_database_ddl().set_database(&target.database).set_statements(statements);
    let mut operation = match tokio::time::timeout(each, request.send()).await {
        Ok(Ok(operation)) => operation,
        Ok(Err(error)) if error.status().is_none() && error.http_status_code().is_none() => {
            return silent(Some(Cause::of(&error)));
        }
        Ok(Err(error)) => return target.may_repeat(&error),
        Err(_) => return silent(None),
    };
    let (started, mut logged, mut answered) = (Instant::now(), Instant::now(), Instant::now());
    loop {
        if let Some(status) = operation.error() {
            let failed = SpannerError::Schema(format!("the table can't be made: {}", status.message));
            return if is_faster(&status.message) { Ok(false) } else { Err(failed) };
        }
        if operation.done {
            return Ok(true);
        }
        if logged.elapsed() >= PROGRESS {
            logged = Instant::now();
            log::info!(target: "leasehold::spanner", table:? = target.table;
                "the service is still making the table, after {} s", started.elapsed().as_secs());
        }
        tokio::time::sleep(LOOK).await;
        let look = admin.get_operation().set_name(operation.name.clone()).send();
        operation = match tokio::time::timeout(each, look).await {
            Ok(Ok(operation)) => operation,
            Ok(Err(error)) if error.status().is_some() || error.http_status_code().is_some() => {
                return target.may_repeat(&error);
            }
            failed if answered.elapsed() >= each => {
                return silent(failed.ok().and_then(Result::err).map(|error| Cause::of(&error)));
            }
            // The service has begun: the next look shows whether it is done.
            Ok(Err(_)) | Err(_) => continue,
        };
        answered = Instant::now();
    }
}

impl Target {
    /// What an error of a request that writes no row means.
    pub(super) fn classify(&self, error: &google_cloud_spanner::Error) -> SpannerError {
        self.classify_at(error, Stage::Reading).1
    }

    /// What an error of a transaction at this stage means.
    pub(super) fn classify_at(&self, error: &google_cloud_spanner::Error, stage: Stage) -> (Fate, SpannerError) {
        let has_worked = self.has_worked.load(Ordering::Relaxed);
        SpannerError::classify(error, stage, has_worked, &self.database, &self.table)
    }

    /// `false` if the error shows that another change of the schema is under way or was faster.
    fn may_repeat(&self, error: &google_cloud_spanner::Error) -> Result<bool, SpannerError> {
        let cause = Cause::of(error);
        if is_faster(&cause.to_string()) {
            return Ok(false);
        }
        Err(match self.classify(error) {
            SpannerError::Own(Own::Denied { database }, cause) => {
                SpannerError::Own(Own::MayNotMake { database }, cause)
            }
            // The REST API of the emulator reports this without a gRPC status.
            _ if error.status().is_none() && error.http_status_code().is_some() => SpannerError::Other { cause },
            other => other,
        })
    }

    pub(super) fn index(&self) -> String {
        index_of(&self.table)
    }

    /// The table's name as it was made, or will be.
    fn name<'a>(&'a self, found: &'a Made) -> &'a str {
        found.name.as_deref().unwrap_or(&self.table)
    }

    /// The name of our index, if the table does not have it.
    pub(super) fn missing_index(&self, found: &Made) -> Option<String> {
        let index = index_of(self.name(found));
        let is_there = found.indexes.keys().any(|name| name.eq_ignore_ascii_case(&index));
        (!is_there).then_some(index)
    }

    /// The name of our index, if it is still being filled.
    fn unready_index<'a>(&self, found: &'a Made) -> Option<&'a str> {
        let index = index_of(self.name(found));
        found.unready.iter().map(String::as_str).find(|name| name.eq_ignore_ascii_case(&index))
    }

    /// The DDL that makes what is missing.
    fn statements(&self, found: &Made) -> Vec<String> {
        let table = self.name(found);
        let column = |(name, kind): &(&str, &str)| format!("{name} {kind}");
        let mut statements = Vec::new();
        if found.columns.is_empty() {
            let columns = COLUMNS.iter().map(column).collect::<Vec<_>>().join(",\n  ");
            statements.push(format!(
                "CREATE TABLE `{table}` (\n  name STRING(MAX) NOT NULL,\n  {columns}\n) PRIMARY KEY (name)"
            ));
        } else {
            let is_missing = |(name, _): &&(&str, &str)| !found.columns.contains_key(*name);
            let missing = COLUMNS.iter().filter(is_missing);
            statements.extend(missing.map(|missing| format!("ALTER TABLE `{table}` ADD COLUMN {}", column(missing))));
            let longer = |(name, column): (&str, &Column)| {
                let null = if column.nullable { "" } else { " NOT NULL" };
                format!("ALTER TABLE `{table}` ALTER COLUMN {name} {}{null}", right(name))
            };
            statements.extend(short(found).map(longer));
        }
        if let Some(index) = self.missing_index(found) {
            statements.push(format!("CREATE NULL_FILTERED INDEX `{index}` ON `{table}`(lock_id)"));
        }
        statements
    }

    fn missing(&self, found: &Made) -> Vec<&'static str> {
        COLUMNS.iter().map(|(name, _)| *name).filter(|name| !found.columns.contains_key(*name)).collect()
    }

    /// An error that says what is missing and how to make it, or that the index is not ready; `None` if nothing is
    /// wrong.
    fn lacks(&self, found: &Made) -> Option<SpannerError> {
        if found.columns.is_empty() {
            let (database, table) = (self.database.clone(), self.table.clone());
            return Some(SpannerError::Own(Own::NoTable { database, table }, None));
        }
        let missing = self.missing(found).join(", ");
        let short = short(found).map(|(name, column)| format!("{name:?} is {}", column.kind)).collect::<Vec<_>>();
        let mut wrong = Vec::new();
        if !missing.is_empty() {
            wrong.push(format!("has no column {missing}; create_schema() adds what is missing"));
        }
        if !short.is_empty() {
            let short = short.join(", ");
            wrong.push(format!(
                "has columns that are too short: {short}; create_schema() makes them STRING(MAX), and STRING({LONGEST}) \
                 would do"
            ));
        }
        if let Some(index) = self.missing_index(found) {
            wrong.push(format!("has no index {index}; create_schema() adds it"));
        }
        if let Some(index) = self.unready_index(found) {
            wrong.push(format!("has an index {index} that is still being filled; create_schema() waits for it"));
        }
        let table = &self.table;
        (!wrong.is_empty()).then(|| SpannerError::Schema(format!("the table {table:?} {}", wrong.join("; it "))))
    }

    /// Refuses a table that can't be made right by adding to it.
    fn check(&self, found: &Made) -> Result<(), SpannerError> {
        if found.columns.is_empty() {
            return Ok(());
        }
        let mut wrong = Vec::new();
        if found.indexes.get("PRIMARY_KEY").is_none_or(|key| *key != ["name"]) {
            wrong.push("its primary key is not name alone".to_owned());
        }
        if let Some(parent) = &found.parent {
            wrong.push(format!("it is interleaved in {parent:?}, so that only keys that stand there could be locked"));
        }
        if let Some(policy) = &found.deletes {
            wrong.push(format!(
                "its row deletion policy {policy} can delete the rows of locks that are held: take it off by \
                 ALTER TABLE .. DROP ROW DELETION POLICY"
            ));
        }
        let has = |name: &str| found.columns.contains_key(name);
        if has("token") && has("owner") && !has("heartbeat") && !has("writer") {
            wrong.push("it is that of a later spindle, whose locks have no heartbeat".to_owned());
        }
        for (name, column) in &found.columns {
            let right = COLUMNS.iter().find(|(right, _)| right == name).map(|(_, kind)| *kind);
            match right {
                _ if column.generated && (right.is_some() || name == "name") => {
                    wrong.push(format!("{name:?} is generated"))
                }
                _ if name == "name" && column.kind.starts_with("STRING") => {}
                _ if name == "name" => wrong.push(format!("{name:?} is {}, not STRING(MAX)", column.kind)),
                Some(right) if !is_kind(&column.kind, right) => {
                    wrong.push(format!("{name:?} is {}, not {right}", column.kind))
                }
                Some(STAMPED) if !column.stamped => wrong.push(format!("{name} lacks allow_commit_timestamp = true")),
                // The service fills this column.
                None if column.has_default || column.generated => {}
                _ if !column.nullable => wrong.push(format!("{name:?} is NOT NULL, but leasehold leaves it out")),
                Some(_) if column.has_default => {
                    wrong.push(format!(
                        "{name:?} has a DEFAULT, where null has a meaning: take it off by \
                         ALTER TABLE .. ALTER COLUMN {name} DROP DEFAULT"
                    ));
                }
                _ => {}
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let (table, wrong) = (&self.table, wrong.join("; "));
        Err(SpannerError::Schema(format!("the table {table:?} is another one: {wrong}; use another table")))
    }
}

fn index_of(table: &str) -> String {
    format!("{table}_lock_id")
}

/// The type that a column should have.
fn right(name: &str) -> &'static str {
    COLUMNS.iter().find(|(right, _)| *right == name).map_or("STRING(MAX)", |(_, kind)| kind)
}

/// The columns that are too short for what may be stored in them.
fn short(found: &Made) -> impl Iterator<Item = (&str, &Column)> {
    let known = |name: &str| name == "name" || COLUMNS.iter().any(|(right, _)| *right == name);
    let is_short = |kind: &str| {
        let length = kind.split_once("STRING(").and_then(|(_, rest)| rest.split(')').next());
        length.and_then(|length| length.parse::<u32>().ok()).is_some_and(|length| length < LONGEST)
    };
    let columns = found.columns.iter().map(|(name, column)| (name.as_str(), column));
    columns.filter(move |(name, column)| known(name) && is_short(&column.kind))
}

/// Whether this type is the right one, of whatever length.
fn is_kind(kind: &str, right: &str) -> bool {
    let base = |kind: &str| kind.split([' ', '(']).next().unwrap_or_default().to_owned();
    base(kind) == base(right)
}

/// Whether this message says that another process is making the same, or has made it.
fn is_faster(message: &str) -> bool {
    ["Duplicate name", "Duplicate column name", "oncurrent"].iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::store::fleet::Fleet;

    /// The emulator fills an index at once, so it never shows this state.
    #[test]
    fn a_table_whose_index_is_still_being_filled_is_not_right() {
        let target = Target {
            database: "projects/p/instances/i/databases/d".to_owned(),
            table: "locks".to_owned(),
            foreign_lease: Duration::from_secs(1),
            fleet: Fleet::Own,
            watch: Default::default(),
            has_worked: AtomicBool::new(true),
        };
        let column = |kind: &str| Column {
            kind: kind.to_owned(),
            nullable: true,
            stamped: true,
            generated: false,
            has_default: false,
        };
        let mut found = Made { name: Some("Locks".to_owned()), ..Made::default() };
        found.columns = COLUMNS.iter().map(|(name, kind)| ((*name).to_owned(), column(kind))).collect();
        found.indexes.insert("Locks_lock_id".to_owned(), vec!["lock_id".to_owned()]);
        assert!(target.lacks(&found).is_none());
        found.unready.push("Locks_lock_id".to_owned());
        let lacks = target.lacks(&found).expect("it is not right").to_string();
        assert!(lacks.contains("Locks_lock_id that is still being filled"), "{lacks}");
        assert!(target.statements(&found).is_empty() && target.unready_index(&found).is_some());
    }
}
