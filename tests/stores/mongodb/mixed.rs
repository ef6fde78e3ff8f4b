//! A collection that clients of mongo-lock also use: what happens to a lock of theirs that ours want, and to one of
//! ours that they want. The guide's page on moving from there names each outcome, good or bad.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::store::mongodb::MongodbOptions;
use leasehold::internals::sys::clock::Clock;
use leasehold::mongodb::driver::bson::{Bson, DateTime, Document, doc};
use leasehold::{ErrorKind, LockClient, LockGuard, LossReason};

use crate::mixed::cells::{self as mixed, S, Step};
use crate::mongodb::*;
use crate::support::bench::builder_over;
use crate::support::go::Unavailable;
use crate::support::go::mongodb::Go;
use crate::support::logs;
use crate::support::mongodb::{DATABASE, Rows, server};
use crate::support::stores::unique;
use crate::support::wait::wait_until;

pub(super) const LEASE: Duration = Duration::from_secs(60);
const TTL: i64 = 60;
const OWNER: &str = "worker-1";

pub(super) struct World {
    pub rows: Rows,
    pub go: Go,
    pub ours: LockClient,
}

impl World {
    pub fn new() -> World {
        let rows = Rows::fresh();
        let ours = client(&rows, Fleet::Mixed);
        World { go: Go::new(&rows), rows, ours }
    }

    /// Makes everything in the collection this much older, because the server has its own clock.
    pub fn pass(&self, by: Duration) {
        self.rows.age(by);
    }

    /// Returns when ours have just freed what is over, which they do in the background every ten seconds: a lock that a
    /// test lets expire now remains until the test has looked at it.
    pub fn has_freed(&self) {
        self.go.xlock("freed", "freed", OWNER, TTL).unwrap();
        self.pass(LEASE + S);
        drop(self.ours.lock("anything").unwrap());
        wait_until("what is over is freed", || self.go.status(Some("freed"), false).is_empty());
    }
}

impl mixed::World for World {
    const LEASE: Duration = LEASE;
    const RESPECTED: Duration = Duration::from_secs(55);
    const OVER: Duration = Duration::from_secs(61);
    const HOLDER: &str = OWNER;

    fn fresh() -> World {
        World::new()
    }

    fn ours(&self) -> &LockClient {
        &self.ours
    }

    fn own(&self) -> LockClient {
        client(&self.rows, Fleet::Own)
    }

    fn pass(&self, by: Duration) {
        self.pass(by);
    }

    /// Here the lock id is the key.
    fn theirs(&self, key: &str, step: Step) -> bool {
        match step {
            Step::Acquire => self.go.xlock(key, key, OWNER, TTL).is_ok(),
            Step::Heartbeat => self.go.renew(key, TTL).is_ok(),
            Step::Release => !self.go.unlock(key).is_empty(),
        }
    }
}

mixed::cells!(World:
    a_live_lock_is_refused, the_same_owner_gets_no_live_lock, who_crashed_is_taken_over_and_changes_nothing_later, a_released_lock_is_free_at_once,
    heartbeats_keep_a_lock, a_purge_frees_what_is_over_for_both, who_replaces_the_same_owner_takes_theirs, clients_of_both_kinds_of_ours_exclude_each_other,
);

pub(super) fn client(rows: &Rows, fleet: Fleet) -> LockClient {
    let store = open(MongodbOptions { fleet, ..rows.options() });
    builder_over(Arc::new(store), Clock::system()).lease(LEASE).connect().unwrap()
}

#[track_caller]
fn assert_lost(guard: &LockGuard) -> LossReason {
    assert_eq!(guard.ensure_held_for(LEASE).unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
    guard.loss().wait().unwrap().reason
}

/// The form of a document, without ids and times, which differ.
fn form(document: &Document) -> serde_json::Value {
    fn plain(value: serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(map) => {
                for sign in ["$oid", "$date"] {
                    if map.contains_key(sign) {
                        return sign.into();
                    }
                }
                serde_json::Value::Object(map.into_iter().map(|(name, value)| (name, plain(value))).collect())
            }
            serde_json::Value::Array(all) => all.into_iter().map(plain).collect(),
            other => other,
        }
    }
    plain(Bson::Document(document.clone()).into_canonical_extjson())
}

