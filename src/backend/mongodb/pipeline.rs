//! The updates, as pipelines that the server evaluates in one atomic step. Each means the pure transition of its
//! name; where that writes nothing the pipeline gives back the document as it stands, which writes nothing either.
//!
//! What users choose is wrapped in `$literal`: an owner `$resource` would else be read as a path.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};

use super::document::{FORMAT, nobody};
use crate::lease::{Ask, Lease, Mode};

const NOW: &str = "$$NOW";
const ROOT: &str = "$$ROOT";

/// Every answer has these, and the store's time.
pub(super) fn projection() -> Document {
    doc! {
        "resource": 1, "fence": 1, "exclusive": 1, "shared": 1, "kind": 1, "pins": 1, "format": 1, "version": 1, "now": NOW,
    }
}

/// What is asked for, as the server has it.
pub(super) struct Grant<'a> {
    pub ask: &'a Ask,
    pub id: ObjectId,
    /// Of a transfer: the grant that it takes the place of, and its token.
    pub old: Option<(ObjectId, i64)>,
    /// Which of its copies this is: tells what stood before from what this one made.
    pub copy: i32,
}

fn literal(value: impl Into<Bson>) -> Document {
    doc! { "$literal": value.into() }
}

fn maybe(text: Option<&String>) -> Document {
    literal(text.map_or(Bson::Null, |text| Bson::String(text.clone())))
}

/// Whether this end is yet to come. No end, null or missing, is later than any.
fn runs(end: &str) -> Document {
    doc! { "$gt": [{ "$ifNull": [end, DateTime::MAX] }, NOW] }
}

fn locks() -> Document {
    doc! { "$ifNull": ["$shared.locks", []] }
}

/// Of a major format that this version knows.
fn is_major() -> Document {
    doc! { "$regexMatch": { "input": { "$ifNull": ["$format", FORMAT] }, "regex": r"^1\.[0-9]{1,9}$" } }
}

/// What a rule can be applied to. Anything else is left as it is, and reading the answer tells what is wrong.
fn is_sane() -> Vec<Document> {
    let is = |of: &str, kinds: &[&str]| {
        let kinds: Vec<&str> = kinds.iter().chain(&["missing", "null"]).copied().collect();
        doc! { "$in": [{ "$type": of }, kinds] }
    };
    let entry = doc! { "$and": [
        { "$eq": [{ "$type": "$$l" }, "object"] },
        is("$$l.expiresAt", &["date"]),
        is("$$l._id", &["objectId"]),
    ] };
    vec![
        is("$exclusive", &["object"]),
        is("$exclusive.acquired", &["bool"]),
        is("$exclusive.expiresAt", &["date"]),
        is("$exclusive._id", &["objectId"]),
        is("$shared", &["object"]),
        is("$shared.locks", &["array"]),
        is("$fence", &["int", "long"]),
        doc! { "$gte": [{ "$ifNull": ["$fence", 0] }, 0] },
        is("$pins", &["array"]),
        doc! { "$in": [{ "$ifNull": ["$kind", "lock"] }, ["lock", "lease"]] },
        is("$format", &["string"]),
        doc! { "$allElementsTrue": [{ "$map": { "input": locks(), "as": "l", "in": entry } }] },
        is_major(),
    ]
}

/// `then` for a document that the rules apply to.
fn where_sane(then: Document) -> Document {
    doc! { "$cond": [{ "$and": is_sane() }, then, ROOT] }
}

