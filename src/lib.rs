//! leasehold
#![allow(missing_docs)]
mod backend;
mod cancel;
mod error;
mod lease;
mod lock;
mod rt;

pub use cancel::CancelToken;
pub use error::{Error, ErrorKind, Result};
pub use lock::{KeyStatus, Lock, LockStatus, Mode, Purged};

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
}
