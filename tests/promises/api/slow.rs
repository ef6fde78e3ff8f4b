//! An observer that is slow, or hangs, costs no lock: neither a renewal nor the report of a loss waits for it. A wait
//! whose callback hangs is not given a lock either.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{ErrorKind, Event, LossReason, Mutex, Observer, Operation, Waiting};

use crate::support::harness::{PATIENCE, Store, millis, on_each_local};
use crate::support::wait::wait_until;

on_each_local! {
    together:
        one_that_hangs_in_a_heartbeats_request_stops_no_heartbeat,
        one_that_hangs_in_a_loss_delays_neither_first_heartbeats_nor_other_losses,
        one_that_hangs_at_the_end_of_a_term_keeps_no_lock,
    ;
}

/// Hangs in the first event that `chosen` matches, until the other end of its channel is dropped.
struct Hangs {
    chosen: fn(&Event<'_>) -> bool,
    entered: Mutex<Option<Sender<()>>>,
    leave: Receiver<()>,
    told: Mutex<Vec<String>>,
}

impl Hangs {
    fn new(chosen: fn(&Event<'_>) -> bool) -> (Arc<Hangs>, Receiver<()>, Sender<()>) {
        let ((entered, enters), (leaves, leave)) = (bounded(1), bounded(0));
        let entered = Mutex::new(Some(entered));
        (Arc::new(Hangs { chosen, entered, leave, told: Mutex::default() }), enters, leaves)
    }

    fn of(&self, key: &str) -> Vec<String> {
        let (told, start) = (self.told.lock(), format!("{key} "));
        told.iter().filter_map(|told| told.strip_prefix(&start)).map(str::to_owned).collect()
    }
}

impl Observer for Hangs {
    fn event(&self, event: &Event<'_>) {
        if (self.chosen)(event)
            && let Some(entered) = { self.entered.lock().take() }
        {
            let _ = entered.send(());
            let _ = self.leave.recv();
        }
        let what = match event {
            Event::Granted { .. } => "granted",
            Event::Renewed { .. } => "renewed",
            Event::Lost { .. } => "lost",
            Event::Released { .. } => "released",
            _ => return,
        };
        self.told.lock().push(format!("{} {what}", event.key().unwrap_or_default()));
    }
}

/// Enough for many heartbeats on a busy machine.
const LEASE: Duration = Duration::from_secs(60);

fn one_that_hangs_in_a_heartbeats_request_stops_no_heartbeat(store: Store) {
    let is_renewal = |event: &Event<'_>| matches!(event, Event::Request { operation: Operation::Renew, .. });
    let (observer, enters, leaves) = Hangs::new(is_renewal);
    let client = store.builder().lease(LEASE).heartbeat(millis(20)).observer(observer.clone()).connect().unwrap();
    let first = client.lock("first").unwrap();
    enters.recv_timeout(PATIENCE).unwrap();
    let before = store.plan.count(Call::Renew);
    wait_until("its own heartbeat goes on", || store.plan.count(Call::Renew) > before + 3);
    // A call reports its own events on its own thread, so this one is not held up.
    let second = client.lock("second").unwrap();
    let shown = second.shared_info();
    wait_until("so does another", || shown.lock().renewed().is_some());
    assert!(first.is_held() && second.is_held(), "on {}", store.name);
    second.release().unwrap();
    drop(leaves);
    first.release().unwrap();
    client.close().unwrap();
    // No event is missing.
    for key in ["first", "second"] {
        let told = observer.of(key);
        let count = |what: &str| told.iter().filter(|told| *told == what).count();
        assert_eq!((told[0].as_str(), count("granted"), count("released")), ("granted", 1, 1), "{key}: {told:?}");
        let least = if key == "first" { 3 } else { 1 };
        assert!(count("renewed") >= least, "{key}: {told:?}");
    }
}

fn one_that_hangs_in_a_loss_delays_neither_first_heartbeats_nor_other_losses(store: Store) {
    let is_loss = |event: &Event<'_>| matches!(event, Event::Lost { loss, .. } if loss.key == "first");
    let (observer, enters, leaves) = Hangs::new(is_loss);
    let client = store.builder().lease(LEASE).heartbeat(millis(20)).observer(observer.clone()).connect().unwrap();
    let lost = |key: &str| {
        let guard = client.request(key).max_hold(millis(1)).lock().unwrap();
        let loss = guard.loss().wait_timeout(PATIENCE).expect("nobody says that it is lost");
        assert!(matches!(loss.reason, LossReason::MaxHold), "{loss:?}");
        guard
    };
    let first = lost("first");
    enters.recv_timeout(PATIENCE).unwrap();
    let guard = client.lock("second").unwrap();
    let before = store.plan.count(Call::Renew);
    wait_until("its heartbeat begins", || store.plan.count(Call::Renew) > before + 2);
    let third = lost("third");
    assert!(guard.is_held());
    drop(leaves);
    drop((first, guard, third));
    client.close().unwrap();
    for key in ["first", "third"] {
        assert_eq!(observer.of(key), ["granted", "lost"], "{key}");
    }
}

fn one_that_hangs_at_the_end_of_a_term_keeps_no_lock(store: Store) {
    let is_end = |event: &Event<'_>| matches!(event, Event::TermEnded { .. });
    for closes in [false, true] {
        let (observer, enters, leaves) = Hangs::new(is_end);
        let client = store.builder().lease(LEASE).observer(observer).connect().unwrap();
        let leads = client.election("leader").build().unwrap().campaign().unwrap();
        let other = client.lock("other").unwrap();
        std::thread::scope(|scope| {
            if closes {
                scope.spawn(|| client.close());
            } else {
                scope.spawn(|| drop(leads));
            }
            enters.recv_timeout(PATIENCE).unwrap();
            wait_until("another may lead", || store.is_vacant("leader"));
            assert!(
                !closes || {
                    wait_until("all is released", || store.is_vacant("other"));
                    true
                }
            );
            drop(leaves);
        });
        drop(other);
    }
}

/// How long a callback of a wait may take.
const HANGS: Duration = Duration::from_secs(3);

/// Returns an `on_wait` that hangs, and a closure that returns once it hangs (or, if `for_long`, has hung for so long
/// that the waiter's turn is over).
fn hang(for_long: bool) -> (impl FnMut(&Waiting) + Send + 'static, impl FnOnce(), Sender<()>) {
    let ((enter, entered), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let on_wait = move |_: &Waiting| {
        let _ = enter.try_send(());
        let _ = leave.recv();
    };
    let hangs = move || {
        entered.recv_timeout(PATIENCE).unwrap();
        let since = Instant::now();
        wait_until("it hangs for long", || !for_long || since.elapsed() > HANGS);
    };
    (on_wait, hangs, leaves)
}

#[test]
fn a_waiter_whose_callback_hangs_is_handed_no_lock_and_holds_up_nobody() {
    std::thread::scope(|scope| {
        for (of_any, for_long) in [(false, false), (false, true), (true, false), (true, true)] {
            scope.spawn(move || {
                let store = Store::memory();
                let connect = || store.builder().connect().unwrap();
                let (client, rival) = (connect(), connect());
                let held = client.lock("k").unwrap();
                // Otherwise the wait would take "a".
                let _other = of_any.then(|| rival.lock("a").unwrap());
                let (on_wait, hangs, leaves) = hang(for_long);
                std::thread::scope(|scope| {
                    let waits = scope.spawn(|| match of_any {
                        // The callback is called for the first key as well.
                        true => client.request_any(["a", "k"]).in_order().on_wait(on_wait).lock(),
                        false => client.request("k").on_wait(on_wait).lock(),
                    });
                    hangs();
                    held.release().unwrap();
                    let taken = rival.try_lock("k").unwrap().expect("nobody has it, and it was handed to nobody");
                    taken.release().unwrap();
                    // Nor may it hold up the waiters behind it.
                    let second = client.try_lock_for("k", PATIENCE).unwrap().expect("the first hangs");
                    drop(leaves);
                    second.release().unwrap();
                    waits.join().unwrap().unwrap().release().unwrap();
                });
            });
        }
    });
}

#[test]
fn a_close_in_a_callback_of_a_wait_leaves_no_lock_to_that_wait() {
    for (of_any, is_freed_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let store = Store::memory();
        let connect = || store.builder().connect().unwrap();
        let (client, rival) = (connect(), connect());
        let mut held = Some(client.lock("k").unwrap());
        let _other = of_any.then(|| rival.lock("a").unwrap());
        let closes = client.clone();
        let on_wait = move |_: &Waiting| {
            held.take_if(|_| is_freed_first).into_iter().for_each(|held| held.release().unwrap());
            closes.close().unwrap();
        };
        let error = match of_any {
            true => client.request_any(["a", "k"]).in_order().on_wait(on_wait).lock(),
            false => client.request("k").on_wait(on_wait).lock(),
        };
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
        assert!(rival.try_lock("k").unwrap().is_some(), "the close has left it to nobody: {of_any}, {is_freed_first}");
    }
}

/// An unanswered acquire may have been granted.
#[test]
fn a_close_in_a_callback_of_a_wait_leaves_no_grant_without_an_answer() {
    let store = Store::memory();
    // Unanswered acquires count as trouble once the attempt is too old to be repeated.
    let client = store.builder().lease(millis(1000)).connect().unwrap();
    store.plan.always(Call::Acquire, Fault::ApplyThenFail);
    let closes = client.clone();
    let error = client.request("k").on_wait(move |_| closes.close().unwrap()).lock();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    store.plan.heal();
    assert!(store.builder().connect().unwrap().try_lock("k").unwrap().is_some(), "nobody holds it");
}

/// Nobody tells the waiters behind it that they are first now, because another client released the lock, and early.
#[test]
fn who_waits_behind_one_that_hangs_gets_what_another_client_released() {
    let store = Store::memory();
    let connect = || store.builder().connect().unwrap();
    let (client, rival) = (connect(), connect());
    let held = rival.lock("k").unwrap();
    let ((enter, entered), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let on_wait = move |_: &Waiting| {
        let _ = enter.try_send(());
        let _ = leave.recv();
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| client.request("k").on_wait(on_wait).lock());
        entered.recv_timeout(PATIENCE).unwrap();
        let second = [false, true].map(|of_any| {
            let client = &client;
            scope.spawn(move || if of_any { client.lock_any(["k"]) } else { client.lock("k") }.unwrap().release())
        });
        held.release().unwrap();
        // Before a waiter would wake by itself, which it does after half a minute to warn of its wait.
        let by = Instant::now() + Duration::from_secs(20);
        for second in second {
            second.join().unwrap().unwrap();
        }
        assert!(Instant::now() < by, "it was free all the while");
        drop(leaves);
        drop(first.join().unwrap().unwrap());
    });
}

/// Its callbacks take all of its time.
#[test]
fn a_wait_for_several_keys_ends_by_its_time_however_long_its_reports_take() {
    let store = Store::memory();
    let (rival, client) = (store.builder().connect().unwrap(), store.builder().connect().unwrap());
    let _held = ["a", "b"].map(|key| rival.lock(key).unwrap());
    let (to, ended) = bounded(1);
    std::thread::spawn(move || {
        let request =
            client.request_any(["a", "b"]).on_wait_every(millis(10)).on_wait(|_| std::thread::sleep(millis(10)));
        to.send(request.wait(millis(200)).lock().map(drop)).unwrap();
    });
    let error = ended.recv_timeout(PATIENCE).expect("it has told ever since").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn what_is_handed_over_between_two_reports_is_taken_before_the_next() {
    assert!((0..5).any(|_| is_taken_before_the_next_report()), "released late each time");
}

/// Returns `false` if, on a busy machine, the callback took so long that it counts as one that hangs.
fn is_taken_before_the_next_report() -> bool {
    let store = Store::memory();
    let (rival, client) = (store.builder().connect().unwrap(), store.builder().connect().unwrap());
    let _others = ["a", "c"].map(|key| rival.lock(key).unwrap());
    let held = client.lock("b").unwrap();
    let ((enter, entered), (leaves, leave)) = (unbounded(), unbounded::<()>());
    let on_wait = move |waiting: &Waiting| {
        enter.send(waiting.key.clone()).unwrap();
        let _ = leave.recv();
    };
    std::thread::scope(|scope| {
        let began = Instant::now();
        let waits = scope.spawn(|| client.request_any(["a", "b", "c"]).in_order().on_wait(on_wait).lock());
        assert_eq!(entered.recv_timeout(PATIENCE).as_deref(), Ok("a"));
        held.release().unwrap();
        let in_time = began.elapsed() < HANGS;
        drop(leaves);
        assert_eq!(waits.join().unwrap().unwrap().key(), "b");
        let told: Vec<_> = entered.try_iter().collect();
        assert!(told.is_empty() || !in_time, "it went on telling: {told:?}");
        in_time
    })
}

/// Each callback is short enough, but all together are not.
#[test]
fn who_tells_of_many_keys_one_after_the_other_holds_up_nobody() {
    const KEYS: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "k"];
    let store = Store::memory();
    // Without wake-ups the waiters learn of the release only when they look.
    store.plan.always(Call::Wake, Fault::FailBefore);
    let (rival, client) = (store.builder().connect().unwrap(), store.builder().connect().unwrap());
    let mut held = KEYS.map(|key| rival.lock(key).unwrap()).into_iter();
    let (tell, told) = unbounded();
    let on_wait = move |_: &Waiting| {
        tell.send(()).unwrap();
        std::thread::sleep(HANGS / 3);
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.request_any(KEYS).in_order().on_wait(on_wait).lock());
        told.recv_timeout(PATIENCE).unwrap();
        held.next_back().unwrap().release().unwrap();
        let mut second = None;
        wait_until("it is passed over", || {
            second = client.try_lock("k").unwrap();
            second.is_some()
        });
        assert!(told.len() < KEYS.len() - 1, "not before it has told all");
        drop((second, held));
        drop(waits.join().unwrap().unwrap());
    });
}

