//! A minimum hold: the lock stays held for at least that long, however the hold ends.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use leasehold::internals::lease::{End, Lease};
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{ErrorKind, Event, LockClient, LockGuard, LockStatus, LossReason, Observer};

use crate::api::closing::closes_well;
use crate::api::{LONG, MINUTE, on_every_store};
use crate::support::bench::{builder_over, renews};
use crate::support::between::{Between, When};
use crate::support::harness::{Store, release};
use crate::support::stores::Opened;
use crate::support::wait::wait_until;

/// The time after which a test lets a call fail. What must succeed within it is repeated.
const ENDS: Duration = Duration::from_secs(7);
/// Longer than any lease here.
const HOUR: Duration = Duration::from_secs(3600);

impl Opened {
    pub(super) fn faulty(&self) -> (LockClient, FaultPlan) {
        self.faulty_for(LONG)
    }

    /// The same with this drop timeout, for a test in which a release may take that long.
    fn faulty_for(&self, drop_timeout: Duration) -> (LockClient, FaultPlan) {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(self.store.clone(), faults.clone()));
        let builder = builder_over(faulty, self.clock.clone()).drop_timeout(drop_timeout);
        (builder.connect().unwrap(), faults)
    }

    /// Asserts that the place of the key's last grant is kept until `least` after the grant, and not longer.
    #[track_caller]
    fn is_kept(&self, key: &str, least: Duration) {
        let holder = self.record(key).exclusive.expect("a holder");
        let (End::At(until), End::At(least)) = (holder.until, Lease::For(least).end(holder.created)) else {
            panic!("{holder:?}")
        };
        // Spanner's ends are rounded up to the millisecond.
        assert!(until >= least && until.since(least) <= Duration::from_millis(1), "{:?}", until.since(least));
    }
}

#[test]
fn a_lock_stands_for_its_least_time_however_its_hold_ends() {
    let ends: [fn(LockClient, LockGuard); 4] = [
        |_, guard| drop(guard),
        |_, guard| guard.release().unwrap(),
        |client, _guard| client.close().unwrap(),
        // After a renewal.
        |_, guard| {
            renews(&guard);
            drop(guard);
        },
    ];
    on_every_store(|store| {
        let rival = store.rival();
        // One least time that is longer than the lease of 2 * LONG, and two that are shorter.
        for (least, at) in [(HOUR, 0), (LONG, 1), (Duration::from_secs(30), 2)] {
            for (end, name) in ends.iter().zip(["drop", "release", "close", "renewed"]) {
                let (client, key) = (store.builder().lease(LONG * 2).connect().unwrap(), format!("{name}/{at}"));
                let guard = client.request(&key).hold_at_least(least).owner("worker").lock().unwrap();
                let token = guard.fencing_token();
                let stands = store.record(&key).exclusive.unwrap();
                // A holder that dies now leaves the lock held for that long.
                assert!(stands.until >= Lease::For(least).end(stands.created), "{key}");
                end(client, guard);
                store.is_kept(&key, least);
                assert!(rival.try_lock(&key).unwrap().is_none() && rival.try_lock_shared(&key).unwrap().is_none());
                let held = rival.get(&key).unwrap().unwrap();
                assert_eq!((held.holders()[0].owner(), held.fencing_token()), ("worker", token));
                // An operator frees the lock at once.
                assert_eq!(rival.force_release(&key).unwrap().len(), 1);
                assert!(rival.try_lock(&key).unwrap().unwrap().fencing_token() > token);
            }
        }
    });
}

#[test]
fn after_its_least_time_a_lock_is_free_at_once() {
    on_every_store(|store| {
        let (client, least) = (store.client(), Duration::from_millis(300));
        let guard = client.request("k").lease(HOUR).hold_at_least(least).lock().unwrap();
        let granted = Instant::now();
        // In real time: a row that is made older keeps its token, which may be the only trace of when it was granted.
        wait_until("it was held for long enough", || {
            granted.elapsed() > least + store.store.info().grace + store.slack + Duration::from_millis(50)
        });
        drop(guard);
        assert_eq!(store.record("k").exclusive, None, "nothing is left, and waiters are told");
        assert!(store.rival().try_lock("k").unwrap().is_some());
    });
}

