//! What is dropped, and when. The library drops what it is given, and contains a panic in that drop.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{Event, LockClient, Observer};

use crate::api::LONG;
use crate::support::alone::alone;
use crate::support::harness::Store;
use crate::support::lateness;
use crate::support::wait::wait_until;

/// Panics when it is dropped, and counts its drops.
struct Bomb(Arc<AtomicUsize>);

impl Bomb {
    fn is_here(&self) {}
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // `resume_unwind` does not call the panic hook, which would print the panic.
        resume_unwind(Box::new("on purpose"));
    }
}

impl Observer for Bomb {
    fn event(&self, _: &Event<'_>) {}
}

fn client() -> LockClient {
    LockClient::builder("memory:").request_timeout(LONG).drop_timeout(LONG).connect().unwrap()
}

/// Runs `call`, which gets a maker of bombs: exactly `bombs` of them must be dropped, and `call` must not panic.
#[track_caller]
fn contained(bombs: usize, call: impl FnOnce(&dyn Fn() -> Bomb)) {
    let dropped = Arc::<AtomicUsize>::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| call(&|| Bomb(dropped.clone()))));
    assert!(outcome.is_ok(), "a panic came out of it");
    wait_until("each of them is dropped", || dropped.load(Ordering::SeqCst) == bombs);
}

#[test]
fn a_panic_in_the_drop_of_what_a_request_was_given_comes_out_of_no_call() {
    let client = client();
    let is_free = |key: &str| client.get(key).unwrap().is_none_or(|status| status.is_free());
    contained(1, |bomb| {
        let bomb = bomb();
        assert!(client.request("k").on_wait(move |_| bomb.is_here()).lock().unwrap().is_held());
    });
    assert!(is_free("k"), "what was granted stays");
    contained(1, |bomb| {
        let bomb = bomb();
        client.request("k").lock_with_progress(move |_| bomb.is_here()).unwrap().release().unwrap();
    });
    contained(1, |bomb| {
        let bomb = bomb();
        client.request_any(["k", "l"]).on_wait(move |_| bomb.is_here()).lock().unwrap().release().unwrap();
    });
    contained(1, |bomb| {
        let bomb = bomb();
        let request = client.request_all(["k", "l"]).each(move |request| {
            bomb.is_here();
            request
        });
        request.lock().unwrap().release().unwrap();
    });
    assert!(is_free("k") && is_free("l"));
    // A request that is refused, and one with a key of invalid length.
    let _held = client.lock("held").unwrap();
    for key in ["held", ""] {
        contained(3, |bomb| {
            let [waits, loses, warns] = [(); 3].map(|()| bomb());
            let request = client.request(key).on_wait(move |_| waits.is_here()).on_loss(move |_| loses.is_here());
            let request = request.warn_before(Duration::from_secs(1)).on_warning(move |_| warns.is_here());
            assert!(!matches!(request.try_lock_for(Duration::from_millis(1)), Ok(Some(_))));
        });
    }
    contained(1, |bomb| {
        let bomb = bomb();
        drop(client.request("k").on_loss(move |_| bomb.is_here()));
    });
}

#[test]
fn a_panic_in_the_drop_of_an_observer_comes_out_of_no_drop() {
    contained(1, |bomb| {
        let client = LockClient::builder("memory:").observer(Arc::new(bomb())).connect().unwrap();
        let guard = client.lock("k").unwrap();
        drop(client);
        drop(guard);
    });
    contained(1, |bomb| drop(LockClient::builder("memory:").observer(Arc::new(bomb()))));
}

/// Two panics at once in one thread would abort the process.
#[test]
fn a_panic_in_the_drop_of_what_an_election_was_given_ends_no_process() {
    alone("api::drops::a_panic_in_the_drop_of_what_an_election_was_given_ends_no_process", || {
        let client = client();
        contained(5, |bomb| {
            let [won, lost, seen, healthy, works] = [(); 5].map(|()| bomb());
            let node = client.election("job").on_won(move |_| won.is_here()).on_lost(move |_, _| lost.is_here());
            let node = node.on_leader(move |_| seen.is_here()).health_check(move || {
                healthy.is_here();
                true
            });
            let election = node.build().unwrap();
            let leads = move |leadership: &leasehold::Leadership| {
                works.is_here();
                leadership.loss().wait();
            };
            election.lead(leads).unwrap();
            wait_until("it leads", || election.is_leader());
            election.stop().unwrap();
        });
        contained(2, |bomb| {
            let (won, lost) = (bomb(), bomb());
            drop(client.election("job").on_won(move |_| won.is_here()).on_lost(move |_, _| lost.is_here()));
        });
    });
}

/// The close has tried to release them.
#[test]
fn guards_that_are_dropped_after_a_close_share_the_time_of_one_drop() {
    lateness::measure();
    let (store, bound) = (Store::memory(), Duration::from_secs(3));
    let client = store.builder().drop_timeout(bound).connect().unwrap();
    let guards: Vec<_> = (0..10).map(|n| client.lock(&n.to_string()).unwrap()).collect();
    store.plan.always(Call::Release, Fault::HangBefore);
    client.close().unwrap_err();
    let began = Instant::now();
    drop(guards);
    let took = began.elapsed();
    // Less than two of them would take; beside busy threads each drop waits for the processor for a while.
    assert!(took <= 2 * bound + lateness::slack(began), "{took:?}");
}
