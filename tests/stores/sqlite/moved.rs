//! A file that is removed or replaced while it is open.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::lease::LockRecord;
use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Acquired, Backend, Consistency, Purpose, Released, Swapped, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::{ErrorKind, Filter, LockClient, LossReason, Result};

use crate::sqlite::support::*;
use crate::support::bench::builder_over;
use crate::support::harness::{PATIENCE, within};
use crate::support::lateness::{measure, slack};
use crate::support::process::Worker;

/// So long that a stall of some seconds loses no lock before the loss that the test waits for.
const LEASE: Duration = Duration::from_secs(12);

fn is_moved<T: std::fmt::Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(!error.is_retryable());
    let says = ["removed or replaced", "drop this process's clients", "connect again"];
    assert!(says.into_iter().all(|part| error.to_string().contains(part)), "{error}");
}

/// The inode of the file at the path, if there is one.
fn inode(folder: &Folder) -> Option<u64> {
    fs::metadata(folder.file()).ok().map(|meta| meta.ino())
}

fn remove(folder: &Folder) {
    fs::remove_file(folder.file()).unwrap();
}

fn remove_all_three(folder: &Folder) {
    for file in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
}

fn replace(folder: &Folder) {
    let other = folder.path().join("other.db");
    drop(open(&other));
    fs::rename(other, folder.file()).unwrap();
    // SQLite would apply the log of the old file to the new one.
    for beside in ["locks.db-wal", "locks.db-shm"] {
        fs::remove_file(folder.path().join(beside)).unwrap();
    }
}

fn remove_log(folder: &Folder) {
    fs::remove_file(folder.path().join("locks.db-wal")).unwrap();
}

fn remove_index(folder: &Folder) {
    fs::remove_file(folder.path().join("locks.db-shm")).unwrap();
}

/// As the next process that opens the file makes it.
fn replace_log(folder: &Folder) {
    remove_log(folder);
    fs::write(folder.path().join("locks.db-wal"), "").unwrap();
}

#[test]
fn who_holds_learns_that_it_is_gone() {
    for strike in [remove, remove_all_three, replace, remove_log, replace_log, remove_index] {
        let folder = Folder::new();
        let store = open(&folder.file());
        let mut mine = attempt("k", "a");
        granted(&store, &mut mine);
        let before = look(&store, "k");
        let file = inode(&folder);
        strike(&folder);
        lost(&store, &mut mine);
        is_moved(store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()));
        is_moved(store.acquire(&mut attempt("l", "a"), &soon()));
        is_moved(store.swap(&before, None, &soon()));
        is_moved(store.swap(&before, Some(&before.record), &soon()));
        is_moved(store.read(&Which::Prefix(String::new()), None, Consistency::Strong, &soon()));
        for purpose in [Purpose::Release, Purpose::GiveUp] {
            let released = store.release(&mut mine, purpose, &soon());
            // Without its log, the file is still that of all others, with the row in it.
            match inode(&folder) == file {
                true => is_moved(released),
                false => assert!(matches!(released.unwrap(), Released::Free)),
            }
        }
    }
}

/// It would be wrong to say that nobody holds the key: somebody does, in the new file.
#[test]
fn a_client_of_a_file_that_was_replaced_says_so_of_each_key() {
    let folder = Folder::new();
    let client = LockClient::connect(&folder.url()).unwrap();
    client.lock("k").unwrap().release().unwrap();
    replace(&folder);
    granted(&open(&folder.file()), &mut attempt("k", "b"));
    is_moved(client.get("k"));
    is_moved(client.force_release("k"));
    is_moved(client.list(&Filter::new().key("k")));
}

/// No renewal shows the loss, because the heartbeats of such a lock only look at it.
#[test]
fn a_holder_without_end_learns_that_the_file_is_gone() {
    for strike in [remove, remove_all_three, replace, remove_log, replace_log, remove_index] {
        let (folder, clock) = (Folder::new(), Clock::system());
        let store = Sqlite::open(options(&folder.file()), clock.clone(), &soon()).unwrap();
        let client = builder_over(Arc::new(store), clock.clone()).connect().unwrap();
        let guard = client.request("k").lease_forever().lock().unwrap();
        strike(&folder);
        clock.advance(seconds(35));
        let loss = guard.loss().wait_timeout(PATIENCE).expect("a loss");
        assert!(matches!(loss.reason, LossReason::Gone), "{loss:?}");
        assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    }
}

