//! The updates, as pipelines that the server evaluates in one atomic step. Each has the meaning of the pure transition
//! of the same name. If that transition writes nothing, the pipeline's result is the document as it is, and the server
//! writes nothing either.
//!
//! The server parses each request anew, which costs more than the rest of its work on it. So each operator has to be
//! needed.
//!
//! A text that users choose is wrapped in `$literal` if it would be read as a path, like the owner `$resource`.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};

use super::mixed;
use super::row::{self, FORMAT, date, nobody};
use crate::lease::{Ask, Lease, Mode, Renewal, StoreTime};
use crate::store::fleet::Fleet;

pub(super) const NOW: &str = "$$NOW";
const ROOT: &str = "$$ROOT";

/// Every answer has these fields, and the store's time.
pub(super) fn projection() -> Document {
    doc! {
        "resource": 1, "fence": 1, "exclusive": 1, "shared": 1, "kind": 1, "pins": 1, "format": 1, "version": 1, "now": NOW,
    }
}

/// Which holders of the same owner an acquisition replaces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replaces {
    /// Those that were granted by then, which is over.
    GrantedBy(StoreTime),
    /// The one that was granted then, as an answer said.
    GrantedAt(StoreTime),
}

/// What an acquisition asks for, in the server's types.
pub(super) struct Grant<'a> {
    pub ask: &'a Ask,
    pub id: ObjectId,
    /// Of a transfer: the grant that it takes the place of, and its token.
    pub old: Option<(ObjectId, i64)>,
    /// With `SameOwner::Replace`: which holders of the same owner are replaced. If this copy comes late, the caller may
    /// have been granted the key by another attempt, which must not be.
    pub replaces: Option<Replaces>,
    /// A number for this copy of the request: where the document has another one, an earlier copy was granted.
    pub copy: i32,
    pub fleet: Fleet,
}

fn text(text: &str) -> Bson {
    if text.starts_with('$') { doc! { "$literal": text }.into() } else { text.into() }
}

fn maybe(label: Option<&String>) -> Bson {
    label.map_or(Bson::Null, |label| text(label))
}

/// Whether this end is still to come. That is always so without an end (null or missing). An end that is no date makes
/// the request fail.
pub(super) fn runs(end: &str) -> Document {
    doc! { "$gt": [{ "$ifNull": [{ "$subtract": [end, NOW] }, 1] }, 0] }
}

pub(super) fn locks() -> Document {
    doc! { "$ifNull": ["$shared.locks", []] }
}

/// Whether a document with this kind and format can be written over: the types of the fields that decide, as one text,
/// match `SANE`, and no number is below zero. Any other document is left as it is, and reading the answer, or the
/// document after an error, shows what is wrong.
pub(super) fn is_sane(kind: Bson, format: Bson) -> Document {
    let all = doc! { "$concat": [
        { "$type": "$_id" },
        ";",
        { "$type": "$exclusive" },
        { "$type": "$exclusive.acquired" },
        { "$type": "$shared" },
        { "$type": "$fence" },
        { "$type": "$pins" },
        { "$type": "$version" },
        kind,
        ";",
        format,
    ] };
    let is_sane = doc! { "$regexMatch": { "input": all, "regex": SANE } };
    // A missing field does not count as the least one.
    doc! { "$and": [is_sane, { "$gte": [{ "$min": ["$fence", "$version", 0] }, 0] }] }
}

/// In the order of `is_sane`. A document that exists says who holds the lock, even if nobody does. A lease is no lock.
/// The format must be of a major version that this version knows.
const SANE: &str = concat!(
    "^(missing;|[a-zA-Z]+;(?!missingmissingmissing))(object|missing|null)(bool|missing|null)(object|missing|null)(int|long|missing|null)(array|missing|null)(int|long|missing|null)",
    r"lock;1\.[0-9]{1,9}$",
);

/// Whether these entries, which stay next to a new one, have the right types.
pub(super) fn are_sane(entries: impl Into<Bson>) -> Document {
    let is_sane = doc! { "$and": [
        { "$eq": [{ "$type": "$$l" }, "object"] },
        { "$in": [{ "$type": "$$l._id" }, ["objectId", "missing", "null"]] },
    ] };
    doc! { "$allElementsTrue": [{ "$map": { "input": entries.into(), "as": "l", "in": is_sane } }] }
}

/// Whether the format's major version is known, for a write that changes only the entry of one grant.
fn is_major() -> Document {
    // `/` is the character that comes after `.`.
    doc! { "$lt": ["$format", "1/"] }
}