#[test]
fn waiters_are_granted_it_when_its_least_time_is_over_and_not_before() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let least = Duration::from_secs(1);
        let asked = Instant::now();
        let guard = client.request("k").lease(HOUR).hold_at_least(least).lock().unwrap();
        let waiting = [Arc::<AtomicBool>::default(), Arc::default()];
        thread::scope(|scope| {
            // One waiter in the line of this process, which could get a hand-over, and one in another client.
            for (waiter, waits) in [&client, &rival].into_iter().zip(&waiting) {
                scope.spawn(move || {
                    let waits = waits.clone();
                    let request = waiter.request("k").on_wait(move |_| waits.store(true, Ordering::SeqCst));
                    let guard = request.wait(3 * LONG).lock().expect("long before the lease would end");
                    assert!(asked.elapsed() >= least, "{:?}", asked.elapsed());
                    drop(guard);
                });
            }
            wait_until("both wait", || waiting.iter().all(|waits| waits.load(Ordering::SeqCst)));
            drop(guard);
        });
    });
}

#[test]
fn what_is_kept_is_renewed_and_released_by_nobody_who_held_it() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease(LONG).hold_at_least(HOUR).lock().unwrap();
        let lock = guard.info();
        drop(guard);
        let kept = store.record("k");
        assert_eq!(client.heartbeat(&lock, 2 * HOUR).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(client.release(&lock).unwrap_err().kind(), ErrorKind::Held);
        assert_eq!(client.adopt(lock).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(store.record("k"), kept);
    });
}

#[test]
fn a_shared_holder_and_one_of_several_keys_have_it_too() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let first = client.request("k").shared().hold_at_least(HOUR).lock().unwrap();
        let second = rival.lock_shared("k").unwrap();
        drop((first, second));
        assert!(rival.try_lock("k").unwrap().is_none());
        assert_eq!(rival.get("k").unwrap().unwrap().holders().len(), 1);
        assert!(rival.try_lock_shared("k").unwrap().is_some());
        let key = client.request_any(["a", "b"]).hold_at_least(HOUR).lock().unwrap().key().to_owned();
        store.is_kept(&key, HOUR);
        let guard = rival.lock_any(["a", "b"]).unwrap();
        assert_ne!(guard.key(), key);
    });
}

#[test]
fn a_guard_can_ask_for_it_when_the_work_is_done() {
    on_every_store(|store| {
        let (client, rival) = (store.builder().drop_timeout(LONG).connect().unwrap(), store.rival());
        let guard = client.lock("k").unwrap();
        guard.hold_at_least(Duration::from_nanos(1)).expect("it was held for longer already");
        drop(guard);
        assert_eq!(store.record("k").exclusive, None, "it was free at once");
        let guard = client.lock("k").unwrap();
        guard.hold_at_least(HOUR).unwrap();
        guard.hold_at_least(MINUTE).expect("it becomes no shorter");
        assert!(guard.is_held() && guard.remaining() > HOUR / 2);
        guard.release().unwrap();
        store.is_kept("k", HOUR);
        let all = client.lock_all(["a", "b"]).unwrap();
        all.guards()[1].hold_at_least(HOUR).unwrap();
        all.release().unwrap();
        assert!(rival.try_lock("a").unwrap().is_some());
        store.is_kept("b", HOUR);
    });
}

#[test]
fn what_is_asked_for_stands_for_so_long_by_a_clock_that_is_put_back() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("k").lease(HOUR).lock().unwrap();
        // A server's time does not advance with this clock.
        store.clock.advance(MINUTE);
        guard.hold_at_least(2 * HOUR).unwrap();
        let stands = store.record("k").exclusive.expect("it stands");
        assert!(stands.until >= Lease::For(2 * HOUR).end(stands.created), "{stands:?}");
    });
}

