//! Threads and time: the clock, deadlines, the heartbeat of a guard, the watcher, and waiting.

pub(crate) mod any;
pub mod clock;
pub mod deadline;
#[cfg(feature = "_async")]
pub mod driver;
pub(crate) mod family;
mod handover;
mod heartbeat;
pub(crate) mod hold;
mod hub;
mod looking;
pub(crate) mod loss_watch;
pub(crate) mod observing;
#[cfg(test)]
mod orders;
mod queue;
mod release;
pub(crate) mod thread;
mod undo;
pub(crate) mod waiters;
pub(crate) mod want;
mod watcher;
