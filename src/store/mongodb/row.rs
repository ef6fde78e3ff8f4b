//! A document as the record that the pure rules see, and back.
//!
//! A document of mongo-lock is read as that library means it: every field may be missing or null.
//!
//! | field | type | |
//! |---|---|---|
//! | `resource` | string | the key; with a unique index, without which nothing is written |
//! | `_id` | string | the key. Documents of mongo-lock and of earlier versions keep their ObjectId |
//! | `exclusive` | document | `lockId`, `owner`, `host`, `comment`, `createdAt`, `renewedAt`, `expiresAt` (null: no end), `acquired`, `_id`: the grant id; free: all null and `acquired: false` |
//! | `shared` | document | `count` and `locks`, an array of holders with the same fields |
//! | `token`, `copy` of a holder | long, int | its token; the number of the copy of its acquire that was granted |
//! | `fence` | long | the highest token ever issued |
//! | `version` | long | raised by swaps, so that a swap of equal fields is a change, too |
//! | `kind`, `pins`, `format` | string, array, string | |
//! | `asserts` | long | raised by users' transactions that assert a holder |
//! | `ended` | date | when a lease without end was last given one |

use std::collections::BTreeSet;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::lease::record::parse_format;
use crate::lease::{End, GrantId, Holder, Kind, Labels, LockRecord, Mode, StoreTime};

/// The format in a document that this version makes.
pub(super) const FORMAT: &str = "1.0";

pub(super) fn time(at: DateTime) -> StoreTime {
    StoreTime::from_nanos(at.timestamp_millis().saturating_mul(1_000_000))
}

/// To the millisecond, as the server has it; a part of one is rounded up.
pub(super) fn date(at: StoreTime) -> DateTime {
    DateTime::from_millis(at.as_nanos().saturating_add(999_999).div_euclid(1_000_000))
}

fn end(end: End) -> Bson {
    match end {
        End::At(at) => Bson::DateTime(date(at)),
        End::Never => Bson::Null,
    }
}

/// The grant id as the server has it; none for a grant of another store.
pub(super) fn object_id(grant: &GrantId) -> Option<ObjectId> {
    ObjectId::parse_str(grant.as_str()).ok()
}

/// The exclusive holder of a lock that has none, as mongo-lock writes it.
pub(super) fn nobody() -> Document {
    doc! {
        "lockId": null, "owner": null, "host": null, "comment": null,
        "createdAt": null, "renewedAt": null, "expiresAt": null, "acquired": false,
    }
}

/// A collection may hold other documents, too. The document of a lock says who holds it, even if nobody does.
pub(super) fn is_lock(row: &Document) -> bool {
    row.contains_key("exclusive") || row.contains_key("shared")
}

/// The record of a document. An error says what is wrong with it.
pub(super) fn decode(key: &str, row: &Document) -> Result<LockRecord, String> {
    let format = || text(row, "format").ok().flatten();
    decode_known(key, row).or_else(|wrong| LockRecord::of_newer(key, format()).ok_or(wrong))
}

fn decode_known(key: &str, row: &Document) -> Result<LockRecord, String> {
    if !is_lock(row) {
        return Err("it has neither exclusive nor shared, so it is no lock".to_owned());
    }
    let exclusive = match document(row, "exclusive")? {
        Some(entry) if is_acquired(entry)? => Some(holder(entry)?),
        _ => None,
    };
    let mut shared = Vec::new();
    if let Some(of) = document(row, "shared")? {
        for entry in array(of, "locks")?.unwrap_or_default() {
            let entry = entry.as_document().ok_or("an entry of its shared.locks is no document")?;
            shared.push(holder(entry)?);
        }
    }
    let kind = Kind::parse(text(row, "kind")?)?;
    let pins = array(row, "pins")?.unwrap_or_default().iter().filter_map(Bson::as_str).map(str::to_owned);
    let pins: BTreeSet<String> = pins.collect();
    Ok(LockRecord {
        key: key.to_owned(),
        kind,
        token: number(row, "fence")?.unwrap_or(0),
        exclusive,
        shared,
        pins,
        given_up: BTreeSet::new(),
        gave_up_at: 0,
        // Writes other than swaps do not raise the version; a swap compares the fields that they change.
        version: number(row, "version")?.unwrap_or(0).saturating_add(1),
        format: parse_format(text(row, "format")?)?,
    })
}

fn is_acquired(entry: &Document) -> Result<bool, String> {
    match entry.get("acquired") {
        None | Some(Bson::Null) => Ok(false),
        Some(Bson::Boolean(is)) => Ok(*is),
        Some(_) => Err("its exclusive.acquired is no boolean".to_owned()),
    }
}

fn holder(entry: &Document) -> Result<Holder, String> {
    let grant = match entry.get("_id") {
        None | Some(Bson::Null) => GrantId::from_text(""),
        Some(Bson::ObjectId(id)) => GrantId::from_text(id.to_hex()),
        Some(_) => return Err("the _id of a holder is no ObjectId".to_owned()),
    };
    // A field that decides nothing is left out if its type is wrong.
    let label = |name| entry.get_str(name).ok().map(str::to_owned);
    Ok(Holder {
        grant,
        lock_id: label("lockId").unwrap_or_default(),
        labels: Labels { owner: label("owner").unwrap_or_default(), host: label("host"), comment: label("comment") },
        token: number(entry, "token").ok().flatten().unwrap_or(0),
        created: moment(entry, "createdAt").ok().flatten().unwrap_or(StoreTime::from_nanos(0)),
        renewed: moment(entry, "renewedAt").ok().flatten(),
        until: moment(entry, "expiresAt")?.map_or(End::Never, End::At),
    })
}

