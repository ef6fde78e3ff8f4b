//! Stores that other processes can reach by a URL.

use std::any::Any;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use leasehold::LockClient;

use super::harness::{connected, patient};
use super::lateness::{self, Slowness};

/// Makes a client in this process.
type Connect = Box<dyn Fn() -> LockClient + Send + Sync>;

/// A new store.
pub struct Shared {
    pub module: &'static str,
    pub url: String,
    /// What a takeover may take in addition to the lease.
    pub grace: Duration,
    /// By how much an answer may overstate what is left of a lease, because it was on its way for a while.
    pub early: Duration,
    /// A client in this process.
    pub client: Connect,
    /// A client of another file or another database, where the measurement would keep the test from writing.
    beside: Option<Connect>,
    /// The variable of the environment that the store needs.
    pub env: Option<(&'static str, String)>,
    slowness: OnceLock<Slowness>,
    /// What is dropped with the test.
    _room: Box<dyn Any + Send + Sync>,
}

impl Shared {
    /// Measures from now on how slow this machine and the server on it are.
    pub fn measure(&self) {
        lateness::measure();
        let client = self.beside.as_ref().unwrap_or(&self.client);
        self.slowness.get_or_init(|| Slowness::of(client()));
    }

    /// How much this machine, or a server on it, may have added to a bound since then.
    pub fn slack(&self, since: Instant) -> Duration {
        lateness::slack(since) + self.slowness.get().expect("`measure` comes first").slack(since)
    }
}

/// A store of each kind but memory, if its server is available.
pub fn shared() -> Vec<Shared> {
    super::stores::modules().into_iter().filter_map(of).collect()
}

/// Runs a test on this kind of store, unless another one was asked for, or its server is missing, which the harness
/// reports.
pub fn on(module: &str, test: impl FnOnce(&Shared)) {
    if let Some(store) = super::stores::is_wanted(module).then(|| of(module)).flatten() {
        test(&store);
    }
}

/// A store of this kind, if its server is available.
pub fn of(module: &str) -> Option<Shared> {
    match module {
        #[cfg(feature = "sqlite")]
        "sqlite" => Some(sqlite()),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => super::servers::dynamodb_local().map(|endpoint| dynamodb(&endpoint)),
        #[cfg(feature = "mongodb")]
        "mongodb" => super::servers::mongod().map(|_| mongodb()),
        #[cfg(feature = "postgres")]
        "postgres" => super::servers::postgres_server().map(|_| postgres()),
        #[cfg(feature = "spanner")]
        "spanner" => super::servers::spanner_emulator().map(|_| spanner()),
        _ => None,
    }
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Shared {
    let folder = tempfile::tempdir().unwrap();
    let [url, beside] = ["locks.db", "beside.db"].map(|file| format!("sqlite:{}", folder.path().join(file).display()));
    // SQLite has one writer at a time, so the measurement uses another file.
    Shared { beside: Some(client_by(beside)), ..by_url("sqlite", url, Duration::from_millis(20), folder) }
}

/// The clients' estimates of the service's time differ by up to a second, in addition to the grace.
#[cfg(feature = "dynamodb")]
fn dynamodb(endpoint: &str) -> Shared {
    let table = super::dynamodb::Table::fresh();
    let url = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}", table.0);
    let name = table.0.clone();
    Shared {
        grace: Duration::from_secs(2),
        client: Box::new(move || connected(|| patient(leasehold::dynamodb::builder(super::dynamodb::config(), &name)))),
        ..by_url("dynamodb", url, Duration::from_millis(100), table)
    }
}

#[cfg(feature = "mongodb")]
fn mongodb() -> Shared {
    let rows = super::mongodb::Rows::fresh();
    by_url("mongodb", rows.url(), Duration::from_millis(20), rows)
}

#[cfg(feature = "postgres")]
fn postgres() -> Shared {
    let rows = super::postgres::Rows::fresh();
    by_url("postgres", rows.url(), Duration::from_millis(20), rows)
}

#[cfg(feature = "spanner")]
fn spanner() -> Shared {
    use super::spanner::{Database, TABLE, settings};
    fn client_of(Database { host, path }: Database) -> Connect {
        Box::new(move || connected(|| patient(leasehold::spanner::builder(settings(&host), &path, TABLE))))
    }
    let database = Database::fresh();
    let url = format!("spanner:{}?table={TABLE}", database.path);
    Shared {
        env: Some(("SPANNER_EMULATOR_HOST", database.host.clone())),
        client: client_of(database.clone()),
        // The emulator runs one transaction at a time in each database, so the measurement uses another one.
        beside: Some(Box::new(|| client_of(Database::fresh())())),
        ..by_url("spanner", url, Duration::from_millis(100), database)
    }
}

fn client_by(url: String) -> Connect {
    Box::new(move || connected(|| patient(LockClient::builder(&url))))
}

/// A store that its URL describes completely.
fn by_url(module: &'static str, url: String, early: Duration, room: impl Any + Send + Sync) -> Shared {
    let (grace, client) = (Duration::ZERO, client_by(url.clone()));
    Shared {
        module,
        url,
        grace,
        early,
        client,
        beside: None,
        env: None,
        slowness: OnceLock::new(),
        _room: Box::new(room),
    }
}