/// The release looks at the row before it shortens the hold.
#[test]
fn a_minimum_hold_in_a_file_that_is_gone_is_lost_at_its_release() {
    for strike in [remove, replace] {
        let folder = Folder::new();
        let client = LockClient::connect(&folder.url()).unwrap();
        let guard = client.request("k").lease(LEASE).hold_at_least(LEASE).lock().unwrap();
        strike(&folder);
        assert_eq!(guard.release().unwrap_err().error().kind(), ErrorKind::Lost);
    }
}

/// Otherwise nobody would free a lock without end.
#[test]
fn a_release_fails_where_the_lock_stands_on_in_a_file_whose_log_is_gone() {
    for strike in [remove_log, replace_log, remove_index] {
        let folder = Folder::new();
        let client = LockClient::connect(&folder.url()).unwrap();
        let lock = client.request("k").owner("a").lease_forever().acquire().unwrap();
        // So that the log contains nothing that the file lacks.
        raw(&folder.file()).query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
        strike(&folder);
        is_moved(client.release(&lock));
        drop(client);
        let client = LockClient::connect(&folder.url()).unwrap();
        assert_eq!(client.get("k").unwrap().unwrap().holders()[0].owner(), "a");
        client.release(&lock).unwrap();
        assert!(client.get("k").unwrap().unwrap().is_free());
    }
}

/// SQLite would only say that a read failed.
#[test]
fn who_connects_beside_a_client_whose_log_is_gone_is_told_so() {
    for strike in [remove_log, replace_log, remove_index] {
        let folder = Folder::new();
        let store = open(&folder.file());
        granted(&store, &mut attempt("k", "a"));
        strike(&folder);
        is_moved(try_open(&folder.file()));
        drop(store);
        drop(open(&folder.file()));
    }
}

/// No later try would help.
#[test]
fn what_can_not_be_released_since_the_log_is_gone_holds_up_no_drop() {
    let folder = Folder::new();
    let client = LockClient::connect(&folder.url()).unwrap();
    let guard = client.request("k").lease_forever().lock().unwrap();
    remove_index(&folder);
    within("the drop", seconds(2), || drop((guard, client)));
}

#[test]
fn the_new_file_is_a_store_of_its_own_and_its_tokens_are_higher() {
    for strike in [remove, remove_all_three, replace] {
        let folder = Folder::new();
        let old = open(&folder.file());
        let mut mine = attempt("k", "a");
        let token = granted(&old, &mut mine).token;
        strike(&folder);
        let new = open(&folder.file());
        let mut theirs = attempt("k", "b");
        assert!(granted(&new, &mut theirs).token > token);
        // What the old client still does, even its close, does no harm to the new one.
        is_moved(old.acquire(&mut attempt("k", "a"), &soon()));
        old.release(&mut mine, Purpose::Release, &soon()).unwrap();
        drop(old);
        renewed(&new, &mut theirs, heartbeat(seconds(20)));
        drop(new);
        let again = open(&folder.file());
        assert_eq!(held(&again, &mut attempt("k", "c")).record.exclusive.unwrap().labels.owner, "b");
        assert_sound(&folder);
    }
}

#[test]
fn tokens_rise_over_a_restored_backup() {
    let folder = Folder::new();
    let backup = folder.path().join("backup.db");
    let next = |owner: &str| {
        let store = open(&folder.file());
        let mut attempt = attempt("k", owner);
        let token = granted(&store, &mut attempt).token;
        store.release(&mut attempt, Purpose::Release, &soon()).unwrap();
        token
    };
    next("a");
    fs::copy(folder.file(), &backup).unwrap();
    let highest = (0..5).map(|_| next("b")).max().unwrap();
    fs::copy(&backup, folder.file()).unwrap();
    assert!(look(&open(&folder.file()), "k").record.token < highest);
    assert!(next("c") > highest);
}

