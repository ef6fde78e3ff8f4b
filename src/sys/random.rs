//! Ids that no other process has.

use uuid::{Builder, Uuid};

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
