//! What a heartbeat or a grant wrote too late, in a table that nodes of spindle use, too, is believed by nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use leasehold::ErrorKind;
use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::store::spanner::SpannerOptions;
use leasehold::internals::store::{Acquired, Purpose, Released, Renewed, Swapped};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;

use super::mixed::{DURATION, World, open};
use crate::mixed::cells::S;
use crate::spanner::*;
use crate::support::bench::builder_over;
use crate::support::grpc::{Call, Fault, Grpc};
use crate::support::servers::spanner::aborts_at_random;
use crate::support::wait::wait_until;

/// So late is a commit that comes too late for what was `nearly_over` when it was read, also on a busy machine.
const LATE: Duration = Duration::from_secs(6);
/// And so late is one that comes in time.
const SOON: Duration = Duration::from_millis(10);
/// So much is left of what is `nearly_over`.
const LEFT: Duration = Duration::from_secs(4);

/// Does `call`, whose commit is so slow, on a lock that was granted then. None where a busy machine had used up what was
/// left of the lock by the time that the commit left, or, if that is to come in time, that it was answered.
fn on_what_is_left<T>(grpc: &Grpc, granted: Instant, slow: Duration, call: impl FnOnce() -> T) -> Option<T> {
    grpc.restart();
    let is_in_time = || granted.elapsed() < LEFT - S;
    let is_over = AtomicBool::new(false);
    let (answer, left_in_time) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let has_left = || grpc.methods().iter().any(|method| method == "Commit");
            wait_until("its commit leaves", || is_over.load(Ordering::SeqCst) || has_left());
            is_in_time() && has_left()
        });
        let answer = call();
        is_over.store(true, Ordering::SeqCst);
        (answer, watching.join().unwrap())
    });
    let is_right = left_in_time && (slow >= LATE || is_in_time());
    // What was not met is no fault of the next one.
    let unmet = grpc.clear();
    assert!(!is_right || unmet == 0, "its commit was not slow");
    is_right.then_some(answer)
}

/// Does this until a busy machine was in time for it, each time on another key.
fn in_time(key: &str, does: impl Fn(&str) -> bool) {
    assert!((0..5).any(|n| does(&format!("{key} {n}"))), "{key}: late each time");
}

impl World {
    fn nearly_over(&self, is_shared: bool) {
        let passed = DURATION - LEFT;
        if is_shared {
            self.raw.age(passed);
        }
        self.pass(passed);
    }
}

/// A store of ours beside nodes, behind a proxy.
fn behind(world: &World) -> (Grpc, Spanner) {
    let grpc = Grpc::new(&world.database.host);
    let options =
        SpannerOptions { fleet: Fleet::Mixed, spindle_duration: DURATION, ..world.database.options_at(&grpc.host) };
    let store = Spanner::open(options, Clock::system(), &soon()).unwrap();
    (grpc, store)
}

/// Its read found the lock live, but a node may have found it over before the commit came.
#[test]
fn a_renewal_whose_commit_comes_too_late_is_lost() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    for (mode, slow, is_lost) in
        [(Mode::Exclusive, SOON, false), (Mode::Exclusive, LATE, true), (Mode::Shared, LATE, true)]
    {
        in_time(&format!("{mode} {is_lost}"), |key| {
            let mut attempt = attempt(key, mode);
            attempt.ask.lease = DURATION;
            let began = Instant::now();
            granted(&store, &mut attempt);
            world.nearly_over(mode == Mode::Shared);
            grpc.fault("Commit", 0, Fault::Slow(slow));
            let renew = || store.renew(&mut attempt, Renewal::heartbeat(Lease::For(DURATION)), &soon());
            match on_what_is_left(&grpc, began, slow, renew).map(Result::unwrap) {
                Some(Renewed::Lost(seen)) => {
                    assert!(is_lost && seen.record.holders().next().is_none(), "{mode} {slow:?}: {seen:?}");
                    assert_believed_by_nobody(&world, &store, &mut attempt);
                }
                Some(other) => {
                    assert!(!is_lost && matches!(other, Renewed::Until { .. }), "{mode} {slow:?}: {other:?}")
                }
                None => return false,
            }
            true
        });
    }
}

