//! The first free one of several locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::support::bench::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{
    CancelToken, Error, ErrorKind, Event, LockGuard, LockStatus, Mode, Mutex, Observer, SameOwner, WaitEnd,
};

use crate::api::{LONG, MINUTE, answered, connected, on_every_store, wait_until};

/// How long a slow server may take to answer.
const SHORT: Duration = Duration::from_secs(1);

/// The error of a wait that asked for both keys: its time may be over before the second one, so that it is repeated.
fn ends(wait: impl Fn() -> Result<LockGuard, Error>) -> Error {
    let mut errors = (0..20).map(|_| answered(&wait).unwrap_err());
    errors.find(|e| e.kind() != ErrorKind::TimedOut || e.holders().len() == 2).expect("it asks for both")
}

fn sorted_keys(holders: &[LockStatus]) -> Vec<&str> {
    let mut keys: Vec<&str> = holders.iter().map(LockStatus::key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn one_of_the_keys_is_granted_until_all_are_held() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.rival());
        let guards: Vec<_> = (0..3).map(|_| client.try_lock_any(["a", "b", "c"]).unwrap().unwrap()).collect();
        let keys: BTreeSet<&str> = guards.iter().map(|guard| guard.key()).collect();
        assert_eq!(keys.len(), 3);
        assert!(rival.try_lock_any(["a", "b", "c"]).unwrap().is_none());
        assert!(rival.try_lock_any(vec!["a".to_owned(), "d".to_owned()]).unwrap().unwrap().key() == "d");
        let error = rival.request_any(["a", "b", "c"]).acquire().unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Held, None));
        assert_eq!(sorted_keys(error.holders()), ["a", "b", "c"]);
        assert!(error.to_string().contains("3 locks") && error.to_string().contains("\"b\" by"), "{error}");
        drop(guards);
        assert_eq!(rival.request_any(["a", "b"]).comment("c").acquire().unwrap().comment(), Some("c"));
    });
}

#[test]
fn the_order_is_random_unless_it_is_asked_for() {
    on_every_store(|store| {
        let client = store.client();
        let keys = ["a", "b", "c"];
        let drawn: BTreeSet<String> = (0..60).map(|_| client.lock_any(keys).unwrap().key().to_owned()).collect();
        assert_eq!(drawn.len(), 3, "each with a chance of 1 to 10^10 to be missing");
        for _ in 0..10 {
            assert_eq!(client.request_any(keys).in_order().lock().unwrap().key(), "a");
        }
        let _held = store.rival().lock("a").unwrap();
        assert_eq!(client.request_any(["a", "c", "b"]).in_order().lock().unwrap().key(), "c");
    });
}

#[test]
fn a_waiter_gets_the_one_that_is_released() {
    on_every_store(|store| {
        let rival = store.rival();
        let mut held: Vec<_> = ["a", "b", "c"].iter().map(|key| rival.lock(key).unwrap()).collect();
        let (told, tells) = mpsc::channel();
        let client = store.client();
        let waiter = std::thread::spawn(move || {
            let request = client.request_any(["a", "b", "c"]);
            request.on_wait(move |waiting| drop(told.send(waiting.clone()))).lock().unwrap().key().to_owned()
        });
        let mut waits: Vec<_> = (0..3).map(|_| tells.recv_timeout(LONG).unwrap()).collect();
        waits.sort_by(|a, b| a.key.cmp(&b.key));
        let told: Vec<_> = waits.iter().map(|w| (w.key.as_str(), w.holders[0].key(), w.holders[0].owner())).collect();
        assert_eq!(told, [("a", "a", "rival"), ("b", "b", "rival"), ("c", "c", "rival")]);
        drop(held.remove(1));
        assert_eq!(waiter.join().unwrap(), "b");
    });
}

#[test]
fn a_waiter_takes_over_the_first_lease_that_ends_however_seldom_it_polls() {
    on_every_store(|store| {
        let rival = store.rival();
        rival.request("a").lease(MINUTE).acquire().unwrap();
        rival.request("b").lease(store.short_lease()).acquire().unwrap();
        rival.request("c").lease_forever().acquire().unwrap();
        let client = store.builder().poll(MINUTE..=MINUTE).connect().unwrap();
        // Much shorter than a poll, and long enough for a slow server to answer for three keys.
        let any = || client.request_any(["a", "b", "c"]).wait(2 * LONG).lock();
        assert_eq!(store.within(LONG, any).unwrap().key(), "b");
    });
}