#[test]
fn an_answer_that_is_lost_makes_it_no_shorter() {
    on_every_store(|store| {
        for (at, fault) in
            [Fault::ApplyThenFail, Fault::LostBefore, Fault::FailBefore, Fault::ApplyThenPanic].into_iter().enumerate()
        {
            for call in [Call::Read, Call::Swap] {
                let (client, faults) = store.faulty();
                let key = format!("{call:?}/{at}");
                let guard = client.request(&key).lease(LONG).hold_at_least(HOUR).lock().unwrap();
                faults.next(call, fault.clone());
                guard.release().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                assert_eq!(faults.unmet(), 0);
                store.is_kept(&key, HOUR);
                // A write that a read finds done is repeated as well, where a failover may undo what was read.
                let is_done = matches!(fault, Fault::ApplyThenFail | Fault::ApplyThenPanic);
                let is_repeated = call == Call::Swap && (!is_done || store.store.info().reads_what_may_be_undone);
                assert_eq!(faults.count(Call::Swap), 1 + usize::from(is_repeated), "{fault:?}");
            }
        }
    });
}

/// The machine is suspended right after the answer to the first request of the release.
#[test]
fn a_release_that_takes_long_makes_it_no_shorter() {
    on_every_store(|store| {
        let between = Between::new(store.store.clone());
        let client = builder_over(Arc::new(between.clone()), store.clock.clone()).connect().unwrap();
        let guard = client.request("k").lease(HOUR).hold_at_least(10 * MINUTE).lock().unwrap();
        let clock = store.clock.clone();
        between.next(When::AfterRead, move || clock.advance(2 * MINUTE));
        guard.release().unwrap();
        store.is_kept("k", 10 * MINUTE);
    });
}

#[test]
fn what_happens_between_two_requests_of_a_release_is_taken_as_it_is() {
    on_every_store(|store| {
        let (rival, faults) = (store.rival(), FaultPlan::default());
        let between = Between::new(store.store.clone());
        let faulty = Faulty::new(Arc::new(between.clone()), faults.clone());
        let client = builder_over(Arc::new(faulty), store.clock.clone()).connect().unwrap();
        // Another shared holder joins between the two requests.
        let guard = client.request("shared").shared().hold_at_least(HOUR).lock().unwrap();
        let joins = rival.clone();
        between.next(When::BeforeSwap, move || drop(joins.lock_shared("shared").unwrap().into_lock()));
        guard.release().unwrap();
        let ends: Vec<End> = store.record("shared").shared.iter().map(|holder| holder.until).collect();
        assert!(ends.len() == 2 && ends[0] > ends[1], "{ends:?}");
        // The unanswered write had happened, and then an operator released what it had left.
        let guard = client.request("k").hold_at_least(HOUR).lock().unwrap();
        between.next(When::AfterSwap, move || assert_eq!(rival.force_release("k").unwrap().len(), 1));
        faults.next(Call::Swap, Fault::ApplyThenFail);
        guard.release().expect("it was released by this");
        assert!(store.record("k").exclusive.is_none() && faults.unmet() == 0);
    });
}

#[test]
fn where_no_release_is_answered_it_stands_until_its_lease_ends() {
    on_every_store(|store| {
        for call in [Call::Read, Call::Swap] {
            let (client, faults) = store.faulty_for(ENDS);
            let key = format!("{call:?}");
            // The guard is released again before its least time is over.
            let guard = client.request(&key).lease(HOUR).hold_at_least(MINUTE).lock().unwrap();
            let before = store.record(&key);
            faults.always(call, Fault::LostBefore);
            let failed = guard.release().unwrap_err();
            assert!(failed.error().is_retryable(), "{failed}");
            assert_eq!(store.record(&key), before);
            faults.heal();
            release(failed.into_guard());
            store.is_kept(&key, MINUTE);
            // The guards of `lock_all` are not given up either.
            let all = client.lock_all([format!("{key}/a")]).unwrap();
            all.guards()[0].hold_at_least(HOUR).unwrap();
            faults.always(call, Fault::LostBefore);
            drop(all);
            faults.heal();
            closes_well(&client);
            let stands = store.record(&format!("{key}/a")).exclusive.expect("it stands");
            assert!(stands.until >= Lease::For(HOUR).end(stands.created), "{stands:?}");
        }
    });
}

