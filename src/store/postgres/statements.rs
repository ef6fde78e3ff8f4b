//! The statements. One that writes for an exclusive holder answers with one row: whether it wrote, the server's time,
//! and the row as it is afterwards, or else as it was when the statement began. That row may be a moment older than the
//! one by which the write was decided, so it is never taken for the truth about what is free.
//!
//! In the conditions and assignments of `ON CONFLICT`, `clock_timestamp()` is evaluated after the wait for the row's
//! lock. In a plain `UPDATE` it is not evaluated again after the wait for a transaction that had only locked the row:
//! there the version or the grant id decides.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

use super::row::{COLUMNS, Micros, REMEMBERED, STATEMENT, micros};
use crate::lease::MAX_ACQUIRE_LEASE;

/// One text for each statement, with the name of the table. The comments list the parameters.
pub(super) struct Statements {
    /// key, grant id, lock id, owner, host, comment, lease, not after
    pub acquire: Arc<str>,
    /// The same, the old grant id, its token, whether its acquire was sent only once
    pub transfer: Arc<str>,
    /// key, grant id, lease or null for one without end, whether the lease in the row may be without end, not after
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
    /// after, lock id, an array with a shared holder of that lock id, how many
    pub by_lock_id: Arc<str>,
    /// key, grant id
    pub assert_exclusive: Arc<str>,
    /// key, an array with the shared holder
    pub assert_shared: Arc<str>,
}

/// The same statement without the notification of waiters. `None` if it has none.
pub(super) fn untold(sql: &str) -> Option<String> {
    let (before, rest) = sql.split_once(TELL)?;
    let (_, after) = rest.split_once(TOLD)?;
    Some(format!("{before}NULL{after}"))
}

/// The same statement, which fails soon if another transaction has the row locked. One that only reads, and waits for
/// no row, stays as it is. `None`: it can't be known which row it waits for.
pub(super) fn briefly(sql: &str, millis: u128) -> Option<String> {
    const ROW: &str = "WHERE t.key = $1 AND ";
    let (reads, has_row) = (sql.starts_with("SELECT"), sql.contains(ROW));
    if !has_row {
        return reads.then(|| sql.to_owned());
    }
    let without = sql.replacen(&limited(POOLED), "", 1);
    Some(without.replacen(ROW, &format!("{ROW}{}", limited(millis)), 1))
}

/// The same statement for the heartbeat of a shared holder, which waits longer behind a pooler. For each row, only one
/// heartbeat of a client does so at a time.
pub(super) fn patiently(sql: &str) -> String {
    sql.replacen(&limited(POOLED), &limited(SHARING), 1)
}

/// The same statement, if it writes, for a session whose commits wait for the disk and the standby anyway (see
/// [`durable_session`]). It fails before it does anything unless the value `$at` is `token`: the token of another
/// client is no number, so the cast fails. Otherwise a pooler that was not noticed could run what another client has
/// prepared under the same name, even for another table. The check is in the limit, which the server evaluates first.
pub(super) fn in_durable_session(sql: &str, token: &str, at: usize) -> Option<String> {
    let durable = durable();
    let (each, once) = [(&*durable, "NULL"), (HEARD, "")].into_iter().find(|(each, _)| sql.contains(each))?;
    let sql = sql.replacen(each, once, 1);
    Some(format!("{sql} LIMIT CASE WHEN ${at} = '{token}' THEN NULL ELSE ${at}::int END"))
}

/// The expression in a query that makes a session one whose commits all wait so.
pub(super) fn durable_session() -> String {
    format!("set_config('synchronous_commit', {LEVEL}, false)")
}

/// With this the commit of a statement waits for the disk, and for a synchronous standby.
fn durable() -> String {
    format!("{HEARD}set_config('synchronous_commit', {LEVEL}, true)")
}

/// A part of a condition, which limits how long the statement waits for a row: the server evaluates it for each row
/// before it locks the row.
fn limited(millis: u128) -> String {
    format!("set_config('lock_timeout', '{millis}', true) IS NOT NULL AND ")
}

