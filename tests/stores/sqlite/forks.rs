//! The child of a fork has SQLite's table of open files, but not the locks in it.

use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold::ErrorKind;
use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Backend, Consistency, Which};
use leasehold::internals::sys::clock::Clock;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::sqlite::support::*;
#[cfg(target_os = "linux")]
use crate::support::logs;

/// Runs `body` in a forked child, where it must neither fail nor hang.
#[track_caller]
fn in_a_child(body: impl FnOnce()) {
    // SAFETY: only this thread goes on in the child, and it may allocate: glibc keeps its heap usable over a fork.
    #[allow(unsafe_code)]
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(60);
            std::process::exit(i32::from(catch_unwind(AssertUnwindSafe(body)).is_err()))
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).unwrap();
            assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
        }
    }
}

fn is_refused(path: &Path) {
    let error = refused(path);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(!error.is_retryable());
    assert!(error.to_string().contains("forked from one that had an SQLite file open"), "{error}");
    assert!(error.to_string().contains("fork before you connect, or exec in the child"), "{error}");
}

#[test]
fn a_file_that_the_parent_has_open_is_refused_by_each_of_its_names() {
    if !is_alone("sqlite::forks::a_file_that_the_parent_has_open_is_refused_by_each_of_its_names") {
        return;
    }
    let folder = Folder::new();
    let [symbolic, hard, fresh] = ["symbolic.db", "hard.db", "fresh.db"].map(|name| folder.path().join(name));
    // The child of a process that had nothing open.
    in_a_child(|| {
        let own = open(&fresh);
        granted(&own, &mut attempt("k", "b"));
        in_a_child(|| is_refused(&fresh));
        drop(open(&fresh));
        granted(&own, &mut attempt("l", "b"));
    });
    let (store, other) = (open(&folder.file()), open(&folder.file()));
    symlink(folder.file(), &symbolic).unwrap();
    std::fs::hard_link(folder.file(), &hard).unwrap();
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    drop(other);
    in_a_child(|| {
        for path in [&folder.file(), &symbolic, &hard, &fresh] {
            is_refused(path);
        }
        in_a_child(|| is_refused(&folder.file()));
    });
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    held(&open(&symbolic), &mut attempt("k", "c"));
    drop(store);
    // Nothing is open now.
    in_a_child(|| {
        let store = open(&folder.file());
        held(&store, &mut attempt("k", "c"));
        granted(&store, &mut attempt("l", "c"));
    });
    granted(&open(&folder.file()), &mut attempt("m", "a"));
}

/// Whatever the parent's threads were doing at the fork, the child's call ends in time.
#[test]
fn a_fork_in_the_middle_of_an_opening_leaves_no_call_that_hangs() {
    if !is_alone("sqlite::forks::a_fork_in_the_middle_of_an_opening_leaves_no_call_that_hangs") {
        return;
    }
    let folder = Folder::new();
    let (kept, stop) = (open(&folder.file()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(open(&folder.file()));
                }
            });
        }
        for _ in 0..30 {
            in_a_child(|| {
                let path = folder.file();
                let clock = Clock::system();
                let opened = Sqlite::open(options(&path), clock, &soon());
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::Config);
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(kept.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()).is_ok());
}

/// SQLite's mutexes protect more than one file, and a thread of the parent may have had one locked at the fork.
#[test]
fn a_fork_in_the_middle_of_renewals_leaves_no_call_on_another_file_that_hangs() {
    if !is_alone("sqlite::forks::a_fork_in_the_middle_of_renewals_leaves_no_call_on_another_file_that_hangs") {
        return;
    }
    let (folder, other, stop) = (Folder::new(), Folder::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for key in ["a", "b", "c"] {
            let (store, stop) = (open(&folder.file()), &stop);
            scope.spawn(move || {
                let mut mine = attempt(key, "a");
                granted(&store, &mut mine);
                while !stop.load(Ordering::SeqCst) {
                    renewed(&store, &mut mine, heartbeat(seconds(20)));
                }
            });
        }
        let all = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..200 {
                in_a_child(|| is_refused(&other.file()));
            }
        }));
        stop.store(true, Ordering::SeqCst);
        all.unwrap();
    });
    assert!(!other.file().exists(), "what is refused is not made");
}

/// A child keeps, for as long as it lives, any lock that the parent had for only a moment at the fork.
#[test]
fn a_child_that_lives_on_keeps_nobody_out_of_the_file() {
    if !is_alone("sqlite::forks::a_child_that_lives_on_keeps_nobody_out_of_the_file") {
        return;
    }
    let (stop, opened) = (AtomicBool::new(false), [AtomicU32::new(0), AtomicU32::new(0)]);
    let open_again_and_again = |opened: &AtomicU32| {
        let folder = Folder::new();
        while !stop.load(Ordering::SeqCst) {
            if let Err(error) = try_open(&folder.file()) {
                stop.store(true, Ordering::SeqCst);
                panic!("{error}");
            }
            opened.fetch_add(1, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        for opened in &opened {
            scope.spawn(|| open_again_and_again(opened));
        }
        for _ in 0..100 {
            // SAFETY: the child only waits for its end.
            #[allow(unsafe_code)]
            let child = match unsafe { fork() }.unwrap() {
                ForkResult::Child => loop {
                    nix::unistd::pause();
                },
                ForkResult::Parent { child } => child,
            };
            let before = opened.each_ref().map(|opened| opened.load(Ordering::SeqCst));
            let goes_on = |at: usize| opened[at].load(Ordering::SeqCst) > before[at] + 1;
            while !(stop.load(Ordering::SeqCst) || goes_on(0) && goes_on(1)) {
                std::thread::yield_now();
            }
            kill(child, Signal::SIGKILL).unwrap();
            waitpid(child, None).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// Neither what the parent drew nor the child's offset shows which clock the child has. Because of that, a process that
/// tries only once can take nothing over, and the error says so.
#[cfg(target_os = "linux")]
#[test]
fn where_the_system_does_not_name_the_clock_a_process_and_its_child_draw_one_each() {
    if !is_alone("sqlite::forks::where_the_system_does_not_name_the_clock_a_process_and_its_child_draw_one_each") {
        return;
    }
    logs::keep();
    granted(&open(&Folder::new().file()), &mut attempt("k", "a"));
    assert_eq!(logs::kept("leasehold::sqlite"), [""; 0]);
    refuse_links(nix::libc::EACCES);
    let drawn = || {
        let folder = Folder::new();
        granted(&open(&folder.file()), &mut attempt("k", "a"));
        clock_of_the_row(&folder.file())
    };
    let ours = drawn();
    let warned = logs::kept("leasehold::sqlite");
    assert!(warned.len() == 1 && warned[0].contains("does not tell which boot this is"), "{warned:?}");
    assert_eq!(ours.strip_prefix("process:").map(str::len), Some(36), "{ours}");
    assert_eq!(drawn(), ours);
    in_a_child(|| assert!(drawn().starts_with("process:") && drawn() != ours));
}
