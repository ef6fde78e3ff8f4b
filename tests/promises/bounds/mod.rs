//! Every call ends by its deadline and every drop within its bound, whatever the store does; no thread is left.

mod async_context;
mod calls;
mod faults;
mod forking_observers;
mod forks;
mod lacks;
mod threads;

use std::time::Duration;

use crate::support::harness::millis;
use crate::support::stores::for_each_store;

/// The time of one request: twice that is more than a request takes, with what a busy machine may add.
const REQUEST: Duration = millis(2000);
/// The bound of one drop.
const DROP: Duration = millis(2000);
/// Long enough that no heartbeat comes by itself, and that no bound is met because a lease ends.
const LONG: Duration = Duration::from_secs(600);
/// Far longer than every bound.
const STALL: Duration = Duration::from_secs(30);

macro_rules! on_one_store {
    (memory) => {
        on_one_store! { @local memory }
    };
    (sqlite) => {
        on_one_store! { @local sqlite }
    };
    // The last two take long and make the same requests as the others: for the servers they are in `remote/holes.rs`.
    (@local $store:ident) => {
        on_one_store! {
            $store: no_look_and_no_purge_outlives_its_deadline, no_call_on_several_locks_outlives_its_deadline
        }
    };
    ($store:ident) => {
        on_one_store! { $store: }
    };
    ($store:ident: $($further:ident),*) => {
        mod $store {
            crate::support::stores::tests! {
                bounds on $store:
            faults:
                no_acquire_outlives_its_deadline,
                no_first_renewal_outlives_its_deadline,
                no_call_with_a_lock_as_data_outlives_its_deadline,
                no_release_and_no_drop_outlives_its_bound,
                no_hand_over_outlives_its_bound,
                the_last_drop_has_one_bound
                $(, $further)*;
            }
        }
    };
}
for_each_store!(on_one_store);
