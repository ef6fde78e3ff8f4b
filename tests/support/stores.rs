//! The table of stores. The test suites run on each of them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::lease::{GrantId, LockRecord, Mode};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::store::{Backend, Consistency, Page, Seen, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;

use super::harness::Folder;

/// One store, and what its format can hold.
pub struct Store {
    /// The module under `src/store`.
    pub module: &'static str,
    /// It keeps a set of the acquisitions that were given up. A store that never leaves a copy of a request on its way
    /// needs none.
    pub remembers_who_gave_up: bool,
    /// It has no such set: giving up writes the row, even a free or a missing one, which stops requests that are on
    /// their way.
    pub gives_up_by_writing: bool,
    /// Making its rows older moves only the ends of leases, because a token says when it was granted.
    pub only_ends_age: bool,
    /// Each row records its format. Otherwise the whole store has one format.
    pub rows_have_format: bool,
    /// It tells waiters of changes. Otherwise they poll.
    pub tells: bool,
    /// A swap that removes a live holder, and a transfer, also stop late copies of that holder's acquisition.
    pub swaps_give_up: bool,
    /// The same for any number of holders, but for a transfer only to the same lock id.
    pub adoptions_give_up: bool,
    /// An empty store.
    pub open: fn() -> Opened,
}

/// Calls a macro with the module of each store of this build: the one list of them.
macro_rules! for_each_store {
    ($each:ident) => {
        $each!(memory);
        #[cfg(feature = "sqlite")]
        $each!(sqlite);
        #[cfg(feature = "dynamodb")]
        $each!(dynamodb);
        #[cfg(feature = "mongodb")]
        $each!(mongodb);
        #[cfg(feature = "postgres")]
        $each!(postgres);
        #[cfg(feature = "spanner")]
        $each!(spanner);
    };
}
#[allow(unused_imports)]
pub(crate) use for_each_store;

/// The tests of one store, from a suite whose modules have functions that take a store.
#[allow(unused_macros)] // Not every test binary has such a suite.
macro_rules! tests {
    ($suite:ident on $store:ident: $($module:ident: $($test:ident),+ $(,)?;)+) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                crate::support::stores::on(stringify!($store), crate::$suite::$module::$test);
            })+
        })+
    };
}
#[allow(unused_imports)]
pub(crate) use tests;

/// The tests of one store, from the functions next to the macro call; `on` runs one of them.
#[allow(unused_macros)] // Not every test binary has such a suite.
macro_rules! tests_of {
    ($on:path, $store:ident: $($test:ident)+) => {
        mod $store {
            $(#[test]
            fn $test() {
                $on(stringify!($store), super::$test);
            })+
        }
    };
}
#[allow(unused_imports)]
pub(crate) use tests_of;

/// The modules of the stores of this build.
pub fn modules() -> Vec<&'static str> {
    let mut modules = Vec::new();
    macro_rules! add {
        ($store:ident) => {
            modules.push(stringify!($store))
        };
    }
    for_each_store!(add);
    modules
}

/// Whether the tests of this store should run: `LEASEHOLD_TEST_STORE` names this store or is not set.
pub fn is_wanted(module: &str) -> bool {
    let Ok(wanted) = std::env::var("LEASEHOLD_TEST_STORE") else { return true };
    assert!(modules().contains(&wanted.as_str()), "LEASEHOLD_TEST_STORE names no store of this build: {wanted}");
    // A variant of a store, like `dynamodb_sorted`, runs with it.
    module.strip_suffix("_sorted").unwrap_or(module) == wanted
}

/// Every store of this build whose server is available, or the one that `LEASEHOLD_TEST_STORE` names.
pub fn stores() -> Vec<Store> {
    modules().into_iter().filter(|module| is_wanted(module)).filter_map(enrolled).collect()
}

/// Runs a test on one store, unless another one was asked for, or its server is missing, which the harness reports.
pub fn on(module: &str, test: impl FnOnce(&Store)) {
    if let Some(store) = is_wanted(module).then(|| enrolled(module)).flatten() {
        test(&store);
    }
}

