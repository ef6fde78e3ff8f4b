//! Threads and time: the clock, deadlines, the heartbeat of a guard, the watcher, and waiting.

pub mod clock;
pub mod deadline;
