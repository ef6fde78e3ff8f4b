//! A row that is deleted while it has holders, as a time to live on the table would do it: the service deletes without
//! a condition, whatever the row contains.

use std::time::Duration;

use leasehold::{ErrorKind, LockClient, LockGuard, LossReason};

use crate::dynamodb::*;
use crate::support::harness::{PATIENCE, millis, within};
use crate::support::wait::wait_until;

/// So long that no test waits for its end.
const LEASE: Duration = Duration::from_secs(600);
const BEAT: Duration = millis(300);
/// Time for some answers of a server that may stall for seconds; see `within`.
const SOON: Duration = Duration::from_secs(10);

/// How far apart two clients' ideas of the service's time may be: after a deleted row, tokens rise only by that time.
const APART: Duration = millis(1_100);

fn connect(table: &Table) -> LockClient {
    patient(config(), &table.0).lease(LEASE).heartbeat(BEAT).connect().unwrap()
}

/// Asserts that the guard learns of the loss at its next heartbeat, and does not bring the row back.
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

/// Nobody can know who the holder was: the first to come is granted the key, and the old holder learns of it at its
/// next heartbeat. Until then the token protects.
#[test]
fn a_rival_that_comes_first_is_left_alone_by_the_old_holder() {
    needs_server!();
    let (table, is_taken) = (Table::fresh(), |reason: &LossReason| matches!(reason, LossReason::TakenOver { .. }));
    // No heartbeat comes by itself: the old holder's is asked for below, and one of the next would change its row.
    let quiet = || patient(config(), &table.0).lease(LEASE).connect().unwrap();
    let (raw, client, rival) = (Raw::new(&table), quiet(), quiet());
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

/// Here the service itself deletes: rows with a number in the past, but neither what a mixed fleet holds nor a row of
/// the other library, whose time is a text.
#[test]
fn the_service_deletes_no_live_row_of_a_mixed_fleet() {
    let table = needs_server!(Table::fresh());
    let raw = Raw::new(&table);
    let ttl = sdk::types::TimeToLiveSpecification::builder().enabled(true).attribute_name("ttl").build().unwrap();
    let request = raw.client.update_time_to_live().table_name(&table.0).time_to_live_specification(ttl);
    raw.runtime.block_on(request.send()).unwrap();
    let mixed = leasehold::dynamodb::Table::new(&table.0).mixed_fleet();
    let client = patient(config(), mixed).lease(LEASE).heartbeat(BEAT).connect().unwrap();
    let (held, doomed) = (client.lock("held").unwrap(), client.lock("doomed").unwrap());
    let go = crate::support::go::dynamodb::Go::new(&table, &Clock::system());
    go.is_ahead_by(-4 * 24 * 3_600_000);
    go.acquire("theirs", "worker-1", LEASE).unwrap();
    // Each heartbeat sets the time anew, so it is set back again and again until the service looks.
    let past = sdk::types::AttributeValue::N((go.now().as_second()).to_string());
    let token = doomed.fencing_token();
    wait_until("the service deletes it", || {
        let request =
            raw.client.update_item().table_name(&table.0).key("key", sdk::types::AttributeValue::S("doomed".into()));
        let request = request.condition_expression("attribute_exists(leasedUntil)");
        let request = request.update_expression("SET #t = :t").expression_attribute_names("#t", "ttl");
        raw.runtime.block_on(request.expression_attribute_values(":t", past.clone()).send()).is_err()
    });
    assert_lost(&raw, doomed, |reason| matches!(reason, LossReason::Gone));
    assert!(client.lock("doomed").unwrap().fencing_token() > token);
    held.ensure_held_for(LEASE / 2).unwrap();
    assert_eq!(go.current("theirs").unwrap().owner, "worker-1");
}
