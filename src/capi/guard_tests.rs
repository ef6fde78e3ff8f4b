//! Tests of what no program in C can bring about in the life of a guard.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::super::callback::Callback;
use super::super::guards::{Guards, leasehold_guards_free, leasehold_guards_release};
use super::super::loss::{LossFn, LossInfo, WarnFn};
use super::super::wait_until;
use super::*;
#[cfg(feature = "_internals")]
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
#[cfg(feature = "_internals")]
use crate::store::memory::Memory;
#[cfg(feature = "_internals")]
use crate::sys::clock::Clock;
use crate::{LockClient, Loss, LossReason};

const LONG: Duration = Duration::from_secs(20);

/// A client, and the plan of the faults of its store.
#[cfg(feature = "_internals")]
fn faulty(drop_timeout: Duration) -> (LockClient, FaultPlan) {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = crate::ClientBuilder::over(Arc::new(store), clock).lease(LONG * 3).drop_timeout(drop_timeout);
    let Ok(client) = client.connect() else { panic!("no client") };
    (client, faults)
}

/// Runs a call that must end within this bound, plus the time that this machine is late by, which a thread measures
/// that only sleeps. Two such bounds, one after the other, would take twice as long.
#[cfg(feature = "_internals")]
fn in_one_bound<T>(bound: Duration, call: impl FnOnce() -> T) -> T {
    use std::time::Instant;

    const TICK: Duration = Duration::from_millis(5);
    std::thread::scope(|scope| {
        let (over, goes_on) = bounded::<()>(0);
        let latest = scope.spawn(move || {
            let mut latest = Duration::ZERO;
            loop {
                let asleep = Instant::now();
                let is_over = goes_on.recv_timeout(TICK).is_err_and(|error| error.is_disconnected());
                latest = latest.max(asleep.elapsed().saturating_sub(TICK));
                if is_over {
                    return latest;
                }
            }
        });
        let (began, value) = (Instant::now(), call());
        let took = began.elapsed();
        drop(over);
        // Several threads take part, and each may be as late.
        let most = bound * 3 / 2 + 5 * latest.join().unwrap_or_default();
        assert!(took < most, "it took {took:?}, at most {most:?}");
        value
    })
}

/// Waits until the store got such a request.
#[cfg(feature = "_internals")]
#[track_caller]
fn wait_for(faults: &FaultPlan, call: Call) {
    wait_until(|| faults.count(call) > 0);
}

struct Talk {
    guard: OnceLock<Arc<Guard>>,
    entered: Sender<()>,
    released: Sender<Code>,
}

/// A callback that found its guard before that was freed, and releases it once the free is about to end it.
unsafe extern "C" fn releases(_: *const LossInfo, user: *mut c_void) {
    // SAFETY: the test leaks it.
    let talk = unsafe { &*user.cast::<Talk>() };
    let _ = talk.entered.send(());
    let ends = |guard: &Arc<Guard>| guard.guard.try_read().is_some_and(|held| held.is_none());
    wait_until(|| talk.guard.get().is_some_and(ends));
    let _ = talk.released.send(call(|| talk.guard.get().map_or(Ok(()), |guard| guard.release())));
}

#[test]
fn freeing_waits_for_a_callback_that_releases() {
    let Ok(held) = LockClient::connect("memory:").and_then(|client| client.lock("k")) else { panic!("no lock") };
    let ((entered, enters), (released, releases_too), (freed, frees)) = (bounded(1), bounded(1), bounded(1));
    let talk: &'static Talk = Box::leak(Box::new(Talk { guard: OnceLock::new(), entered, released }));
    let callback = Callback { function: releases as LossFn, user: (&raw const *talk).cast_mut().cast() };
    let watch = Watch::new(Some(callback));
    let Ok(handle) = handle::insert(Guard::new(held, watch.clone())) else { panic!("no handle") };
    assert!(handle::get(handle).is_ok_and(|guard| talk.guard.set(guard).is_ok()));
    let loss = Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: LONG };
    std::thread::spawn(move || watch.lost(&loss));
    assert_eq!(enters.recv_timeout(LONG), Ok(()));
    std::thread::spawn(move || freed.send(leasehold_guard_free(handle)));
    assert_eq!(releases_too.recv_timeout(LONG), Ok(Code::Closed), "they wait for each other");
    assert_eq!(frees.recv_timeout(LONG), Ok(Code::Ok));
}

