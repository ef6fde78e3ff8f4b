//! The harness of the real servers: found or started, shared, and gone with the run.
#![cfg(target_os = "linux")]

#[path = "common/servers/mod.rs"]
mod servers;

use servers::dynamodb_local;

#[test]
fn dynamodb_serves() {
    let Some(url) = dynamodb_local() else { return };
    assert!(url.starts_with("http"));
}
