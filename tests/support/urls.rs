//! Stores that other processes can reach by a URL.

use std::any::Any;
use std::time::Duration;

/// A new store.
pub struct Shared {
    pub module: &'static str,
    pub url: String,
    /// What a takeover may add to the lease.
    pub grace: Duration,
    /// What the environment has to say for it.
    pub env: Option<(&'static str, String)>,
    /// What goes with the test.
    _room: Box<dyn Any + Send + Sync>,
}

/// One of each kind but memory, as far as its server is there.
pub fn shared() -> Vec<Shared> {
    super::stores::modules().into_iter().filter_map(of).collect()
}

/// One of this kind, if its server is there.
pub fn of(module: &str) -> Option<Shared> {
    match module {
        #[cfg(feature = "sqlite")]
        "sqlite" => Some(sqlite()),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => super::servers::dynamodb_local().map(|endpoint| dynamodb(&endpoint)),
        #[cfg(feature = "mongodb")]
        "mongodb" => super::servers::mongod().map(|_| mongodb()),
        #[cfg(feature = "spanner")]
        "spanner" => super::servers::spanner_emulator().map(|_| spanner()),
        _ => None,
    }
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Shared {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    Shared { module: "sqlite", url, grace: Duration::ZERO, env: None, _room: Box::new(folder) }
}

/// The clients' estimates of the service's time differ by up to a second, beside the grace.
#[cfg(feature = "dynamodb")]
fn dynamodb(endpoint: &str) -> Shared {
    let table = super::dynamodb::Table::fresh();
    let url = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}", table.0);
    Shared { module: "dynamodb", url, grace: Duration::from_secs(2), env: None, _room: Box::new(table) }
}

#[cfg(feature = "mongodb")]
fn mongodb() -> Shared {
    let rows = super::mongodb::Rows::fresh();
    Shared { module: "mongodb", url: rows.url(), grace: Duration::ZERO, env: None, _room: Box::new(rows) }
}

#[cfg(feature = "spanner")]
fn spanner() -> Shared {
    let database = super::spanner::Database::fresh();
    let env = Some(("SPANNER_EMULATOR_HOST", database.host.clone()));
    let url = format!("spanner:{}?table={}", database.path, super::spanner::TABLE);
    Shared { module: "spanner", url, grace: Duration::ZERO, env, _room: Box::new(database) }
}
