//! What a user can do who lacks some rights on the store's file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::support::{NOBODY, Ran, Running, Store, run};

/// Root may do everything, so root runs this as another user.
#[test]
fn a_store_that_is_denied_is_77() {
    let store = Store::on_disk();
    drop(store.client());
    let ran = by_another_user(&store, 0o400, &["run", "--try", "k", "--", "true"]);
    assert_eq!(ran.code, Some(77), "{}", ran.stderr);
}

/// Runs this as another user, with this mode of each file, in a folder that nobody may write to.
fn by_another_user(store: &Store, mode: u32, args: &[&str]) -> Ran {
    let binary = store.path("leasehold");
    // Another process copies it: while this process has the file open for writing, a child of another test may inherit
    // the descriptor, and then the file is "busy".
    if !binary.exists() {
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_leasehold")).arg(&binary).status().unwrap().success());
    }
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"].map(|name| store.path(name)) {
        if file.exists() {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    fs::set_permissions(store.folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = if nix::unistd::Uid::effective().is_root() {
        let mut command = Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).arg(&binary);
        command
    } else {
        Command::new(&binary)
    };
    let ran = run(command.args(["--store", &store.url]).args(args));
    fs::set_permissions(store.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    ran
}

/// Only root may mount, and not everywhere.
#[test]
#[cfg(target_os = "linux")]
fn a_read_only_file_system_is_called_so() {
    let store = Store::on_disk();
    drop(store.client());
    let folder = store.folder.path().display();
    let mounted = format!("mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && echo mounted");
    let script = format!("{mounted} && exec {} run --try k -- true", env!("CARGO_BIN_EXE_leasehold"));
    let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &script]).env("LEASEHOLD_STORE", &store.url));
    if ran.stdout.contains("mounted") {
        assert_eq!(ran.code, Some(77), "{}", ran.stderr);
        assert!(ran.stderr.contains("the file system is read-only"), "{}", ran.stderr);
    }
}

#[test]
fn who_may_only_read_the_file_sees_its_locks() {
    let store = Store::on_disk();
    let client = store.client();
    let guard = client.request("k").owner("ann").lock().unwrap();
    let ran = by_another_user(&store, 0o444, &["status"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("ann"), "{}", ran.stdout);
    // It shows the current state, not the state when the file was last written through.
    guard.release().unwrap();
    let _guard = client.request("k").owner("bob").lock().unwrap();
    let ran = by_another_user(&store, 0o444, &["status", "k"]);
    assert!(ran.stdout.contains("bob") && !ran.stdout.contains("ann"), "{ran:?}");
    for args in [&["release", "k", "--force", "--yes"][..], &["run", "--try", "l", "--", "true"]] {
        let ran = by_another_user(&store, 0o444, args);
        assert_eq!(ran.code, Some(77), "{}", ran.stderr);
    }
}

/// As with `sudo`: leasehold may not end the command, and says so.
#[test]
fn what_has_more_rights_works_on() {
    let store = Store::on_disk();
    if !store.has_more_rights() {
        return;
    }
    let cases: [(&[&str], i32, &str); 3] = [
        (
            &["--health-cmd", "test ! -e sick", "--health-interval", "50ms", "--health-retries", "1"],
            80,
            "to be given back",
        ),
        (&["--lease", "9s"], 76, "was lost"),
        // The command of the loss has five seconds to begin.
        (&["--lease", "18s", "--kill-after", "5s", "--on-loss", "cmd:false"], 76, "the command of --on-loss failed"),
    ];
    for (options, code, what) in cases {
        let mut command = Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).args(["./leasehold", "run", "k"]).args(options).current_dir(store.folder.path());
        command.args(["--", "./more", "--reuid=0", "sh", "-c", "echo ready; read go; exit 3"]);
        let mut runs = Running::ready(command.env("LEASEHOLD_STORE", &store.url).stdin(Stdio::piped()));
        match code {
            80 => fs::write(store.path("sick"), "").unwrap(),
            _ => drop(store.client().force_release("k").unwrap()),
        }
        runs.says(what);
        runs.signal(Signal::SIGTERM);
        runs.says("SIGTERM is not passed on: the command has more rights than leasehold");
        runs.tell("go");
        let ran = runs.end();
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        let untrue = ["gets TERM", "is killed"].iter().any(|end| ran.stderr.contains(end));
        assert!(!untrue && ran.stderr.matches("more rights").count() == 2, "{}", ran.stderr);
    }
}

/// A process that is watched by its process id becomes another user's by `exec`.
#[test]
fn who_has_gained_rights_works_on() {
    let store = Store::on_disk();
    if !store.has_more_rights() {
        return;
    }
    for options in ["--lease 9s", "--lease 9s --kill-after 0s", "--lease 9s --on-loss cmd:false"] {
        let mut command = Command::new(NOBODY[0]);
        let hold = format!("./leasehold hold k --pid $$ {options} > lock & while ! test -s lock; do sleep 0.1; done");
        let script = format!("{hold}; rm lock; exec ./more --reuid=0 sh -c 'echo ready; read go'");
        command.args(&NOBODY[1..]).args(["sh", "-c", &script]).current_dir(store.folder.path());
        let mut runs = Running::ready(command.env("LEASEHOLD_STORE", &store.url).stdin(Stdio::piped()));
        store.client().force_release("k").unwrap();
        runs.says("more rights than leasehold");
        runs.tell("go");
        let ran = runs.end();
        assert_eq!(ran.stderr.matches("more rights").count(), 1, "{options}: {}", ran.stderr);
        assert!(!ran.stderr.contains("is killed"), "{options}: {}", ran.stderr);
    }
}
