//! A table that nodes of spindle also use: what happens to locks of theirs that ours want, and the reverse. The guide's
//! page on moving from there names each outcome, good or bad. Their hosts' clocks decide nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::sys::clock::Clock;
use leasehold::{ErrorKind, LockClient, LockGuard, LossReason};
use sdk::statement::Statement;
use sdk::value::Value;

use crate::mixed::cells::{self as mixed, S, Step};
use crate::spanner::*;
use crate::support::bench::builder_over;
use crate::support::go::spanner::Node;
use crate::support::logs;
use crate::support::spanner::{Database, Raw, TABLE, sdk, settings};

/// The duration of the nodes, and so the lease of ours: more than a slow emulator needs. Nothing waits for its end.
pub(super) const DURATION: Duration = Duration::from_secs(60);

/// A table with our client, and as many nodes as a test wants.
pub(super) struct World {
    pub database: Database,
    pub raw: Raw,
    pub ours: LockClient,
    nodes: RefCell<BTreeMap<String, Node>>,
}

impl World {
    pub fn new() -> World {
        let database = Database::fresh();
        let ours = client(&database, Fleet::Mixed);
        World { raw: database.raw(), ours, database, nodes: RefCell::default() }
    }

    pub fn node(&self, name: &str, id: &str) -> Node {
        Node::new(&self.database, name, id, DURATION)
    }

    /// A node that leads.
    pub fn leader(&self, name: &str, id: &str) -> Node {
        let mut node = self.node(name, id);
        node.tick();
        assert!(node.has_lock(), "{id}");
        node
    }

    /// Moves every time in the table into the past, because the service has its own clock.
    pub fn pass(&self, by: Duration) {
        let sql = format!(
            "UPDATE {TABLE} SET heartbeat = TIMESTAMP_SUB(heartbeat, INTERVAL @by MILLISECOND), \
             not_after = TIMESTAMP_SUB(not_after, INTERVAL @by MILLISECOND) WHERE heartbeat IS NOT NULL"
        );
        let by = i64::try_from(by.as_millis()).unwrap();
        self.raw.update(Statement::builder(sql).add_param("by", by).build());
    }

    fn rows(&self) -> Vec<BTreeMap<String, Value>> {
        self.raw.query(Statement::builder(format!("SELECT * FROM {TABLE} ORDER BY name")).build())
    }

