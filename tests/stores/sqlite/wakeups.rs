//! What a waiter costs that is told of changes, and that it is told of them.

use std::fs;
use std::time::{Duration, Instant};

use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Backend, Purpose};
use nix::libc;

use crate::sqlite::support::*;

/// As for the 129th process of a user that waits, and for who shares a user with editors.
fn no_notices() {
    refuse(libc::SYS_inotify_init1, (0, 0), [0; 2], libc::EMFILE);
}

/// How often the thread that looks at the file was woken.
fn woken() -> u64 {
    let looks = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "leasehold-file")
    };
    let task = crate::support::threads::tasks().into_iter().find(looks).unwrap();
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Holds `k`, and lets another store tell of it.
fn watched(folder: &Folder) -> (Sqlite, Sqlite, crossbeam_channel::Receiver<String>) {
    let (holding, watching) = (open(&folder.file()), open(&folder.file()));
    let (to, told) = crossbeam_channel::unbounded();
    assert!(watching.wake(&["k".to_owned()], to, &soon()).unwrap());
    (holding, watching, told)
}

#[track_caller]
fn is_told_of_each_release(holding: &Sqlite, told: &crossbeam_channel::Receiver<String>) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        let mut mine = attempt("k", "a");
        granted(holding, &mut mine);
        told.try_iter().for_each(drop);
        let released = Instant::now();
        holding.release(&mut mine, Purpose::Release, &soon()).unwrap();
        assert_eq!(told.recv_timeout(seconds(20)).as_deref(), Ok("k"));
        longest = longest.max(released.elapsed());
    }
    longest
}

/// Two hundred of them wait in two hundred processes.
#[test]
fn who_waits_is_woken_seldom_with_and_without_notices() {
    if !is_alone("sqlite::wakeups::who_waits_is_woken_seldom_with_and_without_notices") {
        return;
    }
    for (what, most) in [("with", 3), ("without", 25)] {
        if what == "without" {
            no_notices();
        }
        let folder = Folder::new();
        let (holding, _watching, told) = watched(&folder);
        let longest = is_told_of_each_release(&holding, &told);
        eprintln!("{what} notices: told after {longest:?} at the latest");
        granted(&holding, &mut attempt("k", "a"));
        // The looks after the last commit may be over late on a busy machine, and so may the time of this thread.
        let mut counts = Vec::new();
        let is_seldom = (0..3).any(|_| {
            std::thread::sleep(seconds(2));
            let (before, began) = (woken(), Instant::now());
            std::thread::sleep(seconds(2));
            let (times, took) = (woken() - before, began.elapsed());
            counts.push((times, took));
            times <= most * took.as_secs()
        });
        assert!(is_seldom, "{what} notices: so often woken in that time: {counts:?}");
    }
}

#[test]
fn a_file_that_is_removed_is_noticed_at_once() {
    for ending in ["", "-wal", "-shm"] {
        let folder = Folder::new();
        let (_holding, _watching, told) = watched(&folder);
        fs::remove_file(folder.path().join(format!("locks.db{ending}"))).unwrap();
        let ended = told.recv_timeout(seconds(20));
        assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected), "locks.db{ending}");
    }
}
