//! A connection over which nothing comes any more, and whose end nobody says, as when a router forgets it.

use crate::remote::Remote;
use crate::support::harness::{PATIENCE, millis, sent};
use crate::support::proxy::Flow;
use crate::support::wait::wait_until;

/// The kernel would send again for a quarter of an hour.
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

/// Each may be the first request for hours, and has the time of one request in all.
fn calls_are_sent_again_over_a_new_connection(remote: &Remote) {
    let client = sent(|| remote.behind().lease(PATIENCE).connect());
    let guard = client.lock("kept").expect("a lock");
    remote.proxy.silence_open();
    guard.release().expect("a release");
    remote.proxy.silence_open();
    let lock = client.request("kept").acquire().expect("a lock");
    remote.proxy.silence_open();
    client.heartbeat(&lock, PATIENCE).expect("a renewal");
    remote.proxy.silence_open();
    assert_eq!(client.force_release("kept").expect("a release").len(), 1);
    remote.proxy.silence_open();
    assert!(client.get("kept").expect("a look").is_some_and(|status| status.is_free()));
    // It may stand in another cluster, whose hosts have other names.
    let origin = sent(|| remote.direct().connect());
    let lock = origin.request("kept").acquire().expect("a lock");
    origin.release(&lock).expect("a release");
    let has_hosts =
        ["dynamodb", "mongodb", "postgres"].iter().any(|scheme| lock.store().is_some_and(|at| at.starts_with(scheme)));
    remote.proxy.silence_open();
    assert_eq!(client.release(&lock).is_err(), has_hosts);
}

/// Of a call that has less time than most, the second try goes over the new one.
fn a_short_call_is_sent_again_over_a_new_connection(remote: &Remote) {
    let client = sent(|| remote.behind().lease(PATIENCE).request_timeout(millis(4000)).connect());
    let works = || {
        remote.proxy.silence_open();
        client.try_lock("kept").is_ok_and(|guard| guard.is_some())
    };
    // A machine that stands still proves nothing.
    assert!((0..3).any(|_| works()), "no second try was of use");
}

/// As many as once were of use at the same time, each of which would cost a part of the lease.
fn many_silent_connections_cost_no_lock(remote: &Remote) {
    let builder = || remote.behind().lease(millis(12_000)).heartbeat(millis(1000)).request_timeout(PATIENCE);
    let client = sent(|| builder().drop_timeout(PATIENCE).connect());
    let guard = client.lock("kept").expect("a lock");
    remote.proxy.flow(Flow::Pass, Flow::Delay(millis(200)));
    std::thread::scope(|scope| {
        for nth in 0..12 {
            let client = &client;
            scope.spawn(move || client.lock(&format!("{nth}")).expect("a lock").release().expect("a release"));
        }
    });
    remote.proxy.flow(Flow::Pass, Flow::Pass);
    let renews = || {
        let renewed = guard.info().renewed();
        wait_until("a heartbeat is answered", || guard.info().renewed() != renewed);
    };
    renews();
    let renewed = guard.info().renewed();
    remote.proxy.silence_open();
    wait_until("a heartbeat is answered, or it is lost", || guard.info().renewed() != renewed || !guard.is_held());
    assert!(guard.is_held(), "{:?}", guard.loss().get());
    guard.release().expect("a release");
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

/// The clients of the others have one connection, or find out by themselves (MongoDB's, once it looks at the server again).
mod many {
    use super::many_silent_connections_cost_no_lock;

    crate::remote::on_each_remote! { @ "dynamodb" dynamodb together many_silent_connections_cost_no_lock }
    crate::remote::on_each_remote! { @ "postgres" postgres together many_silent_connections_cost_no_lock }
}
