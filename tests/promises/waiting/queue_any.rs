//! A wait for any of several keys is in the line of each.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::alone::alone;
use crate::support::bench::{Bench, LONG};
use crate::support::lateness::at_rest;
use crate::support::wait::wait_until;
use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::{CancelToken, Error, ErrorKind, Event, LockClient, LockGuard, LockRequest, Mutex, Observer, Operation};

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: [&str; 3] = ["a", "b", "c"];

type Waiter = JoinHandle<Result<LockGuard, Error>>;

/// Waits for any of the keys on a thread of its own. Returns once it is in all lines, at these places.
fn any(client: &LockClient, places: [usize; 3], cancel: &CancelToken) -> Waiter {
    let (thread, told, _) = any_placed(client, cancel);
    assert_eq!(told, places);
    thread
}

/// The same. Also returns the places that it was told, and a receiver of what it is told later.
fn any_placed(client: &LockClient, cancel: &CancelToken) -> (Waiter, [usize; 3], mpsc::Receiver<(String, usize)>) {
    let hang = KEYS.map(|key| in_users_code(client, key));
    let (told, tells) = mpsc::channel();
    let request = client.request_any(KEYS).in_order().cancel(cancel);
    let request = request.on_wait(move |waiting| told.send((waiting.key.clone(), waiting.place)).unwrap_or_default());
    let thread = std::thread::spawn(move || request.lock());
    let places = KEYS.map(|key| {
        let (told, place) = tells.recv_timeout(LONG).unwrap();
        assert_eq!(told, key);
        place
    });
    wait_until("it has said so", || KEYS.map(|key| in_users_code(client, key)) == hang);
    (thread, places, tells)
}

/// Waits for one key, behind all others.
fn one(client: &LockClient, key: &str) -> Waiter {
    one_until(client, key, &CancelToken::new())
}

fn one_until(client: &LockClient, key: &str, cancel: &CancelToken) -> Waiter {
    let (told, tells) = mpsc::channel();
    let request = client.request(key).cancel(cancel).on_wait(move |_| told.send(()).unwrap_or_default());
    let thread = std::thread::spawn(move || request.lock());
    tells.recv_timeout(LONG).unwrap();
    wait_until("it has said so", || in_users_code(client, key) == 0);
    thread
}

#[test]
fn it_is_served_in_its_turn_and_by_a_hand_over() {
    let (bench, client) = Bench::patient();
    let mut held: Vec<_> = KEYS.iter().map(|key| client.lock(key).unwrap()).collect();
    let early = one(&client, "a");
    let (any, places, tells) = any_placed(&client, &CancelToken::new());
    assert_eq!(places, [1, 0, 0]);
    let late = one(&client, "b");
    // A thread of its own does this, which may be late.
    bench.wait_for_call(Call::Wake, 0);
    // After that the waiter looks once more and reports, and nothing is handed over to a waiter in its callback. How
    // long this must be watched depends on how late the machine is. Heartbeats may be due by then, so they do not
    // count.
    let asked = || bench.faults.calls().into_iter().filter(|call| *call != Call::Renew).collect::<Vec<_>>();
    let before = at_rest("it asks no more", || asked().len());
    wait_until("it has said so", || KEYS.iter().all(|key| in_users_code(&client, key) == 0));
    let first = held.remove(0);
    let token = first.fencing_token();
    drop(first);
    // It was the turn of the earlier waiter, not of `any`.
    let early = early.join().unwrap().unwrap();
    assert!(early.fencing_token() > token && !any.is_finished());
    // It is told its new place, and nothing is handed over to it during that callback.
    while tells.recv_timeout(LONG).unwrap() != ("a".to_owned(), 0) {}
    wait_until("it has said so", || KEYS.iter().all(|key| in_users_code(&client, key) == 0));
    drop(held.remove(0));
    let guard = any.join().unwrap().unwrap();
    assert_eq!(guard.key(), "b");
    assert_eq!(asked()[before..], [Call::Acquire, Call::Acquire], "one transfer each");
    assert!(!late.is_finished());
    // Once it has a lock, it has left the other lines.
    drop((early, held));
    assert!(["a", "c"].iter().all(|key| client.try_lock(key).unwrap().is_some()));
    drop(guard);
    assert_eq!(late.join().unwrap().unwrap().key(), "b");
}

