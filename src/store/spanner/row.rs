//! A row as the record that the pure rules see, and back.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use google_cloud_spanner::mutation::Mutation;
use google_cloud_spanner::result::Row as Answer;
use google_cloud_spanner::value::{FromValue, Timestamp, Value};
use serde_json::Value as Json;

use super::mixed::taking_over;
use crate::lease::record::parse_format;
use crate::lease::{End, GrantId, Holder, Kind, Labels, LockRecord, StoreTime};
use crate::store::shared_holders;

/// The type of the columns that can take the commit's timestamp.
pub(super) const STAMPED: &str = "TIMESTAMP OPTIONS (allow_commit_timestamp = true)";

/// The columns other than the key, in the order in which they are read, and the types with which they are made; the
/// first three are spindle's.
pub(super) const COLUMNS: [(&str, &str); 15] = [
    ("heartbeat", STAMPED),
    ("token", STAMPED),
    ("writer", "STRING(MAX)"),
    ("grant_id", "STRING(MAX)"),
    ("lock_id", "STRING(MAX)"),
    ("lease_ms", "INT64"),
    ("owner", "STRING(MAX)"),
    ("host", "STRING(MAX)"),
    ("comment", "STRING(MAX)"),
    ("holders", "JSON"),
    ("kind", "STRING(MAX)"),
    ("pins", "ARRAY<STRING(MAX)>"),
    ("format", "STRING(MAX)"),
    ("given_up", "STRING(MAX)"),
    ("not_after", "TIMESTAMP"),
];

/// The value of the column `lock_id` in a row with shared holders. The index finds the row by it, and while it has
/// shared holders no heartbeat, join or leave changes the index. No holder has it as its own lock id.
pub(super) const SEE_HOLDERS: &str = "";
/// The commit replaces this value by its own timestamp.
pub(super) const COMMIT_TIMESTAMP: &str = "spanner.commit_timestamp()";
const NANOS: i64 = 1_000_000_000;
const MICRO: Duration = Duration::from_micros(1);

/// A time in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Time(StoreTime),
    /// The timestamp of the commit that writes it.
    Commit,
}

/// Which time a row gets if its record has a new grant: the commit's or the record's. A renewal counts from when it was
/// requested, however late its commit comes: by then its caller may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamps {
    Commits,
    Records,
}

/// A row: one field for each of its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Null: nobody holds it.
    pub heartbeat: Option<At>,
    pub token: Option<At>,
    /// Who wrote it last, as spindle sees it.
    pub writer: Option<String>,
    /// This column and those that follow are leasehold's. They count only while `grant_id` equals `writer`.
    pub grant_id: Option<String>,
    pub lock_id: Option<String>,
    /// Null: it never ends.
    pub lease_ms: Option<i64>,
    pub owner: Option<String>,
    pub host: Option<String>,
    pub comment: Option<String>,
    /// The shared holders.
    pub holders: Option<Json>,
    pub kind: Option<String>,
    pub pins: Option<Vec<String>>,
    pub format: Option<String>,
    /// The last acquisition that was given up. No decision depends on it: writing it aborts the transactions that read
    /// the row before.
    pub given_up: Option<String>,
    /// A heartbeat at this time or later came too late. Then the row counts as one of a node of spindle, which may have
    /// found the lease over.
    pub not_after: Option<At>,
}

impl Row {
    /// From an answer whose columns begin with the time and the key; `None` where there is no row.
    pub fn read(answer: &Answer) -> Result<(StoreTime, Option<(String, Row)>), String> {
        let now: Timestamp = get(answer, 0)?.ok_or("it has no time")?;
        let Some(name) = get(answer, 1)? else { return Ok((floor(time(&now)), None)) };
        let at = |column| Ok::<_, String>(get(answer, column)?.map(|at| At::Time(time(&at))));
        let row = Row {
            heartbeat: at(2)?,
            token: at(3)?,
            writer: get(answer, 4)?,
            grant_id: get(answer, 5)?,
            lock_id: get(answer, 6)?,
            lease_ms: get(answer, 7)?,
            owner: get(answer, 8)?,
            host: get(answer, 9)?,
            comment: get(answer, 10)?,
            holders: get(answer, 11)?,
            kind: get(answer, 12)?,
            pins: get(answer, 13)?,
            format: get(answer, 14)?,
            given_up: get(answer, 15)?,
            not_after: at(16)?,
        };
        Ok((row.not_before(floor(time(&now))), Some((name, row))))
    }

