//! Bad input and a service that is not there: reported within the deadline, and nothing is written.

use std::process::Command;

use leasehold::{ErrorKind, LockClient};

use crate::errors::{are_refused, no_server_is_told, text, with_port, works_inside_async_tasks};
use crate::spanner::*;
use crate::support::grpc::Grpc;
use crate::support::harness::within;
use crate::support::nobody;
use crate::support::spanner::{Database, settings};
use crate::support::wait::wait_until;

const PATH: &str = "projects/p1/instances/i1/databases/d1";

#[test]
fn what_is_wrong_in_a_url_is_said_before_anything_is_sent() {
    are_refused([
        ("spanner:".to_owned(), "name of a table"),
        (format!("spanner:{PATH}"), "name of a table"),
        (format!("spanner:{PATH}?table="), "name of a table"),
        ("spanner:locks?table=locks".to_owned(), "projects/P/instances/I/databases/D"),
        (format!("spanner:/{PATH}?table=locks"), "projects/P/instances/I/databases/D"),
        (format!("spanner://me:canary@{PATH}?table=locks"), "no user and password"),
        (format!("spanner:{PATH}/more?table=locks"), "projects/P/instances/I/databases/D"),
        ("spanner:projects/p1/instances/i1/databases/?table=locks".to_owned(), "projects/P/instances/I/databases/D"),
        ("spanner:projects/p1/instances/i%201/databases/d1?table=locks".to_owned(), "2 to 64"),
        (format!("spanner:{PATH}?table=1st"), "table name"),
        (format!("spanner:{PATH}?table=a.b"), "table name"),
        (format!("spanner:{PATH}?table=locks%60;DROP"), "table name"),
        (format!("spanner:{PATH}?table={}", "x".repeat(121)), "table name"),
        (format!("spanner:{PATH}?tabel=locks"), "\"table\""),
        (format!("spanner:{PATH}?table=locks&spindle_duration=soon"), "spindle_duration"),
        (format!("spanner:{PATH}?table=locks&spindle_duration=25h"), "a day"),
        (format!("spanner:{PATH}?table=locks&admin_endpoint=localhost:9020"), "http://localhost:9020"),
        (format!("spanner:{PATH}?table=locks&admin_endpoint=http://me:secret@localhost:9020"), "without credentials"),
        ("spaner:x".to_owned(), "spanner"),
    ]);
}

#[test]
fn a_missing_instance_or_database_is_named() {
    needs_server!();
    let database = Database::empty();
    let other = database.path.replace("databases/locks", "databases/other");
    for path in [PATH, other.as_str()] {
        let builder = leasehold::spanner::builder(settings(&database.host), path, "locks");
        let error = builder.request_timeout(REQUEST).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{}", text(&error));
        assert!(error.to_string().contains(path), "{}", text(&error));
    }
}

#[test]
fn an_endpoint_that_is_not_there_is_said_within_the_deadline() {
    let at = |host: &str| leasehold::spanner::builder(settings(&with_port(host, 9010)), PATH, "locks");
    no_server_is_told(&[1], at, |host, error| {
        assert!(error.to_string().contains("network"), "{host}: {}", text(error));
        assert_eq!(error.store(), Some("spanner:projects/p1/instances/i1/databases/d1?table=locks"));
    });
}