/// The same of all locks with a lock id.
#[test]
fn a_renewal_by_lock_id_whose_commit_comes_too_late_is_not_believed() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    for (slow, is_done) in [(SOON, true), (LATE, false)] {
        in_time(&format!("k {is_done}"), |key| {
            let mut attempt = attempt(key, Mode::Exclusive);
            attempt.ask.lease = DURATION;
            let began = Instant::now();
            granted(&store, &mut attempt);
            world.nearly_over(false);
            let seen = get(&store, &attempt.key);
            let mut new = seen.record.clone();
            new.exclusive.as_mut().unwrap().until = Lease::For(DURATION).end(seen.times.now);
            grpc.fault("Commit", 0, Fault::Slow(slow));
            let swap = || store.swap(&seen, Some(&new), &soon()).unwrap();
            let Some(swapped) = on_what_is_left(&grpc, began, slow, swap) else { return false };
            assert_eq!(matches!(swapped, Swapped::Done), is_done, "{slow:?}: {swapped:?}");
            assert!(is_done || matches!(swapped, Swapped::Changed), "{slow:?}: {swapped:?}");
            if !is_done {
                assert_believed_by_nobody(&world, &store, &mut attempt);
            }
            true
        });
    }
    // The next look of the same call does not extend what its own late commit has left.
    let ours = builder_over(Arc::new(store), Clock::system()).request_timeout(3 * LATE).connect().unwrap();
    for (key, is_shared) in [("exclusive", false), ("shared", true)] {
        in_time(key, |key| {
            let ask = ours.request(key).lock_id(format!("job {key}"));
            let began = Instant::now();
            if is_shared { ask.shared().acquire() } else { ask.acquire() }.unwrap();
            world.nearly_over(is_shared);
            grpc.fault("Commit", 0, Fault::Slow(LATE));
            let renew = || ours.renew(&format!("job {key}"), DURATION);
            let Some(renewed) = on_what_is_left(&grpc, began, LATE, renew) else { return false };
            let error = renewed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            true
        });
    }
}

/// So does who joins others or takes the place of one: it extends what lives, and no row of a takeover keeps nodes out.
#[test]
fn a_grant_over_what_lives_whose_commit_comes_too_late_is_refused() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    for (is_late, mode, takes_its_place) in [
        (false, Mode::Shared, false),
        (false, Mode::Exclusive, true),
        (true, Mode::Shared, false),
        (true, Mode::Shared, true),
        (true, Mode::Exclusive, true),
    ] {
        in_time(&format!("{is_late} {mode} {takes_its_place}"), |key| {
            let (mut first, mut second) = (attempt(key, mode), attempt(key, mode));
            (first.ask.lease, second.ask.lease) = (DURATION, DURATION);
            let began = Instant::now();
            let held = granted(&store, &mut first);
            if takes_its_place {
                second.ask.instead_of = Some((held.grant, held.token));
            }
            if is_late {
                world.nearly_over(mode == Mode::Shared);
            }
            let slow = if is_late { LATE } else { SOON };
            grpc.fault("Commit", 0, Fault::Slow(slow));
            let acquire = || store.acquire(&mut second, &soon()).unwrap();
            match on_what_is_left(&grpc, began, slow, acquire) {
                Some(Acquired::Granted { holder, .. }) => assert!(!is_late, "{key}: {holder:?}"),
                Some(Acquired::Refused(seen)) => {
                    let by: Vec<_> = seen.live().map(|(_, holder)| holder.labels.owner.clone()).collect();
                    assert!(is_late && by.len() == 1 && by[0].contains("spindle"), "{key}: {seen:?}");
                    assert_believed_by_nobody(&world, &store, &mut second);
                }
                Some(Acquired::Unknown(error)) => panic!("{key}: {error}"),
                None => return false,
            }
            true
        });
    }
}

/// Also where its own answer was lost, and a repeat looks for what became of it. Each takes as long as the answer is late.
mod what_came_too_late_without_an_answer_is_believed_by_no_repeat {
    use super::*;

    #[test]
    fn a_shared_grant() {
        needs_server!();
        grant(Mode::Shared);
    }

