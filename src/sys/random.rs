//! Ids that no other process has, and chance where it need not be secret.

use uuid::{Builder, Uuid};

use super::thread::lives;

/// A fraction from 0 to 1. In the end of a thread the generator that it would have can't be made any more.
pub fn fraction() -> f64 {
    if lives() { fastrand::f64() } else { 0.5 }
}

/// In a random order; the same in the end of a thread.
pub fn shuffle<T>(all: &mut [T]) {
    if lives() {
        fastrand::shuffle(all);
    }
}

/// A random UUID. The operating system is asked for each: where any crate of the program turns on the feature `fast-rng`
/// of `uuid`, its own come from a generator that a fork copies, and two children would ask for a lock as one.
pub fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Builder::from_random_bytes(bytes).into_uuid(),
        // A system that denies it has no hash maps of the standard library either.
        Err(_) => Uuid::new_v4(),
    }
}
