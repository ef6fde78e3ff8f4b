//! What only the MongoDB store has to keep, on a real mongod: documents, requests, errors, the collection.
#[cfg(target_os = "linux")]
mod answers;
mod collection;
mod counts;
#[cfg(target_os = "linux")]
mod deaf;
mod documents;
mod errors;
mod events;
#[cfg(target_os = "linux")]
mod failover;
#[cfg(target_os = "linux")]
mod failpoints;
mod faults;
mod mixed;
mod mixed_last;
mod rights;
#[cfg(target_os = "linux")]
mod tls;
mod waking;

use leasehold::internals::lease::Mode;
use leasehold::internals::store::mongodb::Mongodb;
use leasehold::internals::store::{Attempt, Backend, Which};

use crate::support::direct::{attempt, exclusive, get, holders, instead_of, shared};
use crate::support::stores::soon;

/// What a test makes on the server, where there is one.
macro_rules! needs_server {
    ($($made:expr)?) => {{
        if $crate::support::servers::mongod().is_none() {
            return;
        }
        $($made)?
    }};
}
pub(crate) use needs_server;
