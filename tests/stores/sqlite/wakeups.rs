//! What a waiter costs that is woken by changes, and that it is woken by them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold::LockClient;
use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Backend, Purpose};
use nix::libc;

use crate::sqlite::support::*;
use crate::support::harness::{connected, patient};
use crate::support::lateness;
use crate::support::wait::wait_until;

/// As for the 129th process of a user that waits, and for a user whose editors use up the notices.
fn no_notices() {
    refuse(libc::SYS_inotify_init1, (0, 0), [0; 2], libc::EMFILE);
}

/// The thread that watches the file.
fn looking() -> Option<PathBuf> {
    let looks =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "leasehold-file");
    crate::support::threads::tasks().into_iter().find(looks)
}

/// How often that thread was woken.
fn woken() -> u64 {
    let task = looking().unwrap();
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Holds `k` in one store, and lets another store watch it.
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

/// The file is written to before the commit can be seen, by as long as its sync takes.
#[test]
fn who_begins_to_wait_while_it_is_freed_is_woken_at_once() {
    if !is_alone("sqlite::wakeups::who_begins_to_wait_while_it_is_freed_is_woken_at_once") {
        return;
    }
    lateness::measure();
    let [folder, beside] = [(); 2].map(|()| Folder::on_disk());
    // A grant to the waiter is written to the disk, which others use as well.
    let client = |of: &Folder| connected(|| patient(LockClient::builder(of.url())));
    let disk = lateness::Slowness::of(client(&beside));
    let (holder, waiter, operator) = (client(&folder), client(&folder), client(&folder));
    let mut late = Vec::new();
    for round in 0..30 {
        let held = holder.lock("k").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (waiter.lock("k").unwrap(), Instant::now()));
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(round % 6 * 200) {
                std::hint::spin_loop();
            }
            operator.force_release("k").unwrap();
            let freed = Instant::now();
            let took = waiting.join().unwrap().1.saturating_duration_since(freed);
            if took > Duration::from_millis(500) + lateness::slack(freed) + disk.slack(freed) {
                late.push(took);
            }
        });
        drop(held);
        // So that the next wait begins to watch anew.
        wait_until("nobody watches", || looking().is_none());
    }
    assert!(late.is_empty(), "so long did some wait: {late:?}");
}

/// Two hundred waiters are in two hundred processes.
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
        // On a busy machine the looks after the last commit may end late, and so may this thread's time.
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