fn millis(lease: std::time::Duration) -> i64 {
    // A part of a millisecond is rounded up.
    i64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// One more than the highest token, or the time in microseconds.
fn fence() -> Document {
    let stored = doc! { "$ifNull": [{ "$toLong": "$fence" }, 0_i64] };
    doc! { "$max": [{ "$add": [stored, 1_i64] }, { "$multiply": [{ "$toLong": NOW }, 1_000_i64] }] }
}

/// To be granted a key, also in the place of another grant.
pub(super) fn acquire(grant: &Grant) -> Vec<Document> {
    let ask = grant.ask;
    let holder = doc! {
        "lockId": literal(&ask.lock_id),
        "owner": literal(&ask.labels.owner),
        "host": maybe(ask.labels.host.as_ref()),
        "comment": maybe(ask.labels.comment.as_ref()),
        "createdAt": NOW,
        "renewedAt": null,
        "expiresAt": { "$add": [NOW, millis(ask.lease)] },
        "acquired": true,
        "_id": grant.id,
        "token": fence(),
        "copy": grant.copy,
    };
    let mut runs_shared = vec![runs("$$l.expiresAt")];
    let mut blocks = vec![doc! { "$eq": ["$exclusive.acquired", true] }, runs("$exclusive.expiresAt")];
    let mut conditions = vec![doc! { "$ne": [{ "$ifNull": ["$kind", "lock"] }, "lease"] }];
    if let Some((old, token)) = &grant.old {
        conditions.push(stands(old, *token));
        runs_shared.push(doc! { "$ne": ["$$l._id", old] });
        blocks.push(doc! { "$ne": ["$exclusive._id", old] });
    }
    if ask.replace_same_owner && ask.mode == Mode::Exclusive {
        // Without the second part a repeat would replace itself.
        let same_owner = doc! { "$eq": ["$exclusive.owner", literal(&ask.labels.owner)] };
        let is_other = doc! { "$ne": ["$exclusive._id", grant.id] };
        blocks.push(doc! { "$not": [{ "$and": [same_owner, is_other] }] });
    }
    conditions.push(doc! { "$not": [{ "$and": blocks }] });
    let live = doc! { "$filter": { "input": locks(), "as": "l", "cond": { "$and": runs_shared } } };
    let grants = |live: Bson, holder: Document| match ask.mode {
        Mode::Exclusive => doc! { "exclusive": holder, "shared": { "count": 0_i64, "locks": [] } },
        Mode::Shared => doc! {
            "exclusive": { "$cond": [{ "$eq": ["$exclusive.acquired", false] }, "$exclusive", literal(nobody())] },
            "shared": {
                "count": { "$toLong": { "$add": [{ "$size": live.clone() }, 1] } },
                "locks": { "$concatArrays": [live, [holder]] },
            },
        },
    };
    let format = doc! { "$ifNull": ["$format", FORMAT] };
    let write = |granted: Document| {
        let ours = doc! { "kind": "lock", "format": format, "fence": fence() };
        doc! { "$mergeObjects": [ROOT, ours, granted] }
    };
    let step = match ask.mode {
        Mode::Exclusive => {
            conditions.push(doc! { "$eq": [{ "$size": live }, 0] });
            doc! { "$cond": [{ "$and": conditions }, write(grants(Bson::Null, holder)), ROOT] }
        }
        Mode::Shared => {
            conditions.push(doc! { "$not": [{ "$in": [literal(&ask.lock_id), "$$live.lockId"] }] });
            // A transfer keeps its place.
            if let Some(max) = ask.max_holders.filter(|_| grant.old.is_none()) {
                conditions.push(doc! { "$lt": [{ "$size": "$$live" }, i64::from(max)] });
            }
            let granted = write(grants(Bson::from("$$live"), holder));
            doc! { "$let": { "vars": { "live": live }, "in": { "$cond": [{ "$and": conditions }, granted, ROOT] } } }
        }
    };
    vec![doc! { "$replaceWith": where_sane(step) }]
}

/// Whether this grant stands with this token, expired or not.
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

/// To extend a lease for as long as its grant stands.
pub(super) fn renew(mode: Mode, grant: ObjectId, lease: Lease, may_end_endless: bool) -> Vec<Document> {
    let end = match lease {
        Lease::For(lease) => Bson::from(doc! { "$add": [NOW, millis(lease)] }),
        Lease::Forever => Bson::Null,
    };
    // No end moves back. A missing one is before every date, as the server compares them.
    let extends = |until: &str| match (lease, may_end_endless) {
        (Lease::Forever, _) => Bson::Boolean(true),
        (Lease::For(_), true) => Bson::from(doc! { "$gte": [end.clone(), until] }),
        (Lease::For(_), false) => Bson::from(doc! { "$gte": [end.clone(), { "$ifNull": [until, DateTime::MAX] }] }),
    };
    let renewed = doc! { "renewedAt": NOW, "expiresAt": end.clone() };
    let of = |entry: &str, is_it: Document| {
        let until = format!("{entry}.expiresAt");
        doc! { "$cond": [
            { "$and": [is_it, extends(&until)] },
            { "$mergeObjects": [entry, renewed.clone()] },
            entry,
        ] }
    };
    let mut update = one(mode, grant, |entry, is_it| of(entry, is_it));
    if may_end_endless && lease != Lease::Forever {
        update.insert(0, mark_end(mode, grant));
    }
    update
}

/// A lease without end is given one: waiters must hear of it, and it would look like a heartbeat.
fn mark_end(mode: Mode, grant: ObjectId) -> Document {
    let is_endless = |entry: &str| -> Document {
        let has_none = doc! { "$eq": [{ "$ifNull": [format!("{entry}.expiresAt"), null] }, null] };
        doc! { "$and": [{ "$eq": [format!("{entry}._id"), grant] }, has_none] }
    };
    let any = match mode {
        Mode::Exclusive => doc! { "$and": [{ "$eq": ["$exclusive.acquired", true] }, is_endless("$exclusive")] },
        Mode::Shared => {
            doc! { "$anyElementTrue": [{ "$map": { "input": locks(), "as": "l", "in": is_endless("$$l") } }] }
        }
    };
    let marked = doc! { "$mergeObjects": [ROOT, { "ended": NOW }] };
    doc! { "$replaceWith": where_sane(doc! { "$cond": [any, marked, ROOT] }) }
}

/// A step that changes the entry of one grant.
fn one(mode: Mode, grant: ObjectId, change: impl Fn(&str, Document) -> Document) -> Vec<Document> {
    let changed = match mode {
        Mode::Exclusive => {
            let is_it = doc! { "$and": [
                { "$eq": ["$exclusive._id", grant] }, { "$eq": ["$exclusive.acquired", true] },
            ] };
            doc! { "exclusive": change("$exclusive", is_it) }
        }
        Mode::Shared => {
            let is_it = doc! { "$eq": ["$$l._id", grant] };
            let entries = doc! { "$map": { "input": locks(), "as": "l", "in": change("$$l", is_it) } };
            doc! { "shared": { "$mergeObjects": ["$shared", { "locks": entries }] } }
        }
    };
    vec![doc! { "$replaceWith": where_standing(mode, grant, changed) }]
}

/// What is merged into the document if the grant stands.
fn where_standing(mode: Mode, grant: ObjectId, changed: Document) -> Document {
    let stands = match mode {
        Mode::Exclusive => doc! { "$eq": ["$exclusive._id", grant] },
        Mode::Shared => doc! { "$in": [grant, { "$ifNull": ["$shared.locks._id", []] }] },
    };
    where_sane(doc! { "$cond": [stands, { "$mergeObjects": [ROOT, changed] }, ROOT] })
}

/// To remove one holder.
pub(super) fn release(mode: Mode, grant: ObjectId) -> Vec<Document> {
    match mode {
        Mode::Exclusive => one(mode, grant, |entry, is_it| doc! { "$cond": [is_it, literal(nobody()), entry] }),
        Mode::Shared => {
            let others = doc! { "$filter": {
                "input": locks(), "as": "l", "cond": { "$ne": ["$$l._id", grant] },
            } };
            let rest = doc! { "$let": { "vars": { "rest": others }, "in": {
                "count": { "$toLong": { "$size": "$$rest" } }, "locks": "$$rest",
            } } };
            vec![doc! { "$replaceWith": where_standing(mode, grant, doc! { "shared": rest }) }]
        }
    }
}