    /// The time of a read: `now`, but later than each commit timestamp in the row. A commit that can be read is past,
    /// whatever the clock of the service's host says.
    fn not_before(&self, now: StoreTime) -> StoreTime {
        let stamps = [self.heartbeat, self.token].into_iter().flatten().map(At::time);
        stamps.map(|at| floor(at).plus(MICRO)).fold(now, StoreTime::max)
    }

    /// For tests: a row from its columns by name, which may hold whatever a table may hold. Times are in nanoseconds
    /// since 1970.
    #[cfg(feature = "_internals")]
    pub fn made_up(columns: &Json) -> (StoreTime, Row) {
        let number = |name: &str| columns.get(name).and_then(Json::as_i64);
        let at = |name: &str| number(name).map(|at| At::Time(StoreTime::from_nanos(at)));
        let text = |name: &str| columns.get(name).and_then(Json::as_str).map(str::to_owned);
        let texts = |all: &Vec<Json>| all.iter().filter_map(Json::as_str).map(str::to_owned).collect();
        let row = Row {
            heartbeat: at("heartbeat"),
            token: at("token"),
            writer: text("writer"),
            grant_id: text("grant_id"),
            lock_id: text("lock_id"),
            lease_ms: number("lease_ms"),
            owner: text("owner"),
            host: text("host"),
            comment: text("comment"),
            holders: columns.get("holders").cloned(),
            kind: text("kind"),
            pins: columns.get("pins").and_then(Json::as_array).map(texts),
            format: text("format"),
            given_up: text("given_up"),
            not_after: at("not_after"),
        };
        (row.not_before(StoreTime::from_nanos(0)), row)
    }

    /// The row after a commit at the time `at`.
    pub fn committed(mut self, at: StoreTime) -> Row {
        for stamp in [&mut self.heartbeat, &mut self.token].into_iter().flatten() {
            *stamp = At::Time(stamp.or(at));
        }
        self
    }

    /// Whether the row is that of a lock, and not only a name. Other programs may have rows of their own in the table,
    /// and spindle has some while its nodes contend. Rows of leasehold have a format, and rows of locks of spindle have
    /// a writer.
    pub fn is_lock(&self) -> bool {
        self.format.is_some() || self.writer.is_some()
    }

    /// Whether a holder in the row has this lock id, whatever else is in the row.
    pub fn names(&self, lock_id: &str) -> bool {
        let shared = self.holders.as_ref().and_then(Json::as_array).into_iter().flatten();
        let mut shared = shared.filter_map(|holder| holder.get("lock_id")?.as_str());
        self.lock_id.as_deref() == Some(lock_id) || shared.any(|id| id == lock_id)
    }

    /// Whether our columns count.
    fn is_ours(&self) -> bool {
        self.heartbeat.is_some() && self.names_us() && !self.is_late()
    }

    /// Whether a client of leasehold took the lock last. A node of spindle that takes it over changes the writer, and
    /// leaves our columns as they are.
    fn names_us(&self) -> bool {
        self.grant_id.is_some() && self.grant_id == self.writer
    }

    /// Whether our last write to extend the lease came so late that a node could have found the lease over.
    fn is_late(&self) -> bool {
        let late = |(by, at): (At, At)| at.time() >= by.time();
        self.names_us() && self.not_after.zip(self.heartbeat).is_some_and(late)
    }

