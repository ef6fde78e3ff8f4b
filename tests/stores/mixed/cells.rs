//! What happens to a lock of theirs that ours want, and to one of ours that they want, where it is the same with each
//! of the three Go libraries. A store's `mixed` has its world, and the cases of its own.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LockClient, SameOwner};

pub const S: Duration = Duration::from_secs(1);

/// What one of their clients does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Acquire,
    Heartbeat,
    Release,
}

/// A table with a client of each library, whose clocks are moved together.
pub trait World {
    const LEASE: Duration;
    /// This long after a grant, and for a second more, both sides still respect it.
    const RESPECTED: Duration;
    /// This long after a grant, both sides take it over.
    const OVER: Duration;
    /// The owner that ours see in a lock of theirs.
    const HOLDER: &str;
    /// Whether their library can release.
    const RELEASES: bool = true;

    fn fresh() -> Self;
    fn ours(&self) -> &LockClient;
    /// A client of ours without `fleet=mixed`.
    fn own(&self) -> LockClient;
    fn pass(&self, by: Duration);
    /// Returns whether the step was done.
    fn theirs(&self, key: &str, step: Step) -> bool;
}

/// How many seconds are left for the requests that must be refused, in one try after the other. Less than DynamoDB's
/// grace in mixed fleets, or the lease itself would refuse them.
const SPARE: [u32; 6] = [1, 1, 1, 2, 3, 3];

/// Whether the requests were refused, as they must be. `false`: a busy machine used up the time that was left at
/// `since`.
pub fn are_in_time(are_refused: bool, since: Instant, spare: Duration) -> bool {
    assert!(are_refused || since.elapsed() > spare, "it was granted within its grace");
    are_refused
}

/// Makes a test of each of these cases.
macro_rules! cells {
    ($world:ty: $($cell:ident),+ $(,)?) => {$(
        #[test]
        fn $cell() {
            needs_server!();
            crate::mixed::cells::$cell::<$world>();
        }
    )+};
}
pub(crate) use cells;

pub fn a_live_lock_is_refused<W: World>() {
    let world = W::fresh();
    let began = Instant::now();
    assert!(world.theirs("theirs", Step::Acquire));
    assert!(world.ours().try_lock("theirs").unwrap().is_none());
    let status = world.ours().get("theirs").unwrap().unwrap();
    assert_eq!(status.holders()[0].owner(), W::HOLDER);
    // Real time passes as well.
    assert!(status.holders()[0].remaining() > Some((W::LEASE - 5 * S).saturating_sub(began.elapsed())));
    let guard = world.ours().lock("ours").unwrap();
    assert!(!world.theirs("ours", Step::Acquire));
    guard.ensure_held_for(W::LEASE / 2).unwrap();
}

/// The holder decides, and not its name.
pub fn the_same_owner_gets_no_live_lock<W: World>() {
    let world = W::fresh();
    let ask = |key: &str| world.ours().request(key).owner(W::HOLDER).try_lock().unwrap();
    assert!(world.theirs("theirs", Step::Acquire));
    assert!(ask("theirs").is_none());
    let guard = ask("ours").unwrap();
    assert!(!world.theirs("ours", Step::Acquire));
    guard.ensure_held_for(W::LEASE / 2).unwrap();
}

/// If ours ask for that, they replace theirs: the owner is the text in the row, whoever wrote it.
pub fn who_replaces_the_same_owner_takes_theirs<W: World>() {
    let world = W::fresh();
    assert!(world.theirs("theirs", Step::Acquire));
    let request = || world.ours().request("theirs").same_owner(SameOwner::Replace);
    assert!(request().owner("another").try_lock().unwrap().is_none());
    let guard = request().owner(W::HOLDER).try_lock().unwrap().unwrap();
    guard.ensure_held_for(W::LEASE / 2).unwrap();
}

pub fn who_crashed_is_taken_over_and_changes_nothing_later<W: World>() {
    assert!(SPARE.into_iter().any(|spare| who_crashed_is_taken_over::<W>(spare * S)), "late each time");
}

