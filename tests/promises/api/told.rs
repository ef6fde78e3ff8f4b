//! What users are told: losses, warnings, events for observers.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::alone::alone;
use crate::support::bench::builder_over;
use leasehold::internals::store::Swapped;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::sys::pause::Stop;
use leasehold::testing::MemoryStore;
use leasehold::{ErrorKind, Event, LockClient, LockGuard, Loss, LossReason, Mutex, Observer, Operation};

use crate::api::{LONG, MINUTE, on_every_store, wait_until};
use crate::support::harness::Store;
use crate::support::stores::soon;

#[test]
fn everyone_who_watches_hears_of_a_loss_also_who_comes_late() {
    on_every_store(|store| {
        let guard = store.client().lock("k").unwrap();
        let watch = guard.loss();
        let (early, waiting) = (watch.receiver(), watch.clone());
        assert!(watch.get().is_none());
        assert!(watch.wait_timeout(Duration::from_millis(1)).is_none());
        let waiter = std::thread::spawn(move || waiting.wait().unwrap().fencing_token);
        store.advance(Duration::from_secs(21));
        let token = guard.fencing_token();
        assert_eq!(early.recv_timeout(LONG).unwrap().fencing_token, token);
        assert_eq!(waiter.join().unwrap(), token);
        assert_eq!(watch.receiver().recv().unwrap().key, "k");
        let loss = watch.get().unwrap();
        assert!(matches!(loss.reason, LossReason::Expired { .. }));
        // After the lease of 20 s others may have held the lock, so that time does not count.
        assert!(loss.held_for <= Duration::from_secs(20), "{loss:?}");
    });
}

#[test]
fn a_release_ends_every_watch_without_a_loss() {
    on_every_store(|store| {
        let guard = store.client().lock("k").unwrap();
        let watch = guard.loss();
        let (receiver, waiting) = (watch.receiver(), watch.clone());
        let waiter = std::thread::spawn(move || waiting.wait().is_none());
        guard.release().unwrap();
        assert!(waiter.join().unwrap());
        assert!(receiver.recv().is_err() && watch.receiver().recv().is_err());
        assert!(watch.get().is_none());
    });
}

#[test]
fn a_warning_comes_before_the_loss_when_heartbeats_fail() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).lease(MINUTE).connect().unwrap();
        faults.always(Call::Renew, Fault::FailBefore);
        let (told, tells) = mpsc::channel();
        let guard = client
            .request("k")
            .warn_before(MINUTE / 2)
            .on_warning(move |left| told.send(left).unwrap())
            .lock()
            .unwrap();
        // The first heartbeat is due now. The warning is due four seconds later, half a minute before the loss.
        store.advance(MINUTE / 3);
        let left = tells.recv_timeout(LONG).unwrap();
        assert!(left <= MINUTE / 2, "{left:?}");
        store.advance(MINUTE / 2);
        assert!(tells.recv_timeout(LONG).is_err(), "warned twice");
        assert!(guard.loss().wait_timeout(LONG).is_some());
    });
}

/// Counts heartbeats that were answered, and warnings.
#[derive(Default)]
struct Beats {
    renewed: AtomicUsize,
    late: AtomicUsize,
}

impl Observer for Beats {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Renewed { .. } => _ = self.renewed.fetch_add(1, Ordering::SeqCst),
            Event::RenewalLate { .. } => _ = self.late.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
    }
}

/// A lock that is held for a year meets more than one outage.
#[test]
fn each_time_that_heartbeats_fail_is_warned_of() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let beats = Arc::new(Beats::default());
        let client = builder_over(faulty, store.clock.clone()).lease(MINUTE).observer(beats.clone()).connect().unwrap();
        let guard = client.request("k").warn_before(MINUTE / 2).lock().unwrap();
        for outage in 1..=2 {
            faults.always(Call::Renew, Fault::FailBefore);
            // Of the 54 s that a renewal gives, less than half a minute is left.
            store.advance(MINUTE * 5 / 12);
            wait_until("the warning", || beats.late.load(Ordering::SeqCst) == outage);
            let renewed = beats.renewed.load(Ordering::SeqCst);
            faults.heal();
            wait_until("a heartbeat", || beats.renewed.load(Ordering::SeqCst) > renewed);
        }
        assert!(guard.is_held());
    });
}

#[test]
fn no_warning_comes_while_heartbeats_succeed() {
    on_every_store(|store| {
        let (told, tells) = mpsc::channel::<Duration>();
        let client = store.builder().lease(LONG).heartbeat(Duration::from_millis(10)).connect().unwrap();
        let guard = client
            .request("k")
            .warn_before(LONG / 10 * 9 - Duration::from_millis(1))
            .on_warning(move |left| told.send(left).unwrap())
            .lock()
            .unwrap();
        let shown = guard.shared_info();
        wait_until("the heartbeat is reported", || shown.lock().renewed().is_some());
        drop(guard);
        assert!(tells.recv().is_err());
    });
}

