//! The statements. Those that write answer with one row: whether they wrote it, the server's time, and the row as it is
//! afterwards, or else as it stood when the statement began. That may be a moment older than what the write was decided
//! by, and is never taken for the truth about what is free.
//!
//! `clock_timestamp()` in the conditions and assignments of `ON CONFLICT` is evaluated after the wait for the row's lock.
//! That of a plain `UPDATE` is not evaluated once more after the wait for who had only locked the row: there the version or the
//! grant id decides.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

use super::row::{COLUMNS, Micros, REMEMBERED, STATEMENT, micros};
use crate::lease::MAX_ACQUIRE_LEASE;

/// One text for each statement, with the table's name.
pub(super) struct Statements {
    /// key, grant id, lock id, owner, host, comment, lease, not after
    pub acquire: Arc<str>,
    /// The same, the old grant id, its token, whether that was sent once
    pub transfer: Arc<str>,
    /// key, grant id, lease or null for one without end, whether it may have no end now, not after
    pub renew: Arc<str>,
    /// key, grant id
    pub release: Arc<str>,
    /// The same
    pub give_up: Arc<str>,
    /// The columns, the version that was seen, not after, whether it frees the key
    pub swap: Arc<str>,
    /// The columns, not after
    pub insert: Arc<str>,
    /// key, version, not after
    pub delete: Arc<str>,
    /// key
    pub read: Arc<str>,
    /// key
    pub confirm: Arc<str>,
    /// after, prefix, how many
    pub by_prefix: Arc<str>,
    /// after, lock id, an array with a shared holder of it, how many
    pub by_lock_id: Arc<str>,
    /// key, grant id
    pub assert_exclusive: Arc<str>,
    /// key, an array with the shared holder
    pub assert_shared: Arc<str>,
}

/// The same statement without telling anybody.
pub(super) fn untold(sql: &str) -> Option<String> {
    let (before, rest) = sql.split_once(TELL)?;
    let (_, after) = rest.split_once(TOLD)?;
    Some(format!("{before}NULL{after}"))
}

/// The same statement, which fails soon where somebody else has the row locked. `None`: nobody knows for what it waits.
pub(super) fn briefly(sql: &str, millis: u128) -> Option<String> {
    const ROW: &str = "WHERE t.key = $1 AND ";
    let (reads, has_row) = (sql.starts_with("SELECT"), sql.contains(ROW));
    if !has_row {
        return reads.then(|| sql.to_owned());
    }
    let without = sql.replacen(&limited(POOLED), "", 1);
    Some(without.replacen(ROW, &format!("{ROW}{}", limited(millis)), 1))
}

/// The same statement of a shared holder's heartbeat, which waits longer behind a pooler. One at a time of a client does
/// so for a row.
pub(super) fn patiently(sql: &str) -> String {
    sql.replacen(&limited(POOLED), &limited(SHARING), 1)
}

/// The same statement, of those that write, for a session whose commits wait for the disk and the standby anyway. It fails
/// before it does anything for whoever does not give `token`, which is no number, as the value `$at`: a pooler that is not
/// noticed may run what another client has prepared under the same name, be it for another table. A limit is what the
/// server works out first.
pub(super) fn in_durable_session(sql: &str, token: &str, at: usize) -> Option<String> {
    let durable = durable();
    let (each, once) = [(&*durable, "NULL"), (HEARD, "")].into_iter().find(|(each, _)| sql.contains(each))?;
    let sql = sql.replacen(each, once, 1);
    Some(format!("{sql} LIMIT CASE WHEN ${at} = '{token}' THEN NULL ELSE ${at}::int END"))
}

/// What makes a session one of those, as columns of a query.
pub(super) fn durable_session() -> String {
    format!("set_config('synchronous_commit', {LEVEL}, false)")
}

/// With this the commit of a statement waits for the disk, and for a synchronous standby.
fn durable() -> String {
    format!("{HEARD}set_config('synchronous_commit', {LEVEL}, true)")
}

/// A part of a condition, which limits how long the statement waits for a row: each is looked at before it is locked.
fn limited(millis: u128) -> String {
    format!("set_config('lock_timeout', '{millis}', true) IS NOT NULL AND ")
}

fn told(table: &str) -> String {
    format!("{TELL}'{CHANNEL}', {}{TOLD}", hash(table))
}

