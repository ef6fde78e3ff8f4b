//! What the last failure of a thread was about.

use std::ffi::c_char;

use super::code::Code;
use super::failure::{Failure, last};
use super::list::{List, ListHandle};
use super::{call, handle, out_arg, text};

/// Copies a part of the last failure; an empty text when there is none.
///
/// # Safety
/// `buffer`, `capacity` and `len` are as the header demands of every buffer for a text.
unsafe fn copy(
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
    take: impl FnOnce(&Failure) -> Option<String>,
) -> Code {
    // Not through `call`: to ask for an error must not replace it.
    let text = last(take).unwrap_or_default();
    // SAFETY: passed on from the caller.
    match unsafe { text::write(&text, buffer, capacity, len) } {
        Ok(()) => Code::Ok,
        Err(failure) => failure.code,
    }
}

/// The code of the last call of this thread that failed; LEASEHOLD_CODE_OK when none has. Calls that succeed, and
/// the leasehold_error_ functions, leave it as it is. But if leasehold_error_holders itself fails, it counts as a call
/// that failed.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_error_code() -> Code {
    last(|failure| Some(failure.code)).unwrap_or(Code::Ok)
}

/// What went wrong in the last call of this thread that failed, for people: one line that names key, store and
/// cause, and never a secret.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_message(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| Some(failure.text())) }
}

/// The key that the failed call was about; empty when it was about none.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_key(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| failure.error.as_ref()?.key().map(str::to_owned)) }
}

/// The store of the failed call as scheme, host and database; empty when it was about none.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_store(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| failure.error.as_ref()?.store().map(str::to_owned)) }
}

/// The name of the holder of the lock that was refused (of the first one if it has several), or of the lease that was
/// in the way; empty when none is known.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_holder(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    let first = |failure: &Failure| {
        let error = failure.error.as_ref()?;
        let of_lock = error.holders().first().map(|holder| holder.owner());
        of_lock.or_else(|| error.lease().map(|lease| lease.holder())).map(str::to_owned)
    };
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, first) }
}

/// All holders of the lock that was refused, or the lease that was in the way; an empty list when none is known. Free
/// it with leasehold_list_free.
/// \param list Gets the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_holders(list: *mut ListHandle) -> Code {
    call(|| {
        let list = out_arg!(list);
        let found = last(|failure| {
            let error = failure.error.as_ref()?;
            let locks = List::of_locks(error.holders().to_vec());
            Some(error.lease().map_or(locks, |lease| List::of_leases([lease.clone()])))
        });
        list.write(handle::insert(found.unwrap_or_else(|| List::of_locks(Vec::new())))?)
    })
}

/// Whether one of the lock's holders was a guard of the same client that made the failed call: a guard of another
/// thread, or one of this thread, which then waited for itself.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_error_held_by_this_client() -> bool {
    last(|failure| Some(failure.error.as_ref()?.held_by_this_client())).unwrap_or(false)
}

/// Whether the failed call may succeed later without any change.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_error_is_retryable() -> bool {
    last(|failure| Some(failure.error.as_ref()?.is_retryable())).unwrap_or(false)
}
