//! Ids that no other process has, and chance where it need not be secret.

use fastrand::Rng;
use uuid::{Builder, Uuid};

/// A fraction from 0 to 1.
pub fn fraction() -> f64 {
    generator().f64()
}

/// In a random order.
pub fn shuffle<T>(all: &mut [T]) {
    generator().shuffle(all);
}

/// The one of the thread is copied by a fork, and can't be made in the end of a thread.
fn generator() -> Rng {
    Rng::with_seed(getrandom::u64().unwrap_or_default())
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
