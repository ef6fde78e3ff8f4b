//! A row that is deleted under its holders, as a time to live that somebody put on the table would do it: the service
//! deletes without a condition, whatever stands there.

use std::time::Duration;

use leasehold::{ErrorKind, LockClient, LockGuard, LossReason};

use crate::dynamodb::*;
use crate::support::harness::{PATIENCE, millis, within};

/// Long: nothing below waits for its end.
const LEASE: Duration = Duration::from_secs(600);
const BEAT: Duration = millis(300);
/// For an answer on a busy machine; see `within`.
const SOON: Duration = Duration::from_secs(5);

/// What two clients may take the service's time to be apart: tokens over a deleted row rise by that time alone.
const APART: Duration = millis(1_100);

fn connect(table: &Table) -> LockClient {
    leasehold::dynamodb::builder(config(), &table.0).lease(LEASE).heartbeat(BEAT).connect().unwrap()
}

/// It hears of it at its next heartbeat, and does not bring the row back.
#[track_caller]
fn assert_lost(raw: &Raw, guard: LockGuard, is_right: fn(&LossReason) -> bool) {
    let loss = within("a loss", SOON, || guard.loss().wait_timeout(PATIENCE).expect("a loss"));
    assert!(is_right(&loss.reason) && !guard.is_held(), "{loss:?}");
    let row = raw.get(guard.key());
    assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    assert_eq!(raw.get(&loss.key), row, "what was lost is not written");
}

#[test]
fn a_holder_whose_row_is_deleted_hears_of_it_and_tokens_still_rise() {
    needs_server!();
    let (table, is_gone) = (Table::fresh(), |reason: &LossReason| matches!(reason, LossReason::Gone));
    let (raw, client, rival) = (Raw::new(&table), connect(&table), connect(&table));
    let mut highest = 0;
    for round in 0..3 {
        let guard = client.lock("k").unwrap();
        assert!(guard.fencing_token() > highest, "round {round}");
        highest = guard.fencing_token();
        assert!(rival.try_lock("k").unwrap().is_none() && rival.try_lock_shared("k").unwrap().is_none());
        raw.delete("k");
        assert_lost(&raw, guard, is_gone);
        assert!(raw.get("k").is_empty(), "a heartbeat or a release made it again");
    }
    let readers = [&client, &rival].map(|client| client.lock_shared("k").unwrap());
    assert!(readers.iter().all(|guard| guard.fencing_token() > highest));
    highest = readers.iter().map(LockGuard::fencing_token).max().unwrap();
    std::thread::sleep(APART);
    raw.delete("k");
    readers.into_iter().for_each(|guard| assert_lost(&raw, guard, is_gone));
    assert!(client.lock("k").unwrap().fencing_token() > highest);
}

/// Nobody can know who stood there: whoever comes first is granted the key, and the old holder is told by its next
/// heartbeat. Until then the token protects.
#[test]
fn a_rival_that_comes_first_is_left_alone_by_the_old_holder() {
    needs_server!();
    let (table, is_taken) = (Table::fresh(), |reason: &LossReason| matches!(reason, LossReason::TakenOver { .. }));
    let (raw, rival) = (Raw::new(&table), connect(&table));
    // Its next heartbeat is the one that is asked for below.
    let client = leasehold::dynamodb::builder(config(), &table.0).lease(LEASE).connect().unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let key = mode.to_string();
        let guard = match mode {
            Mode::Exclusive => client.lock(&key).unwrap(),
            Mode::Shared => client.lock_shared(&key).unwrap(),
        };
        assert!(rival.try_lock(&key).unwrap().is_none());
        std::thread::sleep(APART);
        raw.delete(&key);
        let next = rival.try_lock(&key).unwrap().expect("nobody stands there");
        assert!(next.fencing_token() > guard.fencing_token());
        assert_eq!(guard.ensure_held_for(LEASE).unwrap_err().kind(), ErrorKind::Lost);
        assert_lost(&raw, guard, is_taken);
        next.ensure_held_for(LEASE / 2).unwrap();
        assert!(client.try_lock_shared(&key).unwrap().is_none(), "the one holder is respected");
    }
}
