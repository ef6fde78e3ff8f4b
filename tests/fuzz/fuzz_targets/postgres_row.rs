//! See `targets.rs`.
#![no_main]

#[allow(dead_code)] // The other targets are programs of their own.
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::postgres_row(bytes));