/// A call that asks a guard may find its loss, whose callback is called at once and may end that guard.
#[test]
fn a_callback_ends_what_was_just_asked() {
    let (ended, ends) = bounded(2);
    std::thread::spawn(move || {
        let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
        let Ok(held) = client.lock("k").map(|held| Guard::new(held, Watch::new(None))) else { panic!("no lock") };
        ended.send(held.ask(|_| held.release().is_ok()))?;
        let Ok(all) = client.lock_all(["a", "b"]) else { panic!("no locks") };
        let Ok(handle) = handle::insert(Guards::new(all, Watch::new(None))) else { panic!("no handle") };
        let Ok(all) = handle::get::<Guards>(handle) else { panic!("no guards") };
        ended.send(all.ask(|_| leasehold_guards_free(handle) == Code::Ok))
    });
    for _ in 0..2 {
        assert_eq!(ends.recv_timeout(LONG), Ok(Some(true)), "it waits for itself");
    }
}

/// The store does not answer; neither a release nor a free waits for more than its bound.
#[cfg(feature = "_internals")]
#[test]
fn a_renewal_that_hangs_holds_up_no_release() {
    for end in [leasehold_guard_release, leasehold_guard_free] {
        let (client, faults) = faulty(LONG / 20);
        let Ok(held) = client.lock("k") else { panic!("no lock") };
        drop(client);
        let (needed, lost) = ((LONG * 3).as_millis() as u64, held.loss());
        let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
        let (release, stuck) = bounded(0);
        faults.always(Call::Renew, Fault::Stuck(stuck));
        let ensures = std::thread::spawn(move || leasehold_guard_ensure_held_for(guard, needed));
        wait_for(&faults, Call::Renew);
        let (ended, ends) = bounded(1);
        std::thread::spawn(move || ended.send(end(guard)));
        assert_eq!(ends.recv_timeout(LONG), Ok(Code::Ok), "it waited for the renewal");
        assert!(lost.wait_timeout(LONG).is_none());
        drop(release);
        assert!(matches!(ensures.join(), Ok(Code::Lost | Code::Closed)));
    }
}

/// Another thread's release hangs. A call that ends the guard waits for it and for the store, together for no longer
/// than a drop may take.
#[cfg(feature = "_internals")]
#[test]
fn a_release_that_hangs_is_part_of_the_bound_of_another_end() {
    extern "C" fn hands_over(guard: GuardHandle) -> Code {
        // SAFETY: a place that can be written to.
        unsafe { leasehold_guard_into_lock(guard, &mut LockHandle::default()) }
    }
    let bound = Duration::from_secs(7);
    let ends_after_release = |end: extern "C" fn(GuardHandle) -> Code| {
        let (client, faults) = faulty(bound);
        let Ok(held) = client.lock("k") else { panic!("no lock") };
        drop(client);
        let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
        faults.always(Call::Release, Fault::HangBefore);
        let releases = std::thread::spawn(move || leasehold_guard_release(guard));
        wait_for(&faults, Call::Release);
        // So this call still has time left when that of the first is over.
        std::thread::sleep(Duration::from_millis(400));
        let code = in_one_bound(bound, || end(guard));
        assert!(matches!(releases.join(), Ok(Code::Store | Code::Ambiguous)));
        code
    };
    std::thread::scope(|scope| {
        let [freed, released, handed_over] = [leasehold_guard_free, leasehold_guard_release, hands_over]
            .map(|end| scope.spawn(move || ends_after_release(end)));
        assert!(matches!(freed.join(), Ok(Code::Ok)));
        assert!(matches!(released.join(), Ok(Code::Store | Code::Ambiguous)));
        assert!(!matches!(handed_over.join(), Ok(Code::Panic) | Err(_)));
    });
}

