//! Obtaining a lock, waiting for it, holding it by heartbeats, and ending it.

pub(crate) mod acquire;
pub(crate) mod acquire_any;
mod attempt;
pub(crate) mod failures;
pub(crate) mod family;
mod first_lease;
pub(crate) mod handover;
pub(crate) mod heartbeat;
pub(crate) mod hold;
mod hold_at_least;
mod hold_look;
mod loss;
pub(crate) mod loss_watch;
#[cfg(test)]
mod network_orders;
pub(crate) mod options;
#[cfg(test)]
pub(crate) mod orders;
pub(crate) mod poll;
pub(crate) mod queue;
#[cfg(test)]
mod random_orders;
pub(crate) mod release;
pub(crate) mod release_all;
mod report;
pub(crate) mod spec;
pub(crate) mod undo;
pub(crate) mod wakeups;
pub(crate) mod watcher;
