//! The threads of the library in this process. Exact only in a test that runs `alone`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::wait::wait_until;

/// The names of the threads that are alive, cut to 15 bytes by the kernel.
pub fn ours() -> Vec<String> {
    let stats = tasks().into_iter().filter_map(|task| std::fs::read_to_string(task.join("stat")).ok());
    let names = stats.filter_map(|stat| alive(&stat).map(str::to_owned));
    let mut names: Vec<String> = names.filter(|name| name.starts_with("leasehold-")).collect();
    names.sort();
    names
}

/// All threads. If the thread that the kernel's list has come to ends at that moment, the list ends early and leaves
/// out the threads after it. If two lists are the same, none ended early. Where threads come and go all the time no two
/// lists are the same; then this returns all of many lists, including some threads that have ended.
pub fn tasks() -> Vec<PathBuf> {
    let list = || -> BTreeSet<PathBuf> {
        let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
        tasks.filter_map(|task| Some(task.ok()?.path())).collect()
    };
    let (mut last, mut all) = (list(), BTreeSet::new());
    for _ in 0..50 {
        let again = list();
        if again == last {
            return last.into_iter().collect();
        }
        all.append(&mut last);
        last = again;
    }
    all.append(&mut last);
    all.into_iter().collect()
}

/// The name in this line of the kernel's list, unless the thread is ending: a thread that was joined may stay for a
/// moment.
fn alive(stat: &str) -> Option<&str> {
    const ENDING: u32 = 0x4;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let flags: u32 = rest.split(' ').nth(6)?.parse().ok()?;
    (flags & ENDING == 0).then_some(name)
}

/// The threads of clients: without the one that each open store behind a network has in addition.
pub fn of_clients() -> Vec<String> {
    ours().into_iter().filter(|name| name != "leasehold-drive").collect()
}

/// Asserts that exactly these threads run for clients.
#[track_caller]
pub fn assert_ours(names: &[&str]) {
    assert_eq!(of_clients(), names);
}

/// Waits until no thread of the library is left.
#[track_caller]
pub fn none_soon() {
    wait_until("no thread of the library is left", || ours().is_empty());
}

/// Keeps this process from starting threads: sets the limit of its user, and gives up root's right to exceed it.
pub fn no_new_threads() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // It needs a thread of its own, so start it first.
    super::lateness::measure();
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).expect("the limit");
    setrlimit(Resource::RLIMIT_NPROC, 1, hard).expect("a limit");
    // The limit does not apply to root.
    let nobody = nix::unistd::Uid::from_raw(65534);
    if nix::unistd::Uid::effective().is_root() {
        nix::unistd::setuid(nobody).expect("another user");
    }
    std::thread::Builder::new().spawn(|| {}).map(drop).expect_err("the limit works");
}

/// Lifts the limit again.
pub fn threads_again() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).expect("the limit");
    setrlimit(Resource::RLIMIT_NPROC, hard, hard).expect("no limit");
}
