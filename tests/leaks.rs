//! Finished calls leave no memory behind. Each test runs alone, because it counts every byte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::testing::MemoryStore;
use leasehold::{LockClient, LossReceiver};

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(sign * isize::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
}

// SAFETY: the system's allocator does all the work; `realloc` and `alloc_zeroed` go through these two.
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

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many bytes remain per call. What is created once and kept exists after the first round.
fn bytes_left(calls: isize, mut call: impl FnMut()) -> isize {
    (0..calls).for_each(|_| call());
    let before = LIVE.load(Ordering::Relaxed);
    (0..calls).for_each(|_| call());
    (LIVE.load(Ordering::Relaxed) - before) / calls
}

#[test]
fn guards_that_are_gone_leave_no_memory_behind() {
    let _alone = alone();
    let client = LockClient::connect("memory:").unwrap();
    let each = bytes_left(2000, || drop(client.lock("k").unwrap()));
    assert!(each < 50, "{each} bytes stay of each guard");
}

/// The resident memory of this process, in KiB.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

#[cfg(target_os = "linux")]
#[test]
fn waits_that_are_over_leave_no_memory_behind() {
    let _alone = alone();
    let store = MemoryStore::new();
    let client = store.client();
    // Its heartbeat's thread would start in between.
    let _held = client.request("k").lease(Duration::from_secs(3600)).lock().unwrap();
    let wait = || assert!(client.try_lock_for("k", Duration::from_micros(100)).unwrap().is_none());
    let each = bytes_left(500, wait);
    assert!(each < 50, "{each} bytes stay of each wait");
    let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned();
    let before = resident();
    (0..5000).for_each(|_| wait());
    let grown = resident().saturating_sub(before);
    assert!(grown < 1024, "{grown} KiB more after 5000 waits");
    // Each wait starts a thread that is told when to look.
    let each = bytes_left(8, || {
        wait();
        // A thread that has just been started still has the name of this thread.
        while threads("leasehold-wake") > 0 || threads(&own) > 1 {
            std::thread::yield_now();
        }
    });
    assert!(each < 100, "{each} bytes stay of each wait that ends its thread");
    // The same with a new client for each wait.
    let each = bytes_left(300, || {
        let client = store.client();
        assert!(client.try_lock_for("k", Duration::from_micros(100)).unwrap().is_none());
        client.close().unwrap();
    });
    assert!(each < 100, "{each} bytes stay of each client");
}

/// A loop may take a new receiver in each round while the guard is held.
#[test]
fn receivers_that_are_gone_leave_no_memory_behind() {
    const CALLS: isize = 10_000;
    let _alone = alone();
    let store = MemoryStore::new();
    let guard = store.client().lock("k").unwrap();
    let watch = guard.loss();
    let (kept, cloned) = (watch.receiver(), watch.receiver().clone());
    let left = bytes_left(CALLS, || drop(watch.receiver()));
    assert_eq!(left, 0, "bytes stay of each receiver");
    store.advance(Duration::from_secs(60));
    let hears = |receiver: &LossReceiver| receiver.recv_timeout(Duration::from_secs(20)).is_ok();
    assert!(hears(&kept) && hears(&cloned), "one that is there was forgotten with the others");
    assert!(hears(&watch.receiver()));
}
