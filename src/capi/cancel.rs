//! Cancel tokens.

use super::code::Code;
use super::{call, handle, out_arg};
use crate::CancelToken;

/// A switch that ends waits.
pub struct Cancel(pub CancelToken);
handle::object!(Cancel = 8, CancelHandle, "cancel token");

/// A switch that ends the waits of the requests that it was given to. Free it with leasehold_cancel_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelHandle {
    pub id: u64,
}

/// Makes a token that is not cancelled yet.
/// \param cancel Gets the token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_cancel_new(cancel: *mut CancelHandle) -> Code {
    call(|| {
        let cancel = out_arg!(cancel);
        cancel.write(handle::insert(Cancel(CancelToken::new()))?)
    })
}

/// Ends every call that was started with the token, now and later, with LEASEHOLD_CODE_CANCELLED. Any thread may call
/// it, but not a signal handler. Doing it again changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_cancel_fire(cancel: CancelHandle) -> Code {
    call(|| {
        handle::get::<Cancel>(cancel)?.0.cancel();
        Ok(())
    })
}

/// Frees the token, and cancels nothing: waits of requests that were given it can't be cancelled any more.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_cancel_free(cancel: CancelHandle) -> Code {
    call(|| handle::remove::<Cancel>(cancel).map(drop))
}
