//! What the tests with real processes, threads and time bounds share. Everything works on a store URL, so
//! that each store can use it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
#[cfg(feature = "sqlite")]
use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
use leasehold::internals::store::{Backend, GrantForm};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{ClientBuilder, LockClient, LockGuard};

use super::bench::builder_over;
use super::stores::Opened;
use super::wait::wait_until;

/// A wait that takes longer than this means that the test or the library is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A builder with long timeouts, so that a server that stops for some seconds makes no call fail.
pub fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder.request_timeout(PATIENCE).drop_timeout(PATIENCE)
}

/// A client that must connect.
#[track_caller]
pub fn connected(builder: impl Fn() -> ClientBuilder) -> LockClient {
    sent(|| builder().connect())
}

/// Repeats this until it is answered: a server that stops for a while may let a connection time out, and on a busy
/// machine a call's time may be over before the request was sent.
#[track_caller]
pub fn sent<T>(mut step: impl FnMut() -> leasehold::Result<T>) -> T {
    let mut answer = None;
    wait_until("an answer", || match step() {
        Ok(value) => {
            answer = Some(value);
            true
        }
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            false
        }
    });
    answer.expect("it came")
}

/// Repeats the release: a store this busy may not answer in time.
#[track_caller]
pub fn release(mut guard: LockGuard) {
    let started = Instant::now();
    while let Err(failed) = guard.release() {
        let error = failed.error();
        assert!(error.is_retryable() && started.elapsed() < 4 * PATIENCE, "{error:?}");
        guard = failed.into_guard();
    }
}