/// Runs a test on every store, each on a thread of its own, whose name appears in a failure.
pub fn on_each(test: impl Fn(&Store) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        let running = stores().into_iter().map(|store| {
            let name = format!("on {}", store.module);
            std::thread::Builder::new().name(name).spawn_scoped(scope, move || test(&store)).unwrap()
        });
        let running: Vec<_> = running.collect();
        let ended: Vec<_> = running.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        if let Some(panic) = ended.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The store of that module. None where its server is missing, which the harness reports.
pub fn enrolled(module: &str) -> Option<Store> {
    let store = match module {
        "memory" => Store { remembers_who_gave_up: true, ..Store::new("memory", memory) },
        #[cfg(feature = "sqlite")]
        "sqlite" => Store { rows_have_format: false, ..Store::new("sqlite", sqlite) },
        #[cfg(feature = "dynamodb")]
        "dynamodb" => super::servers::dynamodb_local().map(|_| Store {
            remembers_who_gave_up: true,
            tells: false,
            swaps_give_up: true,
            ..Store::new("dynamodb", dynamodb)
        })?,
        // A table with a sort key. It is not in the list of all stores, but the suite of the contract runs on it.
        #[cfg(feature = "dynamodb")]
        "dynamodb_sorted" => Store { module: "dynamodb_sorted", open: dynamodb_sorted, ..enrolled("dynamodb")? },
        // A number in the attempt's session stops late copies of a request.
        #[cfg(feature = "mongodb")]
        "mongodb" => super::servers::mongod().map(|_| Store::new("mongodb", mongodb))?,
        #[cfg(feature = "postgres")]
        "postgres" => super::servers::postgres_server().map(|_| Store {
            remembers_who_gave_up: true,
            adoptions_give_up: true,
            ..Store::new("postgres", postgres)
        })?,
        #[cfg(feature = "spanner")]
        "spanner" => super::servers::spanner_emulator().map(|_| Store {
            gives_up_by_writing: true,
            only_ends_age: true,
            tells: false,
            ..Store::new("spanner", spanner)
        })?,
        _ => return None,
    };
    Some(store)
}

impl Store {
    /// A store as most are.
    fn new(module: &'static str, open: fn() -> Opened) -> Store {
        Store {
            module,
            remembers_who_gave_up: false,
            gives_up_by_writing: false,
            only_ends_age: false,
            rows_have_format: true,
            tells: true,
            swaps_give_up: false,
            adoptions_give_up: false,
            open,
        }
    }
}

/// A store opened by two clients, and the clock that it uses.
pub struct Opened {
    pub store: Arc<dyn Backend>,
    pub second: Arc<dyn Backend>,
    pub clock: Arc<Clock>,
    /// By how much the store's time may fall back when the store learns more about it.
    pub slack: Duration,
    /// For a server with a clock of its own: lets all leases end this much earlier.
    pub age: Option<Box<dyn Fn(Duration) + Send + Sync>>,
    /// What is dropped with the test.
    _room: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl Opened {
    /// Opened by two clients, for whom time passes with this clock.
    fn by<B: Backend + 'static>(clock: &Arc<Clock>, open: impl Fn() -> B) -> Opened {
        Opened {
            store: Arc::new(open()),
            second: Arc::new(open()),
            clock: clock.clone(),
            slack: Duration::ZERO,
            age: None,
            _room: None,
        }
    }

    /// Where the server has a clock of its own: makes what is stored older instead.
    #[cfg(any(feature = "mongodb", feature = "postgres", feature = "spanner"))]
    fn aging(mut self, age: impl Fn(Duration) + Send + Sync + 'static) -> Opened {
        self.age = Some(Box::new(age));
        self
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        // The clock last, so that whatever it wakes sees the older rows.
        self.age.iter().for_each(|age| age(by));
        self.clock.advance(by);
    }

    /// Lets a lease that ends in `lease` end, also for clients that respect it for a grace longer.
    pub fn outlast(&self, lease: Duration) {
        self.advance(lease + self.store.info().grace + self.slack);
    }

    /// The record of `key`; a missing one if there is no row.
    pub fn get(&self, key: &str) -> Seen {
        let mut page = self.page(&Which::Key(key.to_owned()), None);
        assert_eq!((page.records.len(), &page.next), (1, &None), "a single key has one record");
        page.records.remove(0)
    }

    pub fn record(&self, key: &str) -> LockRecord {
        self.get(key).record
    }

    pub fn page(&self, which: &Which, from: Option<String>) -> Page {
        self.store.read(which, from, Consistency::Strong, &soon()).unwrap()
    }

    /// Every record, over all pages, by key.
    pub fn all(&self, which: &Which) -> Vec<LockRecord> {
        let (mut all, mut from): (Vec<LockRecord>, _) = (Vec::new(), None);
        loop {
            let page = self.page(which, from);
            all.extend(page.records.into_iter().map(|seen| seen.record));
            from = page.next;
            if from.is_none() {
                all.sort_by(|a, b| a.key.cmp(&b.key));
                return all;
            }
        }
    }
}

/// A deadline that no call should come near.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// A text that is used nowhere else, in this process or another one.
pub fn unique() -> String {
    leasehold::internals::store::GrantForm::Uuid.fresh().as_str().to_owned()
}

/// A grant id in the form of the store.
pub fn fresh(store: &dyn Backend) -> GrantId {
    store.info().grant_form.fresh()
}

fn memory() -> Opened {
    let (name, clock) = (unique(), Clock::system());
    Opened::by(&clock, || Memory::open(&name, clock.clone()))
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Opened {
    use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
    let (folder, clock) = (Folder::new(), Clock::system());
    let options = SqliteOptions { path: folder.file(), mode: None, unsafe_fs: false, clock_identity: None };
    let opened = Opened::by(&clock, || Sqlite::open(options.clone(), clock.clone(), &soon()).unwrap());
    Opened { _room: Some(Box::new(folder)), ..opened }
}

/// Time passes on the client's clock and on the service's alike: see `dynamodb::shifted`. Both clients share one
/// estimate of it, because the suites compare times to the nanosecond. The grace is wide enough for any estimate,
/// so that no holder gets less than its lease.
#[cfg(feature = "dynamodb")]
fn dynamodb() -> Opened {
    dynamodb_of(super::dynamodb::Table::fresh(), None)
}

/// A table that also has rows of other users, with locks of the same keys.
#[cfg(feature = "dynamodb")]
fn dynamodb_sorted() -> Opened {
    use super::dynamodb::{Table, options, sort_key};
    use leasehold::internals::store::Schema;
    use leasehold::internals::store::dynamodb::{Dynamodb, DynamodbOptions};
    let (table, clock) = (Table::sorted(), Clock::system());
    let open = |value| {
        let sort_key = Some(sort_key(value));
        let options = DynamodbOptions { sort_key, ..options(&table.0, &clock) };
        Dynamodb::open(options, clock.clone(), &soon()).unwrap()
    };
    // Each of these parts of the table notes its own grace, as the client that creates the table does.
    open("lock").schema(Schema::Create, &soon()).unwrap();
    for value in ["before", "other"] {
        let other = open(value);
        for key in ["k", "a", "b"] {
            let mut attempt = super::calls::attempt(other.info().grant_form, key, Mode::Exclusive);
            super::calls::acquired(&other, &mut attempt);
        }
    }
    dynamodb_of(table, Some(sort_key("lock")))
}

#[cfg(feature = "dynamodb")]
fn dynamodb_of(
    table: super::dynamodb::Table,
    sort_key: Option<leasehold::internals::store::dynamodb::SortKey>,
) -> Opened {
    use super::dynamodb::options;
    use leasehold::internals::store::dynamodb::Dynamodb;
    let clock = Clock::system();
    let mut options = options(&table.0, &clock);
    options.sort_key = sort_key;
    options.grace = Duration::from_secs(2);
    options.estimate = Some(Arc::new(leasehold::internals::store::dynamodb::Estimate::of_several()));
    let opened = Opened::by(&clock, || Dynamodb::open(options.clone(), clock.clone(), &soon()).unwrap());
    Opened { slack: Duration::from_secs(1), ..opened }
}

#[cfg(feature = "mongodb")]
fn mongodb() -> Opened {
    let rows = super::mongodb::Rows::fresh();
    Opened::by(&Clock::system(), || rows.open()).aging(move |by| rows.age(by))
}

#[cfg(feature = "postgres")]
fn postgres() -> Opened {
    let rows = super::postgres::Rows::fresh();
    Opened::by(&Clock::system(), || rows.open()).aging(move |by| rows.age(by))
}

/// Time passes on the clients' clock, too.
#[cfg(feature = "spanner")]
fn spanner() -> Opened {
    use super::spanner::Database;
    use leasehold::internals::store::spanner::Spanner;
    let (database, clock) = (Database::fresh(), Clock::system());
    let raw = database.raw();
    let open = || Spanner::open(database.options(), &soon()).unwrap();
    Opened::by(&clock, open).aging(move |by| raw.age(by))
}