/// What a swap writes: everything that the record says. Other fields of the document stay.
pub(super) fn encode(new: &LockRecord, row: Option<&Document>) -> Result<(Document, Document), String> {
    let stored_x = row.and_then(|row| row.get_document("exclusive").ok());
    let exclusive = match (&new.exclusive, stored_x) {
        (Some(holder), stored) => entry(holder, stored.into_iter())?,
        (None, Some(stored)) if !is_acquired(stored)? => stored.clone(),
        (None, _) => nobody(),
    };
    let stored = row.and_then(|row| row.get_document("shared").ok()?.get_array("locks").ok());
    let mut locks = Vec::new();
    for holder in &new.shared {
        let entries = stored.into_iter().flatten().filter_map(Bson::as_document);
        locks.push(Bson::Document(entry(holder, entries)?));
    }
    let (major, minor) = new.format;
    let count = i64::try_from(locks.len()).unwrap_or(i64::MAX);
    let mut set = doc! {
        "kind": new.kind.as_str(),
        "format": format!("{major}.{minor}"),
        "exclusive": exclusive,
        "shared": { "count": count, "locks": locks },
    };
    let mut unset = Document::new();
    if new.token > 0 {
        set.insert("fence", token(new.token)?);
    }
    if new.pins.is_empty() {
        unset.insert("pins", "");
    } else {
        set.insert("pins", new.pins.iter().cloned().collect::<Vec<String>>());
    }
    Ok((set, unset))
}

/// The optional labels of a holder.
pub(super) fn optional(labels: &Labels) -> [(&'static str, &Option<String>); 2] {
    [("host", &labels.host), ("comment", &labels.comment)]
}

/// A holder's entry, written over the one that is stored already.
fn entry<'a>(holder: &Holder, mut stored: impl Iterator<Item = &'a Document>) -> Result<Document, String> {
    let id = object_id(&holder.grant);
    let is_it = |entry: &&Document| match &id {
        Some(id) => entry.get_object_id("_id").is_ok_and(|of| of == *id),
        // A holder of mongo-lock, which has no grant id.
        None => !entry.contains_key("_id") && entry.get_str("lockId").is_ok_and(|of| of == holder.lock_id),
    };
    let mut entry = stored.find(is_it).cloned().unwrap_or_default();
    let labels = &holder.labels;
    entry.insert("lockId", &holder.lock_id);
    entry.insert("owner", &labels.owner);
    for (name, label) in optional(labels) {
        entry.insert(name, label.clone().map_or(Bson::Null, Bson::String));
    }
    entry.insert("createdAt", date(holder.created));
    entry.insert("renewedAt", holder.renewed.map_or(Bson::Null, |at| Bson::DateTime(date(at))));
    entry.insert("expiresAt", end(holder.until));
    entry.insert("acquired", true);
    if let Some(id) = id {
        entry.insert("_id", id);
    }
    if holder.token > 0 {
        entry.insert("token", token(holder.token)?);
    }
    Ok(entry)
}

/// A token in the server's type: its numbers have a sign.
pub(super) fn token(token: u64) -> Result<i64, String> {
    i64::try_from(token).map_err(|_| format!("the token {token} is beyond what MongoDB can count"))
}

fn document<'a>(of: &'a Document, name: &str) -> Result<Option<&'a Document>, String> {
    match of.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::Document(document)) => Ok(Some(document)),
        Some(_) => Err(format!("its {name} is no document")),
    }
}

fn array<'a>(of: &'a Document, name: &str) -> Result<Option<&'a [Bson]>, String> {
    match of.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::Array(array)) => Ok(Some(array)),
        Some(_) => Err(format!("its {name} is no array")),
    }
}

fn text<'a>(of: &'a Document, name: &str) -> Result<Option<&'a str>, String> {
    match of.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("its {name} is no string")),
    }
}

fn moment(of: &Document, name: &str) -> Result<Option<StoreTime>, String> {
    match of.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::DateTime(at)) => Ok(Some(time(*at))),
        Some(_) => Err(format!("its {name} is no date")),
    }
}

fn number(of: &Document, name: &str) -> Result<Option<u64>, String> {
    let number = match of.get(name) {
        None | Some(Bson::Null) => return Ok(None),
        Some(Bson::Int32(number)) => u64::try_from(*number).ok(),
        Some(Bson::Int64(number)) => u64::try_from(*number).ok(),
        Some(_) => None,
    };
    number.map(Some).ok_or_else(|| format!("its {name} is no whole number"))
}

/// The entry of this grant in a document, whatever else is in it.
pub(super) fn entry_of<'a>(row: &'a Document, mode: Mode, grant: &ObjectId) -> Option<&'a Document> {
    let is_it = |entry: &&Document| entry.get_object_id("_id").is_ok_and(|id| id == *grant);
    match mode {
        Mode::Exclusive => row.get_document("exclusive").ok().filter(is_it),
        Mode::Shared => {
            let locks = row.get_document("shared").ok().and_then(|shared| shared.get_array("locks").ok());
            locks.into_iter().flatten().filter_map(Bson::as_document).find(is_it)
        }
    }
}

/// Whether a document has this grant, by the condition that `pipeline` checks before it writes.
pub(super) fn stands(row: &Document, mode: Mode, grant: &ObjectId) -> bool {
    let is_held = |entry: &Document| mode == Mode::Shared || matches!(entry.get_bool("acquired"), Ok(true));
    let is_there = entry_of(row, mode, grant).is_some_and(is_held);
    let is_major = match row.get("format") {
        Some(Bson::String(format)) => format.as_str() < "1/",
        // For the server these are less than any text.
        None | Some(Bson::Null | Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_)) => true,
        Some(_) => false,
    };
    is_there && is_major
}
