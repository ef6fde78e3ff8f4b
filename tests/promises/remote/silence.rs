//! A connection on which nothing arrives any more and which is never closed, as when a router forgets it.

use std::time::Instant;

use crate::remote::Remote;
use crate::support::harness::{PATIENCE, millis, sent};
use crate::support::lateness::{WORK, measure, slack};
use crate::support::proxy::Flow;
use crate::support::stores::unique;
use crate::support::wait::wait_until;

/// The kernel would repeat what was sent for a quarter of an hour.
fn a_silent_connection_is_left_for_a_new_one(remote: &Remote) {
    let builder = || remote.behind().lease(millis(60_000)).heartbeat(millis(4000)).request_timeout(millis(3000));
    let client = sent(|| builder().drop_timeout(PATIENCE).connect());
    let guard = client.lock("kept").expect("a lock");
    let renewed = guard.info().renewed();
    remote.proxy.silence_open();
    wait_until("a request is answered", || client.get("kept").is_ok());
    wait_until("a heartbeat is answered", || guard.info().renewed() != renewed);
    assert!(guard.is_held());
    guard.release().expect("a release");
}

/// Each call may be the first one for hours, and all its tries share the time of one request.
fn calls_are_sent_again_over_a_new_connection(remote: &Remote) {
    let client = sent(|| remote.behind().lease(PATIENCE).connect());
    // A machine or server that stalls for half of that time proves nothing. The next try uses another key, because the
    // last one may have left something on its key.
    let works = |what: &str, call: &dyn Fn() -> bool| {
        assert!((0..3).any(|_| call()), "{what}: no second try was of use");
    };
    let silent = || remote.proxy.silence_open();
    let held = || sent(|| client.request(&unique()).acquire());
    works("a release", &|| {
        let guard = client.lock(&unique()).expect("a lock");
        silent();
        guard.release().is_ok()
    });
    works("an acquire", &|| {
        silent();
        client.request(&unique()).acquire().is_ok()
    });
    works("a renewal", &|| {
        let lock = held();
        silent();
        client.heartbeat(&lock, PATIENCE).is_ok()
    });
    works("a release by force", &|| {
        let lock = held();
        silent();
        client.force_release(lock.key()).is_ok_and(|freed| freed.len() == 1)
    });
    works("a look", &|| {
        let lock = held();
        sent(|| client.release(&lock));
        silent();
        client.get(lock.key()).is_ok_and(|status| status.is_some_and(|status| status.is_free()))
    });
    // The lock may be in another cluster, whose hosts have other names.
    let origin = sent(|| remote.direct().connect());
    let is_refused = || {
        let lock = sent(|| origin.request(&unique()).acquire());
        sent(|| origin.release(&lock));
        silent();
        (client.release(&lock).is_err(), lock)
    };
    let (refused, lock) = is_refused();
    let schemes = ["dynamodb", "mongodb", "postgres"];
    match schemes.iter().any(|scheme| lock.store().is_some_and(|at| at.starts_with(scheme))) {
        true => assert!(refused, "it has other hosts"),
        false => works("a release of what is free", &|| !is_refused().0),
    }
}

/// Even a call with less time than most makes its second try over the new connection.
fn a_short_call_is_sent_again_over_a_new_connection(remote: &Remote) {
    let works = || {
        // A new client each time: the more often a new connection was of no use, the later Spanner's makes another.
        let client = sent(|| remote.behind().lease(PATIENCE).request_timeout(millis(4000)).connect());
        remote.proxy.silence_open();
        // Another key, too: a try without an answer may have left something.
        client.try_lock(&unique()).is_ok_and(|guard| guard.is_some())
    };
    // A machine that stalls proves nothing. Not with more time: then the first try would not be the shortest that there
    // is, and would leave time for a connection that is replaced too late.
    assert!((0..10).any(|_| works()), "no second try was of use");
}

/// As many connections are silent as were once used at the same time. Each would cost a part of the lease.
fn many_silent_connections_cost_no_lock(remote: &Remote) {
    // A machine that stalls proves nothing. Not with a longer lease: each connection costs a part of what is left, and
    // so many would leave enough of it.
    assert!((0..3).any(|_| outlasts_many_silent_connections(remote)), "it was lost each time");
}

fn outlasts_many_silent_connections(remote: &Remote) -> bool {
    measure();
    let began = Instant::now();
    let builder = || remote.behind().lease(millis(12_000)).heartbeat(millis(1000)).request_timeout(PATIENCE);
    let client = sent(|| builder().drop_timeout(PATIENCE).connect());
    let guard = client.lock(&unique()).expect("a lock");
    remote.proxy.flow(Flow::Pass, Flow::Delay(millis(200)));
    std::thread::scope(|scope| {
        for nth in 0..12 {
            let client = &client;
            scope.spawn(move || client.lock(&format!("{nth}")).expect("a lock").release().expect("a release"));
        }
    });
    remote.proxy.flow(Flow::Pass, Flow::Pass);
    let renewed_or_lost = || {
        let renewed = guard.info().renewed();
        wait_until("a heartbeat is answered, or it is lost", || guard.info().renewed() != renewed || !guard.is_held());
    };
    renewed_or_lost();
    remote.proxy.silence_open();
    renewed_or_lost();
    if !guard.is_held() {
        assert!(slack(began) > WORK + millis(1000), "{:?}", guard.loss().get());
        return false;
    }
    guard.release().expect("a release");
    true
}

crate::remote::on_each_remote! { together: a_silent_connection_is_left_for_a_new_one }

mod again {
    use super::calls_are_sent_again_over_a_new_connection;

    crate::remote::on_each_remote! { together: calls_are_sent_again_over_a_new_connection }
}

mod short {
    use super::a_short_call_is_sent_again_over_a_new_connection;

    crate::remote::on_each_remote! { together: a_short_call_is_sent_again_over_a_new_connection }
}

/// The other stores' clients have one connection, or find out by themselves (MongoDB's, when it checks the server
/// again).
mod many {
    use super::many_silent_connections_cost_no_lock;

    crate::remote::on_each_remote! { @ "dynamodb" dynamodb together many_silent_connections_cost_no_lock }
    crate::remote::on_each_remote! { @ "postgres" postgres together many_silent_connections_cost_no_lock }
}
