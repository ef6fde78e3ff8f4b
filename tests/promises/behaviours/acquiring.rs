//! Obtaining a lock: unanswered requests, waiting, tokens.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::internals::store::Acquired;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{ErrorKind, SameOwner};

use crate::behaviours::{Bench, LONG, Store, connected, renews, wait_until, waits_in_vain};

const MINUTE: Duration = Duration::from_secs(60);
/// More time than a busy machine can take from a wait.
pub const SECONDS: Duration = Duration::from_secs(7);

/// The outcome of the first of these calls that made a request of this kind more than once: on a busy machine the time
/// of a call may be over before that.
fn repeated<T>(bench: &Bench, call: Call, make: impl Fn() -> T) -> T {
    let count = || bench.faults.count(call);
    let mut made = (0..10).map(|_| (count(), make()));
    made.find(|(before, _)| count() > before + 1).expect("it is repeated").1
}

pub fn b02_a_request_that_the_network_doubles_is_no_failure(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    bench.faults.next(Call::Acquire, Fault::Twice);
    // A renewal is waited for at most a third of the lease.
    let guard = client.request("k").lease(3 * LONG).lock().unwrap();
    bench.faults.next(Call::Renew, Fault::Twice);
    renews(&guard);
    bench.faults.next(Call::Release, Fault::Twice);
    // The second copy finds nothing, and the release reports that: an operator could have released the lock.
    let _ = guard.release();
    assert!(client.get("k").unwrap().unwrap().is_free());
}

pub fn b03_an_acquire_whose_answer_is_lost_finds_itself(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    let guard = client.try_lock("k").unwrap().expect("it refused itself");
    assert_eq!(bench.faults.count(Call::Acquire), 2);
    assert_eq!(client.get("k").unwrap().unwrap().fencing_token(), guard.fencing_token(), "granted twice");
}

pub fn b03_an_acquire_that_is_given_up_leaves_nothing(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    bench.faults.always(Call::Acquire, Fault::ApplyThenHang);
    let error = client.try_lock_for("k", bench.wait()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous);
    bench.wait_for_release("k");
    assert!(bench.rival().try_lock("k").unwrap().is_some());
}

