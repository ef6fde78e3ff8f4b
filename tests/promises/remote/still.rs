//! A server that stalls while a client connects to it, for example because its first client has to wake it: the client
//! waits.

use std::thread;
use std::time::Duration;

use crate::remote::Remote;
use crate::support::harness::millis;
use crate::support::proxy::Flow;

/// The request timeout, and for how long of it the server stalls. With the usual timeout that is longer than a driver
/// tries by itself.
const CASES: [(Duration, Duration); 2] = [(millis(10_000), millis(4_500)), (millis(5_000), millis(3_300))];

fn a_server_that_stands_still_is_connected_to(remote: &Remote) {
    for (limit, still) in CASES {
        let connects = || {
            remote.proxy.flow(Flow::Hold, Flow::Pass);
            let (early, answer) = thread::scope(|scope| {
                let connects = scope.spawn(|| remote.behind().request_timeout(limit).connect());
                thread::sleep(still);
                let early = connects.is_finished();
                remote.proxy.flow(Flow::Pass, Flow::Pass);
                (early, connects.join().expect("no panic"))
            });
            assert!(!early || answer.is_err(), "it asked the server nothing");
            answer.map(drop).map_err(|error| println!("{limit:?}: {error}")).is_ok()
        };
        // On a busy machine the remaining time may be too short. Not with more time, which would hide a pause too long.
        assert!((0..10).any(|_| connects()), "no connection after {still:?} of {limit:?}");
    }
}

crate::remote::on_each_remote! { together: a_server_that_stands_still_is_connected_to }
