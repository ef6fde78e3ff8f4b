//! Requests, with all their options.

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
use super::guards::GuardsHandle;
use super::lock::{LockData, LockHandle};
use super::loss::{OnLoss, OnWarning};
use super::waiting::OnWait;
use super::{Outcome, call, handle, millis, out_arg, text_arg, unix_time};
use crate::api::request::{LockRequest, SameOwner};
use crate::sys::deadline::far_from;

/// A request; unlike the one of the Rust API it can be used any number of times.
pub struct Request(Mutex<Asked>);
handle::object!(Request = 3, RequestHandle, "request");

/// A request for one lock, for the first of several that is free, or for all of several. It can be used any number of
/// times, by any number of threads. Free it with leasehold_request_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHandle {
    pub id: u64,
}

/// A copy of the request, so that its mutex is not locked during a wait.
fn asked(request: RequestHandle) -> Result<Asked, Failure> {
    Ok(handle::get::<Request>(request)?.0.lock().again())
}

fn set(request: RequestHandle, set: impl FnOnce(LockRequest) -> LockRequest) -> Outcome {
    let request = handle::get::<Request>(request)?;
    let mut asked = request.0.lock();
    *asked = asked.again().with(set);
    Ok(())
}

/// Makes a request for one lock. Nothing is sent to the store yet.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param request Gets the request.
#[unsafe(no_mangle)]
#[must_use]
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

/// Makes a request for one of several locks, whichever is free first: leasehold_request_add_key names them, and
/// leasehold_guard_key says which one it was.
/// \param request Gets the request.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_new_any(client: ClientHandle, request: *mut RequestHandle) -> Code {
    call(|| {
        let request = out_arg!(request);
        request.write(handle::insert(Request(Mutex::new(Asked::any(client)?)))?)
    })
}

/// Makes a request for all of several locks, held together: leasehold_request_add_key names them, and
/// leasehold_request_lock_all and leasehold_request_try_lock_all end it. They are taken one after the other in the
/// order of their keys, so two requests with crossed orders never wait for each other.
/// \param request Gets the request.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_new_all(client: ClientHandle, request: *mut RequestHandle) -> Code {
    call(|| {
        let request = out_arg!(request);
        request.write(handle::insert(Request(Mutex::new(Asked::all(client)?)))?)
    })
}

/// Adds a key to a request made by leasehold_request_new_any or leasehold_request_new_all; LEASEHOLD_CODE_INVALID_INPUT
/// for any other request.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_add_key(request: RequestHandle, key: *const c_char, key_len: usize) -> Code {
    call(|| {
        let key = text_arg!(key, key_len).to_owned();
        let request = handle::get::<Request>(request)?;
        match &mut request.0.lock().keys {
            Keys::AnyOf { keys, .. } | Keys::AllOf { keys } => keys.push(key),
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

/// Asks for the lock in shared mode: others may hold it in shared mode at the same time. Defaults to exclusive.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_shared(request: RequestHandle) -> Code {
    call(|| set(request, LockRequest::shared))
}

/// Asks for the lock in shared mode, and only while fewer than `n` hold it. A request with a larger limit, or with
/// none, can still join them. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_max_holders(request: RequestHandle, n: u32) -> Code {
    call(|| set(request, |request| request.max_holders(n)))
}

/// What others see as the holder, for people to read: 1 to 1,024 bytes. Defaults to the client's owner.
/// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
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

/// A note that others see in the lock's status: 1 to 1,024 bytes. Defaults to none.
/// \param comment `comment_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
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

/// Puts the lock into a group: anyone who knows the lock id can renew and release all its locks. A key has at most one
/// holder with the same lock id, shared holders included: another request with that id is refused, or waits. Defaults
/// to a random id.
/// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
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

/// Takes the lock away from an exclusive holder that has the same owner. That holder finds out at its next heartbeat;
/// until then only the fencing token protects what the lock is for. An owner must have been set, and the option is
/// refused for a shared lock. Defaults to waiting for such a holder as for any other.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_replace_same_owner(request: RequestHandle) -> Code {
    call(|| set(request, |request| request.same_owner(SameOwner::Replace)))
}

