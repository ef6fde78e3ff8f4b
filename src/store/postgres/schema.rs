//! The table: checked, described, made.

use std::collections::BTreeMap;

use super::Postgres;
use super::error::{Own, PostgresError};
use super::row::COLUMNS;
use super::send::{Lane, Statement};
use super::statements::LEVEL;
use crate::store::Schema;
use crate::store::failure::Fate;
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How long a statement of DDL waits for the table, in milliseconds: all other statements that use the table wait
/// behind it.
const BRIEF: u32 = 200;

/// The columns of the table with their types, the columns of each index, and what kind of table it is. No row if there
/// is no table.
const LOOK: &str = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), c.collname::text, 'column' \
     FROM pg_attribute AS a LEFT JOIN pg_collation AS c ON c.oid = a.attcollation \
     WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped \
     UNION ALL SELECT string_agg(a.attname::text, ',' ORDER BY k.place), \
     CASE WHEN i.indexprs IS NOT NULL OR i.indnatts <> i.indnkeyatts THEN 'other' \
     WHEN i.indisunique AND i.indpred IS NULL THEN 'unique' ELSE 'index' END, NULL, 'index' FROM pg_index AS i \
     CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place) \
     JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number \
     WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indislive GROUP BY i.indexrelid, \
     i.indisunique, i.indpred, i.indexprs, i.indnatts, i.indnkeyatts \
     UNION ALL SELECT CASE WHEN r.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = r.oid) THEN 'inherited' \
     ELSE r.relkind::text END, CASE WHEN EXISTS (SELECT FROM pg_partition_tree(r.oid) AS t JOIN pg_class AS l ON l.oid = t.relid \
     WHERE t.isleaf AND l.relpersistence = 'u') THEN 'u' ELSE r.relpersistence::text END, NULL, 'table' \
     FROM pg_class AS r WHERE r.oid = to_regclass($1)";

/// The standbys for which commits wait; how many connections copy this server (those of backups and subscribers, too);
/// of how many of these the state can be seen, which needs the rights of pg_monitor; how many are waited for; and how
/// many could be, since several standbys may have one name. Last, which settings are off without which a crash of the
/// machine may lose or tear what was committed.
const STANDBYS: &str = "SELECT current_setting('synchronous_standby_names'), count(*)::bigint, count(sync_state)::bigint, \
     count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::bigint, \
     count(*) FILTER (WHERE sync_state IN ('sync', 'quorum', 'potential'))::bigint, \
     (SELECT string_agg(name, ', ') FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off') \
     FROM pg_stat_get_wal_senders()";

/// What a failover costs. `names`: the standbys for which commits wait. The numbers: how many connections copy this
/// server, can be seen, are waited for, and have one of the names.
fn failover(names: &str, [copies, seen, waited_for, named]: [i64; 4]) -> String {
    if names.is_empty() {
        return match copies {
            0 => "no standby copies this server".to_owned(),
            _ => format!(
                "{copies} copy this server, none of them synchronously: a failover may lose the grants of the last moment"
            ),
        };
    }
    // The forms: `a, b`, `2 (a, b)`, `FIRST 2 (a, b)`, `ANY 2 (a, b)`, `*`. A comma in a name only makes the text more
    // careful.
    let (how, list) = names.split_once('(').unwrap_or(("1", names));
    let needed = how.split_whitespace().last().and_then(|needed| needed.parse::<i64>().ok()).unwrap_or(1);
    let waits = format!("grants wait for synchronous standbys ({names:?})");
    if copies > seen {
        return format!("{waits}; {copies} connections copy this server, and only pg_monitor may see whether by those");
    }
    if waited_for < needed {
        return format!(
            "{waits}, but only {waited_for} of the {needed} that must confirm a grant copy this server: nothing is granted \
             until they do"
        );
    }
    if list.contains('*') || needed < named.max(list.split(',').count() as i64) {
        return format!(
            "{waits}: each grant is on {needed} of them, not always the same: a failover loses none only to the one that \
             has received most, with all of them looked at"
        );
    }
    format!("{waits}: a failover to any of them loses none")
}

