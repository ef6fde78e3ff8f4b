//! The line of waiters inside a process, and the hand-over to its head.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::bench::{Bench, LONG, loss_of};
use crate::support::seed::{seed, sow};
use crate::support::wait::wait_until;
use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{CancelToken, Error, ErrorKind, LockClient, LockGuard, LockRequest, Mutex};

const HOUR: Duration = Duration::from_secs(3600);
/// A poll so short that waiters soon go on after the pause in which other processes get their turn.
const SHORT: Duration = Duration::from_millis(20);

/// Waits on a thread of its own. Returns once it is in the line, at this place.
pub(super) fn waiter(
    client: &LockClient,
    place: usize,
    ask: impl FnOnce(LockRequest) -> LockRequest + Send + 'static,
) -> JoinHandle<Result<LockGuard, Error>> {
    let (told, tells) = mpsc::channel();
    // The callback is called more than once, but only its first report is read.
    let request = client.request("k").on_wait(move |waiting| told.send(waiting.place).unwrap_or_default());
    let thread = std::thread::spawn(move || ask(request).lock());
    assert_eq!(tells.recv_timeout(LONG).unwrap(), place);
    wait_until("it has said so", || in_users_code(client, "k") == 0);
    thread
}

#[test]
fn a_thousand_waiters_make_the_requests_of_one() {
    assert!((0..3).any(|_| a_thousand_wait()), "they waited for too long each time");
}

/// Returns `false` if they waited for 30 s, which each reports: nothing is handed over to a waiter that reports.
fn a_thousand_wait() -> bool {
    const WAITERS: usize = 1000;
    let (bench, began) = (Bench::new(), Instant::now());
    bench.faults.never_wakes();
    let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
    let held = bench.rival().lock("k").unwrap();
    let spawn = |_| {
        let client = client.clone();
        let body = move || drop(client.lock("k").unwrap());
        std::thread::Builder::new().stack_size(128 * 1024).spawn(body).unwrap()
    };
    // The first waiter was refused and polls. Those that come after it are in the line behind it.
    let mut threads = vec![spawn(0)];
    bench.wait_for_call(Call::Read, 0);
    threads.extend((1..WAITERS).map(spawn));
    bench.wait_for_call(Call::Read, bench.faults.count(Call::Read) + 20);
    let asked = bench.faults.count(Call::Acquire);
    assert_eq!(asked, 1, "{asked} waiters asked");
    // The clock is read first: a poll in between makes the time longer, not shorter.
    let (started, reads) = (bench.clock.now(), bench.faults.count(Call::Read));
    bench.wait_for_call(Call::Read, reads + 20);
    let took = bench.clock.now().since(started);
    assert!(took >= SHORT * 18, "21 reads in {took:?}: more than one polls");
    drop(held);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let is_soon = began.elapsed() < Duration::from_secs(30);
    // Each lock was granted by a hand-over or, each ninth time, by a release, a look and a grant.
    assert!(!is_soon || bench.faults.count(Call::Acquire) <= WAITERS + asked + WAITERS / 50);
    assert!(!is_soon || bench.faults.count(Call::Release) <= WAITERS / 9 + 2);
    is_soon
}

