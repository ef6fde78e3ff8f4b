//! Threads and time: the clock, deadlines, the heartbeat of a guard, the watcher, and waiting.

pub(crate) mod any;
pub mod clock;
pub mod deadline;
pub(crate) mod family;
mod heartbeat;
pub(crate) mod hold;
mod release;
pub(crate) mod thread;
pub(crate) mod waiters;
mod watcher;
