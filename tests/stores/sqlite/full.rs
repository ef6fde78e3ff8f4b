//! A disk that is full, and one that fails in the middle of a commit. Each test runs in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::internals::store::{Acquired, Backend, Purpose, Swapped};
use leasehold::{ErrorKind, LockClient};

use crate::sqlite::support::*;
use crate::support::small_disk::{fill, on_a_small_disk};

const PLACE: &str = "LEASEHOLD_SMALL_DISK";

fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

#[test]
fn a_full_disk_is_told_and_nothing_is_written() {
    on_a_small_disk("sqlite::full::a_full_disk_is_told_and_nothing_is_written", "300k", on_a_full_disk);
}

fn on_a_full_disk(place: &Path) {
    let path = place.join("locks.db");
    let store = open(&path);
    let mut mine = attempt("k", "a");
    let token = granted(&store, &mut mine).token;
    let filler = fill(place);
    let mut failures = 0;
    for n in 0..200 {
        match store.acquire(&mut attempt(&format!("{n}"), &"o".repeat(3000)), &soon()) {
            Ok(Acquired::Granted { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                failures += 1;
                assert_eq!(error.kind(), ErrorKind::Store);
                assert!(error.is_retryable());
                assert!(error.to_string().contains("the disk is full; make room on it"), "{error}");
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert!(!look(&store, &format!("{n}")).record.exists());
                break;
            }
        }
    }
    assert_eq!(failures, 1, "the disk was not full");
    assert_eq!(look(&store, "k").record.token, token);
    std::fs::remove_file(filler).unwrap();
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    granted(&store, &mut attempt("after", "a"));
}

/// Its own writes must not use up the room: the log contains what the file will contain, again and again.
#[test]
fn who_holds_a_lock_keeps_it_on_a_full_disk() {
    on_a_small_disk("sqlite::full::who_holds_a_lock_keeps_it_on_a_full_disk", "300k", |place| {
        let store = open(&place.join("locks.db"));
        let mut mine = attempt("k", "a");
        granted(&store, &mut mine);
        fill(place);
        (0..200).for_each(|_| assert!(renewed(&store, &mut mine, heartbeat(seconds(20))).is_some()));
        store.release(&mut mine, Purpose::Release, &soon()).unwrap();
        granted(&store, &mut attempt("k", "b"));
    });
}

/// If the log had pages for which the file has no room, it could not begin anew.
#[test]
fn a_key_that_is_new_to_a_full_disk_costs_nobody_a_lock() {
    on_a_small_disk("sqlite::full::a_key_that_is_new_to_a_full_disk_costs_nobody_a_lock", "300k", |place| {
        let store = open(&place.join("locks.db"));
        let mut mine = attempt("k", "a");
        granted(&store, &mut mine);
        let mut beat =
            |times| (0..times).for_each(|_| assert!(renewed(&store, &mut mine, heartbeat(seconds(20))).is_some()));
        beat(20);
        let filler = fill(place);
        // The log begins anew before it is full, and has room for more than the file.
        beat(20);
        let mut more = attempt("more", &"o".repeat(10_000));
        let refused = store.acquire(&mut more, &soon());
        beat(200);
        let refused = refused.expect_err("the log has taken what the file has no room for");
        assert!(refused.to_string().contains("the disk is full; make room on it"), "{refused}");
        assert!(refused.is_retryable() && !look(&store, "more").record.exists());
        std::fs::remove_file(filler).unwrap();
        granted(&store, &mut more);
        fill(place);
        beat(200);
        store.release(&mut more, Purpose::Release, &soon()).unwrap();
    });
}

/// The room that the file will need is requested with the commit, also by the first one after a close, which finds no
/// log. A heartbeat that needs a page requests nothing, so it is never refused for that.
#[cfg(target_os = "linux")]
#[test]
fn a_grant_has_its_room_in_the_file_at_once() {
    let folder = Folder::new();
    let length = || std::fs::metadata(folder.file()).unwrap().len();
    drop(open(&folder.file()));
    let store = open(&folder.file());
    let before = length();
    let mut long = attempt("more", &"o".repeat(10_000));
    granted(&store, &mut long);
    let granted_by = length();
    assert!(granted_by >= before + 10_000, "{before} to {granted_by}");
    assert!(renewed(&store, &mut long, heartbeat(seconds(20))).is_some());
    assert_eq!(length(), granted_by);
    granted(&store, &mut attempt("and more", &"o".repeat(10_000)));
    assert!(length() >= before + 20_000, "{granted_by} to {}", length());
    // Like a lease that is claimed.
    let whole = leasehold::internals::lease::LockRecord { key: "third".to_owned(), ..look(&store, "more").record };
    let before = length();
    assert!(matches!(store.swap(&look(&store, "third"), Some(&whole), &soon()).unwrap(), Swapped::Done));
    assert!(length() >= before + 10_000, "{before} to {}", length());
}

#[test]
fn a_commit_that_fails_is_unknown() {
    if let Some(place) = place() {
        return with_files_that_cannot_grow(&place);
    }
    let folder = Folder::new();
    // A write beyond the limit fails with an error instead of a signal, as on a failing disk.
    let script = "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"";
    let ran = rerun_by("sqlite::full::a_commit_that_fails_is_unknown", |exe| {
        let mut command = Command::new("bash");
        command.args(["-c", script, "200"]).arg(exe).env(PLACE, folder.path());
        command
    });
    ran.assert_passed();
}

fn with_files_that_cannot_grow(place: &Path) {
    let store = open(&place.join("locks.db"));
    for n in 0..200 {
        let mut attempt = attempt(&format!("{n}"), &"o".repeat(3000));
        match store.acquire(&mut attempt, &soon()) {
            Ok(Acquired::Granted { .. }) => {}
            Ok(Acquired::Unknown(error)) => {
                assert_eq!(error.kind(), ErrorKind::Store);
                assert!(error.is_retryable());
                assert!(error.to_string().contains("could not commit: the disk failed"), "{error}");
                // The connection is not left in the transaction.
                assert!(matches!(store.acquire(&mut attempt, &soon()), Ok(Acquired::Unknown(_))));
                let client = LockClient::connect(&format!("sqlite:{}", place.join("locks.db").display())).unwrap();
                let claims = |n: u32| client.leases("n").claim(&format!("{n}"), "a", seconds(20)).err();
                let error = (0..200).find_map(claims).expect("no more fit");
                assert!(error.kind() == ErrorKind::Ambiguous && error.is_retryable(), "{error:?}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("every commit went through");
}
