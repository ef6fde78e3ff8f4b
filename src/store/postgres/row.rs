//! A row of the table as the record that the pure rules see, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::{Value as Json, json};
use tokio_postgres::Row as Answer;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::lease::record::parse_format;
use crate::lease::{End, GrantId, Holder, Kind, Labels, LockRecord, StoreTime, Times};
use crate::store::{Seen, shared_holders};

/// The columns, in the order in which they are read, and their types and constraints. What is indexed has the collation
/// "C", since an upgrade of the operating system may change the order of any other, and the index then misses rows.
pub(super) const COLUMNS: [(&str, &str); 17] = [
    ("key", "text COLLATE \"C\" PRIMARY KEY"),
    ("kind", "text NOT NULL"),
    ("fence", "bigint NOT NULL"),
    ("grant_id", "text COLLATE \"C\""),
    ("lock_id", "text COLLATE \"C\""),
    ("owner", "text"),
    ("host", "text"),
    ("comment", "text"),
    ("token", "bigint"),
    ("created", "timestamptz"),
    ("renewed", "timestamptz"),
    ("until", "timestamptz"),
    ("shared", "jsonb"),
    ("pins", "text[]"),
    ("given_up", "jsonb"),
    ("version", "bigint NOT NULL"),
    ("format", "text NOT NULL"),
];

/// Microseconds from 1970 to 2000, where the server begins to count.
const EPOCH: i64 = 946_684_800_000_000;
/// A copy of an acquire does nothing once this much time has passed since it was sent, by the server's clock.
pub(super) const LATE: Duration = Duration::from_secs(10);
/// How long a statement may wait for its row; then the server ends it.
pub(super) const STATEMENT: Duration = Duration::from_secs(10);
/// How long an acquisition that was given up is remembered. A copy of it begins at most [`LATE`] after it was sent, and
/// may wait for its row for [`STATEMENT`]. A swap counts the time from when it read the row, and may itself come
/// [`LATE`] after that.
pub(super) const REMEMBERED: Duration = Duration::from_secs(30);
const _: () = assert!(REMEMBERED.as_secs() >= LATE.as_secs() + STATEMENT.as_secs() + LATE.as_secs());

/// A `timestamptz` in microseconds since 1970; the greatest number is `infinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(pub i64);

impl Micros {
    const INFINITY: Micros = Micros(i64::MAX);

    pub fn of(at: StoreTime) -> Micros {
        Micros(at.as_nanos().div_euclid(1_000))
    }

    pub fn plus(self, by: Duration) -> Micros {
        Micros(self.0.saturating_add(micros(by)))
    }

    pub fn time(self) -> StoreTime {
        StoreTime::from_nanos(self.0.saturating_mul(1_000))
    }

    pub fn stamp(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }

    /// Rounds up: an end is never stored earlier than it is.
    pub fn end(end: End) -> Micros {
        match end {
            End::Never => Micros::INFINITY,
            End::At(at) => Micros::of(StoreTime::from_nanos(at.as_nanos().saturating_add(999))),
        }
    }

    fn as_end(self) -> End {
        if self == Micros::INFINITY { End::Never } else { End::At(self.time()) }
    }
}

/// In microseconds, as the server counts, and rounded up. More than 250,000 years are beyond what the server can store.
pub(super) fn micros(of: Duration) -> i64 {
    i64::try_from(of.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX).min(8_000_000_000_000_000_000)
}

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(match i64::from_be_bytes(raw.try_into()?) {
            i64::MAX => Micros::INFINITY,
            micros => Micros(micros.saturating_add(EPOCH)),
        })
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let raw = if *self == Micros::INFINITY { i64::MAX } else { self.0.saturating_sub(EPOCH) };
        out.extend_from_slice(&raw.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

/// What a swap compares, and what the record does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Native {
    /// The version of the row; `None` where there is none.
    pub version: Option<i64>,
    /// The acquisitions that were given up, and until when each is remembered, in microseconds since 1970.
    pub given_up: BTreeMap<String, i64>,
    /// The shared holders as they were stored.
    pub shared: Option<Json>,
}

/// A row, or that there is none, at this time.
#[derive(Debug)]
pub(super) struct Found {
    /// The statement wrote it.
    pub written: bool,
    pub now: Micros,
    pub record: LockRecord,
    pub native: Native,
}

