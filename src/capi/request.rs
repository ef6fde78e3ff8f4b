//! Requests with everything that can be asked for.

use std::ffi::{c_char, c_void};
use std::time::Instant;

use parking_lot::Mutex;

use super::asked::{Asked, Keys, Order};
use super::callback::Callback;
use super::cancel::{Cancel, CancelHandle};
use super::client::ClientHandle;
use super::code::Code;
use super::failure::Failure;
use super::guard::GuardHandle;
use super::lock::{LockData, LockHandle};
use super::loss::OnLoss;
use super::{Outcome, call, handle, millis, out_arg, text_arg, unix_time};
use crate::api::request::{LockRequest, SameOwner};
use crate::sys::deadline::far_from;

/// A request; unlike the one of the Rust API it can be used any number of times.
pub struct Request(Mutex<Asked>);
handle::object!(Request = 3, "request");

/// What is asked for: one lock, or the first of several that is free. It can be used any number of times, by any
/// number of threads. Free it with leasehold_request_free.
pub type RequestHandle = u64;

/// A copy, so that nothing is locked while a wait goes on.
fn asked(request: RequestHandle) -> Result<Asked, Failure> {
    Ok(handle::get::<Request>(request)?.0.lock().again())
}

fn set(request: RequestHandle, set: impl FnOnce(LockRequest) -> LockRequest) -> Outcome {
    let request = handle::get::<Request>(request)?;
    let mut asked = request.0.lock();
    *asked = asked.again().with(set);
    Ok(())
}

/// A request for one lock.
///
/// # Safety
/// `key` must have `key_len` readable bytes, and `request` be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_new(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    request: *mut RequestHandle,
) -> Code {
    call(|| {
        let (key, request) = (text_arg!(key, key_len), out_arg!(request));
        request.write(handle::insert(Request(Mutex::new(Asked::one(client, key)?)))?)
    })
}

/// A request for whichever of several locks is free first: leasehold_request_add_key names them, and
/// leasehold_guard_key says which it was.
///
/// # Safety
/// `request` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_new_any(client: ClientHandle, request: *mut RequestHandle) -> Code {
    call(|| {
        let request = out_arg!(request);
        request.write(handle::insert(Request(Mutex::new(Asked::any(client)?)))?)
    })
}

/// One more key for a request made by leasehold_request_new_any.
///
/// # Safety
/// `key` must have `key_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_add_key(request: RequestHandle, key: *const c_char, key_len: usize) -> Code {
    call(|| {
        let key = text_arg!(key, key_len).to_owned();
        let request = handle::get::<Request>(request)?;
        match &mut request.0.lock().keys {
            Keys::AnyOf { keys, .. } => keys.push(key),
            Keys::One => return Err(Failure::new(Code::InvalidInput, "the request is for one key")),
        }
        Ok(())
    })
}

/// Tries the keys as they were added, each time from the first one on. Defaults to random order.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_in_order(request: RequestHandle) -> Code {
    call(|| {
        // One key has no order.
        if let Keys::AnyOf { order, .. } = &mut handle::get::<Request>(request)?.0.lock().keys {
            *order = Order::AsGiven;
        }
        Ok(())
    })
}

/// Together with other shared holders. Defaults to exclusive.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_shared(request: RequestHandle) -> Code {
    call(|| set(request, LockRequest::shared))
}

/// Shared, and only while fewer than `n` hold the key. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_max_holders(request: RequestHandle, n: u32) -> Code {
    call(|| set(request, |request| request.max_holders(n)))
}

/// Who holds it, for people: 1 to 1,024 bytes. Defaults to the client's owner.
///
/// # Safety
/// `owner` must have `owner_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_owner(
    request: RequestHandle,
    owner: *const c_char,
    owner_len: usize,
) -> Code {
    call(|| {
        let owner = text_arg!(owner, owner_len);
        set(request, |request| request.owner(owner))
    })
}

/// Whatever others should read about this hold: 1 to 1,024 bytes. Defaults to none.
///
/// # Safety
/// `comment` must have `comment_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_comment(
    request: RequestHandle,
    comment: *const c_char,
    comment_len: usize,
) -> Code {
    call(|| {
        let comment = text_arg!(comment, comment_len);
        set(request, |request| request.comment(comment))
    })
}

