//! What the tests with real processes, threads and bounds share. Everything works on a store URL, so
//! that each store can use it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
#[cfg(feature = "sqlite")]
use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
use leasehold::internals::store::{Backend, GrantForm};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{ClientBuilder, LockClient};

use super::bench::builder_over;
use super::stores::Opened;
use super::wait::wait_until;

/// How long anything may take that only a broken test or library would not do at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A server that stands still for some seconds ends no call.
pub fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder.request_timeout(PATIENCE).drop_timeout(PATIENCE)
}

/// A client that must connect.
#[track_caller]
pub fn connected(builder: impl Fn() -> ClientBuilder) -> LockClient {
    sent(|| builder().connect())
}

/// Does this until it is answered: a server that stands still lets no connection be made in its time, and on a busy machine
/// a call's time may be over before it was sent.
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

/// A folder that is removed with the value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// In memory where that can be.
    pub fn new() -> Folder {
        Folder::at(super::room::place())
    }

    /// Where a commit takes its time.
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

/// A store with faults in front of it, and a way to look past them.
pub struct Store {
    pub name: &'static str,
    pub plan: FaultPlan,
    clock: Arc<Clock>,
    faulty: Arc<Faulty>,
    // Another connection, where the store has such.
    plain: Arc<dyn Backend>,
    pub folder: Folder,
    /// Where it is one of the table of stores, which goes with it.
    at: Option<Opened>,
}

/// Makes a test of each function for each store that runs without a server; `alone`: in a process of its own.
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

/// The same in a process of its own for each store that has a server.
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
                crate::support::alone::alone(&format!("{module}::{}", stringify!($test)), || {
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
    /// Another of this kind.
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

    /// One of the table, whose server is there.
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
        // For whoever asks for the slack of a bound.
        super::lateness::measure();
        let plan = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(below, plan.clone()));
        Store { name, plan, clock, faulty, plain, folder, at: None }
    }

    /// A client that meets the faults.
    pub fn builder(&self) -> ClientBuilder {
        builder_over(self.faulty.clone(), self.clock.clone()).poll(millis(5)..=millis(20))
    }

    /// A client that meets none, with another connection: what everybody else sees.
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

    /// The store of a memory client lets go of the channel on which it tells waiters.
    pub fn stop_telling(&self) {
        let (to, _) = crossbeam_channel::unbounded();
        let by = Deadline::after(PATIENCE);
        assert!(self.plain.wake(&["nobody's".to_owned()], to, &by).expect("a memory store"));
    }

    /// Nobody stands in the row, not even expired.
    pub fn is_vacant(&self, key: &str) -> bool {
        let status = self.bystander().get(key).expect("a look at the key");
        status.is_none_or(|status| status.holders().is_empty())
    }
}

/// Acquires `key` without getting an answer; again if the deadline came before the request was sent.
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

/// The same for one of [many](super::lateness::AMONG_MANY).
#[track_caller]
pub fn within_among_many<T>(what: &str, bound: Duration, call: impl FnOnce() -> T) -> T {
    with_slack(super::lateness::AMONG_MANY, what, bound, call)
}

#[track_caller]
fn with_slack<T>(times: u32, what: &str, bound: Duration, call: impl FnOnce() -> T) -> T {
    super::lateness::measure();
    super::lateness::within(what, bound, |started| times * super::lateness::slack(started), call)
}