impl Found {
    pub fn times(&self) -> Times {
        Times::without_grace(self.now.time(), self.now.stamp())
    }

    pub fn seen(self) -> Seen {
        let times = self.times();
        Seen::new(self.record, times, Some(Box::new(self.native)))
    }

    /// From an answer that begins with whether it was written, the time, and [`COLUMNS`]. An error has the key, too.
    pub fn read(answer: &Answer, asked: Option<&str>) -> Result<Found, (String, String)> {
        let key = get::<Option<String>>(answer, 2).ok().flatten();
        let name = key.as_deref().or(asked).unwrap_or_default().to_owned();
        Found::decode(answer, key, &name).map_err(|wrong| (name, wrong))
    }

    fn decode(answer: &impl Columns, key: Option<String>, name: &str) -> Result<Found, String> {
        let (written, now) = (get(answer, 0)?, get(answer, 1)?);
        if key.is_none() {
            return Ok(Found { written, now, record: LockRecord::missing(name), native: Native::default() });
        }
        let (record, native) = Found::decode_known(answer, name).or_else(|wrong| {
            let format: Option<String> = get(answer, 18).ok();
            LockRecord::of_newer(name, format.as_deref()).map(|newer| (newer, Native::default())).ok_or(wrong)
        })?;
        Ok(Found { written, now, record, native })
    }

    fn decode_known(answer: &impl Columns, name: &str) -> Result<(LockRecord, Native), String> {
        let kind: String = get(answer, 3)?;
        let fence: i64 = get(answer, 4)?;
        let grant: Option<String> = get(answer, 5)?;
        let shared = get::<Option<String>>(answer, 14)?.map(|text| decode_shared(&text)).transpose()?;
        let (shared, stored) = shared.unzip();
        let pins: Option<Vec<String>> = get(answer, 15)?;
        let given_up: Option<String> = get(answer, 16)?;
        let version: i64 = get(answer, 17)?;
        let format: String = get(answer, 18)?;
        let exclusive = match grant {
            None => None,
            Some(grant) => Some(Holder {
                grant: GrantId::from_text(grant),
                lock_id: get::<Option<_>>(answer, 6)?.ok_or("its holder has no lock_id")?,
                labels: Labels {
                    owner: get::<Option<_>>(answer, 7)?.ok_or("its holder has no owner")?,
                    host: get(answer, 8)?,
                    comment: get(answer, 9)?,
                },
                token: token(get::<Option<_>>(answer, 10)?.ok_or("its holder has no token")?)?,
                created: get::<Option<Micros>>(answer, 11)?.ok_or("its holder has no created")?.time(),
                renewed: get::<Option<Micros>>(answer, 12)?.map(Micros::time),
                until: get::<Option<Micros>>(answer, 13)?.ok_or("its holder has no end")?.as_end(),
            }),
        };
        let given_up = given_up.as_deref().map_or(Ok(BTreeMap::new()), decode_given_up)?;
        let record = LockRecord {
            key: name.to_owned(),
            kind: Kind::parse(Some(&kind))?,
            token: token(fence)?,
            exclusive,
            shared: shared.unwrap_or_default(),
            pins: pins.into_iter().flatten().collect(),
            given_up: given_up.keys().cloned().map(GrantId::from_text).collect(),
            gave_up_at: given_up.values().max().map_or(0, |at| u64::try_from(*at).unwrap_or(0)),
            version: u64::try_from(version).ok().filter(|version| *version > 0).ok_or("its version is below 1")?,
            format: parse_format(Some(&format))?,
        };
        Ok((record, Native { version: Some(version), given_up, shared: stored }))
    }
}

impl Native {
    /// The shared holders that take the place of those that were read, null where there are none.
    pub fn next_shared(&self, new: &[Holder]) -> Option<String> {
        (!new.is_empty()).then(|| shared_holders::encode(new, self.shared.as_ref()).to_string())
    }

