//! Replays the corpus of `tests/fuzz` and random changes of it, without a fuzzer. `LEASEHOLD_TEST_OPS` says how often.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use crate::support::seed::{seed, setting};

/// What may replace a piece of a corpus file, in addition to random bytes.
const PIECES: [&str; 20] = [
    "null",
    "true",
    "-1",
    "0",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e309",
    "\"\"",
    "[]",
    "{}",
    "\\u0000",
    "%00",
    "ä",
    "\u{10FFFF}",
    "?",
    "&",
    "9999-12-31T23:59:59.999999999Z",
    "-009999-01-02T01:59:59Z",
];

/// Runs each file as it is, and then many that are made from one of them by some changes.
fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = folder.read_dir().expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    let feed = |bytes: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
            println!("{name}: it got {}", bytes.escape_ascii());
            resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|bytes| feed(bytes));
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..setting("LEASEHOLD_TEST_OPS").unwrap_or(20_000) {
        let mut bytes = random.choice(&corpus).expect("a file").clone();
        for _ in 0..random.usize(1..5) {
            change(&mut bytes, &corpus, &mut random);
        }
        feed(&bytes);
    }
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut fastrand::Rng) {
    let from = random.usize(..=bytes.len());
    let to = (from + random.usize(..6)).min(bytes.len());
    match random.u32(..6) {
        0 => bytes.splice(from..to, []).for_each(drop),
        1 => bytes.splice(from..to, [random.u8(..)]).for_each(drop),
        2 => bytes.splice(from..from, bytes[from..to].to_vec()).for_each(drop),
        3 => bytes.splice(from..to, random.choice(PIECES).expect("a piece").bytes()).for_each(drop),
        // A whole word or number in the place of another one.
        4 => {
            let ends = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'-';
            let start = bytes[..from].iter().rposition(ends).map_or(0, |at| at + 1);
            let end = bytes[from..].iter().position(ends).map_or(bytes.len(), |at| from + at);
            bytes.splice(start..end, random.choice(PIECES).expect("a piece").bytes()).for_each(drop);
        }
        _ => {
            let other = random.choice(corpus).expect("a file");
            let at = random.usize(..=other.len());
            bytes.splice(from..to, other[at..(at + 20).min(other.len())].to_vec()).for_each(drop);
        }
    }
}

macro_rules! targets {
    ($($(#[$if:meta])* $target:ident,)+) => {
        $(#[test]
        $(#[$if])*
        fn $target() {
            replay(stringify!($target), targets::$target);
        })+
    };
}

targets! {
    urls,
    #[cfg(feature = "serde")]
    lock_json,
    sqlite_row,
    #[cfg(feature = "dynamodb")]
    dynamodb_row,
    #[cfg(feature = "mongodb")]
    mongodb_row,
    #[cfg(feature = "postgres")]
    postgres_row,
    #[cfg(feature = "spanner")]
    spanner_row,
}