#[test]
fn of_what_is_handed_over_at_once_it_keeps_one() {
    for round in 0..30 {
        let (bench, client) = Bench::patient();
        let held = KEYS.map(|key| client.lock(key).unwrap());
        let any = any(&client, [0; 3], &CancelToken::new());
        let late = KEYS.map(|key| one(&client, key));
        if round % 3 == 0 {
            bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(Duration::from_millis(round)));
        }
        let releasing = held.map(|guard| std::thread::spawn(move || drop(guard)));
        let guard = any.join().unwrap().unwrap();
        assert!(guard.is_held());
        releasing.into_iter().for_each(|thread| thread.join().unwrap());
        let kept = guard.key().to_owned();
        for (key, late) in KEYS.into_iter().zip(late) {
            if key == kept {
                assert!(!late.is_finished(), "two hold {key:?} in round {round}");
            } else {
                assert_eq!(late.join().unwrap().unwrap().key(), key);
                continue;
            }
            drop(late);
        }
        drop(guard);
        wait_until("all keys are free", || KEYS.iter().all(|key| bench.rival().get(key).unwrap().unwrap().is_free()));
    }
}

#[test]
fn a_wait_that_ends_leaves_all_lines() {
    let (bench, client) = Bench::patient();
    let held = KEYS.map(|key| bench.rival().lock(key).unwrap());
    let cancel = CancelToken::new();
    let any = any(&client, [0; 3], &cancel);
    let late = one(&client, "b");
    drop(held);
    cancel.cancel();
    assert_eq!(any.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    // It got its turn, so it looked.
    assert_eq!(late.join().unwrap().unwrap().key(), "b");
    assert!(KEYS.iter().all(|key| client.try_lock(key).unwrap().is_some()));
}

#[test]
fn asking_once_does_not_overtake_who_waits() {
    let (bench, client) = Bench::patient();
    let held = bench.rival().lock("a").unwrap();
    let waiting = one(&client, "a");
    drop(held);
    let asked = bench.faults.count(Call::Acquire);
    assert!(client.try_lock_any(["a"]).unwrap().is_none());
    assert_eq!(bench.faults.count(Call::Acquire), asked, "the store was asked");
    assert_eq!(client.try_lock_any(["a", "b"]).unwrap().unwrap().key(), "b");
    client.close().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

/// The store wakes waiters: there are no polls, and the first lock that is released is taken.
#[test]
fn a_told_wait_makes_one_look_at_each_key() {
    let bench = Bench::new();
    let client = bench.builder().poll(HOUR..=HOUR).connect().unwrap();
    // The leases are long, because a waiter also looks when a lease ends.
    let hold = |key| bench.rival().request(key).lease(HOUR).lock().unwrap();
    let mut held = KEYS.map(hold).into_iter().collect::<Vec<_>>();
    let any = any(&client, [0; 3], &CancelToken::new());
    wait_until("it asked for all keys", || bench.faults.count(Call::Read) >= 3);
    // One look at each key, or one more where two keys were reported one after the other.
    let reads = at_rest("it asks no more", || bench.faults.count(Call::Read));
    assert!(reads <= 6, "{reads} reads");
    drop(held.remove(2));
    assert_eq!(any.join().unwrap().unwrap().key(), "c");
    assert_eq!(bench.faults.count(Call::Read), reads + 1, "it looked at what was not told");
}

#[test]
fn keys_that_are_freed_at_once_are_taken_in_order_where_that_is_asked_for() {
    let mut rounds = 0;
    while rounds < 8 {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let (poll, requests) = (Duration::from_millis(50), Arc::new(Requests::default()));
        let client = bench.builder().poll(poll..=poll).observer(requests.clone()).connect().unwrap();
        for key in KEYS {
            bench.rival().request(key).acquire().unwrap();
        }
        let any = any(&client, [0; 3], &CancelToken::new());
        let looks = || bench.faults.count(Call::Read);
        wait_until("it asked for all keys", || looks() >= 3 && looks().is_multiple_of(3));
        // A look counts when it is answered, because the last one may have begun and may still see the key.
        let before = requests.0.lock().iter().filter(|(operation, _)| *operation == Operation::Read).count();
        bench.clock.advance(HOUR);
        // The clock moved between two rounds of looks, unless this thread was late.
        let is_at_once = before.is_multiple_of(3) && looks() == before;
        let guard = any.join().unwrap().unwrap();
        if is_at_once {
            assert_eq!(guard.key(), "a");
            rounds += 1;
        }
    }
}

#[test]
fn data_is_asked_for_without_standing_back() {
    let (bench, client) = Bench::patient();
    let held = bench.rival().lock("a").unwrap();
    let waiting = one(&client, "a");
    let asked = bench.faults.count(Call::Acquire);
    assert_eq!(client.request_any(["a"]).acquire().unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(bench.faults.count(Call::Acquire), asked + 1);
    client.close().unwrap();
    assert!(waiting.join().unwrap().is_err());
    drop(held);
}

#[test]
fn what_the_store_refuses_ends_the_call_whatever_the_other_keys_would_say() {
    let bench = Bench::new();
    bench.faults.next(Call::Acquire, Fault::Refuse);
    let error = bench.client().request_any(["a", "b"]).in_order().try_lock().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Permission, Some("a")));
}

#[test]
fn asking_once_gives_each_key_its_time_and_ends_with_one_that_takes_all_of_it() {
    // On a machine that stalls, a key may take all of its time.
    let is_granted = [1, 4, 16].map(Duration::from_secs).into_iter().any(|timeout| {
        let bench = Bench::new();
        let client = bench.builder().request_timeout(timeout).connect().unwrap();
        let _held = ["a", "b"].map(|key| bench.rival().lock(key).unwrap());
        for _ in 0..2 {
            bench.faults.next(Call::Acquire, Fault::Delay(timeout * 11 / 20));
        }
        let guard = client.request_any(KEYS).in_order().try_lock();
        guard.ok().flatten().map(|guard| guard.key().to_owned()).as_deref() == Some("c")
    });
    assert!(is_granted, "it did not come to the last key");
    let bench = Bench::new();
    // Time for only one request.
    let client = bench.builder().request_timeout(Duration::from_secs(1)).connect().unwrap();
    let asked = bench.faults.count(Call::Acquire);
    bench.faults.next(Call::Acquire, Fault::HangBefore);
    let error = client.request_any(KEYS).in_order().try_lock().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Ambiguous, Some("a")));
    assert_eq!(bench.faults.count(Call::Acquire), asked + 1, "it took longer than a request may");
}

