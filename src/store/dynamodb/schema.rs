//! The table: checked, described, made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, MultiRegionConsistency, PointInTimeRecoverySpecification,
    ScalarAttributeType, TableDescription, TableStatus,
};

use super::error::{DynamodbError, Own};
use super::send::Answer;
use super::{Dynamodb, shell};
use crate::store::Schema;
use crate::store::failure::{Cause, Fate};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How long to wait between two looks at a table that is being made.
const LOOK: Duration = Duration::from_millis(250);

/// How often the log says that a table is still being made.
const PROGRESS: Duration = Duration::from_secs(10);

/// How long the client that makes the table may take to note its grace once the table exists. If it has not done so by
/// then, it is gone, or it was this client in an earlier call that got no answer. It is impossible to know which, so
/// the default applies as for any other table.
const NOTES: Duration = Duration::from_secs(30);

/// What is known of the table.
enum Table {
    Missing(DynamodbError),
    /// This client may not describe the table. Has what the service says about that.
    Hidden(Option<Cause>),
    There(Box<TableDescription>),
}

impl Dynamodb {
    pub(super) fn table_schema(&self, what: Schema, by: &Deadline) -> Result<String, DynamodbError> {
        match what {
            Schema::Describe => Ok(self.command()),
            Schema::Check => {
                // To learn the grace that applies by now.
                self.read_time(by)?;
                self.look_at_table(what, by)
            }
            Schema::Connect(_) => self.look_at_table(what, by),
            Schema::Create => self.create(&by.long()),
        }
    }