/// What was found in the database.
#[derive(Debug, Default)]
struct Made {
    /// The type and the collation of each column.
    columns: BTreeMap<String, (String, String)>,
    /// The columns of each index, and whether it is unique.
    indexes: Vec<(String, bool)>,
    /// The columns of each index that also has expressions, or columns that are no part of its key.
    other_indexes: Vec<String>,
    /// Why the table can't be used: it shows rows of others, is no table, or loses its rows.
    unkept: Option<&'static str>,
}

impl Made {
    /// A remark on an index that leasehold did not make, on a column that each heartbeat changes; empty if there is
    /// none.
    fn slowing(&self) -> String {
        let is_slowing =
            |columns: &&String| columns.split(',').any(|column| ["until", "renewed", "version"].contains(&column));
        let found = self.indexes.iter().map(|(columns, _)| columns).chain(&self.other_indexes).find(is_slowing);
        found.map_or_else(String::new, |columns| {
            format!(
                "; because of the index on {columns:?}, which is not of leasehold, each heartbeat writes to all indexes"
            )
        })
    }

    /// A remark on a column of an index with an order that is the operating system's, as tables had that were made
    /// before these columns got the collation "C"; empty if there is none.
    fn aging(&self) -> String {
        let collation = |name: &'static str| self.columns.get(name).map(|(_, collation)| (name, collation));
        let is_fixed = |collation: &str| ["C", "POSIX", "ucs_basic", "pg_c_utf8"].contains(&collation);
        let found = ["lock_id", "grant_id"].into_iter().filter_map(collation).find(|(_, of)| !is_fixed(of));
        found.map_or_else(String::new, |(name, collation)| {
            format!(
                "; {name:?} has the collation {collation:?}, not \"C\": unless that is the order of \"C\" here, the table \
                 may need REINDEX TABLE CONCURRENTLY after an upgrade of the operating system; ALTER TABLE .. ALTER \
                 {name} TYPE text COLLATE \"C\" ends that, but locks the table for as long as it makes indexes anew"
            )
        })
    }
}

impl Postgres {
    pub(super) fn table_schema(&self, what: Schema, by: &Deadline) -> Result<String, PostgresError> {
        let table = &self.table.name;
        let right = |is: &str| format!("table {table}: it {is}, with all its columns and indexes");
        let found = self.made(by)?;
        self.check(&found)?;
        let missing = self.statements_for(&found);
        if what == Schema::Describe {
            let all = || self.statements_for(&Made::default());
            return Ok(if missing.is_empty() { all() } else { missing }.join(";\n") + ";");
        }
        let is_missing = found.columns.is_empty();
        match what {
            Schema::Check if missing.is_empty() => {
                let remarks = found.slowing() + &found.aging();
                Ok(format!("{}{remarks}; {}", right("is there"), self.standbys(by)))
            }
            _ if missing.is_empty() => Ok(right("is there")),
            Schema::Create => {
                for statement in &missing {
                    self.make(statement, by)?;
                }
                let found = self.made(by)?;
                self.check(&found)?;
                // `IF NOT EXISTS` makes nothing if something else has the name.
                let missing_still = self.statements_for(&found).join("; ");
                if !missing_still.is_empty() {
                    return Err(PostgresError::Schema(format!(
                        "the table {table} lacks an index whose name another table's or an invalid one has; rename or drop \
                         that, and try again: {missing_still}"
                    )));
                }
                Ok(if is_missing {
                    right("was made")
                } else {
                    format!("table {table}: it is there, and got what it lacked: {}", missing.join("; "))
                })
            }
            _ => {
                let lacks = if is_missing {
                    PostgresError::Own(Own::NoTable { table: table.clone() }, None)
                } else {
                    let missing = missing.join("; ");
                    PostgresError::Schema(format!("the table {table} lacks what create_schema() adds: {missing}"))
                };
                if is_missing && what.needs_table() || what == Schema::Check {
                    return Err(lacks);
                }
                // Only a warning here: each use that needs what is missing is an error.
                log::warn!(target: "leasehold::postgres", table:?; "{lacks}");
                Ok(lacks.to_string())
            }
        }
    }

