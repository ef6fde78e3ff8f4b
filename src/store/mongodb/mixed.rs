//! A collection that clients of mongo-lock use as well (`fleet=mixed`).
//!
//! When they request a shared lock, they never check whether a lock is expired; when they request an exclusive one,
//! they never check whether a shared one is. So expired locks are freed now and then. And their purger reads expired
//! locks, and frees them later by lock id without reading them again. So a lock in its last second is neither renewed
//! nor handed over.

use std::time::{Duration, Instant};

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use parking_lot::Mutex;

use super::pipeline::{NOW, are_sane, is_sane, locks};
use super::row::{FORMAT, date, nobody, object_id};
use super::{DatedDocument, Mongodb};
use crate::lease::record::FORMAT_MAJOR;
use crate::lease::{End, GrantId, Holder, LockRecord, Mode, StoreTime};
use crate::store::fleet::{Fleet, Limits, Watch};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// Its name in errors and docs.
pub(super) const LIBRARY: &str = "mongo-lock";
/// The shortest lease: a renewal must come while more than the last second is left.
pub(super) const MIN_LEASE: Duration = Duration::from_secs(3);
/// The smallest margin: a lock that its guard counts as held can still be renewed.
pub(super) const MIN_MARGIN: Duration = LAST;
const LAST: Duration = Duration::from_secs(1);
/// How long the server may take for a write that extends a lease. It decides by the time at which it begins, and may
/// then wait behind a user's transaction: a lock that was not in its last second at that time must not have expired
/// when the write happens.
const IN_TIME: Duration = Duration::from_millis(900);
/// How often each client frees expired locks.
const EVERY: Duration = Duration::from_secs(10);

pub(super) const LIMITS: Limits = Limits {
    library: LIBRARY,
    no_shared: None,
    no_endless: None,
    no_names: Some("its purger frees what is over; keep leases of names in another collection"),
    one_lease: None,
    keeps_rows: false,
    not_in_key: None,
};

/// What a client remembers about the clients of mongo-lock.
#[derive(Debug, Default)]
pub(super) struct Beside {
    watch: Watch,
    /// When expired locks were last freed.
    freed: Mutex<Option<Instant>>,
}

/// For how long the server may work on a write that extends a lease.
pub(super) fn limit_of_extending(fleet: Fleet, limit: Duration) -> Duration {
    if fleet.is_mixed() { limit.min(IN_TIME) } else { limit }
}

/// The renewal of a grant, on the condition that more than its last second is left.
pub(super) fn renewal(fleet: Fleet, mode: Mode, grant: ObjectId, mut update: Vec<Document>) -> Vec<Document> {
    if !fleet.is_mixed() {
        return update;
    }
    let is_late = is_late(mode, grant);
    for stage in &mut update {
        let Ok(fields) = stage.get_document_mut("$set") else { continue };
        for (name, value) in fields.iter_mut() {
            let kept = Bson::String(format!("${name}"));
            *value = doc! { "$cond": [is_late.clone(), kept, value.clone()] }.into();
        }
    }
    update
}

/// Whether this grant has no more than its last second left.
pub(super) fn is_late(mode: Mode, grant: ObjectId) -> Document {
    let millis = i64::try_from(LAST.as_millis()).unwrap_or(i64::MAX);
    let ends = |entry: &str| {
        let is_last = doc! { "$lte": [{ "$ifNull": [{ "$subtract": [format!("{entry}.expiresAt"), NOW] }, millis + 1] }, millis] };
        doc! { "$and": [{ "$eq": [format!("{entry}._id"), grant] }, is_last] }
    };
    match mode {
        Mode::Exclusive => ends("$exclusive"),
        Mode::Shared => doc! { "$anyElementTrue": [{ "$map": { "input": locks(), "as": "l", "in": ends("$$l") } }] },
    }
}

/// Restricts the filter of a swap that changes `old` to `new`, and that may come long after the read: it matches only
/// while every holder whose lease the swap extends has more than its last second left. Returns whether it restricts
/// anything.
pub(super) fn renews_nothing_late(fleet: Fleet, old: &LockRecord, new: &LockRecord, filter: &mut Document) -> bool {
    let is_renewed = |holder: &Holder| old.standing(&holder.grant).is_some_and(|(_, old)| old.until < holder.until);
    let renewed = new.holders().filter(|(_, holder)| fleet.is_mixed() && is_renewed(holder));
    let late = renewed.filter_map(|(mode, holder)| Some(is_late(mode, object_id(&holder.grant)?)));
    let late: Vec<Document> = late.collect();
    if late.is_empty() {
        return false;
    }
    filter.insert("$expr", doc! { "$not": [{ "$or": late }] });
    true
}

