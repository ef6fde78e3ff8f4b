//! What a lock is: its record and the pure rules that change it.
//!
//! Nothing here does I/O, reads a clock, starts a thread or draws a random
//! number: times and randomness are arguments. Every store either applies
//! these rules inside a serializable transaction or expresses the same by one
//! native conditional write; a differential test compares the two.

pub mod backoff;
pub mod claim;
pub mod group;
pub mod record;
pub mod transition;

pub use record::{End, GrantId, Holder, Kind, Labels, Lease, LockRecord, Mode, StoreTime};
pub use transition::{AcquireAnswer, Ask, Refusal, ReleaseAnswer, RenewAnswer, Renewal, Step, Times, Wanted};

/// An acquire never asks for a longer lease, so that an unanswered one holds the key for no more than a minute.
pub const MAX_ACQUIRE_LEASE: std::time::Duration = std::time::Duration::from_secs(60);