/// The program may end once it has freed the guards.
#[cfg(feature = "_internals")]
#[test]
fn freeing_several_waits_for_a_release_that_is_under_way() {
    for second in [leasehold_guards_release, leasehold_guards_free] {
        let (client, faults) = faulty(LONG);
        let Ok(all) = client.lock_all(["a", "b"]) else { panic!("no locks") };
        let Ok(guards) = handle::insert(Guards::new(all, Watch::new(None))) else { panic!("no handle") };
        let (go_on, stuck) = bounded(0);
        faults.next(Call::Release, Fault::Stuck(stuck));
        let releases = std::thread::spawn(move || leasehold_guards_release(guards));
        wait_for(&faults, Call::Release);
        let (ended, ends) = bounded(1);
        std::thread::spawn(move || ended.send(second(guards)));
        assert!(ends.recv_timeout(LONG / 40).is_err(), "it did not wait");
        drop(go_on);
        assert!(matches!(ends.recv_timeout(LONG), Ok(Code::Ok | Code::Closed)));
        assert!(releases.join().is_ok());
        let free =
            ["a", "b"].map(|key| client.get(key).is_ok_and(|status| status.is_none_or(|status| status.is_free())));
        assert_eq!(free, [true; 2]);
    }
}

#[cfg(feature = "_internals")]
struct ReleasesAll {
    guards: OnceLock<Arc<Guards>>,
    entered: Sender<()>,
    has_left: AtomicBool,
}

/// A callback that found the guards before they were freed, and releases them once a call waits for another release.
#[cfg(feature = "_internals")]
unsafe extern "C" fn releases_all(_: *const LossInfo, user: *mut c_void) {
    // SAFETY: the test leaks it.
    let all = unsafe { &*user.cast::<ReleasesAll>() };
    let _ = all.entered.send(());
    wait_until(|| all.guards.get().is_some_and(|guards| guards.ending.waiting() > 0));
    let _ = call(|| all.guards.get().map_or(Ok(()), |guards| guards.release()));
    // Long enough for a free to return if it does not wait.
    std::thread::sleep(Duration::from_millis(100));
    all.has_left.store(true, Ordering::SeqCst);
}

/// The callback's data may be freed afterwards.
#[cfg(feature = "_internals")]
#[test]
fn freeing_several_waits_for_a_callback_that_waits_for_their_release() {
    let (client, faults) = faulty(LONG);
    let Ok(all) = client.lock_all(["a", "b"]) else { panic!("no locks") };
    let (entered, enters) = bounded(1);
    let user = ReleasesAll { guards: OnceLock::new(), entered, has_left: AtomicBool::new(false) };
    let user: &'static ReleasesAll = Box::leak(Box::new(user));
    let callback = Callback { function: releases_all as LossFn, user: (&raw const *user).cast_mut().cast() };
    let watch = Watch::new(Some(callback));
    let Ok(guards) = handle::insert(Guards::new(all, watch.clone())) else { panic!("no handle") };
    let Ok(inside) = handle::get::<Guards>(guards) else { panic!("no guards") };
    assert!(user.guards.set(inside.clone()).is_ok());
    let (go_on, stuck) = bounded(0);
    faults.next(Call::Release, Fault::Stuck(stuck));
    let releases = std::thread::spawn(move || leasehold_guards_release(guards));
    wait_for(&faults, Call::Release);
    let loss = Loss { reason: LossReason::Gone, key: "a".to_owned(), fencing_token: 1, held_for: LONG };
    let loses = std::thread::spawn(move || watch.lost(&loss));
    assert_eq!(enters.recv_timeout(LONG), Ok(()));
    let frees = std::thread::spawn(move || (leasehold_guards_free(guards), user.has_left.load(Ordering::SeqCst)));
    wait_until(|| inside.ending.waiting() == 2);
    drop(go_on);
    assert!(matches!(frees.join(), Ok((Code::Ok, true))), "the callback still runs");
    assert!(releases.join().is_ok() && loses.join().is_ok());
}

