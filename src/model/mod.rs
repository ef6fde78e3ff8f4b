//! Plain data that users see: errors, locks, losses, events. No clock that decides, no thread, no store.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod key;
pub(crate) mod lease_status;
pub(crate) mod lock;
pub(crate) mod loss;
pub(crate) mod waiting;
