//! The numbers that C programs compare. They never change.

use std::ffi::c_char;

use crate::model::error::ErrorKind;

/// What a function returns. The numbers never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The call did what it says.
    Ok = 0,
    /// Others hold the lock; leasehold_error_holders says who.
    Held = 1,
    /// This client holds the key already with the same lock id: it would wait for itself.
    AlreadyHeld = 2,
    /// The wait ended before the lock was free; leasehold_error_holders says who held it last.
    TimedOut = 3,
    /// The lock was held, and is not any more.
    Lost = 4,
    /// The wait was cancelled.
    Cancelled = 5,
    /// The client was closed, the lock was released, or what the call waits for can't happen any more.
    Closed = 6,
    /// An argument is out of bounds. Nothing was written.
    InvalidInput = 7,
    /// The store URL is wrong, or the store that it names can't be used in this way.
    Config = 8,
    /// The store denies access.
    Permission = 9,
    /// The table, the file or a row is not what this version can read.
    Schema = 10,
    /// The store can't be reached or failed; leasehold_error_is_retryable says whether a repeat may help.
    Store = 11,
    /// A write was sent to the store, and whether it happened could not be found out.
    Ambiguous = 12,
    /// Kept for clocks that differ by more than the guarantees allow. Nothing detects that yet, so nothing returns it.
    ClockSkew = 13,
    /// A lease is not in the state that the call needs.
    InvalidLease = 14,

    /// A pointer is NULL, but must not be.
    NullPointer = 100,
    /// A text is not UTF-8.
    BadUtf8 = 101,
    /// The number is no handle: zero, or never given out.
    BadHandle = 102,
    /// The handle was freed.
    StaleHandle = 103,
    /// The handle is one of another type.
    WrongHandle = 104,
    /// The handle belongs to the process that this one was forked from. Connect again in this process. But if any
    /// SQLite file was open at the fork, every SQLite file is refused with LEASEHOLD_CODE_CONFIG: fork before you
    /// connect, or exec in the child.
    Forked = 105,
    /// The buffer is too small; the length that is needed was written.
    BufferTooSmall = 106,
    /// What was asked for does not exist: nobody ever held the key, or the list has no such entry.
    NotFound = 107,
    /// There are 16 million handles of the type already.
    TooManyHandles = 108,
    /// A bug in the library: the call has caught a panic. The object that was used may not work any more: free it.
    Panic = 109,
}

/// All codes, with the names that the header gives them.
const NAMES: [(Code, &std::ffi::CStr); 25] = [
    (Code::Ok, c"LEASEHOLD_CODE_OK"),
    (Code::Held, c"LEASEHOLD_CODE_HELD"),
    (Code::AlreadyHeld, c"LEASEHOLD_CODE_ALREADY_HELD"),
    (Code::TimedOut, c"LEASEHOLD_CODE_TIMED_OUT"),
    (Code::Lost, c"LEASEHOLD_CODE_LOST"),
    (Code::Cancelled, c"LEASEHOLD_CODE_CANCELLED"),
    (Code::Closed, c"LEASEHOLD_CODE_CLOSED"),
    (Code::InvalidInput, c"LEASEHOLD_CODE_INVALID_INPUT"),
    (Code::Config, c"LEASEHOLD_CODE_CONFIG"),
    (Code::Permission, c"LEASEHOLD_CODE_PERMISSION"),
    (Code::Schema, c"LEASEHOLD_CODE_SCHEMA"),
    (Code::Store, c"LEASEHOLD_CODE_STORE"),
    (Code::Ambiguous, c"LEASEHOLD_CODE_AMBIGUOUS"),
    (Code::ClockSkew, c"LEASEHOLD_CODE_CLOCK_SKEW"),
    (Code::InvalidLease, c"LEASEHOLD_CODE_INVALID_LEASE"),
    (Code::NullPointer, c"LEASEHOLD_CODE_NULL_POINTER"),
    (Code::BadUtf8, c"LEASEHOLD_CODE_BAD_UTF8"),
    (Code::BadHandle, c"LEASEHOLD_CODE_BAD_HANDLE"),
    (Code::StaleHandle, c"LEASEHOLD_CODE_STALE_HANDLE"),
    (Code::WrongHandle, c"LEASEHOLD_CODE_WRONG_HANDLE"),
    (Code::Forked, c"LEASEHOLD_CODE_FORKED"),
    (Code::BufferTooSmall, c"LEASEHOLD_CODE_BUFFER_TOO_SMALL"),
    (Code::NotFound, c"LEASEHOLD_CODE_NOT_FOUND"),
    (Code::TooManyHandles, c"LEASEHOLD_CODE_TOO_MANY_HANDLES"),
    (Code::Panic, c"LEASEHOLD_CODE_PANIC"),
];

impl From<ErrorKind> for Code {
    /// A new kind gets a number that was never used.
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::Held => Code::Held,
            ErrorKind::AlreadyHeld => Code::AlreadyHeld,
            ErrorKind::TimedOut => Code::TimedOut,
            ErrorKind::Lost => Code::Lost,
            ErrorKind::Cancelled => Code::Cancelled,
            ErrorKind::Closed => Code::Closed,
            ErrorKind::InvalidInput => Code::InvalidInput,
            ErrorKind::Config => Code::Config,
            ErrorKind::Permission => Code::Permission,
            ErrorKind::Schema => Code::Schema,
            ErrorKind::Store => Code::Store,
            ErrorKind::Ambiguous => Code::Ambiguous,
            ErrorKind::ClockSkew => Code::ClockSkew,
            ErrorKind::InvalidLease => Code::InvalidLease,
        }
    }
}

/// The name of a code as in this header, or "LEASEHOLD_CODE_?" for any other number. The text is static: do
/// not free it.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_code_name(code: i32) -> *const c_char {
    let named = NAMES.iter().find(|(known, _)| *known as i32 == code);
    named.map_or(c"LEASEHOLD_CODE_?", |(_, name)| name).as_ptr()
}
