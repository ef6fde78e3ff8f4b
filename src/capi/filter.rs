//! Which locks a listing finds.

use std::ffi::c_char;

use parking_lot::Mutex;

use super::code::Code;
use super::{Outcome, call, handle, millis, out_arg, text_arg, unix_time};
use crate::Mode;
use crate::api::filter::Filter;

/// A filter of the Rust API.
pub struct FilterData(Mutex<Filter>);
handle::object!(FilterData = 7, FilterHandle, "filter");

/// Which locks leasehold_client_list finds: those that fit everything that is set. Free it with
/// leasehold_filter_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterHandle {
    pub id: u64,
}

impl FilterData {
    pub fn copy(&self) -> Filter {
        self.0.lock().clone()
    }
}

fn set(filter: FilterHandle, set: impl FnOnce(Filter) -> Filter) -> Outcome {
    let data = handle::get::<FilterData>(filter)?;
    let mut filter = data.0.lock();
    *filter = set(std::mem::take(&mut *filter));
    Ok(())
}

/// Makes a filter that fits every lock. Each function below lets fewer pass.
/// \param filter Gets the filter.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_filter_new(filter: *mut FilterHandle) -> Code {
    call(|| {
        let filter = out_arg!(filter);
        filter.write(handle::insert(FilterData(Mutex::new(Filter::new())))?)
    })
}

/// Only this key.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_filter_set_key(filter: FilterHandle, key: *const c_char, key_len: usize) -> Code {
    call(|| {
        let key = text_arg!(key, key_len);
        set(filter, |filter| filter.key(key))
    })
}

/// Only keys that start with this text, byte by byte; the empty text fits all.
/// \param prefix `prefix_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_filter_set_key_prefix(
    filter: FilterHandle,
    prefix: *const c_char,
    prefix_len: usize,
) -> Code {
    call(|| {
        let prefix = text_arg!(prefix, prefix_len);
        set(filter, |filter| filter.key_prefix(prefix))
    })
}

/// Only locks of this group.
/// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_filter_set_lock_id(
    filter: FilterHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
) -> Code {
    call(|| {
        let lock_id = text_arg!(lock_id, lock_id_len);
        set(filter, |filter| filter.lock_id(lock_id))
    })
}

/// Only locks whose holder has exactly this label.
/// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_filter_set_owner(
    filter: FilterHandle,
    owner: *const c_char,
    owner_len: usize,
) -> Code {
    call(|| {
        let owner = text_arg!(owner, owner_len);
        set(filter, |filter| filter.owner(owner))
    })
}

/// Only exclusive holders.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_exclusive(filter: FilterHandle) -> Code {
    call(|| set(filter, |filter| filter.mode(Mode::Exclusive)))
}

/// Only shared holders.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_shared(filter: FilterHandle) -> Code {
    call(|| set(filter, |filter| filter.mode(Mode::Shared)))
}

/// Only locks whose lease, or the store's grace after it, is running.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_live(filter: FilterHandle) -> Code {
    call(|| set(filter, Filter::live))
}

/// Only locks whose lease and the store's grace have ended, and that nobody has taken or purged since.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_expired(filter: FilterHandle) -> Code {
    call(|| set(filter, Filter::expired))
}

/// Only locks that were granted before this time, in milliseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_created_before(filter: FilterHandle, unix_ms: u64) -> Code {
    call(|| {
        let at = unix_time(unix_ms)?;
        set(filter, |filter| filter.created_before(at))
    })
}

/// Only locks that were granted at this time or later, in milliseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_created_after(filter: FilterHandle, unix_ms: u64) -> Code {
    call(|| {
        let at = unix_time(unix_ms)?;
        set(filter, |filter| filter.created_after(at))
    })
}

/// Only locks with fewer milliseconds than this left of their lease, the expired ones included. Leaves out endless
/// locks.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_remaining_below(filter: FilterHandle, ms: u64) -> Code {
    call(|| set(filter, |filter| filter.remaining_below(millis(ms))))
}

/// Only locks with at least this many milliseconds left of their lease. Leaves out endless locks, also for 0.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_set_remaining_at_least(filter: FilterHandle, ms: u64) -> Code {
    call(|| set(filter, |filter| filter.remaining_at_least(millis(ms))))
}

/// Frees the filter.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_filter_free(filter: FilterHandle) -> Code {
    call(|| handle::remove::<FilterData>(filter).map(drop))
}
