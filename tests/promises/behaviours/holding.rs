//! Holding a lock: heartbeats, time, loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use leasehold::internals::lease::StoreTime;
use leasehold::internals::store::fault::{Call, Fault, Faulty};
use leasehold::{ErrorKind, LockGuard, Loss, LossReason};

use crate::behaviours::{Bench, LONG, Store, connected, loss_of};
use crate::support::bench::builder_over;
use crate::support::between::{Between, When};
use crate::support::harness::within;
use crate::support::wait::wait_until;

const BEAT: Duration = Duration::from_millis(20);

/// A client with frequent heartbeats, and a lease that does not end even on a busy machine.
fn eager(bench: &Bench) -> leasehold::LockClient {
    bench.builder().lease(LONG).heartbeat(BEAT).connect().unwrap()
}

pub fn b01_a_holder_survives_a_heartbeat_whose_answer_is_lost(store: &Store) {
    let bench = Bench::on(store);
    let guard = eager(&bench).lock("k").unwrap();
    for _ in 0..5 {
        bench.faults.next(Call::Renew, Fault::ApplyThenFail);
    }
    bench.wait_for_call(Call::Renew, 8);
    assert!(guard.is_held());
    guard.release().unwrap();
}

pub fn b05_a_heartbeat_repeats_what_failed_and_a_panic_in_it_is_a_loss(store: &Store) {
    let bench = Bench::on(store);
    let guard = eager(&bench).lock("k").unwrap();
    for _ in 0..5 {
        bench.faults.next(Call::Renew, Fault::FailBefore);
    }
    bench.wait_for_call(Call::Renew, 6);
    assert!(guard.is_held());
    bench.faults.next(Call::Renew, Fault::Panic);
    assert!(matches!(loss_of(&guard).reason, LossReason::HeartbeatDied));
    assert!(!guard.is_held());
}

/// The store has no part in this, so only this machine's lateness is allowed for.
fn loss_at_its_deadline(guard: &LockGuard) -> Loss {
    within("the loss", guard.remaining(), || loss_of(guard))
}

pub fn b06_the_loss_is_told_at_the_deadline_when_heartbeats_fail(store: &Store) {
    let bench = Bench::on(store);
    bench.faults.always(Call::Renew, Fault::FailBefore);
    // The heartbeats are so frequent that one is sent before the lease ends, even on a busy machine.
    let client = bench.builder().lease(Duration::from_secs(6)).heartbeat(BEAT).connect().unwrap();
    let guard = client.lock("k").unwrap();
    let loss = loss_at_its_deadline(&guard);
    let LossReason::Expired { last_error: Some(error) } = loss.reason else { panic!("{loss:?}") };
    assert_eq!((error.kind(), error.key()), (ErrorKind::Store, Some("k")));
    assert!(!guard.is_held());
    assert!(guard.remaining().is_zero());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
}

pub fn b06_the_loss_is_told_at_the_deadline_when_a_heartbeat_hangs(store: &Store) {
    let bench = Bench::on(store);
    let (_stuck, until) = crossbeam_channel::bounded(0);
    bench.faults.always(Call::Renew, Fault::Stuck(until));
    let client = bench.builder().lease(Duration::from_secs(1)).drop_timeout(Duration::from_millis(200));
    let guard = client.connect().unwrap().lock("k").unwrap();
    assert!(matches!(loss_at_its_deadline(&guard).reason, LossReason::Expired { .. }));
}

pub fn b06_a_heartbeat_that_is_not_answered_leaves_time_for_another(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().lease(Duration::from_secs(9)).heartbeat(BEAT).request_timeout(LONG).connect().unwrap();
    bench.faults.next(Call::Renew, Fault::HangBefore);
    let guard = client.lock("k").unwrap();
    bench.wait_for_call(Call::Renew, 1);
    assert!(guard.is_held());
    guard.release().unwrap();
}