/// Only the first one asks the store. While that request hangs, nobody can say that others hold the lock.
#[test]
fn whoever_stands_behind_one_whose_request_hangs_is_told_so() {
    let bench = Bench::new();
    bench.faults.never_wakes();
    let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
    let held = bench.rival().lock("k").unwrap();
    let head = waiter(&client, 0, |request| request);
    let (answer, stuck) = crossbeam_channel::bounded(0);
    bench.faults.next(Call::Read, Fault::Stuck(stuck));
    wait_until("it hangs", || bench.faults.unmet() == 0);
    drop(held);
    let behind = client.request("k").wait(Duration::from_secs(2)).lock();
    let once = client.try_lock("k");
    drop(answer);
    assert_eq!(behind.unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(once.unwrap_err().kind(), ErrorKind::Store);
    assert!(head.join().unwrap().unwrap().is_held());
}

/// All in line share the first one's trouble. Its unanswered write is no ambiguity to them: they asked for nothing.
#[test]
fn whoever_stands_behind_one_in_trouble_ends_with_the_trouble() {
    for fault in [Fault::FailBefore, Fault::LostBefore] {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
        let held = bench.rival().lock("k").unwrap();
        let head = waiter(&client, 0, |request| request);
        bench.faults.always(Call::Acquire, fault);
        drop(held);
        bench.wait_for_call(Call::Acquire, 2);
        let mut told = Vec::new();
        let behind = client.request("k").wait(SHORT);
        let error = behind.lock_with_progress(|waiting| told.push(waiting.last_error.is_some())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(told.first() == Some(&true), "{told:?}");
        assert_eq!(client.try_lock("k").unwrap_err().kind(), ErrorKind::Store);
        bench.faults.heal();
        assert!(head.join().unwrap().unwrap().is_held());
        assert!(client.try_lock("k").unwrap().is_some());
    }
}

#[test]
fn who_came_first_is_served_first_by_one_request_each() {
    let (bench, client) = Bench::patient();
    let held = client.lock("k").unwrap();
    // Nothing is handed over to a waiter that is just reporting its place, so these report once an hour.
    let waiters: Vec<_> = (0..5).map(|place| waiter(&client, place, |request| request.on_wait_every(HOUR))).collect();
    bench.wait_for_call(Call::Acquire, 1);
    // A thread of its own does this, which may be late.
    bench.wait_for_call(Call::Wake, 0);
    let before = bench.faults.calls().len();
    let mut token = held.fencing_token();
    drop(held);
    for (n, waiter) in waiters.into_iter().enumerate() {
        let guard = waiter.join().unwrap().unwrap();
        assert!(guard.fencing_token() > token);
        token = guard.fencing_token();
        let calls = &bench.faults.calls()[before..];
        assert!(calls.iter().all(|call| *call == Call::Acquire) && calls.len() == n + 1, "{calls:?}");
        assert!(bench.rival().try_lock("k").unwrap().is_none(), "there is a gap");
    }
}

#[test]
fn after_eight_hand_overs_the_lock_is_really_released() {
    // A waiter that reports its place just as the lock comes gets no hand-over: that is a release, too.
    assert!((0..100).any(|_| is_handed_over_eight_times()), "there are fewer each time");
}

fn is_handed_over_eight_times() -> bool {
    let bench = Bench::new();
    let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
    let held = client.lock("k").unwrap();
    let waiters: Vec<_> = (0..12).map(|place| waiter(&client, place, |request| request)).collect();
    drop(held);
    for waiter in waiters {
        drop(waiter.join().unwrap().unwrap());
    }
    let calls = bench.faults.calls();
    let asks = |chain: &[Call]| chain.iter().filter(|call| **call == Call::Acquire).count();
    let asked: Vec<_> = calls.split(|call| *call == Call::Release).map(asks).collect();
    // Each part: one acquire and eight transfers. The first: also the refused acquire of the first waiter.
    assert!(asked[0] <= 2 + 8 && asked[1..].iter().all(|asks| *asks <= 1 + 8), "{calls:?}");
    asked[0] == 2 + 8
}

#[test]
fn after_a_whole_lease_of_hand_overs_the_lock_is_really_released() {
    let bench = Bench::new();
    let client = bench.builder().poll(SHORT..=SHORT).connect().unwrap();
    let held = client.lock("k").unwrap();
    let first = waiter(&client, 0, |request| request);
    let second = waiter(&client, 1, |request| request);
    drop(held);
    let first = first.join().unwrap().unwrap();
    for _ in 0..3 {
        // Without a renewal nine seconds would be left; with one, eighteen, minus the time that its answer takes.
        bench.clock.advance(Duration::from_secs(9));
        first.ensure_held_for(Duration::from_secs(12)).unwrap();
    }
    let releases = bench.faults.count(Call::Release);
    drop(first);
    assert_eq!(bench.faults.count(Call::Release), releases + 1);
    assert!(second.join().unwrap().is_ok());
}

#[test]
fn try_lock_does_not_overtake_who_waits() {
    let (bench, client) = Bench::patient();
    let held = bench.rival().lock("k").unwrap();
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let waiting = waiter(&client, 0, move |request| request.cancel(&token));
    let asked = bench.faults.count(Call::Acquire);
    assert!(client.try_lock("k").unwrap().is_none());
    assert!(client.try_lock_for("k", Duration::from_millis(50)).unwrap().is_none());
    let error = client.request("k").wait(Duration::from_millis(50)).lock().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("k")));
    assert_eq!(bench.faults.count(Call::Acquire), asked, "the store was asked");
    // An acquire as data does not wait behind the line.
    assert_eq!(client.request("k").acquire().unwrap_err().kind(), ErrorKind::Held);
    cancel.cancel();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(held);
    assert!(client.try_lock("k").unwrap().is_some(), "somebody is left in the line");
}

