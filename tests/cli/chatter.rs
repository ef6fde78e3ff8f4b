//! What the library says beside the command: warnings and events, also where nobody reads them.

use std::time::{Duration, Instant};

use crate::support::{Ran, Running, Store, lines_of};
use crate::wait::wait_until;

#[test]
#[cfg(feature = "sqlite")]
fn the_librarys_warnings_are_shown() {
    let ran = loses_its_lock(&[], |running| {
        running.says("warn: \"k\": a heartbeat of lock \"k\" failed and is repeated");
    });
    assert!(!ran.stderr.contains("warn: \"k\": lock \"k\" lost"), "{}", ran.stderr);
}

#[test]
#[cfg(feature = "sqlite")]
fn the_librarys_warnings_are_not_shown_if_quiet_is_wanted() {
    let ran = loses_its_lock(&["--quiet"], |_| {});
    assert!(!ran.stderr.contains("warn: "), "{}", ran.stderr);
}

/// A command whose heartbeats can't be written. Its loss is said once, by itself.
#[track_caller]
#[cfg(feature = "sqlite")]
fn loses_its_lock(options: &[&str], meanwhile: impl FnOnce(&mut Running)) -> Ran {
    let store = Store::new();
    let mut running =
        Running::start(&mut store.reading(&[&["--lease", "18s"], options].concat(), "echo ready; read go"));
    running.expect("ready");
    let db = store.stuck();
    meanwhile(&mut running);
    running.output_ends();
    drop(db);
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert_eq!(ran.stderr.matches("was lost: ").count(), 1, "{}", ran.stderr);
    ran
}

/// The events of `-v` are told by heartbeats, too.
#[test]
fn an_event_that_nobody_reads_costs_no_lock() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "head -c 1000000 /dev/zero >&2 & echo ready; read go; kill $!; echo $go";
    let mut command = store.reading(&["-v", "--lease", "18s"], script);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(writer).spawn().unwrap();
    drop(command);
    let output = lines_of(child.stdout.take().unwrap());
    output.expect("ready");
    let client = store.client();
    let held = || client.get("k").unwrap().filter(|key| !key.is_free());
    let ends = || held().expect("it is held").holders()[0].leased_until().expect("it ends");
    for _ in 0..3 {
        // A time is read from two clocks, and so is not the same each time.
        let renewed = ends() + Duration::from_secs(1);
        wait_until("it is renewed", || ends() > renewed);
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"on\n").unwrap();
    output.expect("on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(reader);
}

/// A heartbeat that failed warns, and nobody takes that.
#[test]
#[cfg(feature = "sqlite")]
fn a_warning_that_nobody_reads_costs_no_lock() {
    let store = Store::new();
    let (reader, full, _) = crate::support::full_pipe();
    let options = ["--lease", "18s", "--kill-after", "0s"];
    let mut command = store.reading(&options, "echo ready; read go; echo $go");
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(full).spawn().unwrap();
    let output = lines_of(child.stdout.take().unwrap());
    output.expect("ready");
    let client = store.client();
    let renewed = || client.get("k").unwrap().unwrap().holders()[0].renewed();
    let db = store.stuck();
    // The first heartbeat is due after 6.6 s at the latest, and gives up after 3.5 s; the loss comes after 17 s.
    let began = Instant::now();
    wait_until("a heartbeat has failed", || began.elapsed() > Duration::from_millis(10_400));
    drop(db);
    wait_until("it is renewed", || renewed().is_some());
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"went on\n").unwrap();
    output.expect("went on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop((command, reader));
}