#[test]
fn the_rebuilt_client_writes_what_was_recorded() {
    let rows = needs_server!(Rows::fresh());
    let go = Go::new(&rows);
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../golden/mongo-lock.json")).unwrap();
    let mut steps = golden["steps"].as_array().unwrap().iter();
    let mut next = || {
        let step = steps.next().unwrap();
        let right = step["documents"].as_array().unwrap().iter();
        let right: Vec<serde_json::Value> = right
            .map(|json| match Bson::try_from(json.clone()).unwrap() {
                Bson::Document(document) => form(&document),
                other => panic!("{other}"),
            })
            .collect();
        let found = rows.raw().find(Document::new()).run().unwrap().map(|row| form(&row.unwrap()));
        assert_eq!(found.collect::<Vec<_>>(), right, "{}", step["when"]);
    };
    go.xlock("nightly", "lock-1", OWNER, 30).unwrap();
    next();
    go.slock("report", "lock-2", OWNER, 30, -1).unwrap();
    go.slock("report", "lock-3", "worker-2", 0, -1).unwrap();
    next();
    go.renew("lock-1", 60).unwrap();
    next();
    assert_eq!((go.unlock("lock-2").len(), go.unlock("lock-1").len()), (1, 1));
    next();
}

#[test]
fn shared_and_endless_locks_are_refused_and_seen_by_the_other() {
    let world = needs_server!(World::new());
    world.go.xlock("x", "theirs", OWNER, TTL).unwrap();
    world.go.slock("s", "theirs", OWNER, TTL, 2).unwrap();
    assert!(world.ours.try_lock_shared("x").unwrap().is_none() && world.ours.try_lock("s").unwrap().is_none());
    let both = world.ours.lock_shared("s").unwrap();
    assert_eq!(world.go.slock("s", "more", OWNER, TTL, 2), Err(Unavailable));
    world.go.slock("s", "more", OWNER, TTL, 3).unwrap();
    drop(both);

    let began = Instant::now();
    let _guard = world.ours.request("ours").owner("billing").lock_id("job").lock().unwrap();
    let _endless = world.ours.request("endless").lock_id("for ever").lease_forever().lock().unwrap();
    for resource in ["ours", "endless"] {
        assert_eq!(world.go.xlock(resource, "theirs", "billing", TTL), Err(Unavailable));
        assert_eq!(world.go.slock(resource, "theirs", "billing", TTL, -1), Err(Unavailable));
    }
    let seen = world.go.status(Some("job"), false);
    let left = seen[0].ttl + began.elapsed().as_secs().cast_signed();
    assert_eq!((seen[0].owner.as_str(), seen[0].is_shared, left > 55), ("billing", false, true), "{seen:?}");
    assert_eq!(world.go.status(Some("for ever"), false)[0].ttl, -1);
}

#[test]
fn a_released_shared_lock_is_free_at_once() {
    let world = needs_server!(World::new());
    for _ in 0..2 {
        world.go.slock("k", "a", OWNER, TTL, 1).unwrap();
        world.go.unlock("a");
        drop(world.ours.try_lock_shared("k").unwrap().unwrap());
    }
}

#[test]
fn heartbeats_keep_a_shared_lock() {
    let world = needs_server!(World::new());
    let shared = world.ours.request("shared").shared().acquire().unwrap();
    for _ in 0..2 {
        world.pass(40 * S);
        // Their library asks for no end here, but it sees the end, as ours does.
        assert!(world.go.status(Some(shared.lock_id()), false)[0].ttl > 0);
        assert!(world.ours.try_lock("shared").unwrap().is_none());
        assert_eq!(world.go.xlock("shared", "b", OWNER, TTL), Err(Unavailable));
        world.ours.heartbeat(&shared, LEASE).unwrap();
    }
}

