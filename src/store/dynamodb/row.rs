//! A row as the record that the pure rules see, and back.
//!
//! | attribute | type | |
//! |---|---|---|
//! | `key` (or `partition_key=`) | S | partition key |
//! | the name in `sort_key=NAME:VALUE` | S | only with that option: the sort key, with the same value in each row; each value is a store of its own |
//! | `leasedUntil` | S | RFC 3339, UTC, nine digits: the latest end of all holders; 1970 when released, year 9999 without end |
//! | `owner`, `createdAt` | S | of the exclusive holder, as dynamodb-lock-go has them |
//! | `grantId`, `lockId`, `host`, `comment`, `renewedAt` | S | of the exclusive holder |
//! | `shared` | M | grant id -> the same attributes of each shared holder, and its `token` |
//! | `fence` | N | the highest token ever issued |
//! | `version` | N | raised by every write; starts at the time, so that a row made anew has another one |
//! | `givenUp` | SS | grant ids that must never be granted, since a copy of their acquire may be on its way |
//! | `givenUpAt` | N | when an acquisition that had not been granted was last given up; see below |
//! | `floor` | N | every later token is above this |
//! | `ttl` | N | in a mixed fleet: two days after the end, in seconds since 1970 |
//! | `kind`, `pins`, `format` | S, SS, S | |
//! | `graceMicros` | N | only in the row of key U+0001 `time`, which no lock has: the largest grace of all clients |
//! | `leastGraceMicros` | N | there, too, once a larger one replaced a smaller: the least that may still be in use |
//!
//! `givenUpAt` is made like a token, from the latest that the time may be. A purge reads it before it deletes a row,
//! and deletes nothing by a time in doubt.

