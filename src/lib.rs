//! leasehold
#![allow(missing_docs)]
#![forbid(unsafe_code)]
// The trait fits stores that are still to come, and the fault switch serves the tests.
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod backend;
mod builder;
mod cancel;
mod client;
mod connect;
mod error;
mod guard;
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod lease;
mod lock;
mod loss;
mod observer;
mod options;
mod request;
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod rt;
pub mod testing;
mod waiting;

pub use builder::ClientBuilder;
pub use cancel::CancelToken;
pub use client::LockClient;
pub use error::{Error, ErrorKind, Result};
pub use guard::{LockGuard, ReleaseError, WithLockError};
pub use lock::{KeyStatus, Lock, LockStatus, Mode, Purged};
pub use loss::{Loss, LossReason, LossWatch};
pub use observer::{Event, Observer, Operation};
pub use parking_lot::Mutex;
pub use request::{LockRequest, SameOwner};
pub use waiting::Waiting;

#[cfg(feature = "_internals")]
#[doc(hidden)]
pub mod internals {
    //! For this package's own tests; no promise of any kind.
    pub mod backend {
        pub use crate::backend::*;
    }
    pub mod lease {
        pub use crate::lease::*;
    }
    pub mod rt {
        pub use crate::rt::*;
    }

    /// A client of a store that is open already.
    pub fn builder_over(
        store: std::sync::Arc<dyn crate::backend::Backend>,
        clock: std::sync::Arc<crate::rt::clock::Clock>,
    ) -> crate::ClientBuilder {
        crate::ClientBuilder::over(store, clock)
    }
}