impl Mongodb {
    /// Whether a renewal or a transfer was refused because too little of the lease was left. Then the holder counts as
    /// gone, and is removed from `found`.
    pub(super) fn is_too_late(&self, found: &mut DatedDocument, grant: &GrantId) -> bool {
        let is_late = |holder: &Holder| match holder.until {
            End::At(until) => until.since(found.now) <= LAST,
            End::Never => false,
        };
        let standing = found.record.standing(grant).map(|(_, holder)| is_late(holder));
        if !self.fleet.is_mixed() || standing != Some(true) {
            return false;
        }
        found.record.exclusive.take_if(|holder| holder.grant == *grant);
        found.record.shared.retain(|holder| holder.grant != *grant);
        true
    }

    /// Warns once that mongo-lock uses the collection, if `fleet=mixed` is not set.
    pub(super) fn watch_fleet(&self, found: &DatedDocument) {
        let last = |holder: &Holder| holder.renewed.unwrap_or(holder.created);
        let theirs = found.record.holders().map(|(_, holder)| holder).filter(|holder| holder.is_foreign());
        if !self.beside.watch.finds(self.fleet, found.now, theirs.map(last)) {
            return;
        }
        log::warn!(
            target: "leasehold::mongodb", key:? = found.record.key, store:? = self.info.label;
            "{LIBRARY} wrote its document within the last hour: while its clients use the collection, ours must have the \
             option fleet=mixed, or its purger frees live locks and expired ones block it"
        );
    }

    /// Frees expired locks, if that was not done lately. Nobody waits for the result. `now` is the server's time.
    pub(super) fn free_now_and_then(&self, now: StoreTime, by: &Deadline) {
        let mut freed = self.beside.freed.lock();
        if !self.fleet.is_mixed() || freed.is_some_and(|freed| freed.elapsed() < EVERY) {
            return;
        }
        *freed = Some(Instant::now());
        drop(freed);
        let store = self.info.label.clone();
        let begun = self.driver.run(by, move |owned| async move {
            tokio::task::spawn_local(async move {
                let freeing = owned.locks.update_many(over(now), freeing());
                if let Ok(Err(error)) = tokio::time::timeout(EVERY, freeing.into_future()).await {
                    log::debug!(target: "leasehold::mongodb", store:? = store; "nothing was freed: {error}");
                }
            });
        });
        if let Err(stopped) = begun {
            log::debug!(target: "leasehold::mongodb", "nothing was freed: {stopped:?}");
        }
    }
}

/// A filter for documents with an expired lock, which uses the indexes. No content of a damaged document makes it fail.
/// A document that is damaged, no lock's, or of a newer major format stays as it is.
fn over(now: StoreTime) -> Document {
    let past = doc! { "$lte": date(now) };
    // As an operator, because the driver's type of a regular expression is not the same with bson-2 and bson-3.
    let ours = doc! { "$regex": format!(r"^{FORMAT_MAJOR}\.[0-9]{{1,9}}$") };
    let all = doc! { "$concatArrays": [array(), ["$exclusive"]] };
    let types = doc! { "$map": { "input": &all, "as": "l", "in": { "$type": "$$l.expiresAt" } } };
    let shared = doc! { "$map": { "input": array(), "as": "l", "in": is_over("$$l.expiresAt") } };
    doc! {
        "$or": [{ "exclusive.expiresAt": &past }, { "shared.locks.expiresAt": &past }],
        "kind": { "$in": [null, "lock"] },
        "$and": [{ "$or": [{ "format": null }, { "format": ours }] }],
        "exclusive": { "$type": "object" },
        "shared.locks": { "$type": "array" },
        "$expr": { "$and": [
            // The filter above checks kind and format: here any other value could make the expression fail.
            is_sane("lock".into(), FORMAT.into()),
            are_sane(all),
            { "$setIsSubset": [types, ["date", "null", "missing"]] },
            { "$or": [is_exclusive_over(), { "$anyElementTrue": [shared] }] },
        ] },
    }
}

/// The update that removes expired holders, with the right count of those that are left.
fn freeing() -> Vec<Document> {
    let is_live = doc! { "$not": [is_over("$$l.expiresAt")] };
    let live = doc! { "$filter": { "input": array(), "as": "l", "cond": is_live } };
    let exclusive = doc! { "$cond": [is_exclusive_over(), { "$literal": nobody() }, "$exclusive"] };
    let left = doc! { "count": { "$toLong": { "$size": "$$left" } }, "locks": "$$left" };
    let shared = doc! { "$let": { "vars": { "left": live }, "in": left } };
    vec![doc! { "$set": { "exclusive": exclusive, "shared": shared } }]
}

fn is_exclusive_over() -> Document {
    doc! { "$and": [{ "$eq": ["$exclusive.acquired", true] }, is_over("$exclusive.expiresAt")] }
}

/// Whether this end has passed. An end that is no date has not.
fn is_over(end: &str) -> Document {
    doc! { "$and": [{ "$eq": [{ "$type": end }, "date"] }, { "$lte": [end, NOW] }] }
}

/// The shared locks, or none if the field is no array.
fn array() -> Document {
    doc! { "$cond": [{ "$isArray": "$shared.locks" }, "$shared.locks", []] }
}