pub fn b03_an_acquire_that_arrives_after_it_was_given_up_is_granted_to_nobody(store: &Store) {
    let bench = Bench::on(store);
    let client = connected(|| bench.builder().request_timeout(bench.brief()));
    for is_held in [false, true] {
        bench.faults.always(Call::Acquire, Fault::Late);
        let given_up = bench.given_up("k");
        let error = client.try_lock_for("k", bench.wait()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        wait_until("the acquisition is given up", || bench.given_up("k") > given_up);
        let held = is_held.then(|| bench.rival().lock("k").unwrap());
        let late = bench.faults.deliver();
        assert!(!late.is_empty() && late.iter().all(|late| matches!(late, Ok(Acquired::Refused(_)))), "{late:?}");
        let status = bench.rival().get("k").unwrap().unwrap();
        assert_eq!(status.holders().len(), usize::from(is_held), "it was granted to nobody");
        drop(held);
    }
}

pub fn b03_a_late_copy_of_what_was_passed_on_in_this_process_is_granted_to_nobody(store: &Store) {
    let bench = Bench::on(store);
    let client = connected(|| bench.builder().request_timeout(bench.brief()));
    bench.faults.next(Call::Acquire, Fault::Late);
    let first = client.lock("k").unwrap();
    let (begin, began) = mpsc::channel();
    let request = client.request("k").on_wait(move |_| begin.send(()).unwrap_or_default());
    let waiter = std::thread::spawn(move || request.lock());
    began.recv().unwrap();
    drop(first);
    drop(waiter.join().unwrap().unwrap());
    let late = bench.faults.deliver();
    assert!(matches!(late[..], [Ok(Acquired::Refused(_))]), "{late:?}");
    assert!(bench.rival().try_lock("k").unwrap().is_some(), "it was granted to nobody");
}

pub fn b03_an_acquire_of_which_one_try_was_not_answered_is_ambiguous_however_the_others_failed(store: &Store) {
    let bench = Bench::on(store);
    let client = connected(|| bench.builder().request_timeout(bench.wait()));
    let error = repeated(&bench, Call::Acquire, || {
        bench.faults.heal();
        bench.faults.next(Call::Acquire, Fault::LostBefore);
        bench.faults.always(Call::Acquire, Fault::FailBefore);
        client.try_lock("k").unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
}

pub fn b03_an_unanswered_acquire_that_arrives_behind_a_rival_is_given_up(store: &Store) {
    let bench = Bench::on(store);
    let held = bench.rival().lock("k").unwrap();
    bench.faults.next(Call::Acquire, Fault::HangBefore);
    let client = connected(|| bench.builder().request_timeout(bench.brief()));
    waits_in_vain(&client, "k", bench.wait().max(SECONDS)).unwrap();
    wait_until("a release was sent", || bench.faults.count(Call::Release) > 0);
    drop(held);
}

pub fn b03_an_unanswered_acquire_is_given_up_when_half_its_lease_is_over_and_not_before(store: &Store) {
    let bench = Bench::on(store);
    let client = connected(|| bench.builder().lease(MINUTE).request_timeout(bench.brief()));
    bench.faults.always(Call::Acquire, Fault::HangBefore);
    let waiter = std::thread::spawn(move || client.lock("k").map(drop));
    bench.wait_for_call(Call::Acquire, 3);
    assert_eq!(bench.faults.count(Call::Release), 0, "it was given up too early");
    bench.advance(MINUTE / 2 + Duration::from_secs(1));
    bench.wait_for_call(Call::Release, 0);
    // Then the lock is asked for again.
    bench.faults.heal();
    waiter.join().unwrap().unwrap();
}

pub fn b03_what_can_not_be_given_up_at_once_is_given_up_in_the_background(store: &Store) {
    let bench = Bench::on(store);
    let _held = bench.rival().lock("k").unwrap();
    let client = connected(|| bench.builder().request_timeout(bench.brief()));
    bench.faults.next(Call::Acquire, Fault::HangBefore);
    bench.faults.always(Call::Release, Fault::FailBefore);
    waits_in_vain(&client, "k", bench.wait().max(SECONDS)).unwrap();
    assert_eq!(bench.given_up("k"), 0);
    bench.faults.heal();
    wait_until("the acquisition is given up", || bench.given_up("k") == 1);
}

pub fn a_store_that_goes_away_in_a_wait_is_what_the_wait_ends_with(store: &Store) {
    let bench = Bench::on(store);
    let _held = bench.rival().lock("k").unwrap();
    let client = connected(|| bench.builder().request_timeout(bench.brief()));
    for fault in [Fault::FailBefore, Fault::HangBefore] {
        bench.faults.always(Call::Read, fault);
        // Of two looks, the first can't have been cut off by the end of the wait, which would say nothing about the
        // store.
        let error = repeated(&bench, Call::Read, || client.request("k").wait(bench.wait()).lock()).unwrap_err();
        assert_eq!((error.kind(), error.holders().len()), (ErrorKind::Store, 0), "{error}");
        let error = repeated(&bench, Call::Read, || client.try_lock_for("k", bench.wait())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    }
    // If the end of the wait cuts off its only look, nothing is known about the store.
    let client = bench.builder().connect().unwrap();
    // Repeats a wait until it has looked: on a busy machine its time may be over before it has asked for the lock.
    let ends = || {
        let mut waits = (0..10).map(|_| {
            let (before, asked) = (bench.faults.count(Call::Read), Instant::now());
            let error = client.request("k").wait(Duration::from_millis(400)).lock().unwrap_err();
            (bench.faults.count(Call::Read) > before, asked.elapsed(), error)
        });
        let (_, took, error) = waits.find(|(has_looked, ..)| *has_looked).expect("it looks");
        // If the store is silent for a whole second, it counts as in trouble.
        let is_silent = took >= Duration::from_secs(1) && error.kind() == ErrorKind::Store;
        assert!(is_silent || (error.kind(), error.holders().len()) == (ErrorKind::TimedOut, 1), "{error}");
    };
    ends();
    bench.faults.heal();
    ends();
}

pub fn b03_an_acquire_that_is_refused_for_good_ends_the_call_and_leaves_nothing(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    // The answer of the first acquire is lost, so the lock may be held already.
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    bench.faults.next(Call::Acquire, Fault::Refuse);
    assert_eq!(client.lock("k").unwrap_err().kind(), ErrorKind::Permission);
    assert_eq!(bench.faults.count(Call::Acquire), 2);
    wait_until("the acquisition is given up", || bench.given_up("k") == 1);
    assert!(client.get("k").unwrap().unwrap().is_free());
}

pub fn b03_a_first_renewal_that_is_refused_for_good_ends_the_call_and_leaves_nothing(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    bench.faults.next(Call::Renew, Fault::Refuse);
    assert_eq!(client.request("k").lease(60 * MINUTE).lock().unwrap_err().kind(), ErrorKind::Permission);
    assert!(client.get("k").unwrap().unwrap().is_free());
}

pub fn b03_a_first_renewal_that_is_not_answered_is_repeated(store: &Store) {
    let bench = Bench::on(store);
    // The first try has half of the request timeout, and the repeat what is left then.
    let client = connected(|| bench.builder().request_timeout(LONG / 2));
    bench.faults.next(Call::Renew, Fault::ApplyThenHang);
    let guard = client.request("k").lease(60 * MINUTE).try_lock().unwrap().expect("it is free");
    assert!(bench.faults.unmet() == 0 && guard.remaining() > 30 * MINUTE);
}

pub fn b10_grants_that_come_too_late_are_asked_for_more_and_more_rarely(store: &Store) {
    let bench = Bench::on(store);
    let lease = bench.min_lease();
    let client = bench.builder().lease(lease).connect().unwrap();
    for _ in 0..5 {
        bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(lease));
    }
    let started = Instant::now();
    drop(client.lock("k").unwrap());
    // Five answers, and five waits, each of at least half of 40, 80, .. 640 ms.
    assert!(started.elapsed() >= 5 * lease + Duration::from_millis(500), "the repeats do not get rarer");
}

pub fn b10_a_grant_that_comes_too_late_to_be_used_is_not_returned(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().lease(Duration::from_secs(4)).connect().unwrap();
    // The store grants at once, but the answer takes longer than the lease minus its margin.
    bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(Duration::from_millis(3800)));
    let guard = client.lock("k").unwrap();
    assert!(bench.faults.count(Call::Acquire) > 1, "the late grant was returned");
    assert!(guard.remaining() > Duration::from_millis(100));
}

pub fn b11_tokens_rise_over_release_expiry_takeover_purge_and_deleted_rows(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let day = 24 * 3600 * 1_000_000;
    bench.clock.set_wall_offset(-40 * day);
    let mut tokens = vec![client.lock("k").unwrap().fencing_token()];
    tokens.push(client.request("k").lease(MINUTE).acquire().unwrap().fencing_token());
    bench.advance(MINUTE);
    tokens.push(client.request("k").owner("a").acquire().unwrap().fencing_token());
    let taken = client.request("k").owner("a").same_owner(SameOwner::Replace).acquire().unwrap();
    tokens.push(taken.fencing_token());
    bench.advance(MINUTE);
    assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 1);
    tokens.push(client.lock("k").unwrap().fencing_token());
    bench.clock.set_wall_offset(0);
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 1);
    assert!(client.get("k").unwrap().is_none());
    tokens.push(client.lock("k").unwrap().fencing_token());
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

pub fn b11_a_wall_clock_that_is_set_back_does_not_lower_a_token(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let before = client.lock("k").unwrap().fencing_token();
    bench.clock.set_wall_offset(-3_600_000_000);
    assert_eq!(client.lock("k").unwrap().fencing_token(), before + 1);
}

pub fn b13_a_caller_that_comes_once_takes_over_an_expired_lock_at_once(store: &Store) {
    let bench = Bench::on(store);
    bench.client().request("k").lease(MINUTE).acquire().unwrap();
    assert!(bench.rival().try_lock("k").unwrap().is_none());
    bench.outlast(MINUTE);
    assert!(bench.rival().try_lock("k").unwrap().is_some(), "it has to watch first");
}

pub fn b14_a_client_with_a_short_lease_respects_a_long_one(store: &Store) {
    let bench = Bench::on(store);
    bench.client().request("k").lease(MINUTE).acquire().unwrap();
    bench.advance(Duration::from_secs(2));
    assert!(bench.hasty().try_lock("k").unwrap().is_none());
}

pub fn b15_losing_a_race_or_an_error_of_the_store_does_not_end_a_wait(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().poll(Duration::from_millis(1)..=Duration::from_millis(2)).connect().unwrap();
    let rival = bench.rival();
    let held = rival.lock("k").unwrap();
    let waiter = std::thread::spawn(move || client.lock("k").map(|guard| guard.fencing_token()));
    bench.wait_for_call(Call::Read, 2);
    for _ in 0..5 {
        bench.faults.next(Call::Read, Fault::FailBefore);
        bench.faults.next(Call::Acquire, Fault::FailBefore);
    }
    // Each time the waiter finds the lock free, another client is faster.
    for _ in 0..20 {
        rival.request("k").same_owner(SameOwner::Replace).owner("rival").acquire().unwrap();
        bench.wait_for_call(Call::Read, bench.faults.count(Call::Read));
    }
    let token = rival.get("k").unwrap().unwrap().fencing_token();
    drop(held);
    bench.outlast(MINUTE);
    assert!(waiter.join().unwrap().unwrap() > token);
}

pub fn b15_a_store_that_is_away_is_asked_more_and_more_rarely(store: &Store) {
    for (call, lease) in [(Call::Acquire, MINUTE), (Call::Renew, 60 * MINUTE)] {
        let bench = Bench::on(store);
        let client = bench.client();
        bench.faults.always(call, Fault::FailBefore);
        let started = Instant::now();
        let waiter = std::thread::spawn(move || client.request("k").lease(lease).lock().map(drop));
        bench.wait_for_call(call, 5);
        // Five waits, each of at least half of 40, 80, .. 640 ms.
        assert!(started.elapsed() >= Duration::from_millis(300), "{call:?} does not get rarer");
        bench.faults.heal();
        waiter.join().unwrap().unwrap();
        assert_eq!(bench.faults.count(Call::Release), 1, "a grant was given up for it");
    }
}

pub fn b15_a_store_that_is_away_for_longer_than_a_lease_does_not_end_a_wait(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().lease(bench.min_lease()).connect().unwrap();
    bench.faults.always(Call::Acquire, Fault::FailBefore);
    let waiter = std::thread::spawn(move || client.lock("k").map(drop));
    bench.wait_for_call(Call::Acquire, 10);
    bench.faults.heal();
    waiter.join().unwrap().unwrap();
}

pub fn b15_a_takeover_before_the_first_renewal_does_not_end_a_wait(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().request_timeout(LONG).connect().unwrap();
    let (stuck, until) = crossbeam_channel::bounded::<()>(0);
    bench.faults.next(Call::Renew, Fault::Stuck(until));
    let waiter = std::thread::spawn(move || {
        let guard = client.request("k").lease(60 * MINUTE).lock()?;
        Ok::<_, leasehold::Error>(guard.fencing_token())
    });
    bench.wait_for_call(Call::Renew, 0);
    let stranger = bench.take_over("k");
    let taken = bench.rival().get("k").unwrap().unwrap().fencing_token();
    drop(stuck);
    bench.wait_for_call(Call::Acquire, 1);
    bench.end(stranger);
    assert!(waiter.join().unwrap().unwrap() > taken);
}

pub fn b15_a_poll_that_fails_is_no_reason_to_ask_for_the_lock(store: &Store) {
    let bench = Bench::on(store);
    let held = bench.rival().lock("k").unwrap();
    let poll = Duration::from_millis(5);
    let client = bench.builder().poll(poll..=poll).connect().unwrap();
    let waiter = std::thread::spawn(move || client.lock("k").map(drop));
    bench.wait_for_call(Call::Acquire, 0);
    bench.faults.always(Call::Read, Fault::FailBefore);
    bench.wait_for_call(Call::Read, bench.faults.count(Call::Read) + 5);
    assert_eq!(bench.faults.count(Call::Acquire), 1);
    // A final refusal of the look is such a reason: the request for the lock gives the best error.
    bench.faults.always(Call::Read, Fault::Refuse);
    bench.wait_for_call(Call::Acquire, 1);
    drop(held);
    waiter.join().unwrap().unwrap();
}

pub fn b15_a_wrong_argument_ends_a_wait_at_once(store: &Store) {
    let bench = Bench::on(store);
    let error = bench.client().request("k").max_holders(0).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(bench.faults.calls().is_empty(), "something was sent");
}

pub fn b24_a_grant_found_by_a_repeat_counts_from_the_first_request(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.builder().lease(Duration::from_secs(10)).margin(Duration::from_secs(1)).connect().unwrap();
    let delay = Duration::from_millis(300);
    // A heartbeat would extend the lease.
    bench.faults.always(Call::Renew, Fault::FailBefore);
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    bench.faults.next(Call::Acquire, Fault::Delay(delay));
    let started = bench.clock.now();
    let guard = client.lock("k").unwrap();
    let left = guard.remaining();
    let since = bench.clock.now().since(started);
    assert!(left + delay <= Duration::from_secs(9), "{left:?} left {since:?} after the first request");
}

pub fn a_lease_with_a_fixed_end_is_not_granted_within_its_margin(store: &Store) {
    let bench = Bench::on(store);
    let client = bench.client();
    let others = Duration::from_secs(110 * 60);
    bench.rival().request("k").lease(others).acquire().unwrap();
    let request = client.request("k").lease_until(std::time::SystemTime::now() + Duration::from_secs(120 * 60));
    // The margin of this lease is twelve minutes, and only ten are left when the lock becomes free.
    let (told, tells) = mpsc::channel();
    let request = request.on_wait(move |_| told.send(()).unwrap_or_default());
    let waiter = std::thread::spawn(move || request.lock().map(|guard| guard.is_held()));
    // The lock was refused by then: an acquire still under way might find it free, with its whole lease to come.
    tells.recv_timeout(LONG).expect("it waits");
    // The clock is moved before the rows are aged: otherwise the lock might be found free with its whole lease to come.
    let over = others + bench.at.store.info().grace + bench.at.slack;
    bench.clock.advance(over);
    bench.at.age.iter().for_each(|age| age(over));
    let refused = waiter.join().unwrap().expect_err("it was granted within its margin");
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    assert!(bench.rival().get("k").unwrap().unwrap().is_free(), "what nobody holds was left");
}

pub fn an_adopt_that_is_given_up_unanswered_is_not_called_lost(store: &Store) {
    let bench = Bench::on(store);
    let (client, rival) = (bench.hasty(), bench.rival());
    // Whether the adopt was done or not, the client can't know.
    for (fault, happened) in [(Fault::ApplyThenFail, true), (Fault::HangBefore, false)] {
        let lock = rival.request("k").acquire().unwrap();
        bench.faults.always(Call::Acquire, fault.clone());
        let before = bench.faults.count(Call::Release);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The store works again once the release that gives up the adopt was sent.
                bench.wait_for_call(Call::Release, before);
                bench.faults.heal();
            });
            client.adopt(lock.clone()).map(drop).unwrap_err()
        });
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, true), "{fault:?}: {error}");
        // If the adopt was done, what it left is given up, and a second adopt reports the loss. It has time for a usual
        // lease.
        let again = bench.client().adopt(lock);
        assert_eq!(again.as_ref().err().map(|error| error.kind()), happened.then_some(ErrorKind::Lost), "{fault:?}");
        drop(again);
        wait_until("it is free", || client.get("k").unwrap().unwrap().is_free());
        // The first client's lease is so short that it may end by itself on a machine that stalls.
        assert!(happened || bench.at.record("k").exclusive.is_none(), "it was left to its lease");
    }
}