#[test]
fn a_poller_that_ends_gives_its_turn_to_the_next_at_once() {
    let (bench, client) = Bench::patient();
    let held = bench.rival().lock("k").unwrap();
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let first = waiter(&client, 0, move |request| request.cancel(&token));
    let second = waiter(&client, 1, |request| request);
    // Nobody in this process learns of the release. The next waiter looks because it gets the turn.
    drop(held);
    cancel.cancel();
    assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(second.join().unwrap().unwrap().is_held());
}

#[test]
fn shared_waiters_wait_behind_an_exclusive_one() {
    let (_bench, client) = Bench::patient();
    let reader = client.lock_shared("k").unwrap();
    let writer = waiter(&client, 0, |request| request);
    let (told, tells) = mpsc::channel();
    let late = client.clone();
    let late = std::thread::spawn(move || {
        let request = late.request("k").shared().on_wait(move |waiting| told.send(waiting.place).unwrap_or_default());
        request.lock().map(|guard| guard.fencing_token())
    });
    assert_eq!(tells.recv_timeout(LONG).unwrap(), 1, "it overtook the writer");
    drop(reader);
    let writer = writer.join().unwrap().unwrap();
    let token = writer.fencing_token();
    drop(writer);
    assert!(late.join().unwrap().unwrap() > token);
}

#[test]
fn several_shared_waiters_come_in_together() {
    let (_bench, client) = Bench::patient();
    let writer = client.lock("k").unwrap();
    let readers: Vec<_> = (0..3).map(|place| waiter(&client, place, |request| request.shared())).collect();
    drop(writer);
    let readers: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap().unwrap()).collect();
    assert!(readers.iter().all(LockGuard::is_held));
}

#[test]
fn a_waiter_that_goes_while_it_is_handed_the_lock_leaves_it_free() {
    for round in 0..20 {
        let (bench, client) = Bench::patient();
        let held = client.lock("k").unwrap();
        let cancel = CancelToken::new();
        let token = cancel.clone();
        let waiting = waiter(&client, 0, move |request| request.cancel(&token));
        let asked = bench.faults.count(Call::Acquire);
        bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(Duration::from_millis(round)));
        let releasing = std::thread::spawn(move || drop(held));
        bench.wait_for_call(Call::Acquire, asked);
        cancel.cancel();
        drop(waiting.join().unwrap());
        releasing.join().unwrap();
        wait_until("what was given up is free", || bench.rival().get("k").unwrap().unwrap().is_free());
    }
}

#[test]
fn a_waiter_that_panics_while_it_is_handed_the_lock_releases_it() {
    let (bench, client) = Bench::patient();
    let held = client.lock("k").unwrap();
    let (unblock, blocked) = crossbeam_channel::bounded(0);
    bench.faults.next(Call::Read, Fault::PanicLater(blocked));
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let gone = waiter(&client, 0, move |request| request.cancel(&token));
    let first = waiter(&client, 1, |request| request);
    // The next waiter gets the turn, and hangs in its look.
    cancel.cancel();
    assert!(gone.join().unwrap().is_err());
    bench.wait_for_call(Call::Read, 0);
    let second = waiter(&client, 1, |request| request);
    drop(held);
    drop(unblock);
    assert!(first.join().is_err(), "it did not panic");
    assert!(second.join().unwrap().unwrap().is_held());
}

#[test]
fn a_hand_over_that_is_not_answered_is_given_up_and_the_lock_released() {
    for fault in [Fault::ApplyThenFail, Fault::HangBefore, Fault::ApplyThenHang, Fault::FailBefore] {
        let bench = Bench::new();
        let builder = bench.builder().poll(HOUR..=HOUR).request_timeout(Duration::from_millis(100));
        // The drop timeout leaves time to give it up, even if the machine stalls.
        let client = builder.drop_timeout(LONG).connect().unwrap();
        let held = client.lock("k").unwrap();
        let waiting = waiter(&client, 0, |request| request);
        bench.faults.next(Call::Acquire, fault.clone());
        let released = held.release();
        assert!(released.is_ok(), "{fault:?}: {released:?}");
        let guard = waiting.join().unwrap().unwrap();
        assert!(guard.is_held());
        let status = client.get("k").unwrap().unwrap();
        assert_eq!(status.holders().len(), 1);
        assert_eq!(status.holders()[0].fencing_token(), guard.fencing_token());
    }
}