/// The thread that releases it may never return, for example from a callback.
#[cfg(feature = "_internals")]
#[test]
fn a_release_waits_for_another_one_no_longer_than_a_drop_may() {
    use super::super::guards::GuardsHandle;
    use super::super::leadership::{LeadershipData, LeadershipHandle, leasehold_leadership_resign};

    type Made = fn(&LockClient) -> Result<u64, Failure>;
    type End = fn(u64) -> Code;
    let guard: Made = |client| Ok(handle::insert(Guard::new(client.lock("k")?, Watch::new(None)))?.id);
    let all: Made = |client| Ok(handle::insert(Guards::new(client.lock_all(["k"])?, Watch::new(None)))?.id);
    let leader: Made = |client| Ok(LeadershipData::won(client.election("k").build()?.campaign()?)?.id);
    // A guard whose release fails can be released again.
    let ends: [(Made, End, Code); 3] = [
        (guard, |id| leasehold_guard_release(GuardHandle { id }), Code::Store),
        (all, |id| leasehold_guards_release(GuardsHandle { id }), Code::Closed),
        (leader, |id| leasehold_leadership_resign(LeadershipHandle { id }), Code::Closed),
    ];
    for (make, end, says) in ends {
        let (client, faults) = faulty(LONG / 40);
        let Ok(id) = make(&client) else { panic!("no lock") };
        let (go_on, stuck) = bounded(0);
        faults.always(Call::Release, Fault::Stuck(stuck));
        let first = std::thread::spawn(move || end(id));
        wait_for(&faults, Call::Release);
        let (ended, second) = bounded(1);
        std::thread::spawn(move || ended.send(end(id)));
        assert_eq!(second.recv_timeout(LONG), Ok(says), "it waits without end");
        drop(go_on);
        assert!(first.join().is_ok());
    }
}

/// An operator released the lock, and the guard's own release is the first to find that out.
#[cfg(unix)]
#[test]
fn a_release_that_comes_too_late_ends_the_descriptor() {
    use std::io::Read;
    use std::os::fd::FromRawFd;
    use std::os::unix::net::UnixStream;

    let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
    let Ok(held) = client.lock("k") else { panic!("no lock") };
    let lock_id = held.lock_id().to_owned();
    let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
    let mut descriptor = -1;
    // SAFETY: a place that can be written to.
    assert_eq!(unsafe { leasehold_guard_loss_descriptor(guard, &mut descriptor) }, Code::Ok);
    // SAFETY: it is open, a socket, and nobody else's.
    let mut descriptor = unsafe { UnixStream::from_raw_fd(descriptor) };
    assert!(descriptor.set_read_timeout(Some(LONG)).is_ok());
    assert!(client.unlock(&lock_id).is_ok());
    assert_eq!(leasehold_guard_release(guard), Code::Lost);
    assert!(matches!(descriptor.read(&mut [0; 8]), Ok(0)), "it stays silent");
    assert_eq!(leasehold_guard_free(guard), Code::Ok);
}