#[test]
fn another_working_directory_leads_to_the_same_file() {
    // In a process of its own, because the working directory belongs to the process.
    if std::env::var_os("LEASEHOLD_CHDIR").is_none() {
        let test = "sqlite::moved::another_working_directory_leads_to_the_same_file";
        return rerun(test, &[("LEASEHOLD_CHDIR", OsStr::new("1"))]).assert_passed();
    }
    let folder = Folder::new();
    std::env::set_current_dir(folder.path()).unwrap();
    let store = open(std::path::Path::new("locks.db"));
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    std::env::set_current_dir("/").unwrap();
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    assert!(matches!(store.acquire(&mut attempt("k", "b"), &soon()).unwrap(), Acquired::Refused(_)));
    let seen = look(&store, "k");
    let free = LockRecord { exclusive: None, version: seen.record.version + 1, ..seen.record.clone() };
    assert!(matches!(store.swap(&seen, Some(&free), &soon()).unwrap(), Swapped::Done));
    drop(store);
    assert!(folder.file().exists());
}

/// The files of the database, including the log and its index.
fn database(folder: &Folder) -> Vec<std::path::PathBuf> {
    ["", "-wal", "-shm"].iter().map(|end| format!("{}{end}", folder.file().display()).into()).collect()
}

#[test]
fn a_database_that_is_removed_under_a_guard_is_a_loss() {
    measure();
    // If only the worker stalled, it learned of it late, and this begins again.
    assert!((0..3).any(|_| a_removal_is_told_in_time()), "only the end of the lease tells it");
}

/// Returns whether the next heartbeat reports it, long before the lease is over.
fn a_removal_is_told_in_time() -> bool {
    let folder = Folder::new();
    let mut holder = Worker::start(&folder.url(), LEASE);
    let old = holder.token("lock job");
    for file in database(&folder) {
        fs::remove_file(file).expect("a file of the database");
    }
    let removed = Instant::now();
    assert_eq!(holder.ask("loss job"), "loss Gone");
    let is_in_time = removed.elapsed() <= LEASE / 2 + slack(removed);
    assert_eq!(holder.ask("held job"), "held false");
    // A client that comes now makes a new file, and tokens rise all the same.
    let mut next = Worker::start(&folder.url(), LEASE);
    assert!(next.token("try job") > old);
    assert_eq!(holder.ask("release job"), "error Lost");
    assert_eq!(next.ask("held job"), "held true");
    is_in_time
}

#[test]
fn an_older_copy_put_in_place_is_a_loss_and_tokens_still_rise() {
    let folder = Folder::new();
    let copy = folder.path().join("copy.db");
    let first = LockClient::connect(&folder.url()).expect("a client");
    let mut highest = first.lock("job").expect("a lock").fencing_token();
    drop(first);
    // The last connection is closed, so everything is in the one file.
    fs::copy(folder.file(), &copy).expect("a copy");

    let client = LockClient::builder(folder.url()).lease(LEASE).heartbeat(LEASE / 20).connect().expect("a client");
    for _ in 0..10 {
        highest = highest.max(client.lock("job").expect("a lock").fencing_token());
    }
    let guard = client.lock("job").expect("a lock");
    highest = highest.max(guard.fencing_token());
    for file in &database(&folder)[1..] {
        fs::remove_file(file).expect("a file of the database");
    }
    fs::rename(&copy, folder.file()).expect("the copy in place");
    let loss = guard.loss().wait_timeout(PATIENCE).expect("a loss");
    assert!(matches!(loss.reason, LossReason::Gone), "{loss:?}");
    assert!(!guard.is_held());

    let after = LockClient::connect(&folder.url()).expect("a client");
    let next = after.try_lock("job").expect("an answer").expect("it is free in the copy");
    assert!(next.fencing_token() > highest, "{} after {highest}", next.fencing_token());
    drop((guard, client));
    assert!(next.is_held());
    assert!(!after.get("job").expect("a look").expect("a row").is_free(), "the old guard released the new lock");
}
