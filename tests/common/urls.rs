//! Stores that other processes can reach by a URL.

use std::time::Duration;

use super::stores::unique;

/// A new store.
pub struct Shared {
    pub module: &'static str,
    pub url: String,
    /// What a takeover may add to the lease.
    pub grace: Duration,
    _keep: Box<dyn std::any::Any>,
}

/// One of each kind but memory, as far as its server is there.
pub fn shared() -> Vec<Shared> {
    [sqlite(), dynamodb()].into_iter().flatten().collect()
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Option<Shared> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join(unique()).display());
    Some(Shared { module: "sqlite", url, grace: Duration::ZERO, _keep: Box::new(folder) })
}

#[cfg(not(feature = "sqlite"))]
fn sqlite() -> Option<Shared> {
    None
}

#[cfg(feature = "dynamodb")]
fn dynamodb() -> Option<Shared> {
    let endpoint = super::servers::dynamodb_local()?;
    let table = super::dynamodb::Table::fresh();
    let url = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}", table.0);
    // The estimates of the service's time differ by up to a second, too.
    Some(Shared { module: "dynamodb", url, grace: Duration::from_secs(2), _keep: Box::new(table) })
}

#[cfg(not(feature = "dynamodb"))]
fn dynamodb() -> Option<Shared> {
    None
}
