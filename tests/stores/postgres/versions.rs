//! The contract of the stores on the oldest and the newest version. The tests' README says how to run all tests on
//! others.

use std::process::Command;

use crate::support::own::Own;
use crate::support::postgres::sql_at;
use crate::support::servers::Server;
use crate::support::servers::postgres::{self, NEWEST, OLDEST};
use crate::support::stores::is_wanted;

static VERSIONS: [Server; 2] = [OLDEST, NEWEST];

#[test]
fn the_oldest_version_keeps_the_contract() {
    keeps_the_contract(&VERSIONS[0], "13.");
}

#[test]
fn the_newest_version_keeps_the_contract() {
    keeps_the_contract(&VERSIONS[1], "17.");
}

/// Runs in another process, because the server of this one has another version.
fn keeps_the_contract(kind: &'static Server, version: &str) {
    if !is_wanted("postgres") {
        return;
    }
    let Some(server) = Own::start(kind) else { return };
    let is = sql_at(&server.url().parse().unwrap(), "SHOW server_version")[0][0].clone().unwrap();
    assert!(is.starts_with(version), "{is}");
    let mut suite = Command::new(std::env::current_exe().unwrap());
    suite
        .args(["conformance::postgres::", "postgres::prepared::", "--test-threads=2"])
        .env(postgres::SERVER.env, server.url());
    let output = suite.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && told.contains("test result: ok") && !told.contains(" 0 passed"),
        "on {is}: {told}"
    );
}
