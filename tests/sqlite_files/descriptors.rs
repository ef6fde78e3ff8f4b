//! How many files stay open, and what happens when no more may be.

use std::process::Command;

use leasehold::ErrorKind;
use leasehold::internals::store::Backend;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::support::*;

const ALONE: &str = "LEASEHOLD_DESCRIPTORS";

/// Whether this is the process for `test` alone; else it is run in one.
#[track_caller]
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = rerun(&format!("descriptors::{test}"), |exe| {
        let mut command = Command::new(exe);
        command.env(ALONE, "1");
        command
    });
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    false
}

/// What stays open of files that were locked once has an end.
#[test]
fn a_process_that_opens_many_files_keeps_few_descriptors() {
    if !is_alone("a_process_that_opens_many_files_keeps_few_descriptors") {
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

/// The kernel refuses this thread a call from now on, with this error, where its argument at this place, cut to the
/// bits of the mask, is one of these.
#[allow(unsafe_code)]
pub fn refuse(call: i64, (place, mask): (u32, i32), values: [i32; 2], error: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let is = |value, jt, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let answer = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The number of the call comes first; an argument has eight bytes, of which the low half is looked at.
    let argument = 16 + 8 * place + if cfg!(target_endian = "little") { 0 } else { 4 };
    let mut program = [
        load(0),
        is(u32::try_from(call).unwrap(), 0, 5),
        load(argument),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask.cast_unsigned()),
        is(values[0].cast_unsigned(), 1, 0),
        is(values[1].cast_unsigned(), 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | error.cast_unsigned()),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is there until the kernel has copied it, and has as many steps as said.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(set, "{}", std::io::Error::last_os_error());
}

/// As some file systems do.
#[test]
fn where_locks_of_descriptions_are_refused_nothing_stays_open_for_each_cycle_or_file() {
    if !is_alone("where_locks_of_descriptions_are_refused_nothing_stays_open_for_each_cycle_or_file") {
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

/// No descriptor above this number may be opened in this process.
fn limit(files: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, files.min(hard), hard).unwrap();
}

/// Whichever of the files it is that can't be opened.
#[test]
fn too_few_descriptors_are_told_and_what_needs_them_can_be_repeated() {
    if !is_alone("too_few_descriptors_are_told_and_what_needs_them_can_be_repeated") {
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
                    let clock: String = raw(&path).query_row("SELECT clock FROM locks", [], |row| row.get(0)).unwrap();
                    assert!(!clock.contains("process"), "it took itself for a host without a clock of its own");
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

/// SQLite opens a file to read it only where its first try, to write, fails: also for want of a descriptor, which a
/// moment later may be there. Such a client could never write.
#[test]
fn who_may_write_is_not_given_a_file_that_can_only_be_read() {
    if !is_alone("who_may_write_is_not_given_a_file_that_can_only_be_read") {
        return;
    }
    let folder = Folder::new();
    drop(open(&folder.file()));
    // As SQLite opens the database, and neither its log nor anybody else.
    let to_write = libc::O_RDWR | libc::O_NOFOLLOW;
    refuse(libc::SYS_openat, (2, to_write | libc::O_ACCMODE | libc::O_CREAT), [to_write; 2], libc::EMFILE);
    let error = refused(&folder.file());
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("open the database to write to it"), "{error}");
}
