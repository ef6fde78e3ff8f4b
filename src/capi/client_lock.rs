//! Functions that take a lock from a client without a request.

use std::ffi::c_char;

use super::asked::Asked;
use super::client::ClientHandle;
use super::code::Code;
use super::guard::GuardHandle;
use super::{call, out_arg, text_arg};
use crate::api::request::LockRequest;

/// Waits for the lock, without limit, and gives a guard: the lock is held, and renewed by a thread of the library's,
/// until the guard is released or freed. LEASEHOLD_CODE_CLOSED when the client is closed meanwhile.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_lock(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.lock()?)
    })
}

/// Tries once, and does not wait for other holders: LEASEHOLD_CODE_HELD when there are some, or other calls of this
/// client wait for the lock already, LEASEHOLD_CODE_TIMED_OUT when the store answered too late for the lock to be held,
/// LEASEHOLD_CODE_LOST when it was taken away again before its lease of more than a minute was set.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_try_lock(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.try_lock()?)
    })
}

/// leasehold_client_lock that waits for at most `wait_ms` milliseconds: LEASEHOLD_CODE_TIMED_OUT when others held the
/// lock all the while, or when the store answered too late for the lock to be held (then leasehold_error_holders gives
/// none).
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_lock_for(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    wait_ms: u64,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.waiting(wait_ms).lock()?)
    })
}

/// leasehold_client_lock in shared mode, together with other shared holders.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_lock_shared(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.with(LockRequest::shared).lock()?)
    })
}

/// leasehold_client_try_lock in shared mode, together with other shared holders.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_try_lock_shared(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.with(LockRequest::shared).try_lock()?)
    })
}

/// leasehold_client_lock_for in shared mode, together with other shared holders.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_lock_shared_for(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    wait_ms: u64,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let (key, guard) = (text_arg!(key, key_len), out_arg!(guard));
        guard.write(Asked::one(client, key)?.with(LockRequest::shared).waiting(wait_ms).lock()?)
    })
}
