//! How long all of several locks take together.

use std::time::Duration;

use leasehold::internals::store::fault::{Call, Fault};

use crate::api::LONG;
use crate::support::harness::Store;

/// A lease that no test waits for.
const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(150);

/// One after the other they would take longer than all may take together.
#[test]
fn many_are_released_at_the_same_time() {
    let store = Store::memory();
    let bound = 40 * SHORT;
    let client = store.builder().lease(HOUR).request_timeout(LONG).drop_timeout(bound).connect().unwrap();
    let guard = client.lock_all((0..60).map(|n| format!("key-{n}"))).unwrap();
    store.plan.always(Call::Release, Fault::ApplyThenDelay(SHORT));
    guard.release().unwrap();
}