pub fn an_adopt_of_which_one_try_was_not_answered_is_ambiguous_however_the_others_failed(store: &Store) {
    let bench = Bench::on(store);
    let (client, rival) = (bench.hasty(), bench.rival());
    let lock = rival.request("k").acquire().unwrap();
    let error = repeated(&bench, Call::Acquire, || {
        bench.faults.heal();
        bench.faults.next(Call::Acquire, Fault::LostBefore);
        bench.faults.always(Call::Acquire, Fault::FailBefore);
        client.adopt(lock.clone()).unwrap_err()
    });
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, true), "{error}");
}

/// The refusal alone would say that nothing was done, but the lock that was data may belong to nobody.
pub fn an_adopt_that_is_refused_when_it_may_be_done_is_ambiguous(store: &Store) {
    let bench = Bench::on(store);
    let long = bench.builder().lease(2 * MINUTE).connect().unwrap();
    for (client, faults) in [
        (bench.client(), vec![(Call::Acquire, Fault::ApplyThenFail), (Call::Acquire, Fault::Refuse)]),
        // A lease this long is set by a renewal.
        (long, vec![(Call::Renew, Fault::Refuse)]),
    ] {
        let lock = bench.rival().request("k").acquire().unwrap();
        faults.into_iter().for_each(|(call, fault)| bench.faults.next(call, fault));
        let error = client.adopt(lock).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, false), "{error}");
        bench.wait_for_release("k");
    }
    // A request that replaces may have ended the hold of another as well.
    let _replaced = bench.rival().request("k").owner("us").lock().unwrap();
    [Fault::ApplyThenFail, Fault::Refuse].into_iter().for_each(|fault| bench.faults.next(Call::Acquire, fault));
    let replaces = bench.client().request("k").owner("us").same_owner(SameOwner::Replace);
    let error = replaces.try_lock().map(drop).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, false), "{error}");
}

