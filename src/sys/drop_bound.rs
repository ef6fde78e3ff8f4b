//! One time bound for a drop and everything that is dropped with it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::deadline::far_from;

thread_local! {
    /// The drop that is under way on this thread. It needs no destructor, so that it is there also for a drop at the
    /// very end of the thread.
    static BY: Cell<Option<DropBy>> = const { Cell::new(None) };
}

/// Whose drop it is: what belongs to another client has a bound of its own, since only that client releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(usize);

impl Owner {
    /// By its address, which nothing else has while it lives.
    pub fn of<T>(owner: &T) -> Self {
        Owner(std::ptr::from_ref(owner).addr())
    }
}

/// Until when a drop may take.
#[derive(Clone, Copy, Debug)]
pub struct DropBy {
    owner: Owner,
    at: Instant,
}

impl DropBy {
    /// The bound of a drop that begins now: not later than that of the same owner's drop that it is a part of.
    pub fn new(owner: Owner, bound: Duration) -> Self {
        let at = far_from(Instant::now(), bound);
        let outer = BY.get().filter(|outer| outer.owner == owner);
        DropBy { owner, at: outer.map_or(at, |outer| outer.at.min(at)) }
    }

    pub fn instant(self) -> Instant {
        self.at
    }

    pub fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

/// Until when something that a client owns may take to end: at most `bound` from now, and not longer than the drop that
/// is under way on this thread.
// Only SQLite has use for it.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
pub fn drop_by(bound: Duration) -> Instant {
    let at = far_from(Instant::now(), bound);
    BY.get().map_or(at, |outer| outer.at.min(at))
}

/// Once it has begun, drops that follow each other share the time of one.
#[derive(Default)]
pub struct Together {
    has_begun: AtomicBool,
    shared: Mutex<Option<Shared>>,
}

struct Shared {
    by: Instant,
    last_drop: Instant,
}

impl Together {
    pub fn begin(&self) {
        self.has_begun.store(true, Ordering::SeqCst);
    }

    /// The bound of a drop that by itself would have until `alone`, which is `bound` from now. Once `bound` has passed
    /// without any drop, the next one counts as a first one again.
    pub fn share(&self, alone: DropBy, bound: Duration) -> DropBy {
        if !self.has_begun.load(Ordering::SeqCst) {
            return alone;
        }
        let (mut shared, now) = (self.shared.lock(), Instant::now());
        let follows = |shared: &&Shared| now < far_from(shared.by.max(shared.last_drop), bound);
        let by = shared.as_ref().filter(follows).map_or(alone.at, |shared| shared.by);
        *shared = Some(Shared { by, last_drop: now });
        DropBy { at: alone.at.min(by), ..alone }
    }
}

/// From [`begin`](Self::begin) until this value is dropped, all drops on this thread are part of one drop. It must be
/// the last field of its struct, so that the drops of the other fields are part of it, too.
#[derive(Default)]
pub struct DropBound {
    /// The value of [`BY`] before `begin`; `None` if it has not begun.
    before: Option<Option<DropBy>>,
}

impl DropBound {
    /// Begins. Must be called on the thread that will drop this value.
    pub fn begin(&mut self, by: DropBy) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn began(by: DropBy) -> DropBound {
        let mut bound = DropBound::default();
        bound.begin(by);
        bound
    }

    #[test]
    fn a_drop_inside_another_has_what_is_left_of_its_own_client_only() {
        let (own, other) = (Owner::of(&1), Owner::of(&2));
        let outer = DropBy::new(own, Duration::ZERO);
        let bound = began(outer);
        assert_eq!(DropBy::new(own, LONG).instant(), outer.instant());
        let inner = DropBy::new(other, LONG);
        assert!(inner.remaining() > LONG / 2);
        drop(began(inner));
        assert_eq!(DropBy::new(own, LONG).instant(), outer.instant(), "the inner one has ended the outer one");
        drop(bound);
        assert!(DropBy::new(own, LONG).remaining() > LONG / 2, "it goes on behind its end");
    }

    #[test]
    fn drops_together_have_the_time_of_one_and_later_ones_time_again() {
        let (own, together) = (Owner::of(&1), Together::default());
        let share = |bound: Duration| together.share(DropBy::new(own, bound), bound);
        let first = share(LONG);
        assert_ne!(first.instant(), share(LONG).instant(), "it has not begun");
        together.begin();
        let first = share(LONG);
        assert_eq!(first.instant(), share(LONG).instant());
        let ago = Instant::now() - Duration::from_secs(1);
        *together.shared.lock() = Some(Shared { by: ago, last_drop: ago });
        assert!(share(LONG).remaining().is_zero(), "the time of the first is over");
        *together.shared.lock() = Some(Shared { by: ago, last_drop: ago });
        let later = DropBy::new(own, LONG);
        assert_eq!(together.share(later, Duration::from_millis(1)).instant(), later.instant(), "the last was long ago");
    }

    #[test]
    fn a_shorter_bound_inside_a_longer_one_stays_short() {
        let own = Owner::of(&1);
        let _bound = began(DropBy::new(own, LONG));
        assert!(DropBy::new(own, Duration::ZERO).remaining().is_zero());
    }

    /// A release that fails gives the guard back, and the guard's drop begins once more.
    #[test]
    fn what_begins_twice_ends_with_what_was_before_the_first() {
        let own = Owner::of(&1);
        let mut bound = began(DropBy::new(own, Duration::ZERO));
        bound.begin(DropBy::new(own, Duration::ZERO));
        drop(bound);
        assert!(DropBy::new(own, LONG).remaining() > LONG / 2);
    }
}
