//! The rows on which takeovers contend in a table that nodes of spindle use, too: who looks at them, and who deletes them.

use leasehold::{ErrorKind, LossReason};
use sdk::mutation::Mutation;
use sdk::statement::Statement;

use super::mixed::{DURATION, S, World, assert_lost};
use crate::spanner::*;
use crate::support::spanner::{TABLE, sdk};

/// One that is between its two transactions looks at no heartbeat any more.
#[test]
fn what_is_over_is_renewed_by_nobody() {
    needs_server!();
    let world = World::new();
    let ours = &world.ours;
    let contended = ours.request("contended").acquire().unwrap();
    let late = ours.request("late").acquire().unwrap();
    let shared = ours.request("shared").shared().acquire().unwrap();
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

    ours.heartbeat(&shared, DURATION).unwrap();
    world.raw.age(DURATION + 2 * S);
    assert_eq!(ours.heartbeat(&shared, DURATION).unwrap_err().kind(), ErrorKind::Lost);
    let third = ours.request("shared").shared().acquire().unwrap();
    ours.heartbeat(&third, DURATION).unwrap();
    // To release what is over is no renewal.
    ours.release(&third).unwrap();
}

/// Those that takeovers are about to need come first in the table as often as not.
#[test]
fn the_rows_of_takeovers_do_not_pile_up() {
    needs_server!();
    let world = World::new();
    let other = world.ours.request("k_1").acquire().unwrap();
    let grants = |n: usize| (0..n).for_each(|_| world.ours.lock("k").unwrap().release().unwrap());
    let rows = || -> Vec<String> {
        let is_one = |name: &String| name.starts_with("k_") && name != "k_1";
        world.names().into_iter().filter(is_one).collect()
    };
    grants(61);
    let young = rows();
    assert_eq!(young.len(), 60, "one for each takeover, for two leases: a slow node would insert it again");
    let from = &young[25];
    let age = format!(
        "UPDATE {TABLE} SET heartbeat = TIMESTAMP_SUB(heartbeat, INTERVAL {} SECOND) WHERE STARTS_WITH(name, 'k_') AND name >= @from",
        2 * DURATION.as_secs() + 1
    );
    world.raw.update(Statement::builder(age).add_param("from", from).build());
    grants(2);
    let left = rows();
    assert!(left.iter().filter(|name| young.contains(name)).eq(&young[..25]), "{left:?}");

    // A node that died left one without a time: it has one from the next takeover on.
    world.raw.write(Mutation::new_insert_builder(TABLE).set("name").to("k_0").build());
    grants(1);
    assert!(rows().contains(&"k_0".to_owned()));
    world.pass(2 * DURATION + S);
    grants(3);
    assert_eq!(rows().len(), 3);
    assert!(world.names().contains(&"k_1".to_owned()), "a lock whose name looks alike stays");
    world.ours.release(&other).unwrap();
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