pub fn b07_a_lease_is_counted_from_before_the_request_was_sent(store: &Store) {
    let bench = Bench::on(store);
    // A renewal is waited for at most a third of the lease.
    let client = bench.builder().lease(Duration::from_secs(30)).margin(Duration::from_secs(1)).connect().unwrap();
    let delay = Duration::from_millis(300);
    let promised = Duration::from_secs(29);
    bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(delay));
    let guard = client.lock("k").unwrap();
    assert!(guard.remaining() <= promised - delay, "{:?}", guard.remaining());
    bench.faults.next(Call::Renew, Fault::ApplyThenDelay(delay));
    // This renews. Whether it gave a microsecond more depends on which of the two answers took longer.
    let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
    assert!(guard.info().renewed().is_some());
    assert!(guard.remaining() <= promised - delay, "{:?}", guard.remaining());
}

/// Other clients act on the end of the first grant, for example one of another library that has read it. If the first
/// request wrote nothing, there is no end for them to act on.
pub fn b24_what_a_repeat_is_granted_anew_once_the_first_grant_is_over_is_given_up(store: &Store) {
    let lease = Duration::from_secs(60);
    for (fault, until_it_comes, given_up) in [(Fault::ApplyThenFail, 0.75, 1), (Fault::FailBefore, 0.65, 0)] {
        let bench = Bench::on(store);
        let acts = Between::new(Arc::new(Faulty::new(bench.at.store.clone(), bench.faults.clone())));
        let client = builder_over(Arc::new(acts.clone()), bench.clock.clone()).lease(lease).connect().unwrap();
        bench.faults.next(Call::Acquire, fault);
        // The repeat is sent before half of the lease is over.
        let (then, clock) = (acts.clone(), bench.clock.clone());
        acts.next(When::AfterAcquire, move || {
            clock.advance(lease.mul_f64(0.3));
            let clock = clock.clone();
            then.next(When::BeforeAcquire, move || clock.advance(lease.mul_f64(until_it_comes)));
        });
        let guard = client.lock("k").unwrap();
        assert!(guard.is_held());
        assert_eq!(bench.given_up("k"), given_up);
    }
}

pub fn b08_a_guard_counts_itself_as_lost_before_a_rival_can_be_granted(store: &Store) {
    let bench = Bench::on(store);
    bench.faults.always(Call::Renew, Fault::FailBefore);
    let (lease, margin) = (Duration::from_secs(60), Duration::from_millis(400));
    let client = bench.builder().lease(lease).margin(margin).connect().unwrap();
    let rival = bench.rival();
    let guard = client.lock("k").unwrap();
    let stored = rival.get("k").unwrap().unwrap();
    let left = stored.holders()[0].remaining().unwrap();
    // Where the store's time is not known exactly, the time left is reported as less than it is; such a store has a
    // grace.
    assert!(guard.remaining() + margin <= left + bench.at.store.info().grace + Duration::from_millis(1));
    bench.advance(lease);
    loss_of(&guard);
}

pub fn b09_after_a_suspend_past_the_lease_the_first_look_says_lost(store: &Store) {
    let bench = Bench::on(store);
    let guard = bench.client().lock("k").unwrap();
    bench.advance(Duration::from_secs(21));
    assert!(!guard.is_held());
    assert!(matches!(loss_of(&guard).reason, LossReason::Expired { .. }));
}

pub fn b09_after_a_shorter_suspend_the_lock_is_renewed_at_once(store: &Store) {
    let bench = Bench::on(store);
    // The lease is so long that a third of what is left is enough for a slow server.
    let guard = bench.builder().lease(Duration::from_secs(60)).connect().unwrap().lock("k").unwrap();
    bench.advance(Duration::from_secs(30));
    bench.wait_for_call(Call::Renew, 0);
    // Without the renewal 24 seconds would be left.
    guard.ensure_held_for(Duration::from_secs(40)).unwrap();
    assert!(guard.is_held());
}

pub fn b09_what_is_lost_by_its_deadline_stays_lost(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let guard = client.lock("k").unwrap();
    bench.advance(Duration::from_secs(21));
    // The lock was not taken, so the store would renew it. The guard must not.
    let lock = guard.info();
    client.heartbeat(&lock, Duration::from_secs(20)).unwrap();
    loss_of(&guard);
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held_for(Duration::from_millis(1)).unwrap_err().kind(), ErrorKind::Lost);
}