/// For how many milliseconds leasehold_request_lock waits while others hold the lock; with 0 it tries once. The calls
/// that try once ignore this. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_wait(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.wait(millis(ms))))
}

/// Until when leasehold_request_lock waits: `ms` milliseconds from this call on, not from the call that waits. So
/// several waits can share one deadline. A call after the deadline tries once. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_deadline_in(request: RequestHandle, ms: u64) -> Code {
    call(|| {
        let until = far_from(Instant::now(), millis(ms));
        set(request, |request| request.wait_until(until))
    })
}

/// Gives the request a token: leasehold_cancel_fire ends its waits with LEASEHOLD_CODE_CANCELLED. The handle stays
/// yours to free. A later one replaces it. Defaults to none.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_cancel(request: RequestHandle, cancel: CancelHandle) -> Code {
    call(|| {
        let cancel = handle::get::<Cancel>(cancel)?;
        set(request, |request| request.cancel(&cancel.0))
    })
}

/// For how many milliseconds the lock may be held at most. Then it is lost, even while its process lives: this is for a
/// worker that hangs. For all of several locks the time counts from when all of them are held. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_max_hold(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.max_hold(millis(ms))))
}

/// How many milliseconds the lock stays in the store at least, counted from its grant by the store's clock; at most 30
/// days. Until then it stays there even after a release, the end of the guard or of the client, or the death of the
/// process; after such an end nobody renews it. So a job that is over in a second does not run again on a host that
/// starts it a little later. It is refused with a lease without end or until a time, by leasehold_request_acquire, and
/// for all of several keys (for those see leasehold_guards_hold_at_least). On Cloud Spanner with fleet=mixed only the
/// lease itself, spindle_duration, is accepted. Defaults to no minimum.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_set_hold_at_least(request: RequestHandle, ms: u64) -> Code {
    call(|| set(request, |request| request.hold_at_least(millis(ms))))
}

/// Sets a function that is called with `user`, once for each guard of the request whose lock is lost, on a thread of
/// the library's. It is not called after a release, but a call that was about to begin when the release returned may
/// still run. It may call every function of this header, also to free the guard or close the client. It must return: no
/// exception, longjmp() or pthread_exit(). Once leasehold_guard_free has returned, the function is not running and is
/// not called any more, unless it freed the guard itself; then `user` can be freed. The same applies once a call has
/// returned that gave no guard. If no thread can be started, the function is called only once one can be;
/// leasehold_guard_is_held and leasehold_guard_loss_descriptor need no thread. NULL for none, which is the default.
/// \param on_loss Any thread may call it with `user` until each guard of the request is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_on_loss(
    request: RequestHandle,
    on_loss: OnLoss,
    user: *mut c_void,
) -> Code {
    call(|| {
        let callback = on_loss.map(|function| Callback { function, user });
        handle::get::<Request>(request)?.0.lock().callbacks.on_loss = callback;
        Ok(())
    })
}

/// Warns if renewals fail and only `left_ms` milliseconds are left until the loss, and again only after a renewal has
/// succeeded: in the log, as an event, and the first time for each guard by a function that is called with `user` on a
/// thread of the library's, unless it is NULL. `left_ms` must be less than the lease minus the margin. With several locks each of them warns, also while the call still waits
/// for others. The rules for the function are those of leasehold_request_set_on_loss. Defaults to no warning.
/// \param on_warning Any thread may call it with `user` until each guard of the request is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_warn_before(
    request: RequestHandle,
    left_ms: u64,
    on_warning: OnWarning,
    user: *mut c_void,
) -> Code {
    call(|| {
        set(request, |request| request.warn_before(millis(left_ms)))?;
        let callback = on_warning.map(|function| Callback { function, user });
        handle::get::<Request>(request)?.0.lock().callbacks.on_warning = callback;
        Ok(())
    })
}