    pub fn names(&self) -> Vec<String> {
        self.rows().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl mixed::World for World {
    const LEASE: Duration = DURATION;
    const RESPECTED: Duration = Duration::from_secs(59);
    const OVER: Duration = Duration::from_secs(62);
    const HOLDER: &str = "node";
    const RELEASES: bool = false;

    fn fresh() -> World {
        World::new()
    }

    fn ours(&self) -> &LockClient {
        &self.ours
    }

    fn own(&self) -> LockClient {
        client(&self.database, Fleet::Own)
    }

    fn pass(&self, by: Duration) {
        self.pass(by);
    }

    /// Each key has a node of its own.
    fn theirs(&self, key: &str, step: Step) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.entry(key.to_owned()).or_insert_with(|| self.node(key, "node"));
        node.tick();
        if step == Step::Heartbeat { node.leads() } else { node.has_lock() }
    }
}

mixed::cells!(World:
    a_live_lock_is_refused, the_same_owner_gets_no_live_lock, who_crashed_is_taken_over_and_changes_nothing_later, a_released_lock_is_free_at_once,
    heartbeats_keep_a_lock, a_purge_frees_what_is_over_for_both, who_replaces_the_same_owner_takes_theirs, clients_of_both_kinds_of_ours_exclude_each_other,
);

pub(super) fn client(database: &Database, fleet: Fleet) -> LockClient {
    builder_over(Arc::new(open(database, fleet)), Clock::system()).lease(DURATION).connect().unwrap()
}

pub(super) fn open(database: &Database, fleet: Fleet) -> Spanner {
    let mut options = database.options();
    (options.fleet, options.spindle_duration) = (fleet, DURATION);
    Spanner::open(options, &soon()).unwrap()
}

#[track_caller]
pub(super) fn assert_lost(guard: &LockGuard, is_right: fn(&LossReason) -> bool) {
    assert_eq!(guard.ensure_held_for(DURATION).unwrap_err().kind(), ErrorKind::Lost);
    let loss = guard.loss().wait().unwrap();
    assert!(is_right(&loss.reason) && !guard.is_held(), "{loss:?}");
}

/// A row of spindle's golden file: its four columns, with the times only by their order.
fn form(row: &serde_json::Value) -> String {
    let name = row["name"].as_str().unwrap();
    let contended = name.split_once('_').map_or("the lock", |_| "the lock and a number");
    let (heartbeat, token) = (&row["heartbeat"], &row["token"]);
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    let order = match (heartbeat.as_str(), token.as_str()) {
        (None, None) => "null",
        (Some(heartbeat), Some(token)) if heartbeat == token => "the same",
        (Some(heartbeat), Some(token)) if at(heartbeat) > at(token) => "later",
        _ => "other",
    };
    format!("{contended}, {order}, {}", row["writer"])
}

#[test]
fn the_rebuilt_nodes_write_what_was_recorded() {
    needs_server!();
    let world = World::new();
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../golden/spindle.json")).unwrap();
    let mut steps = golden["steps"].as_array().unwrap().iter();
    let mut next = |hash: Option<u64>| {
        let step = steps.next().unwrap();
        let right: Vec<String> = step["rows"].as_array().unwrap().iter().map(form).collect();
        let json = |row: &BTreeMap<String, Value>| {
            let columns = ["name", "heartbeat", "token", "writer"];
            let theirs = columns
                .map(|column| (column.to_owned(), row[column].as_str().map_or(serde_json::Value::Null, Into::into)));
            assert!(row.iter().all(|(name, value)| columns.contains(&name.as_str()) || value.as_str().is_none()));
            serde_json::Value::Object(theirs.into_iter().collect())
        };
        let rows: Vec<String> = world.rows().iter().map(json).map(|row| form(&row)).collect();
        assert_eq!(rows, right, "{}", step["when"]);
        assert_eq!(hash.is_some(), !step["has_lock2"].is_null());
    };
    let mut a = world.leader("golden", "node-a");
    let old = a.hash();
    next(Some(old));
    a.tick();
    assert!(a.leads());
    next(None);
    let mut b = world.node("golden", "node-b");
    b.tick();
    assert!(!b.has_lock(), "node-a leads");
    world.pass(DURATION + 2 * S);
    b.tick();
    assert!(b.has_lock() && !a.has_lock());
    assert_eq!(world.names()[1], format!("golden_{old}"));
    next(Some(b.hash()));
    b.tick();
    next(None);
}

#[test]
fn a_leader_is_seen_by_the_other() {
    needs_server!();
    let world = World::new();
    let mut node = world.leader("theirs", "node-a");
    assert_eq!(world.ours.election("theirs").build().unwrap().leader().unwrap().unwrap().id(), "node-a");
    node.tick();
    assert!(node.leads());
    let _guard = world.ours.lock("ours").unwrap();
    // They know a leader by the writer in the row, which is our grant id.
    assert_eq!(world.node("ours", "node-b").leader().unwrap().len(), 36);
}

#[test]
fn a_takeover_keeps_other_nodes_out_and_a_leader_that_comes_back() {
    needs_server!();
    let world = World::new();
    let mut theirs = world.leader("theirs", "node-a");
    world.pass(DURATION + 2 * S);
    let before = theirs.hash();
    let guard = world.ours.try_lock("theirs").unwrap().unwrap();
    assert!(world.names().contains(&format!("theirs_{before}")), "what keeps other nodes out: {:?}", world.names());
    theirs.tick();
    assert!(!theirs.has_lock() && !theirs.leads(), "a leader that comes back finds another's token");
    guard.ensure_held_for(DURATION / 2).unwrap();
}

/// Even if we had renewed the lock before: what a node writes is never too late.
#[test]
fn a_node_that_takes_a_renewed_lock_over_counts_for_one_lease() {
    needs_server!();
    let world = World::new();
    let crashed = world.ours.request("k").acquire().unwrap();
    world.ours.heartbeat(&crashed, DURATION).unwrap();
    world.pass(DURATION + 2 * S);
    world.leader("k", "node-a");
    assert_eq!(world.ours.get("k").unwrap().unwrap().holders()[0].owner(), "node-a");
    world.pass(DURATION + 2 * S);
    assert!(world.ours.try_lock("k").unwrap().is_some());
}

/// The rows of takeovers belong to nobody, and a node takes what was freed.
#[test]
fn a_purge_frees_no_takeover() {
    needs_server!();
    let world = World::new();
    world.leader("over", "node-a");
    world.pass(DURATION + 2 * S);
    world.ours.request("k").acquire().unwrap();
    assert_eq!(world.ours.purge(Duration::ZERO).unwrap().freed.len(), 1);
    let mut node = world.node("over", "node-c");
    node.tick();
    assert!(node.has_lock());
}

/// A node's heartbeat has no condition: an operator that forces a release must also stop the node.
#[test]
fn a_forced_release_is_undone_by_a_live_leader() {
    needs_server!();
    let world = World::new();
    let mut theirs = world.leader("theirs", "node-a");
    assert_eq!(world.ours.force_release("theirs").unwrap().len(), 1);
    assert!(world.ours.get("theirs").unwrap().unwrap().is_free());
    theirs.tick();
    assert!(theirs.leads() && world.ours.try_lock("theirs").unwrap().is_none());
    let guard = world.ours.lock("ours").unwrap();
    world.ours.force_release("ours").unwrap();
    let mut node = world.node("ours", "node-b");
    node.tick();
    assert!(node.has_lock());
    assert_lost(&guard, |reason| matches!(reason, LossReason::TakenOver { .. }));
}

/// If nobody took a lock over, its node extends it even after its end.
#[test]
fn what_is_over_is_prolonged_by_its_node() {
    needs_server!();
    let world = World::new();
    let mut theirs = world.leader("k", "node-a");
    world.pass(DURATION + 2 * S);
    theirs.tick();
    assert!(theirs.leads() && world.ours.try_lock("k").unwrap().is_none());
}

/// A bad outcome, and the fault of spindle: it treats an age of zero as no heartbeat.
#[test]
fn a_heartbeat_of_this_very_millisecond_counts_as_none() {
    needs_server!();
    let world = World::new();
    let guard = world.ours.lock("k").unwrap();
    let mut node = world.node("k", "node-a");
    node.is_early();
    node.tick();
    assert!(node.has_lock() && node.misread());
    assert_lost(&guard, |reason| matches!(reason, LossReason::TakenOver { .. }));
    // The same without any of ours.
    let other = world.leader("j", "node-a");
    let mut node = world.node("j", "node-b");
    node.is_early();
    node.tick();
    assert!(node.has_lock() && !other.has_lock());
}

/// A node's heartbeats come from another task and check no token, until its next tick finds another leader.
#[test]
fn a_late_heartbeat_of_theirs_takes_nothing_but_time() {
    needs_server!();
    let world = World::new();
    let theirs = world.leader("k", "node-a");
    world.pass(DURATION + 2 * S);
    let guard = world.ours.try_lock("k").unwrap().unwrap();
    theirs.heartbeat();
    guard.ensure_held_for(DURATION / 2).unwrap();
    assert!(!theirs.has_lock());
    guard.release().unwrap();
    // A bad outcome: the released lock is held by nobody for a duration and a second.
    theirs.heartbeat();
    assert!(world.ours.try_lock("k").unwrap().is_none());
    world.pass(DURATION + 2 * S);
    assert!(world.ours.try_lock("k").unwrap().is_some());
    // A late heartbeat of ours changes nothing.
    let mine = world.ours.request("ours").acquire().unwrap();
    world.pass(DURATION + 2 * S);
    let mut node = world.node("ours", "node-b");
    node.tick();
    assert_eq!(world.ours.heartbeat(&mine, DURATION).unwrap_err().kind(), ErrorKind::Lost);
    assert!(node.has_lock());
}

/// A node's second transaction has no condition, so nobody may come between the two.
#[test]
fn a_node_between_its_two_transactions_is_not_overtaken() {
    needs_server!();
    let world = World::new();
    world.ours.request("k").acquire().unwrap();
    world.pass(DURATION + 2 * S);
    let mut node = world.node("k", "node-a");
    let half = node.begin().expect("a takeover");
    assert!(world.ours.try_lock("k").unwrap().is_none() && world.ours.try_lock("k").unwrap().is_none());
    node.finish(half);
    assert!(node.has_lock());
    assert!(world.ours.try_lock("k").unwrap().is_none());
    // Nor does the node come between our look and our write.
    world.pass(DURATION + 2 * S);
    let _guard = world.ours.try_lock("k").unwrap().unwrap();
    let mut slow = world.node("k", "node-b");
    slow.tick();
    assert!(!slow.has_lock());
}

/// Other nodes would then wait for ever.
#[test]
fn a_node_that_died_between_its_two_transactions_is_overtaken_after_two_leases() {
    needs_server!();
    let world = World::new();
    world.ours.request("k").acquire().unwrap();
    world.pass(DURATION + 2 * S);
    world.node("k", "node-a").begin().expect("a takeover");
    let mut other = world.node("k", "node-b");
    other.tick();
    assert!(!other.has_lock());
    // It is first seen now.
    assert!(world.ours.try_lock("k").unwrap().is_none());
    world.pass(2 * DURATION - 18 * S);
    assert!(world.ours.try_lock("k").unwrap().is_none());
    world.pass(19 * S);
    let guard = world.ours.try_lock("k").unwrap().expect("nobody is there");
    guard.release().unwrap();
}

/// The fault is spindle's, and their README says so.
#[test]
fn their_leader_deletes_what_begins_with_its_name() {
    needs_server!();
    let world = World::new();
    let guard = world.ours.lock("job_2").unwrap();
    let theirs = world.leader("job", "node-a");
    theirs.heartbeat();
    assert_lost(&guard, |reason| matches!(reason, LossReason::Gone));
}

#[test]
fn what_nodes_would_not_respect_is_refused_with_the_reason() {
    needs_server!();
    let world = World::new();
    let ours = &world.ours;
    let mine = ours.request("mine").acquire().unwrap();
    let refused = [
        (ours.request("k").lease(DURATION - S).lock().map(drop), "spindle_duration"),
        (ours.request("k").lease(DURATION + S).lock().map(drop), "spindle_duration"),
        (ours.heartbeat(&mine, DURATION + S).map(drop), "spindle_duration"),
        (ours.renew(mine.lock_id(), DURATION + S).map(drop), "spindle_duration"),
        (ours.request("k").lease_forever().lock().map(drop), "no heartbeat"),
        (ours.leases("names").claim("a", "b", DURATION).map(drop), "another table"),
        (ours.lock("it's").map(drop), "with ' or \\: its nodes paste"),
        (ours.lock(r"C:\temp").map(drop), "with ' or \\: its nodes paste"),
        (ours.try_lock_any(["a", "it's"]).map(drop), "paste"),
    ];
    for (outcome, why) in refused {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains("fleet=mixed") && text.contains("spindle beside") && text.contains(why), "{text}");
    }
    let guard = ours.request("k").lease(DURATION).lock().unwrap();
    assert!(guard.remaining() > DURATION / 2);
    let url = |options: &str| format!("spanner:projects/p1/instances/i1/databases/d1?table=locks&{options}");
    for (options, right) in [
        ("fleet=mixed", "spindle_duration"),
        ("fleet=some&spindle_duration=10s", "must be own"),
        ("fleet=mixed&spindle_duration=10ms", "at least 1s"),
    ] {
        let error = LockClient::connect(&url(options)).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(right), "{options}: {error}");
    }
    let table = leasehold::spanner::Table::new(TABLE);
    let of = |table| leasehold::spanner::builder(settings(&world.database.host), &world.database.path, table);
    let build = |table| of(table).request_timeout(REQUEST).connect();
    let error = build(table.clone().mixed_fleet()).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("spindle_duration=.."), "{error}");
    let built = build(table.spindle_duration(DURATION).mixed_fleet()).unwrap();
    assert!(built.lock("built").unwrap().remaining() <= DURATION);
    assert!(built.request("built").lease(2 * DURATION).try_lock().is_err());
    let late = LockClient::builder(url("fleet=mixed&spindle_duration=12s")).heartbeat(Duration::from_millis(4_001));
    let error = late.connect().unwrap_err();
    assert!(error.to_string().contains("a third of the lease"), "{error}");
}

