//! One bound for a drop and all that goes with it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::deadline::far_from;

thread_local! {
    /// The drops that are under way on this thread, the innermost last.
    static BY: RefCell<Vec<DropBy>> = const { RefCell::new(Vec::new()) };
}

/// Whose drop it is: what belongs to another client has a bound of its own, for nobody else would release it.
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
    /// Of a drop that begins now: no longer than the one of the same owner that it is a part of.
    pub fn new(owner: Owner, bound: Duration) -> Self {
        let at = far_from(Instant::now(), bound);
        let outer = |by: &Vec<DropBy>| by.iter().rfind(|outer| outer.owner == owner).map_or(at, |outer| outer.at);
        DropBy { owner, at: BY.with_borrow(outer).min(at) }
    }

    pub fn instant(self) -> Instant {
        self.at
    }

    pub fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

/// Until when what a client owns may take to end, from now: no longer than the client's drop that is under way here.
pub fn drop_by(bound: Duration) -> Instant {
    let at = far_from(Instant::now(), bound);
    BY.with_borrow(|by| by.last().map_or(at, |outer| outer.at.min(at)))
}

/// What is dropped on this thread from its beginning until this value goes is part of one drop. As a field it comes
/// last, so that the other ones are, too.
#[derive(Default)]
pub struct DropBound {
    /// How many drops were under way before it began.
    before: Option<usize>,
}

impl DropBound {
    /// Begins, on the thread that will drop it.
    pub fn begin(&mut self, by: DropBy) {
        BY.with_borrow_mut(|all| {
            all.truncate(*self.before.get_or_insert(all.len()));
            all.push(by);
        });
    }
}

impl Drop for DropBound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            BY.with_borrow_mut(|by| by.truncate(before));
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
    fn a_drop_of_the_same_client_behind_one_of_another_has_what_is_left_of_the_first() {
        let (own, other) = (Owner::of(&1), Owner::of(&2));
        let outer = DropBy::new(own, Duration::ZERO);
        let _bound = began(outer);
        let _inner = began(DropBy::new(other, LONG));
        assert_eq!(DropBy::new(own, LONG).instant(), outer.instant());
    }

    #[test]
    fn a_shorter_bound_inside_a_longer_one_stays_short() {
        let own = Owner::of(&1);
        let _bound = began(DropBy::new(own, LONG));
        assert!(DropBy::new(own, Duration::ZERO).remaining().is_zero());
    }

    /// A release that fails gives the guard back, whose drop begins once more.
    #[test]
    fn what_begins_twice_ends_with_what_was_before_the_first() {
        let own = Owner::of(&1);
        let mut bound = began(DropBy::new(own, Duration::ZERO));
        bound.begin(DropBy::new(own, Duration::ZERO));
        drop(bound);
        assert!(DropBy::new(own, LONG).remaining() > LONG / 2);
    }
}
