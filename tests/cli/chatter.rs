//! What the library says in addition to the command: warnings and events, also where nobody reads them.

use std::time::Duration;

use crate::support::{Ran, Running, Store, lines_of};
use crate::wait::wait_until;

#[test]
#[cfg(feature = "sqlite")]
fn the_librarys_warnings_are_shown() {
    let ran = loses_its_lock(&[], |running| {
        running.says("warn: a heartbeat of lock \"k\" failed and is repeated");
    });
    assert!(!ran.stderr.contains("lock \"k\" lost"), "{}", ran.stderr);
}

#[test]
#[cfg(feature = "sqlite")]
fn the_librarys_warnings_are_not_shown_if_quiet_is_wanted() {
    let ran = loses_its_lock(&["--quiet"], |_| {});
    assert!(!ran.stderr.contains("warn: "), "{}", ran.stderr);
}

/// A command whose heartbeats can't be written. Its loss is reported once, by leasehold's own message.
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

/// Heartbeats also report the events of `-v`.
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
        // A time is computed from two clocks, so it varies a little from look to look.
        let renewed = ends() + Duration::from_secs(1);
        wait_until("it is renewed", || ends() > renewed);
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"on\n").unwrap();
    output.expect("on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(reader);
}

/// A failed heartbeat writes a warning, which nobody reads.
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
    let holder = || client.get("k").unwrap().unwrap().holders()[0].clone();
    let renewed = || holder().renewed();
    let granted = holder().created();
    let db = store.stuck();
    // The first heartbeat is due after 6.6 s at the latest, and gives up after 3.5 s; the loss comes after 17 s. All of
    // these count from the grant, however late this test is.
    let is_over = |time| granted.elapsed().is_ok_and(|since| since > time);
    wait_until("a heartbeat has failed", || is_over(Duration::from_millis(10_400)));
    drop(db);
    wait_until("it is renewed", || renewed().is_some());
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"went on\n").unwrap();
    output.expect("went on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop((command, reader));
}

/// A command that waits for a store. Reading its URL gives a warning.
#[cfg(all(feature = "mongodb", target_os = "linux"))]
fn waits_for_a_store_that_is_warned_of(refused: &crate::nobody::Closed) -> Running {
    let url = format!("mongodb://{}/d?compressors=zlib", refused.address());
    Running::start(crate::support::leasehold(&["run", "k", "--", "true"]).env("LEASEHOLD_STORE", url))
}

/// A thread that does not block SIGTTOU stops the whole process when it writes to the terminal from the background.
#[test]
#[cfg(all(feature = "mongodb", target_os = "linux"))]
fn no_thread_is_older_than_what_keeps_the_terminal_from_stopping_it() {
    let refused = crate::nobody::Closed::new();
    let mut waits = waits_for_a_store_that_is_warned_of(&refused);
    waits.says("waiting for the store");
    let field = |status: &str, name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let is_stopped = |status: &str| {
        let blocked = u64::from_str_radix(&field(status, "SigBlk:"), 16).unwrap();
        blocked >> (nix::sys::signal::Signal::SIGTTOU as u32 - 1) & 1 == 0
    };
    let mut threads = Vec::new();
    // The list of threads may miss some if one ends meanwhile.
    wait_until("those are seen that matter", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", waits.child.id())).unwrap();
        let statuses = tasks.flat_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
        threads = statuses.map(|status| (field(&status, "Name:"), is_stopped(&status))).collect();
        let is_seen =
            |name, lets_in: bool| threads.iter().any(|(seen, stopped)| seen == name && (*stopped || !lets_in));
        // The thread that takes these signals unblocks them only once it runs.
        is_seen("leasehold-log", false) && is_seen("leasehold-stops", true)
    });
    // It takes these signals, and writes nothing.
    let stopped: Vec<&str> = threads.iter().filter(|(_, stopped)| *stopped).map(|(name, _)| name.as_str()).collect();
    assert_eq!(stopped, ["leasehold-stops"]);
}

#[test]
#[cfg(all(feature = "mongodb", target_os = "linux"))]
fn what_is_wrong_with_a_url_is_said_once_however_often_it_is_tried() {
    let refused = crate::nobody::Closed::new();
    let waits = waits_for_a_store_that_is_warned_of(&refused);
    let tries = || waits.threads().iter().any(|name| name.starts_with("leasehold-conne"));
    for _ in 0..3 {
        wait_until("it tries to connect", tries);
        wait_until("it has tried", || !tries());
    }
    waits.signal(nix::sys::signal::Signal::SIGTERM);
    let ran = waits.end();
    assert_eq!((ran.code, ran.stderr.matches("not used: compressors").count()), (Some(143), 1), "{}", ran.stderr);
}
