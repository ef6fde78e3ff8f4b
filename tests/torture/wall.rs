//! Runs with wall clocks that jump.

use std::process::Command;

use crate::runs::Run;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
use crate::servers::skip;
#[cfg(not(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")))]
use crate::skip::skip;

/// A jump counts if a worker saw it, and the run needs some; no lock, token or deadline may depend on the wall clock.
/// Each worker that was not killed writes at its end what its client has left behind.
#[test]
#[cfg(feature = "sqlite")]
fn sqlite_under_wall_clocks_that_jump() {
    if Command::new("faketime").arg("--version").output().is_err() {
        return skip("no program `faketime`; install it (on Debian: faketime)");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", dir.path().join("locks.db").display());
    let json = Run { store, minutes: 0.35, faults: "wall,fork", ..Run::default() }.is_clean(dir.path());
    let count = |group: &str, name: &str| json[group][name].as_u64().unwrap_or_default();
    println!("{:#} {:#}", json["faults_that_hit"], json["left_behind"]);
    assert!(count("faults_that_hit", "wall jump") >= 3, "{json:#}");
    assert_eq!(count("left_behind", "clients closed"), 4, "{json:#}");
    assert!(count("judged", "left") >= 4, "{json:#}");
}
