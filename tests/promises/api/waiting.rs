//! Waiting for a lock that others hold.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{CancelToken, ErrorKind, LockClient, SameOwner, Waiting};

use crate::api::{LONG, MINUTE, answered, on_every_store, wait_until};
use crate::support::bench::{Bench, builder_over};
use crate::support::lateness::{self, Slowness};

/// More than the error that the clock of a store may have.
const NOTICED: Duration = Duration::from_secs(2);

#[test]
fn a_waiter_gets_the_lock_after_its_release() {
    on_every_store(|store| {
        let held = store.rival().lock("k").unwrap();
        let token = held.fencing_token();
        let (told, tells) = mpsc::channel();
        let client = store.client();
        let waiter = std::thread::spawn(move || {
            let guard = client.request("k").on_wait(move |waiting| told.send(waiting.clone()).unwrap()).lock();
            guard.unwrap().fencing_token()
        });
        let waiting = tells.recv_timeout(LONG).unwrap();
        assert_eq!((waiting.key.as_str(), waiting.holders[0].owner(), waiting.attempts), ("k", "rival", 1));
        assert!(!waiting.held_by_this_client && waiting.until.is_none());
        drop(held);
        assert!(waiter.join().unwrap() > token);
    });
}

#[test]
fn a_wait_ends_at_its_deadline_with_none_or_with_the_holders() {
    on_every_store(|store| {
        let _held = store.rival().lock("k").unwrap();
        let client = store.client();
        let short = store.short_wait();
        let started = Instant::now();
        assert!(answered(|| client.try_lock_for("k", short)).unwrap().is_none());
        assert!(answered(|| client.try_lock_until("k", Instant::now() + short)).unwrap().is_none());
        assert!(answered(|| client.try_lock_shared_until("k", Instant::now() + short)).unwrap().is_none());
        let error = answered(|| client.request("k").wait(short).lock()).unwrap_err();
        assert!(started.elapsed() >= 4 * short);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.holders()[0].owner(), "rival");
        assert_eq!(client.request("k").wait_until(Instant::now()).lock().unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// The machine is suspended meanwhile, and the deadline of a call does not count that time.
#[test]
fn a_wait_ends_where_its_lease_would_have_to_end() {
    let (store, client) = Bench::patient();
    let _held = ["k", "l", "m"].map(|key| store.rival().request(key).lease_forever().lock().unwrap());
    let (hour, end) = (60 * MINUTE, SystemTime::now() + 60 * MINUTE);
    let (ended, ends) = mpsc::channel();
    // The second wait is in line behind the first.
    for any in [false, false, true] {
        let ((told, tells), client, ended) = (mpsc::channel(), client.clone(), ended.clone());
        std::thread::spawn(move || {
            let tell = move |_: &Waiting| told.send(()).unwrap_or_default();
            let outcome = match any {
                true => client.request_any(["l", "m"]).lease_until(end).on_wait(tell).on_wait_every(hour).lock(),
                false => client.request("k").lease_until(end).on_wait(tell).on_wait_every(hour).lock(),
            };
            ended.send(outcome.map(drop).unwrap_err().kind()).unwrap_or_default();
        });
        tells.recv_timeout(LONG).expect("it waits");
    }
    store.advance(2 * hour);
    for _ in 0..3 {
        assert_eq!(ends.recv_timeout(LONG).expect("it waits on"), ErrorKind::TimedOut);
    }
}

/// As while the server restarts. The grant is given up.
#[test]
fn a_lock_whose_long_lease_could_not_be_set_in_time_is_worth_another_try() {
    let bench = Bench::new();
    let (client, request) = (bench.client(), |client: &LockClient| client.request("k").lease(60 * MINUTE));
    bench.faults.always(Call::Renew, Fault::FailBefore);
    let error = request(&client).wait(Duration::from_millis(300)).lock().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    bench.faults.heal();
    drop(request(&client).lock().unwrap());
}

/// The report is right however long ago the holder was last seen.
#[test]
fn an_error_after_a_wait_says_since_when_and_until_when_others_hold_it() {
    on_every_store(|store| {
        let held = store.rival().lock("k").unwrap();
        let client = store.client();
        lateness::measure();
        let server = (!store.store.info().clock.starts_with("this host's")).then(|| Slowness::of(store.client()));
        let began = Instant::now();
        let seen = client.get("k").unwrap().unwrap();
        let error = answered(|| client.request("k").wait(2 * NOTICED).lock()).unwrap_err();
        let (told, seen) = (&error.holders()[0], &seen.holders()[0]);
        // The wall clock is read after the answer, which may be late from a slow server.
        let slow = server.map_or(Duration::ZERO, |server| server.slack(began));
        let noticed = NOTICED + lateness::slack(began) + slow;
        let apart = |a: SystemTime, b: SystemTime| a.duration_since(b).unwrap_or_else(|e| e.duration());
        assert!(apart(told.created(), seen.created()) < noticed, "{told:?} {seen:?}");
        if told.renewed() == seen.renewed() {
            assert!(apart(told.leased_until().unwrap(), seen.leased_until().unwrap()) < noticed, "{told:?} {seen:?}");
        }
        drop(held);
    });
}

#[test]
fn a_deadline_that_has_passed_asks_once() {
    on_every_store(|store| {
        let client = store.client();
        assert!(client.try_lock_for("k", Duration::ZERO).unwrap().is_some());
        assert!(client.request("k").wait(Duration::ZERO).lock().is_ok());
        assert!(client.try_lock_until("k", Instant::now()).unwrap().is_some());
        let _held = store.rival().lock("k").unwrap();
        assert!(client.try_lock_for("k", Duration::ZERO).unwrap().is_none());
    });
}

#[test]
fn a_cancelled_wait_ends_at_once_and_leaves_nothing() {
    on_every_store(|store| {
        let held = store.rival().lock("k").unwrap();
        let hour = Duration::from_secs(3600);
        let client = store.builder().poll(hour..=hour).connect().unwrap();
        let cancel = CancelToken::new();
        let (told, tells) = mpsc::channel();
        let waiting = (client.clone(), cancel.clone());
        let waiter = std::thread::spawn(move || {
            let request = waiting.0.request("k").cancel(&waiting.1);
            request.on_wait(move |_| told.send(()).unwrap()).lock().unwrap_err().kind()
        });
        tells.recv_timeout(LONG).unwrap();
        cancel.cancel();
        assert_eq!(waiter.join().unwrap(), ErrorKind::Cancelled);
        assert_eq!(client.get("k").unwrap().unwrap().holders().len(), 1);
        drop(held);
        assert!(client.get("k").unwrap().unwrap().is_free());
        assert_eq!(client.request("k").cancel(&cancel).lock().unwrap_err().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_wait_for_oneself_goes_on_with_a_hint() {
    on_every_store(|store| {
        let client = store.client();
        let _held = client.lock("k").unwrap();
        let (told, tells) = mpsc::channel();
        let waits = || {
            let told = told.clone();
            let tell = move |w: &Waiting| told.send((w.last_error.is_none(), w.held_by_this_client)).unwrap();
            client.request("k").on_wait(tell).wait(store.short_wait()).lock()
        };
        assert_eq!(answered(waits).unwrap_err().kind(), ErrorKind::TimedOut);
        // While there is trouble with the store, the waiter knows of no holder.
        assert!(tells.iter().find(|(is_well, _)| *is_well).unwrap().1);
    });
}

/// Only the first in line asks the store, and what it saw is reported to all behind it.
#[test]
fn whoever_waits_behind_another_is_told_who_holds_the_lock() {
    on_every_store(|store| {
        let client = store.client();
        let held = client.lock("k").unwrap();
        let (cancel, (told, tells)) = (CancelToken::new(), mpsc::channel());
        let first = client.request("k").cancel(&cancel).on_wait(move |_| told.send(()).unwrap_or_default());
        let first = std::thread::spawn(move || first.lock().unwrap_err().kind());
        tells.recv_timeout(LONG).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        let waits =
            || client.request("k").wait(store.short_wait()).lock_with_progress(|w| told.borrow_mut().push(w.clone()));
        let errors = [
            answered(waits).unwrap_err(),
            answered(|| client.request("k").wait(Duration::ZERO).lock()).unwrap_err(),
            answered(|| client.request_all(["k", "l"]).wait(store.short_wait()).lock()).unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.holders().len()), (ErrorKind::TimedOut, 1), "{error}");
            assert!(error.held_by_this_client() && error.to_string().contains("very client"), "{error}");
        }
        let told = told.into_inner();
        assert!(told.iter().any(|waiting| waiting.place == 1), "{told:?}");
        for waiting in told {
            assert!(
                waiting.held_by_this_client && waiting.holders[0].fencing_token() == held.fencing_token(),
                "{waiting:?}"
            );
        }
        cancel.cancel();
        assert_eq!(first.join().unwrap(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_waiter_hears_how_often_it_asked_and_until_when_it_waits() {
    on_every_store(|store| {
        let _held = store.rival().lock("k").unwrap();
        let poll = Duration::from_millis(5);
        let client = store.builder().poll(poll..=poll).connect().unwrap();
        let (told, tells) = mpsc::channel();
        let (cancel, until) = (CancelToken::new(), Instant::now() + LONG);
        let request = client.request("k").wait_until(until).cancel(&cancel);
        let cancelled = request.on_wait(move |waiting| {
            told.send((waiting.attempts, waiting.until)).unwrap();
            if waiting.attempts >= 4 {
                cancel.cancel();
            }
        });
        assert_eq!(cancelled.lock().unwrap_err().kind(), ErrorKind::Cancelled);
        let mut heard: Vec<_> = tells.iter().collect();
        // The callback is also called between two looks.
        heard.dedup();
        assert_eq!(heard, (1..=4).map(|asked| (asked, Some(until))).collect::<Vec<_>>());
    });
}

#[test]
fn only_the_same_key_and_token_are_a_hold_of_this_client() {
    on_every_store(|store| {
        // Without a wall clock the tokens of each key count from one.
        store.clock.set_wall_offset(i64::MIN);
        let (client, rival) = (store.client(), store.rival());
        let elsewhere = client.lock("elsewhere").unwrap();
        let theirs = rival.request("k").shared().lock_id("group").lock().unwrap();
        let mine = client.lock_shared("k").unwrap();
        // The tokens of a service come from its own time, and are never the same for two keys.
        if store.store.info().clock.starts_with("this host's") {
            assert_eq!((elsewhere.fencing_token(), theirs.fencing_token(), mine.fencing_token()), (1, 1, 2));
        }
        assert!(client.request("k").lock_id("group").try_lock().unwrap().is_none(), "waiting for another is fine");
    });
}

#[test]
fn a_waiter_takes_over_at_the_end_of_the_lease_however_seldom_it_polls() {
    on_every_store(|store| {
        let lock = store.rival().request("k").lease(store.short_lease()).acquire().unwrap();
        let client = store.builder().poll(MINUTE..=MINUTE).connect().unwrap();
        let guard = store.within(LONG / 2, || client.lock("k")).unwrap();
        assert!(guard.fencing_token() > lock.fencing_token());
    });
}

#[test]
fn a_shared_waiter_with_a_limit_takes_the_place_of_whoever_ends_first() {
    on_every_store(|store| {
        let rival = store.rival();
        rival.request("k").shared().lease(MINUTE).acquire().unwrap();
        rival.request("k").shared().lease(store.short_lease()).acquire().unwrap();
        let client = store.builder().poll(MINUTE..=MINUTE).connect().unwrap();
        let guard = client.request("k").max_holders(2).wait(LONG).lock().unwrap();
        assert_eq!(client.get("k").unwrap().unwrap().holders().len(), 2);
        drop(guard);
    });
}

#[test]
fn what_asks_once_refuses_a_wait() {
    on_every_store(|store| {
        let client = store.client();
        let lock = client.request("adopted").acquire().unwrap();
        let later = || Instant::now() + LONG;
        let (one, any) = (|| client.request("k").wait(LONG), || client.request_any(["k", "l"]).wait_until(later()));
        let refused = [
            one().try_lock().map(drop),
            one().try_lock_for(LONG).map(drop),
            one().try_lock_until(later()).map(drop),
            one().acquire().map(drop),
            client.request("adopted").wait(LONG).adopt(lock).map(drop),
            any().try_lock().map(drop),
            any().try_lock_for(LONG).map(drop),
            any().try_lock_until(later()).map(drop),
            any().acquire().map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("a wait is set, but"), "{error}");
        }
        assert!(client.get("k").unwrap().is_none() && client.held().is_empty(), "something was asked");
    });
}

#[test]
fn a_request_waits_with_none_at_its_end() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let held = ["k", "l"].map(|key| rival.lock(key).unwrap());
        let (one, any) = (|| client.request("k"), || client.request_any(["k", "l"]));
        let (wait, started) = (store.short_wait(), Instant::now());
        assert!(answered(|| one().comment("c").try_lock_for(wait)).unwrap().is_none());
        assert!(answered(|| any().try_lock_until(Instant::now() + wait)).unwrap().is_none());
        assert!(started.elapsed() >= 2 * wait);
        assert!(one().try_lock_for(Duration::ZERO).unwrap().is_none());
        drop(held);
        let guards = (one().try_lock_for(LONG).unwrap().unwrap(), any().try_lock_for(LONG).unwrap().unwrap());
        assert_eq!((guards.0.key(), guards.1.key()), ("k", "l"));
    });
}

#[test]
fn an_error_says_that_this_client_holds_the_lock() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let _mine = [client.lock("k").unwrap(), client.request("g").lock_id("group").lock().unwrap()];
        let once = Duration::ZERO;
        let waited = [
            client.request("k").wait(once).lock().unwrap_err(),
            client.request("k").acquire().unwrap_err(),
            client.request_any(["k", "g"]).wait(once).lock().unwrap_err(),
        ];
        for error in waited {
            assert!(error.held_by_this_client(), "{error}");
            assert!(error.to_string().contains("a guard of this very client is among them"), "{error}");
        }
        assert!(client.request("g").lock_id("group").lock().unwrap_err().held_by_this_client());
        let error = rival.request("k").wait(once).lock().unwrap_err();
        assert!(!error.held_by_this_client() && !error.to_string().contains("very client"), "{error}");
    });
}

#[test]
fn progress_borrows_and_stays_on_its_thread() {
    on_every_store(|store| {
        let client = store.client();
        let _held = ["k", "l"].map(|key| store.rival().lock(key).unwrap());
        // Neither `Send` nor `'static`.
        let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let here = std::thread::current().id();
        let note = |waiting: &leasehold::Waiting, cancel: &CancelToken| {
            assert_eq!(std::thread::current().id(), here);
            seen.borrow_mut().push(waiting.key.clone());
            cancel.cancel();
        };
        let cancel = CancelToken::new();
        let one = client.request("k").wait(LONG).cancel(&cancel).on_wait(|_| panic!("it is replaced"));
        assert_eq!(one.lock_with_progress(|waiting| note(waiting, &cancel)).unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(*seen.borrow(), ["k"]);
        let cancel = CancelToken::new();
        let any = client.request_any(["l"]).wait(LONG).cancel(&cancel);
        assert_eq!(any.lock_with_progress(|waiting| note(waiting, &cancel)).unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(*seen.borrow(), ["k", "l"]);
    });
}

#[test]
fn a_waiter_hears_as_often_as_it_wants() {
    let bench = Bench::new();
    bench.faults.never_wakes();
    let _held = bench.rival().lock("k").unwrap();
    // When the callback was called, and how often the waiter had asked by then.
    let told = |every: Duration, poll: Duration| {
        let client = bench.builder().poll(poll..=poll).connect().unwrap();
        let (cancel, mut told, started) = (CancelToken::new(), Vec::new(), Instant::now());
        let request = client.request("k").wait(LONG).cancel(&cancel).on_wait_every(every);
        let outcome = request.lock_with_progress(|waiting| {
            told.push((started.elapsed(), waiting.attempts));
            if told.len() == 5 {
                cancel.cancel();
            }
        });
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
        told
    };
    let (often, seldom) = (Duration::from_millis(5), Duration::from_secs(1));
    let heard = told(seldom, often);
    let pauses = heard.windows(2).map(|two| two[1].0 - two[0].0);
    // The callback reads the clock later than the library did. A call at each look would come every few milliseconds.
    assert!(pauses.min() >= Some(seldom / 2), "{heard:?}");
    assert!(heard[4].1 - heard[0].1 > 4, "it was told at each of its looks: {heard:?}");
    let heard = told(often, MINUTE);
    assert_eq!(heard[4].1, heard[0].1, "it looked in order to tell: {heard:?}");
    let error = bench.client().request_any(["k"]).on_wait_every(Duration::ZERO).lock().unwrap_err();
    assert!(error.to_string().contains("on_wait_every is 0ns, but must be above zero"), "{error}");
}

#[test]
fn a_panic_in_the_wait_callback_is_contained() {
    on_every_store(|store| {
        let _held = store.rival().lock("k").unwrap();
        let request = || store.client().request("k").wait(store.short_wait()).on_wait(|_| panic!("on purpose"));
        assert_eq!(answered(|| request().lock()).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_wait_is_counted_from_its_start_and_not_from_the_setter() {
    on_every_store(|store| {
        let _held = store.rival().lock("k").unwrap();
        let short = store.short_wait();
        let waits = || {
            let request = store.client().request("k").wait(short);
            std::thread::sleep(short);
            let (started, outcome) = (Instant::now(), request.lock());
            assert!(started.elapsed() >= short, "it waited {:?}", started.elapsed());
            outcome
        };
        assert_eq!(answered(waits).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn another_process_gets_its_turn_between_the_waiters_of_one() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let ((goes_on, is_over), begun) = (crossbeam_channel::bounded::<()>(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _goes_on = goes_on; // Dropped at the end of the scope, even by a panic: then the threads stop.
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut first = 1;
                    while is_over.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) {
                        let _guard = client.lock("k").unwrap();
                        begun.fetch_add(std::mem::take(&mut first), Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            wait_until("all of them have had it once", || begun.load(Ordering::SeqCst) == 4);
            // The time is enough even for a slow server, where eight hand-overs take seconds.
            let got = rival.try_lock_for("k", 6 * LONG).unwrap();
            assert!(got.is_some(), "the waiters of one process starve all others");
        });
    });
}

/// A holder of that owner that got the lock during the wait is replaced, too.
#[test]
fn who_replaces_its_owner_waits_behind_no_other_holder_of_that_owner() {
    on_every_store(|store| {
        let held = store.rival().request("k").owner("else").lock().unwrap();
        let client = store.builder().poll(Duration::from_millis(2)..=Duration::from_millis(4)).connect().unwrap();
        let (told, tells) = mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let request = client.request("k").owner("job").same_owner(SameOwner::Replace).wait(LONG);
            request.on_wait(move |_| told.send(()).unwrap_or_default()).lock().map(|guard| guard.is_held())
        });
        tells.recv_timeout(LONG).unwrap();
        let _job = store.rival().request("k").owner("job").adopt(held.into_lock()).unwrap();
        assert!(waiter.join().unwrap().unwrap());
    });
}

/// Both are calls of one client, so neither replaces the other.
#[test]
fn who_waits_takes_nothing_from_its_own_client() {
    on_every_store(|store| {
        let held = store.rival().request("k").owner("else").lock().unwrap();
        let poll = Duration::from_millis(100);
        let client = store.builder().poll(poll..=poll).connect().unwrap();
        let request = || client.request("k").owner("job").same_owner(SameOwner::Replace);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                // Each of them was refused once; before that, it would count as a new call.
                let (told, tells) = mpsc::channel();
                let request = request().on_wait(move |_| told.send(()).unwrap_or_default());
                scope.spawn(move || {
                    let guard = request.lock().unwrap();
                    // Meanwhile the other one looks.
                    let until = Instant::now() + 4 * poll;
                    while Instant::now() < until {
                        assert!(store.rival().try_lock("k").unwrap().is_none());
                    }
                    guard.release().unwrap();
                });
                tells.recv_timeout(LONG).unwrap();
            }
            held.release().unwrap();
        });
    });
}

/// A waiter that never had an answer, and so is not in the line, gets the trouble, too.
#[test]
fn a_wait_tells_of_the_trouble_that_it_waits_for() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        faults.always(Call::Acquire, Fault::FailBefore);
        let (cancel, (told, tells)) = (CancelToken::new(), mpsc::channel());
        let request = client.request("k").cancel(&cancel);
        let waits = std::thread::spawn(move || {
            request.on_wait(move |waiting| told.send(waiting.last_error.clone()).unwrap_or_default()).lock().map(drop)
        });
        let told = tells.recv_timeout(LONG).expect("it waits in silence");
        assert_eq!(told.map(|error| error.kind()), Some(ErrorKind::Store));
        cancel.cancel();
        assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
}