#[test]
fn where_others_stand_before_it_it_takes_nothing() {
    for _ in 0..8 {
        let bench = Bench::new();
        bench.faults.never_wakes();
        let poll = Duration::from_millis(20);
        let client = bench.builder().poll(poll..=poll).connect().unwrap();
        let [a, b, c] = KEYS.map(|key| bench.rival().lock(key).unwrap());
        let early = one(&client, "a");
        let any = any(&client, [1, 0, 0], &CancelToken::new());
        drop(a);
        wait_until("one of both is through", || early.is_finished() || any.is_finished());
        assert!(!any.is_finished(), "it overtook who came first");
        let early = early.join().unwrap().unwrap();
        drop((b, c));
        assert_ne!(any.join().unwrap().unwrap().key(), early.key());
    }
}

#[test]
fn what_the_store_refuses_while_it_waits_ends_the_call() {
    let bench = Bench::new();
    bench.faults.never_wakes();
    let poll = Duration::from_millis(20);
    let client = bench.builder().poll(poll..=poll).connect().unwrap();
    let [a, _b, _c] = KEYS.map(|key| bench.rival().lock(key).unwrap());
    let any = any(&client, [0; 3], &CancelToken::new());
    bench.faults.next(Call::Acquire, Fault::Refuse);
    drop(a);
    let error = any.join().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Permission, Some("a")));
}

/// One key is reported again and again, while the lease of another one ends, which nothing reports.
#[test]
fn a_key_that_is_told_all_the_time_keeps_it_from_looking_at_no_other() {
    let bench = Bench::new();
    let client = bench.builder().poll(HOUR..=HOUR).connect().unwrap();
    let _readers = bench.rival().lock_shared("a").unwrap();
    let _c = bench.rival().lock("c").unwrap();
    // The leases of the other keys are renewed long before they end.
    let lease = Duration::from_secs(10);
    bench.rival().request("b").lease(lease).acquire().unwrap();
    let any = any(&client, [0; 3], &CancelToken::new());
    let late = one(&client, "b");
    let (stop, stopped) = mpsc::channel::<()>();
    let rival = bench.rival();
    let telling = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
            drop(rival.lock_shared("a").unwrap());
        }
    });
    bench.clock.advance(lease);
    wait_until("it is through", || any.is_finished());
    let guard = any.join().unwrap().unwrap();
    assert_eq!(guard.key(), "b");
    drop(guard);
    assert_eq!(late.join().unwrap().unwrap().key(), "b");
    drop(stop);
    telling.join().unwrap();
}