pub fn b09_an_answer_that_comes_after_the_deadline_does_not_revive(store: &Store) {
    let bench = Bench::on(store);
    // The heartbeat begins at once, so it is under way before the lease ends, even on a machine that stalls.
    let lease = 3 * LONG;
    let client = bench.builder().lease(lease).heartbeat(BEAT).request_timeout(LONG).connect().unwrap();
    let (stuck, until) = crossbeam_channel::bounded::<()>(0);
    bench.faults.next(Call::Renew, Fault::Stuck(until));
    let guard = client.lock("k").unwrap();
    bench.wait_for_call(Call::Renew, 0);
    bench.advance(lease);
    drop(stuck);
    loss_of(&guard);
    assert!(!guard.is_held());
}

pub fn b12_the_token_is_the_same_for_the_whole_hold(store: &Store) {
    let bench = Bench::on(store);
    let client = eager(&bench);
    let guard = client.lock("k").unwrap();
    let token = guard.fencing_token();
    bench.wait_for_call(Call::Renew, 3);
    assert_eq!(guard.info().fencing_token(), token);
    assert_eq!(client.get("k").unwrap().unwrap().fencing_token(), token);
}

pub fn b16_a_store_that_is_away_for_a_while_costs_no_lock(store: &Store) {
    let bench = Bench::on(store);
    let guard = eager(&bench).lock("k").unwrap();
    bench.faults.always(Call::Renew, Fault::FailBefore);
    let (since, failed) = (Instant::now(), bench.faults.count(Call::Renew));
    bench.wait_for_call(Call::Renew, failed + 5);
    // Five waits, each of at least half of 40, 80, .. 640 ms.
    assert!(since.elapsed() >= Duration::from_millis(300), "the repeats do not get rarer");
    bench.faults.heal();
    let healed = bench.faults.count(Call::Renew);
    bench.wait_for_call(Call::Renew, healed + 1);
    assert!(guard.is_held());
    guard.release().unwrap();
}

pub fn b21_a_worker_that_hangs_loses_its_lock_after_max_hold(store: &Store) {
    let bench = Bench::on(store);
    let client = eager(&bench);
    let guard = client.request("k").max_hold(Duration::from_millis(200)).lock().unwrap();
    let loss = loss_of(&guard);
    assert!(matches!(loss.reason, LossReason::MaxHold));
    // A renewal that was under way may still arrive and be counted.
    let most = bench.faults.count(Call::Renew) + 1;
    assert!(loss.held_for >= Duration::from_millis(200), "{:?}", loss.held_for);
    wait_until("a rival gets it", || {
        bench.outlast(LONG);
        bench.rival().try_lock("k").unwrap().is_some()
    });
    assert!(bench.faults.count(Call::Renew) <= most, "it is still renewed");
}

pub fn b21_what_max_hold_ended_is_released_also_when_the_first_release_fails(store: &Store) {
    for fault in [Fault::FailBefore, Fault::HangBefore, Fault::ApplyThenFail, Fault::Panic] {
        let bench = Bench::on(store);
        // The drop timeout leaves time for another try, even on a machine that stalls.
        let builder = || bench.builder().lease(60 * LONG).request_timeout(2 * bench.brief()).drop_timeout(LONG);
        let client = connected(builder);
        let guard = client.request("k").max_hold(Duration::from_millis(10)).lock().unwrap();
        loss_of(&guard);
        bench.faults.next(Call::Release, fault.clone());
        drop(guard);
        assert!(bench.rival().try_lock("k").unwrap().is_some(), "{fault:?}: it is left to its lease");
    }
}