fn told(table: &str) -> String {
    format!("{TELL}'{CHANNEL}', {}{TOLD}", hash(table))
}

/// The text that is sent about a key of this table. It is a hash, since everybody may listen. It depends on the table,
/// since clients of other tables may have the same key.
pub(super) fn hash(table: &str) -> String {
    format!("hashtextextended(key, hashtextextended('{}', 0))::text", table.replace('\'', "''"))
}

/// The channel of the notifications about releases.
pub(super) const CHANNEL: &str = "leasehold";
/// How the part of a statement that notifies waiters begins and ends.
const TELL: &str = "pg_notify(";
const TOLD: &str = ") /* told */";
/// How long a statement of [`briefly`] waits for its row, in milliseconds.
pub(super) const BRIEF: u128 = 50;
/// The same for the heartbeat of a shared holder. One transaction may assert hundreds of keys of a client, and
/// heartbeats that can't wait long try one after the other: the last of them, and a release among them, must not come
/// too late. But this is longer than a heartbeat of another process has the row locked, even if that waits for a nearby
/// standby.
pub(super) const BRIEFLY_SHARING: u128 = 20;
/// How long a statement behind a pooler waits for its row, in milliseconds. All clients share the sessions of the
/// pooler, and one locked row must not take all of them. A caller that wants the row sends the statement again.
const POOLED: u128 = 100;
/// The same for the heartbeat of a shared holder. If transactions that assert its lock follow one after the other,
/// short waits might find no gap between them before its lease is over.
const SHARING: u128 = 2_000;
/// The time, read once for all that a statement writes.
const CLOCK: &str = "(SELECT clock_timestamp() AS now) AS c";
/// A part of the condition of statements that only read, evaluated once, before any row: true, or an error (25006) at a
/// standby, where a balancer may send the statement.
const AT_PRIMARY: &str = "(SELECT CASE WHEN pg_is_in_recovery() THEN pg_current_xact_id() IS NULL ELSE true END)";
/// The level of `synchronous_commit`: the server, and a synchronous standby, have the commit on disk. `remote_apply` would
/// also wait until the standby has replayed it. A query there may delay that for longer than a lease, and nobody reads
/// locks there.
pub(super) const LEVEL: &str = "'on'";
/// Makes the server send the warning that it no longer waits for the standby, whatever the settings of the session are.
const HEARD: &str = "set_config('client_min_messages', 'warning', true) || ";
/// Whether the table has the unique index by which the weakest row lock keeps rivals out.
const HAS_INDEX: &str = "EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = t.tableoid AND i.indisunique \
     AND i.indisvalid AND i.indislive AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnatts = 2 AND i.indnkeyatts = 2 \
     AND 2 = (SELECT count(*) FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = i.indrelid \
     AND a.attnum = ANY (i.indkey::smallint[]) AND a.attname IN ('grant_id', 'key')))";