#[test]
fn a_loss_says_how_and_after_how_long() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let lost = |guard: &LockGuard| guard.loss().wait_timeout(LONG).unwrap();
        let taken = client.lock("taken").unwrap();
        let adopted = rival.adopt(taken.info()).unwrap();
        let released = client.lock("released").unwrap();
        rival.release(&released.info()).unwrap();
        store.advance(Duration::from_secs(1));
        let by = format!("taken over by \"rival\" (exclusive, token {}, ", adopted.fencing_token());
        assert!(lost(&taken).to_string().starts_with(&by), "{}", lost(&taken));
        let after = |loss: &Loss| format!(" after {:.1} s", loss.held_for.as_secs_f64());
        let loss = lost(&released);
        assert_eq!(loss.to_string(), format!("released by another{}", after(&loss)));
        let old = client.lock("old").unwrap();
        store.advance(Duration::from_secs(21));
        let loss = lost(&old);
        assert_eq!(loss.to_string(), format!("expired{}", after(&loss)));
        let lease = Duration::from_secs(20);
        assert!(loss.held_for > lease / 2 && loss.held_for <= lease, "{loss:?}");
        drop(adopted);
    });
}

/// The guard can't tell whether another released the lock or its row was deleted.
#[test]
fn a_release_of_what_stands_no_more_says_what_may_have_become_of_it() {
    on_every_store(|store| {
        let guard = store.client().request("k").lease(MINUTE).lock().unwrap();
        let deleted = store.store.swap(&store.get("k"), None, &soon()).unwrap();
        assert!(matches!(deleted, Swapped::Done), "{deleted:?}");
        let failed = guard.release().unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Lost, "{failed}");
        assert!(
            failed.to_string().ends_with("released by another, or its row, table or file was deleted or replaced"),
            "{failed}"
        );
    });
}

#[test]
fn an_error_that_carries_something_reads_like_the_error_that_it_is() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        let is_like = |failed: &dyn Error, error: &leasehold::Error| {
            assert!(failed.to_string().contains("refused the request"), "{failed}");
            assert_eq!(failed.to_string(), error.to_string());
            assert_eq!(failed.source().unwrap().to_string(), error.source().unwrap().to_string());
        };
        faults.next(Call::Release, Fault::Refuse);
        let failed = client.lock("k").unwrap().release().unwrap_err();
        is_like(&failed, failed.error());
        drop(failed);
        faults.next(Call::Acquire, Fault::Refuse);
        let failed = client.with_lock("k", |_| ()).unwrap_err();
        is_like(&failed, failed.error());
    });
}

#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl Observer for Recorded {
    fn event(&self, event: &Event<'_>) {
        let text = match event {
            Event::Request { operation, error, .. } => format!("request {operation:?} {}", error.is_none()),
            Event::Unknown { operation, key, .. } => format!("unknown {operation:?} {key}"),
            Event::Granted { key, .. } => format!("granted {key}"),
            Event::Refused { key, holders, .. } => format!("refused {key} {}", holders.len()),
            Event::Renewed { key, .. } => format!("renewed {key}"),
            Event::Lost { loss, .. } => format!("lost {}", loss.key),
            Event::Released { key, .. } => format!("released {key}"),
            other => panic!("{other:?}"),
        };
        self.0.lock().push(text);
        panic!("an observer that panics harms nobody");
    }
}

#[test]
fn an_observer_hears_of_every_request_and_event() {
    on_every_store(|store| {
        let recorded = Arc::new(Recorded::default());
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let builder = builder_over(faulty, store.clock.clone()).observer(recorded.clone());
        let client = builder.lease(MINUTE).connect().unwrap();
        faults.next(Call::Acquire, Fault::ApplyThenFail);
        let guard = client.lock("k").unwrap();
        assert!(client.try_lock("k").unwrap().is_none());
        let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
        guard.release().unwrap();
        let heard = std::mem::take(&mut *recorded.0.lock());
        let expected = [
            "request Schema true",
            "request Acquire false",
            "unknown Acquire k",
            "request Acquire true",
            "granted k",
            "request Acquire true",
            "refused k 1",
            "request Renew true",
            "renewed k",
            "request Release true",
            "released k",
        ];
        assert_eq!(heard, expected);
        let guard = client.lock("k").unwrap();
        store.advance(MINUTE);
        guard.loss().wait_timeout(LONG).unwrap();
        wait_until("the loss is reported", || recorded.0.lock().contains(&"lost k".to_owned()));
    });
}