/// A folder that is removed when the value is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// In memory where possible.
    pub fn new() -> Folder {
        Folder::at(super::room::place())
    }

    /// On a disk, where a commit takes time.
    pub fn on_disk() -> Folder {
        Folder::at(std::env::temp_dir())
    }

    fn at(place: PathBuf) -> Folder {
        let path = place.join(format!("leasehold-{}", GrantForm::Uuid.fresh().as_str()));
        std::fs::create_dir(&path).expect("a temporary folder");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The SQLite file in it.
    pub fn file(&self) -> PathBuf {
        self.0.join("locks.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A store with a layer in front that injects faults, and a way to look past it.
pub struct Store {
    pub name: &'static str,
    pub plan: FaultPlan,
    clock: Arc<Clock>,
    faulty: Arc<Faulty>,
    // Another connection, where the store has connections.
    plain: Arc<dyn Backend>,
    /// Looks at rows. A client for each look would check the schema each time, which takes long on Spanner.
    looks: OnceLock<LockClient>,
    pub folder: Folder,
    /// Some if it is from the table of stores; dropped with it.
    at: Option<Opened>,
}

/// Makes a test of each function for each store that runs without a server. `alone` means in a process of its own.
#[allow(unused_macros)] // Not every test binary has such tests.
macro_rules! on_each_local {
    ($($how:ident: $($test:ident,)+;)+) => {
        mod memory {
            $($(crate::support::harness::on_each_local! { @$how memory $test })+)+
        }
        mod sqlite {
            $($(crate::support::harness::on_each_local! { @$how sqlite $test })+)+
        }
    };
    (@together $store:ident $test:ident) => {
        #[test]
        fn $test() {
            super::$test(crate::support::harness::Store::$store());
        }
    };
    (@alone $store:ident $test:ident) => {
        #[test]
        fn $test() {
            let (_, module) = module_path!().split_once("::").expect("a module of this program");
            crate::support::alone::alone(&format!("{module}::{}", stringify!($test)), || {
                super::$test(crate::support::harness::Store::$store());
            });
        }
    };
}
#[allow(unused_imports)]
pub(crate) use on_each_local;

/// The same for each store that has a server, each test in a process of its own and with time for a busy server.
#[allow(unused_macros)] // Not every test binary has such tests.
macro_rules! on_each_server {
    ($($test:ident,)+) => {
        crate::support::harness::on_each_server! { @ "dynamodb" dynamodb $($test)+ }
        crate::support::harness::on_each_server! { @ "mongodb" mongodb $($test)+ }
        crate::support::harness::on_each_server! { @ "postgres" postgres $($test)+ }
        crate::support::harness::on_each_server! { @ "spanner" spanner $($test)+ }
    };
    (@ $feature:literal $store:ident $($test:ident)+) => {
        #[cfg(feature = $feature)]
        mod $store {
            $(#[test]
            fn $test() {
                let (_, module) = module_path!().split_once("::").expect("a module of this program");
                let limit = 20 * crate::support::harness::PATIENCE;
                crate::support::alone::alone_for(&format!("{module}::{}", stringify!($test)), limit, || {
                    crate::support::stores::on(stringify!($store), |store| {
                        super::$test(crate::support::harness::Store::of(store));
                    });
                });
            })+
        }
    };
}
#[allow(unused_imports)]
pub(crate) use on_each_server;

impl Store {
    /// Another store of this kind.
    pub fn again(&self) -> Store {
        match self.name {
            "memory" => Store::memory(),
            #[cfg(feature = "sqlite")]
            "sqlite" => Store::sqlite(),
            other => panic!("it needs a server: {other}"),
        }
    }

    pub fn memory() -> Store {
        let clock = Clock::system();
        let memory: Arc<dyn Backend> = Arc::new(Memory::open("", clock.clone()));
        Store::over("memory", memory.clone(), memory, clock, Folder::new())
    }

    #[cfg(feature = "sqlite")]
    pub fn sqlite() -> Store {
        let (clock, folder) = (Clock::system(), Folder::new());
        let open = || -> Arc<dyn Backend> {
            let options = SqliteOptions { path: folder.file(), mode: None, unsafe_fs: false, clock_identity: None };
            Arc::new(Sqlite::open(options, clock.clone(), &Deadline::after(PATIENCE)).expect("a SQLite file"))
        };
        let (below, plain) = (open(), open());
        Store::over("sqlite", below, plain, clock, folder)
    }

    /// A store from the table, whose server is running.
    pub fn of(store: &super::stores::Store) -> Store {
        let at = (store.open)();
        let (below, plain, clock) = (at.store.clone(), at.second.clone(), at.clock.clone());
        Store { at: Some(at), ..Store::over(store.module, below, plain, clock, Folder::new()) }
    }

    fn over(
        name: &'static str,
        below: Arc<dyn Backend>,
        plain: Arc<dyn Backend>,
        clock: Arc<Clock>,
        folder: Folder,
    ) -> Store {
        // Starts the measurement for tests that use a bound with slack.
        super::lateness::measure();
        let plan = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(below, plan.clone()));
        Store { name, plan, clock, faulty, plain, looks: OnceLock::new(), folder, at: None }
    }

    /// A client whose requests meet the faults.
    pub fn builder(&self) -> ClientBuilder {
        builder_over(self.faulty.clone(), self.clock.clone()).poll(millis(5)..=millis(20))
    }

    /// A client without faults, on another connection: it sees what everybody else sees.
    pub fn bystander(&self) -> LockClient {
        let builder = builder_over(self.plain.clone(), self.clock.clone());
        builder.poll(millis(5)..=millis(20)).connect().expect("a bystander")
    }

    /// Lets time pass at once.
    pub fn advance(&self, by: Duration) {
        match &self.at {
            Some(at) => at.advance(by),
            None => self.clock.advance(by),
        }
    }

    /// Makes the memory store drop the channel on which it wakes waiters, by giving it another one.
    pub fn stop_telling(&self) {
        let (to, _) = crossbeam_channel::unbounded();
        let by = Deadline::after(PATIENCE);
        assert!(self.plain.wake(&["nobody's".to_owned()], to, &by).expect("a memory store"));
    }

    /// Whether the row has no holder at all, not even an expired one.
    pub fn is_vacant(&self, key: &str) -> bool {
        let status = self.looks.get_or_init(|| self.bystander()).get(key).expect("a look at the key");
        status.is_none_or(|status| status.holders().is_empty())
    }
}

/// Acquires `key` without getting an answer. Tries again if the deadline came before the request was sent.
#[track_caller]
pub fn acquire_unanswered(plan: &FaultPlan, client: &LockClient, key: &str) {
    let before = plan.count(Call::Acquire);
    plan.next(Call::Acquire, Fault::ApplyThenHang);
    loop {
        let answer = client.try_lock_for(key, millis(1));
        if plan.count(Call::Acquire) > before {
            assert!(answer.is_err());
            return;
        }
        assert!(!matches!(answer, Ok(Some(_))));
    }
}

/// Runs `call`, which must be over within `bound`.
#[track_caller]
pub fn within<T>(what: &str, bound: Duration, call: impl FnOnce() -> T) -> T {
    with_slack(1, what, bound, call)
}

/// The same, for one call of [many](super::lateness::AMONG_MANY).
#[track_caller]
pub fn within_among_many<T>(what: &str, bound: Duration, call: impl FnOnce() -> T) -> T {
    with_slack(super::lateness::AMONG_MANY, what, bound, call)
}

/// The same, with the slack of so many calls.
#[track_caller]
pub fn with_slack<T>(times: u32, what: &str, bound: Duration, call: impl FnOnce() -> T) -> T {
    super::lateness::measure();
    super::lateness::within(what, bound, |started| times * super::lateness::slack(started), call)
}