/// The previous holder has released the lock by then, and must not be named as the reason.
pub fn a_wait_whose_lock_was_granted_and_could_not_be_had_in_full_ends_with_the_trouble(store: &Store) {
    let bench = Bench::on(store);
    // A lease this long is set by a renewal.
    let client = bench.builder().lease(2 * MINUTE).connect().unwrap();
    bench.faults.always(Call::Renew, Fault::FailBefore);
    let counts = || [Call::Read, Call::Renew].map(|call| bench.faults.count(call));
    // A server that is silent may not grant the lock in that time: repeat with more time.
    let ended = [1_u32, 2, 4, 8].into_iter().find_map(|times| {
        let held = bench.rival().lock("k").unwrap();
        let (waits, wait) = (client.clone(), times * (Duration::from_secs(2) + bench.wait()));
        let ([reads, renewals], by) = (counts(), Instant::now() + wait);
        let waiter = std::thread::spawn(move || waits.request("k").wait(wait).lock());
        wait_until("it looks", || counts()[0] > reads || waiter.is_finished());
        drop(held);
        wait_until("it is granted", || counts()[1] > renewals || waiter.is_finished());
        // A grant in the last second comes too late to be held, which is reported as if it was not granted.
        let in_time = Instant::now() + Duration::from_secs(1) < by;
        let error = waiter.join().unwrap().unwrap_err();
        (in_time && counts()[1] > renewals).then_some(error)
    });
    let error = ended.expect("it was never granted");
    assert_eq!((error.kind(), error.holders().len()), (ErrorKind::Store, 0), "{error}");
}

pub fn an_adopt_that_comes_too_late_to_be_held_is_not_called_lost(store: &Store) {
    let bench = Bench::on(store);
    let (client, rival) = (bench.hasty(), bench.rival());
    let lock = rival.request("k").acquire().unwrap();
    bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(Duration::from_secs(1)));
    let error = client.adopt(lock).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    wait_until("it is free", || client.get("k").unwrap().unwrap().is_free());
}
