//! The last failure of each thread.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::c_char;

use super::code::Code;
use super::list::{List, ListHandle};
use super::{call, handle, out_arg, text};
use crate::model::error::Error;
use crate::sys::caught::discard;

/// Why a call did not succeed.
pub struct Failure {
    code: Code,
    message: String,
    /// What the library says, from which text and holders are taken when they are asked for.
    error: Option<Error>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), error: None }
    }

    /// The same error under another number.
    pub fn with_code(error: Error, code: Code) -> Self {
        Failure { code, message: String::new(), error: Some(error) }
    }

    pub fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
        let message = format!("a bug in the library: {}", said.unwrap_or("it panicked"));
        discard(panic);
        Failure::new(Code::Panic, message)
    }

    /// The message, and what lies beneath: C has no chain of causes.
    fn text(&self) -> String {
        let Some(error) = &self.error else { return self.message.clone() };
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text.push_str(": ");
            text.push_str(&next.to_string());
            cause = next.source();
        }
        text
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = error.kind().into();
        Failure::with_code(error, code)
    }
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Keeps it for this thread, and gives its number.
pub fn keep(failure: Failure) -> Code {
    let code = failure.code;
    // While the thread ends there is no place any more. The one before is dropped outside of the borrow.
    let _before = LAST.try_with(|last| last.borrow_mut().replace(failure));
    code
}

/// What of the last failure was asked for.
fn last<T>(take: impl FnOnce(&Failure) -> Option<T>) -> Option<T> {
    LAST.try_with(|last| last.borrow().as_ref().and_then(take)).ok().flatten()
}

#[cfg(test)]
pub fn message() -> String {
    last(|failure| Some(failure.text())).unwrap_or_default()
}

/// Copies a part of the last failure; an empty text when there is none.
///
/// # Safety
/// As the header asks for buffers.
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
/// the leasehold_error_ functions, leave it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_error_code() -> Code {
    last(|failure| Some(failure.code)).unwrap_or(Code::Ok)
}

/// What went wrong in the last call of this thread that failed, for people: one line that names key, store and
/// cause, and never a secret.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_message(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| Some(failure.text())) }
}

/// The key that the failed call was about; empty when it was about none.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_key(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| failure.error.as_ref()?.key().map(str::to_owned)) }
}

/// The store of the failed call as scheme, host and database; empty when it was about none.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_store(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, |failure| failure.error.as_ref()?.store().map(str::to_owned)) }
}

/// The owner of the lock that was refused, of several the first; empty when nobody is known.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_holder(buffer: *mut c_char, capacity: usize, len: *mut usize) -> Code {
    let first = |failure: &Failure| Some(failure.error.as_ref()?.holders().first()?.owner().to_owned());
    // SAFETY: passed on from the caller.
    unsafe { copy(buffer, capacity, len, first) }
}

/// Everybody who held the lock that was refused; an empty list when nobody is known. Free it with
/// leasehold_list_free.
///
/// # Safety
/// `list` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_error_holders(list: *mut ListHandle) -> Code {
    call(|| {
        let list = out_arg!(list);
        let holders = last(|failure| Some(failure.error.as_ref()?.holders().to_vec())).unwrap_or_default();
        list.write(handle::insert(List(holders))?);
        Ok(())
    })
}

/// Whether the failed call may succeed later without any change.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_error_is_retryable() -> bool {
    last(|failure| Some(failure.error.as_ref()?.is_retryable())).unwrap_or(false)
}
