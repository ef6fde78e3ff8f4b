//! The rows for which takeovers compete in a table that nodes of spindle also use: who looks at them, and who deletes
//! them.

use std::time::Instant;

use leasehold::internals::lease::End;
use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::store::{Purpose, Swapped};
use leasehold::{ErrorKind, LossReason};
use sdk::mutation::Mutation;
use sdk::statement::Statement;

use super::mixed::{DURATION, World, assert_lost, client, open};
use crate::mixed::cells::S;
use crate::spanner::*;
use crate::support::grpc::Grpc;
use crate::support::spanner::{TABLE, sdk};

/// A node between its two transactions looks at no heartbeat any more.
#[test]
fn what_is_over_is_renewed_by_nobody() {
    needs_server!();
    let world = World::new();
    let ours = &world.ours;
    let contended = ours.request("contended").acquire().unwrap();
    let late = ours.request("late").acquire().unwrap();
    let guard = ours.lock("guard").unwrap();
    world.pass(DURATION + 2 * S);
    let mut node = world.node("contended", "node-a");
    let half = node.begin().expect("a takeover");
    assert_eq!(ours.heartbeat(&contended, DURATION).unwrap_err().kind(), ErrorKind::Lost);
    node.finish(half);
    assert!(node.has_lock());

    let error = ours.heartbeat(&late, DURATION).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Lost && error.holders().is_empty(),
        "a node may have seen that it is over: {error}"
    );
    ours.try_lock("late").unwrap().expect("it is over").release().unwrap();
    assert_lost(&guard, |reason| matches!(reason, LossReason::Expired { .. }));

    let shared = ours.request("shared").shared().acquire().unwrap();
    ours.heartbeat(&shared, DURATION).unwrap();
    world.raw.age(DURATION + 2 * S);
    assert_eq!(ours.heartbeat(&shared, DURATION).unwrap_err().kind(), ErrorKind::Lost);
    let third = ours.request("shared").shared().acquire().unwrap();
    ours.heartbeat(&third, DURATION).unwrap();
    // Releasing an expired lock is no renewal.
    ours.release(&third).unwrap();
}

/// The rows that takeovers are about to need come first in the table as often as not.
#[test]
fn the_rows_of_takeovers_do_not_pile_up() {
    needs_server!();
    assert!((0..5).any(|_| the_rows_of_takeovers_are_few()), "the emulator was too slow each time");
}

/// Returns whether the rows that must stay were young all the time.
fn the_rows_of_takeovers_are_few() -> bool {
    let world = World::new();
    let other = world.ours.request("k_1").acquire().unwrap();
    let grants = |n: usize| (0..n).for_each(|_| world.ours.lock("k").unwrap().release().unwrap());
    let rows = || -> Vec<String> {
        let is_one = |name: &String| name.starts_with("k_") && name != "k_1";
        world.names().into_iter().filter(is_one).collect()
    };
    let began = Instant::now();
    grants(61);
    let young = rows();
    if began.elapsed() >= 2 * DURATION {
        return false;
    }
    assert_eq!(young.len(), 60, "one for each takeover, for two leases: a slow node would insert it again");
    let from = &young[25];
    let age = format!(
        "UPDATE {TABLE} SET heartbeat = TIMESTAMP_SUB(heartbeat, INTERVAL {} SECOND) WHERE STARTS_WITH(name, 'k_') AND name >= @from",
        2 * DURATION.as_secs() + 1
    );
    world.raw.update(Statement::builder(age).add_param("from", from).build());
    grants(2);
    let left = rows();
    if began.elapsed() >= 2 * DURATION {
        return false;
    }
    assert!(left.iter().filter(|name| young.contains(name)).eq(&young[..25]), "{left:?}");

    // A node that died left a row without a time. It gets one at the next takeover.
    world.raw.write(Mutation::new_insert_builder(TABLE).set("name").to("k_0").build());
    grants(1);
    assert!(rows().contains(&"k_0".to_owned()));
    world.pass(2 * DURATION + S);
    grants(3);
    assert_eq!(rows().len(), 3);
    assert!(world.names().contains(&"k_1".to_owned()), "a lock whose name looks alike stays");
    world.ours.release(&other).unwrap();
    true
}

