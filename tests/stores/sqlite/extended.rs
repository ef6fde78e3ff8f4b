//! Extensions by a process of another clock, through the calls that give no guard, and extensions of guards of locks
//! without end.

use std::sync::Arc;
use std::time::Duration;

use leasehold::LockClient;
use leasehold::internals::sys::clock::Clock;

use leasehold::internals::store::sqlite::Sqlite;

use crate::sqlite::support::*;
use crate::support::bench::builder_over;
use crate::support::wait::wait_until;

/// How far apart the two clocks are: far more than any lease.
const APART: Duration = Duration::from_secs(1_000_000);
/// How long the test itself may take, on a machine that may stall for some seconds.
const SLACK: Duration = Duration::from_secs(8);

fn client(store: Sqlite, clock: &Arc<Clock>) -> LockClient {
    builder_over(Arc::new(store), clock.clone()).request_timeout(seconds(60)).connect().unwrap()
}

/// A file, and a client of each of two clocks that are [`APART`].
fn apart() -> (Folder, [LockClient; 2], [Arc<Clock>; 2]) {
    let folder = Folder::new();
    let [(first, one), (second, two)] = ["boot:one", "boot:two"].map(|clock| open_at(&folder.file(), clock));
    two.advance(APART);
    (folder, [client(first, &one), client(second, &two)], [one, two])
}

/// What is left by the translated end may be more than the others respect.
#[test]
fn what_another_clock_extends_is_what_the_others_read() {
    let (_folder, [first, second], clocks) = apart();
    let advance = |by| clocks.iter().for_each(|clock| clock.advance(by));
    first.leases("n").claim("app", "ann", seconds(60)).unwrap();
    first.request("k").lock_id("g").lease(seconds(60)).acquire().unwrap();
    advance(seconds(50));
    second.leases("n").extend("app", "ann", seconds(30)).unwrap();
    second.renew("g", seconds(30)).unwrap();
    advance(seconds(30) - SLACK);
    assert!(first.leases("n").expire("app").is_err(), "it was extended for longer");
    assert!(first.try_lock("k").unwrap().is_none(), "it was renewed for longer");
}

/// The lock had no end, and a process of another clock gives it one.
#[test]
fn an_end_that_another_clock_has_given_is_no_later_for_the_guard_than_for_others() {
    let (_folder, [first, second], clocks) = apart();
    let guard = first.request("k").lease_forever().lock().unwrap();
    second.heartbeat(&guard.info(), seconds(60)).unwrap();
    for clock in &clocks {
        clock.advance(seconds(35));
    }
    wait_until("it has heard of its end", || guard.remaining() < Duration::MAX);
    for clock in &clocks {
        clock.advance(seconds(27));
    }
    let other = second.try_lock("k").unwrap();
    assert!(other.is_none() || !guard.is_held(), "two hold it");
}

/// The row no longer tells processes of either clock when the lock was granted, even after the guard has renewed it.
#[test]
fn a_minimum_hold_lasts_as_long_as_the_guard_counts_whoever_renewed_its_group() {
    for case in 0..16 {
        let is = |bit: u32| case >> bit & 1 == 1;
        let (wall, is_set_before, is_renewed) = (if is(0) { 7_200_000_000 } else { -7_200_000_000 }, is(1), is(2));
        // A client of another clock counts from the last renewal before the release.
        let second_asks = is(3) && !is_renewed;
        let case = format!("wall {wall}, set before: {is_set_before}, renewed: {is_renewed}, second: {second_asks}");
        let (_folder, [first, second], clocks) = apart();
        let advance = |by| clocks.iter().for_each(|clock| clock.advance(by));
        let request = first.request("k").lock_id("g").lease(seconds(3_600)).hold_at_least(seconds(600));
        let guard = request.lock().unwrap();
        let set_wall = || clocks.iter().for_each(|clock| clock.set_wall_offset(wall));
        if is_set_before {
            set_wall();
        }
        second.renew("g", seconds(3_700)).unwrap();
        if !is_set_before {
            set_wall();
        }
        if is_renewed {
            first.heartbeat(&guard.info(), seconds(3_600)).unwrap();
        }
        advance(seconds(60));
        guard.release().unwrap();
        // A process of another clock counts such an end anew, from now on.
        assert!(second.try_lock("k").unwrap().is_none(), "{case}");
        advance(seconds(540) - SLACK);
        assert!(first.try_lock("k").unwrap().is_none(), "{case}: its minimum is not over");
        advance(2 * SLACK);
        let asks = if second_asks { &second } else { &first };
        assert!(asks.try_lock("k").unwrap().is_some(), "{case}: it stands for longer");
    }
}

/// The release gives the entry a new grant id, so a client of another clock counts its end anew.
#[test]
fn what_a_release_leaves_is_no_longer_for_a_waiter_of_another_clock() {
    let (_folder, [first, second], clocks) = apart();
    let advance = |by| clocks.iter().for_each(|clock| clock.advance(by));
    let guard = first.request("k").lease(seconds(3_600)).hold_at_least(seconds(600)).lock().unwrap();
    assert!(second.try_lock("k").unwrap().is_none(), "it is held");
    advance(seconds(540));
    guard.release().unwrap();
    assert!(second.try_lock("k").unwrap().is_none(), "its minimum is not over");
    advance(seconds(60) + SLACK);
    assert!(second.try_lock("k").unwrap().is_some(), "it stands for longer");
}

/// This also holds if the guard shares the lock with a holder of another clock, next to which no end is certain.
#[test]
fn an_end_that_was_given_on_purpose_comes_beside_a_holder_of_another_clock() {
    let (_folder, [first, second], clocks) = apart();
    let guard = first.request("k").shared().lease_forever().lock().unwrap();
    second.request("k").shared().lease(seconds(3_600)).acquire().unwrap();
    first.heartbeat(&guard.info(), seconds(90)).unwrap();
    let mut looks = 0;
    for _ in 0..6 {
        let before = guard.info().renewed();
        clocks[0].advance(seconds(30));
        wait_until("it looks, or is over", || guard.info().renewed() != before || !guard.is_held());
        looks += u32::from(guard.is_held());
    }
    assert!(!guard.is_held() && looks <= 3, "it is held after {looks} looks");
}
