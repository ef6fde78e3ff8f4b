//! A folder that is removed with the test, stores in it, and acquisitions.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::lease::{Ask, End, Holder, Labels, Lease, Mode};
use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
use leasehold::internals::store::{
    Acquired, Attempt, Backend, Consistency, GrantForm, Page, Renewal, Renewed, Seen, Which,
};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
#[cfg(target_os = "linux")]
use nix::libc;

pub use crate::support::harness::Folder;

pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn options(path: &Path) -> SqliteOptions {
    SqliteOptions { path: path.to_owned(), mode: None, unsafe_fs: false, clock_identity: None }
}

pub fn open(path: &Path) -> Sqlite {
    try_open(path).unwrap()
}

pub fn try_open(path: &Path) -> leasehold::Result<Sqlite> {
    Sqlite::open(options(path), Clock::system(), &soon())
}

/// The error of opening `path`, after checking its kind and that it names the path.
pub fn refused(path: &Path) -> leasehold::Error {
    let error = try_open(path).expect_err("opened");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

/// A store on a clock of its own, as in another boot or time namespace.
pub fn open_at(path: &Path, identity: &str) -> (Sqlite, Arc<Clock>) {
    let clock = Clock::system();
    let options = SqliteOptions { clock_identity: Some(identity.to_owned()), ..options(path) };
    (Sqlite::open(options, Arc::clone(&clock), &soon()).unwrap(), clock)
}

pub fn ask(owner: &str, lease: Duration) -> Ask {
    let labels = Labels { host: Some("h".to_owned()), ..Labels::of(owner) };
    Ask::exclusive(GrantForm::Uuid.fresh(), format!("id of {owner}"), labels, lease)
}

pub fn attempt(key: &str, owner: &str) -> Attempt {
    Attempt::new(key, ask(owner, seconds(20)))
}

pub fn shared(key: &str, owner: &str) -> Attempt {
    Attempt::new(key, Ask { mode: Mode::Shared, ..ask(owner, seconds(20)) })
}

pub fn granted(store: &Sqlite, attempt: &mut Attempt) -> Holder {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Granted { holder, .. }) => holder,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn held(store: &Sqlite, attempt: &mut Attempt) -> Seen {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Refused(seen)) => seen,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn heartbeat(lease: Duration) -> Renewal {
    Renewal { lease: Lease::For(lease), may_end_endless: false }
}

/// What is left of the lease after a renewal.
pub fn renewed(store: &Sqlite, attempt: &mut Attempt, renewal: Renewal) -> Option<Duration> {
    match store.renew(attempt, renewal, &soon()) {
        Ok(Renewed::Until { until, now }) => until.left(now),
        other => panic!("not renewed: {other:?}"),
    }
}

pub fn page(store: &Sqlite, which: Which) -> Page {
    store.read(&which, None, Consistency::Strong, &soon()).unwrap()
}

pub fn look(store: &Sqlite, key: &str) -> Seen {
    page(store, Which::Key(key.to_owned())).records.pop().unwrap()
}

pub fn left(seen: &Seen) -> Duration {
    let end = seen.record.holders().map(|(_, holder)| holder.until).max();
    end.and_then(|end: End| end.left(seen.times.now)).unwrap()
}

/// How many descriptors of files in the folder this process has.
#[cfg(target_os = "linux")]
pub fn descriptors(folder: &Folder) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.starts_with(folder.path())).count()
}

pub fn uuid() -> String {
    GrantForm::Uuid.fresh().as_str().to_owned()
}

/// A connection of another program.
pub fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

/// Asserts that the lock is lost, and that its row has no trace of it.
#[track_caller]
pub fn lost(store: &Sqlite, attempt: &mut Attempt) {
    match store.renew(attempt, heartbeat(seconds(20)), &soon()).unwrap() {
        Renewed::Lost(seen) => assert!(!seen.record.exists()),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub fn assert_sound(folder: &Folder) {
    let sound: String = raw(&folder.file()).query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

/// How another process that ran one test of this binary ended, and what it printed.
pub struct Ran {
    pub code: Option<i32>,
    pub told: String,
}

impl Ran {
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.code == Some(0) && self.told.contains("1 passed"), "{}", self.told);
    }
}

/// Runs the test `name` of this binary once more, with these variables in its environment.
pub fn rerun(name: &str, env: &[(&str, &OsStr)]) -> Ran {
    rerun_by(name, |exe| {
        let mut command = Command::new(exe);
        command.envs(env.iter().copied());
        command
    })
}

/// The same, by a command that runs this binary.
pub fn rerun_by(name: &str, wrap: impl FnOnce(PathBuf) -> Command) -> Ran {
    let mut command = wrap(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--nocapture", "--include-ignored"]).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!told.contains("running 0 tests"), "there is no test {name}");
    Ran { code: output.status.code(), told }
}

/// Whether this is the process for only this test, given by its full name; otherwise the test is run in one.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    let mut is_here = false;
    crate::support::alone::alone(test, || is_here = true);
    is_here
}

/// From now on the kernel refuses this thread a system call, with this error, if the argument at this place, masked, is
/// one of these values.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn refuse(call: i64, (place, mask): (u32, i32), values: [i32; 2], error: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let is = |value, jt, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let answer = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The number of the call comes first. Of each argument's eight bytes, the low half is checked.
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

/// The same for every link that is read, such as those that identify a process's clock.
#[cfg(target_os = "linux")]
pub fn refuse_links(error: i32) {
    #[cfg(target_arch = "x86_64")]
    let call = libc::SYS_readlink;
    #[cfg(not(target_arch = "x86_64"))]
    let call = libc::SYS_readlinkat;
    refuse(call, (0, 0), [0; 2], error);
}

/// The clock of the times in the first row.
pub fn clock_of_the_row(path: &Path) -> String {
    raw(path).query_row("SELECT clock FROM locks", [], |row| row.get(0)).unwrap()
}