/// What is told of a key of this table: everybody may listen, also clients of other tables that have the same key.
pub(super) fn hash(table: &str) -> String {
    format!("hashtextextended(key, hashtextextended('{}', 0))::text", table.replace('\'', "''"))
}

/// The channel on which releases are told.
pub(super) const CHANNEL: &str = "leasehold";
/// How a statement begins and ends to tell.
const TELL: &str = "pg_notify(";
const TOLD: &str = ") /* told */";
/// How long such a statement waits, in milliseconds.
pub(super) const BRIEF: u128 = 50;
/// The same for a shared holder's heartbeat. One transaction may assert hundreds of keys of a client, and those who can't
/// wait long try one after the other: the last of them, and a release between them, must not come too late. All the same it
/// is more than a heartbeat of another process has the row, until a standby nearby has it.
pub(super) const BRIEFLY_SHARING: u128 = 20;
/// How long one waits behind a pooler: all clients share its sessions, and one row that somebody has locked must not take
/// them all. Whoever wants the row asks again.
const POOLED: u128 = 100;
/// The same for a shared holder's heartbeat: between transactions that assert its lock, one after the other, it would
/// find no gap by chance before its lease is over.
const SHARING: u128 = 2_000;
/// The time, once for all that a statement writes by it.
const CLOCK: &str = "(SELECT clock_timestamp() AS now) AS c";
/// A part of a condition of what only reads, worked out once, before any row: true, or an error (25006) at a standby,
/// where a balancer may send it.
const AT_PRIMARY: &str = "(SELECT CASE WHEN pg_is_in_recovery() THEN pg_current_xact_id() IS NULL ELSE true END)";
/// Never less than that the server, and a synchronous standby, have it on disk.
const LEVEL: &str = "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on' \
                     ELSE current_setting('synchronous_commit') END";
/// The warning that it waits for the standby no more is sent, whatever the session's settings are.
const HEARD: &str = "set_config('client_min_messages', 'warning', true) || ";
/// Whether there is the unique index by which the weakest lock keeps rivals out.
const HAS_INDEX: &str = "EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = t.tableoid AND i.indisunique \
     AND i.indisvalid AND i.indislive AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnatts = 2 AND i.indnkeyatts = 2 \
     AND 2 = (SELECT count(*) FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = i.indrelid \
     AND a.attnum = ANY (i.indkey::smallint[]) AND a.attname IN ('grant_id', 'key')))";

