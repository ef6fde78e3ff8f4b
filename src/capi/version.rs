//! Which version this is, and whether a program was compiled with a header that fits.

use std::ffi::c_char;

use super::code::Code;
use super::failure::{Failure, Outcome};

/// One part of the version, as Cargo gives it.
const fn part(text: &str) -> u32 {
    let (text, mut number, mut at) = (text.as_bytes(), 0, 0);
    while at < text.len() {
        number = number * 10 + (text[at] - b'0') as u32;
        at += 1;
    }
    number
}

const MAJOR: u32 = part(env!("CARGO_PKG_VERSION_MAJOR"));
const MINOR: u32 = part(env!("CARGO_PKG_VERSION_MINOR"));
const PATCH: u32 = part(env!("CARGO_PKG_VERSION_PATCH"));
const NUMBER: u32 = MAJOR * 1_000_000 + MINOR * 1_000 + PATCH;

/// Equal for versions that are compatible with each other: before 1.0 each minor version may break programs.
fn compatible(version: u32) -> (u32, u32) {
    let (major, minor) = (version / 1_000_000, version / 1_000 % 1_000);
    (major, if major == 0 { minor } else { 0 })
}

/// Refuses a program that was compiled with the header of an incompatible version.
pub fn check(version: u32) -> Outcome {
    if compatible(version) == compatible(NUMBER) {
        return Ok(());
    }
    let (major, minor, patch) = (version / 1_000_000, version / 1_000 % 1_000, version % 1_000);
    let message = format!(
        "the program was compiled with leasehold.h of version {major}.{minor}.{patch}, but runs with the library {MAJOR}.\
         {MINOR}.{PATCH}: pass LEASEHOLD_VERSION_NUMBER, and compile it anew with the header of this library"
    );
    Err(Failure::new(Code::Config, message))
}

/// The version of the library that runs, like "0.1.0"; LEASEHOLD_VERSION is that of the header. The text is static: do
/// not free it.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of the library that runs, as a number like LEASEHOLD_VERSION_NUMBER: 1,000,000 for each major version,
/// 1,000 for each minor one, and 1 for each patch.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_version_number() -> u32 {
    NUMBER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_that_break_programs_differ() {
        assert_eq!(compatible(1_002_003), compatible(1_900_000));
        assert_ne!(compatible(1_002_003), compatible(2_002_003));
        assert_eq!(compatible(2_003), compatible(2_000));
        assert_ne!(compatible(2_003), compatible(3_003));
        assert_ne!(compatible(2_003), compatible(1_002_003));
        let code = |version| check(version).map_or_else(super::super::failure::keep, |()| Code::Ok);
        assert_eq!((code(NUMBER), code(NUMBER + 1_000), code(0)), (Code::Ok, Code::Config, Code::Config));
    }
}
