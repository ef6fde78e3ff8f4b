//! What else in this process, or in another one, opens the lock file and closes it.

use std::fs::{self, File};
use std::path::Path;

use leasehold::ErrorKind;
use leasehold::internals::store::sqlite::Sqlite;
use leasehold::internals::store::{Acquired, Backend};

use crate::sqlite::support::*;

const FILE: &str = "LEASEHOLD_NEIGHBOUR";

/// Another process opens the file, tries to be granted `key`, and closes it.
#[track_caller]
fn is_granted_to_another_process(test: &str, folder: &Folder, key: &str) -> bool {
    let file = folder.file();
    let env = [(FILE, file.as_os_str()), ("LEASEHOLD_KEY", key.as_ref())];
    let ran = rerun(&format!("sqlite::neighbours::{test}"), &env);
    ran.assert_passed();
    ran.told.contains("granted: true")
}

/// Whether this is that other process.
fn is_the_other() -> bool {
    let Some(path) = std::env::var_os(FILE) else { return false };
    let key = std::env::var("LEASEHOLD_KEY").unwrap();
    let is_granted = try_acquire(&open(Path::new(&path)), &key);
    println!("granted: {is_granted}");
    true
}

fn try_acquire(store: &Sqlite, key: &str) -> bool {
    matches!(store.acquire(&mut attempt(key, "other"), &soon()).unwrap(), Acquired::Granted { .. })
}

fn beside(folder: &Folder, ending: &str) -> std::path::PathBuf {
    folder.path().join(format!("locks.db{ending}"))
}