    /// The same row, which no reader accepts if its commit comes at the time `by` or later. The heartbeat becomes the
    /// time of the commit, and the lease is counted from `now`, the time of the read. The commit never comes before
    /// `now`; if it comes at `now`, the end stays where it is.
    pub fn unless_later(mut self, by: Option<StoreTime>, now: StoreTime) -> Row {
        let Some(by) = by else { return self };
        if let (Some(At::Time(from)), Some(ms), None) = (self.heartbeat, self.lease_ms, &self.holders) {
            self.lease_ms = lease_ms(now, End::At(shifted(from, ms.saturating_mul(1_000_000))));
        }
        Row { heartbeat: Some(At::Commit), not_after: Some(At::Time(by)), ..self }
    }

    /// The record in it. `foreign_lease`: how long after its heartbeat a row of spindle is respected.
    pub fn decode(&self, key: &str, foreign_lease: Duration) -> Result<LockRecord, String> {
        let newer = || LockRecord::of_newer(key, self.format.as_deref());
        self.decode_known(key, foreign_lease).or_else(|wrong| newer().ok_or(wrong))
    }

    fn decode_known(&self, key: &str, foreign_lease: Duration) -> Result<LockRecord, String> {
        let (mut exclusive, mut shared) = (None, Vec::new());
        match &self.holders {
            _ if !self.is_ours() => exclusive = self.foreign(foreign_lease),
            Some(holders) => {
                shared = shared_holders::decode(holders).ok_or("its holders can't be read")?;
                // An exclusive holder is stored without a list, so an empty list is an error.
                if shared.is_empty() {
                    return Err("its list of holders is empty".to_owned());
                }
            }
            None => exclusive = Some(self.exclusive()?),
        }
        Ok(LockRecord {
            key: key.to_owned(),
            kind: Kind::parse(self.kind.as_deref())?,
            token: self.token.map_or(0, |at| micros(at.time())),
            exclusive,
            shared,
            pins: self.pins.iter().flatten().cloned().collect(),
            given_up: BTreeSet::new(),
            gave_up_at: 0,
            version: self.version(),
            format: parse_format(self.format.as_deref())?,
        })
    }