#[test]
fn a_diagnosis_is_not_kept_from_nodes_by_their_rows_and_says_where_it_stopped() {
    needs_server!();
    let world = World::new();
    let rows = |prefix: &str, writer: Option<&str>| {
        let row = |i: u32| {
            let row = Mutation::new_insert_builder(TABLE).set("name").to(format!("{prefix}_{i}"));
            row.set("writer").to(writer.map(str::to_owned)).build()
        };
        let all: Vec<Mutation> = (0..600).map(row).collect();
        world.raw.wait(world.raw.client.write_only_transaction().build().write(all)).unwrap();
    };
    let found = || {
        let diagnosis = world.ours.diagnose().unwrap();
        let writers = diagnosis.writers.unwrap();
        (writers.iter().map(|writer| (writer.library, writer.holders)).collect::<Vec<_>>(), diagnosis.writers_cut_at)
    };
    rows("a", None);
    world.leader("z", "node-a");
    assert_eq!(found(), (vec![("spindle", 1)], None));
    // Released locks are rows like any other.
    rows("b", Some("gone"));
    assert_eq!(found(), (vec![], Some(500)));
}

/// However many rows a listing has to pass over, each of its requests reads a bounded number of them.
#[test]
fn a_listing_passes_over_the_rows_of_takeovers_in_bounded_requests() {
    needs_server!();
    let world = World::new();
    let row = |n: u32| Mutation::new_insert_builder(TABLE).set("name").to(format!("k_{n:04}")).build();
    for some in (0..2_500).collect::<Vec<_>>().chunks(500) {
        let rows: Vec<Mutation> = some.iter().map(|n| row(*n)).collect();
        world.raw.wait(world.raw.client.write_only_transaction().build().write(rows)).unwrap();
    }
    for key in ["k", "k_0500_mine", "l"] {
        world.ours.request(key).acquire().unwrap();
    }
    let database = &world.database;
    let grpc = Grpc::new(&database.host);
    let store = Spanner::open(database.options_at(&grpc.host), &soon()).unwrap();
    let pages = |prefix: &str| {
        grpc.restart();
        let (mut pages, mut from) = (Vec::new(), None);
        loop {
            let page = store.read(&Which::Prefix(prefix.to_owned()), from, Consistency::Strong, &soon()).unwrap();
            pages.push(page.records.into_iter().map(|seen| seen.record.key).collect::<Vec<_>>());
            from = page.next;
            if from.is_none() {
                assert_eq!(grpc.methods().len(), pages.len(), "{:?}", grpc.methods());
                return pages;
            }
        }
    };
    let right: [&[&str]; 3] = [&["k", "k_0500_mine"], &[], &["l"]];
    assert_eq!(pages(""), right);
    assert_eq!(pages("k_")[0], ["k_0500_mine"]);
    assert_eq!((pages("k_2").len(), pages("l")), (1, vec![vec!["l".to_owned()]]));
}

