//! Threads and time: the clock, deadlines, the heartbeat of a guard, the watcher, and waiting.

pub mod clock;
pub mod deadline;
pub(crate) mod family;
mod handover;
mod heartbeat;
pub(crate) mod hold;
mod queue;
mod release;
pub(crate) mod thread;
pub(crate) mod waiters;
mod watcher;
