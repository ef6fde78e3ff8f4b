//! Ids that no other process has, and random numbers that need not be secret.

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

/// A new generator. That of the thread is copied by a fork, and can't be made while a thread ends.
fn generator() -> Rng {
    Rng::with_seed(getrandom::u64().unwrap_or_default())
}

/// A random UUID. The operating system is asked for each: `Uuid::new_v4` uses a generator that a fork copies if any
/// crate of the program turns on the feature `fast-rng` of `uuid`, and two children would ask for a lock with the same
/// id.
pub fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Builder::from_random_bytes(bytes).into_uuid(),
        // A system that denies random bytes has no hash maps of the standard library either.
        Err(_) => Uuid::new_v4(),
    }
}
