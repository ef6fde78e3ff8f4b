//! What is opened, made and refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use leasehold::ErrorKind;
use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
use leasehold::internals::store::{Backend, Consistency, Purpose, Schema, Which};
use leasehold::internals::sys::clock::{BootTime, Clock};

use crate::sqlite::support::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn modes(folder: &Folder) -> Vec<u32> {
    ["locks.db", "locks.db-wal", "locks.db-shm"].map(|name| mode(&folder.path().join(name))).to_vec()
}

#[test]
fn all_three_files_are_private() {
    let folder = Folder::new();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    assert_eq!(modes(&folder), [0o600; 3]);
    // No other file is left behind.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_mode_for_a_group_is_what_was_asked_whatever_the_umask() {
    for wanted in [0o660, 0o666] {
        let folder = Folder::new();
        let options = SqliteOptions { mode: Some(wanted), ..options(&folder.file()) };
        let store = Sqlite::open(options, Clock::system(), &soon()).unwrap();
        granted(&store, &mut attempt("k", "a"));
        assert_eq!(modes(&folder), [wanted; 3]);
    }
}

#[test]
fn the_mode_of_a_file_that_is_there_stays() {
    let folder = Folder::new();
    drop(open(&folder.file()));
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o640)).unwrap();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    assert_eq!(modes(&folder), [0o640; 3]);
}

#[test]
fn create_schema_says_who_made_the_table() {
    let folder = Folder::new();
    let said = |store: &Sqlite| store.schema(Schema::Create, &soon()).unwrap();
    let (first, second) = (open(&folder.file()), open(&folder.file()));
    assert!(said(&second).contains("the table `locks` is there"), "another client made it");
    assert!(said(&first).contains("the table `locks` was made"), "when it connected");
    assert!(said(&first).contains("the table `locks` is there"), "it was said");
    rusqlite::Connection::open(folder.file()).unwrap().execute_batch("DROP TABLE locks").unwrap();
    assert!(said(&second).contains("the table `locks` was made"));
}

#[test]
fn many_open_a_missing_file_at_once() {
    for _ in 0..10 {
        let folder = Folder::new();
        let (path, start) = (folder.file(), Barrier::new(8));
        let won: usize = std::thread::scope(|scope| {
            let open_and_acquire = || {
                start.wait();
                let store = open(&path);
                let mut attempt = attempt("k", "a");
                matches!(
                    store.acquire(&mut attempt, &soon()).unwrap(),
                    leasehold::internals::store::Acquired::Granted { .. }
                )
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open_and_acquire)).collect();
            all.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(won, 1);
        assert_eq!(mode(&path), 0o600);
    }
}

/// Between the creation of the file and that of its table, only the file exists for a moment.
#[test]
fn who_wants_only_what_is_there_waits_for_whoever_makes_it() {
    let mut proven = 0;
    for _ in 0..100 {
        let folder = Folder::new();
        let path = folder.file();
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                while !path.exists() {
                    std::hint::spin_loop();
                }
                Sqlite::open_existing(SqliteOptions::new(&path), Clock::system(), &soon()).map(drop)
            });
            let began = Instant::now();
            drop(open(&path));
            let took = began.elapsed();
            match looks.join().unwrap() {
                // It waits for a second: a machine or disk that was slower proves nothing.
                Err(error) if took >= seconds(1) => println!("it was made in {took:?}: {error}"),
                looked => {
                    looked.unwrap();
                    proven += 1;
                }
            }
        });
        if proven == 20 {
            return;
        }
    }
    panic!("it was made in time only {proven} times");
}

#[test]
fn the_folder_is_missing() {
    let folder = Folder::new();
    let error = refused(&folder.path().join("no/locks.db"));
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("create it"), "{error}");
}

#[test]
fn it_is_a_folder_or_a_pipe() {
    let folder = Folder::new();
    let error = refused(folder.path());
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("a folder, not a file"), "{error}");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(refused(&pipe).kind(), ErrorKind::Config);
    assert_eq!(refused(&pipe.join("locks.db")).kind(), ErrorKind::Config);
}

