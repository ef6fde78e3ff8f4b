//! Locks that a client takes up, renews and releases as data.

use super::asked::Asked;
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::guard::GuardHandle;
use super::lock::{LockData, LockHandle};
use super::{call, handle, millis, out_arg};

/// Takes up a lock that was handed over, or acquired as data: without a gap, with a new fencing token.
/// LEASEHOLD_CODE_LOST when it does not stand any more, or was adopted before. The data has to be freed all the same.
///
/// # Safety
/// `guard` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_adopt(
    client: ClientHandle,
    lock: LockHandle,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        let lock = handle::get::<LockData>(lock)?.copy();
        guard.write(Asked::one(client, lock.key())?.adopt(lock)?)
    })
}

/// Renews a lock that is held as data for so many milliseconds from now on, and brings the data up to date.
/// LEASEHOLD_CODE_LOST when it does not stand any more.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_heartbeat(client: ClientHandle, lock: LockHandle, lease_ms: u64) -> Code {
    call(|| {
        let client = handle::get::<Client>(client)?;
        let lock = handle::get::<LockData>(lock)?;
        let renewed = client.0.heartbeat(&lock.copy(), millis(lease_ms))?;
        lock.set(renewed);
        Ok(())
    })
}

/// Releases a lock that is held as data. Fine when nobody holds it; LEASEHOLD_CODE_HELD when others do.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_release(client: ClientHandle, lock: LockHandle) -> Code {
    call(|| {
        let client = handle::get::<Client>(client)?;
        let lock = handle::get::<LockData>(lock)?.copy();
        Ok(client.0.release(&lock)?)
    })
}
