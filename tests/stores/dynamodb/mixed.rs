//! A table that processes of dynamodb-lock-go also use: what happens to a lock of theirs that ours want, and to one of
//! ours that they want. The guide's page on moving from there names each outcome, good or bad.

use leasehold::internals::store::fleet::Fleet;
use leasehold::{ErrorKind, LockClient, LockGuard, LossReason, SameOwner};

use crate::dynamodb::*;
use crate::mixed::cells::{self as mixed, S, Step};
use crate::support::bench::builder_over;
use crate::support::dynamodb::{Table, options};
use crate::support::go::Unavailable;
use crate::support::go::dynamodb::{Go, GoLock};

/// Both libraries wait for 5 s after the end of a lease, and ours know the service's time to a second.
const SURELY_RESPECTED: Duration = Duration::from_secs(63);
const SURELY_OVER: Duration = Duration::from_secs(67);
/// The owner that theirs use, and ours where it is the same.
const OWNER: &str = "worker-1";

/// A table with a client of each library, whose clocks are moved together.
pub(super) struct World {
    pub table: Table,
    pub clock: Arc<Clock>,
    pub raw: Raw,
    pub go: Go,
    pub ours: LockClient,
}

impl World {
    pub fn new() -> World {
        let (table, clock) = (Table::fresh(), Clock::system());
        let ours = of(&table, &clock, Fleet::Mixed);
        World { raw: Raw::new(&table), go: Go::new(&table, &clock), table, clock, ours }
    }

    pub fn pass(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn guard(&self, key: &str, same_owner: SameOwner) -> Option<LockGuard> {
        self.ours.request(key).owner(OWNER).same_owner(same_owner).try_lock().unwrap()
    }
}

impl mixed::World for World {
    const LEASE: Duration = LEASE;
    const RESPECTED: Duration = SURELY_RESPECTED;
    const OVER: Duration = SURELY_OVER;
    const HOLDER: &str = OWNER;

    fn fresh() -> World {
        World::new()
    }

    fn ours(&self) -> &LockClient {
        &self.ours
    }

    fn own(&self) -> LockClient {
        of(&self.table, &self.clock, Fleet::Own)
    }

    fn pass(&self, by: Duration) {
        self.pass(by);
    }