    #[test]
    fn an_exclusive_one_in_the_place_of_another() {
        needs_server!();
        grant(Mode::Exclusive);
    }

    #[test]
    fn a_shared_renewal() {
        needs_server!();
        renewal(Mode::Shared);
    }

    #[test]
    fn an_exclusive_renewal() {
        needs_server!();
        renewal(Mode::Exclusive);
    }

    fn grant(mode: Mode) {
        if aborts_at_random() {
            // Where the late commit is aborted nothing of it comes, and the key is free.
            return;
        }
        in_time("key", |key| {
            // Of its own: what came late of an earlier one is still on its way.
            let world = World::new();
            let (grpc, store) = behind(&world);
            let [mut first, mut second] = [mode; 2].map(|mode| attempt(key, mode));
            (first.ask.lease, second.ask.lease) = (DURATION, DURATION);
            let began = Instant::now();
            let held = granted(&store, &mut first);
            if mode == Mode::Exclusive {
                second.ask.instead_of = Some((held.grant, held.token));
            }
            world.nearly_over(mode == Mode::Shared);
            let by = unanswered(&grpc);
            let Some(answer) = on_what_is_left(&grpc, began, LATE, || store.acquire(&mut second, &by)) else {
                return false;
            };
            assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{answer:?}");
            arrived(&grpc);
            assert_believed_by_nobody(&world, &store, &mut second);
            true
        });
    }

    fn renewal(mode: Mode) {
        if aborts_at_random() {
            return;
        }
        in_time("key", |key| {
            // Of its own: what came late of an earlier one is still on its way.
            let world = World::new();
            let (grpc, store) = behind(&world);
            let mut renewed = attempt(key, mode);
            renewed.ask.lease = DURATION;
            let began = Instant::now();
            granted(&store, &mut renewed);
            world.nearly_over(mode == Mode::Shared);
            let (by, heartbeat) = (unanswered(&grpc), Renewal::heartbeat(Lease::For(DURATION)));
            let Some(answer) = on_what_is_left(&grpc, began, LATE, || store.renew(&mut renewed, heartbeat, &by)) else {
                return false;
            };
            assert!(matches!(answer, Ok(Renewed::Unknown(_))), "{answer:?}");
            arrived(&grpc);
            assert_believed_by_nobody(&world, &store, &mut renewed);
            true
        });
    }

    fn unanswered(grpc: &Grpc) -> Deadline {
        grpc.fault("Commit", 0, Fault::Late(LATE + 3 * S));
        Deadline::after(LATE)
    }

    fn arrived(grpc: &Grpc) {
        let commit = |call: &Call| call.method == "Commit" && call.answered;
        grpc.wait_until("the late commit", |calls| calls.iter().any(commit));
    }
}

/// Neither who asked for it nor who comes beside it, with nodes or without, for two leases.
#[track_caller]
fn assert_believed_by_nobody(world: &World, store: &Spanner, late: &mut Attempt) {
    let new = |mode| {
        let mut new = attempt(&late.key, mode);
        new.ask.lease = DURATION;
        new
    };
    let [mut beside, mut alone, mut own] = [Mode::Shared, Mode::Exclusive, Mode::Shared].map(new);
    let renewed = store.renew(late, Renewal::heartbeat(Lease::For(DURATION)), &soon()).unwrap();
    assert!(matches!(renewed, Renewed::Lost(_)), "{renewed:?}");
    for asks in [late, &mut beside, &mut alone] {
        let seen = refused(store, asks);
        let by: Vec<_> = seen.live().map(|(_, holder)| holder.labels.owner.as_str()).collect();
        assert!(by.len() == 1 && by[0].contains("spindle"), "{seen:?}");
    }
    refused(&open(&world.database, Fleet::Own), &mut own);
    // More than one lease, and less than two also on a busy machine.
    world.pass(DURATION + 5 * S);
    refused(store, &mut alone);
    world.pass(DURATION - 2 * S);
    let taken = granted(store, &mut alone);
    assert!(matches!(store.release(&mut alone, Purpose::Release, &soon()).unwrap(), Released::Done), "{taken:?}");
    granted(store, &mut beside);
}