#[test]
fn it_is_not_a_database() {
    let folder = Folder::new();
    let text = "Dear diary, today I named a lock file after you. ".repeat(50);
    fs::write(folder.file(), &text).unwrap();
    let error = refused(&folder.file());
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("not an SQLite database"), "{error}");
    assert_eq!(fs::read_to_string(folder.file()).unwrap(), text);
}

#[test]
fn a_newer_major_is_refused_and_a_newer_minor_is_used() {
    let folder = Folder::new();
    let store = open(&folder.file());
    raw(&folder.file()).execute_batch("ALTER TABLE locks ADD COLUMN later TEXT; PRAGMA user_version = 1007").unwrap();
    granted(&open(&folder.file()), &mut attempt("k", "a"));
    granted(&store, &mut attempt("l", "a"));
    raw(&folder.file()).execute_batch("ALTER TABLE locks DROP COLUMN pins; PRAGMA user_version = 2003").unwrap();
    let error = refused(&folder.file());
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("2003 means format 2.3"), "{error}");
    // A client that has it open notices it as well.
    let error = store.acquire(&mut attempt("m", "a"), &soon()).unwrap_err();
    assert!(error.to_string().contains("2003 means format 2.3"), "{error}");
    let version: i64 = raw(&folder.file()).query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 2003);
}

#[test]
fn a_column_of_a_later_minor_keeps_what_it_holds() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let mut held = attempt("k", "a");
    granted(&store, &mut held);
    let other = raw(&folder.file());
    other.execute_batch("ALTER TABLE locks ADD COLUMN later TEXT; UPDATE locks SET later = 'x'").unwrap();
    renewed(&store, &mut held, heartbeat(seconds(30)));
    let later: String = other.query_row("SELECT later FROM locks", [], |row| row.get(0)).unwrap();
    assert_eq!(later, "x");
}

#[test]
fn other_tables_may_stand_beside() {
    let folder = Folder::new();
    let other = raw(&folder.file());
    other.execute_batch("CREATE TABLE own (x); INSERT INTO own VALUES (7)").unwrap();
    granted(&open(&folder.file()), &mut attempt("k", "a"));
    let x: i64 = other.query_row("SELECT x FROM own", [], |row| row.get(0)).unwrap();
    assert_eq!(x, 7);
}

#[test]
fn a_table_of_the_same_name_or_a_version_of_somebody_else_is_left_alone() {
    let folder = Folder::new();
    raw(&folder.file()).execute_batch("CREATE TABLE locks (door TEXT)").unwrap();
    let error = refused(&folder.file());
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("not leasehold's (no column key)"), "{error}");
    let other = Folder::new();
    raw(&other.file()).execute_batch("PRAGMA user_version = 12").unwrap();
    assert_eq!(refused(&other.file()).kind(), ErrorKind::Schema);
    for path in [folder.file(), other.file()] {
        let journal: String = raw(&path).query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(journal, "delete");
    }
}

#[test]
fn who_only_looks_can_use_a_copy_without_log_and_version() {
    let folder = Folder::new();
    drop(open(&folder.file()));
    raw(&folder.file()).execute_batch("PRAGMA journal_mode = DELETE; PRAGMA user_version = 0").unwrap();
    let options = SqliteOptions { path: folder.file(), mode: None, unsafe_fs: false, clock_identity: None };
    let store = Sqlite::open_existing(options, Clock::system(), &soon()).unwrap();
    granted(&store, &mut attempt("k", "a"));
}