/// As anything does that reads the file, to copy it, or as a second copy of SQLite does: the system then ends all locks
/// of this process on the file, except those of open file descriptions.
fn touch(folder: &Folder) {
    for ending in ["", "-wal", "-shm"] {
        drop(File::open(beside(folder, ending)).unwrap());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_log_outlives_what_reads_the_file_in_this_process() {
    use std::os::unix::fs::MetadataExt;
    if is_the_other() {
        return;
    }
    let (test, folder) = ("the_log_outlives_what_reads_the_file_in_this_process", Folder::new());
    let inode = |ending: &str| fs::metadata(beside(&folder, ending)).unwrap().ino();
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    // A second client, and one that has gone: the locks remain for as long as one client is left.
    let (second, gone) = (open(&folder.file()), open(&folder.file()));
    drop(gone);
    let before = [inode("-wal"), inode("-shm")];
    for _ in 0..3 {
        touch(&folder);
        assert!(!is_granted_to_another_process(test, &folder, "k"), "two hold it");
        assert!(is_granted_to_another_process(test, &folder, &uuid()), "the file is in use for others, too");
        assert_eq!([inode("-wal"), inode("-shm")], before);
        renewed(&store, &mut mine, heartbeat(seconds(20)));
        held(&second, &mut attempt("k", "b"));
    }
    assert_sound(&folder);
    drop((store, second));
    assert!(!beside(&folder, "-wal").exists(), "the last close removes the log");
    let again = open(&folder.file());
    renewed(&again, &mut mine, heartbeat(seconds(20)));
    touch(&folder);
    assert!(!is_granted_to_another_process(test, &folder, "k"), "two hold it");
}

/// A client that lost the log must not write its content over what others have written since.
#[test]
fn a_log_that_others_began_is_left_to_them() {
    if is_the_other() {
        return;
    }
    let (test, folder) = ("a_log_that_others_began_is_left_to_them", Folder::new());
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    // Everything is in the database, so the next client finds a sound file without the log.
    raw(&folder.file()).query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
    fs::remove_file(beside(&folder, "-wal")).unwrap();
    assert!(is_granted_to_another_process(test, &folder, "l"));
    lost(&store, &mut mine);
    drop(store);
    let again = open(&folder.file());
    assert_eq!(held(&again, &mut attempt("l", "b")).record.exclusive.unwrap().labels.owner, "other");
    assert_sound(&folder);
}

/// Without `-shm` nobody sees who writes, and each would overwrite the other's part of the log.
#[test]
fn who_lost_the_index_of_the_log_learns_it() {
    if is_the_other() {
        return;
    }
    let (test, folder) = ("who_lost_the_index_of_the_log_learns_it", Folder::new());
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    fs::remove_file(beside(&folder, "-shm")).unwrap();
    assert!(is_granted_to_another_process(test, &folder, "l"));
    let second = store.acquire(&mut attempt("l", "a"), &soon());
    assert!(second.is_err(), "two hold it: {second:?}");
    lost(&store, &mut mine);
    drop(store);
    let again = open(&folder.file());
    assert_eq!(held(&again, &mut attempt("l", "b")).record.exclusive.unwrap().labels.owner, "other");
}

/// In one process, SQLite has one index for all connections to a file, even for those that are opened later.
#[test]
fn a_client_beside_one_that_lost_the_index_is_refused_until_that_one_has_gone() {
    if is_the_other() {
        return;
    }
    let test = "a_client_beside_one_that_lost_the_index_is_refused_until_that_one_has_gone";
    let folder = Folder::new();
    let store = open(&folder.file());
    granted(&store, &mut attempt("l", "a"));
    fs::remove_file(beside(&folder, "-shm")).unwrap();
    assert!(is_granted_to_another_process(test, &folder, "k"));
    let second = try_open(&folder.file()).map(|second| second.acquire(&mut attempt("k", "a"), &soon()));
    let error = second.expect_err("two hold it");
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    drop(store);
    held(&open(&folder.file()), &mut attempt("k", "a"));
}

/// The same if only a user's connection has the old index open.
#[cfg(target_os = "linux")]
#[test]
fn a_client_beside_a_users_connection_that_lost_the_index_writes_nothing() {
    if is_the_other() {
        return;
    }
    let (test, folder) = ("a_client_beside_a_users_connection_that_lost_the_index_writes_nothing", Folder::new());
    let store = open(&folder.file());
    let mut mine = attempt("l", "a");
    granted(&store, &mut mine);
    let own = raw(&folder.file());
    own.query_row("SELECT count(*) FROM locks", [], |_| Ok(())).unwrap();
    drop(store);
    fs::remove_file(beside(&folder, "-shm")).unwrap();
    assert!(is_granted_to_another_process(test, &folder, "k"));
    let store = open(&folder.file());
    let second = store.acquire(&mut attempt("k", "a"), &soon());
    let error = second.expect_err("two hold it");
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    // Nor does it write anything when it is closed.
    drop(own);
    drop(store);
    let store = open(&folder.file());
    held(&store, &mut attempt("k", "a"));
    renewed(&store, &mut mine, heartbeat(seconds(20)));
}

/// Nor does a look note there that it saw a holder of an earlier boot, as any look does otherwise.
#[cfg(target_os = "linux")]
#[test]
fn a_look_beside_a_users_connection_that_lost_the_index_writes_nothing() {
    if is_the_other() {
        return;
    }
    let (test, folder) = ("a_look_beside_a_users_connection_that_lost_the_index_writes_nothing", Folder::new());
    let (earlier, _) = open_at(&folder.file(), "boot-1");
    granted(&earlier, &mut attempt("l", "a"));
    let own = raw(&folder.file());
    let is_sighted = || -> bool {
        own.query_row("SELECT sightings IS NOT NULL FROM locks WHERE key = x'6c'", [], |row| row.get(0)).unwrap()
    };
    assert!(!is_sighted());
    drop(earlier);
    fs::remove_file(beside(&folder, "-shm")).unwrap();
    assert!(is_granted_to_another_process(test, &folder, "k"));
    let (store, _) = open_at(&folder.file(), "boot-2");
    assert!(look(&store, "l").record.exists());
    assert!(!is_sighted(), "it was written where others do not see it");
}

/// A user's own connection keeps its locks when our last client goes, for which one descriptor stays open for good.
#[cfg(target_os = "linux")]
#[test]
fn a_connection_of_the_users_keeps_its_log_when_the_last_client_has_gone() {
    if is_the_other() {
        return;
    }
    let (test, folder) = ("a_connection_of_the_users_keeps_its_log_when_the_last_client_has_gone", Folder::new());
    let store = open(&folder.file());
    let own = raw(&folder.file());
    own.execute_batch("CREATE TABLE own (text TEXT); INSERT INTO own VALUES ('first')").unwrap();
    drop(store);
    assert!(is_granted_to_another_process(test, &folder, "k"));
    assert!(beside(&folder, "-wal").exists(), "the other process took itself for the last one");
    own.execute_batch("INSERT INTO own VALUES ('second')").unwrap();
    drop(own);
    drop(open(&folder.file()));
    assert_eq!(descriptors(&folder), 1);
    let rows: i64 = raw(&folder.file()).query_row("SELECT count(*) FROM own", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2);
    for _ in 0..100 {
        drop(open(&folder.file()));
    }
    assert_eq!(descriptors(&folder), 1);
}

/// For each name of a file, SQLite keeps another log: neither process sees what the other writes. The same happens if
/// only the file is mounted into a container.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_another_process_has_open_by_another_name_is_refused() {
    let test = "a_file_that_another_process_has_open_by_another_name_is_refused";
    if std::env::var_os("LEASEHOLD_REFUSED").is_some() {
        let error = refused(Path::new(&std::env::var_os(FILE).unwrap()));
        println!("{:?} {error}", error.kind());
        return;
    }
    if is_the_other() {
        return;
    }
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    let names = [folder.path().join("hard.db"), elsewhere.file()];
    for name in &names {
        fs::hard_link(folder.file(), name).unwrap();
        let env = [(FILE, name.as_os_str()), ("LEASEHOLD_REFUSED", "1".as_ref())];
        let ran = rerun(&format!("sqlite::neighbours::{test}"), &env);
        ran.assert_passed();
        assert!(ran.told.contains("Config ") && ran.told.contains("open by another path"), "{}", ran.told);
    }
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    drop(store);
    // The first client to come has it by this name.
    let store = open(&names[1]);
    drop(store);
    assert!(!is_granted_to_another_process(test, &folder, "k"));
}

/// In one process all connections share the index of the log, so under the second name SQLite finds a log without the
/// index's pages.
#[test]
fn a_file_that_this_process_has_open_by_another_name_is_refused() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    for name in [folder.path().join("hard.db"), elsewhere.file()] {
        fs::hard_link(folder.file(), &name).unwrap();
        let error = refused(&name);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let says = ["this process has this file open by another path", "a hard link"];
        assert!(says.into_iter().all(|part| error.to_string().contains(part)), "{error}");
    }
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    held(&open(&folder.file()), &mut attempt("k", "b"));
    drop(store);
    drop(open(&elsewhere.file()));
}