impl Statements {
    /// Behind a pooler each says itself how long it may wait for a row, since no session keeps a limit of ours.
    pub fn of(table: &str, pooled: bool) -> Self {
        let columns = columns();
        let limit = if pooled { limited(POOLED) } else { String::new() };
        // It waits for who takes the lock over, and for nobody's transaction.
        let limit_of_heartbeat = if pooled { limited(STATEMENT.as_millis()) } else { String::new() };
        // The greatest number stays.
        let fence = "least(t.fence, 9223372036854775806) + 1";
        // Also the time: the version of a release that a crash takes back, and that somebody has read, is not given out again.
        let now = stamp("clock_timestamp()");
        let next = format!("greatest(least(t.version, 9223372036854775806) + 1, {now})");
        let told = told(table);
        let durable = format!("{} AS durable", durable());
        // The row that was written, else what stands.
        let answer = |write: &str, told: &str| -> Arc<str> {
            let told = if told.is_empty() { String::new() } else { format!(", {told}") };
            let none = if told.is_empty() { "" } else { ", NULL" };
            format!(
                "WITH w AS ({write} RETURNING t.*, {durable}) \
                 SELECT true, clock_timestamp(), {columns}{told} FROM w \
                 UNION ALL SELECT false, clock_timestamp(), {columns}{none} FROM {table} \
                 WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM w)"
            )
            .into()
        };
        // Without those that are past. To begin a query of its own, also one that is not run, would cost more than the rest of
        // such a statement: of the ids an array of texts is made, as JSON and SQL write one but for its brackets.
        let pruned = format!(
            "nullif(t.given_up - translate(jsonb_path_query_array(t.given_up, \
             'strict $.keyvalue() ? (@.value <= $now).key', jsonb_build_object('now', {now}))::text, '[]', '{{}}')::text[], '{{}}')"
        );
        let remembering = |grant: &str| {
            format!("coalesce({pruned}, '{{}}') || jsonb_build_object({grant}, {now} + {})", micros(REMEMBERED))
        };
        // The same where nothing is added, so that it can't grow: all, until the last of them is past.
        let kept = format!(
            "CASE WHEN t.given_up IS NOT NULL AND jsonb_path_exists(t.given_up, 'strict $.* ? (@ > $now)', \
             jsonb_build_object('now', {now})) THEN t.given_up END"
        );
        let granted = |given_up: &str| {
            format!(
                "(fence, token, created, until) = (SELECT greatest({fence}, {0}), greatest({fence}, {0}), c.now, {1} \
                 FROM {CLOCK}), grant_id = $2, lock_id = $3, owner = $4, host = $5, comment = $6, renewed = NULL, \
                 given_up = {given_up}, version = {next}",
                stamp("c.now"),
                end("$7"),
            )
        };
        // A copy of what is adopted may be on its way, also where its lease is over. What is handed on to the next in the line
        // was sent once, and there are too many of them to remember each.
        let adopted = format!("CASE WHEN NOT $11 THEN {} ELSE {pruned} END", remembering("t.grant_id"));
        // So may one of what is over: its holder would write what is fenced, though another has had the lock meanwhile.
        let taken_over = format!("CASE WHEN t.grant_id <> $2 THEN {} ELSE {kept} END", remembering("t.grant_id"));
        let grantable = |row: &str| {
            format!(
                "clock_timestamp() < $8 AND {row}.kind = 'lock' AND {} AND NOT coalesce({row}.given_up ? $2, false)",
                whole(row)
            )
        };
        let free =
            |row: &str| format!("{} AND ({row}.grant_id IS NULL OR {row}.until <= clock_timestamp())", grantable(row));
        // ON CONFLICT locks the row before it looks at its condition: then a refusal would write, wait for the disk and for
        // fenced transactions, and have heartbeats wait for it. So what the snapshot shows as held is not tried. What it
        // shows free means nothing.
        let tried = format!(
            "NOT EXISTS (SELECT 1 FROM {table} AS o WHERE o.key = $1 AND (o.until > clock_timestamp() \
             OR o.shared IS NOT NULL OR o.kind <> 'lock' OR o.given_up ? $2))"
        );
        let asked = format!("CASE WHEN $3::bigint IS NULL THEN 'infinity' ELSE {} END", end("$3"));
        let nobody = "grant_id = NULL, lock_id = NULL, owner = NULL, host = NULL, comment = NULL, token = NULL, \
                      created = NULL, renewed = NULL";
        // A release that a crash takes back leaves a lease that ends by itself, but one that runs for longer may be all that
        // keeps the lock. Who gave up must be remembered. To wait for the disk would also let all commits that tell something
        // wait for each other.
        let ended = format!(
            "until = CASE WHEN {HEARD}set_config('synchronous_commit', CASE WHEN t.until > clock_timestamp() \
             + interval '{} s' THEN {LEVEL} ELSE 'off' END, true) IS NULL THEN t.until END",
            MAX_ACQUIRE_LEASE.as_secs()
        );
        let freed = |ended: &str, given_up: &str| {
            let write = format!(
                "UPDATE {table} AS t SET {nobody}, {ended}, given_up = {given_up}, version = {next} \
                 WHERE t.key = $1 AND {limit}t.grant_id = $2 AND {}",
                whole("t")
            );
            answer(&write, &told)
        };
        let places: Vec<String> = (1..=COLUMNS.len()).map(|at| format!("${at}{}", cast(at))).collect();
        let assigned: Vec<String> =
            (1..COLUMNS.len()).map(|at| format!("{} = {}", COLUMNS[at].0, places[at])).collect();
        let (places, assigned) = (places.join(", "), assigned.join(", "));
        let names = COLUMNS.map(|(name, _)| name).join(", ");
        Statements {
            acquire: answer(
                &format!(
                    "INSERT INTO {table} AS t (key, kind, fence, token, grant_id, lock_id, owner, host, comment, created, \
                     until, version, format, renewed, shared, pins, given_up) \
                     SELECT $1, 'lock', {0}, {0}, $2, $3, $4, $5, $6, c.now, {1}, {0}, '1.0', NULL::timestamptz, NULL::jsonb, \
                     NULL::text[], NULL::jsonb FROM {CLOCK} \
                     WHERE {limit}c.now < $8 AND {tried} ON CONFLICT (key) DO UPDATE SET {3} \
                     WHERE {2}",
                    stamp("c.now"),
                    end("$7"),
                    free("t"),
                    granted(&taken_over),
                ),
                "",
            ),
            transfer: answer(
                &format!(
                    "UPDATE {table} AS t SET {} \
                     WHERE t.key = $1 AND {limit}t.grant_id = $9 AND t.token = $10 AND {}",
                    granted(&adopted),
                    grantable("t")
                ),
                // As the row was before.
                &format!("CASE WHEN until < (SELECT o.until FROM {table} AS o WHERE o.key = $1) THEN {told} END"),
            ),
            renew: answer(
                &format!(
                    "UPDATE {table} AS t SET (until, renewed) = (SELECT greatest(t.until, {asked}), \
                     CASE WHEN t.until > {asked} THEN t.renewed ELSE c.now END FROM {CLOCK}), version = {next} \
                     WHERE t.key = $1 AND {limit_of_heartbeat}t.grant_id = $2 \
                     AND clock_timestamp() < $5 AND ($4 OR t.until < 'infinity') AND {}",
                    whole("t")
                ),
                "",
            ),
            release: freed(&ended, &kept).replacen(&format!(", {durable}"), "", 1).into(),
            give_up: freed("until = NULL", &remembering("$2::text")),
            swap: format!(
                "WITH w AS (UPDATE {table} AS t SET {assigned} WHERE t.key = $1 AND {limit}t.version = ${} \
                 AND clock_timestamp() < ${} RETURNING t.key, {durable}) \
                 SELECT CASE WHEN ${} THEN {told} END FROM w",
                COLUMNS.len() + 1,
                COLUMNS.len() + 2,
                COLUMNS.len() + 3,
            )
            .into(),
            insert: format!(
                "WITH w AS (INSERT INTO {table} AS t ({names}) SELECT {places} WHERE {limit} clock_timestamp() < ${} \
                 ON CONFLICT (key) DO NOTHING RETURNING {durable}) SELECT durable FROM w",
                COLUMNS.len() + 1,
            )
            .into(),
            delete: format!(
                "WITH w AS (DELETE FROM {table} AS t WHERE t.key = $1 AND {limit}t.version = $2 AND clock_timestamp() < $3 \
                 RETURNING t.key, {durable}) SELECT {told} FROM w"
            )
            .into(),
            read: format!(
                "SELECT false, clock_timestamp(), {columns} FROM (SELECT 1) AS one LEFT JOIN {table} ON key = $1 \
                 WHERE {AT_PRIMARY}"
            )
            .into(),
            // The lock of the row is a write without a change: its commit waits for all that was written before.
            confirm: format!(
                "SELECT true, clock_timestamp(), {columns}, {durable} FROM {table} AS t \
                 WHERE t.key = $1 AND {limit}true FOR KEY SHARE"
            )
            .into(),
            by_prefix: format!(
                "SELECT false, clock_timestamp(), {columns} FROM {table} WHERE key > $1 AND key >= $2 AND {AT_PRIMARY} \
                 ORDER BY key LIMIT $3"
            )
            .into(),
            // Each half by an index of its own.
            by_lock_id: format!(
                "SELECT false, clock_timestamp(), {columns} FROM (\
                 (SELECT {names} FROM {table} WHERE key > $1 AND lock_id = $2 ORDER BY key LIMIT $4) \
                 UNION ALL (SELECT {names} FROM {table} WHERE key > $1 AND shared IS NOT NULL \
                 AND shared @> $3::text::jsonb AND lock_id IS DISTINCT FROM $2 ORDER BY key LIMIT $4)) AS found \
                 WHERE {AT_PRIMARY} ORDER BY key LIMIT $4"
            )
            .into(),
            assert_exclusive: format!(
                "SELECT {HAS_INDEX} FROM {table} AS t WHERE key = $1 AND grant_id = $2 FOR KEY SHARE OF t"
            )
            .into(),
            assert_shared: format!("SELECT true FROM {table} WHERE key = $1 AND shared @> $2::text::jsonb FOR SHARE")
                .into(),
        }
    }
}

