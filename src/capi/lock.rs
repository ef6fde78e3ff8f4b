//! Locks as data: to hand a lock over, or to hold one without a guard.

use std::ffi::c_char;

use parking_lot::Mutex;

use super::code::Code;
use super::failure::Failure;
use super::status::{STATUS_FIRST_SIZE, Status, UNENDING, pick};
use super::{call, handle, out_arg, sized_out_arg, text};
use crate::model::error::Error;
use crate::model::lock::{Lock, OTHER_VERSION};

/// A lock as data.
pub struct LockData(Mutex<Option<Lock>>);
handle::object!(LockData = 5, LockHandle, "lock");

/// A lock as data. Having it does not mean that the lock is held. Anyone who has it can renew, release and adopt it, so
/// treat it like a password. Free it with leasehold_lock_free, which releases nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockHandle {
    pub id: u64,
}

impl LockData {
    pub fn new(lock: Lock) -> Self {
        LockData(Mutex::new(Some(lock)))
    }

    /// For a lock that is not acquired yet. The handle is made first, because nobody could release a lock without one.
    pub fn none_yet() -> Self {
        LockData(Mutex::default())
    }

    pub fn copy(&self) -> Result<Lock, Failure> {
        // `None` only while the handle was not given out yet.
        self.0.lock().clone().ok_or_else(|| Failure::new(Code::StaleHandle, "there is no lock behind this handle"))
    }

    pub fn set(&self, lock: Lock) {
        *self.0.lock() = Some(lock);
    }
}

/// The numbers of a lock: `remaining_ms` is counted by this host's wall clock, and proves nothing: whoever has only the
/// data stops earlier, by a margin. `status_size` is `sizeof *status`.
/// \param status Gets the numbers; `status_size` bytes.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_lock_status(lock: LockHandle, status: *mut Status, status_size: usize) -> Code {
    call(|| {
        let status = sized_out_arg!(status, status_size, STATUS_FIRST_SIZE);
        let lock = handle::get::<LockData>(lock)?.copy()?;
        let left = |at: std::time::SystemTime| at.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        status.write(Status::new(
            lock.fencing_token(),
            lock.mode(),
            lock.created(),
            lock.renewed(),
            lock.leased_until(),
            lock.leased_until().map_or(UNENDING, left),
        ))
    })
}

/// A text of a lock; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_lock_text(
    lock: LockHandle,
    text: i32,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let lock = handle::get::<LockData>(lock)?.copy()?;
        let part = pick(text, lock.key(), Some(lock.lock_id()), lock.owner(), lock.host(), lock.comment())?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(part, buffer, capacity, len) }
    })
}

/// Writes the lock as bytes, for another process; they are as secret as the lock id. `len` gets how many bytes there
/// are. If they do not fit, none is written, and the code is LEASEHOLD_CODE_BUFFER_TOO_SMALL unless `capacity` is 0.
/// \param buffer Has room for `capacity` bytes; may be NULL if that is 0.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_lock_to_bytes(
    lock: LockHandle,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let lock = handle::get::<LockData>(lock)?.copy()?;
        let not_written = |error| Failure::new(Code::Panic, format!("the lock can't be written: {error}"));
        let bytes = serde_json::to_vec(&lock).map_err(not_written)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write_bytes(&bytes, buffer, capacity, len) }
    })
}

/// Makes data of the bytes that another process wrote with leasehold_lock_to_bytes, or that a Rust program wrote as
/// JSON. LEASEHOLD_CODE_INVALID_INPUT when they are something else.
/// \param bytes `bytes_len` bytes.
/// \param lock Gets the data.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_lock_from_bytes(bytes: *const u8, bytes_len: usize, lock: *mut LockHandle) -> Code {
    call(|| {
        // SAFETY: the header asks the caller for `bytes_len` readable bytes; NULL is refused.
        let bytes = unsafe { text::read_bytes("bytes", bytes, bytes_len) }?;
        let lock = out_arg!(lock);
        // The error has no cause, because a cause could show a part of the bytes, which are secret.
        let not_read = |error: serde_json::Error| {
            let is_newer = error.to_string().starts_with(OTHER_VERSION);
            let given = if is_newer { "a lock of another version of leasehold" } else { "no lock" };
            Failure::from(Error::invalid("bytes", given, "what leasehold_lock_to_bytes wrote"))
        };
        let data: Lock = serde_json::from_slice(bytes).map_err(not_read)?;
        lock.write(handle::insert(LockData::new(data))?)
    })
}

/// Frees the data. The lock itself stays held until it is released or its lease ends.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_lock_free(lock: LockHandle) -> Code {
    call(|| handle::remove::<LockData>(lock).map(drop))
}