/// A tool that copies the file may lock all of it against writers, which does not disturb SQLite's readers of a log.
#[cfg(target_os = "linux")]
#[test]
fn a_lock_on_all_of_the_file_is_not_taken_for_another_name() {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{self, c_short};

    let folder = Folder::new();
    drop(open(&folder.file()));
    let copied = File::open(folder.file()).unwrap();
    let (l_type, l_whence) = (libc::F_RDLCK as c_short, libc::SEEK_SET as c_short);
    let all = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&copied, FcntlArg::F_OFD_SETLK(&all)).unwrap();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    drop((store, copied));
}

/// While somebody reads, the log can't begin anew.
#[test]
fn a_log_that_a_long_reader_made_large_is_cut_when_it_is_begun_anew() {
    const MOST: u64 = 4 << 20;
    let folder = Folder::new();
    let (store, reader) = (open(&folder.file()), raw(&folder.file()));
    let size = || fs::metadata(beside(&folder, "-wal")).unwrap().len();
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    reader.execute_batch("BEGIN; SELECT * FROM locks").unwrap();
    let mut renew = |times| {
        for _ in 0..times {
            renewed(&store, &mut mine, heartbeat(seconds(20)));
        }
    };
    // Each renewal is a page of the log.
    renew(1500);
    assert!(size() > MOST + (1 << 20), "{}", size());
    reader.execute_batch("COMMIT").unwrap();
    renew(10);
    assert!(size() <= MOST, "{}", size());
    assert_sound(&folder);
    // The last close copies no page to the database: that could take longer than a drop may.
    let other = raw(&folder.file());
    other.execute_batch("CREATE TABLE own (data)").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM locks").unwrap();
    for _ in 0..80 {
        other.execute("INSERT INTO own VALUES (zeroblob(1000000))", []).unwrap();
    }
    reader.execute_batch("COMMIT").unwrap();
    drop((reader, other, store));
    assert!(size() > 64 << 20, "{}", size());
    assert_sound(&folder);
}
