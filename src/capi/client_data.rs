//! Locks that a client takes up, renews and releases as data.

use super::asked::Asked;
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::guard::GuardHandle;
use super::lock::{LockData, LockHandle};
use super::{call, handle, millis, out_arg};

/// Makes a guard of a lock that is held as data, because it was handed over or acquired so. There is no moment at which
/// nobody holds it, and it gets a new fencing token. LEASEHOLD_CODE_LOST when it is not held any more, or was adopted
/// before, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it, LEASEHOLD_CODE_TIMED_OUT when it was handed over
/// too late to be held; after LEASEHOLD_CODE_AMBIGUOUS, LEASEHOLD_CODE_CANCELLED and LEASEHOLD_CODE_CLOSED, too, the lock
/// may be gone. The data stays yours to free.
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
/// LEASEHOLD_CODE_LOST when it is not held any more, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it, or when
/// a lock without end was to end within a minute.
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
/// lock any more, LEASEHOLD_CODE_HELD when others do, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it, or
/// when it does not stand here and was granted elsewhere: on MongoDB and PostgreSQL by none of this client's hosts, on
/// DynamoDB in another region or at another endpoint.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_client_release(client: ClientHandle, lock: LockHandle) -> Code {
    call(|| {
        let client = handle::get::<Client>(client)?;
        let lock = handle::get::<LockData>(lock)?.copy()?;
        Ok(client.api.release(&lock)?)
    })
}