#[test]
fn the_schema_is_told_checked_and_made_again() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let told = store.schema(Schema::Describe, &soon()).unwrap();
    raw(&folder.path().join("by_hand.db")).execute_batch(&told).unwrap();
    granted(&open(&folder.path().join("by_hand.db")), &mut attempt("k", "a"));
    assert!(store.schema(Schema::Check, &soon()).unwrap().contains("format 1.0"));
    raw(&folder.file()).execute_batch("DROP TABLE locks").unwrap();
    let error = store.schema(Schema::Check, &soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert_eq!(store.acquire(&mut attempt("k", "a"), &soon()).unwrap_err().kind(), ErrorKind::Schema);
    store.schema(Schema::Create, &soon()).unwrap();
    granted(&store, &mut attempt("k", "a"));
}

#[test]
fn symbolic_links_are_followed_also_to_what_is_not_there_yet() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink("real/locks.db", folder.file()).unwrap();
    let store = open(&folder.file());
    granted(&store, &mut attempt("k", "a"));
    assert_eq!(mode(&folder.path().join("real/locks.db")), 0o600);
    held(&open(&folder.path().join("real/locks.db")), &mut attempt("k", "b"));
    let turning = folder.path().join("turning");
    symlink("turning", &turning).unwrap();
    assert_eq!(refused(&turning).kind(), ErrorKind::Config);
}

/// The limit includes the names of the files that SQLite makes next to it.
#[test]
fn a_name_that_is_too_long_is_told() {
    let folder = Folder::new();
    let named = |length| folder.path().join("n".repeat(length));
    granted(&open(&named(247)), &mut attempt("k", "a"));
    for length in [248, 255, 256] {
        let error = refused(&named(length));
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("too long"), "{error}");
        assert!(!named(length).exists());
    }
    // SQLite has a limit for the whole path.
    let deep = ["d".repeat(250), "d".repeat(250)].iter().fold(folder.path().to_owned(), |path, name| path.join(name));
    fs::create_dir_all(&deep).unwrap();
    let error = refused(&deep.join("locks.db"));
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("too long"), "{error}");
    assert!(!deep.join("locks.db").exists());
}

/// Like a backup by `VACUUM INTO`.
#[test]
fn a_file_without_a_write_ahead_log_gets_one_and_is_used() {
    let folder = Folder::new();
    let backup = folder.path().join("backup.db");
    drop(open(&folder.file()));
    raw(&folder.file()).execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    raw(&folder.file()).execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    for file in [&backup, &folder.file()] {
        assert!(!std::path::PathBuf::from(format!("{}-wal", file.display())).exists());
        granted(&open(file), &mut attempt("k", "a"));
    }
}

/// Root may write everywhere, so it runs this test as another user.
fn as_nobody(name: &str, test: impl FnOnce(&Folder)) {
    let folder = Folder::new();
    if !nix_is_root(&folder) {
        return test(&folder);
    }
    let ran = rerun_by(name, |exe| {
        let mut command = Command::new(exe);
        command.uid(65534).gid(65534);
        command
    });
    ran.assert_passed();
}

fn nix_is_root(folder: &Folder) -> bool {
    fs::metadata(folder.path()).unwrap().uid() == 0
}

#[test]
fn a_read_only_file_is_told() {
    as_nobody("sqlite::opening::a_read_only_file_is_told", |folder| {
        drop(open(&folder.file()));
        fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o400)).unwrap();
        let error = refused(&folder.file());
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.to_string().contains("read and write the file"), "{error}");
        fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(refused(&folder.file()).kind(), ErrorKind::Permission);
    });
}

#[test]
fn a_read_only_folder_is_told() {
    as_nobody("sqlite::opening::a_read_only_folder_is_told", |folder| {
        drop(open(&folder.file()));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
        let errors = [refused(&folder.file()), refused(&folder.path().join("missing.db"))];
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Permission);
            assert!(error.to_string().contains("folder"), "{error}");
        }
    });
}

