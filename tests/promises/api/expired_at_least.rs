//! How long a minimum hold remains in the store after the lease is over for its holder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::LossReason;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};

use crate::api::{LONG, on_every_store};
use crate::support::bench::builder_over;
use crate::support::wait::wait_until;

const HOUR: Duration = Duration::from_secs(3600);

/// This host's clock ran faster than the server's, by less than the least time and a tenth: so the store must be asked.
#[test]
fn what_expired_when_its_least_time_seems_to_be_over_is_kept_where_it_is_not() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let [guard, other] = ["k", "j"].map(|key| client.request(key).hold_at_least(HOUR).lock().unwrap());
        faults.always(Call::Renew, Fault::FailBefore);
        store.clock.advance(HOUR + HOUR / 20);
        for guard in [&guard, &other] {
            guard.loss().wait_timeout(LONG).expect("it is lost");
        }
        faults.heal();
        drop(guard);
        // DynamoDB's time, between two answers, is counted by this host's clock.
        let is_over = ["this host's", "DynamoDB's"].iter().any(|clock| store.store.info().clock.starts_with(clock));
        assert_eq!(store.record("k").exclusive.is_none(), is_over);
        // A failed look is not repeated: the lease is as good as over.
        faults.always(Call::Read, Fault::FailBefore);
        let asked = faults.count(Call::Read);
        drop(other);
        assert_eq!(faults.count(Call::Read), asked + 1);
    });
}

/// With a margin that takes up most of the lease, or in a group that other clients renewed.
#[test]
fn what_expired_early_is_free_after_its_least_time_and_not_only_after_its_lease() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let second = Duration::from_secs(1);
        let builder = builder_over(faulty, store.clock.clone()).lease(200 * second).margin(190 * second);
        let client = builder.heartbeat(8 * second).connect().unwrap();
        let (rival, asked) = (store.rival(), Instant::now());
        let guard = client.request("k").hold_at_least(18 * second).lock().unwrap();
        faults.always(Call::Renew, Fault::FailBefore);
        store.advance(11 * second);
        let loss = guard.loss().wait_timeout(LONG).expect("it is lost");
        assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss:?}");
        drop(guard);
        let is_kept = rival.try_lock("k").unwrap().is_none();
        assert!(is_kept || asked.elapsed() + 11 * second >= 18 * second, "it must stand");
        store.advance(8 * second);
        // The background waits in real time.
        wait_until("it is given up", || rival.try_lock("k").unwrap().is_some());
    });
}