/// A client of either library that knows the lock id may unlock and renew by it. That is bad if the lock of theirs was
/// over long ago.
#[test]
fn the_same_lock_id_is_the_right_to_both() {
    let world = needs_server!(World::new());
    world.go.xlock("theirs", "job", OWNER, TTL).unwrap();
    assert_eq!(world.ours.unlock("job").unwrap().len(), 1);
    assert!(world.ours.try_lock("theirs").unwrap().is_some());
    world.go.xlock("k", "job", OWNER, TTL).unwrap();
    world.pass(LEASE + S);
    let guard = world.ours.request("k").lock_id("job").lock().unwrap();
    world.go.is_ahead_by(30_000);
    world.go.renew("job", TTL).unwrap();
    world.go.is_ahead_by(0);
    let left = world.ours.get("k").unwrap().unwrap().holders()[0].remaining().unwrap();
    assert!(left > LEASE + 20 * S, "their clock decides: {left:?}");
    assert_eq!(world.go.unlock("job").len(), 1);
    assert!(matches!(assert_lost(&guard), LossReason::ReleasedByOther));
}

/// The fault is theirs: their purger frees every lock with a lock id if one of those locks is over.
#[test]
fn their_purger_frees_what_shares_a_lock_id() {
    let world = needs_server!(World::new());
    world.go.xlock("over", "job", OWNER, TTL).unwrap();
    world.pass(LEASE + S);
    // Read before ours free it.
    let expired = world.go.expired();
    let guard = world.ours.request("live").lock_id("job").lock().unwrap();
    let other = world.ours.request("other").lock().unwrap();
    world.go.free_all(&expired);
    assert!(matches!(assert_lost(&guard), LossReason::ReleasedByOther));
    other.ensure_held_for(LEASE / 2).unwrap();
}

/// Their locks have no tokens.
#[test]
fn a_forced_release_spares_who_of_theirs_came_after_it() {
    let world = needs_server!(World::new());
    let store = open(MongodbOptions { fleet: Fleet::Mixed, ..world.rows.options() });
    let go = Go::new(&world.rows);
    let acquire = move |owner: &str| go.xlock("k", owner, owner, TTL).unwrap();
    mixed::a_forced_release_spares_who_of_theirs_came_after_it(Arc::new(store), &Clock::system(), acquire);
}

/// An expired entry blocks their clients until somebody frees it.
#[test]
fn what_is_over_is_freed_now_and_then() {
    let world = needs_server!(World::new());
    world.go.xlock("x", "a", OWNER, TTL).unwrap();
    world.go.slock("s", "b", OWNER, TTL, -1).unwrap();
    world.go.slock("s", "c", OWNER, 0, -1).unwrap();
    world.pass(LEASE + S);
    assert_eq!(world.go.slock("x", "d", OWNER, TTL, -1), Err(Unavailable), "expired or not, it is acquired");
    let other = client(&world.rows, Fleet::Mixed);
    drop(other.lock("anything").unwrap());
    wait_until("what is over is freed", || world.go.slock("x", "d", OWNER, TTL, -1).is_ok());
    let left = |id: &str| world.go.status(Some(id), false).len();
    wait_until("of shared ones, too", || (left("b"), left("c")) == (0, 1));
}

