//! Another process writes: deadlines and cancellation hold, and readers do not wait.

#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader, Read};
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Acquired, Backend, Consistency, Purpose, Released, Swapped, Which};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{CancelToken, ErrorKind, LockClient};

use crate::sqlite::support::*;
use crate::support::harness::within;
use crate::support::lateness;
#[cfg(target_os = "linux")]
use crate::support::wait::wait_until;

const WRITES: &str = "another process or thread is writing";
/// The error also says so if the machine stalled until the time was over.
const NO_TURN: &str = "did not get its turn";

fn is_busy<T: std::fmt::Debug>(answer: leasehold::Result<T>) {
    says(answer, &[WRITES, NO_TURN]);
}

fn says<T: std::fmt::Debug>(answer: leasehold::Result<T>, one_of: &[&str]) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.is_retryable());
    assert!(one_of.iter().any(|text| error.to_string().contains(text)), "{error}");
}

/// Runs this test in another process, with this variable. Returns once it has printed `said`; it then reads its input
/// to the end.
#[cfg(target_os = "linux")]
fn beside(test: &str, (variable, value): (&str, PathBuf), said: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(variable, value).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == said));
    child
}

/// A store, and another program's connection that holds the write lock on its file.
fn with_writer(folder: &Folder) -> (Sqlite, rusqlite::Connection) {
    let store = open(&folder.file());
    let writer = raw(&folder.file());
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    (store, writer)
}

#[test]
fn every_write_keeps_its_deadline_and_writes_nothing() {
    let folder = Folder::new();
    let (store, writer) = with_writer(&folder);
    let seen = look(&store, "k");
    let timed = |call: &dyn Fn(&Deadline)| {
        let (start, limit) = (Instant::now(), Duration::from_millis(150));
        within("the write", limit, || call(&Deadline::after(limit)));
        let took = start.elapsed();
        assert!(took >= limit, "{took:?}");
    };
    timed(&|by| is_busy(store.acquire(&mut attempt("k", "a"), by)));
    timed(&|by| is_busy(store.renew(&mut attempt("k", "a"), heartbeat(seconds(20)), by)));
    timed(&|by| is_busy(store.release(&mut attempt("k", "a"), Purpose::Release, by)));
    timed(&|by| is_busy(store.swap(&seen, Some(&seen.record), by)));
    writer.execute_batch("COMMIT").unwrap();
    assert!(!look(&store, "k").record.exists());
    // No transaction was left open on either connection.
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    assert!(matches!(store.release(&mut mine, Purpose::Release, &soon()).unwrap(), Released::Done));
}

/// Holders come first: a client that wants a lock lets a heartbeat pass, but only for a while, because that process may
/// have been stopped.
#[cfg(target_os = "linux")]
#[test]
fn who_wants_a_lock_lets_a_heartbeat_of_another_process_pass() {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{self, c_short};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;
    const TEST: &str = "sqlite::busy::who_wants_a_lock_lets_a_heartbeat_of_another_process_pass";
    const FILE: &str = "LEASEHOLD_FILE";
    if let Some(file) = std::env::var_os(FILE) {
        let store = open(Path::new(&file));
        let mut its = attempt("its", "b");
        granted(&store, &mut its);
        println!("\nit holds");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return assert!(renewed(&store, &mut its, heartbeat(seconds(20))).is_some());
    }
    let folder = Folder::new();
    let (store, writer) = (open(&folder.file()), raw(&folder.file()));
    let mut other = beside(TEST, (FILE, folder.file()), "it holds");
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(other.stdin.take());
    // Closing this file would end SQLite's locks in this process.
    let index = std::fs::File::options().read(true).write(true).open(folder.path().join("locks.db-shm")).unwrap();
    let index = std::mem::ManuallyDrop::new(index);
    wait_until("it says that it waits", || {
        let (l_type, l_whence) = (libc::F_WRLCK as c_short, libc::SEEK_SET as c_short);
        let mut found = libc::flock { l_type, l_whence, l_start: 1 << 20, l_len: 1, l_pid: 0 };
        fcntl(&*index, FcntlArg::F_OFD_GETLK(&mut found)).unwrap();
        found.l_type != libc::F_UNLCK as c_short
    });
    let its = Pid::from_raw(i32::try_from(other.id()).unwrap());
    kill(its, Signal::SIGSTOP).unwrap();
    waitpid(its, Some(WaitPidFlag::WUNTRACED)).unwrap();
    writer.execute_batch("COMMIT").unwrap();
    let start = Instant::now();
    granted(&store, &mut attempt("mine", "a"));
    let took = start.elapsed();
    kill(its, Signal::SIGCONT).unwrap();
    // A client that only reads lets nobody pass.
    held(&store, &mut attempt("its", "a"));
    assert!(other.wait().unwrap().success());
    assert!(took >= Duration::from_millis(40), "{took:?}");
}