    /// A hash of all columns, since no column counts the writes: two rows with the same columns are the same to a swap.
    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        (hasher.finish() >> 1).max(1)
    }

    fn exclusive(&self) -> Result<Holder, String> {
        let missing = |column| format!("it has a holder, but no {column}");
        let heartbeat = self.heartbeat.ok_or_else(|| missing("heartbeat"))?.time();
        let token = self.token.ok_or_else(|| missing("token"))?.time();
        let until = |ms: i64| End::At(shifted(heartbeat, ms.saturating_mul(1_000_000)));
        Ok(Holder {
            grant: GrantId::from_text(self.grant_id.clone().ok_or_else(|| missing("grant_id"))?),
            lock_id: self.lock_id.clone().ok_or_else(|| missing("lock_id"))?,
            labels: Labels {
                owner: self.owner.clone().unwrap_or_default(),
                host: self.host.clone(),
                comment: self.comment.clone(),
            },
            token: micros(token),
            created: token,
            renewed: Some(heartbeat).filter(|at| *at > token),
            until: self.lease_ms.map_or(End::Never, until),
        })
    }

    /// The holder that spindle wrote. If our row came too late, the node that may be about to write it: such a node may
    /// be stopped, and is respected for two leases, as where its row of contention is seen. That row is not looked for
    /// here: its name depends on a token that may have changed since.
    fn foreign(&self, lease: Duration) -> Option<Holder> {
        let heartbeat = self.heartbeat?.time();
        let token = self.token.map_or(heartbeat, At::time);
        let writer = || self.writer.clone().unwrap_or_default();
        Some(Holder {
            grant: GrantId::from_text(""),
            lock_id: String::new(),
            labels: Labels::of(if self.is_late() { taking_over() } else { writer() }),
            token: micros(token),
            created: token,
            renewed: Some(heartbeat).filter(|at| *at > token),
            until: End::At(heartbeat.plus(if self.is_late() { 2 * lease } else { lease })),
        })
    }

    /// This row with the record `new` in it instead of `old`.
    pub fn next(&self, old: &LockRecord, new: &LockRecord, stamps: Stamps) -> Row {
        let mut row = self.clone();
        row.kind = Some(new.kind.as_str().to_owned());
        row.format = Some(format!("{}.{}", new.format.0, new.format.1));
        row.pins = (!new.pins.is_empty()).then(|| new.pins.iter().cloned().collect());
        // Only a grant raises the token.
        let is_granted = new.token != old.token;
        let stamp = |at: StoreTime| match stamps {
            Stamps::Commits if is_granted => Some(At::Commit),
            _ => Some(At::Time(at)),
        };
        if is_granted {
            row.token = Some(At::Time(of_micros(new.token)));
        }
        if let Some(grant) = new.given_up.difference(&old.given_up).last() {
            row.given_up = Some(grant.as_str().to_owned());
            // The row of a lock that was never granted gets a token, too: nodes may know the row by now, and a purge in
            // a mixed fleet keeps the rows that have a token.
            if !old.exists() {
                row.token = Some(At::Commit);
            }
        }
        if new.exclusive == old.exclusive && new.shared == old.shared {
            return row;
        }
        row.not_after = None;
        if let Some(holder) = &new.exclusive {
            let from = holder.renewed.unwrap_or(holder.created);
            if is_granted {
                row.token = stamp(of_micros(holder.token));
            }
            row.heartbeat = stamp(from);
            (row.writer, row.grant_id) =
                (Some(holder.grant.as_str().to_owned()), Some(holder.grant.as_str().to_owned()));
            row.lock_id = Some(holder.lock_id.clone());
            row.lease_ms = lease_ms(from, holder.until);
            row.owner = Some(holder.labels.owner.clone());
            (row.host, row.comment) = (holder.labels.host.clone(), holder.labels.comment.clone());
            row.holders = None;
            return row;
        }
        (row.lock_id, row.owner, row.host, row.comment) = (None, None, None, None);
        if new.shared.is_empty() {
            (row.heartbeat, row.grant_id, row.holders) = (None, None, None);
            return row;
        }
        row.lock_id = Some(SEE_HOLDERS.to_owned());
        let latest = |holder: &Holder| holder.renewed.unwrap_or(holder.created);
        row.heartbeat = new.shared.iter().map(latest).max().and_then(stamp);
        if let Some(joined) = new.shared.last().filter(|_| is_granted) {
            row.writer = Some(joined.grant.as_str().to_owned());
        }
        row.grant_id = row.writer.clone();
        row.lease_ms = Some(0);
        row.holders = Some(shared_holders::encode(&new.shared, self.holders.as_ref()));
        row
    }

    /// Writes the columns in which this row differs from `old`; of a new row all columns, so that no default fills
    /// them. If it differs in none, `format` is written, to make others abort: the service detects conflicts by the
    /// cells that transactions have read.
    pub fn mutation(&self, table: &str, key: &str, old: Option<&Row>) -> Mutation {
        // If another client inserts a new row meanwhile, the commit must be begun anew, and not be refused: so a new
        // row is inserted or updated. An existing row is only updated: a fenced transaction has read that the row
        // exists, and a column of the user's own may require a value.
        let mut builder = match old {
            None => Mutation::new_insert_or_update_builder(table),
            Some(_) => Mutation::new_update_builder(table),
        }
        .set("name")
        .to(key);
        let (new, old) = (self.values(), old.map(Row::values));
        let is_as_it_was = old.as_ref().is_some_and(|old| *old == new);
        for (at, ((column, _), new)) in COLUMNS.into_iter().zip(new).enumerate() {
            // The placeholder for the commit's timestamp is the same text as before, but another time.
            let is_same = old.as_ref().is_some_and(|old| old[at] == new);
            if !is_same || new.as_str() == Some(COMMIT_TIMESTAMP) || (is_as_it_was && column == "format") {
                builder = builder.set(column).to(new);
            }
        }
        builder.build()
    }

    /// In the order of `COLUMNS`.
    fn values(&self) -> [Value; 15] {
        let at = |at: Option<At>| Value::from(at.map(At::value));
        [
            at(self.heartbeat),
            at(self.token),
            Value::from(self.writer.clone()),
            Value::from(self.grant_id.clone()),
            Value::from(self.lock_id.clone()),
            Value::from(self.lease_ms),
            Value::from(self.owner.clone()),
            Value::from(self.host.clone()),
            Value::from(self.comment.clone()),
            Value::from(self.holders.as_ref().map(Json::to_string)),
            Value::from(self.kind.clone()),
            Value::from(self.pins.clone()),
            Value::from(self.format.clone()),
            Value::from(self.given_up.clone()),
            at(self.not_after),
        ]
    }
}