/// Whether the row is one without shared holders that can be read in full, as `row.rs` reads it: what can't is left as it is.
/// Nearly all have the first format and no `given_up`, and a pattern costs more.
fn whole(row: &str) -> String {
    format!(
        "({row}.format = '1.0' OR {row}.format ~ '^1[.][0-9]{{1,4}}$') AND {row}.kind IN ('lock', 'lease') \
         AND {row}.version > 0 AND {row}.fence >= 0 AND {row}.shared IS NULL \
         AND CASE WHEN array_ndims({row}.pins) > 1 THEN false ELSE array_position({row}.pins, NULL) IS NULL END \
         AND ({row}.given_up IS NULL OR {row}.given_up::text \
         ~ '^[{{](|\"[^\"]*\": -?[0-9]{{1,18}}(, \"[^\"]*\": -?[0-9]{{1,18}})*)[}}]$') \
         AND ({row}.grant_id IS NULL OR {row}.token >= 0 AND NOT ({row}.lock_id IS NULL OR {row}.owner IS NULL \
         OR {row}.created IS NULL OR {row}.until IS NULL))"
    )
}

/// Microseconds since 1970.
fn stamp(now: &str) -> String {
    format!("(extract(epoch FROM {now}) * 1000000)::bigint")
}

/// So many microseconds from now.
fn end(lease: &str) -> String {
    format!("c.now + {lease} * interval '1 microsecond'")
}

