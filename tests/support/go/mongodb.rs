//! mongo-lock: its requests. It writes and compares ends by the host's own wall clock, which a test sets.

use std::sync::atomic::{AtomicI64, Ordering};

use leasehold::mongodb::driver::bson::oid::ObjectId;
use leasehold::mongodb::driver::bson::{Bson, DateTime, Document, doc};
use leasehold::mongodb::driver::error::{ErrorKind, Result as DriverResult};
use leasehold::mongodb::driver::options::ReturnDocument;
use leasehold::mongodb::driver::sync::Collection;

use super::Unavailable;
use crate::support::mongodb::Rows;

/// A process that uses the Go library.
pub struct Go {
    locks: Collection<Document>,
    /// How far this host's wall clock is ahead, in milliseconds.
    ahead: AtomicI64,
}

/// The status of a lock, as the Go library prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoStatus {
    pub resource: String,
    pub lock_id: String,
    pub owner: String,
    pub is_shared: bool,
    /// In whole seconds; -1 means no end, 0 means that it is over.
    pub ttl: i64,
    id: ObjectId,
}

impl Go {
    pub fn new(rows: &Rows) -> Go {
        Go { locks: rows.raw(), ahead: AtomicI64::new(0) }
    }

    /// Sets the clock of its host.
    pub fn is_ahead_by(&self, ms: i64) {
        self.ahead.store(ms, Ordering::SeqCst);
    }

    fn now(&self) -> DateTime {
        self.after(0)
    }

    fn after(&self, ms: i64) -> DateTime {
        DateTime::from_millis(DateTime::now().timestamp_millis() + self.ahead.load(Ordering::SeqCst) + ms)
    }

    /// `ttl` is in seconds; zero means without an end.
    pub fn xlock(&self, resource: &str, lock_id: &str, owner: &str, ttl: i64) -> Result<(), Unavailable> {
        let free = doc! {
            "resource": resource,
            "$or": [{ "exclusive.acquired": false }, { "exclusive.expiresAt": { "$lte": self.now() } }],
            "shared.count": 0,
        };
        let held = doc! { "$set": {
            "resource": resource,
            "exclusive": self.lock(lock_id, owner, ttl),
            "shared": { "count": 0_i64, "locks": [] },
        } };
        self.upsert(free, held)
    }

    /// `most` below zero means without a limit.
    pub fn slock(&self, resource: &str, lock_id: &str, owner: &str, ttl: i64, most: i32) -> Result<(), Unavailable> {
        let mut free = doc! {
            "resource": resource, "exclusive.acquired": false, "shared.locks.lockId": { "$ne": lock_id },
        };
        if most >= 0 {
            free.insert("shared.count", doc! { "$lt": most });
        }
        let held = doc! { "$inc": { "shared.count": 1 }, "$push": { "shared.locks": self.lock(lock_id, owner, ttl) } };
        self.upsert(free, held)
    }

    /// Releases all locks of this id, the newest first. Returns their status from before.
    pub fn unlock(&self, lock_id: &str) -> Vec<GoStatus> {
        let mut all = self.status(Some(lock_id), false);
        all.sort_by_key(|status| std::cmp::Reverse(status.id.to_hex()));
        all.retain(|status| self.free(status));
        all
    }

    /// Refused for all locks as soon as one of them has a second left or less.
    pub fn renew(&self, lock_id: &str, ttl: i64) -> Result<(), Unavailable> {
        let all = self.status(Some(lock_id), false);
        let (least, end, now) = (self.after(1_000), self.after(ttl * 1_000), self.now());
        for status in &all {
            let more = doc! { "$gt": least };
            let (filter, part) = if status.is_shared {
                let entry = doc! { "$elemMatch": { "lockId": lock_id, "expiresAt": more } };
                (doc! { "resource": &status.resource, "shared.locks": entry }, "shared.locks.$")
            } else {
                let filter =
                    doc! { "resource": &status.resource, "exclusive.lockId": lock_id, "exclusive.expiresAt": more };
                (filter, "exclusive")
            };
            let set = doc! { format!("{part}.expiresAt"): end, format!("{part}.renewedAt"): now };
            let found = self.locks.find_one_and_update(filter, doc! { "$set": set }).run().unwrap();
            found.ok_or(Unavailable)?;
        }
        if all.is_empty() { Err(Unavailable) } else { Ok(()) }
    }

    /// What its purge finds. It does not look again between this and [`free_all`](Go::free_all).
    pub fn expired(&self) -> Vec<GoStatus> {
        self.status(None, true)
    }

    /// The rest of the purge: releases all locks of the ids that were found.
    pub fn free_all(&self, expired: &[GoStatus]) -> Vec<GoStatus> {
        expired.iter().flat_map(|status| self.unlock(&status.lock_id)).collect()
    }