fn who_crashed_is_taken_over<W: World>(spare: Duration) -> bool {
    let world = W::fresh();
    let ours = world.ours();
    let began = Instant::now();
    assert!(world.theirs("theirs", Step::Acquire));
    let crashed = ours.request("ours").acquire().unwrap();
    // Real time passes as well.
    let (took, since) = (began.elapsed(), Instant::now());
    let passed = (W::RESPECTED + S).saturating_sub(spare + took);
    world.pass(passed);
    let is_refused = ours.try_lock("theirs").unwrap().is_none();
    if !are_in_time(is_refused && !world.theirs("ours", Step::Acquire), since, spare) {
        return false;
    }
    world.pass(W::OVER - passed);
    let guard = ours.try_lock("theirs").unwrap().unwrap();
    // Ours ask between these two calls, because a node treats a grant of this very millisecond as none.
    assert!(world.theirs("ours", Step::Acquire) && ours.try_lock("ours").unwrap().is_none());
    assert!(!world.theirs("theirs", Step::Heartbeat));
    assert!(!W::RELEASES || !world.theirs("theirs", Step::Release));
    guard.ensure_held_for(W::LEASE / 2).unwrap();
    assert_eq!(ours.heartbeat(&crashed, W::LEASE).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(ours.release(&crashed).unwrap_err().kind(), ErrorKind::Held);
    assert!(ours.try_lock("ours").unwrap().is_none());
    world.pass(W::OVER);
    // Even where their library dropped the token.
    assert!(ours.try_lock("ours").unwrap().unwrap().fencing_token() > crashed.fencing_token());
    true
}

pub fn a_released_lock_is_free_at_once<W: World>() {
    let world = W::fresh();
    let mut highest = 0;
    for _ in 0..2 {
        if W::RELEASES {
            assert!(world.theirs("k", Step::Acquire) && world.theirs("k", Step::Release));
        }
        let guard = world.ours().try_lock("k").unwrap().unwrap();
        assert!(guard.fencing_token() > highest);
        highest = guard.fencing_token();
        guard.release().unwrap();
    }
    assert!(world.theirs("k", Step::Acquire) && world.ours().try_lock("k").unwrap().is_none());
}

pub fn heartbeats_keep_a_lock<W: World>() {
    let world = W::fresh();
    assert!(world.theirs("theirs", Step::Acquire));
    let mine = world.ours().request("ours").acquire().unwrap();
    for _ in 0..3 {
        // Half of the lease is left for a busy machine. Three halves are more than anybody respects without a
        // heartbeat.
        world.pass(W::LEASE / 2);
        assert!(world.ours().try_lock("theirs").unwrap().is_none());
        assert!(!world.theirs("ours", Step::Acquire));
        assert!(world.theirs("theirs", Step::Heartbeat));
        world.ours().heartbeat(&mine, W::LEASE).unwrap();
    }
}

pub fn a_purge_frees_what_is_over_for_both<W: World>() {
    let world = W::fresh();
    assert!(world.theirs("over", Step::Acquire));
    world.pass(W::OVER);
    assert!(world.theirs("live", Step::Acquire));
    let freed = world.own().purge(Duration::ZERO).unwrap().freed;
    assert_eq!(freed.iter().map(|status| status.key()).collect::<Vec<_>>(), ["over"]);
    assert!(world.ours().try_lock("live").unwrap().is_none() && world.theirs("live", Step::Heartbeat));
    assert!(world.theirs("over", Step::Acquire));
}

pub fn clients_of_both_kinds_of_ours_exclude_each_other<W: World>() {
    let world = W::fresh();
    let own = world.own();
    for (holds, asks) in [(&own, world.ours()), (world.ours(), &own)] {
        let guard = holds.lock("k").unwrap();
        assert!(asks.try_lock("k").unwrap().is_none() && asks.try_lock_shared("k").unwrap().is_none());
        let token = guard.fencing_token();
        guard.release().unwrap();
        let shared = holds.lock_shared("k").unwrap();
        assert!(shared.fencing_token() > token && asks.try_lock("k").unwrap().is_none());
        assert!(asks.try_lock_shared("k").unwrap().is_some());
    }
    // Each kind takes the other over, but not too early.
    let is_taken_over = |holds: &LockClient, asks: &LockClient, spare: Duration| {
        let (key, began) = (&format!("{spare:?} left"), Instant::now());
        holds.request(key).acquire().unwrap();
        let (took, since) = (began.elapsed(), Instant::now());
        let passed = (W::RESPECTED + S).saturating_sub(spare + took);
        world.pass(passed);
        let is_in_time = are_in_time(asks.try_lock(key).unwrap().is_none(), since, spare);
        if is_in_time {
            world.pass(W::OVER - passed);
            asks.try_lock(key).unwrap().unwrap().release().unwrap();
        }
        is_in_time
    };
    for (holds, asks) in [(&own, world.ours()), (world.ours(), &own)] {
        assert!(SPARE.into_iter().any(|spare| is_taken_over(holds, asks, spare * S)), "late each time");
    }
}

/// A forced release is done but not answered, and after it a client of theirs acquires the key `k`.
#[cfg(any(feature = "dynamodb", feature = "mongodb"))]
pub fn a_forced_release_spares_who_of_theirs_came_after_it(
    store: std::sync::Arc<dyn leasehold::internals::store::Backend>,
    clock: &std::sync::Arc<leasehold::internals::sys::clock::Clock>,
    acquire: impl Fn(&str) + Send + 'static,
) {
    use std::sync::Arc;

    use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};

    use crate::support::bench::builder_over;
    use crate::support::between::{Between, When};

    let (acts, faults) = (Between::new(store), FaultPlan::default());
    let faulty = Arc::new(Faulty::new(Arc::new(acts.clone()), faults.clone()));
    let client = builder_over(faulty, clock.clone()).lease(60 * S).connect().unwrap();
    acquire("first");
    acts.next(When::AfterSwap, move || acquire("second"));
    faults.next(Call::Swap, Fault::ApplyThenFail);
    assert_eq!(client.force_release("k").unwrap()[0].owner(), "first");
    assert_eq!(client.get("k").unwrap().unwrap().holders()[0].owner(), "second");
}