/// Waits on a thread of its own, and hangs in each callback. The first channel reports that it hangs, and the second
/// one lets it go on.
fn hangs(request: LockRequest) -> (Waiter, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let request = request.on_wait(move |_| {
        enter.send(()).unwrap_or_default();
        left.lock().recv().unwrap_or_default();
    });
    let thread = std::thread::spawn(move || request.lock());
    entered.recv_timeout(LONG).unwrap();
    (thread, entered, leave)
}

/// The first waiter hangs in its user's code, and the key became free before the library knew that.
#[test]
fn who_is_first_behind_one_that_hangs_looks_although_nobody_told_it() {
    let bench = Bench::new();
    let client = bench.builder().poll(HOUR..=HOUR).connect().unwrap();
    let [_a, b, _c] = KEYS.map(|key| bench.rival().request(key).lease(HOUR).lock().unwrap());
    let (hangs, _entered, leave) = hangs(client.request("b"));
    let (any, places, _) = any_placed(&client, &CancelToken::new());
    // On a busy machine the library knows it by then.
    assert!(matches!(places, [0, 0 | 1, 0]), "{places:?}");
    drop(b);
    wait_until("it is through", || any.is_finished());
    let guard = any.join().unwrap().unwrap();
    assert_eq!(guard.key(), "b");
    drop((guard, leave));
    assert_eq!(hangs.join().unwrap().unwrap().key(), "b");
}

/// The hanging waiter came back, took the report that came in its turn, and hangs again.
#[test]
fn who_is_first_again_behind_one_that_hangs_again_looks_once_more() {
    let (bench, requests) = (Bench::new(), Arc::new(Requests::default()));
    let client = bench.builder().poll(HOUR..=HOUR).observer(requests.clone()).connect().unwrap();
    let [_a, b, _c] = KEYS.map(|key| bench.rival().request(key).lease(HOUR).lock().unwrap());
    let (hangs, entered, leave) = hangs(client.request("b").on_wait_every(Duration::from_millis(1)));
    let reads = (Operation::Read, "b".to_owned());
    let looks = || requests.0.lock().iter().filter(|request| **request == reads).count();
    let before = looks();
    let (any, _, _) = any_placed(&client, &CancelToken::new());
    wait_until("it is first, and looks", || looks() > before);
    leave.send(()).unwrap();
    entered.recv_timeout(LONG).unwrap();
    drop(b);
    wait_until("it is through", || any.is_finished());
    let guard = any.join().unwrap().unwrap();
    assert_eq!(guard.key(), "b");
    drop((guard, leave));
    assert_eq!(hangs.join().unwrap().unwrap().key(), "b");
}

/// The turn of other processes is over before the waiter knows when to look next.
#[test]
fn what_is_reported_in_the_turn_of_others_is_looked_at_after_it() {
    alone("waiting::queue_any::what_is_reported_in_the_turn_of_others_is_looked_at_after_it", || {
        let bench = Bench::new();
        let client = bench.builder().poll(HOUR..=HOUR).connect().unwrap();
        let held = client.request("a").lease(HOUR).lock().unwrap();
        let _others = ["b", "c"].map(|key| bench.rival().request(key).lease(24 * HOUR).acquire().unwrap());
        let any = any(&client, [0; 3], &CancelToken::new());
        wait_until("it asked for all keys", || bench.faults.count(Call::Read) >= 3);
        // The guard is held for a whole lease, so it is really released and not handed over.
        for _ in 0..3 {
            bench.clock.advance(HOUR * 9 / 20);
            held.ensure_held_for(HOUR * 6 / 10).unwrap();
        }
        at_rest("it asks no more", || bench.faults.count(Call::Read));
        wait_until("it has said so", || KEYS.iter().all(|key| in_users_code(&client, key) == 0));
        let mut stop = Stop::at("any.sleeps");
        drop(held);
        let released = Instant::now();
        wait_until("it was told", || stop.is_reached() || any.is_finished());
        wait_until("their turn is over", || released.elapsed() > Duration::from_millis(100));
        stop.let_go();
        wait_until("it is through", || any.is_finished());
        assert_eq!(any.join().unwrap().unwrap().key(), "a");
    });
}

