//! The rows in a table of a server, as version 0.1.0 left them: a file has them as the server's own client sees them,
//! and what that version read in them.
//!
//! Their times stay as they were, so each lease was over long ago. A run that writes a file does not read it: a minute
//! later its leases are over, too.

use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::lease::{End, GrantId, Mode};
use leasehold::internals::store::{Backend, Consistency, Purpose, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::{ErrorKind, Lock, LockClient};
use serde_json::{Value as Json, json};

use super::{BRIEF, VERSION, fill, goes_on, golden, is_to_be_written};
use crate::support::bench::builder_over;
use crate::support::calls::refused;
use crate::support::direct::attempt;
use crate::support::stores::{enrolled, soon};

/// The shortest lease that a lock without end may get.
const MINUTE: Duration = Duration::from_secs(60);

/// A new table of a server.
pub trait Table {
    /// The module of its store.
    const STORE: &'static str;
    /// The form in which its rows are written down.
    const FORM: &'static str;

    /// Opens the store in it.
    fn open(&self) -> Arc<dyn Backend>;
    /// Its rows, by their keys.
    fn rows(&self) -> Vec<Json>;
    /// Puts a row there, in the place of any row with the same key.
    fn put(&self, row: &Json);
    /// Makes what only this store has.
    fn fill(&self, _client: &LockClient) {}
}

/// A table with what version 0.1.0 left.
pub struct Restored {
    pub store: Arc<dyn Backend>,
    pub client: LockClient,
    /// What that version read in it, one for each key.
    read: Vec<Json>,
    lock: Lock,
    remembers_who_gave_up: bool,
}

impl Restored {
    /// The golden file in this table, with its rows read as they were. `None` if the file was only written.
    pub fn of<T: Table>(table: &T) -> Option<Restored> {
        let path = golden(&format!("{}.json", T::STORE));
        if is_to_be_written() {
            std::fs::create_dir_all(golden("")).unwrap();
            std::fs::write(path, format!("{:#}\n", written(table))).unwrap();
            return None;
        }
        let file: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        file["rows"].as_array().unwrap().iter().for_each(|row| table.put(row));
        let store = table.open();
        let client = client(&store, "this version");
        let (lock, read) = (serde_json::from_value(file["lock"].clone()).unwrap(), file["read"].clone());
        assert_eq!(serde_json::to_value(&lock).unwrap(), file["lock"], "as it was, to the letter");
        assert_eq!(Json::Array(all(&*store)), read);
        let remembers_who_gave_up = enrolled(T::STORE).expect("its server").remembers_who_gave_up;
        let read = read.as_array().unwrap().clone();
        let restored = Restored { store, client, read, lock, remembers_who_gave_up };
        restored.locks().for_each(|told| restored.is_told(told));
        Some(restored)
    }

    /// What that version read in the row of this key.
    pub fn told(&self, key: &str) -> &Json {
        self.read.iter().find(|told| told["key"] == key).expect("it is in the golden file")
    }

    fn locks(&self) -> impl Iterator<Item = &Json> {
        self.read.iter().filter(|told| told["kind"] == "lock")
    }

    /// Asserts the same as users see it.
    fn is_told(&self, told: &Json) {
        let key = told["key"].as_str().unwrap();
        let status = self.client.get(key).unwrap().expect("a row");
        assert_eq!(told["token"], status.fencing_token(), "{key}");
        let holders = told["holders"].as_array().unwrap();
        assert_eq!(status.holders().len(), holders.len(), "{key}");
        for (holder, told) in status.holders().iter().zip(holders) {
            assert_eq!(told["mode"], holder.mode().to_string(), "{key}");
            assert_eq!((&told["lock_id"], &told["owner"]), (&json!(holder.lock_id()), &json!(holder.owner())), "{key}");
            assert_eq!((&told["host"], &told["comment"]), (&json!(holder.host()), &json!(holder.comment())), "{key}");
            assert_eq!(told["token"], holder.fencing_token(), "{key}");
            let left = (!told["until"].is_null()).then_some(Duration::ZERO);
            assert_eq!((holder.remaining(), holder.is_expired()), (left, left.is_some()), "{key}");
        }
    }

    /// Asserts that given-up grants, expired locks and pins are respected, and that what is held goes on.
    pub fn goes_on(&self) {
        self.no_late_copy_is_granted();
        self.a_purge_frees_what_is_over_and_leaves_the_rest();
        self.what_is_pinned_stands_until_it_is_not();
        goes_on(&self.client, &self.lock);
    }

    fn no_late_copy_is_granted(&self) {
        let mut copies = 0;
        for told in &self.read {
            for grant in told["given_up"].as_array().unwrap() {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    let mut copy = attempt(&*self.store, told["key"].as_str().unwrap(), mode);
                    copy.ask.grant = GrantId::from_text(grant.as_str().unwrap());
                    assert_eq!(refused(&*self.store, &mut copy).live().count(), 0, "nobody holds it: {told}");
                    copies += 1;
                }
            }
        }
        assert_eq!(copies > 0, self.remembers_who_gave_up);
    }

    fn a_purge_frees_what_is_over_and_leaves_the_rest(&self) {
        let is_over = |told: &Json| told["holders"].as_array().unwrap().iter().any(|h| !h["until"].is_null());
        let before = all(&*self.store);
        let is_freed = |told: &&Json| told["kind"] == "lock" && is_over(told);
        let over: Vec<&str> = before.iter().filter(is_freed).map(|told| told["key"].as_str().unwrap()).collect();
        assert_eq!(over, ["over", "renewed", "shared and over"]);
        let purged = self.client.purge(Duration::ZERO).unwrap();
        assert_eq!(purged.freed.iter().map(|holder| holder.key()).collect::<Vec<_>>(), over);
        // Rows that are free may be deleted once they are a month old.
        let is_kept = |told: &&Json| told["holders"] != json!([]) || told["pins"] != json!([]);
        let kept: Vec<Json> = before.iter().filter(|told| !is_freed(told)).filter(is_kept).cloned().collect();
        let after = all(&*self.store);
        assert_eq!(after.iter().filter(is_kept).cloned().collect::<Vec<_>>(), kept);
        assert_eq!(kept.iter().filter(|told| told["kind"] == "lease").count(), 3, "{kept:?}");
        for key in over {
            let guard = self.client.try_lock(key).unwrap().expect("it is free");
            assert!(Some(guard.fencing_token()) > self.told(key)["token"].as_u64(), "{key}");
            guard.release().unwrap();
        }
    }

    fn what_is_pinned_stands_until_it_is_not(&self) {
        let leases = self.client.leases("reports");
        for entity in ["auditor", "reader"] {
            assert_eq!(leases.expire("weekly").unwrap_err().kind(), ErrorKind::InvalidLease, "{entity} pins it");
            leases.unpin("weekly", entity).unwrap();
        }
        let weekly = leases.get("weekly").unwrap().expect("nobody expired it");
        assert_eq!((weekly.holder(), weekly.pinned_by().len()), ("node-2", 0));
        leases.expire("weekly").unwrap();
        assert!(leases.get("weekly").unwrap().is_none());
        assert_eq!(leases.pinned_by("monthly").unwrap().into_iter().collect::<Vec<_>>(), ["auditor"]);
        let monthly = leases.claim("monthly", "node-3", MINUTE).unwrap();
        assert_eq!(monthly.pinned_by().len(), 1, "who pins it is not asked by a claim");
        leases.unpin("monthly", "auditor").unwrap();
        leases.revoke("monthly", "node-3").unwrap();
    }
}