    /// What a write of this record leaves in `given_up`: those that are new are remembered for a while, and what is past
    /// is forgotten.
    pub fn next_given_up(&self, new: &BTreeSet<GrantId>, now: Micros) -> Option<String> {
        let until = |grant: &GrantId| self.given_up.get(grant.as_str()).copied().unwrap_or(now.plus(REMEMBERED).0);
        let all = new.iter().map(|grant| (grant.as_str(), until(grant))).filter(|(_, until)| *until > now.0);
        let all: serde_json::Map<String, Json> = all.map(|(grant, until)| (grant.to_owned(), json!(until))).collect();
        (!all.is_empty()).then(|| Json::Object(all).to_string())
    }
}

/// An answer of the server, or what a test puts in its place.
trait Columns {
    /// `None` where it is of another type.
    fn column<'a, T: FromSql<'a>>(&'a self, at: usize) -> Option<T>;
}

impl Columns for Answer {
    fn column<'a, T: FromSql<'a>>(&'a self, at: usize) -> Option<T> {
        self.try_get(at).ok()
    }
}

fn get<'a, T: FromSql<'a>>(answer: &'a impl Columns, column: usize) -> Result<T, String> {
    let name = || column.checked_sub(2).and_then(|at| COLUMNS.get(at)).map_or("time", |(name, _)| *name);
    answer.column(column).ok_or_else(|| format!("its {} is of another type", name()))
}

/// For tests that try whatever a table may hold: the columns as a JSON list, in the order in which they are read and as
/// the server sends them. A number is a `bigint` or a `timestamptz`, a list is one of texts, and the values of an
/// object are raw bytes.
#[cfg(feature = "_internals")]
pub(super) fn made_up(columns: &Json) -> Result<LockRecord, String> {
    struct MadeUp(Vec<Option<BytesMut>>);

    impl Columns for MadeUp {
        fn column<'a, T: FromSql<'a>>(&'a self, at: usize) -> Option<T> {
            let of = [Type::TEXT, Type::INT8, Type::TIMESTAMPTZ, Type::TEXT_ARRAY, Type::BOOL];
            let of = of.iter().find(|of| T::accepts(of))?;
            T::from_sql_nullable(of, self.0.get(at)?.as_deref()).ok()
        }
    }

    let raw = |value: &Json| {
        let mut out = BytesMut::new();
        match value {
            Json::Null => return None,
            Json::Bool(value) => out.extend([u8::from(*value)]),
            Json::Number(number) => out.extend(number.as_i64().unwrap_or_default().to_be_bytes()),
            Json::String(text) => out.extend(text.bytes()),
            Json::Array(texts) => {
                let texts: Vec<Option<&str>> = texts.iter().map(Json::as_str).collect();
                texts.to_sql(&Type::TEXT_ARRAY, &mut out).ok()?;
            }
            Json::Object(bytes) => out.extend(bytes.values().map(|byte| byte.as_u64().unwrap_or_default() as u8)),
        }
        Some(out)
    };
    let answer = MadeUp(columns.as_array().into_iter().flatten().map(raw).collect());
    let key = get::<Option<String>>(&answer, 2)?;
    let found = Found::decode(&answer, key, "k")?;
    // Also makes what a write of this record would send.
    let _ = (
        found.native.next_shared(&found.record.shared),
        found.record.exclusive.as_ref().map(|holder| Micros::end(holder.until)),
    );
    let _ = found.native.next_given_up(&found.record.given_up, found.now);
    Ok(found.record)
}

fn token(of: i64) -> Result<u64, String> {
    u64::try_from(of).map_err(|_| "its token is below zero".to_owned())
}

/// As a number of the server, which has a sign.
pub(super) fn number(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

fn decode_given_up(text: &str) -> Result<BTreeMap<String, i64>, String> {
    serde_json::from_str(text).map_err(|_| "its given_up is no set of times".to_owned())
}

/// The shared holders, and the array as it is stored.
fn decode_shared(text: &str) -> Result<(Vec<Holder>, Json), String> {
    let all = serde_json::from_str(text).ok().and_then(|all| Some((shared_holders::decode(&all)?, all)));
    all.ok_or_else(|| "its shared is no array of holders".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_is_asked_for_shorter_than_it_is() {
        let told = [0, 1, 1_000, 1_001].map(|nanos| micros(Duration::from_nanos(nanos)));
        assert_eq!((told, micros(Duration::MAX)), ([0, 1, 1, 2], 8_000_000_000_000_000_000));
    }
}
