//! One long run of the command on each store, under all faults that the store can have, also of its server: where
//! `LEASEHOLD_TEST_MINUTES` says how long. `.ci/long` runs them, with a release build of the command
//! (`LEASEHOLD_TEST_TORTURE`) and a folder for what they leave (`LEASEHOLD_TEST_REPORTS`).

use std::path::PathBuf;

use crate::runs::{Run, on_a_disk};
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
use crate::servers::Server;

/// How long the runs take, if they are made at all.
pub fn minutes() -> Option<f64> {
    let text = std::env::var("LEASEHOLD_TEST_MINUTES").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("LEASEHOLD_TEST_MINUTES is {text:?}, but must be a number")))
}

/// A long run, with a folder of this name for its report, if there is a folder for all reports.
pub fn long<'a>(name: &str, minutes: f64, store: String) -> Run<'a> {
    let out = std::env::var_os("LEASEHOLD_TEST_REPORTS").map(|all| PathBuf::from(all).join(name));
    // More arguments, separated by spaces: of an argument that is given twice the last one counts.
    let more = std::env::var("LEASEHOLD_TEST_TORTURE_ARGS").unwrap_or_default();
    // A thread mostly waits, for the holder of a key or the end of a fault: with many threads at once ten times as much
    // happens. The emulator of Spanner has one transaction at a time, however many threads wait for it.
    let threads = if name == "spanner" { "1" } else { "8" };
    let many = ["--keys", "48", "--workers", "8", "--threads", threads];
    let args = many.into_iter().chain(more.split_whitespace()).map(str::to_owned).collect();
    Run { store, minutes, faults: "all", args, out, ..Run::default() }
}

/// A run on a server that is killed now and then. `store` makes the store's URL from the server's own.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
fn is_clean_while_killed(name: &str, server: &'static Server, store: impl FnOnce(&str) -> String) {
    let Some(minutes) = minutes() else { return };
    let Some(own) = crate::own::Own::start(server) else { return };
    let run = long(name, minutes, store(&own.url()));
    crate::restarts::is_clean_under(run, &["server-kill"], crate::restarts::killed(own));
}

/// On a disk of its own, which gets full.
#[test]
#[cfg(feature = "sqlite")]
fn sqlite() {
    let Some(minutes) = minutes() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let store = format!("sqlite:{}", disk.join("locks.db").display());
    Run { by: on_a_disk("8m", &disk), ..long("sqlite", minutes, store) }.is_clean(dir.path());
}

/// The server has its tables on disk, so that they outlive a kill.
#[test]
#[cfg(feature = "dynamodb")]
fn dynamodb() {
    let store = |url: &str| format!("dynamodb://locks?region=us-east-1&endpoint={url}");
    is_clean_while_killed("dynamodb", &crate::servers::dynamodb::ON_DISK, store);
}

/// A replica set of three, without faults of the network, because a proxy can be used for a single server only.
#[test]
#[cfg(feature = "mongodb")]
fn mongodb() {
    use crate::servers::mongod::{ask, step_down};
    let Some(minutes) = minutes() else { return };
    let Some(mut cluster) = crate::cluster::Cluster::start() else { return };
    let hosts: Vec<String> = cluster.hosts().split(',').map(str::to_owned).collect();
    let store = format!("mongodb://{}/torture?replicaSet=rs0&collection=locks", cluster.hosts());
    let run = Run { faults: "stop,kill,fork,wall", ..long("mongodb", minutes, store) };
    crate::restarts::is_clean_under(run, &["step-down", "server-kill"], move |fault| {
        let primary = cluster.primary();
        match fault {
            // A primary refuses if no secondary has all of its writes; the next time it may not refuse.
            "step-down" => drop(ask(&hosts[primary], &step_down())),
            _ => {
                cluster.kill(primary);
                cluster.primary();
                cluster.start_again(primary);
            }
        }
        cluster.primary();
    });
}

/// One server, which is killed, and a network that fails.
#[test]
#[cfg(feature = "mongodb")]
fn mongodb_alone() {
    is_clean_while_killed("mongodb-alone", &crate::servers::mongod::SERVER, |url| {
        let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a host");
        format!("mongodb://{host}/torture?directConnection=true&collection=locks")
    });
}

#[test]
#[cfg(feature = "postgres")]
fn postgres() {
    is_clean_while_killed("postgres", &crate::restarts::POSTGRES, |url| format!("{url}?table=locks"));
}

/// Broken copies of the library on this server, each of which must be caught. Only if `LEASEHOLD_TEST_BROKEN` is set,
/// because nothing else may run meanwhile.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
fn are_caught_on(server: fn() -> Option<String>) {
    if std::env::var_os("LEASEHOLD_TEST_BROKEN").is_none() {
        return;
    }
    let Some(url) = server() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/torture_mutants/run");
    let status = std::process::Command::new(script).env("STORE", url).status().expect("the script runs");
    assert!(status.success(), "{status}");
}

#[test]
#[cfg(feature = "postgres")]
fn broken_on_postgres() {
    are_caught_on(crate::servers::postgres_server);
}

#[test]
#[cfg(feature = "dynamodb")]
fn broken_on_dynamodb() {
    are_caught_on(crate::servers::dynamodb_local);
}

#[test]
#[cfg(feature = "mongodb")]
fn broken_on_mongodb() {
    are_caught_on(|| {
        let uri = crate::servers::mongod()?;
        uri.split(['/', '?']).nth(2).map(|host| format!("mongodb://{host}"))
    });
}

/// A kill would make the emulator forget everything, so it is stopped for a while instead.
#[test]
#[cfg(feature = "spanner")]
fn spanner() {
    let Some(minutes) = minutes() else { return };
    let Some(own) = crate::own::Own::start(&crate::servers::spanner::SERVER) else { return };
    let host = own.url();
    let (_, port) = host.split_once(':').expect("a port");
    let request = "{\"createStatement\": \"CREATE DATABASE `locks`\"}";
    let database = crate::servers::spanner::make_database(&host, "tests", "torture", "locks", request);
    // The gateway's child is the emulator. The brackets keep the shell itself out.
    let id = format!("$(pgrep -f '[e]mulator_main.*:{port}')");
    let pause = format!("server-pause=kill -STOP {id}; sleep 3; kill -CONT {id}");
    let run = long("spanner", minutes, format!("spanner:{database}?table=locks"));
    let dir = tempfile::tempdir().expect("a folder");
    let env = Some(("SPANNER_EMULATOR_HOST", host.clone()));
    Run { env, hooks: vec![pause], ..run }.is_clean(dir.path());
}