#[test]
fn once_its_least_time_is_over_an_end_without_an_answer_is_repeated_and_a_lost_hold_released() {
    on_every_store(|store| {
        let (client, faults) = store.faulty_for(ENDS);
        let all = client.request_all(["k"]).each(|one| one.lease(HOUR)).lock().unwrap();
        all.guards()[0].hold_at_least(LONG).unwrap();
        store.advance(LONG + LONG / 20);
        faults.always(Call::Read, Fault::LostBefore);
        drop(all);
        faults.heal();
        closes_well(&client);
        assert_eq!(store.record("k").exclusive, None, "it is given up in the background");

        let client = store.client();
        let guard = client.request("k").lease(LONG).hold_at_least(Duration::from_secs(1)).lock().unwrap();
        store.advance(LONG);
        let loss = guard.loss().wait_timeout(LONG).expect("it is lost");
        assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss:?}");
        drop(guard);
        assert_eq!(store.record("k").exclusive, None, "one release is sent");
    });
}

#[test]
fn a_release_long_after_its_least_time_reads_nothing() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let guard = client.request("k").lease(HOUR).hold_at_least(LONG).lock().unwrap();
        store.advance(LONG + LONG / 5);
        faults.always(Call::Read, Fault::LostBefore);
        guard.release().unwrap();
        faults.heal();
        assert_eq!(store.record("k").exclusive, None);
    });
}

/// Heartbeats go on, so a deadline that is early by the margin loses nothing.
#[test]
fn its_deadline_is_as_careful_as_that_of_a_lease() {
    on_every_store(|store| {
        let client = store.builder().lease(LONG).connect().unwrap();
        let first = client.request("first").hold_at_least(HOUR).lock().unwrap();
        let later = client.lock("later").unwrap();
        later.hold_at_least(HOUR).unwrap();
        for guard in [first, later] {
            let left = guard.remaining();
            assert!(left > HOUR / 2 && left <= HOUR - HOUR / 10, "{}: {left:?}", guard.key());
        }
    });
}

#[test]
fn what_is_kept_belongs_to_no_group() {
    on_every_store(|store| {
        let client = store.client();
        let member = |key: &str| client.request(key).lock_id("group");
        let (kept, sibling) = (member("a").hold_at_least(HOUR).lock().unwrap(), member("b").lock().unwrap());
        let token = kept.fencing_token();
        drop(kept);
        let stands = store.record("a");
        let keys = |locks: Vec<LockStatus>| locks.iter().map(|lock| lock.key().to_owned()).collect::<Vec<_>>();
        assert_eq!(keys(client.renew("group", 2 * HOUR).unwrap()), ["b"]);
        assert_eq!(keys(client.unlock("group").unwrap()), ["b"]);
        assert_eq!(store.record("a"), stands);
        drop(sibling);
        // The kept lock has a new lock id, and releasing by that id frees it.
        let held = client.get("a").unwrap().unwrap();
        let id = held.holders()[0].lock_id();
        assert_eq!((held.fencing_token(), id == "group"), (token, false));
        assert_eq!(client.unlock_key("a", id).unwrap().len(), 1);
        assert_eq!(store.record("a").exclusive, None);
    });
}

/// An observer that closes its client as soon as a renewal is answered.
#[derive(Default)]
struct Closes(Mutex<Option<LockClient>>);

impl Observer for Closes {
    fn event(&self, event: &Event<'_>) {
        if let Event::Renewed { .. } = event
            && let Some(client) = { self.0.lock().unwrap().take() }
        {
            client.close().unwrap();
        }
    }
}

#[test]
fn a_close_that_comes_while_a_guard_asks_for_it_knows_of_it() {
    on_every_store(|store| {
        let closes = Arc::new(Closes::default());
        let client = store.builder().observer(closes.clone()).connect().unwrap();
        let guard = client.lock("k").unwrap();
        *closes.0.lock().unwrap() = Some(client);
        guard.hold_at_least(HOUR).expect("it was held when that was answered");
        assert!(!guard.is_held());
        store.is_kept("k", HOUR);
    });
}

