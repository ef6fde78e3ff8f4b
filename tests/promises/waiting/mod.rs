//! Waiting: the line within a process, and waiters that the store wakes after a release.

mod left;
mod queue;
mod queue_any;
mod wake;