    /// What a failover would cost, as far as the server says.
    fn standbys(&self, by: &Deadline) -> String {
        let asked = self.ask(by, Lane::Holding, Statement::once(STANDBYS), |row| {
            let names = row.try_get::<_, Option<String>>(0).ok().flatten().unwrap_or_default();
            let off = row.try_get::<_, Option<String>>(5).ok().flatten();
            (names, [1, 2, 3, 4].map(|column| row.try_get::<_, i64>(column).unwrap_or_default()), off)
        });
        match asked.as_deref() {
            Ok([(names, copies, None)]) => failover(names, *copies),
            Ok([(names, copies, Some(off))]) => {
                let unless =
                    "unless the storage itself guards against that, a crash of the machine may lose or damage grants";
                format!("{}; {off} is off: {unless}", failover(names, *copies))
            }
            _ => "it can't be told which standbys copy this server".to_owned(),
        }
    }

    fn made(&self, by: &Deadline) -> Result<Made, PostgresError> {
        let statement = Statement::once(LOOK).text(&self.table.quoted);
        let rows = self.ask(by, Lane::Holding, statement, |row| {
            let text = |column| row.try_get::<_, Option<String>>(column).ok().flatten().unwrap_or_default();
            (text(0), text(1), text(2), text(3))
        })?;
        let mut made = Made::default();
        for (name, kind, collation, what) in rows {
            match what.as_str() {
                "index" if kind == "other" => made.other_indexes.push(name),
                "index" => made.indexes.push((name, kind == "unique")),
                // With `quote_all_identifiers` most types are in quotes.
                "column" => drop(made.columns.insert(name, (kind.replace('"', ""), collation))),
                _ if name == "inherited" => {
                    made.unkept = Some("others inherit from it, whose rows it shows as its own: a key may have two");
                }
                _ if !["r", "p"].contains(&name.as_str()) => made.unkept = Some("it is a view, or another thing"),
                _ if kind == "u" => made.unkept = Some("it is UNLOGGED, so a crash of the server would empty it"),
                _ if kind != "p" => made.unkept = Some("it is temporary"),
                _ => {}
            }
        }
        Ok(made)
    }