impl At {
    pub fn time(self) -> StoreTime {
        self.or(StoreTime::from_nanos(0))
    }

    fn or(self, commit: StoreTime) -> StoreTime {
        match self {
            At::Time(at) => at,
            At::Commit => commit,
        }
    }

    pub fn value(self) -> Value {
        match self {
            At::Commit => Value::from(COMMIT_TIMESTAMP),
            At::Time(at) => {
                let (seconds, nanos) = (at.as_nanos().div_euclid(NANOS), at.as_nanos().rem_euclid(NANOS));
                Value::from(Timestamp::clamp(seconds, i32::try_from(nanos).unwrap_or(0)))
            }
        }
    }
}

fn get<T: FromValue>(answer: &Answer, column: usize) -> Result<Option<T>, String> {
    answer.get(column).map_err(|error| error.to_string())
}

/// In nanoseconds since 1970.
pub(super) fn time(at: &Timestamp) -> StoreTime {
    StoreTime::from_nanos(at.seconds().saturating_mul(NANOS).saturating_add(i64::from(at.nanos())))
}

/// Rounds down to the microsecond, the unit of tokens.
fn floor(at: StoreTime) -> StoreTime {
    // Times before the year 1678 do not fit into nanoseconds anyway.
    StoreTime::from_nanos(at.as_nanos().div_euclid(1_000).saturating_mul(1_000))
}

pub(super) fn micros(at: StoreTime) -> u64 {
    u64::try_from(at.as_nanos().div_euclid(1_000)).unwrap_or(0)
}

fn of_micros(micros: u64) -> StoreTime {
    StoreTime::from_nanos(i64::try_from(micros).unwrap_or(i64::MAX).saturating_mul(1_000))
}

fn shifted(at: StoreTime, nanos: i64) -> StoreTime {
    StoreTime::from_nanos(at.as_nanos().saturating_add(nanos))
}

/// The time between them in milliseconds, rounded up; it may be negative.
fn lease_ms(from: StoreTime, until: End) -> Option<i64> {
    const MILLI: i64 = 1_000_000;
    match until {
        End::Never => None,
        End::At(until) => {
            let nanos = until.as_nanos().saturating_sub(from.as_nanos());
            Some(nanos.div_euclid(MILLI) + i64::from(nanos.rem_euclid(MILLI) > 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service locks cells: a write of the key alone would conflict with nobody.
    #[test]
    fn what_is_written_as_it_was_writes_a_cell_that_all_have_read() {
        let row = Row { format: Some("1.0".to_owned()), ..Row::default() };
        let written = |row: &Row, old: &Row| format!("{:?}", row.mutation("t", "k", Some(old)));
        assert!(written(&row, &row).contains(r#""format""#), "{}", written(&row, &row));
        let pinned = Row { pins: Some(vec!["a".to_owned()]), ..row.clone() };
        assert!(!written(&pinned, &row).contains(r#""format""#), "{}", written(&pinned, &row));
    }
}
