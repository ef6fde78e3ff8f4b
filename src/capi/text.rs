//! Texts and places that C passes as pointers.

use std::ffi::{CStr, c_char};

use super::code::Code;
use super::failure::{Failure, Outcome};

/// A text of the caller's.
///
/// # Safety
/// Unless it is NULL, `text` points to `len` bytes, or with `usize::MAX` to a NUL at their end, that nobody writes to
/// during the call.
pub unsafe fn read<'a>(name: &str, text: *const c_char, len: usize) -> Result<&'a str, Failure> {
    let is_ended = len == usize::MAX && !text.is_null();
    // SAFETY: not NULL, and it ends in a NUL as the caller promises.
    let len = if is_ended { unsafe { CStr::from_ptr(text) }.count_bytes() } else { len };
    // SAFETY: passed on from the caller.
    let bytes = unsafe { read_bytes(name, text.cast(), len) }?;
    std::str::from_utf8(bytes).map_err(|error| {
        let message = format!("{name} is not UTF-8 from byte {} on", error.valid_up_to());
        Failure::new(Code::BadUtf8, message)
    })
}

/// Bytes of the caller's.
///
/// # Safety
/// Unless it is NULL, `bytes` points to `len` bytes that nobody writes to during the call.
pub unsafe fn read_bytes<'a>(name: &str, bytes: *const u8, len: usize) -> Result<&'a [u8], Failure> {
    if bytes.is_null() {
        return Err(null(name));
    }
    // Such a length is a negative number that became a size.
    if isize::try_from(len).is_err() {
        return Err(Failure::new(Code::InvalidInput, format!("the length of {name} is {len}, more than can be")));
    }
    // SAFETY: not NULL, of a possible length, and readable as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// Copies a text out: as much as fits, cut between characters, with a NUL behind it. `len` gets the length of the
/// whole text without the NUL, also when it does not fit, which is an error unless `capacity` is 0.
///
/// # Safety
/// `buffer` has room for `capacity` bytes, or is NULL and `capacity` 0; `len` can be written to or is NULL.
pub unsafe fn write(text: &str, buffer: *mut c_char, capacity: usize, len: *mut usize) -> Outcome {
    if buffer.is_null() && capacity > 0 {
        return Err(null("buffer"));
    }
    if !len.is_null() {
        // SAFETY: not NULL, and a place of the caller's.
        unsafe { len.write_unaligned(text.len()) };
    }
    if capacity == 0 {
        return Ok(());
    }
    // This is `floor_char_boundary`, which the oldest supported compiler lacks.
    let mut fits = text.len().min(capacity - 1);
    while !text.is_char_boundary(fits) {
        fits -= 1;
    }
    // SAFETY: `fits` < `capacity`, and nobody else has the caller's buffer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), fits);
        buffer.add(fits).write(0);
    }
    if fits < text.len() { Err(too_small(text.len() + 1, capacity)) } else { Ok(()) }
}

/// The same for bytes, which are copied as a whole or not at all.
///
/// # Safety
/// As [`write`].
pub unsafe fn write_bytes(bytes: &[u8], buffer: *mut u8, capacity: usize, len: *mut usize) -> Outcome {
    if buffer.is_null() && capacity > 0 {
        return Err(null("buffer"));
    }
    if !len.is_null() {
        // SAFETY: not NULL, and a place of the caller's.
        unsafe { len.write_unaligned(bytes.len()) };
    }
    if capacity == 0 {
        return Ok(());
    }
    if capacity < bytes.len() {
        return Err(too_small(bytes.len(), capacity));
    }
    // SAFETY: it fits, and nobody else has the caller's buffer.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    Ok(())
}

/// A pointer of the caller's, written to only on success.
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// Unless it is NULL, `out` can be written to until the call is over.
    pub unsafe fn new(name: &str, out: *mut T) -> Result<Self, Failure> {
        if out.is_null() { Err(null(name)) } else { Ok(Out(out)) }
    }

    /// Never fails; it returns an `Outcome` so that it can end the body of a call.
    pub fn write(self, value: T) -> Outcome {
        self.put(value);
        Ok(())
    }

    /// Writes a value that remains there if the call fails: for answers whose old value must not be mistaken for a good
    /// one.
    pub fn or(self, value: T) -> Self {
        self.put(value);
        self
    }

    fn put(&self, value: T) {
        // SAFETY: `new` demands a place that can be written to; it need not be aligned.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// A struct of the caller's that may be of an older or a newer version than ours: the caller says how large it is.
pub struct SizedOut<T> {
    out: *mut T,
    size: usize,
}

impl<T> SizedOut<T> {
    /// A larger size is a mistake.
    const MAX_SIZE: usize = 4096;

    /// `first_size` is the size of the struct's first version.
    ///
    /// # Safety
    /// Unless it is NULL, `size` bytes at `out` can be written to until the call is over.
    pub unsafe fn new(name: &str, out: *mut T, size: usize, first_size: usize) -> Result<Self, Failure> {
        if out.is_null() {
            return Err(null(name));
        }
        if !(first_size..=Self::MAX_SIZE).contains(&size) {
            let right = format!("its sizeof, {first_size} to {}", Self::MAX_SIZE);
            return Err(Failure::new(Code::InvalidInput, format!("{name}_size is {size}, but must be {right}")));
        }
        Ok(SizedOut { out, size })
    }

    /// Writes the fields that both versions have; those that only the caller's version has become 0.
    pub fn write(self, value: T) -> Outcome {
        let ours = size_of::<T>().min(self.size);
        // SAFETY: `new` demands `size` bytes that can be written to, and nobody else has them.
        unsafe {
            self.out.cast::<u8>().write_bytes(0, self.size);
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), self.out.cast(), ours);
        }
        Ok(())
    }
}

pub fn null(name: &str) -> Failure {
    Failure::new(Code::NullPointer, format!("{name} is NULL"))
}

fn too_small(needed: usize, capacity: usize) -> Failure {
    let message = format!("the buffer has {capacity} bytes, but {needed} are needed");
    Failure::new(Code::BufferTooSmall, message)
}