#[test]
fn a_hand_over_that_hangs_leaves_half_of_the_bound_for_a_release() {
    let bench = Bench::new();
    let bound = Duration::from_secs(2);
    let client = bench.builder().poll(HOUR..=HOUR).request_timeout(LONG).drop_timeout(bound).connect().unwrap();
    let held = client.lock("k").unwrap();
    let waiting = waiter(&client, 0, |request| request);
    bench.faults.next(Call::Acquire, Fault::HangBefore);
    bench.at.within(bound / 2, || held.release()).unwrap();
    assert!(waiting.join().unwrap().unwrap().is_held());
}

/// Within the bound of the drop there is no answer to the hand-over, nor to anything that would end it.
#[test]
fn a_hand_over_that_nobody_could_give_up_in_time_is_given_up_later() {
    let bench = Bench::new();
    let client = bench.builder().lease(HOUR).drop_timeout(Duration::from_millis(500)).connect().unwrap();
    let held = client.lock("k").unwrap();
    let waiting = waiter(&client, 0, |request| request);
    bench.faults.next(Call::Acquire, Fault::ApplyThenHang);
    bench.faults.always(Call::Release, Fault::FailBefore);
    drop(held);
    assert!(!bench.rival().get("k").unwrap().unwrap().is_free(), "it was done, and nobody knows");
    bench.faults.heal();
    wait_until("the waiter is through", || waiting.is_finished());
    assert!(waiting.join().unwrap().unwrap().is_held());
}

#[test]
fn a_guard_that_was_taken_over_hands_nothing_over() {
    let bench = Bench::new();
    let client = bench.builder().poll(HOUR..=HOUR).connect().unwrap();
    let held = client.lock("k").unwrap();
    let waiting = waiter(&client, 0, |request| request.wait(LONG));
    bench.take_over("k");
    assert_eq!(held.release().unwrap_err().error().kind(), ErrorKind::Lost);
    bench.clock.advance(Duration::from_secs(60));
    let jumps = || bench.clock.advance(Duration::ZERO);
    wait_until("it looks, also if it just did", || (jumps(), waiting.is_finished()).1);
    drop(client);
    assert!(waiting.join().unwrap().unwrap().is_held());
}

#[test]
fn what_was_handed_over_is_renewed_and_lost_like_any_other() {
    let bench = Bench::new();
    let client = bench.builder().poll(HOUR..=HOUR).lease(LONG).heartbeat(Duration::from_millis(10)).connect().unwrap();
    let held = client.lock("k").unwrap();
    let waiting = waiter(&client, 0, |request| request.lease(LONG));
    drop(held);
    let guard = waiting.join().unwrap().unwrap();
    assert!(guard.remaining() <= LONG * 9 / 10, "no margin: {:?}", guard.remaining());
    bench.wait_for_call(Call::Renew, bench.faults.count(Call::Renew) + 1);
    bench.take_over("k");
    assert_eq!(loss_of(&guard).fencing_token, guard.fencing_token());
}

#[test]
fn storms_of_cancelled_and_late_waiters_leave_nobody_behind() {
    let bench = Bench::new();
    let poll = Duration::from_millis(1)..=Duration::from_millis(3);
    let client = bench.builder().poll(poll).connect().unwrap();
    let seed = seed();
    let threads: Vec<_> = (0..16_u64)
        .map(|n| {
            let client = client.clone();
            std::thread::spawn(move || {
                sow(seed, n);
                let mut granted = 0;
                for round in 0..40 {
                    let cancel = CancelToken::new();
                    let request = client.request("k").cancel(&cancel);
                    let request = match (n + round) % 3 {
                        0 => request.wait(Duration::from_micros(fastrand::u64(1..3000))),
                        1 => {
                            let after = Duration::from_micros(fastrand::u64(1..3000));
                            let cancel = cancel.clone();
                            std::thread::spawn(move || {
                                std::thread::sleep(after);
                                cancel.cancel();
                            });
                            request
                        }
                        _ => request,
                    };
                    match request.lock() {
                        Ok(guard) => {
                            granted += 1;
                            assert!(guard.is_held());
                        }
                        Err(error) => {
                            // On a busy machine the first in line may stall while it asks.
                            let is_behind = error.is_retryable() && error.to_string().contains("had no answer for");
                            let is_over = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Cancelled);
                            assert!(is_over || is_behind, "{error:?}");
                        }
                    }
                }
                granted
            })
        })
        .collect();
    let granted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(granted >= 16 * 40 / 3, "{granted}");
    wait_until("it is free", || bench.rival().get("k").unwrap().unwrap().is_free());
    assert!(client.try_lock("k").unwrap().is_some(), "somebody is left in the line");
}

