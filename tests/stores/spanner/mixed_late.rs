//! In a table that nodes of spindle also use, nobody believes what a heartbeat or a grant wrote too late.

use std::sync::Arc;

use leasehold::ErrorKind;
use leasehold::internals::builder_over;
use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::store::spanner::SpannerOptions;
use leasehold::internals::store::{Acquired, Purpose, Released, Renewed, Swapped};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;

use super::mixed::{DURATION, World, open};
use crate::mixed::cells::S;
use crate::spanner::*;
use crate::support::grpc::{Call, Fault, Grpc};
use crate::support::servers::spanner::aborts_at_random;

/// How late a commit is that comes too late for a lock that was `nearly_over` when it was read, even on a busy machine.
const LATE: Duration = Duration::from_secs(8);
/// How late a commit is that comes in time.
const SOON: Duration = Duration::from_millis(10);

impl World {
    /// Leaves the lock enough time for one request, even if the emulator stalls for some seconds.
    fn nearly_over(&self, is_shared: bool) {
        let passed = DURATION - 6 * S;
        if is_shared {
            self.raw.age(passed);
        }
        self.pass(passed);
    }
}

/// A store of ours next to nodes, behind a proxy.
fn behind(world: &World) -> (Grpc, Spanner) {
    let grpc = Grpc::new(&world.database.host);
    let options =
        SpannerOptions { fleet: Fleet::Mixed, spindle_duration: DURATION, ..world.database.options_at(&grpc.host) };
    let store = Spanner::open(options, &soon()).unwrap();
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
        let mut attempt = attempt(&format!("{mode} {is_lost}"), mode);
        attempt.ask.lease = DURATION;
        granted(&store, &mut attempt);
        world.nearly_over(mode == Mode::Shared);
        grpc.fault("Commit", 0, Fault::Slow(slow));
        let renewed = store.renew(&mut attempt, Renewal::heartbeat(Lease::For(DURATION)), &soon()).unwrap();
        match renewed {
            Renewed::Lost(seen) => {
                // If the emulator aborted the late commit, the expired lock is as it was.
                let is_empty =
                    if aborts_at_random() { seen.live().count() } else { seen.record.holders().count() } == 0;
                assert!(is_lost && is_empty, "{mode} {slow:?}: {seen:?}");
                assert_believed_by_nobody(&world, &store, &mut attempt);
            }
            other => assert!(!is_lost && matches!(other, Renewed::Until { .. }), "{mode} {slow:?}: {other:?}"),
        }
        assert_eq!(grpc.clear(), 0);
    }
}

/// The same for all locks with a lock id.
#[test]
fn a_renewal_by_lock_id_whose_commit_comes_too_late_is_not_believed() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    for (slow, is_done) in [(SOON, true), (LATE, false)] {
        let mut attempt = attempt(&format!("k {is_done}"), Mode::Exclusive);
        attempt.ask.lease = DURATION;
        granted(&store, &mut attempt);
        world.nearly_over(false);
        let seen = get(&store, &attempt.key);
        let mut new = seen.record.clone();
        new.exclusive.as_mut().unwrap().until = Lease::For(DURATION).end(seen.times.now);
        grpc.fault("Commit", 0, Fault::Slow(slow));
        let swapped = store.swap(&seen, Some(&new), &soon()).unwrap();
        assert_eq!(matches!(swapped, Swapped::Done), is_done, "{slow:?}: {swapped:?}");
        assert!(is_done || matches!(swapped, Swapped::Changed), "{slow:?}: {swapped:?}");
        assert_eq!(grpc.clear(), 0);
        if !is_done {
            assert_believed_by_nobody(&world, &store, &mut attempt);
        }
    }
    // The next look of the same call must not extend what its own late commit has left.
    let ours = builder_over(Arc::new(store), Clock::system()).request_timeout(3 * LATE).connect().unwrap();
    for (key, is_shared) in [("exclusive", false), ("shared", true)] {
        let ask = ours.request(key).lock_id(format!("job {key}"));
        if is_shared { ask.shared().acquire() } else { ask.acquire() }.unwrap();
        world.nearly_over(is_shared);
        grpc.fault("Commit", 0, Fault::Slow(LATE));
        let error = ours.renew(&format!("job {key}"), DURATION).unwrap_err();
        assert_eq!((error.kind(), grpc.clear()), (ErrorKind::Lost, 0), "{error}");
    }
}

/// The same for a client that joins others or replaces one: it extends a live lock, and no row of a takeover keeps
/// nodes out.
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
        let key = format!("{is_late} {mode} {takes_its_place}");
        let (mut first, mut second) = (attempt(&key, mode), attempt(&key, mode));
        (first.ask.lease, second.ask.lease) = (DURATION, DURATION);
        let held = granted(&store, &mut first);
        if takes_its_place {
            second.ask.instead_of = Some((held.grant, held.token));
        }
        if is_late {
            world.nearly_over(mode == Mode::Shared);
        }
        let slow = if is_late { LATE } else { SOON };
        grpc.fault("Commit", 0, Fault::Slow(slow));
        match store.acquire(&mut second, &soon()).unwrap() {
            // If the emulator aborted the late commit, the key is free by the next try.
            Acquired::Granted { holder, .. } => assert!(!is_late || aborts_at_random(), "{key}: {holder:?}"),
            Acquired::Refused(seen) => {
                let by: Vec<_> = seen.live().map(|(_, holder)| holder.labels.owner.clone()).collect();
                assert!(is_late && by.len() == 1 && by[0].contains("spindle"), "{key}: {seen:?}");
                assert_believed_by_nobody(&world, &store, &mut second);
            }
            Acquired::Unknown(error) => panic!("{key}: {error}"),
        }
        assert_eq!(grpc.clear(), 0);
    }
}

