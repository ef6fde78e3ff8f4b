//! Reports to C about a wait that goes on.

use std::ffi::{c_char, c_void};
use std::time::Instant;

use super::as_millis;
use super::callback::Callback;
use crate::model::error::Error;
use crate::model::waiting::Waiting;

/// A wait that goes on. Its texts end in a NUL that their length leaves out, and are only there during the callback.
#[repr(C)]
pub struct WaitInfo {
    /// The size of this struct as the library has it: later versions may add fields at its end.
    pub size: usize,
    /// The name of the lock.
    pub key: *const c_char,
    pub key_len: usize,
    /// The holder's name, or that of the first of several; empty when none is known.
    pub holder: *const c_char,
    pub holder_len: usize,
    /// Why the last request to the store failed, for people; empty when it did not fail.
    pub text: *const c_char,
    pub text_len: usize,
    /// For how long this call has waited.
    pub waited_ms: u64,
    /// In how many milliseconds the wait ends without the lock; UINT64_MAX for a wait without limit.
    pub left_ms: u64,
    /// How many other waiters of this client come first.
    pub place: u64,
    /// How often the store was asked.
    pub attempts: u32,
    /// Not 0 when a guard of the same client holds the lock: a guard of another thread, or one of this thread, which
    /// then waits for itself.
    pub held_by_this_client: u32,
}

/// Called with the wait and the `user` pointer that was given.
pub type OnWait = Option<unsafe extern "C" fn(waiting: *const WaitInfo, user: *mut c_void)>;

pub type WaitFn = unsafe extern "C" fn(waiting: *const WaitInfo, user: *mut c_void);

/// Calls the function, on the thread that waits.
pub fn tell(Callback { function, user }: Callback<WaitFn>, waiting: &Waiting) {
    let holder = waiting.holders.first().map(|holder| holder.owner().to_owned()).unwrap_or_default();
    let text = waiting.last_error.as_ref().map(Error::with_causes).unwrap_or_default();
    let [key, holder, text] = [waiting.key.clone(), holder, text].map(|text| text + "\0");
    let left = waiting.until.map(|until| as_millis(until.saturating_duration_since(Instant::now())));
    let info = WaitInfo {
        size: size_of::<WaitInfo>(),
        key: key.as_ptr().cast(),
        key_len: key.len() - 1,
        holder: holder.as_ptr().cast(),
        holder_len: holder.len() - 1,
        text: text.as_ptr().cast(),
        text_len: text.len() - 1,
        waited_ms: as_millis(waiting.waited),
        left_ms: left.unwrap_or(u64::MAX),
        place: waiting.place as u64,
        attempts: waiting.attempts,
        held_by_this_client: u32::from(waiting.held_by_this_client),
    };
    // SAFETY: the program that set it promised that it may be called during the calls that wait; the texts live until
    // it returns.
    unsafe { function(&info, user) }
}
