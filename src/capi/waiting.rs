//! What C hears of a wait that goes on.

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
    /// Who holds it, or the first of several, as far as is known; else empty.
    pub holder: *const c_char,
    pub holder_len: usize,
    /// Why the store could not be asked last time, for people; else empty.
    pub text: *const c_char,
    pub text_len: usize,
    /// For how long this call has waited.
    pub waited_ms: u64,
    /// When it gives up; UINT64_MAX: never.
    pub left_ms: u64,
    /// How many others of this process come first.
    pub place: u64,
    /// How often the store was asked.
    pub attempts: u32,
    /// Not 0 when a guard of this very client holds the lock: another thread's, or this one's, which would then wait for
    /// itself.
    pub held_by_this_client: u32,
}

/// Called with the wait and the `user` pointer that was given.
pub type OnWait = Option<unsafe extern "C" fn(waiting: *const WaitInfo, user: *mut c_void)>;

pub type WaitFn = unsafe extern "C" fn(waiting: *const WaitInfo, user: *mut c_void);

/// Calls it, on the thread that waits.
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
    // SAFETY: whoever set it promised that it may be called during the calls that wait; the texts live until it returns.
    unsafe { function(&info, user) }
}