#[test]
fn a_refusal_waits_for_no_writer() {
    let folder = Folder::new();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    let writer = raw(&folder.file());
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = store.acquire(&mut attempt("k", "b"), &soon()).unwrap();
    assert!(matches!(answer, Acquired::Refused(_)), "{answer:?}");
    writer.execute_batch("COMMIT").unwrap();
}

#[test]
fn opening_keeps_its_deadline() {
    let folder = Folder::new();
    let other = raw(&folder.file());
    other.execute_batch("CREATE TABLE own (x); BEGIN EXCLUSIVE").unwrap();
    let limit = Duration::from_millis(150);
    let clock = leasehold::internals::sys::clock::Clock::system();
    is_busy(within("to open it", limit, || Sqlite::open(options(&folder.file()), clock, &Deadline::after(limit))));
}

#[test]
fn a_deadline_that_is_over_sends_nothing() {
    let folder = Folder::new();
    let store = open(&folder.file());
    says(store.acquire(&mut attempt("k", "a"), &Deadline::after(Duration::ZERO)), &[NO_TURN]);
    assert!(!look(&store, "k").record.exists());
}

#[test]
fn cancelling_ends_the_wait_for_the_database_and_for_the_connection() {
    let folder = Folder::new();
    let (store, writer) = with_writer(&folder);
    let (cancel_first, cancel_second) = (CancelToken::new(), CancelToken::new());
    let (done, ended) = crossbeam_channel::unbounded();
    let acquire = |owner: &'static str, cancel: &CancelToken| {
        let by = Deadline::after(seconds(60)).or_cancel(cancel);
        let (started, begun) = crossbeam_channel::bounded(0);
        let (store, done) = (&store, done.clone());
        let call = move || {
            started.send(()).unwrap();
            done.send((owner, store.acquire(&mut attempt("k", owner), &by))).unwrap();
        };
        (call, begun)
    };
    std::thread::scope(|scope| {
        // The first call waits for the database, the second for the connection that the first one has.
        let (first, begun) = acquire("first", &cancel_first);
        scope.spawn(first);
        begun.recv().unwrap();
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err());
        let (second, begun) = acquire("second", &cancel_second);
        scope.spawn(second);
        begun.recv().unwrap();
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err());
        for (cancel, owner) in [(cancel_second, "second"), (cancel_first, "first")] {
            cancel.cancel();
            let answer = ended.recv_timeout(seconds(20));
            if answer.is_err() {
                // This lets the test end.
                writer.execute_batch("COMMIT").unwrap();
            }
            let (who, answer) = answer.expect("the wait went on");
            assert_eq!(who, owner);
            is_busy(answer);
        }
    });
}

#[test]
fn it_goes_on_as_soon_as_the_writer_is_done() {
    let folder = Folder::new();
    let (store, writer) = with_writer(&folder);
    // Grants are written to the disk, which others use as well.
    let beside = Folder::new();
    let disk = lateness::Slowness::of(LockClient::connect(&beside.url()).unwrap());
    lateness::measure();
    let (started, begun) = crossbeam_channel::bounded(0);
    let waiting = std::thread::spawn(move || {
        started.send(()).unwrap();
        granted(&store, &mut attempt("k", "a"));
        Instant::now()
    });
    begun.recv().unwrap();
    std::thread::yield_now();
    writer.execute_batch("COMMIT").unwrap();
    let freed = Instant::now();
    let granted = waiting.join().unwrap();
    assert!(granted.saturating_duration_since(freed) < seconds(1) + lateness::slack(freed) + disk.slack(freed));
}

