//! What a call through C costs compared with the same call of the Rust API. The two are measured by turns, on the
//! memory store, so that nothing but the calls themselves is measured.
//!
//! `cargo bench --features capi --bench capi`

use std::ffi::c_char;
use std::hint::black_box;
use std::time::{Duration, Instant};

use leasehold::LockClient;

// As src/capi/leasehold.h declares them; a struct of one number is passed as that number.
unsafe extern "C" {
    fn leasehold_client_connect(version: u32, url: *const c_char, url_len: usize, client: *mut u64) -> i32;
    fn leasehold_client_lock(client: u64, key: *const c_char, key_len: usize, guard: *mut u64) -> i32;
    fn leasehold_client_try_lock(client: u64, key: *const c_char, key_len: usize, guard: *mut u64) -> i32;
    fn leasehold_client_get(c: u64, key: *const c_char, len: usize, token: *mut u64, list: *mut u64) -> i32;
    fn leasehold_version_number() -> u32;
    fn leasehold_guard_is_held(guard: u64, held: *mut bool) -> i32;
    fn leasehold_guard_token(guard: u64, token: *mut u64) -> i32;
    fn leasehold_guard_remaining(guard: u64, ms: *mut u64) -> i32;
    fn leasehold_guard_ensure_held(guard: u64) -> i32;
    fn leasehold_guard_release(guard: u64) -> i32;
    fn leasehold_guard_free(guard: u64) -> i32;
    fn leasehold_list_free(list: u64) -> i32;
}

const ROUNDS: usize = 300;

fn text(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

/// The median time of one call, in nanoseconds.
fn median(mut times: Vec<Duration>, calls: u32) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / f64::from(calls)
}

/// Measures both by turns, so that the machine's other load affects both.
fn compare(name: &str, calls: u32, mut rust: impl FnMut(), mut c: impl FnMut()) {
    let (mut rust_times, mut c_times) = (Vec::new(), Vec::new());
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed()
    };
    for _ in 0..ROUNDS {
        rust_times.push(time(&mut rust));
        c_times.push(time(&mut c));
    }
    let (rust, c) = (median(rust_times, calls), median(c_times, calls));
    println!("{name:<34} {rust:>10.0} {c:>10.0} {:>10.0}", c - rust);
}

fn main() {
    let client = LockClient::connect("memory:bench").expect("a memory store");
    let mut c_client = 0;
    let (url, url_len) = text("memory:bench");
    // SAFETY: the texts live until the end, and each result has a valid place; the same holds for all calls below.
    assert_eq!(unsafe { leasehold_client_connect(leasehold_version_number(), url, url_len, &mut c_client) }, 0);

    let (key, len) = text("k");
    let (held_key, held_len) = text("held");
    let guard = client.lock("held").expect("it is free");
    let (other, other_len) = text("other");
    let mut c_guard = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { leasehold_client_lock(c_client, other, other_len, &mut c_guard) }, 0);

    println!("{:<34} {:>10} {:>10} {:>10}", "median, ns per call", "Rust", "C", "C - Rust");
    compare(
        "is_held",
        100,
        || assert!(black_box(&guard).is_held()),
        || {
            let mut held = false;
            // SAFETY: as above.
            assert!(unsafe { leasehold_guard_is_held(c_guard, &mut held) } == 0 && held);
        },
    );
    compare(
        "ensure_held",
        100,
        || assert!(black_box(&guard).ensure_held().is_ok()),
        // SAFETY: as above.
        || assert_eq!(unsafe { leasehold_guard_ensure_held(c_guard) }, 0),
    );
    compare(
        "fencing_token",
        100,
        || assert!(black_box(&guard).fencing_token() > 0),
        || {
            let mut token = 0;
            // SAFETY: as above.
            assert!(unsafe { leasehold_guard_token(c_guard, &mut token) } == 0 && token > 0);
        },
    );
    compare(
        "remaining",
        100,
        || assert!(!black_box(&guard).remaining().is_zero()),
        || {
            let mut ms = 0;
            // SAFETY: as above.
            assert!(unsafe { leasehold_guard_remaining(c_guard, &mut ms) } == 0 && ms > 0);
        },
    );
    compare(
        "try_lock, refused",
        20,
        || assert!(client.try_lock("held").expect("it answers").is_none()),
        || {
            let mut guard = 0;
            // SAFETY: as above.
            assert_eq!(unsafe { leasehold_client_try_lock(c_client, held_key, held_len, &mut guard) }, 1);
        },
    );
    compare(
        "try_lock, refused, with holders",
        20,
        || assert!(client.request("held").wait(Duration::ZERO).lock().is_err()),
        || {
            let mut guard = 0;
            // SAFETY: as above.
            assert_eq!(unsafe { leasehold_client_try_lock(c_client, held_key, held_len, &mut guard) }, 1);
        },
    );
    compare(
        "get",
        20,
        || assert!(client.get("held").expect("it answers").is_some()),
        || {
            let (mut token, mut list) = (0, 0);
            // SAFETY: as above.
            unsafe {
                assert_eq!(leasehold_client_get(c_client, held_key, held_len, &mut token, &mut list), 0);
                leasehold_list_free(list);
            }
        },
    );
    compare(
        "lock, then free (2 calls)",
        20,
        || drop(client.lock("k").expect("it is free")),
        || {
            let mut guard = 0;
            // SAFETY: as above.
            unsafe {
                assert_eq!(leasehold_client_lock(c_client, key, len, &mut guard), 0);
                assert_eq!(leasehold_guard_free(guard), 0);
            }
        },
    );
    compare(
        "lock, release, free (3 calls)",
        20,
        || assert!(client.lock("k").expect("it is free").release().is_ok()),
        || {
            let mut guard = 0;
            // SAFETY: as above.
            unsafe {
                assert_eq!(leasehold_client_lock(c_client, key, len, &mut guard), 0);
                assert_eq!(leasehold_guard_release(guard), 0);
                assert_eq!(leasehold_guard_free(guard), 0);
            }
        },
    );
    // SAFETY: as above.
    unsafe { leasehold_guard_free(c_guard) };
}
