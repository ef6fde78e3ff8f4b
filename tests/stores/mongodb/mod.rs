//! What only the MongoDB store must keep, on a real mongod: documents, requests, errors, the collection.
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
#[cfg(target_os = "linux")]
mod late;
mod mixed;
mod mixed_last;
mod rights;
#[cfg(target_os = "linux")]
mod tls;
mod turns;
#[cfg(feature = "serde")]
mod upgrade;
mod waking;

use leasehold::LockClient;
use leasehold::internals::lease::Mode;
use leasehold::internals::store::mongodb::{Mongodb, MongodbOptions};
use leasehold::internals::store::{Attempt, Backend, Which};

use crate::network::sent;
use crate::support::direct::{attempt, exclusive, get, holders, instead_of, shared};
use crate::support::harness::{connected, patient};
use crate::support::stores::soon;

/// A store. The driver has two seconds for a connection, however long the call has, so a busy machine may need more
/// tries.
fn open(options: MongodbOptions) -> Mongodb {
    sent(|| Mongodb::open(options.clone(), &soon()))
}

/// A client for this URL, with enough time for a server on a busy machine to answer.
fn connect(url: &str) -> LockClient {
    connected(|| patient(LockClient::builder(url)))
}

/// What a test makes on the server; without a server the test ends here.
macro_rules! needs_server {
    ($($made:expr)?) => {{
        if $crate::support::servers::mongod().is_none() {
            return;
        }
        $($made)?
    }};
}
pub(crate) use needs_server;