/// Sets a function that is called with `user` while a call of this request waits, when the wait begins and then every
/// `every_ms` milliseconds, at least 10. It is called on the thread that waits, so it should return soon. It may call
/// every function of this header, also to fire the cancel token or free the request, and must return: no exception,
/// longjmp() or pthread_exit(). NULL for none, which is the default.
/// \param on_wait Called with `user` only during calls that wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_request_set_on_wait(
    request: RequestHandle,
    every_ms: u64,
    on_wait: OnWait,
    user: *mut c_void,
) -> Code {
    call(|| {
        if on_wait.is_some() {
            set(request, |request| request.on_wait_every(millis(every_ms)))?;
        }
        let callback = on_wait.map(|function| Callback { function, user });
        handle::get::<Request>(request)?.0.lock().callbacks.on_wait = callback;
        Ok(())
    })
}

/// Waits for all locks of a request made by leasehold_request_new_all; the wait that was set is for all of them
/// together. Locks that were obtained already are renewed meanwhile, and keep others waiting. If one of them is not
/// obtained, all are released in the background: a program that ends soon after that must call leasehold_client_close
/// first. Codes as of leasehold_request_lock; LEASEHOLD_CODE_LOST when one was lost while the call waited for others.
/// The loss callback is called for the first of them that is lost; the others stay held until they are released or
/// freed.
/// \param guards Gets the guard of all of them.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_lock_all(request: RequestHandle, guards: *mut GuardsHandle) -> Code {
    call(|| {
        let guards = out_arg!(guards);
        guards.write(asked(request)?.lock_all(false)?)
    })
}

/// leasehold_request_lock_all that tries once for each lock: LEASEHOLD_CODE_HELD when others hold one of them.
/// \param guards Gets the guard of all of them.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_try_lock_all(request: RequestHandle, guards: *mut GuardsHandle) -> Code {
    call(|| {
        let guards = out_arg!(guards);
        guards.write(asked(request)?.lock_all(true)?)
    })
}

/// Waits for the lock, and gives a guard as leasehold_client_lock does. LEASEHOLD_CODE_TIMED_OUT when the wait that was
/// set is over, LEASEHOLD_CODE_LOST as by leasehold_request_try_lock, LEASEHOLD_CODE_CANCELLED, or
/// LEASEHOLD_CODE_ALREADY_HELD when this client holds the key with the same lock id.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_lock(request: RequestHandle, guard: *mut GuardHandle) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        guard.write(asked(request)?.lock()?)
    })
}

/// Tries once, and does not wait for other holders: LEASEHOLD_CODE_HELD when there are some, or other calls of this
/// client wait for the lock already, LEASEHOLD_CODE_TIMED_OUT when the store answered too late for the lock to be held,
/// LEASEHOLD_CODE_LOST when it was taken away again before its lease of more than a minute was set,
/// LEASEHOLD_CODE_ALREADY_HELD when this client holds it with the same lock id.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_try_lock(request: RequestHandle, guard: *mut GuardHandle) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        guard.write(asked(request)?.try_lock()?)
    })
}

/// Tries once, and gives the lock as data: nothing renews or releases it by itself. Options for guards, like
/// leasehold_request_set_max_hold, have no effect, except that leasehold_request_set_hold_at_least is refused.
/// LEASEHOLD_CODE_HELD when others hold it, LEASEHOLD_CODE_ALREADY_HELD when this client holds it with the same lock
/// id. See leasehold_client_heartbeat, leasehold_client_release and leasehold_client_adopt.
/// \param lock Gets the data.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_acquire(request: RequestHandle, lock: *mut LockHandle) -> Code {
    call(|| {
        let lock = out_arg!(lock);
        let asked = asked(request)?;
        let data = handle::insert(LockData::none_yet())?;
        let acquired = asked.acquire().inspect_err(|_| drop(handle::remove::<LockData>(data)))?;
        handle::get::<LockData>(data)?.set(acquired);
        lock.write(data)
    })
}

/// leasehold_client_adopt with the owner, comment, lease and loss callback of the request, which must be for the same
/// key.
/// \param guard Gets the guard.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_request_adopt(
    request: RequestHandle,
    lock: LockHandle,
    guard: *mut GuardHandle,
) -> Code {
    call(|| {
        let guard = out_arg!(guard);
        let lock = handle::get::<LockData>(lock)?.copy()?;
        guard.write(asked(request)?.adopt(lock)?)
    })
}

/// Frees the request. Guards that it gave, and calls that wait, go on.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_request_free(request: RequestHandle) -> Code {
    call(|| handle::remove::<Request>(request).map(drop))
}