fn client(store: &Arc<dyn Backend>, owner: &str) -> LockClient {
    builder_over(store.clone(), Clock::system()).owner(owner).connect().unwrap()
}

/// The golden file of this version.
fn written<T: Table>(table: &T) -> Json {
    let store = table.open();
    let client = client(&store, VERSION);
    let lock = fill(&client);
    let renewed = client.request("renewed").comment("it had no end").lease_forever().acquire().unwrap();
    client.heartbeat(&renewed, MINUTE).unwrap();
    let shared = client.request("shared and over").shared().lease(BRIEF).acquire().unwrap();
    client.heartbeat(&shared, BRIEF).unwrap();
    for (key, mode) in [("free", Mode::Exclusive), ("free", Mode::Shared), ("unmade", Mode::Exclusive)] {
        store.release(&mut attempt(&*store, key, mode), Purpose::GiveUp, &soon()).unwrap();
    }
    let leases = client.leases("reports");
    leases.claim("weekly", "node-2", BRIEF).unwrap();
    leases.extend("weekly", "node-2", 2 * BRIEF).unwrap();
    ["auditor", "reader"].iter().for_each(|entity| leases.pin("weekly", entity).unwrap());
    leases.pin("monthly", "auditor").unwrap();
    table.fill(&client);
    client.close().unwrap();
    let mut lock = serde_json::to_value(&lock).unwrap();
    // The lock names a table that is gone.
    lock.as_object_mut().unwrap().remove("store");
    let what = format!(
        "Rows as version {VERSION} left them; {}. read: what that version read in them, times in nanoseconds since 1970",
        T::FORM
    );
    json!({ "what": what, "rows": table.rows(), "lock": lock, "read": all(&*store) })
}

/// What a store reads, one record for each key.
fn all(store: &dyn Backend) -> Vec<Json> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = store.read(&Which::Prefix(String::new()), from, Consistency::Strong, &soon()).unwrap();
        all.extend(page.records.into_iter().map(|seen| seen.record));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    all.sort_by(|a, b| a.key.cmp(&b.key));
    let told = all.iter().map(|record| {
        let holders = record.holders().map(|(mode, h)| {
            let until = match h.until {
                End::At(at) => Some(at.as_nanos()),
                End::Never => None,
            };
            json!({
                "mode": mode.to_string(), "grant": h.grant.as_str(), "lock_id": h.lock_id, "owner": h.labels.owner,
                "host": h.labels.host, "comment": h.labels.comment, "token": h.token, "created": h.created.as_nanos(),
                "renewed": h.renewed.map(|at| at.as_nanos()), "until": until,
            })
        });
        json!({
            "key": record.key, "kind": record.kind.as_str(), "token": record.token, "pins": record.pins,
            "given_up": record.given_up.iter().map(GrantId::as_str).collect::<Vec<_>>(), "format": record.format,
            "holders": holders.collect::<Vec<_>>(),
        })
    });
    told.collect()
}
