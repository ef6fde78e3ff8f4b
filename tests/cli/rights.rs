//! What a user may do who has not all rights on the store's file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Ran, Store, run};

/// Root may do everything: it asks as somebody else.
#[test]
fn a_store_that_is_denied_is_77() {
    let store = Store::on_disk();
    drop(store.client());
    let ran = by_another_user(&store, 0o400, &["run", "--try", "k", "--", "true"]);
    assert_eq!(ran.code, Some(77), "{}", ran.stderr);
}

/// With this mode of each file, in a folder that nobody may write to.
fn by_another_user(store: &Store, mode: u32, args: &[&str]) -> Ran {
    let binary = store.path("leasehold");
    // By another process: while this one has it open to write, another test's child may have it, too, and it is "busy".
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
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
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
    // As it is now, not as it was when the file was last written through.
    guard.release().unwrap();
    let _guard = client.request("k").owner("bob").lock().unwrap();
    let ran = by_another_user(&store, 0o444, &["status", "k"]);
    assert!(ran.stdout.contains("bob") && !ran.stdout.contains("ann"), "{ran:?}");
    for args in [&["release", "k", "--force", "--yes"][..], &["run", "--try", "l", "--", "true"]] {
        let ran = by_another_user(&store, 0o444, args);
        assert_eq!(ran.code, Some(77), "{}", ran.stderr);
    }
}