#[test]
fn a_wait_ends_at_its_deadline_with_the_holders_of_each() {
    on_every_store(|store| {
        let rival = store.rival();
        let _held = ["a", "b"].map(|key| rival.lock(key).unwrap());
        let client = store.client();
        let short = store.short_wait();
        let started = Instant::now();
        let error = ends(|| client.request_any(["a", "b"]).wait(short).lock());
        assert!(started.elapsed() >= short);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(sorted_keys(error.holders()), ["a", "b"]);
        let until = client.request_any(["a", "b"]).wait_until(Instant::now());
        assert_eq!(until.lock().unwrap_err().holders().len(), 2);
        // The same while another waiter is ahead in the line for "a": only that waiter asks the store for it.
        let (cancel, (told, tells)) = (CancelToken::new(), mpsc::channel());
        let first = client.request("a").cancel(&cancel).on_wait(move |_| told.send(()).unwrap_or_default());
        let first = std::thread::spawn(move || first.lock().unwrap_err().kind());
        tells.recv_timeout(LONG).unwrap();
        for wait in [Duration::ZERO, short] {
            let error = ends(|| client.request_any(["a", "b"]).wait(wait).lock());
            assert_eq!(sorted_keys(error.holders()), ["a", "b"], "{error}");
            assert!(error.to_string().contains("2 locks, and others held each of them"), "{error}");
        }
        cancel.cancel();
        assert_eq!(first.join().unwrap(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_refusal_counts_the_keys_and_not_who_holds_them() {
    on_every_store(|store| {
        let rival = store.rival();
        let _shared = [(); 2].map(|()| rival.lock_shared("a").unwrap());
        let _held = rival.lock("b").unwrap();
        let error = answered(|| store.client().request_any(["a", "b"]).acquire()).unwrap_err();
        assert!(error.to_string().contains("2 locks, and others hold each of them"), "{error}");
        assert_eq!(sorted_keys(error.holders()), ["a", "a", "b"]);
    });
}

#[test]
fn a_cancelled_or_closed_wait_ends_at_once() {
    on_every_store(|store| {
        let rival = store.rival();
        let _held = ["a", "b"].map(|key| rival.lock(key).unwrap());
        for close in [false, true] {
            let hour = Duration::from_secs(3600);
            let client = store.builder().poll(hour..=hour).drop_timeout(LONG).connect().unwrap();
            let cancel = CancelToken::new();
            let (told, tells) = mpsc::channel();
            let waiting = (client.clone(), cancel.clone());
            let waiter = std::thread::spawn(move || {
                let request = waiting.0.request_any(["a", "b"]).cancel(&waiting.1);
                request.on_wait(move |_| told.send(()).unwrap_or_default()).lock().unwrap_err()
            });
            tells.recv_timeout(LONG).unwrap();
            if close {
                client.close().unwrap()
            } else {
                cancel.cancel()
            }
            let error = waiter.join().unwrap();
            let kind = if close { ErrorKind::Closed } else { ErrorKind::Cancelled };
            assert_eq!((error.kind(), error.key()), (kind, None));
            assert_eq!(rival.get("a").unwrap().unwrap().holders().len(), 1);
        }
    });
}

#[test]
fn a_cancelled_wait_names_up_to_five_of_its_keys() {
    on_every_store(|store| {
        let (client, cancel) = (store.client(), CancelToken::new());
        cancel.cancel();
        let error = |keys: &[&str]| client.request_any(keys).cancel(&cancel).lock().unwrap_err().to_string();
        let five = error(&["e", "d", "c", "b", "a"]);
        assert!(five.contains("the wait for \"a\", \"b\", \"c\", \"d\", \"e\" was cancelled"), "{five}");
        let seven = error(&["g", "f", "e", "d", "c", "b", "a"]);
        assert!(seven.contains("\"d\", \"e\" and 2 more was cancelled"), "{seven}");
    });
}

/// How the waits for each key ended.
#[derive(Default)]
struct Ends(Mutex<BTreeMap<String, Vec<WaitEnd>>>);

impl Observer for Ends {
    fn event(&self, event: &Event<'_>) {
        if let Event::WaitEnded { key, end, .. } = event {
            self.0.lock().entry((*key).to_owned()).or_default().push(*end);
        }
    }
}

#[test]
fn an_observer_hears_how_the_wait_for_each_key_ended() {
    on_every_store(|store| {
        let (ends, rival) = (Arc::new(Ends::default()), store.rival());
        let client = store.builder().observer(ends.clone()).connect().unwrap();
        let [a, _b] = ["a", "b"].map(|key| rival.lock(key).unwrap());
        let ended = || std::mem::take(&mut *ends.0.lock());
        let each = |a, b| BTreeMap::from([("a".to_owned(), vec![a]), ("b".to_owned(), vec![b])]);
        // A wait whose time ends during a request has no answer to that request, and ends otherwise.
        let timed_out = (0..20).any(|_| {
            client.request_any(["a", "b"]).wait(SHORT).lock().unwrap_err();
            ended() == each(WaitEnd::TimedOut, WaitEnd::TimedOut)
        });
        assert!(timed_out);
        let (told, tells) = mpsc::channel();
        let granted = std::thread::scope(|scope| {
            let request = client.request_any(["a", "b"]).on_wait(move |_| told.send(()).unwrap_or_default());
            let waiter = scope.spawn(|| request.lock().unwrap());
            tells.recv_timeout(LONG).unwrap();
            a.release().unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(granted.key(), "a");
        assert_eq!(ended(), each(WaitEnd::Granted, WaitEnd::OtherGranted));
    });
}

#[test]
fn wrong_keys_are_refused_before_anything_is_asked() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        let nothing: [&str; 0] = [];
        let kind = |keys: &[&str]| client.try_lock_any(keys).unwrap_err().kind();
        for keys in [&nothing[..], &["a", "b", "a"], &["a", ""], &["a", "\n"]] {
            assert_eq!(kind(keys), ErrorKind::InvalidInput, "{keys:?}");
        }
        let many = (0..100).map(|n| format!("key-{n}")).chain(["key-7".to_owned()]);
        let text = client.lock_any(many).unwrap_err().to_string();
        assert!(text.contains("given twice") && text.contains("\"key-7\"") && !text.contains("key-8"), "{text}");
        for request in [
            client.request_any(["a"]).max_holders(0),
            client.request_any(["a"]).lease(Duration::ZERO),
            client.request_any(["a"]).owner(""),
            client.request_any(["a"]).same_owner(SameOwner::Replace),
        ] {
            assert_eq!(request.lock().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert!(faults.calls().is_empty());
    });
}

#[test]
fn ones_own_lock_of_the_group_is_passed_over_but_not_waited_for_alone() {
    on_every_store(|store| {
        let client = store.client();
        let mine = client.request("a").lock_id("g").lock().unwrap();
        let other = client.request_any(["a", "b"]).in_order().lock_id("g").lock().unwrap();
        assert_eq!(other.key(), "b");
        let error = client.request_any(["a", "b"]).lock_id("g").wait(LONG).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld);
        let _theirs = store.rival().lock("c").unwrap();
        let asks = || client.request_any(["a", "c"]).lock_id("g").wait(store.short_wait()).lock();
        let error = ends(asks);
        assert_eq!((error.kind(), sorted_keys(error.holders())), (ErrorKind::TimedOut, vec!["a", "c"]));
        drop(mine);
    });
}

#[test]
fn the_other_options_are_those_of_one_request() {
    on_every_store(|store| {
        let client = store.client();
        let _sharing = client.lock_shared("a").unwrap();
        let shared = client.request_any(["a"]).max_holders(2).owner("o").lock().unwrap();
        assert_eq!((shared.mode(), shared.info().owner()), (Mode::Shared, "o"));
        assert!(client.request_any(["a"]).max_holders(2).try_lock().unwrap().is_none());
        assert!(client.request_any(["a"]).shared().lease_forever().lock().unwrap().info().leased_until().is_none());
        let (told, tells) = mpsc::channel();
        let request = client.request_any(["x", "y"]).max_hold(SHORT).on_loss(move |loss| told.send(loss).unwrap());
        let guard = request.lock().unwrap();
        assert_eq!(tells.recv_timeout(LONG).unwrap().key, guard.key());
    });
}

#[test]
fn a_lost_answer_leaves_one_lock_and_no_second_one() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        faults.next(Call::Acquire, Fault::ApplyThenFail);
        let guard = client.lock_any(["a", "b"]).unwrap();
        let holders = |key| client.get(key).unwrap().map_or(0, |status| status.holders().len());
        assert_eq!(holders("a") + holders("b"), 1);
        drop(guard);
        assert_eq!(holders("a") + holders("b"), 0);
    });
}

#[test]
fn a_store_that_fails_is_not_told_as_held() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = connected(|| builder_over(faulty.clone(), store.clock.clone()).request_timeout(SHORT));
        faults.always(Call::Acquire, Fault::FailBefore);
        let error = store.within(SHORT, || client.try_lock_any(["a", "b", "c"])).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Store | ErrorKind::TimedOut), "{error}");
        faults.heal();
        // One key is held and the other can't be asked for: it is not known that both are held.
        let _held = store.rival().lock("a").unwrap();
        faults.next(Call::Acquire, Fault::Delay(Duration::ZERO));
        faults.always(Call::Acquire, Fault::FailBefore);
        let error = client.request_any(["a", "b"]).in_order().try_lock().unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Held);
    });
}

