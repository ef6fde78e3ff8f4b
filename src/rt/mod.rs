//! Threads and time: the clock, deadlines, the heartbeat of a guard, the watcher, and waiting.

pub mod clock;
pub mod deadline;
pub mod family;
pub mod heartbeat;
pub mod hold;
mod release;
pub mod thread;
pub mod waiters;
pub mod watcher;