/// Freeing the last handle drops the client, too, which has an acquisition to give up.
#[cfg(feature = "_internals")]
#[test]
fn freeing_the_last_handle_has_one_bound() {
    use super::super::client::{Client, ClientHandle, leasehold_client_free};
    use super::super::election::{
        ElectionHandle, find, leasehold_election_free, leasehold_election_new, leasehold_election_run,
    };
    type Last = fn(&LockClient, ClientHandle) -> Result<u64, Failure>;
    let guard: Last = |client, _| Ok(handle::insert(Guard::new(client.lock("k")?, Watch::new(None)))?.id);
    let election: Last = |_, client| {
        let mut election = ElectionHandle::default();
        // SAFETY: a text, and a place that can be written to.
        let code = unsafe { leasehold_election_new(client, "k".as_ptr().cast(), 1, &mut election) };
        assert_eq!((code, leasehold_election_run(election)), (Code::Ok, Code::Ok));
        let found = find(election)?;
        wait_until(|| found.is_leader());
        Ok(election.id)
    };
    let bound = Duration::from_secs(7);
    let frees = |last: Last, free: fn(u64) -> Code| {
        let (client, faults) = faulty(bound);
        let Ok(of) = handle::insert(Client::new(client.clone(), None)) else { panic!("no handle") };
        let Ok(last) = last(&client, of) else { panic!("no lock") };
        faults.next(Call::Acquire, Fault::ApplyThenHang);
        faults.always(Call::Release, Fault::HangBefore);
        assert!(client.try_lock_for("other", Duration::from_millis(1)).is_err());
        drop(client);
        assert_eq!(leasehold_client_free(of), Code::Ok);
        assert_eq!(in_one_bound(bound, || free(last)), Code::Ok);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| frees(guard, |id| leasehold_guard_free(GuardHandle { id })));
        scope.spawn(|| frees(election, |id| leasehold_election_free(ElectionHandle { id })));
    });
}

/// Handing over a lock that was lost gives nothing, and no handle for it is kept.
#[test]
fn a_guard_that_is_lost_hands_nothing_over() {
    let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
    let Ok(held) = client.request("k").max_hold(Duration::from_millis(1)).lock() else { panic!("no lock") };
    assert!(held.loss().wait_timeout(LONG).is_some());
    let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
    assert_eq!(leasehold_guard_release(guard), Code::Lost);
    let mut lock = LockHandle::default();
    for _ in 0..100 {
        // SAFETY: a place that can be written to.
        assert_eq!(unsafe { leasehold_guard_into_lock(guard, &mut lock) }, Code::Lost);
    }
    // Other tests may have a few such handles.
    assert!(handle::all::<LockData>().len() < 50, "{} are kept", handle::all::<LockData>().len());
    assert_eq!((lock, leasehold_guard_free(guard)), (LockHandle::default(), Code::Ok));
}

/// The close between the loss and the release has released nothing.
#[test]
fn a_guard_that_was_lost_before_a_close_says_so() {
    type End = fn(GuardHandle) -> Code;
    // SAFETY: a place that can be written to.
    let into_lock: End = |guard| unsafe { leasehold_guard_into_lock(guard, &mut LockHandle::default()) };
    let release: End = |guard| leasehold_guard_release(guard);
    for (end, closes) in [(into_lock, false), (release, true)] {
        let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
        let Ok(held) = client.request("k").max_hold(Duration::from_millis(1)).lock() else { panic!("no lock") };
        assert!(held.loss().wait_timeout(LONG).is_some());
        let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
        let closed = if closes { client.close() } else { Ok(()) };
        assert_eq!(end(guard), Code::Lost, "{closed:?}");
        assert_eq!(leasehold_guard_free(guard), Code::Ok);
    }
}

static TOLD: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn told(_: *const LossInfo, _: *mut c_void) {
    TOLD.store(true, Ordering::SeqCst);
}

/// The loss was found, and its callback is about to begin on a thread of its own.
#[test]
fn a_release_between_the_loss_and_its_callback_silences_nothing() {
    let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
    let Ok(held) = client.request("k").max_hold(Duration::from_millis(1)).lock() else { panic!("no lock") };
    let loss = held.loss().wait_timeout(LONG);
    let watch = Watch::new(Some(Callback { function: told as LossFn, user: std::ptr::null_mut() }));
    let Ok(guard) = handle::insert(Guard::new(held, watch.clone())) else { panic!("no handle") };
    assert_eq!(leasehold_guard_release(guard), Code::Lost);
    loss.iter().for_each(|loss| watch.lost(loss));
    assert!(TOLD.load(Ordering::SeqCst), "nobody heard of the loss");
    assert_eq!(leasehold_guard_free(guard), Code::Ok);
}