fn millis(lease: std::time::Duration) -> i64 {
    // A part of a millisecond is rounded up.
    i64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// One more than the highest token, or the time in microseconds if that is more.
fn fence() -> Document {
    // A missing field plus one is null, which is never the greatest.
    let next = doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$multiply": [{ "$toLong": NOW }, 1_000_i64] }] };
    // The greatest number stays, because one more would be a double.
    doc! { "$min": [next, i64::MAX] }
}

/// Grants a key, also in the place of another grant.
pub(super) fn acquire(grant: &Grant) -> Vec<Document> {
    let ask = grant.ask;
    let mut holder = doc! {
        "lockId": text(&ask.lock_id),
        "owner": text(&ask.labels.owner),
    };
    holder.extend(row::optional(&ask.labels).map(|(name, label)| (name.to_owned(), maybe(label.as_ref()))));
    holder.extend(doc! {
        "createdAt": NOW,
        "renewedAt": null,
        "expiresAt": { "$add": [NOW, millis(ask.lease)] },
        "acquired": true,
        "_id": grant.id,
        "token": fence(),
        "copy": grant.copy,
    });
    let mut runs_shared = vec![runs("$$l.expiresAt")];
    let mut blocks = vec![doc! { "$eq": ["$exclusive.acquired", true] }, runs("$exclusive.expiresAt")];
    let format = doc! { "$ifNull": ["$format", FORMAT] };
    let mut conditions = vec![is_sane(doc! { "$ifNull": ["$kind", "lock"] }.into(), format.clone().into())];
    if let Some((old, token)) = &grant.old {
        conditions.push(stands(old, *token));
        if grant.fleet.is_mixed() {
            conditions.push(doc! { "$not": [mixed::is_late(ask.mode, *old)] });
        }
        runs_shared.push(doc! { "$ne": ["$$l._id", old] });
        blocks.push(doc! { "$ne": ["$exclusive._id", old] });
    }
    if let Some(replaces) = grant.replaces {
        // Without the second part, a repeated request would replace its own grant.
        let same_owner = doc! { "$eq": ["$exclusive.owner", text(&ask.labels.owner)] };
        let is_other = doc! { "$ne": ["$exclusive._id", grant.id] };
        let granted = "$exclusive.createdAt";
        let in_time = match replaces {
            // A missing time, as mongo-lock may leave it, comes before every date.
            Replaces::GrantedBy(time) => doc! { "$lte": [granted, date(time)] },
            Replaces::GrantedAt(time) => doc! { "$eq": [granted, date(time)] },
        };
        blocks.push(doc! { "$not": [{ "$and": [same_owner, is_other, in_time] }] });
    }
    conditions.push(doc! { "$not": [{ "$and": blocks }] });
    let live = doc! { "$filter": { "input": locks(), "as": "l", "cond": { "$and": runs_shared } } };
    // A document that this makes has its key as its id. So two clients that make it at once collide on the id, even if
    // somebody dropped the unique index. A document that exists keeps its id, as mongo-lock or an older version gave
    // it.
    let id = doc! { "$ifNull": ["$_id", "$resource"] };
    let written = |exclusive: Bson, shared: Document| {
        let ours = doc! {
            "_id": id, "kind": "lock", "format": format, "fence": fence(), "exclusive": exclusive, "shared": shared,
        };
        doc! { "$mergeObjects": [ROOT, ours] }
    };
    let step = match ask.mode {
        Mode::Exclusive => {
            conditions.push(doc! { "$eq": [{ "$size": live }, 0] });
            let none = doc! { "$literal": { "count": 0_i64, "locks": [] } };
            doc! { "$cond": [{ "$and": conditions }, written(holder.into(), none), ROOT] }
        }
        Mode::Shared => {
            conditions.push(are_sane("$$live"));
            conditions.push(doc! { "$not": [{ "$in": [text(&ask.lock_id), "$$live.lockId"] }] });
            // A transfer keeps its place, whatever the bound.
            if let Some(max) = ask.max_holders.filter(|_| grant.old.is_none()) {
                conditions.push(doc! { "$lt": [{ "$size": "$$live" }, i64::from(max)] });
            }
            let nobody = doc! { "$literal": nobody() };
            let exclusive = doc! { "$cond": [{ "$eq": ["$exclusive.acquired", false] }, "$exclusive", nobody] };
            let all = doc! {
                "count": { "$toLong": { "$add": [{ "$size": "$$live" }, 1] } },
                "locks": { "$concatArrays": ["$$live", [holder]] },
            };
            let granted = doc! { "$cond": [{ "$and": conditions }, written(exclusive.into(), all), ROOT] };
            doc! { "$let": { "vars": { "live": live }, "in": granted } }
        }
    };
    vec![doc! { "$replaceWith": step }]
}

/// Whether this grant holds with this token, expired or not.
fn stands(grant: &ObjectId, token: i64) -> Document {
    let exclusive = doc! { "$and": [
        { "$eq": ["$exclusive.acquired", true] },
        { "$eq": ["$exclusive._id", grant] },
        { "$eq": ["$exclusive.token", token] },
    ] };
    let is_it = doc! { "$and": [{ "$eq": ["$$l._id", grant] }, { "$eq": ["$$l.token", token] }] };
    let shared = doc! { "$anyElementTrue": [{ "$map": { "input": locks(), "as": "l", "in": is_it } }] };
    doc! { "$or": [exclusive, shared] }
}

/// Extends a lease if its grant still holds.
pub(super) fn renew(mode: Mode, grant: ObjectId, renewal: Renewal) -> Vec<Document> {
    let Renewal { lease, may_end_endless } = renewal;
    let end = match lease {
        Lease::For(lease) => Bson::from(doc! { "$add": [NOW, millis(lease)] }),
        Lease::Forever => Bson::Null,
    };
    // No end moves back. A missing end comes before every date in the server's order.
    let extends = |until: &str| match (lease, may_end_endless) {
        (Lease::Forever, _) => Bson::Boolean(true),
        (Lease::For(_), true) => Bson::from(doc! { "$gte": [end.clone(), until] }),
        (Lease::For(_), false) => Bson::from(doc! { "$gte": [end.clone(), { "$ifNull": [until, DateTime::MAX] }] }),
    };
    let renewed = doc! { "renewedAt": NOW, "expiresAt": end.clone() };
    let extended = |entry: &str| {
        let extended = doc! { "$mergeObjects": [entry, renewed.clone()] };
        doc! { "$cond": [extends(&format!("{entry}.expiresAt")), extended, entry] }
    };
    let mut update = vec![doc! { "$set": match mode {
        Mode::Exclusive => where_exclusive(grant, extended("$exclusive")),
        Mode::Shared => {
            let entry = doc! { "$cond": [{ "$eq": ["$$l._id", grant] }, extended("$$l"), "$$l"] };
            let entries = doc! { "$map": { "input": "$shared.locks", "as": "l", "in": entry } };
            where_shared(grant, doc! { "$mergeObjects": ["$shared", { "locks": entries }] })
        }
    } }];
    if may_end_endless && lease != Lease::Forever {
        update.insert(0, mark_end(mode, grant));
    }
    update
}

/// Marks that a lease without end is given one: waiters must be woken, but without the mark the write looks like a
/// heartbeat.
fn mark_end(mode: Mode, grant: ObjectId) -> Document {
    let has_none = |entry: &str| doc! { "$eq": [{ "$ifNull": [format!("{entry}.expiresAt"), null] }, null] };
    let is_endless = match mode {
        Mode::Exclusive => doc! { "$and": [stands_exclusive(grant), has_none("$exclusive")] },
        Mode::Shared => {
            let is_it = doc! { "$and": [{ "$eq": ["$$l._id", grant] }, has_none("$$l")] };
            let any = doc! { "$anyElementTrue": [{ "$map": { "input": "$shared.locks", "as": "l", "in": is_it } }] };
            doc! { "$and": [stands_shared(grant), any] }
        }
    };
    // A field that is set to itself stays as it is, even if it is missing.
    doc! { "$set": { "ended": { "$cond": [is_endless, NOW, "$ended"] } } }
}

fn stands_exclusive(grant: ObjectId) -> Document {
    doc! { "$and": [{ "$eq": ["$exclusive._id", grant] }, { "$eq": ["$exclusive.acquired", true] }, is_major()] }
}

fn stands_shared(grant: ObjectId) -> Document {
    doc! { "$and": [{ "$isArray": "$shared.locks" }, { "$in": [grant, "$shared.locks._id"] }, is_major()] }
}

/// The part of the document that has the grant, changed; unchanged if the grant holds no longer.
fn where_exclusive(grant: ObjectId, changed: Document) -> Document {
    doc! { "exclusive": { "$cond": [stands_exclusive(grant), changed, "$exclusive"] } }
}

/// See `where_exclusive`.
fn where_shared(grant: ObjectId, changed: Document) -> Document {
    doc! { "shared": { "$cond": [stands_shared(grant), changed, "$shared"] } }
}

/// Removes one holder.
pub(super) fn release(mode: Mode, grant: ObjectId) -> Vec<Document> {
    let changed = match mode {
        Mode::Exclusive => where_exclusive(grant, doc! { "$literal": nobody() }),
        Mode::Shared => {
            let is_other = doc! { "$ne": ["$$l._id", grant] };
            let others = doc! { "$filter": { "input": "$shared.locks", "as": "l", "cond": is_other } };
            let rest = doc! { "count": { "$toLong": { "$size": "$$rest" } }, "locks": "$$rest" };
            where_shared(grant, doc! { "$let": { "vars": { "rest": others }, "in": rest } })
        }
    };
    vec![doc! { "$set": changed }]
}