/// The observer hangs in the report of a request, or of the grant itself, whose lease then ends.
#[test]
fn who_waits_behind_one_whose_observer_hangs_gets_what_was_released() {
    type Chosen = fn(&Event<'_>) -> bool;
    fn is_read(event: &Event<'_>, of: &str) -> bool {
        matches!(event, Event::Request { operation: Operation::Read, key: Some(key), .. } if *key == of)
    }
    let of_any: (_, Chosen) = ("a", |event| is_read(event, "a"));
    let of_read: (_, Chosen) = ("k", |event| is_read(event, "k"));
    let of_grant: (_, Chosen) = ("k", |event| matches!(event, Event::Granted { .. }));
    std::thread::scope(|scope| {
        for (other, chosen) in [of_any, of_read, of_grant] {
            scope.spawn(move || {
                let (store, (observer, enters, leaves)) = (Store::memory(), Hangs::new(chosen));
                let client = store.builder().lease(HANGS).observer(observer).connect().unwrap();
                let rival = store.bystander();
                let (_other, held) = ((other != "k").then(|| rival.lock(other).unwrap()), rival.lock("k").unwrap());
                let (tell, told) = unbounded();
                let on_wait = move |_: &Waiting| tell.send(()).unwrap_or_default();
                std::thread::scope(|scope| {
                    let first = scope.spawn(|| match other {
                        "k" => client.request("k").on_wait(on_wait).lock(),
                        _ => client.request_any([other, "k"]).in_order().on_wait(on_wait).lock(),
                    });
                    told.recv_timeout(PATIENCE).expect("it stands in the line");
                    held.release().unwrap();
                    enters.recv_timeout(PATIENCE).unwrap();
                    let since = Instant::now();
                    wait_until("a request would count as unanswered", || since.elapsed() > HANGS / 2);
                    client.try_lock("k").expect("the store is well");
                    let second = client.try_lock_for("k", PATIENCE).unwrap();
                    drop(leaves);
                    assert!(second.is_some(), "the first hangs in what it is told of {other:?}");
                    drop(second);
                    // The grant of the first waiter may be over by now.
                    let _ = first.join().unwrap();
                });
            });
        }
    });
}

/// The first waiter is in the line of "k" while its observer hangs in the report that the wait for "other" began.
#[test]
fn who_waits_behind_one_that_hangs_where_its_wait_for_another_key_begins_is_served() {
    let (store, (observer, enters, leaves)) =
        (Store::memory(), Hangs::new(|event| matches!(event, Event::WaitBegan { key: "other", .. })));
    let client = store.builder().observer(observer).connect().unwrap();
    let rival = store.bystander();
    let (held, _other) = (rival.lock("k").unwrap(), rival.lock("other").unwrap());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| client.request_any(["k", "other"]).in_order().lock());
        enters.recv_timeout(PATIENCE).unwrap();
        held.release().unwrap();
        let second = client.try_lock_for("k", PATIENCE).unwrap();
        drop(leaves);
        assert!(second.is_some(), "the first hangs");
        drop(second);
        drop(first.join().unwrap().unwrap());
    });
}

