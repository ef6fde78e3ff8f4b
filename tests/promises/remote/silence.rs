//! A connection over which nothing comes any more, and whose end nobody says, as when a router forgets it.

use crate::remote::Remote;
use crate::support::harness::{PATIENCE, millis, sent};
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

crate::remote::on_each_remote! { together: a_silent_connection_is_left_for_a_new_one }
