//! A connection over which nothing comes any more, and whose end nobody says, as when a router forgets it.

use crate::remote::Remote;
use crate::support::harness::millis;
use crate::support::wait::wait_until;

/// The kernel would send again for a quarter of an hour.
fn a_silent_connection_is_left_for_a_new_one(remote: &Remote) {
    let builder = remote.behind().lease(millis(24_000)).heartbeat(millis(4000)).request_timeout(millis(3000));
    let client = builder.connect().expect("a client");
    let guard = client.lock("kept").expect("a lock");
    let renewed = guard.info().renewed();
    remote.proxy.silence_open();
    wait_until("a request is answered", || client.get("kept").is_ok());
    wait_until("a heartbeat is answered", || guard.info().renewed() != renewed);
    assert!(guard.is_held());
    guard.release().expect("a release");
}

fn on(remote: Option<Remote>) {
    if let Some(remote) = remote {
        a_silent_connection_is_left_for_a_new_one(&remote);
    }
}

#[cfg(feature = "dynamodb")]
#[test]
fn a_silent_connection_to_dynamodb_is_left() {
    on(crate::remote::dynamodb());
}

#[cfg(feature = "mongodb")]
#[test]
fn a_silent_connection_to_mongodb_is_left() {
    on(crate::remote::mongodb());
}

#[cfg(feature = "postgres")]
#[test]
fn a_silent_connection_to_postgres_is_left() {
    on(crate::remote::postgres());
}

#[cfg(feature = "spanner")]
#[test]
fn a_silent_connection_to_spanner_is_left() {
    on(crate::remote::spanner());
}