static WARNED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn warned(_: u64, _: *mut c_void) {
    WARNED.store(true, Ordering::SeqCst);
}

/// The warning was due, and its callback is about to begin on a thread of its own.
#[test]
fn no_warning_begins_once_all_of_several_are_released() {
    let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
    let Ok(held) = client.lock_all(["a", "b"]) else { panic!("no locks") };
    let watch = Watch::of(None, Some(Callback { function: warned as WarnFn, user: std::ptr::null_mut() }));
    let Ok(guards) = handle::insert(Guards::new(held, watch.clone())) else { panic!("no handle") };
    assert_eq!(leasehold_guards_release(guards), Code::Ok);
    watch.warns(LONG);
    assert!(!WARNED.load(Ordering::SeqCst), "it was called");
    assert_eq!(leasehold_guards_free(guards), Code::Ok);
}

/// After a suspend or a SIGSTOP a wait may end before the watcher has looked at the clock.
#[test]
fn a_wait_that_ends_after_the_lease_tells_of_the_loss() {
    use super::super::keeper::{KeeperData, leasehold_keeper_wait_loss};
    use super::super::leadership::{LeadershipData, leasehold_leadership_wait_loss};
    use crate::testing::MemoryStore;

    let minute = Duration::from_secs(60);
    for _ in 0..20 {
        let store = MemoryStore::new();
        let client = store.client();
        let Ok(guard) = client.lock("k").map(|held| Guard::new(held, Watch::new(None))) else { panic!("no lock") };
        let leases = client.leases("n");
        let keeper = leases.claim("a", "h", minute).and_then(|_| leases.keep("a", "h", minute));
        let (Ok(keeper), Ok(won)) = (keeper, client.election("e").build().and_then(|node| node.campaign())) else {
            panic!("no lease, or no term")
        };
        let (guard, keeper) = (handle::insert(guard), handle::insert(KeeperData(keeper)));
        let (Ok(guard), Ok(keeper), Ok(won)) = (guard, keeper, LeadershipData::won(won)) else { panic!("no handle") };
        store.advance(2 * minute);
        assert_eq!(leasehold_guard_wait_loss(guard, 0), Code::Ok);
        assert_eq!(leasehold_leadership_wait_loss(won, 0), Code::Ok);
        assert_eq!(leasehold_keeper_wait_loss(keeper, 0), Code::Ok);
    }
}

/// Keys are bytes, and a file in UTF-16 makes other bytes of a text. In any other file the statement is the same for
/// all keys, so that a driver can keep it.
#[test]
#[cfg(feature = "sqlite")]
fn the_assertion_is_found_in_a_file_of_any_encoding() {
    for encoding in ["UTF-8", "UTF-16"] {
        let folder = std::env::temp_dir().join(format!("leasehold-unit-{}", crate::sys::random::uuid()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("locks.db");
        let user = crate::sqlite::rusqlite::Connection::open(&file).unwrap();
        user.execute_batch(&format!("PRAGMA encoding = '{encoding}'; CREATE TABLE own (data)")).unwrap();
        let client = LockClient::connect(&format!("sqlite:{}", file.display())).unwrap();
        let [one, other] = ["k\u{e4}", "l"].map(|key| {
            let guard = client.lock(key).unwrap();
            let [sql, key, grant] = stores::statement(&guard).unwrap();
            assert!(user.query_row(&sql, [key, grant], |row| row.get::<_, bool>(0)).unwrap());
            sql
        });
        assert_eq!(one == other, encoding == "UTF-8");
        drop((client, user));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
