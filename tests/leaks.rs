//! A guard that is gone leaves no memory behind. Alone in its process, since it counts every byte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use leasehold::LockClient;

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(sign * isize::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
}

// SAFETY: the system's allocator does it all; `realloc` and `alloc_zeroed` go through these two.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn guards_that_are_gone_leave_no_memory_behind() {
    const GUARDS: isize = 2000;
    let client = LockClient::connect("memory:").unwrap();
    let round = || (0..GUARDS).for_each(|_| drop(client.lock("k").unwrap()));
    // What is made once and kept is there after the first round.
    round();
    let before = LIVE.load(Ordering::Relaxed);
    round();
    let each = (LIVE.load(Ordering::Relaxed) - before) / GUARDS;
    assert!(each < 50, "{each} bytes stay of each guard");
}