/// The first callback returned, so the first waiter got its turn back. Then it hangs again.
#[test]
fn who_had_the_turn_while_another_hung_gets_it_when_that_one_hangs_again() {
    let store = Store::memory();
    // Nobody looks by itself during this test, and the lease does not end in it either.
    let client = store.builder().poll(PATIENCE..=PATIENCE).connect().unwrap();
    let held = store.bystander().request("k").lease(100 * PATIENCE).lock().unwrap();
    let ((enter, enters), (leave, leaves)) = (unbounded(), unbounded::<()>());
    let hangs = move |_: &Waiting| {
        let _ = (enter.send(()), leaves.recv());
    };
    let (tell, told) = unbounded();
    let looks = move |waiting: &Waiting| tell.send(waiting.place).unwrap_or_default();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| client.request("k").on_wait(hangs).on_wait_every(millis(1)).lock());
        enters.recv_timeout(PATIENCE).unwrap();
        let wait = || client.request("k").on_wait(looks).on_wait_every(millis(100)).wait(PATIENCE).lock();
        let second = scope.spawn(wait);
        while told.recv_timeout(PATIENCE).expect("it has the turn") > 0 {}
        leave.send(()).unwrap();
        enters.recv_timeout(PATIENCE).unwrap();
        // The first waiter is told of the release, because its callback has hung only for a moment.
        held.release().unwrap();
        let second = second.join().unwrap();
        drop(leave);
        drop(second.expect("the first hangs again"));
        drop(first.join().unwrap().unwrap());
    });
}