#[test]
fn whoever_lost_it_writes_nothing() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let guard = client.request("k").lease(LONG).hold_at_least(HOUR).lock().unwrap();
        rival.force_release("k").unwrap();
        let new = rival.request("k").acquire().unwrap();
        let stands = store.record("k");
        assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
        assert_eq!(store.record("k"), stands);
        rival.release(&new).unwrap();
        // A lock that only its holder counts as over is kept as if it had been released.
        let guard = client.request("k").hold_at_least(HOUR).max_hold(Duration::from_millis(1)).lock().unwrap();
        let loss = guard.loss().wait_timeout(LONG).expect("it is lost");
        assert!(matches!(loss.reason, LossReason::MaxHold), "{loss:?}");
        drop(guard);
        store.is_kept("k", HOUR);
    });
}

#[test]
fn a_store_that_is_away_for_less_costs_no_lock() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let guard = client.request("k").lease(LONG).hold_at_least(HOUR).lock().unwrap();
        faults.go_offline();
        store.advance(10 * LONG);
        assert!(guard.is_held(), "nobody else can be granted it");
        faults.go_online();
        drop(guard);
    });
}

#[test]
fn what_outlasts_its_release_is_held_by_nobody_here() {
    on_every_store(|store| {
        let client = store.client();
        let election = client.election("k").build().unwrap();
        let leads = election.campaign().unwrap();
        leads.guard().hold_at_least(HOUR).unwrap();
        election.stop().unwrap();
        let refused = client.request("k").wait(Duration::ZERO).lock().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        assert!(!refused.held_by_this_client(), "{refused}");
        drop(leads);
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_written() {
    on_every_store(|store| {
        let client = store.client();
        let days = |n: u32| n * 24 * HOUR;
        let refused = |error: leasehold::Error, why: &str| {
            assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("k")), "{error}");
            assert!(error.to_string().contains("hold_at_least") && error.to_string().contains(why), "{error}");
        };
        for least in [Duration::ZERO, days(31)] {
            refused(client.request("k").hold_at_least(least).lock().unwrap_err(), "at most 30 days");
        }
        let end = SystemTime::now() + HOUR;
        refused(client.request("k").lease_until(end).hold_at_least(MINUTE).lock().unwrap_err(), "lease_until");
        refused(client.request("k").lease_forever().hold_at_least(MINUTE).lock().unwrap_err(), "lease_forever");
        refused(client.request("k").hold_at_least(MINUTE).acquire().unwrap_err(), "without a guard");
        let of_one = client.request_any(["k"]).hold_at_least(MINUTE).acquire().unwrap_err();
        assert_eq!(of_one.kind(), ErrorKind::InvalidInput);
        assert!(of_one.to_string().contains("without a guard"), "{of_one}");
        let all = client.request_all(["k"]).each(|one| one.hold_at_least(MINUTE));
        refused(all.lock().unwrap_err(), "once all are held");
        assert!(!store.record("k").exists());
        let guard = client.lock("k").unwrap();
        refused(guard.hold_at_least(days(31)).unwrap_err(), "at most 30 days");
        drop(guard);
        let guard = client.request("k").lease_forever().lock().unwrap();
        refused(guard.hold_at_least(MINUTE).unwrap_err(), "lease_forever");
        drop(guard);
        assert!(client.try_lock("k").unwrap().is_some());
        let guard = client.lock("k").unwrap();
        store.rival().force_release("k").unwrap();
        assert_eq!(guard.hold_at_least(HOUR).unwrap_err().kind(), ErrorKind::Lost);
    });
}

/// A caller that repeats whatever is worth a repeat would go on until the lease ends.
#[test]
fn a_renewal_that_is_refused_is_told_as_what_the_store_says() {
    let store = Store::memory();
    let client = store.builder().lease(HOUR).heartbeat(HOUR / 2).connect().unwrap();
    let guard = client.lock("k").unwrap();
    for (fault, kind, is_retryable) in
        [(Fault::Refuse, ErrorKind::Permission, false), (Fault::ApplyThenFail, ErrorKind::Store, true)]
    {
        store.plan.next(Call::Renew, fault);
        let error = guard.hold_at_least(HOUR / 2).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (kind, is_retryable), "{error:?}");
        assert!(error.source().is_some() && guard.is_held(), "{error:?}");
    }
}