/// Damaged documents stop nothing and are left as they are, as are those that are not ours to write. Live ones are not
/// touched.
#[test]
fn freeing_leaves_alone_what_is_not_over() {
    let world = needs_server!(World::new());
    world.go.is_ahead_by(-2 * TTL * 1_000);
    for key in ["damaged", "newer", "older", "over"] {
        world.go.slock(key, &format!("shared {key}"), OWNER, TTL, -1).unwrap();
    }
    world.go.xlock("exclusive", "x", OWNER, TTL).unwrap();
    let damages = [
        doc! { "kind": 1 },
        doc! { "format": 1 },
        doc! { "format": "1.x" },
        doc! { "fence": "x" },
        doc! { "fence": -5 },
        doc! { "fence": 1.5 },
        doc! { "version": "x" },
        doc! { "version": -5_i64 },
        doc! { "pins": "x" },
        doc! { "exclusive._id": 1, "exclusive.acquired": true },
        doc! { "exclusive.expiresAt": 1, "exclusive.acquired": true },
        doc! { "exclusive.acquired": 1 },
        doc! { "shared.locks": [1, { "expiresAt": DateTime::from_millis(0) }] },
        doc! { "shared.locks": [{ "expiresAt": DateTime::from_millis(0), "_id": 1 }] },
    ];
    for damage in &damages {
        let (shared, exclusive) = (format!("shared {damage}"), format!("exclusive {damage}"));
        world.go.slock(&shared, &shared, OWNER, TTL, -1).unwrap();
        world.go.xlock(&exclusive, &exclusive, OWNER, TTL).unwrap();
    }
    world.go.is_ahead_by(0);
    let set = |key: &str, fields: Document| {
        let changed = world.rows.raw().update_one(doc! { "resource": key }, doc! { "$set": fields }).run().unwrap();
        assert_eq!(changed.modified_count, 1);
    };
    let locks = |key: &str| {
        let row = world.rows.row(key).unwrap();
        row.get_document("shared").unwrap().get_array("locks").unwrap().clone()
    };
    let with = |end: Bson| {
        let over = locks("over").remove(0);
        let mut entry = over.as_document().unwrap().clone();
        entry.insert("expiresAt", end);
        doc! { "shared": { "count": 2_i64, "locks": [over, entry] } }
    };
    set("damaged", with("soon".into()));
    set("newer", doc! { "format": "2.0" });
    set("older", doc! { "format": "1.7" });
    set("over", with(Bson::Null));
    for n in 0..20 {
        world.go.xlock(&format!("live {n}"), &format!("live {n}"), OWNER, TTL - n % 2).unwrap();
    }
    let mut left = vec!["damaged".to_owned(), "newer".to_owned()];
    for damage in damages {
        for key in [format!("shared {damage}"), format!("exclusive {damage}")] {
            set(&key, damage.clone());
            assert!(world.ours.get(&key).unwrap_err().to_string().contains("left as it is"), "{key}");
            left.push(key);
        }
    }
    let rows = || left.iter().map(|key| world.rows.row(key).unwrap()).collect::<Vec<_>>();
    let before = rows();
    let database = server().database(DATABASE);
    let ns = format!("{DATABASE}.{}", world.rows.0);
    database.run_command(doc! { "profile": 2, "filter": { "ns": &ns } }).run().unwrap();
    drop(client(&world.rows, Fleet::Mixed).lock("anything").unwrap());
    wait_until("what is over is freed", || (locks("over").len(), locks("older").len()) == (1, 0));
    let is_free = |row: Document| row.get_document("exclusive").unwrap().get_bool("acquired") == Ok(false);
    wait_until("of exclusive ones, too", || is_free(world.rows.row("exclusive").unwrap()));
    let profile = database.collection::<Document>("system.profile");
    let freeing = || profile.find_one(doc! { "ns": &ns, "op": "update", "nModified": 3 }).run().unwrap();
    wait_until("it is profiled", || freeing().is_some());
    database.run_command(doc! { "profile": 0, "filter": "unset" }).run().unwrap();
    let examined = freeing().unwrap().get("docsExamined").cloned();
    assert_eq!(examined, Some(Bson::Int32(32)), "of those that live, none");
    assert_eq!(rows(), before);
}