/// The waiters before it were woken because the key is free, and the store does not report that again.
#[test]
fn what_it_stood_back_from_is_looked_at_once_those_are_gone() {
    alone("waiting::queue_any::what_it_stood_back_from_is_looked_at_once_those_are_gone", || {
        let (bench, client) = Bench::patient();
        // The leases are long, because a waiter also looks when a lease ends.
        let [a, _b] = ["a", "b"].map(|key| bench.rival().request(key).lease(HOUR).lock().unwrap());
        let cancel = CancelToken::new();
        let early = one_until(&client, "a", &cancel);
        let mut stop = Stop::at("acquire.refused");
        let request = client.request_any(["a", "b"]).in_order();
        let any = std::thread::spawn(move || request.lock());
        wait_until("it is refused the other", || stop.is_reached() || any.is_finished());
        cancel.cancel();
        assert_eq!(early.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        drop(a);
        stop.let_go();
        wait_until("it is through", || any.is_finished());
        assert_eq!(any.join().unwrap().unwrap().key(), "a");
    });
}

/// The store reported a key that then looked free, and it does not report that again.
#[test]
fn what_could_not_be_asked_for_is_asked_for_again_soon() {
    let bench = Bench::new();
    let poll = Duration::from_millis(400);
    let client = bench.builder().lease(Duration::from_millis(300)).poll(poll..=poll).connect().unwrap();
    let [a, _b, _c] = KEYS.map(|key| bench.rival().lock(key).unwrap());
    let (told, tells) = mpsc::channel();
    let request = client.request_any(KEYS).on_wait(move |_| told.send(()).unwrap_or_default());
    let any = std::thread::spawn(move || request.lock());
    // One look at each key after the refused acquire, and one because the store reports from now on.
    wait_until("it asked for all keys", || bench.faults.count(Call::Read) >= 3);
    let asked = bench.faults.count(Call::Acquire);
    bench.faults.always(Call::Acquire, Fault::FailBefore);
    drop(a);
    bench.wait_for_call(Call::Acquire, asked);
    while tells.try_recv().is_ok() {}
    tells.recv_timeout(LONG).expect("it goes on to wait");
    bench.faults.heal();
    wait_until("it is through", || any.is_finished());
    assert_eq!(any.join().unwrap().unwrap().key(), "a");
}

/// The requests, in their order.
#[derive(Default)]
struct Requests(Mutex<Vec<(Operation, String)>>);

impl Observer for Requests {
    fn event(&self, event: &Event<'_>) {
        if let Event::Request { operation, key: Some(key), .. } = event {
            self.0.lock().push((*operation, (*key).to_owned()));
        }
    }
}

#[test]
fn trouble_with_one_key_keeps_it_from_looking_at_no_other() {
    let bench = Bench::new();
    bench.faults.never_wakes();
    let (poll, requests) = (Duration::from_millis(20), Arc::new(Requests::default()));
    let client = bench.builder().poll(poll..=poll).observer(requests.clone()).connect().unwrap();
    let [a, b, _c] = KEYS.map(|key| bench.rival().lock(key).unwrap());
    let any = any(&client, [0; 3], &CancelToken::new());
    let asks = (Operation::Acquire, "a".to_owned());
    let asked = || requests.0.lock().iter().filter(|request| **request == asks).count();
    let before = asked();
    // The first of these acquires is done, and the waiter does not know it.
    bench.faults.next(Call::Acquire, Fault::ApplyThenFail);
    bench.faults.always(Call::Acquire, Fault::FailBefore);
    drop(a);
    wait_until("it goes on asking", || asked() >= before + 5);
    let in_vain = requests.0.lock().windows(3).any(|three| three.iter().all(|request| *request == asks));
    assert!(!in_vain, "asked for a again and again: {:?}", requests.0.lock());
    // The acquire that was done is given up all the same.
    let _a = bench.rival().lock("a").unwrap();
    drop(b);
    bench.faults.heal();
    assert_eq!(any.join().unwrap().unwrap().key(), "b");
}

#[test]
fn asking_once_goes_on_after_a_grant_that_came_too_late_to_be_held() {
    let bench = Bench::new();
    // The lease is so long that on a busy machine the second grant is not late as well.
    let lease = Duration::from_secs(4);
    let client = bench.builder().lease(lease).request_timeout(LONG).connect().unwrap();
    bench.faults.next(Call::Acquire, Fault::ApplyThenDelay(lease));
    let guard = client.try_lock_any(["a"]).unwrap().expect("nobody holds it");
    assert!(guard.is_held());
    assert_eq!(bench.faults.count(Call::Acquire), 2);
}