/// A setuid program acts for another user than the one who started it.
#[cfg(target_os = "linux")]
#[test]
fn what_the_effective_user_may_do_counts() {
    let folder = Folder::new();
    if !nix_is_root(&folder) {
        return crate::support::servers::skip("only root can act for another user");
    }
    if is_alone("sqlite::opening::what_the_effective_user_may_do_counts") {
        let [nobody, root] = [65534, 0].map(nix::unistd::Uid::from_raw);
        nix::unistd::setresuid(nobody, root, root).unwrap();
        granted(&open(&folder.file()), &mut attempt("k", "a"));
    }
}

/// A log made by a reader would have the reader's owner and the file's mode, and nobody else could write to it.
#[test]
fn who_may_only_read_leaves_no_log_behind() {
    as_nobody("sqlite::opening::who_may_only_read_leaves_no_log_behind", |folder| {
        for (of_file, of_folder) in [(0o444, 0o700), (0o444, 0o500), (0o600, 0o500)] {
            drop(open(&folder.file()));
            fs::set_permissions(folder.file(), fs::Permissions::from_mode(of_file)).unwrap();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(of_folder)).unwrap();
            let looked = Sqlite::open_existing(options(&folder.file()), Clock::system(), &soon());
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
            fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(looked.expect_err("opened").kind(), ErrorKind::Permission);
            assert_eq!(left, ["locks.db"], "{of_file:o} {of_folder:o}");
            let mut mine = attempt("after", "owner");
            let owner = open(&folder.file());
            granted(&owner, &mut mine);
            owner.release(&mut mine, Purpose::Release, &soon()).unwrap();
        }
    });
}

#[test]
fn a_log_that_only_others_may_write_is_told() {
    as_nobody("sqlite::opening::a_log_that_only_others_may_write_is_told", |folder| {
        for ending in ["-wal", "-shm"] {
            let other = raw(&folder.file());
            other.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS own (x)").unwrap();
            let log = folder.path().join(format!("locks.db{ending}"));
            fs::set_permissions(&log, fs::Permissions::from_mode(0o400)).unwrap();
            let file = folder.file();
            let told = rerun("sqlite::opening::open_the_file_of_the_environment", &[(FILE, file.as_os_str())]).told;
            let why = "no permission to read and write the log beside the file";
            assert!(told.contains("Permission: ") && told.contains(why), "{ending}: {told}");
        }
    });
}

const FILE: &str = "LEASEHOLD_OPENING";

/// The other process of a test.
#[test]
fn open_the_file_of_the_environment() {
    if let Some(path) = std::env::var_os(FILE) {
        println!(
            "{}",
            try_open(Path::new(&path)).map_or_else(|e| format!("{:?}: {e}", e.kind()), |_| "opened".to_owned())
        );
    }
}

/// By such a clock everything would be over, even what others hold whose clock can be read.
#[test]
fn a_clock_that_can_not_be_read_ends_no_lease() {
    let folder = Folder::new();
    let (store, clock) = open_at(&folder.file(), "a");
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    let seen = look(&store, "k");
    // The time that such a clock then reports.
    clock.forbid();
    assert_eq!(clock.now(), BootTime::NEVER);
    let connect = |path| {
        let options = SqliteOptions { clock_identity: Some("a".to_owned()), ..options(path) };
        Sqlite::open(options, clock.clone(), &soon()).map(drop)
    };
    let never_made = folder.path().join("never-made.db");
    let errors = [
        store.acquire(&mut attempt("k", "b"), &soon()).map(drop),
        store.acquire(&mut attempt("new", "b"), &soon()).map(drop),
        store.renew(&mut mine, heartbeat(seconds(20)), &soon()).map(drop),
        store.release(&mut mine, Purpose::Release, &soon()).map(drop),
        store.swap(&seen, Some(&seen.record), &soon()).map(drop),
        store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()).map(drop),
        connect(&folder.file()),
        connect(&never_made),
    ];
    for (call, error) in errors.into_iter().enumerate() {
        let error = error.expect_err(&format!("call {call}"));
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("boot-time clock"), "{error}");
    }
    assert!(!never_made.exists());
    held(&open_at(&folder.file(), "a").0, &mut attempt("k", "b"));
}