/// The columns as they are read. What is not there as a binary form comes as text.
fn columns() -> String {
    let read = |(name, kind): (&str, &str)| if kind == "jsonb" { format!("{name}::text") } else { name.to_owned() };
    COLUMNS.map(read).join(", ")
}

/// What makes the value at this place, from 1, one of its column.
fn cast(at: usize) -> &'static str {
    match COLUMNS[at - 1].1 {
        "jsonb" => "::text::jsonb",
        _ => "",
    }
}

/// A statement and its values.
pub(super) struct Statement {
    pub sql: Arc<str>,
    /// It is one of [`Statements`], which come again and again.
    pub lasts: bool,
    pub values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
    /// The key whose row it writes.
    pub row: Option<String>,
}

impl Statement {
    /// One of [`Statements`].
    pub fn new(sql: &Arc<str>) -> Self {
        Statement { sql: sql.clone(), lasts: true, values: Vec::new(), row: None }
    }

    /// Another one.
    pub fn once(sql: &str) -> Self {
        Statement { sql: sql.into(), lasts: false, values: Vec::new(), row: None }
    }

    /// It writes the row of this key.
    pub fn writing(self, key: &str) -> Self {
        Statement { row: Some(key.to_owned()), ..self }
    }

    fn with(mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> Self {
        self.values.push((Box::new(value), kind));
        self
    }

    pub fn text(self, value: &str) -> Self {
        self.with(value.to_owned(), Type::TEXT)
    }

    pub fn maybe_text(self, value: Option<&str>) -> Self {
        self.with(value.map(str::to_owned), Type::TEXT)
    }

    pub fn texts(self, values: Option<Vec<String>>) -> Self {
        self.with(values, Type::TEXT_ARRAY)
    }

    pub fn number(self, value: i64) -> Self {
        self.with(value, Type::INT8)
    }

    pub fn maybe_number(self, value: Option<i64>) -> Self {
        self.with(value, Type::INT8)
    }

    pub fn time(self, value: Micros) -> Self {
        self.with(value, Type::TIMESTAMPTZ)
    }

    pub fn maybe_time(self, value: Option<Micros>) -> Self {
        self.with(value, Type::TIMESTAMPTZ)
    }

    pub fn flag(self, value: bool) -> Self {
        self.with(value, Type::BOOL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_row_has_a_brief_form() {
        for pooled in [false, true] {
            let Statements { release, give_up, swap, insert, delete, read, confirm, .. } =
                Statements::of("locks", pooled);
            for sql in [&release, &give_up, &swap, &delete, &confirm] {
                let brief = briefly(sql, 50).unwrap();
                assert_eq!((brief.matches("lock_timeout").count(), brief.contains("'50'")), (1, true), "{brief}");
            }
            assert_eq!(briefly(&read, 50).as_deref(), Some(&*read), "it waits for nobody");
            assert_eq!(briefly(&insert, 50), None, "nobody knows for whose row");
        }
    }
}