#[test]
fn readers_wait_for_no_writer_in_this_process_or_another() {
    let folder = Folder::new();
    let (store, _writer) = with_writer(&folder);
    let cancel = CancelToken::new();
    let by = Deadline::after(seconds(60)).or_cancel(&cancel);
    std::thread::scope(|scope| {
        // The connection that writes is in use, and these calls wait for it.
        scope.spawn(|| is_busy(store.acquire(&mut attempt("k", "a"), &by)));
        scope.spawn(|| is_busy(store.release(&mut attempt("k", "a"), Purpose::Release, &by)));
        // Far less than the time that the writes have, for all of these together.
        let by = Deadline::after(seconds(20));
        for which in [Which::Key("k".to_owned()), Which::Prefix(String::new()), Which::LockId("x".to_owned())] {
            for _ in 0..100 {
                store.read(&which, None, Consistency::Strong, &by).unwrap();
            }
        }
        cancel.cancel();
    });
}

/// As with a process that was stopped just when it began to read. SQLite itself tries for ten seconds, and then says
/// that its locks do not work.
#[cfg(target_os = "linux")]
#[test]
fn who_was_stopped_as_it_began_to_read_is_a_trouble_that_passes_and_holds_up_no_drop() {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{self, c_short};
    const TEST: &str =
        "sqlite::busy::who_was_stopped_as_it_began_to_read_is_a_trouble_that_passes_and_holds_up_no_drop";
    const INDEX: &str = "LEASEHOLD_INDEX";
    if let Some(index) = std::env::var_os(INDEX) {
        let index = std::fs::File::options().read(true).write(true).open(index).unwrap();
        let (l_type, l_whence) = (libc::F_WRLCK as c_short, libc::SEEK_SET as c_short);
        // All of the marks, because the others may want any of them.
        let marks = libc::flock { l_type, l_whence, l_start: 123, l_len: 5, l_pid: 0 };
        fcntl(&index, FcntlArg::F_SETLKW(&marks)).unwrap();
        println!("\nit reads");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let folder = Folder::new();
    let (store, client) = (open(&folder.file()), LockClient::connect(&folder.url()).unwrap());
    let mut a = attempt("k", "a");
    a.ask.lease = seconds(600);
    granted(&store, &mut a);
    let mut reads = beside(TEST, (INDEX, folder.path().join("locks.db-shm")), "it reads");
    // When the first answer comes, the deadline is over.
    let by = || Deadline::after(seconds(8));
    says(store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by()), &[WRITES]);
    says(store.acquire(&mut attempt("k", "b"), &by()), &[WRITES]);
    within("the drop of a client", seconds(5), || drop(client));
    // This closes its input.
    assert!(reads.wait().unwrap().success());
    held(&store, &mut attempt("k", "b"));
}

#[test]
fn of_many_threads_on_one_and_on_two_stores_one_is_granted() {
    let folder = Folder::new();
    let stores = [open(&folder.file()), open(&folder.file())];
    for round in 0..20 {
        let key = format!("k{round}");
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let (store, key) = (&stores[n % 2], &key);
                    scope.spawn(move || {
                        let mut attempt = attempt(key, &format!("o{n}"));
                        let answer = store.acquire(&mut attempt, &soon()).unwrap();
                        matches!(answer, leasehold::internals::store::Acquired::Granted { .. })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(won, 1);
    }
}

#[test]
fn of_many_swaps_on_what_was_seen_one_is_done() {
    let folder = Folder::new();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    let all_seen: Vec<_> = (0..8).map(|_| look(&store, "k")).collect();
    let done: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = all_seen
            .into_iter()
            .map(|seen| {
                let store = &store;
                scope.spawn(move || {
                    let mut new = seen.record.clone();
                    new.version += 1;
                    matches!(store.swap(&seen, Some(&new), &soon()).unwrap(), Swapped::Done)
                })
            })
            .collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
    });
    assert_eq!(done, 1);
}