/// In the end of a node's lock is the second already that nodes wait for after their duration.
#[test]
fn a_replacement_of_a_nodes_lock_whose_commit_comes_too_late_is_refused() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    world.leader("k", "node-a");
    let mut attempt = attempt("k", Mode::Exclusive);
    (attempt.ask.lease, attempt.ask.replace_same_owner) = (DURATION, true);
    attempt.ask.labels.owner = "node-a".to_owned();
    // For a node the lock is over in seven seconds.
    world.nearly_over(false);
    grpc.fault("Commit", 0, Fault::Slow(Duration::from_millis(7_400)));
    match store.acquire(&mut attempt, &soon()).unwrap() {
        Acquired::Refused(_) => assert_believed_by_nobody(&world, &store, &mut attempt),
        other => assert!(aborts_at_random(), "{other:?}"),
    }
    assert_eq!(grpc.clear(), 0);
}

/// Giving up an acquire that never arrived takes nothing over, so it inserts no row of a takeover, which would keep all
/// out.
#[test]
fn what_is_given_up_over_a_late_row_keeps_nobody_out() {
    needs_server!();
    let world = World::new();
    let (grpc, store) = behind(&world);
    let [mut late, mut never, mut next] = [Mode::Exclusive; 3].map(|mode| attempt("k", mode));
    [&mut late, &mut never, &mut next].into_iter().for_each(|attempt| attempt.ask.lease = DURATION);
    granted(&store, &mut late);
    world.nearly_over(false);
    grpc.fault("Commit", 0, Fault::Slow(LATE));
    let renewed = store.renew(&mut late, Renewal::heartbeat(Lease::For(DURATION)), &soon()).unwrap();
    assert!(matches!(renewed, Renewed::Lost(_)), "{renewed:?}");
    assert_eq!(grpc.clear(), 0);
    world.pass(2 * DURATION + 3 * S);
    let given_up = store.release(&mut never, Purpose::GiveUp, &soon()).unwrap();
    assert!(matches!(given_up, Released::Free | Released::HeldByOther(_)), "{given_up:?}");
    granted(&store, &mut next);
}

/// The same if the answer was lost and a repeat looks for the outcome. Each case takes as long as the answer is late.
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
            // If the late commit is aborted, it has no effect, and the key is free.
            return;
        }
        let world = World::new();
        let (grpc, store) = behind(&world);
        let [mut first, mut second] = [mode; 2].map(|mode| attempt("key", mode));
        (first.ask.lease, second.ask.lease) = (DURATION, DURATION);
        let held = granted(&store, &mut first);
        if mode == Mode::Exclusive {
            second.ask.instead_of = Some((held.grant, held.token));
        }
        world.nearly_over(mode == Mode::Shared);
        let answer = store.acquire(&mut second, &unanswered(&grpc)).unwrap();
        assert!(matches!(answer, Acquired::Unknown(_)), "{answer:?}");
        arrived(&grpc);
        assert_believed_by_nobody(&world, &store, &mut second);
    }

    fn renewal(mode: Mode) {
        if aborts_at_random() {
            return;
        }
        let world = World::new();
        let (grpc, store) = behind(&world);
        let mut renewed = attempt("key", mode);
        renewed.ask.lease = DURATION;
        granted(&store, &mut renewed);
        world.nearly_over(mode == Mode::Shared);
        let answer = store.renew(&mut renewed, Renewal::heartbeat(Lease::For(DURATION)), &unanswered(&grpc)).unwrap();
        assert!(matches!(answer, Renewed::Unknown(_)), "{answer:?}");
        arrived(&grpc);
        assert_believed_by_nobody(&world, &store, &mut renewed);
    }

    fn unanswered(grpc: &Grpc) -> Deadline {
        grpc.restart();
        grpc.fault("Commit", 0, Fault::Late(LATE + S));
        Deadline::after(LATE)
    }

    fn arrived(grpc: &Grpc) {
        let commit = |call: &Call| call.method == "Commit" && call.answered;
        grpc.wait_until("the late commit", |calls| calls.iter().any(commit));
        assert_eq!(grpc.clear(), 0);
    }
}

/// Neither the client that asked for it nor others believe it, with nodes or without, for two leases.
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
    // If the emulator aborted the late commit, it had no effect, and the key is free.
    if aborts_at_random() && get(store, &late.key).live().next().is_none() {
        return;
    }
    for asks in [late, &mut beside, &mut alone] {
        let seen = refused(store, asks);
        let by: Vec<_> = seen.live().map(|(_, holder)| holder.labels.owner.as_str()).collect();
        assert!(by.len() == 1 && by[0].contains("spindle"), "{seen:?}");
    }
    refused(&open(&world.database, Fleet::Own), &mut own);
    // More than one lease, and less than two, even on a busy machine.
    world.pass(DURATION + 5 * S);
    refused(store, &mut alone);
    world.pass(DURATION - 2 * S);
    let taken = granted(store, &mut alone);
    assert!(matches!(store.release(&mut alone, Purpose::Release, &soon()).unwrap(), Released::Done), "{taken:?}");
    granted(store, &mut beside);
}