    fn look_at_table(&self, what: Schema, by: &Deadline) -> Result<String, DynamodbError> {
        match self.describe(by)? {
            Table::Missing(error) if what.needs_table() => Err(error),
            Table::There(table) => self.check(&table, "is there"),
            Table::Hidden(_) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                let text = "dynamodb:DescribeTable is denied, so the table's key and replicas were not checked";
                if !SAID.swap(true, Ordering::Relaxed) {
                    log::warn!(target: "leasehold::dynamodb", table:? = self.target.table; "{text}");
                }
                Ok(text.to_owned())
            }
            // Only a warning: a caller that makes the table must connect first. Every use of a missing table is an
            // error.
            Table::Missing(error) => {
                log::warn!(target: "leasehold::dynamodb", table:? = self.target.table; "{error}");
                Ok(error.to_string())
            }
        }
    }

    /// The same error. If the service only said that a request was wrong: a better one that says what is wrong with the
    /// table's key, if this client may describe the table.
    pub(super) fn explained(&self, error: DynamodbError, by: &Deadline) -> DynamodbError {
        if !matches!(error, DynamodbError::Own(Own::Invalid { .. }, _)) {
            return error;
        }
        match self.look_at_table(Schema::Check, by) {
            Err(better @ DynamodbError::Schema(_)) => better,
            _ => error,
        }
    }

    /// The command for those who make the table by other means. Nothing is sent.
    fn command(&self) -> String {
        let mut of_table = format!("--table-name {}", shell::word(&self.target.table));
        for (option, value) in [("--region", &self.target.region), ("--endpoint-url", &self.target.endpoint)] {
            if let Some(value) = value {
                of_table.push_str(&format!(" {option} {}", shell::word(value)));
            }
        }
        let kinds = shell::attributes("AttributeType", self.target.schema().map(|(name, _)| (name, "S".to_owned())));
        let keys = self.target.schema().map(|(name, kind)| (name, kind.as_str().to_owned()));
        let keys = shell::attributes("KeyType", keys);
        let mut command = format!(
            "aws dynamodb create-table {of_table} --billing-mode PAY_PER_REQUEST --attribute-definitions {kinds} \
             --key-schema {keys}"
        );
        if self.protection.deletion {
            command.push_str(" --deletion-protection-enabled");
        }
        if self.protection.recovery {
            command.push_str(&format!(
                " && aws dynamodb wait table-exists {of_table} && aws dynamodb update-continuous-backups {of_table} \
                 --point-in-time-recovery-specification PointInTimeRecoveryEnabled=true"
            ));
        }
        command
    }

    fn create(&self, by: &Deadline) -> Result<String, DynamodbError> {
        // `made`: if the table was missing or being made, whether this client made it or another was faster.
        let (mut made, mut protects, mut ready, mut is_noted) = (None, false, None, false);
        let (started, mut logged) = (Instant::now(), Instant::now());
        loop {
            let each = &by.of_request();
            match self.describe(each)? {
                Table::There(table) => {
                    let is = match (made, protects) {
                        (Some(true), _) => "was made",
                        (_, true) => "is there, and is protected now",
                        (_, false) => "is there",
                    };
                    let text = self.check(&table, is)?;
                    if table.table_status() == Some(&TableStatus::Creating) {
                        made = made.or(Some(false));
                    }
                    // A table that is being updated can be used.
                    let is_there = !matches!(table.table_status(), Some(TableStatus::Creating | TableStatus::Deleting));
                    // The grace is noted before the protections are set, which can take minutes: locks may be acquired
                    // by now.
                    if is_there && !is_noted {
                        let waited = self.clock.now().since(*ready.get_or_insert_with(|| self.clock.now()));
                        is_noted = self.may_note_grace(made.filter(|is_ours| *is_ours || waited < NOTES), each)?;
                        if is_noted {
                            // False if the table can't be used everywhere yet.
                            is_noted = self.note_grace(each)?;
                            self.check_grace()?;
                        }
                    }
                    let is_protected = is_there && self.is_protected(&table, each)?;
                    if is_noted && is_protected {
                        return Ok(text);
                    }
                    protects |= is_there && !is_protected;
                }
                Table::Hidden(cause) => {
                    let (table, right) = (self.target.table.clone(), "DescribeTable");
                    return Err(DynamodbError::Own(Own::MayNotMake { table, right }, cause));
                }
                Table::Missing(_) if made.is_some() => {}
                // Also a table that was deleted meanwhile.
                Table::Missing(_) => {
                    made = Some(self.make(each)?);
                    (ready, is_noted) = (None, false);
                }
            }
            // Not logged while waiting for another client's note of its grace, which does not take long.
            if (ready.is_none() || is_noted) && logged.elapsed() >= PROGRESS {
                logged = Instant::now();
                log::info!(target: "leasehold::dynamodb", table:? = self.target.table;
                    "the service is still making the table, after {} s", started.elapsed().as_secs());
            }
            if !by.wait_for(LOOK) {
                return Err(DynamodbError::NotReady);
            }
        }
    }

    /// An error unless the table is right. Otherwise a text that says so, which contains `is`.
    fn check(&self, table: &TableDescription, is: &str) -> Result<String, DynamodbError> {
        let name = &self.target.table;
        let keys: Vec<String> = table
            .key_schema()
            .iter()
            .map(|element| {
                let of = |definition: &&AttributeDefinition| definition.attribute_name() == element.attribute_name();
                let kind = table.attribute_definitions().iter().find(of).map(|definition| definition.attribute_type());
                let kind = kind.map_or("?", ScalarAttributeType::as_str);
                format!("{} {} ({})", element.key_type().as_str(), element.attribute_name(), kind)
            })
            .collect();
        let (right, found) = (self.target.described(), keys.join(", "));
        if found != right {
            let no_more = if self.target.sort_key.is_none() { " and no sort key" } else { "" };
            let hint = match (&self.target.sort_key, keys.len()) {
                (None, 2) => {
                    "say sort_key=NAME:VALUE to use its rows with that value in a sort key that is a string (S)"
                }
                (Some(_), 1) => "leave out sort_key=.., since the table has none",
                (Some(_), _) => "say partition_key=.. and sort_key=NAME:VALUE if those are only the names",
                (None, _) => "say partition_key=.. if that is only the name",
            };
            return Err(DynamodbError::Schema(format!(
                "the table {name:?} has the key {found}, but must have {right}{no_more}; {hint}, or use another table"
            )));
        }
        let is_strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
        if !table.replicas().is_empty() && !is_strong {
            return Err(DynamodbError::Schema(format!(
                "the table {name:?} has replicas in other regions without strong consistency, where two could hold \
                 one lock; use a table of one region, or multi-region strong consistency"
            )));
        }
        Ok(format!("{name}: the table {is}, with the key {right}"))
    }

    fn describe(&self, by: &Deadline) -> Result<Table, DynamodbError> {
        let answer: Answer<Option<TableDescription>> = self.send(by, move |client, stamp, target| async move {
            let request = client.describe_table().table_name(&target.table);
            let answer = request.customize().interceptor(stamp.clone()).send().await;
            target.classify(answer, &stamp).map(|answer| answer.table)
        });
        match answer {
            Ok(Some(table)) => Ok(Table::There(Box::new(table))),
            Ok(None) => Ok(Table::Hidden(None)),
            Err((_, DynamodbError::Own(Own::Denied { .. }, cause))) => Ok(Table::Hidden(cause)),
            Err((_, error @ DynamodbError::Own(Own::NoTable { .. }, _))) => Ok(Table::Missing(error)),
            Err((_, error)) => Err(error.of_read()),
        }
    }

    /// Makes the table. Whether it was this client that made it.
    fn make(&self, by: &Deadline) -> Result<bool, DynamodbError> {
        let is_safe = self.protection.deletion;
        let answer: Answer<bool> = self.send(by, move |client, stamp, target| async move {
            let keys = target.schema().map(|(name, kind)| {
                let key = KeySchemaElement::builder().attribute_name(name).key_type(kind).build()?;
                let of = AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
                Ok::<_, BuildError>((key, of.build()?))
            });
            let Ok((keys, kinds)) = keys.collect::<Result<(Vec<_>, Vec<_>), _>>() else {
                let error = DynamodbError::Config("the name of the table's key is no name".to_owned());
                return Err((Fate::Refused, error));
            };
            let request = client
                .create_table()
                .table_name(&target.table)
                .billing_mode(BillingMode::PayPerRequest)
                .set_key_schema(Some(keys))
                .set_attribute_definitions(Some(kinds))
                .set_deletion_protection_enabled(is_safe.then_some(true));
            match request.customize().interceptor(stamp.clone()).send().await {
                Ok(_) => Ok(true),
                // Another process was faster.
                Err(error) if error.as_service_error().is_some_and(|error| error.is_resource_in_use_exception()) => {
                    Ok(false)
                }
                Err(error) => target.classify(Err(error), &stamp),
            }
        });
        answer.map_err(may_not("CreateTable"))
    }

    /// Whether the table has all the protection that is wanted. What is missing is requested; on a table that was made
    /// without it, or a moment ago, that may take time. Any further protection of the table stays.
    fn is_protected(&self, table: &TableDescription, by: &Deadline) -> Result<bool, DynamodbError> {
        if self.protection.deletion && table.deletion_protection_enabled() != Some(true) {
            let answer: Answer<()> = self.send(by, move |client, stamp, target| async move {
                let request = client.update_table().table_name(&target.table).deletion_protection_enabled(true);
                match request.customize().interceptor(stamp.clone()).send().await {
                    Ok(_) => Ok(()),
                    // The table is being changed.
                    Err(e) if e.as_service_error().is_some_and(|e| e.is_resource_in_use_exception()) => Ok(()),
                    Err(error) => target.classify(Err(error), &stamp),
                }
            });
            return answer.map(|()| false).map_err(may_not("UpdateTable"));
        }
        if !self.protection.recovery {
            return Ok(true);
        }
        let answer: Answer<bool> = self.send(by, move |client, stamp, target| async move {
            let wanted = PointInTimeRecoverySpecification::builder().point_in_time_recovery_enabled(true).build();
            let Ok(wanted) = wanted else { return Ok(false) };
            let request = client
                .update_continuous_backups()
                .table_name(&target.table)
                .point_in_time_recovery_specification(wanted);
            match request.customize().interceptor(stamp.clone()).send().await {
                Ok(_) => Ok(true),
                // Not yet possible on a new table.
                Err(error)
                    if error.as_service_error().is_some_and(|e| e.is_continuous_backups_unavailable_exception()) =>
                {
                    Ok(false)
                }
                Err(error) => target.classify(Err(error), &stamp),
            }
        });
        answer.map_err(may_not("UpdateContinuousBackups"))
    }
}

/// Says which right is missing.
fn may_not(right: &'static str) -> impl Fn((Fate, DynamodbError)) -> DynamodbError {
    move |(_, error)| match error {
        DynamodbError::Own(Own::Denied { table }, cause) => DynamodbError::Own(Own::MayNotMake { table, right }, cause),
        error => error,
    }
}