/// A store or a user's code may panic like this at any moment.
fn perhaps_panic() {
    if fastrand::u8(..) < 60 {
        std::panic::resume_unwind(Box::new("an injected panic"));
    }
}

#[test]
fn storms_of_panics_leave_nobody_behind_and_no_grant_unowned() {
    let bench = Bench::new();
    let poll = Duration::from_millis(1)..=Duration::from_millis(3);
    // No lease ends so early that it hides a grant without an owner. Each lock also takes a renewal first.
    let client = bench.builder().poll(poll).lease(HOUR).request_timeout(LONG).drop_timeout(LONG).connect().unwrap();
    // On a slow machine the turns of all the others take long.
    let wait = 6 * LONG;
    let hold_one = || {
        let callbacks = client.request("k").wait(wait).on_wait(|_| perhaps_panic()).on_loss(|_| perhaps_panic());
        let any = client.request_any(["k", "l"]).wait(wait).on_wait(|_| perhaps_panic());
        let guard = match fastrand::u8(..4) {
            0 => any.lock(),
            1 => callbacks.shared().lock(),
            _ => callbacks.max_hold(Duration::from_millis(1)).lock(),
        };
        let guard = guard?;
        guard.loss().wait_timeout(Duration::from_micros(fastrand::u64(..3000)));
        perhaps_panic();
        guard.release().map_err(Error::from)
    };
    let (panics, seed) = (Arc::new(Mutex::new(0)), seed());
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (bench, panics, hold_one) = (&bench, &panics, &hold_one);
            scope.spawn(move || {
                sow(seed, n);
                for _ in 0..40 {
                    let call = fastrand::choice([Call::Acquire, Call::Renew, Call::Release, Call::Read]).unwrap();
                    bench.faults.next(call, fastrand::choice([Fault::Panic, Fault::ApplyThenPanic]).unwrap());
                    match catch_unwind(AssertUnwindSafe(hold_one)) {
                        Err(_) => *panics.lock() += 1,
                        Ok(held) => {
                            assert!(held.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::Lost), "{held:?}")
                        }
                    }
                }
            });
        }
    });
    let panics = *panics.lock();
    assert!(panics > 16 * 40 / 8, "{panics}");
    bench.faults.heal();
    for key in ["k", "l"] {
        wait_until("it is free", || bench.rival().get(key).unwrap().unwrap().is_free());
        assert!(client.try_lock(key).unwrap().is_some(), "somebody is left in the line");
    }
}

#[test]
fn a_panic_of_the_store_leaves_no_grant_to_its_lease() {
    for (call, fault) in
        [(Call::Acquire, Fault::ApplyThenPanic), (Call::Renew, Fault::Panic), (Call::Renew, Fault::ApplyThenPanic)]
    {
        let bench = Bench::new();
        let client = bench.builder().lease(HOUR).connect().unwrap();
        bench.faults.next(call, fault.clone());
        let locked = catch_unwind(AssertUnwindSafe(|| client.lock("k")));
        assert!(locked.is_err(), "{call:?} {fault:?}: the panic is hidden");
        wait_until("it is free", || bench.rival().get("k").unwrap().unwrap().is_free());
    }
}

#[test]
fn a_panic_of_the_store_does_not_come_out_of_a_release() {
    for fault in [Fault::Panic, Fault::ApplyThenPanic] {
        let (bench, client) = Bench::patient();
        let guard = client.lock("k").unwrap();
        bench.faults.next(Call::Release, fault.clone());
        drop(guard);
        assert!(bench.rival().get("k").unwrap().unwrap().is_free(), "{fault:?}");
        // The same in a hand-over.
        let guard = client.lock("k").unwrap();
        let waiting = waiter(&client, 0, |request| request);
        bench.faults.next(Call::Acquire, fault);
        guard.release().unwrap();
        drop(waiting.join().unwrap().unwrap());
        assert!(bench.rival().get("k").unwrap().unwrap().is_free());
    }
}