use std::collections::{BTreeSet, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use jiff::Timestamp;

use super::error::DynamodbError;
use super::estimate::Moment;
use super::expr::{Item, number, text};
use super::{AHEAD, MANY_GIVEN_UP, mixed};
use crate::lease::record::parse_format;
use crate::lease::{End, GrantId, Holder, Kind, Labels, LockRecord, StoreTime, Times};
use crate::store::Seen;

/// The end in a row whose lock was released.
pub(super) const PAST: &str = "1970-01-01T00:00:00.000000000Z";
/// The format in a row that this version makes.
pub(super) const FORMAT: &str = "1.0";
/// Every attribute that a row may have.
pub(super) const ATTRIBUTES: &str = "graceMicros leastGraceMicros floor givenUpAt owner leasedUntil createdAt ttl \
     grantId lockId fence host comment renewedAt shared version givenUp kind pins format token";
/// The attributes of an exclusive holder, except its grant id and its end.
pub(super) const OF_HOLDER: [&str; 6] = ["lockId", "owner", "host", "comment", "createdAt", "renewedAt"];
/// The attributes that a row without an exclusive holder lacks.
pub(super) const NO_HOLDER: &[&str] = &["#grantId", "#lockId", "#owner", "#host", "#comment", "#renewedAt"];
/// The size in bytes up to which a shared holder may join. The service allows 400 KB, and others may still have to give
/// up.
pub(super) const MOST: usize = 399 * 1_024;
/// The end of a lease that never ends.
pub(super) const NEVER: &str = "9999-12-31T23:59:59.999999999Z";

/// Nine fraction digits and `Z`, always: ends are compared as text.
pub(super) fn time(at: StoreTime) -> String {
    match Timestamp::from_nanosecond(i128::from(at.as_nanos())) {
        Ok(at) => format!("{at:.9}"),
        // No `StoreTime` is beyond what jiff knows.
        Err(_) => NEVER.to_owned(),
    }
}

pub(super) fn end(end: End) -> String {
    match end {
        End::At(at) => time(at),
        End::Never => NEVER.to_owned(),
    }
}

pub(super) fn parse_end(text: &str) -> Result<End, String> {
    if text.starts_with("9999-") {
        return Ok(End::Never);
    }
    let at: Timestamp = text.parse().map_err(|_| format!("{text:?} is not a time"))?;
    let nanos = at.as_nanosecond();
    // Of the times beyond the range, dynamodb-lock-go writes the year 1 if it is given no end.
    let beyond = if nanos < 0 { End::At(StoreTime::from_nanos(i64::MIN)) } else { End::Never };
    Ok(i64::try_from(nanos).map_or(beyond, |nanos| End::At(StoreTime::from_nanos(nanos))))
}

fn parse_time(text: &str) -> Result<StoreTime, String> {
    match parse_end(text)? {
        End::At(at) => Ok(at),
        End::Never => Ok(StoreTime::from_nanos(i64::MAX)),
    }
}

/// A row and the record in it.
#[derive(Debug)]
pub(super) struct DecodedRow {
    pub record: LockRecord,
    pub row: Option<Item>,
}

impl DecodedRow {
    pub fn new(key: &str, row: Option<Item>) -> Result<DecodedRow, DynamodbError> {
        let record = match &row {
            Some(row) => decode(key, row).map_err(DynamodbError::Damaged)?,
            None => LockRecord::missing(key),
        };
        Ok(DecodedRow { record, row })
    }

    pub fn seen(self, moment: &Moment) -> Seen {
        let native = SeenRow { row: self.row, is_doubted: moment.is_doubted() };
        let times = Times { now: moment.upper_bound(), ..moment.times() };
        Seen::new(self.record, times, Some(Box::new(native)))
    }

    /// Whether a holder in the row has this lock id, even if the rest of the row can't be read.
    pub fn names(&self, lock_id: &str) -> bool {
        let has = |of: &Item| get_text(of, "lockId") == Ok(Some(lock_id));
        let shares = |row: &Item| {
            map(row, "shared").ok().flatten().is_some_and(|all| all.values().any(|of| of.as_m().is_ok_and(has)))
        };
        self.row.as_ref().is_some_and(|row| has(row) || shares(row))
    }

    /// Every later grant of this key has a token above this.
    pub fn floor(&self) -> u64 {
        let floor = self.row.as_ref().and_then(|row| get_number(row, "floor").ok()?);
        floor.unwrap_or(0)
    }

    /// The times by which a grant is decided. They make its token higher than the floor.
    pub fn times(&self, moment: &Moment) -> Times {
        let times = moment.times();
        Times { stamp: times.stamp.max(self.floor().saturating_add(1)), ..times }
    }

    /// Whether there are so many given-up grant ids that a floor must replace them.
    pub fn is_crowded(&self) -> bool {
        self.record.given_up.len() > MANY_GIVEN_UP
    }

    /// A number above every token that was requested until now. A copy of an acquire that compares `fence` requests one
    /// more than that, unless its client's time is higher.
    pub fn above_all(&self, moment: &Moment) -> u64 {
        let stored = self.record.token.max(self.floor()).saturating_add(1);
        moment.late_stamp(AHEAD).max(stored)
    }

    /// Whether the row's own end is later than this one.
    pub fn row_ends_after(&self, until: End) -> bool {
        let latest = self.row.as_ref().and_then(|row| row.get("leasedUntil")?.as_s().ok());
        latest.is_some_and(|latest| *latest > end(until))
    }

    /// How large the row is once this shared holder has joined, those that are `gone` have left, and all have renewed: a
    /// first heartbeat adds its time.
    pub fn size_with(&self, holder: &Holder, gone: &[&Holder]) -> usize {
        let mut row = self.row.clone().unwrap_or_default();
        if let Some(AttributeValue::M(shared)) = row.get_mut("shared") {
            shared.insert(holder.grant.as_str().to_owned(), entry(holder, None));
            gone.iter().for_each(|gone| drop(shared.remove(gone.grant.as_str())));
            for entry in shared.values_mut() {
                if let AttributeValue::M(entry) = entry {
                    entry.entry("renewedAt".to_owned()).or_insert_with(|| text(PAST));
                }
            }
        }
        size(&row)
    }

    /// The end of a shared holder, exactly as it is stored.
    pub fn shared_end(&self, grant: &GrantId) -> Option<String> {
        let shared = self.row.as_ref()?.get("shared")?.as_m().ok()?;
        shared.get(grant.as_str())?.as_m().ok()?.get("leasedUntil")?.as_s().ok().cloned()
    }
}

/// The native part of what was read: the row as the service has it.
#[derive(Debug)]
pub(super) struct SeenRow {
    pub row: Option<Item>,
    /// The time was in doubt when it was read.
    pub is_doubted: bool,
}

/// The record of a row. An error says what is wrong with it.
fn decode(key: &str, item: &Item) -> Result<LockRecord, String> {
    let format = || get_text(item, "format").ok().flatten();
    decode_known(key, item).or_else(|wrong| LockRecord::of_newer(key, format()).ok_or(wrong))
}

fn decode_known(key: &str, item: &Item) -> Result<LockRecord, String> {
    if !is_lock(item) {
        return Err("it has no leasedUntil, so it is no lock".to_owned());
    }
    if item.contains_key("grantId") || item.contains_key("shared") {
        check_held(item)?;
    }
    let token = get_number(item, "fence")?;
    let mut shared = Vec::new();
    for (grant, entry) in map(item, "shared")?.into_iter().flatten() {
        let entry = entry.as_m().map_err(|_| "an entry of its shared holders is no map".to_owned())?;
        shared.push(holder(GrantId::from_text(grant), entry, get_number(entry, "token")?.unwrap_or(0))?);
    }
    // In the order of their grants.
    shared.sort_by_key(|holder| holder.token);
    let grant = get_text(item, "grantId")?;
    let exclusive = match grant {
        Some(grant) => {
            let mut holder = holder(GrantId::from_text(grant), item, token.unwrap_or(0))?;
            holder.labels.owner = mixed::label(holder.labels.owner, &holder.grant);
            Some(holder)
        }
        None if is_foreign(item)? => Some(holder(GrantId::from_text(""), item, 0)?),
        None => None,
    };
    let kind = Kind::parse(get_text(item, "kind")?)?;
    // A row of dynamodb-lock-go has no version.
    let version = get_number(item, "version")?;
    // A row without a token was made when an acquisition was given up or a name was pinned. A second copy of that
    // request, whose condition is that the row is missing, may be on its way. The version begins with the time, so it
    // says when the row was made.
    let began = version.filter(|_| token.is_none());
    let gave_up_at = get_number(item, "givenUpAt")?.max(get_number(item, "floor")?).or(began);
    Ok(LockRecord {
        key: key.to_owned(),
        kind,
        token: token.unwrap_or(0),
        exclusive,
        shared,
        pins: strings(item, "pins")?.map(str::to_owned).collect(),
        given_up: strings(item, "givenUp")?.map(GrantId::from_text).collect(),
        gave_up_at: gave_up_at.unwrap_or(0),
        version: version.unwrap_or(1).max(1),
        format: parse_format(get_text(item, "format")?)?,
    })
}

/// Checks, in a row that is held, what conditions compare as text and what updates raise: with anything else no write
/// would do what the rules say.
fn check_held(item: &Item) -> Result<(), String> {
    if let Some(name) = ["fence", "version"].into_iter().find(|name| !item.contains_key(*name)) {
        return Err(format!("it is held, but has no {name}"));
    }
    let entries = map(item, "shared")?.into_iter().flatten().filter_map(|(_, entry)| entry.as_m().ok());
    for of in entries.chain([item]) {
        let until = get_text(of, "leasedUntil")?.unwrap_or_default();
        if end(parse_end(until)?) != until {
            return Err(format!("its leasedUntil {until:?} is not written as {PAST:?} is"));
        }
    }
    Ok(())
}

/// A table may hold other rows, too. The row of a lock always has `leasedUntil`.
pub(super) fn is_lock(item: &Item) -> bool {
    item.contains_key("leasedUntil")
}

/// Whether dynamodb-lock-go wrote this row: then it has no token of ours, and an end that is not that of a released
/// row.
fn is_foreign(item: &Item) -> Result<bool, String> {
    let ours = item.contains_key("fence") || item.contains_key("shared");
    Ok(!ours && get_text(item, "leasedUntil")?.is_some_and(|until| until != PAST))
}

fn holder(grant: GrantId, of: &Item, token: u64) -> Result<Holder, String> {
    let until = parse_end(get_text(of, "leasedUntil")?.unwrap_or(PAST))?;
    Ok(Holder {
        grant,
        lock_id: get_text(of, "lockId")?.unwrap_or_default().to_owned(),
        labels: Labels {
            owner: get_text(of, "owner")?.unwrap_or_default().to_owned(),
            host: get_text(of, "host")?.map(str::to_owned),
            comment: get_text(of, "comment")?.map(str::to_owned),
        },
        token,
        created: get_text(of, "createdAt")?.map_or(Ok(StoreTime::from_nanos(0)), parse_time)?,
        renewed: get_text(of, "renewedAt")?.map(parse_time).transpose()?,
        until,
    })
}

/// The optional labels of a holder.
pub(super) fn optional(labels: &Labels) -> [(&'static str, Option<AttributeValue>); 2] {
    [("host", labels.host.as_ref().map(text)), ("comment", labels.comment.as_ref().map(text))]
}

/// The attributes of a holder; `None` for those that have no value.
pub(super) fn fields(holder: &Holder) -> Vec<(&'static str, Option<AttributeValue>)> {
    let mut fields = vec![
        ("lockId", Some(text(&holder.lock_id))),
        ("owner", Some(text(&holder.labels.owner))),
        ("createdAt", Some(text(time(holder.created)))),
        ("renewedAt", holder.renewed.map(|at| text(time(at)))),
        ("leasedUntil", Some(text(end(holder.until)))),
    ];
    fields.extend(optional(&holder.labels));
    fields
}

/// A shared holder's entry. Other attributes in `stored` stay.
pub(super) fn entry(holder: &Holder, stored: Option<&AttributeValue>) -> AttributeValue {
    let mut entry = stored.and_then(|stored| stored.as_m().ok()).cloned().unwrap_or_default();
    for (name, value) in fields(holder) {
        match value {
            Some(value) => entry.insert(name.to_owned(), value),
            None => entry.remove(name),
        };
    }
    entry.insert("token".to_owned(), number(holder.token));
    AttributeValue::M(entry)
}

/// The map of the shared holders, written over the one in the row; `None` if there are none.
pub(super) fn shared(record: &LockRecord, item: Option<&Item>) -> Option<AttributeValue> {
    let stored = item.and_then(|item| item.get("shared")?.as_m().ok());
    let entries: HashMap<_, _> = record
        .shared
        .iter()
        .map(|holder| {
            let grant = holder.grant.as_str();
            (grant.to_owned(), entry(holder, stored.and_then(|stored| stored.get(grant))))
        })
        .collect();
    (!entries.is_empty()).then_some(AttributeValue::M(entries))
}

/// The end of the row: the latest of its holders.
pub(super) fn row_end(record: &LockRecord) -> String {
    record.holders().map(|(_, holder)| holder.until).max().map_or(PAST.to_owned(), end)
}

/// How large a row is, about as the service counts it.
pub(super) fn size(item: &Item) -> usize {
    let of = |value: &AttributeValue| match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        AttributeValue::Ss(all) => all.iter().map(String::len).sum(),
        AttributeValue::M(map) => 3 + map.len() + size(map),
        _ => 1,
    };
    item.iter().map(|(name, value)| name.len() + of(value)).sum()
}

pub(super) fn get_text<'a>(item: &'a Item, name: &str) -> Result<Option<&'a str>, String> {
    let value = item.get(name).map(|value| value.as_s().map(String::as_str));
    value.transpose().map_err(|_| format!("its {name} is no string"))
}

pub(super) fn get_number(item: &Item, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = item.get(name) else { return Ok(None) };
    let number = value.as_n().ok().and_then(|number| number.parse().ok());
    number.map(Some).ok_or_else(|| format!("its {name} is no whole number"))
}

fn map<'a>(item: &'a Item, name: &str) -> Result<Option<&'a HashMap<String, AttributeValue>>, String> {
    item.get(name).map(AttributeValue::as_m).transpose().map_err(|_| format!("its {name} is no map"))
}

fn strings<'a>(item: &'a Item, name: &str) -> Result<impl Iterator<Item = &'a str>, String> {
    let set = item.get(name).map(AttributeValue::as_ss).transpose().map_err(|_| format!("its {name} is no set"))?;
    let set: BTreeSet<&str> = set.into_iter().flatten().map(String::as_str).collect();
    Ok(set.into_iter())
}