/// The wait asks for a key that this client holds only if it looks free, as does a key that can't be read.
#[test]
fn ones_own_lock_that_looks_free_ends_no_wait_and_a_no_of_the_store_does() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).connect().unwrap();
        let _mine = client.request("a").lock_id("g").lock().unwrap();
        for (call, asked) in [(Call::Read, 4), (Call::Acquire, 2)] {
            let theirs = store.rival().lock("b").unwrap();
            let (before, looks) = (faults.count(Call::Acquire), faults.count(Call::Read));
            if call == Call::Read {
                faults.always(call, Fault::Refuse);
            }
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| client.request_any(["a", "b"]).lock_id("g").wait(LONG).lock());
                // The first look happens only after both keys were asked for and refused.
                let looked = || faults.count(Call::Read) > looks && faults.count(Call::Acquire) >= before + asked;
                wait_until("it looks", || looked() || waits.is_finished());
                faults.always(call, Fault::Refuse);
                theirs.release().unwrap();
                let answer = waits.join().unwrap();
                match call {
                    Call::Read => assert_eq!(answer.unwrap().key(), "b"),
                    _ => {
                        let error = answer.unwrap_err();
                        assert_eq!((error.kind(), error.key()), (ErrorKind::Permission, Some("b")), "{error}");
                    }
                }
            });
            faults.heal();
        }
    });
}