#[test]
fn each_of_several_observers_hears_of_everything() {
    on_every_store(|store| {
        let both = [Arc::new(Recorded::default()), Arc::new(Recorded::default())];
        let client = both.iter().fold(store.builder(), |builder, one| builder.observer(one.clone())).connect().unwrap();
        client.lock("k").unwrap().release().unwrap();
        // What the watcher's thread has to report is reported by another thread.
        let max_hold = client.request("k").max_hold(Duration::from_millis(1)).lock().unwrap();
        max_hold.loss().wait_timeout(LONG).unwrap();
        for heard in &both {
            wait_until("the loss is reported", || heard.0.lock().contains(&"lost k".to_owned()));
            assert!(heard.0.lock().contains(&"released k".to_owned()));
        }
    });
}

/// Calls the guard once, when it learns of a heartbeat.
#[derive(Default)]
struct Calls {
    guard: Mutex<Option<Arc<LockGuard>>>,
    answered: AtomicUsize,
}

impl Observer for Calls {
    fn event(&self, event: &Event<'_>) {
        let Event::Request { operation: Operation::Renew, error, .. } = event else { return };
        self.answered.fetch_add(usize::from(error.is_none()), Ordering::SeqCst);
        if let Some(guard) = { self.guard.lock().take() } {
            // The renewal is sent, unless it waits in vain for the one before it.
            let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
        }
    }
}

#[test]
fn an_observer_may_call_the_guard_whose_request_it_hears_of() {
    on_every_store(|store| {
        let calls = Arc::new(Calls::default());
        let client = store.builder().observer(calls.clone()).connect().unwrap();
        let guard = Arc::new(client.lock("k").unwrap());
        *calls.guard.lock() = Some(guard.clone());
        let _ = guard.ensure_held_for(Duration::from_secs(18));
        assert!(calls.answered.load(Ordering::SeqCst) >= 2, "the renewal waited for the one before it");
    });
}

#[test]
fn a_guard_that_is_dropped_without_an_answer_ends_every_watch() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let builder = builder_over(faulty, store.clock.clone()).drop_timeout(Duration::from_millis(100));
        let guard = builder.connect().unwrap().lock("k").unwrap();
        let (watch, receiver) = (guard.loss(), guard.loss().receiver());
        faults.always(Call::Release, Fault::FailBefore);
        drop(guard);
        let (told, tells) = mpsc::channel();
        let waiting = watch.clone();
        std::thread::spawn(move || told.send(waiting.wait().is_none()));
        assert!(tells.recv_timeout(LONG).expect("it waits for what can't come any more"));
        assert_eq!(receiver.recv_timeout(LONG).unwrap_err().to_string(), "channel is empty and disconnected");
    });
}

#[test]
fn a_warning_that_was_due_before_the_first_failure_comes_with_it() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let builder = builder_over(faulty, store.clock.clone()).lease(MINUTE);
        let client = builder.heartbeat(MINUTE / 2).connect().unwrap();
        faults.always(Call::Renew, Fault::FailBefore);
        let (told, tells) = mpsc::channel();
        let guard = client
            .request("k")
            .warn_before(MINUTE * 7 / 10)
            .on_warning(move |left| told.send(left).unwrap())
            .lock()
            .unwrap();
        // By then the warning has been due since a fifth of the lease; the loss comes after nine tenths.
        store.advance(MINUTE / 2);
        tells.recv_timeout(LONG).expect("no warning comes");
        store.advance(MINUTE / 2);
        assert!(guard.loss().wait_timeout(LONG).is_some());
    });
}

#[test]
fn a_callback_has_the_stack_of_any_thread() {
    #[inline(never)]
    fn deep() -> u8 {
        std::hint::black_box([1_u8; 400 * 1024])[17]
    }
    on_every_store(|store| {
        let (told, tells) = mpsc::channel();
        let guard = store.client().request("k").on_loss(move |_| told.send(deep()).unwrap()).lock().unwrap();
        store.advance(Duration::from_secs(21));
        assert_eq!(tells.recv_timeout(LONG), Ok(1));
        drop(guard);
    });
}

/// This lock would remain in the store for ever.
#[test]
fn a_close_says_that_a_lock_which_was_lost_stands_on() {
    let store = Store::memory();
    // The close also waits until a loss was reported.
    let client = store.builder().drop_timeout(Duration::from_secs(3)).connect().unwrap();
    let guard = client.request("k").lease_forever().max_hold(Duration::from_millis(1)).lock().unwrap();
    store.plan.go_offline();
    wait_until("it is lost", || !guard.is_held());
    let error = client.close().unwrap_err();
    assert!(error.to_string().contains("nobody holds"), "{error}");
    let again = client.close().unwrap_err();
    assert!(again.to_string() == error.to_string() && again.is_retryable(), "{again}");
}

