//! One bound for a drop and all that goes with it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::deadline::far_from;

thread_local! {
    /// Until when the drop may take that is under way on this thread.
    static BY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Until when a drop may take that begins now: no longer than the one that it is a part of.
pub fn drop_by(bound: Duration) -> Instant {
    let by = far_from(Instant::now(), bound);
    BY.get().map_or(by, |outer| outer.min(by))
}

/// What is dropped on this thread from its beginning until this value goes is part of one drop. As a field it comes
/// last, so that the other ones are, too.
#[derive(Default)]
pub struct DropBound {
    /// What held before it began.
    before: Option<Option<Instant>>,
}

impl DropBound {
    /// Begins, on the thread that will drop it.
    pub fn begin(&mut self, by: Instant) {
        self.before.get_or_insert(BY.get());
        BY.set(Some(by));
    }
}

impl Drop for DropBound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            BY.set(before);
        }
    }
}
