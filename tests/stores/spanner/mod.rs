//! What only the Cloud Spanner store must keep, on the real emulator: rows, the table, errors.
mod commits;
mod counts;
mod errors;
mod faults;
mod mixed;
mod mixed_late;
mod mixed_rows;
mod rows;
mod table;
#[cfg(feature = "serde")]
mod upgrade;

use std::time::Duration;

use leasehold::internals::lease::{Holder, Lease, Mode};
use leasehold::internals::store::spanner::Spanner;
use leasehold::internals::store::{Attempt, Backend, Consistency, GrantForm, Renewal, Which};

use crate::support::calls::{self, acquired, refused};
use crate::support::direct::get;
use crate::support::stores::soon;

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::support::servers::spanner_emulator().is_none() {
            return;
        }
    };
}
pub(crate) use needs_server;

const LEASE: Duration = Duration::from_secs(60);
/// The time of a request, long enough for the emulator on a busy machine to answer.
const REQUEST: Duration = Duration::from_secs(20);
const RENEWAL: Renewal = Renewal { lease: Lease::For(LEASE), may_end_endless: false };

fn attempt(key: &str, mode: Mode) -> Attempt {
    calls::attempt(GrantForm::Uuid, key, mode)
}

fn exclusive(key: &str) -> Attempt {
    attempt(key, Mode::Exclusive)
}

fn shared(key: &str) -> Attempt {
    attempt(key, Mode::Shared)
}

#[track_caller]
fn granted(store: &Spanner, attempt: &mut Attempt) -> Holder {
    acquired(store, attempt).0
}
