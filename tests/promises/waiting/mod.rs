//! Who waits: the line within a process, and waiters that the store tells of a release.

mod left;
mod queue;
mod queue_any;
mod wake;
