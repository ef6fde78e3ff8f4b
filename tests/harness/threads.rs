//! The threads of the library in this process. Only exact in a test that runs `alone`.

use super::eventually;

/// The names of the threads that are alive, cut to 15 bytes by the kernel.
pub fn ours() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut names: Vec<String> =
        names.map(|name| name.trim_end().to_owned()).filter(|name| name.starts_with("leasehold-")).collect();
    names.sort();
    names
}

/// Exactly these run.
#[track_caller]
pub fn assert_ours(names: &[&str]) {
    // A joined thread may be seen for a moment: the kernel wakes the joiner first.
    let soon = std::time::Instant::now() + super::millis(200);
    while ours() != names && std::time::Instant::now() < soon {
        std::thread::yield_now();
    }
    assert_eq!(ours(), names);
}

/// None is left, after at most a while.
#[track_caller]
pub fn none_soon() {
    eventually("no thread of the library is left", || ours().is_empty());
}