impl Statements {
    /// Behind a pooler each statement says itself how long it may wait for a row, since no session keeps a limit of
    /// ours.
    pub fn of(table: &str, pooled: bool) -> Self {
        let columns = columns();
        let limit = if pooled { limited(POOLED) } else { String::new() };
        // A heartbeat waits only for a client that takes the lock over, and for no transaction of a user.
        let limit_of_heartbeat = if pooled { limited(STATEMENT.as_millis()) } else { String::new() };
        // The greatest number stays, and does not overflow.
        let fence = "least(t.fence, 9223372036854775806) + 1";
        // The version is at least the time. A crash may undo a release whose version somebody has read: that version
        // must not be given out again.
        let now = stamp("clock_timestamp()");
        let next = format!("greatest(least(t.version, 9223372036854775806) + 1, {now})");
        let told = told(table);
        let durable = format!("{} AS durable", durable());
        // Answers with the row that was written, otherwise with the row that is there.
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
        // `given_up` without the entries that are past. A subquery, even one that is not run, would cost more than the
        // rest of such a statement. So the ids become an array of texts by their text form, which is the same in JSON
        // and SQL except for its brackets.
        let pruned = format!(
            "nullif(t.given_up - translate(jsonb_path_query_array(t.given_up, \
             'strict $.keyvalue() ? (@.value <= $now).key', jsonb_build_object('now', {now}))::text, '[]', '{{}}')::text[], '{{}}')"
        );
        let remembering = |grant: &str| {
            format!("coalesce({pruned}, '{{}}') || jsonb_build_object({grant}, {now} + {})", micros(REMEMBERED))
        };
        // `given_up` where nothing is added, so that it can't grow: all entries stay until the last of them is past.
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
        // A copy of the acquire whose grant is adopted may be on its way, also if its lease is over. A grant that is
        // handed over to the next waiter was sent once, and there are too many of those to remember each.
        let adopted = format!("CASE WHEN NOT $11 THEN {} ELSE {pruned} END", remembering("t.grant_id"));
        // The same for the acquire of a grant that is over. If a late copy of it were granted, its holder would write
        // what is fenced, though another client has had the lock meanwhile.
        let taken_over = format!("CASE WHEN t.grant_id <> $2 THEN {} ELSE {kept} END", remembering("t.grant_id"));
        let grantable = |row: &str| {
            format!(
                "clock_timestamp() < $8 AND {row}.kind = 'lock' AND {} AND NOT coalesce({row}.given_up ? $2, false)",
                whole(row)
            )
        };
        let free =
            |row: &str| format!("{} AND ({row}.grant_id IS NULL OR {row}.until <= clock_timestamp())", grantable(row));
        // `ON CONFLICT` locks the row before it evaluates its condition. A refusal would then write, wait for the disk
        // and for fenced transactions, and make heartbeats wait for it. So nothing is tried if the snapshot shows the
        // lock as held. If the snapshot shows it as free, that proves nothing.
        let tried = format!(
            "NOT EXISTS (SELECT 1 FROM {table} AS o WHERE o.key = $1 AND (o.until > clock_timestamp() \
             OR o.shared IS NOT NULL OR o.kind <> 'lock' OR o.given_up ? $2))"
        );
        let asked = format!("CASE WHEN $3::bigint IS NULL THEN 'infinity' ELSE {} END", end("$3"));
        let nobody = "grant_id = NULL, lock_id = NULL, owner = NULL, host = NULL, comment = NULL, token = NULL, \
                      created = NULL, renewed = NULL";
        // A release that a crash undoes leaves a lease that ends by itself. A lease that runs for more than a minute
        // would keep the lock for long then, so its release waits for the disk. So does a give-up, which must be
        // remembered. Other releases do not wait, since commits that notify would then all wait for each other.
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
                // `o` is the row as it was before.
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
            // To lock the row is a write without a change: its commit waits for everything that was written before.
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
            // Each half uses an index of its own.
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

/// Whether the row has no shared holders and can be read in full, as `row.rs` reads it. A row that can't is left as it
/// is. Nearly all rows have the first format and no `given_up`, which is tested first, since a pattern costs more.
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

/// The time that is `lease` microseconds from now.
fn end(lease: &str) -> String {
    format!("c.now + {lease} * interval '1 microsecond'")
}

/// The columns as they are read. `jsonb`, which is not read in a binary form here, comes as text.
fn columns() -> String {
    let read = |(name, kind): (&str, &str)| if kind == "jsonb" { format!("{name}::text") } else { name.to_owned() };
    COLUMNS.map(read).join(", ")
}

/// The cast that gives the value at this place, from 1, the type of its column.
fn cast(at: usize) -> &'static str {
    match COLUMNS[at - 1].1 {
        "jsonb" => "::text::jsonb",
        _ => "",
    }
}

/// A statement and its values.
pub(super) struct Statement {
    pub sql: Arc<str>,
    /// It is one of [`Statements`], which are sent again and again.
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

    /// A statement that is sent once.
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
