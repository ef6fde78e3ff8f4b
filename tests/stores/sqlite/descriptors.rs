//! How many files stay open, and what happens if no more may be opened.

use std::io::Read;
use std::path::PathBuf;

use leasehold::ErrorKind;
use leasehold::internals::store::{Attempt, Backend};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::close;

use crate::sqlite::support::*;

/// Descriptors of files that were locked once must not accumulate.
#[test]
fn a_process_that_opens_many_files_keeps_few_descriptors() {
    if !is_alone("sqlite::descriptors::a_process_that_opens_many_files_keeps_few_descriptors") {
        return;
    }
    let folder = Folder::new();
    for name in 0..100 {
        drop(open(&folder.path().join(format!("{name}.db"))));
    }
    assert_eq!(descriptors(&folder), 64);
    std::fs::remove_dir_all(folder.path()).unwrap();
    let other = Folder::new();
    drop(open(&other.file()));
    assert_eq!(descriptors(&folder) + descriptors(&other), 1);
}

/// As some file systems do.
#[test]
fn where_locks_of_descriptions_are_refused_nothing_stays_open_for_each_cycle_or_file() {
    if !is_alone(
        "sqlite::descriptors::where_locks_of_descriptions_are_refused_nothing_stays_open_for_each_cycle_or_file",
    ) {
        return;
    }
    refuse(libc::SYS_fcntl, (1, -1), [libc::F_OFD_SETLK, libc::F_OFD_GETLK], libc::EINVAL);
    let folder = Folder::new();
    for _ in 0..20 {
        granted(&open(&folder.file()), &mut attempt(&uuid(), "a"));
    }
    assert!(descriptors(&folder) <= 2, "{} after 20 cycles", descriptors(&folder));
    for name in 0..20 {
        drop(open(&folder.path().join(format!("{name}.db"))));
    }
    assert!(descriptors(&folder) <= 2, "{} after 20 files", descriptors(&folder));
}

/// From now on this process can open no descriptor above this number.
fn limit(files: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, files.min(hard), hard).unwrap();
}

/// The test covers each of the files that may fail to open.
#[test]
fn too_few_descriptors_are_told_and_what_needs_them_can_be_repeated() {
    if !is_alone("sqlite::descriptors::too_few_descriptors_are_told_and_what_needs_them_can_be_repeated") {
        return;
    }
    let folder = Folder::new();
    drop(open(&folder.file()));
    let missing = folder.path().join("missing.db");
    let mut refusals = 0;
    for path in [folder.file(), missing] {
        for files in 3.. {
            limit(files);
            let opened = try_open(&path);
            limit(1024);
            match opened {
                Ok(store) => {
                    granted(&store, &mut attempt(&uuid(), "a"));
                    assert!(
                        !clock_of_the_row(&path).contains("process"),
                        "it took itself for a host without a clock of its own"
                    );
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Store, "with {files}: {error}");
                    assert!(error.is_retryable(), "with {files}: {error}");
                    let why = "too many open files: raise the limit (ulimit -n)";
                    assert!(error.to_string().contains(why), "with {files}: {error}");
                    refusals += 1;
                }
            }
        }
    }
    assert!(refusals > 10, "{refusals}");
    let store = open(&folder.file());
    let (to, _told) = crossbeam_channel::unbounded();
    limit(3);
    let error = store.wake(&["k".to_owned()], to, &soon()).unwrap_err();
    assert!(error.to_string().contains("too many open files") && error.is_retryable(), "{error}");
}

/// If SQLite's first try to open a file, for writing, fails, it opens the file for reading. The reason may be a lack of
/// descriptors, which may be over a moment later, but such a client could never write.
#[test]
fn who_may_write_is_not_given_a_file_that_can_only_be_read() {
    if !is_alone("sqlite::descriptors::who_may_write_is_not_given_a_file_that_can_only_be_read") {
        return;
    }
    let folder = Folder::new();
    drop(open(&folder.file()));
    // The flags with which SQLite opens the database, but neither its log nor what others open.
    let to_write = libc::O_RDWR | libc::O_NOFOLLOW;
    refuse(libc::SYS_openat, (2, to_write | libc::O_ACCMODE | libc::O_CREAT), [to_write; 2], libc::EMFILE);
    let error = refused(&folder.file());
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("open the database to write to it"), "{error}");
}

/// Otherwise the output of a daemon would be written to the file, and its input would be read from there.
#[test]
fn closed_standard_streams_are_no_files_of_the_stores() {
    const TEST: &str = "sqlite::descriptors::closed_standard_streams_are_no_files_of_the_stores";
    const FILE: &str = "LEASEHOLD_DAEMON";
    const CLOSES: &str = "LEASEHOLD_CLOSES";
    let long = |key: &str| Attempt::new(key, ask("a", seconds(3600)));
    if let Some(path) = std::env::var_os(FILE).map(PathBuf::from) {
        for stream in std::env::var(CLOSES).unwrap().split(',') {
            close(stream.parse::<i32>().unwrap()).unwrap();
        }
        let store = open(&path);
        granted(&store, &mut long("of the daemon"));
        println!("{}", "out".repeat(100));
        eprintln!("{}", "err".repeat(100));
        let mut read = Vec::new();
        std::io::stdin().read_to_end(&mut read).unwrap();
        assert!(read.is_empty(), "{read:?}");
        for stream in 0..3 {
            let leads = std::fs::read_link(format!("/proc/self/fd/{stream}")).unwrap();
            assert!(!leads.starts_with(path.parent().unwrap()), "{stream}: {}", leads.display());
        }
        return;
    }
    for closes in ["1", "2", "0,1,2"] {
        let folder = Folder::new();
        granted(&open(&folder.file()), &mut long("of another"));
        let ran = rerun(TEST, &[(FILE, folder.file().as_ref()), (CLOSES, closes.as_ref())]);
        assert_eq!(ran.code, Some(0), "without {closes}: {}", ran.told);
        let store = open(&folder.file());
        for key in ["of another", "of the daemon"] {
            held(&store, &mut attempt(key, "b"));
        }
        drop(store);
        assert_sound(&folder);
    }
}

#[test]
fn a_closed_standard_stream_that_can_not_be_filled_is_told() {
    if !is_alone("sqlite::descriptors::a_closed_standard_stream_that_can_not_be_filled_is_told") {
        return;
    }
    // As in a root directory without devices. The files of others are closed by an exec.
    refuse(libc::SYS_openat, (2, libc::O_ACCMODE | libc::O_CLOEXEC), [libc::O_RDWR; 2], libc::ENOENT);
    let folder = Folder::new();
    drop(open(&folder.file()));
    close(0).unwrap();
    let error = refused(&folder.file());
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("/dev/null"), "{error}");
}