pub fn b22_a_callback_runs_once_on_its_own_thread_and_may_release(store: &Store) {
    let bench = Bench::on(store);
    let (told, tells) = mpsc::channel();
    let guard_slot = std::sync::Arc::new(leasehold::Mutex::new(None));
    let slot = guard_slot.clone();
    let client = bench.client();
    let guard = client
        .request("k")
        .on_loss(move |loss| {
            let released = slot.lock().take().map(|guard: leasehold::LockGuard| guard.release().is_err());
            told.send((loss, released, std::thread::current().name().map(str::to_owned))).unwrap();
        })
        .lock()
        .unwrap();
    *guard_slot.lock() = Some(guard);
    bench.advance(Duration::from_secs(21));
    let (loss, released, thread) = tells.recv_timeout(LONG).unwrap();
    assert_eq!((loss.key.as_str(), released), ("k", Some(true)));
    assert_eq!(thread.as_deref(), Some("leasehold-call"));
    drop(client);
    assert!(tells.recv_timeout(LONG).is_err(), "told twice");
}

pub fn b22_a_panic_in_a_callback_is_contained(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let (told, tells) = mpsc::channel();
    let first = client.request("a").on_loss(|_| panic!("on purpose")).lock().unwrap();
    let second = client.request("b").on_loss(move |_| told.send(()).unwrap()).lock().unwrap();
    bench.advance(Duration::from_secs(21));
    tells.recv_timeout(LONG).unwrap();
    loss_of(&first);
    loss_of(&second);
    drop(client.lock("c").unwrap());
}

pub fn b22_a_slow_callback_delays_no_heartbeat(store: &Store) {
    let bench = Bench::on(store);
    let client = eager(&bench);
    let (_stuck, until) = mpsc::channel::<()>();
    let slow = client.request("a").max_hold(Duration::from_millis(50)).on_loss(move |_| assert!(until.recv().is_err()));
    let slow = slow.lock().unwrap();
    loss_of(&slow);
    let held = client.lock("b").unwrap();
    bench.wait_for_call(Call::Renew, bench.faults.count(Call::Renew) + 3);
    assert!(held.is_held());
    let short = client.request("c").max_hold(Duration::from_millis(50)).lock().unwrap();
    loss_of(&short);
}

pub fn b25_time_to_live_and_purge_are_not_needed_for_a_takeover(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    for _ in 0..3 {
        client.request("k").shared().lease(Duration::from_secs(60)).acquire().unwrap();
    }
    assert!(bench.rival().try_lock("k").unwrap().is_none());
    bench.outlast(Duration::from_secs(60));
    let guard = bench.rival().try_lock("k").unwrap().expect("expired holders block it");
    let status = client.get("k").unwrap().unwrap();
    assert_eq!(status.holders().len(), 1, "the expired ones were not dropped in the same write");
    assert_eq!(status.holders()[0].fencing_token(), guard.fencing_token());
    // Each store's time has its own origin, so only differences count.
    assert!(StoreTime::from_nanos(5).since(StoreTime::from_nanos(7)).is_zero());
}

pub fn b09_what_was_seen_as_lost_is_never_held_again(store: &Store) {
    let bench = Bench::on(store);
    // `answered` is set when a renewal was answered.
    let (between, answered) = (Between::new(bench.at.store.clone()), Arc::new(AtomicBool::new(false)));
    let client = builder_over(Arc::new(between.clone()), bench.clock.clone()).lease(LONG).connect().unwrap();
    let mut lost = 0;
    for round in 0..1500_u32 {
        let guard = client.lock("k").unwrap();
        answered.store(false, Ordering::SeqCst);
        let tell = answered.clone();
        between.next(When::AfterRenewal, move || tell.store(true, Ordering::SeqCst));
        // The heartbeat is sent at once, and the deadline passes just as it is answered.
        bench.advance(LONG * 6 / 10);
        // On a machine that stalls the lease may end before that.
        while !answered.load(Ordering::SeqCst) && guard.is_held() {
            std::hint::spin_loop();
        }
        (0..round % 60).for_each(|_| std::hint::spin_loop());
        bench.advance(LONG * 4 / 10);
        if !guard.is_held() {
            lost += 1;
            for _ in 0..1000 {
                assert!(!guard.is_held(), "held again in round {round}");
            }
        }
    }
    println!("{lost} were lost");
    assert!(lost > 0, "no deadline passed before the answer");
}