#[test]
fn who_did_not_expect_nodes_is_warned_once_and_a_diagnosis_names_them() {
    needs_server!();
    logs::keep();
    let world = World::new();
    let (first, second) = (crate::support::stores::unique(), crate::support::stores::unique());
    world.leader(&first, "node-a");
    let long_ago = "TIMESTAMP_SUB(heartbeat, INTERVAL 3700 SECOND)";
    let age = format!("UPDATE {TABLE} SET heartbeat = {long_ago}, token = {long_ago} WHERE true");
    world.raw.update(Statement::builder(age).build());
    let own = client(&world.database, Fleet::Own);
    assert!(own.get(&first).unwrap().is_some());
    assert_eq!(logs::kept(&first), [""; 0], "it was written an hour ago");
    world.leader(&second, "node-b");
    assert!(own.try_lock(&second).unwrap().is_none() && own.try_lock(&second).unwrap().is_none());
    let warned = logs::kept(&second);
    assert!(warned.len() == 1 && warned[0].contains("fleet=mixed"), "{warned:?}");
    let _guard = world.ours.lock("ours").unwrap();
    assert_eq!(logs::kept(&second).len(), 1, "who expects them is not told");
    let found = world.ours.diagnose().unwrap().writers.unwrap();
    let found: Vec<(&str, usize)> = found.iter().map(|writer| (writer.library, writer.holders)).collect();
    assert_eq!(found, [("leasehold", 1), ("spindle", 2)]);
}