/// A bad outcome, and the fault of their library: their hosts' clocks decide, without a grace.
#[test]
fn a_clock_that_is_off_by_four_seconds_lets_two_hold_one_lock() {
    let world = needs_server!(World::new());
    world.go.is_ahead_by(4_000);
    let mine = world.ours.request("ours").acquire().unwrap();
    world.pass(LEASE - 2 * S);
    world.go.xlock("ours", "a", OWNER, TTL).expect("they decide by a clock that is 4 s ahead");
    assert_eq!(world.ours.heartbeat(&mine, LEASE).unwrap_err().kind(), ErrorKind::Lost, "it learns of it");
    world.go.is_ahead_by(-4_000);
    world.go.xlock("theirs", "b", OWNER, TTL).unwrap();
    world.pass(LEASE - 2 * S);
    assert!(world.ours.try_lock("theirs").unwrap().is_some(), "its end seemed earlier than it was");
}

#[test]
fn what_is_refused_says_why() {
    let world = needs_server!(World::new());
    let error = world.ours.leases("names").claim("a", "b", LEASE).unwrap_err();
    let text = error.to_string();
    assert!(
        error.kind() == ErrorKind::InvalidInput && text.contains("fleet=mixed") && text.contains("another collection"),
        "{text}"
    );
    assert_eq!(world.ours.request("k").lease(2 * S).try_lock().unwrap_err().kind(), ErrorKind::InvalidInput);
    let url = |option: &str| format!("{}&{option}", world.rows.url());
    for (option, right) in [
        ("fleet=both", "must be own"),
        ("flet=mixed", "did you mean \"fleet\""),
        ("fleet=mixed&fleet=own", "given twice"),
    ] {
        let error = LockClient::connect(&url(option)).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(right), "{option}: {error}");
    }
    let of_url = connect(&url("fleet=mixed"));
    let collection = leasehold::mongodb::Collection::new(&world.rows.0).mixed_fleet();
    let settings = crate::support::mongodb::settings(&crate::support::servers::mongod().unwrap());
    let built =
        sent(|| patient(leasehold::mongodb::builder_with(settings.clone(), DATABASE, collection.clone())).connect());
    for client in [of_url, built] {
        assert!(client.leases("names").claim("a", "b", LEASE).is_err());
        assert!(client.lock("k").unwrap().is_held());
    }
}

#[test]
fn who_did_not_expect_them_is_warned_once_and_a_diagnosis_names_them() {
    needs_server!();
    logs::keep();
    let world = World::new();
    let (first, second) = (unique(), unique());
    world.go.xlock(&first, "a", OWNER, 7_200).unwrap();
    world.pass(Duration::from_secs(3_700));
    let own = client(&world.rows, Fleet::Own);
    // A client that only holds learns of it from the loss.
    let (lost, released) = (unique(), unique());
    for key in [&lost, &released] {
        let other = client(&world.rows, Fleet::Own);
        let held = other.request(key).acquire().unwrap();
        world.pass(LEASE + S);
        world.go.xlock(key, key, OWNER, 7_200).unwrap();
        if *key == lost {
            drop(other.heartbeat(&held, LEASE))
        } else {
            drop(other.release(&held))
        };
        assert_eq!(logs::kept(key).len(), 1);
    }
    assert!(own.try_lock(&first).unwrap().is_none());
    assert_eq!(logs::kept(&first), [""; 0], "it was written an hour ago");
    world.go.slock(&second, "b", OWNER, TTL, -1).unwrap();
    assert!(own.try_lock(&second).unwrap().is_none() && own.get(&second).unwrap().is_some());
    let warned = logs::kept(&second);
    assert!(warned.len() == 1 && warned[0].contains("fleet=mixed"), "{warned:?}");
    let _guard = world.ours.lock("ours").unwrap();
    assert!(world.ours.try_lock(&second).unwrap().is_none());
    assert_eq!(logs::kept(&second).len(), 1, "who expects them is not told");
    let found = world.ours.diagnose().unwrap().writers.unwrap();
    let found: Vec<(&str, usize)> = found.iter().map(|writer| (writer.library, writer.holders)).collect();
    assert_eq!(found, [("leasehold", 1), ("mongo-lock", 4)]);
}
