//! A writer that readers can't starve: it holds a gate, which is one more lock, and new readers wait for it there.

use leasehold::{CancelToken, ErrorKind, LockClient, LockGuard, LockStatus, Mode, Result};

pub mod readers;

fn gate(key: &str) -> String {
    format!("{key}.gate")
}

/// For readers, in place of `client.lock_shared(key)`. It only looks at the gate, unless a writer holds it. A reader
/// that holds the lock already must not call this again: it would wait for a writer that waits for it.
pub fn lock_shared(client: &LockClient, key: &str) -> Result<LockGuard> {
    let is_writer = |holder: &LockStatus| holder.mode() == Mode::Exclusive && !holder.is_expired();
    let waits = match client.get(&gate(key)) {
        Ok(gate) => gate.is_some_and(|gate| gate.holders().iter().any(is_writer)),
        // The store is away: the next call waits for it. (If `get` alone goes on failing, all readers take the gate,
        // and may keep a writer from it.)
        Err(error) if error.is_retryable() => true,
        Err(error) => return Err(error),
    };
    if waits {
        // Dropped, since a failed release of the gate is no reason to refuse a reader.
        drop(client.lock_shared(&gate(key))?);
    }
    client.lock_shared(key)
}

/// For writers, in place of `client.lock(key)`. It holds the gate until it has the lock.
pub fn lock(client: &LockClient, key: &str) -> Result<LockGuard> {
    loop {
        let lost = CancelToken::new();
        let cancel = lost.clone();
        let _gate = client.request(&gate(key)).on_loss(move |_| cancel.cancel()).lock()?;
        match client.request(key).cancel(&lost).lock() {
            // It lost the gate, as in an outage: readers pass until it has the gate again.
            Err(error) if error.kind() == ErrorKind::Cancelled => {}
            answer => return answer,
        }
    }
}