/// A node that takes a shared lock over leaves the entries of the holders where they are.
#[test]
fn no_transaction_of_a_shared_holder_passes_after_a_node_took_over() {
    needs_server!();
    let world = World::new();
    let guard = world.ours.lock_shared("k").unwrap();
    let work = || {
        let run = leasehold::spanner::run_fenced(&guard, &world.raw.client, async |_| Ok(()));
        world.raw.wait(run)
    };
    work().unwrap();
    // With another holder next to it, and without.
    drop(world.ours.lock_shared("k").unwrap());
    work().unwrap();
    world.raw.age(DURATION + 2 * S);
    world.pass(DURATION + 2 * S);
    let mut node = world.node("k", "node-a");
    node.tick();
    assert!(node.has_lock());
    let error = work().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// A group is renewed by a swap, whose condition is the row as it was read, and not the time.
#[test]
fn no_swap_renews_what_is_over() {
    needs_server!();
    let world = World::new();
    let store = open(&world.database, Fleet::Mixed);
    for is_shared in [false, true] {
        let key = format!("shared {is_shared}");
        let ask = if is_shared { world.ours.request(&key).shared() } else { world.ours.request(&key) };
        ask.acquire().unwrap();
        // A client reads it in time, and writes when a node may have begun to take it over.
        if is_shared {
            world.raw.age(DURATION + 2 * S)
        } else {
            world.pass(DURATION + 2 * S)
        }
        let seen = get(&store, &key);
        let mut new = seen.record.clone();
        let later = End::At(seen.times.now.plus(DURATION));
        new.exclusive.iter_mut().chain(&mut new.shared).for_each(|holder| holder.until = later);
        assert!(matches!(store.swap(&seen, Some(&new), &soon()).unwrap(), Swapped::Changed), "{key}");
        // Removing a holder is no renewal.
        (new.exclusive, new.shared) = (None, Vec::new());
        assert!(matches!(store.swap(&seen, Some(&new), &soon()).unwrap(), Swapped::Done), "{key}");
    }
}

/// A node that has ever competed creates no row again: without a row it would never lead.
#[test]
fn a_purge_leaves_the_row_for_the_nodes() {
    needs_server!();
    let world = World::new();
    let old = "TIMESTAMP_SUB(token, INTERVAL 31 DAY)";
    let a_month_on = || {
        world.pass(DURATION + 2 * S);
        world
            .raw
            .update(Statement::builder(format!("UPDATE {TABLE} SET token = {old} WHERE token IS NOT NULL")).build());
    };
    world.leader("job", "node-a");
    let [mut slow, mut other] = ["node-b", "node-c"].map(|id| world.node("job", id));
    for node in [&mut slow, &mut other] {
        world.pass(DURATION + 2 * S);
        node.tick();
        assert!(node.has_lock());
    }
    a_month_on();
    let purged = world.ours.purge(Duration::ZERO).unwrap();
    assert_eq!((purged.freed.len(), purged.deleted), (1, 0));
    slow.tick();
    assert!(slow.has_lock());
    // The row stays even if nobody holds the lock. Without nodes it is deleted, and so is the row of a mere diagnosis.
    let free = || world.ours.lock("free").unwrap().release().unwrap();
    free();
    a_month_on();
    assert_eq!(world.ours.purge(Duration::ZERO).unwrap().deleted, 0);
    assert_eq!(client(&world.database, Fleet::Own).purge(Duration::ZERO).unwrap().deleted, 2);
    let before = world.names();
    world.ours.diagnose().unwrap();
    assert_eq!(world.names(), before);
}

/// If there was no row, a give-up leaves one that counts as a lock's: nodes have met it, and one may be between its two
/// transactions.
#[test]
fn the_row_of_a_lock_that_was_only_given_up_stays_for_the_nodes() {
    needs_server!();
    let world = World::new();
    let store = open(&world.database, Fleet::Mixed);
    store.release(&mut exclusive("k"), Purpose::GiveUp, &soon()).unwrap();
    let mut node = world.node("k", "node-a");
    let half = node.begin().expect("a takeover");
    assert_eq!(world.ours.purge(Duration::ZERO).unwrap().deleted, 0);
    assert!(world.ours.try_lock("k").unwrap().is_none());
    node.finish(half);
    assert!(node.has_lock());
}

/// The attempt's grant id is in the expired row, and it takes the lock like anybody else.
#[test]
fn a_repeat_of_what_is_over_overtakes_no_node_between_its_two_transactions() {
    needs_server!();
    let world = World::new();
    let store = open(&world.database, Fleet::Mixed);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut over = attempt(&mode.to_string(), mode);
        over.ask.lease = DURATION;
        granted(&store, &mut over);
        world.raw.age(DURATION + 2 * S);
        world.pass(DURATION + 2 * S);
        let mut node = world.node(&over.key, "node-a");
        let half = node.begin().expect("a takeover");
        refused(&store, &mut over);
        node.finish(half);
        assert!(node.has_lock(), "{mode}");
    }
}

