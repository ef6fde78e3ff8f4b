//! A folder that goes away with the test, stores in it, and acquisitions.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::lease::{Ask, End, Holder, Labels, Lease, Mode};
use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
use leasehold::internals::store::{Acquired, Attempt, Backend, GrantForm, Page, Renewal, Renewed, Seen, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;

/// A fresh folder.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("leasehold-{}", GrantForm::Uuid.fresh().as_str()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("locks.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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

/// The error of opening `path`: its kind, and that it names the path.
pub fn refused(path: &Path) -> leasehold::Error {
    let error = try_open(path).expect_err("opened");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

/// A store on a clock of its own, as another boot or time namespace has it.
pub fn open_at(path: &Path, identity: &str) -> (Sqlite, Arc<Clock>) {
    let clock = Clock::system();
    let options = SqliteOptions { clock_identity: Some(identity.to_owned()), ..options(path) };
    (Sqlite::open(options, Arc::clone(&clock), &soon()).unwrap(), clock)
}

pub fn ask(owner: &str, lease: Duration) -> Ask {
    Ask {
        grant: GrantForm::Uuid.fresh(),
        mode: Mode::Exclusive,
        lock_id: format!("id of {owner}"),
        labels: Labels { owner: owner.to_owned(), host: Some("h".to_owned()), comment: None },
        lease,
        max_holders: None,
        replace_same_owner: false,
        instead_of: None,
    }
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
    store.read(&which, None, true, &soon()).unwrap()
}

pub fn look(store: &Sqlite, key: &str) -> Seen {
    page(store, Which::Key(key.to_owned())).records.pop().unwrap()
}

pub fn left(seen: &Seen) -> Duration {
    let end = seen.record.holders().map(|(_, holder)| holder.until).max();
    end.and_then(|end: End| end.left(seen.now)).unwrap()
}

/// A connection of somebody else's program.
pub fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

/// Runs the test `name` of this binary once more, in a process that `wrap` prepares.
pub fn rerun(name: &str, wrap: impl FnOnce(PathBuf) -> Command) -> Output {
    let mut command = wrap(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--include-ignored"]).output().unwrap()
}

/// Says loudly that a test could not run here; in CI that is a failure.
pub fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
    assert!(std::env::var_os("LEASEHOLD_TEST_REQUIRE").is_none(), "SKIPPED: {why}");
}