    fn theirs(&self, key: &str, step: Step) -> bool {
        let lock = GoLock { key: key.to_owned(), owner: OWNER.to_owned(), leased_until: self.go.now() };
        match step {
            Step::Acquire => self.go.acquire(key, OWNER, LEASE).is_ok(),
            Step::Heartbeat => self.go.heartbeat(&lock, LEASE).is_ok(),
            Step::Release => self.go.release(&lock).is_ok(),
        }
    }
}

mixed::cells!(World:
    a_live_lock_is_refused, the_same_owner_gets_no_live_lock, who_crashed_is_taken_over_and_changes_nothing_later, a_released_lock_is_free_at_once,
    heartbeats_keep_a_lock, a_purge_frees_what_is_over_for_both, who_replaces_the_same_owner_takes_theirs,
);

pub(super) fn of(table: &Table, clock: &Arc<Clock>, fleet: Fleet) -> LockClient {
    let store = open(options(&table.0, clock).of(fleet), clock);
    builder_over(Arc::new(store), clock.clone()).lease(LEASE).connect().unwrap()
}

/// Asserts that the guard is lost. It learns that from a heartbeat.
#[track_caller]
pub(super) fn assert_lost(guard: &LockGuard, is_right: fn(&LossReason) -> bool) {
    assert_eq!(guard.ensure_held_for(LEASE).unwrap_err().kind(), ErrorKind::Lost);
    let loss = guard.loss().wait().unwrap();
    assert!(is_right(&loss.reason) && !guard.is_held(), "{loss:?}");
}

fn is_taken(reason: &LossReason) -> bool {
    matches!(reason, LossReason::TakenOver { .. })
}

fn is_gone(reason: &LossReason) -> bool {
    matches!(reason, LossReason::Gone)
}

#[test]
fn theirs_see_our_owner_with_a_suffix_and_our_end() {
    let world = needs_server!(World::new());
    let began = Instant::now();
    let held = world.ours.request("ours").owner("billing").try_lock().unwrap().unwrap();
    let seen = world.go.current("ours").unwrap();
    let (label, digits) = seen.owner.split_once('#').unwrap();
    assert_eq!((label, digits.len()), ("billing", 8));
    let left = seen.leased_until - world.go.now();
    let gone = began.elapsed().as_secs().cast_signed();
    assert!(left.get_seconds() + left.get_minutes() * 60 >= 55 - gone, "{left}");
    // The suffix is the store's, and our users don't see it.
    assert_eq!(world.ours.get("ours").unwrap().unwrap().holders()[0].owner(), "billing");
    assert_eq!(held.info().owner(), "billing");
}

#[test]
fn our_release_keeps_the_row_and_theirs_deletes_it() {
    let world = needs_server!(World::new());
    world.ours.lock("k").unwrap().release().unwrap();
    let seen = world.go.current("k").unwrap();
    assert_eq!((seen.owner.as_str(), seen.leased_until.as_second()), ("", 0));
    let theirs = world.go.acquire("k", OWNER, LEASE).unwrap();
    world.go.release(&theirs).unwrap();
    assert!(world.raw.get("k").is_empty());
}

#[test]
fn a_late_heartbeat_after_a_takeover_changes_nothing() {
    let world = needs_server!(World::new());
    let theirs = world.go.acquire("theirs", OWNER, LEASE).unwrap();
    let mine = world.ours.request("ours").owner("billing").acquire().unwrap();
    world.pass(SURELY_OVER);
    let guard = world.guard("theirs", SameOwner::Respect).unwrap();
    // Not even with the same owner's text: our row's ends in our grant id.
    assert_eq!(world.go.heartbeat(&theirs, LEASE), Err(Unavailable));
    assert_eq!(world.go.release(&theirs), Err(Unavailable));
    guard.ensure_held_for(LEASE / 2).unwrap();
    let before = world.go.acquire("ours", "billing", LEASE).unwrap();
    assert_eq!(world.ours.heartbeat(&mine, LEASE).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(world.ours.release(&mine).unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(world.go.current("ours").unwrap(), before);
}

#[test]
fn the_same_owner_gets_nobodys_lock() {
    let world = needs_server!(World::new());
    world.go.acquire("theirs", OWNER, LEASE).unwrap();
    assert!(world.guard("theirs", SameOwner::Respect).is_none());
    let guard = world.guard("ours", SameOwner::Respect).unwrap();
    let as_if = GoLock { key: "ours".to_owned(), owner: OWNER.to_owned(), leased_until: world.go.now() };
    assert_eq!(world.go.acquire("ours", OWNER, LEASE), Err(Unavailable));
    assert_eq!(world.go.heartbeat(&as_if, LEASE), Err(Unavailable));
    assert_eq!(world.go.release(&as_if), Err(Unavailable));
    guard.ensure_held_for(LEASE / 2).unwrap();
    // Our renewal left the row's owner as it was, with the suffix, and our release succeeds.
    assert!(world.go.current("ours").unwrap().owner.starts_with("worker-1#"));
    guard.release().unwrap();
}

/// This is the price of replacing by owner: the row has the bare label, by which theirs replace us as well.
#[test]
fn who_replaces_the_same_owner_is_replaced_by_it() {
    let world = needs_server!(World::new());
    let theirs = world.go.acquire("k", OWNER, LEASE).unwrap();
    let guard = world.guard("k", SameOwner::Replace).unwrap();
    assert_eq!(world.go.current("k").unwrap().owner, OWNER);
    guard.ensure_held_for(LEASE / 2).unwrap();
    // A renewal by lock id writes the whole row.
    world.ours.renew(guard.lock_id(), 2 * LEASE).unwrap();
    assert_eq!(world.go.current("k").unwrap().owner, OWNER);
    world.go.heartbeat(&theirs, LEASE).unwrap();
    assert_lost(&guard, is_taken);
    let guard = world.guard("k", SameOwner::Replace).unwrap();
    world.go.release(&theirs).unwrap();
    assert_lost(&guard, is_gone);
    // One of ours replaces one of ours, whichever form of the text the row has.
    let held = world.guard("k", SameOwner::Respect).unwrap();
    let next = world.guard("k", SameOwner::Replace).unwrap();
    assert!(next.fencing_token() > held.fencing_token());
    assert_lost(&held, is_taken);
}

#[test]
fn a_clock_that_is_off_by_four_seconds_is_within_the_grace() {
    let world = needs_server!(World::new());
    let near = |ms: i64, round: u32| {
        world.go.is_ahead_by(ms);
        let (theirs, ours) = (format!("theirs {ms} {round}"), format!("ours {ms} {round}"));
        let began = Instant::now();
        world.go.acquire(&theirs, OWNER, LEASE).unwrap();
        let mine = world.ours.request(&ours).acquire().unwrap();
        // Real time passes as well.
        world.pass((LEASE - S).saturating_sub(began.elapsed()));
        let passed = Instant::now();
        let is_refused = world.ours.try_lock(&theirs).unwrap().is_none();
        let are_refused = world.go.acquire(&ours, OWNER, LEASE) == Err(Unavailable);
        if !mixed::are_in_time(is_refused && are_refused, passed, S) {
            return false;
        }
        world.ours.heartbeat(&mine, LEASE).unwrap();
        world.pass(LEASE + 12 * S);
        assert!(world.ours.try_lock(&theirs).unwrap().is_some(), "{ms}");
        world.go.acquire(&ours, OWNER, LEASE).unwrap();
        true
    };
    for ms in [4_000, -4_000] {
        assert!((0..5).any(|round| near(ms, round)), "late each time");
    }
}

/// A bad outcome, and the fault of both libraries: their hosts' clocks decide.
#[test]
fn a_clock_that_is_off_by_more_than_the_grace_lets_two_hold_one_lock() {
    let world = needs_server!(World::new());
    world.go.is_ahead_by(8_000);
    let guard = world.ours.lock("ours").unwrap();
    world.go.acquire("ahead", OWNER, LEASE).unwrap();
    guard.ensure_held_for(LEASE / 2).unwrap();
    let mine = world.ours.request("k").acquire().unwrap();
    world.pass(LEASE - 2 * S);
    world.go.acquire("k", OWNER, LEASE).expect("they decide by a clock that is 8 s ahead");
    assert_eq!(world.ours.heartbeat(&mine, LEASE).unwrap_err().kind(), ErrorKind::Lost, "it learns of it");
    world.go.is_ahead_by(-8_000);
    world.go.acquire("behind", OWNER, LEASE).unwrap();
    world.pass(LEASE - S);
    assert!(world.ours.try_lock("behind").unwrap().is_some(), "its end seemed earlier than it was");
}

/// The service deletes only by times that are numbers, so none of their rows.
#[test]
fn the_tables_time_to_live_deletes_what_nobody_holds() {
    let world = needs_server!(World::new());
    let sweep = || {
        let now = u64::try_from(world.go.now().as_second()).unwrap();
        let is_over = |ttl: &sdk::types::AttributeValue| ttl.as_n().is_ok_and(|ttl| ttl.parse::<u64>().unwrap() < now);
        let over = world.raw.all().into_iter().filter(|item| item.get("ttl").is_some_and(is_over));
        over.map(|item| item["key"].as_s().unwrap().clone()).inspect(|key| world.raw.delete(key)).collect::<Vec<_>>()
    };
    let day = 24 * 3600 * S;
    world.go.acquire("theirs", OWNER, LEASE).unwrap();
    let crashed = world.ours.request("crashed").acquire().unwrap();
    let mine = world.ours.request("held").acquire().unwrap();
    world.ours.lock("released").unwrap().release().unwrap();
    world.pass(day);
    world.ours.heartbeat(&mine, LEASE).unwrap();
    // The machine may be busy, and real time passes as well.
    world.pass(day + LEASE / 4);
    assert_eq!(sweep(), [""; 0]);
    world.pass(LEASE);
    assert_eq!(sweep(), ["crashed"]);
    assert!(world.ours.lock("crashed").unwrap().fencing_token() > crashed.fencing_token());
    assert_eq!(world.ours.heartbeat(&crashed, LEASE).unwrap_err().kind(), ErrorKind::Lost);
    world.ours.heartbeat(&mine, LEASE).unwrap();
}

/// Their rows have neither tokens nor grant ids.
#[test]
fn a_forced_release_spares_who_of_theirs_came_after_it() {
    let world = needs_server!(World::new());
    let store = open(options(&world.table.0, &world.clock).of(Fleet::Mixed), &world.clock);
    let go = Go::new(&world.table, &world.clock);
    let acquire = move |owner: &str| drop(go.acquire("k", owner, LEASE).unwrap());
    mixed::a_forced_release_spares_who_of_theirs_came_after_it(Arc::new(store), &world.clock, acquire);
}

/// The fault is theirs: a release uses the condition of an acquire.
#[test]
fn their_release_deletes_an_expired_row_whoever_wrote_it() {
    let world = needs_server!(World::new());
    let theirs = world.go.acquire("theirs", OWNER, LEASE).unwrap();
    let mine = world.ours.request("ours").acquire().unwrap();
    let stray = GoLock { key: "ours".to_owned(), ..theirs };
    assert_eq!(world.go.release(&stray), Err(Unavailable));
    world.pass(SURELY_OVER);
    world.go.release(&stray).unwrap();
    let lost = world.ours.heartbeat(&mine, LEASE).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
    assert!(world.raw.get("ours").is_empty(), "and it does not bring the row back");
}