/// Two clients of each kind find the same lock expired at the same time.
#[test]
fn of_a_fleet_one_takes_over() {
    needs_server!();
    let world = World::new();
    world.ours.request("k").acquire().unwrap();
    let others = [client(&world.database, Fleet::Mixed), client(&world.database, Fleet::Mixed)];
    const ROUNDS: usize = 16;
    let mut right = 0;
    for round in 0..ROUNDS {
        world.pass(DURATION + 2 * S);
        let mut nodes = ["node-a", "node-b"].map(|id| world.node("k", id));
        let start = std::sync::Barrier::new(4);
        let granted: Vec<leasehold::Lock> = std::thread::scope(|scope| {
            for node in &mut nodes {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    node.tick();
                });
            }
            let asks = others.each_ref().map(|ours| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    match ours.request("k").acquire() {
                        Ok(lock) => Some(lock),
                        Err(error) if error.kind() == ErrorKind::Held => None,
                        Err(error) => panic!("{error:?}"),
                    }
                })
            });
            asks.into_iter().filter_map(|ask| ask.join().unwrap()).collect()
        });
        let leaders = nodes.iter().filter(|node| node.has_lock()).count();
        let kept = granted.iter().filter(|lock| world.ours.heartbeat(lock, DURATION).is_ok()).count();
        assert_eq!(leaders + kept, 1, "round {round}: {granted:?}");
        // Spindle's fault, shown below without ours: a holder that a misreading node overwrites learns of it.
        if !nodes.iter().any(Node::misread) {
            assert_eq!(kept, granted.len(), "round {round}: {granted:?}");
            right += 1;
        }
    }
    println!("{right} of {ROUNDS} rounds without their misreading");
}

/// A bad outcome, and the fault of spindle: a node looks at the age first, and at the token later.
#[test]
fn a_node_that_is_overtaken_between_its_two_looks_takes_a_live_lock() {
    needs_server!();
    let world = World::new();
    let after = |take: &mut dyn FnMut()| {
        world.pass(DURATION + 2 * S);
        let mut slow = world.node("k", "slow");
        assert!(slow.finds_it_free());
        take();
        let half = slow.contend().expect("it contends for the new token");
        slow.finish(half);
        assert!(slow.has_lock() && slow.misread());
    };
    world.leader("k", "node-a");
    // The same without any of ours.
    let mut other = world.node("k", "node-b");
    after(&mut || {
        other.tick();
        assert!(other.has_lock());
    });
    assert!(!other.has_lock());
    let mut guard = None;
    after(&mut || guard = world.ours.try_lock("k").unwrap());
    assert_lost(&guard.expect("it was free"), |reason| matches!(reason, LossReason::TakenOver { .. }));
}
