//! Locks as data: a client adopts, renews and releases them.

use super::asked::Asked;
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::guard::GuardHandle;
use super::lock::{LockData, LockHandle};
use super::{call, handle, millis, out_arg};

/// Makes a guard of a lock that is held as data, because a guard handed it over (leasehold_guard_into_lock) or it was
/// acquired as data (leasehold_request_acquire). The lock is held without a gap, and gets a new fencing token.
/// LEASEHOLD_CODE_LOST when it is not held any more, or was adopted before, LEASEHOLD_CODE_INVALID_INPUT when another
/// store has granted it, LEASEHOLD_CODE_TIMED_OUT when the grant came too late for the lock to be held. After
/// LEASEHOLD_CODE_AMBIGUOUS, LEASEHOLD_CODE_CANCELLED and LEASEHOLD_CODE_CLOSED, too, the lock may be gone. The data
/// stays yours to free.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_adopt(
    client: ClientHandle,
    lock: LockHandle,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        let lock = handle::get::<LockData>(lock)?.copy()?;
        guard.write(Asked::one(client, lock.key())?.adopt(lock)?)
    })
}

/// Renews a lock that is held as data for this many milliseconds from now on, and updates the data.
/// LEASEHOLD_CODE_LOST when it is not held any more, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it, or
/// when the lock has no end and would get one within a minute.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_client_heartbeat(client: ClientHandle, lock: LockHandle, lease_ms: u64) -> Code {
    call(|| {
        let client = handle::get::<Client>(client)?;
        let lock = handle::get::<LockData>(lock)?;
        let renewed = client.api.heartbeat(&lock.copy()?, millis(lease_ms))?;
        lock.set(renewed);
        Ok(())
    })
}

/// Releases a lock that is held as data; the data stays yours to free. LEASEHOLD_CODE_OK also when nobody holds the
/// lock any more, LEASEHOLD_CODE_HELD when others do, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it,
/// or when this store does not have it and it was granted elsewhere: on MongoDB and PostgreSQL by none of this client's
/// hosts, on DynamoDB in another region or at another endpoint, on SQLite by a path that leads to no file here. Stores
/// with the same path or host name can't be told apart.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_client_release(client: ClientHandle, lock: LockHandle) -> Code {
    call(|| {
        let client = handle::get::<Client>(client)?;
        let lock = handle::get::<LockData>(lock)?.copy()?;
        Ok(client.api.release(&lock)?)
    })
}