#[test]
fn no_credentials_are_said() {
    // The second file exists, but contains no credentials.
    for file in ["/nonexistent/credentials.json", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spanner::errors::connects_without_credentials", "--nocapture"])
            .env("LEASEHOLD_TEST_URL", format!("spanner:{PATH}?table=locks"))
            .env("GOOGLE_APPLICATION_CREDENTIALS", file)
            .env_remove("SPANNER_EMULATOR_HOST")
            .output()
            .unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn connects_without_credentials() {
    // Runs only as the other process of `no_credentials_are_said`.
    let Ok(url) = std::env::var("LEASEHOLD_TEST_URL") else { return };
    let connect = || LockClient::builder(&url).request_timeout(REQUEST).connect();
    let error = within("the connect", Duration::from_secs(6), connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{}", text(&error));
    let says = ["no usable Google credentials", "GOOGLE_APPLICATION_CREDENTIALS"];
    assert!(says.iter().all(|part| error.to_string().contains(part)), "{}", text(&error));
}

/// The answer to making the table by this URL, in a process with this environment.
fn made(url: &str, emulator: &str, env: Option<&str>) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "spanner::errors::makes_the_table", "--nocapture"]);
    child.env("LEASEHOLD_TEST_URL", url).env("SPANNER_EMULATOR_HOST", emulator);
    child.envs(env.map(|value| ("LEASEHOLD_SPANNER_ADMIN_ENDPOINT", value)));
    let output = child.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn makes_the_table() {
    // Runs only as the other process of `where_the_table_is_made_can_be_said`.
    let Ok(url) = std::env::var("LEASEHOLD_TEST_URL") else { return };
    let client = LockClient::builder(&url).request_timeout(REQUEST).connect();
    println!("{:?}", client.and_then(|client| client.create_schema()));
}

#[test]
fn where_the_table_is_made_can_be_said() {
    needs_server!();
    let database = Database::empty();
    // Ten above its port there is no REST service, nor any other one.
    let port = |grpc: &Grpc| grpc.host.rsplit_once(':').unwrap().1.parse::<u16>().unwrap() + 10;
    let tries = std::iter::repeat_with(|| Grpc::new(&database.host));
    let (grpc, _closed) = tries.take(20).find_map(|grpc| nobody::closed(port(&grpc)).map(|own| (grpc, own))).unwrap();
    let guessed = format!("http://127.0.0.1:{}", port(&grpc));
    let right = database.options().admin_endpoint.unwrap();
    let url = format!("spanner:{}?table=locks", database.path);

    let told = made(&url, &grpc.host, None);
    assert!(told.contains(&guessed) && told.contains("admin_endpoint"), "{told}");
    assert!(!told.contains("not made the table yet"), "{told}");
    let by_env = made(&url, &grpc.host, Some(&right));
    assert!(by_env.contains("Ok("), "{by_env}");
    let other = format!("{url}_too&admin_endpoint={right}");
    // The URL has priority over the environment.
    let by_url = made(&other, &grpc.host, Some(&guessed));
    assert!(by_url.contains("Ok("), "{by_url}");
    let wrong = made(&url, &grpc.host, Some("localhost:9020"));
    assert!(wrong.contains("LEASEHOLD_SPANNER_ADMIN_ENDPOINT"), "{wrong}");
}

#[test]
fn a_client_works_and_is_dropped_inside_async_tasks() {
    needs_server!();
    let database = Database::fresh();
    works_inside_async_tasks(|| leasehold::spanner::builder(settings(&database.host), &database.path, "locks"));
}

/// As after a month in which the process was suspended.
#[test]
fn a_session_that_the_service_forgot_is_made_anew() {
    needs_server!();
    use crate::support::servers::spanner::rest;
    let database = Database::fresh();
    let builder = leasehold::spanner::builder(settings(&database.host), &database.path, "locks");
    // The lease outlasts any stall of a busy machine, and still a heartbeat comes soon.
    let client = builder.request_timeout(REQUEST).heartbeat(Duration::from_secs(2)).connect().unwrap();
    let guard = client.request("kept").lease(LEASE).lock().unwrap();
    let (_, sessions) = rest(&database.host, "GET", &format!("/v1/{}/sessions", database.path), "").unwrap();
    let sessions: serde_json::Value = serde_json::from_str(&sessions).unwrap();
    let sessions = sessions["sessions"].as_array().expect("sessions");
    for session in sessions {
        let name = session["name"].as_str().unwrap();
        let (status, answer) = rest(&database.host, "DELETE", &format!("/v1/{name}"), "").unwrap();
        assert_eq!(status, 200, "{answer}");
    }
    // A call waits for the new session.
    assert!(client.get("kept").unwrap().is_some());
    assert!(client.try_lock("other").unwrap().is_some());
    let renewed = guard.info().renewed();
    wait_until("a heartbeat is answered", || guard.info().renewed() != renewed);
    assert!(guard.is_held());
}