/// If a lock has a least time and is released before that, it is kept under another grant until then.
#[test]
fn a_swap_moves_no_end_by_the_age_of_the_heartbeat() {
    needs_server!();
    let world = World::new();
    let store = open(&world.database, Fleet::Mixed);
    let mut held = attempt("k", Mode::Exclusive);
    held.ask.lease = DURATION;
    granted(&store, &mut held);
    let age = DURATION.as_secs() / 4;
    let times =
        ["heartbeat", "token"].map(|at| format!("{at} = TIMESTAMP_SUB({at}, INTERVAL {age} SECOND)")).join(", ");
    world.raw.update(Statement::builder(format!("UPDATE {TABLE} SET {times} WHERE token IS NOT NULL")).build());
    let seen = get(&store, "k");
    let mut new = seen.record.clone();
    new.exclusive.as_mut().unwrap().grant = attempt("k", Mode::Exclusive).ask.grant;
    assert!(matches!(store.swap(&seen, Some(&new), &soon()).unwrap(), Swapped::Done));
    let after = get(&store, "k");
    let [before, until] = [&seen, &after].map(|seen| match seen.record.exclusive.as_ref().unwrap().until {
        End::At(until) => until,
        End::Never => panic!("{seen:?}"),
    });
    // The row counts the end from its commit, which came between the two looks, in whole milliseconds.
    let most = after.times.now.since(seen.times.now) + Duration::from_millis(2);
    assert!(until >= before && until.since(before) <= most, "{:?} later, at most {most:?}", until.since(before));
}

/// If nobody takes a lock any more, no takeover deletes its takeover rows: a purge does so after a month, however many
/// there are. It deletes nothing else that it does not know.
#[test]
fn a_purge_deletes_the_rows_of_takeovers_after_a_month() {
    needs_server!();
    let world = World::new();
    let grants = |n: usize| (0..n).for_each(|_| world.ours.lock("k").unwrap().release().unwrap());
    grants(6);
    let at = |name: &str, hours: i64| {
        let sql = format!(
            "INSERT {TABLE} (name, heartbeat) VALUES (@name, TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @hours HOUR))"
        );
        let row = Statement::builder(sql).add_param("name", name).add_param("hours", hours).build();
        world.raw.update(row);
    };
    (0..150).for_each(|n| at(&format!("old_{n}"), 31 * 24));
    ["user_x1", "user_", "user", "user_123456789012345678901"].iter().for_each(|name| at(name, 31 * 24));
    at("young_1", 29 * 24);
    world.raw.write(Mutation::new_insert_builder(TABLE).set("name").to("timeless_1").build());
    // This lock must be held for as long as a slow emulator takes for all of this.
    let held = world.ours.lock("j_7").unwrap();
    let before = world.names();
    let purge = || {
        let preview = world.ours.purge_preview(Duration::ZERO).unwrap();
        let purged = world.ours.purge(Duration::ZERO).unwrap();
        assert_eq!((preview.freed.len(), preview.deleted), (purged.freed.len(), purged.deleted));
        (purged.freed.len(), purged.deleted)
    };
    assert_eq!(world.ours.list(&leasehold::Filter::new()).unwrap().len(), 1, "they hold nothing");
    assert_eq!(purge(), (0, 150));
    let left: Vec<String> = before.into_iter().filter(|name| !name.starts_with("old_")).collect();
    assert_eq!(world.names(), left);
    // As data it has no heartbeat that could find it expired and release it before the purge does.
    held.into_lock();
    // A month later the purge deletes the rows of our own takeovers, but no row of a lock. Without nodes, also those of
    // the locks.
    world.pass(Duration::from_secs(31 * 24 * 3600));
    assert_eq!(purge(), (1, 6), "{:?}", world.names());
    assert_eq!(world.names().iter().filter(|name| name.starts_with("k")).collect::<Vec<_>>(), ["k"]);
}

/// `run --every` asks for a nanosecond, to find out whether a minimum hold is accepted.
#[test]
fn no_minimum_hold_is_taken_but_one_as_long_as_the_lease() {
    needs_server!();
    let world = World::new();
    let guard = world.ours.request("k").hold_at_least(DURATION).lock().unwrap();
    for least in [Duration::from_nanos(1), DURATION - S, DURATION + S] {
        let asked = world.ours.request("other").hold_at_least(least).try_lock().map(drop);
        for refused in [asked, guard.hold_at_least(least)] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let text = error.to_string();
            assert!(text.contains("hold_at_least") && text.contains("spindle_duration"), "{text}");
        }
    }
}
