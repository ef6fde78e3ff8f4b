//! Where the system lacks what leasehold needs.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use crate::support::{NOBODY, Running, Store, run};

/// The message must not say that the command is missing. Only root may take these away, and not everywhere.
#[test]
fn what_it_needs_to_start_itself_is_named() {
    let store = Store::on_disk();
    let (no_proc, no_null) = ("umount -l /proc", "mount -t tmpfs none /dev");
    for (lacks, args) in [
        (no_proc, "run a -- echo in"),
        (no_proc, "--store mongodb://me:canary@127.0.0.1:1/app status"),
        (no_null, "run b -- echo in"),
        (no_null, "hold c --pid $$"),
    ] {
        let script = format!("{lacks} && echo lacks && {{ {} {args}; exit $?; }}", env!("CARGO_BIN_EXE_leasehold"));
        let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &script]).env("LEASEHOLD_STORE", &store.url));
        if !ran.stdout.starts_with("lacks") {
            return crate::servers::skip(&format!("nothing can be taken away here: {}", ran.stderr));
        }
        let needs = "leasehold cannot start itself (/proc and /dev/null must be there): ";
        assert!(ran.code == Some(70) && ran.stderr.contains(needs), "{lacks}, {args}: {ran:?}");
        assert_eq!(ran.stdout, "lacks\n", "{lacks}, {args}");
    }
}

/// As with systemd's `LimitFSIZE=`: a store in trouble, like a full disk. The command keeps the system's default.
#[test]
fn a_limit_of_file_size_ends_nothing() {
    let store = Store::new();
    let grows = "(ulimit -f 1; exec head -c 9999 /dev/zero >$GROWS); echo $?; read go";
    let mut running = Running::start(store.reading(&["--lease", "5m"], grows).env("GROWS", store.path("grows")));
    running.expect("153");
    let id = running.child.id().to_string();
    let limit = |bytes: &str| {
        let limit = format!("--fsize={bytes}");
        assert!(Command::new("prlimit").args(["--pid", &id, &limit]).status().unwrap().success());
    };
    limit("1:");
    running.tell("go");
    running.says("could not be released yet");
    limit("unlimited:");
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("a file must not grow"), "{}", ran.stderr);
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

/// As for a user with too many processes. Then the main thread makes the release, which also fails.
#[test]
fn what_is_wrong_with_a_release_that_finds_no_thread_is_said() {
    let store = Store::on_disk();
    let binary = store.path("leasehold");
    let copies = format!("cp {} leasehold && chmod 777 .", env!("CARGO_BIN_EXE_leasehold"));
    let copied = run(Command::new("sh").args(["-c", &copies]).current_dir(store.folder.path()));
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    // The limit does not apply to root, who may not everywhere set that of others.
    let by_another_user = |program: &std::path::Path| {
        let mut command = Command::new(NOBODY[0]);
        let is_root = nix::unistd::Uid::effective().is_root();
        is_root.then(|| command.args(&NOBODY[1..]).arg(program));
        if is_root { command } else { Command::new(program) }
    };
    let args = ["--store", &store.url, "run", "--lease", "5m", "k", "--", "sh", "-c", "echo ready; read go"];
    let mut running = Running::ready(by_another_user(&binary).args(args).stdin(Stdio::piped()));
    let id = running.child.id().to_string();
    let limits = ["--nproc=1", "--fsize=1:"];
    assert!(by_another_user("prlimit".as_ref()).args(["--pid", &id]).args(limits).status().unwrap().success());
    running.tell("go");
    let ran = running.end();
    assert!(ran.stderr.contains("could not be released and ends with its lease"), "{ran:?}");
}
