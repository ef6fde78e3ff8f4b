//! A duration as the command reads it.
#![no_main]

#[allow(dead_code)] // The command uses all of it.
#[path = "../../../src/cli/words.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(duration) = words::duration_or_zero(text) {
        let _ = words::words(duration);
    }
    let _ = words::duration(text);
});