/// What happened to locks, in the order in which it was reported.
#[derive(Default)]
struct Told(Mutex<Vec<(&'static str, u64)>>);

impl Observer for Told {
    fn event(&self, event: &Event<'_>) {
        let told = match event {
            Event::Granted { fencing_token, .. } => ("granted", *fencing_token),
            Event::Lost { loss, .. } => ("lost", loss.fencing_token),
            Event::Renewed { .. } => ("renewed", 0),
            _ => return,
        };
        self.0.lock().push(told);
    }
}

/// A store, and a client with leases of a minute that reports to the observer.
fn told_of() -> (MemoryStore, Arc<Told>, LockClient) {
    let (store, told) = (MemoryStore::new(), Arc::new(Told::default()));
    let client = store.builder().lease(MINUTE).observer(told.clone()).connect().unwrap();
    (store, told, client)
}

/// An observer that tracks the state of each key by these events would otherwise take the new grant for lost.
#[test]
fn a_loss_is_told_before_the_next_grant_of_its_key() {
    alone("api::told::a_loss_is_told_before_the_next_grant_of_its_key", || {
        let (store, told, client) = told_of();
        let guard = client.lock("k").unwrap();
        let first = guard.fencing_token();
        let mut stop = Stop::at("loss.declared");
        store.advance(2 * MINUTE);
        guard.loss().wait_timeout(LONG).expect("its lease is over");
        wait_until("it is declared", || stop.is_reached());
        drop(guard);
        let second = client.lock("k").unwrap().fencing_token();
        stop.let_go();
        wait_until("all is told", || told.0.lock().len() >= 3);
        assert_eq!(*told.0.lock(), [("granted", first), ("lost", first), ("granted", second)]);
    });
}

/// Not the watcher finds this loss but the holder, which is stopped before it has told anybody of it.
#[test]
fn a_loss_that_its_holder_finds_is_told_before_the_next_grant_of_its_key() {
    alone("api::told::a_loss_that_its_holder_finds_is_told_before_the_next_grant_of_its_key", || {
        // The watcher may be quicker.
        assert!((0..100).any(|_| its_holder_finds_a_loss()));
    });
}

fn its_holder_finds_a_loss() -> bool {
    let (store, told, client) = told_of();
    let guard = client.lock("k").unwrap();
    let first = guard.fencing_token();
    let mut stop = Stop::at("loss.declared");
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            store.advance(2 * MINUTE);
            guard.ensure_held().unwrap_err();
        });
        wait_until("it is declared", || stop.is_reached());
        let is_holder = stop.thread() == Some(asks.thread().id());
        let second = client.lock("k").unwrap().fencing_token();
        stop.let_go();
        wait_until("all is told", || told.0.lock().len() >= 3);
        assert_eq!(told.0.lock()[..3], [("granted", first), ("lost", first), ("granted", second)]);
        is_holder
    })
}

/// A heartbeat's answer counts from when the guard has it, and the hold may end right after that.
#[test]
fn a_renewal_is_told_before_the_loss_that_follows_it() {
    alone("api::told::a_renewal_is_told_before_the_loss_that_follows_it", || {
        let (store, told, client) = told_of();
        let guard = client.lock("k").unwrap();
        let token = guard.fencing_token();
        let mut stop = Stop::at("renew.published");
        store.advance(MINUTE / 2);
        wait_until("the guard has the answer", || stop.is_reached());
        store.advance(2 * MINUTE);
        guard.loss().wait_timeout(LONG).expect("its lease is over");
        wait_until("the loss is told", || told.0.lock().last() == Some(&("lost", token)));
        assert_eq!(*told.0.lock(), [("granted", token), ("renewed", 0), ("lost", token)]);
        stop.let_go();
    });
}

/// A lease that was asked for without an answer was never had, as far as is known.
#[test]
fn a_loss_counts_no_lease_that_was_only_asked_for() {
    let store = MemoryStore::new();
    let guard = store.builder().lease(MINUTE).connect().unwrap().lock("k").unwrap();
    store.go_offline();
    guard.hold_at_least(60 * MINUTE).unwrap_err();
    store.advance(120 * MINUTE);
    let loss = guard.loss().wait_timeout(LONG).expect("its lease is over");
    assert!(loss.held_for <= MINUTE, "{loss:?}");
}