    /// Runs one statement of DDL. If another process was faster, it counts as done. The wait for the table is brief,
    /// and repeated: a release that waits for somebody's transaction may have the table locked. The commit waits as
    /// that of a grant does: what is answered is on the disk, and no standby's readers keep the table locked.
    fn make(&self, statement: &str, by: &Deadline) -> Result<(), PostgresError> {
        let block =
            format!("BEGIN SET LOCAL lock_timeout = {BRIEF}; SET LOCAL synchronous_commit = {LEVEL}; {statement}; END");
        let briefly = format!("DO '{}'", block.replace('\'', "''"));
        let mut tries = 0;
        loop {
            match self.send(by, Lane::Holding, Statement::once(&briefly), |_| ()) {
                Ok(_) | Err((Fate::Duplicate, _)) => return Ok(()),
                Err((_, PostgresError::Own(Own::Locked, _))) if by.wait_to_repeat(tries) => tries += 1,
                Err((_, PostgresError::Own(Own::Denied { table }, cause))) => {
                    let message = format!(
                        "the table {table} can't be made: the user needs CREATE on its schema and USAGE of \
                         PL/pgSQL, and must own a table that lacks something"
                    );
                    return Err(PostgresError::Own(Own::MayNotMake(message), cause));
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// The DDL that makes what is missing.
    fn statements_for(&self, found: &Made) -> Vec<String> {
        let (table, last) = (&self.table.quoted, &self.table.last);
        let mut statements = Vec::new();
        if found.columns.is_empty() {
            let columns: Vec<String> = COLUMNS.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
            let columns = columns.join(",\n  ");
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {table} (\n  {columns}\n) WITH (fillfactor = 50, \
                 autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
            ));
        } else {
            let is_missing = |(name, _): &&(&str, &str)| !found.columns.contains_key(*name);
            let add = |(name, kind): &(&str, &str)| {
                // Rows that exist have no value for it.
                let kind = kind.trim_end_matches(" NOT NULL");
                format!("ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}")
            };
            statements.extend(COLUMNS.iter().filter(is_missing).map(add));
        }
        let has = |columns: &str, unique| found.indexes.iter().any(|(of, is)| of == columns && *is >= unique);
        if !has("key,grant_id", true) {
            statements
                .push(format!("CREATE UNIQUE INDEX IF NOT EXISTS \"{last}_grant_id\" ON {table} (key, grant_id)"));
        }
        if !has("lock_id", false) {
            statements.push(format!(
                "CREATE INDEX IF NOT EXISTS \"{last}_lock_id\" ON {table} (lock_id) WHERE lock_id IS NOT NULL"
            ));
        }
        if !found.indexes.iter().any(|(of, unique)| of == "key" && !unique) {
            statements.push(format!(
                "CREATE INDEX IF NOT EXISTS \"{last}_shared\" ON {table} (key) WHERE shared IS NOT NULL"
            ));
        }
        statements
    }

    /// Refuses a table that can't be made right by adding to it.
    fn check(&self, found: &Made) -> Result<(), PostgresError> {
        if found.columns.is_empty() {
            return Ok(());
        }
        let mut wrong: Vec<String> = found.unkept.map(str::to_owned).into_iter().collect();
        if !found.indexes.iter().any(|(of, unique)| of == "key" && *unique) {
            wrong.push("its primary key is not key alone".to_owned());
        }
        for (name, kind) in COLUMNS {
            let Some((is, collation)) = found.columns.get(name) else { continue };
            let right = kind.split(' ').next().unwrap_or_default();
            let right = if right == "timestamptz" { "timestamp with time zone" } else { right };
            if is != right {
                wrong.push(format!("{name:?} is {is}, not {right}"));
            } else if name == "key" && collation != "C" {
                wrong.push(format!("key has the collation {collation}, not \"C\""));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let (table, wrong) = (&self.table.name, wrong.join("; "));
        Err(PostgresError::Schema(format!("the table {table} is no table of leasehold: {wrong}; name another one")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_is_said_to_lose_nothing_only_where_each_standby_confirms() {
        for (names, copies, says) in [
            ("", [0, 0, 0, 0], "no standby copies"),
            ("", [2, 2, 0, 0], "a failover may lose"),
            ("a", [1, 1, 1, 1], "to any of them loses none"),
            ("ANY 2 (a, b)", [3, 3, 2, 2], "to any of them loses none"),
            ("2 (a, b)", [2, 2, 2, 2], "to any of them loses none"),
            ("ANY 1 (a, b)", [2, 2, 2, 2], "on 1 of them, not always the same"),
            ("a, b", [2, 2, 1, 1], "on 1 of them, not always the same"),
            // Two standbys have the same name.
            ("a", [2, 2, 1, 2], "on 1 of them, not always the same"),
            ("ANY 1 (a)", [2, 2, 2, 2], "on 1 of them, not always the same"),
            ("*", [1, 1, 1, 1], "on 1 of them, not always the same"),
            ("FIRST 2 (*)", [2, 2, 2, 2], "on 2 of them, not always the same"),
            ("a", [1, 1, 0, 0], "only 0 of the 1 that must confirm"),
            // The standby is still catching up.
            ("a", [1, 1, 0, 1], "only 0 of the 1 that must confirm"),
            ("a", [0, 0, 0, 0], "only 0 of the 1 that must confirm"),
            ("ANY 2 (a, b, c)", [1, 1, 1, 1], "only 1 of the 2 that must confirm"),
            ("a", [1, 0, 0, 0], "only pg_monitor may see"),
        ] {
            let said = failover(names, copies);
            assert!(said.contains(says), "{names} {copies:?}: {said}");
        }
    }
}
