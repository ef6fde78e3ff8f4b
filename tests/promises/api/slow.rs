//! An observer that is slow, or hangs, costs no lock: neither a renewal nor the report of a loss waits for it. Nor does a
//! callback of a wait that hangs get one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use leasehold::internals::store::fault::Call;
use leasehold::{Event, LossReason, Mutex, Observer, Operation, Waiting};

use crate::support::harness::{PATIENCE, Store, millis};
use crate::support::wait::wait_until;

/// Hangs in the first event that is chosen, until the other end of its channel is dropped.
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

#[test]
fn one_that_hangs_in_a_heartbeats_request_stops_no_heartbeat() {
    for store in Store::all() {
        let is_renewal = |event: &Event<'_>| matches!(event, Event::Request { operation: Operation::Renew, .. });
        let (observer, enters, leaves) = Hangs::new(is_renewal);
        let client = store.builder().lease(LEASE).heartbeat(millis(20)).observer(observer.clone()).connect().unwrap();
        let first = client.lock("first").unwrap();
        enters.recv_timeout(PATIENCE).unwrap();
        let before = store.plan.count(Call::Renew);
        wait_until("its own heartbeat goes on", || store.plan.count(Call::Renew) > before + 3);
        // Calls tell what they do themselves.
        let second = client.lock("second").unwrap();
        let shown = second.shared_info();
        wait_until("so does another", || shown.lock().renewed().is_some());
        assert!(first.is_held() && second.is_held(), "on {}", store.name);
        second.release().unwrap();
        drop(leaves);
        first.release().unwrap();
        client.close().unwrap();
        // With nothing left out.
        for key in ["first", "second"] {
            let told = observer.of(key);
            let count = |what: &str| told.iter().filter(|told| *told == what).count();
            assert_eq!((told[0].as_str(), count("granted"), count("released")), ("granted", 1, 1), "{key}: {told:?}");
            let least = if key == "first" { 3 } else { 1 };
            assert!(count("renewed") >= least, "{key}: {told:?}");
        }
    }
}

#[test]
fn one_that_hangs_in_a_loss_delays_neither_first_heartbeats_nor_other_losses() {
    for store in Store::all() {
        let is_loss = |event: &Event<'_>| matches!(event, Event::Lost { loss } if loss.key == "first");
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
}

#[test]
fn one_that_hangs_at_the_end_of_a_term_keeps_no_lock() {
    for store in Store::all() {
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
}

/// How long a callback of a wait may take.
const HANGS: Duration = Duration::from_secs(3);

/// Calls `on_wait` of the first in line, and returns once it has hung for so long that its turn is over.
fn hang() -> (impl FnMut(&Waiting) + Send + 'static, impl FnOnce(), Sender<()>) {
    let ((enter, entered), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let on_wait = move |_: &Waiting| {
        let _ = enter.try_send(());
        let _ = leave.recv();
    };
    let hangs = move || {
        entered.recv_timeout(PATIENCE).unwrap();
        let since = Instant::now();
        wait_until("it hangs for long", || since.elapsed() > HANGS);
    };
    (on_wait, hangs, leaves)
}

#[test]
fn a_waiter_whose_callback_hangs_is_handed_no_lock_and_holds_up_nobody() {
    std::thread::scope(|scope| {
        for of_any in [false, true] {
            scope.spawn(move || {
                let store = Store::memory();
                let connect = || store.builder().connect().unwrap();
                let (client, rival) = (connect(), connect());
                let held = client.lock("k").unwrap();
                // Else it takes that one.
                let _other = of_any.then(|| rival.lock("a").unwrap());
                let (on_wait, hangs, leaves) = hang();
                std::thread::scope(|scope| {
                    let waits = scope.spawn(|| match of_any {
                        // The callback is called for the first key, too.
                        true => client.request_any(["a", "k"]).in_order().on_wait(on_wait).lock(),
                        false => client.request("k").on_wait(on_wait).lock(),
                    });
                    hangs();
                    held.release().unwrap();
                    let taken = rival.try_lock("k").unwrap().expect("nobody has it, and it was handed to nobody");
                    taken.release().unwrap();
                    // Nor does it stand in the way of those behind it.
                    let second = client.try_lock_for("k", PATIENCE).unwrap().expect("the first hangs");
                    drop(leaves);
                    second.release().unwrap();
                    waits.join().unwrap().unwrap().release().unwrap();
                });
            });
        }
    });
}

/// Nobody tells who waits behind one that hangs that it is first now: the release came from elsewhere, and early.
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
        // Before a wait would look again by itself, for it is to be warned of.
        let by = Instant::now() + Duration::from_secs(20);
        for second in second {
            second.join().unwrap().unwrap();
        }
        assert!(Instant::now() < by, "it was free all the while");
        drop(leaves);
        drop(first.join().unwrap().unwrap());
    });
}
