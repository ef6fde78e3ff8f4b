//! A writer that readers can't starve: it stands at a gate, which is one more lock, and there new readers wait for it.

use leasehold::{LockClient, LockGuard, LockStatus, Mode, Result};

pub mod readers;

fn gate(key: &str) -> String {
    format!("{key}.gate")
}

/// For readers, in place of `client.lock_shared(key)`. It only looks at the gate, unless a writer stands there.
pub fn lock_shared(client: &LockClient, key: &str) -> Result<LockGuard> {
    let is_writer = |holder: &LockStatus| holder.mode() == Mode::Exclusive && !holder.is_expired();
    if client.get(&gate(key))?.is_some_and(|gate| gate.holders().iter().any(is_writer)) {
        client.lock_shared(&gate(key))?.release()?;
    }
    client.lock_shared(key)
}

/// For writers, in place of `client.lock(key)`. It stands at the gate until it has the lock.
pub fn lock(client: &LockClient, key: &str) -> Result<LockGuard> {
    let _gate = client.lock(&gate(key))?;
    client.lock(key)
}