    /// The locks of this lock id, or those that have expired.
    pub fn status(&self, lock_id: Option<&str>, only_expired: bool) -> Vec<GoStatus> {
        let now = self.now();
        let mut found = Vec::new();
        for row in self.locks.find(doc! { "resource": { "$exists": true } }).run().unwrap() {
            let row = row.unwrap();
            let resource = row.get_str("resource").unwrap();
            let exclusive = row.get_document("exclusive").ok().filter(|of| of.get_bool("acquired").unwrap());
            let shared = row.get_document("shared").unwrap();
            let locks = shared.get_array("locks").unwrap();
            // The Go library decodes the count into an unsigned number.
            let count = shared.get_i64("count").unwrap_or_else(|_| i64::from(shared.get_i32("count").unwrap()));
            assert_eq!(usize::try_from(count).unwrap(), locks.len(), "{row}");
            let entries = exclusive.into_iter().map(|of| (false, of));
            for (is_shared, of) in entries.chain(locks.iter().map(|of| (true, of.as_document().unwrap()))) {
                let text = |name: &str| of.get(name).and_then(Bson::as_str).unwrap_or_default().to_owned();
                let end = of.get("expiresAt").and_then(Bson::as_datetime);
                let ttl = end.map_or(-1, |end| (end.timestamp_millis() - now.timestamp_millis()).max(0) / 1_000);
                let status = GoStatus {
                    resource: resource.to_owned(),
                    lock_id: text("lockId"),
                    owner: text("owner"),
                    is_shared,
                    ttl,
                    id: of.get_object_id("_id").unwrap(),
                };
                let is_over = end.is_some_and(|end| *end < now);
                if lock_id.is_none_or(|id| id == status.lock_id) && (is_over || !only_expired) {
                    found.push(status);
                }
            }
        }
        found
    }

    fn free(&self, status: &GoStatus) -> bool {
        let GoStatus { resource, lock_id, is_shared, .. } = status;
        let (filter, change) = if *is_shared {
            let filter = doc! { "resource": resource, "shared.locks.lockId": lock_id };
            let change = doc! { "$inc": { "shared.count": -1 }, "$pull": { "shared.locks": { "lockId": lock_id } } };
            (filter, change)
        } else {
            let none = doc! {
                "lockId": null, "owner": null, "host": null, "comment": null,
                "createdAt": null, "renewedAt": null, "expiresAt": null, "acquired": false,
            };
            (doc! { "resource": resource, "exclusive.lockId": lock_id }, doc! { "$set": { "exclusive": none } })
        };
        self.locks.find_one_and_update(filter, change).run().unwrap().is_some()
    }

    fn lock(&self, lock_id: &str, owner: &str, ttl: i64) -> Document {
        let text = |text: &str| if text.is_empty() { Bson::Null } else { text.into() };
        let host = owner.replace("worker", "host");
        let comment = if owner.ends_with('1') { "why" } else { "" };
        doc! {
            "lockId": lock_id,
            "owner": text(owner),
            "host": text(&host),
            "comment": text(comment),
            "createdAt": self.now(),
            "renewedAt": null,
            "expiresAt": if ttl > 0 { Bson::DateTime(self.after(ttl * 1_000)) } else { Bson::Null },
            "acquired": true,
            "_id": ObjectId::new(),
        }
    }

    /// Where no document matches, the upsert inserts one, which the unique index refuses if the lock exists.
    fn upsert(&self, free: Document, held: Document) -> Result<(), Unavailable> {
        let request = self.locks.find_one_and_update(free, held).upsert(true).return_document(ReturnDocument::After);
        let done: DriverResult<Option<Document>> = request.run();
        match done {
            Ok(row) => {
                assert!(row.is_some(), "the answer is the document");
                Ok(())
            }
            Err(error) => match *error.kind {
                ErrorKind::Command(ref error) if error.code == 11_000 => Err(Unavailable),
                _ => panic!("{error:?}"),
            },
        }
    }
}

/// One process of a fleet, which purges now and then.
#[cfg(target_os = "linux")]
pub struct Worker {
    go: Go,
    ttl: i64,
    /// The lock id of the lock that it took last, and its end.
    lock: Option<(String, DateTime)>,
}

#[cfg(target_os = "linux")]
impl Worker {
    pub fn new(name: &str, lease: std::time::Duration) -> Worker {
        // The collection belongs to another process, which drops it.
        let rows = std::mem::ManuallyDrop::new(Rows(name.to_owned()));
        Worker { go: Go::new(&rows), ttl: i64::try_from(lease.as_secs()).unwrap(), lock: None }
    }

    fn end(&self) -> DateTime {
        self.go.after(self.ttl * 1_000)
    }
}

#[cfg(target_os = "linux")]
impl super::member::Member for Worker {
    fn take(&mut self, key: &str, number: u64) -> Option<u64> {
        if fastrand::u8(..8) == 0 {
            self.go.free_all(&self.go.expired());
        }
        let (id, end) = (format!("{number} {}", super::super::stores::unique()), self.end());
        self.lock = self.go.xlock(key, &id, "worker", self.ttl).ok().map(|()| (id, end));
        self.lock.as_ref().map(|_| number)
    }

    fn holds(&mut self, _key: &str) -> bool {
        self.lock.as_ref().is_some_and(|(_, end)| self.go.now() < *end)
    }

    fn renew(&mut self, _key: &str) {
        let end = self.end();
        self.lock = self.lock.take().filter(|(id, _)| self.go.renew(id, self.ttl).is_ok()).map(|(id, _)| (id, end));
    }

    fn leave(&mut self, _key: &str) {
        let _ = self.lock.take().map(|(id, _)| self.go.unlock(&id));
    }
}