/// Puts the lock into a group: whoever knows the lock id can renew and release all of it. Defaults to a random one.
///
/// # Safety
/// `lock_id` must have `lock_id_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_lock_id(
    request: RequestHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
) -> Code {
    call(|| {
        let lock_id = text_arg!(lock_id, lock_id_len);
        set(request, |request| request.lock_id(lock_id))
    })
}

/// For how long the lock is held without a renewal, in milliseconds. Defaults to the client's lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_lease(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.lease(millis(ms))))
}

/// The lease ends at this time, in milliseconds since 1970, and is not renewed past it. Defaults to the client's lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_lease_until(request: RequestHandle, unix_ms: u64) -> Code {
    call(|| {
        let at = unix_time(unix_ms)?;
        set(request, |request| request.lease_until(at))
    })
}

/// The lock is held until it is released: when the process dies, an operator has to do that. Defaults to the client's
/// lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_lease_forever(request: RequestHandle) -> Code {
    call(|| set(request, LockRequest::lease_forever))
}

/// A live exclusive holder with the same owner is replaced at once; it learns so at its next heartbeat. Needs an owner
/// that was set. Defaults to respecting it like any other.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_replace_same_owner(request: RequestHandle) -> Code {
    call(|| set(request, |request| request.same_owner(SameOwner::Replace)))
}

/// For how many milliseconds leasehold_request_lock waits while others hold it; 0 asks once. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_wait(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.wait(millis(ms))))
}

/// Until when leasehold_request_lock waits: so many milliseconds from this call on, whenever and however often it is
/// used afterwards. So several waits can share one deadline. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_deadline_in(request: RequestHandle, ms: u64) -> Code {
    call(|| {
        let until = far_from(Instant::now(), millis(ms));
        set(request, |request| request.wait_until(until))
    })
}

/// leasehold_cancel_fire ends the wait with LEASEHOLD_CODE_CANCELLED. Defaults to none.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_cancel(request: RequestHandle, cancel: CancelHandle) -> Code {
    call(|| {
        let cancel = handle::get::<Cancel>(cancel)?;
        set(request, |request| request.cancel(&cancel.0))
    })
}

/// The lock is lost after so many milliseconds, for a worker that hangs while its process lives. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_max_hold(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.max_hold(millis(ms))))
}

/// Called once for each guard of the request whose lock is lost, with `user`, on a thread of its own; never after a
/// release. It may call anything here, also free the guard. No exception may leave it. Once leasehold_guard_free has
/// returned, the callback is over and is not called any more, unless it was the callback that freed the guard; the same
/// holds for a call that gave no guard. NULL for none, which is the default.
///
/// # Safety
/// Any thread must be able to call `on_loss` with `user` until each guard of the request is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_on_loss(
    request: RequestHandle,
    on_loss: OnLoss,
    user: *mut c_void,
) -> Code {
    call(|| {
        handle::get::<Request>(request)?.0.lock().on_loss = on_loss.map(|function| Callback { function, user });
        Ok(())
    })
}

/// Waits for the lock and holds it: LEASEHOLD_CODE_TIMED_OUT when the wait is over.
///
/// # Safety
/// `guard` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_lock(request: RequestHandle, guard: *mut GuardHandle) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        guard.write(asked(request)?.lock()?)
    })
}

/// Asks once: LEASEHOLD_CODE_HELD when others hold it, LEASEHOLD_CODE_TIMED_OUT when it was granted too late to be held.
///
/// # Safety
/// `guard` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_try_lock(request: RequestHandle, guard: *mut GuardHandle) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        guard.write(asked(request)?.try_lock()?)
    })
}

/// Asks once and gives the lock as data: no guard, no thread, nothing that renews or releases it.
///
/// # Safety
/// `lock` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_acquire(request: RequestHandle, lock: *mut LockHandle) -> Code {
    call(|| {
        let lock = out_arg!(lock);
        lock.write(handle::insert(LockData::new(asked(request)?.acquire()?))?)
    })
}

/// leasehold_client_adopt with the owner, comment, lease and loss callback of the request, which must be for the same
/// key.
///
/// # Safety
/// `guard` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_adopt(
    request: RequestHandle,
    lock: LockHandle,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        let lock = handle::get::<LockData>(lock)?.copy();
        guard.write(asked(request)?.adopt(lock)?)
    })
}

/// Frees the handle. Guards and waits that came from it go on.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_free(request: RequestHandle) -> Code {
    call(|| handle::remove::<Request>(request).map(drop))
}
