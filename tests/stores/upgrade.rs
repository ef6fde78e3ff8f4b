//! What version 0.1.0 stored is read and written by this one: a SQLite file, and a `Lock` as JSON.
//! `LEASEHOLD_WRITE_GOLDEN=1` makes them anew, which is for a new version in a folder of its own.
#![cfg(feature = "serde")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{ErrorKind, Lock, LockClient, Mode};
use serde_json::Value as Json;

use crate::support::harness::Folder;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/0.1.0")
}

fn client(folder: &Folder) -> LockClient {
    leasehold::sqlite::builder(folder.file()).owner("this version").connect().expect("it opens")
}

/// Locks without end, for the clock of a golden file is that of another boot.
fn write() {
    let folder = Folder::new();
    let client = leasehold::sqlite::builder(folder.file()).owner("0.1.0").connect().expect("a new file");
    let request = |key: &str| client.request(key).comment("kept").lock_id("group").lease_forever();
    let lock = request("alone").acquire().expect("it is free");
    request("together").shared().acquire().expect("it is free");
    client.request("together").shared().lock_id("other").lease_forever().acquire().expect("it is shared");
    client.request("over").lease(Duration::from_secs(1)).acquire().expect("it is free");
    client.lock("free").expect("it is free").release().expect("it is released");
    let leases = client.leases("reports");
    leases.claim("daily", "node-1", Duration::from_secs(1)).expect("it is free");
    leases.pin("daily", "auditor").expect("it is pinned");
    client.close().expect("it closes");
    drop((leases, client));
    let whole = rusqlite::Connection::open(folder.file()).expect("the file");
    // Of a boot that is nobody's, so that the test is the same on every machine.
    let boot = "UPDATE locks SET holders = replace(holders, clock, 'd9a59108-958a-4689-9b03-000000000000:0.0')";
    whole.execute_batch(boot).expect("the shared holders");
    whole.execute_batch("UPDATE locks SET clock = 'd9a59108-958a-4689-9b03-000000000000:0.0'").expect("the others");
    whole.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in one file");
    drop(whole);
    std::fs::create_dir_all(golden()).expect("a folder");
    std::fs::copy(folder.file(), golden().join("locks.db")).expect("a copy");
    let mut json = serde_json::to_value(&lock).expect("JSON");
    json["store"] = "sqlite:FILE".into();
    std::fs::write(golden().join("lock.json"), format!("{json:#}\n")).expect("a file");
}

/// The lock in the golden file, as if it had been in this one.
fn lock(folder: &Folder) -> (Json, Lock) {
    let text = std::fs::read_to_string(golden().join("lock.json")).expect("a file");
    let mut json: Json = serde_json::from_str(&text).expect("JSON");
    json["store"] = format!("sqlite:{}", folder.file().canonicalize().expect("a path").display()).into();
    let lock = serde_json::from_value(json.clone()).expect("a lock");
    (json, lock)
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    if std::env::var_os("LEASEHOLD_WRITE_GOLDEN").is_some() {
        write();
    }
    let folder = Folder::new();
    std::fs::copy(golden().join("locks.db"), folder.file()).expect("a copy");
    let client = client(&folder);
    let (json, lock) = lock(&folder);
    // As it was, to the letter.
    assert_eq!(serde_json::to_value(&lock).expect("JSON"), json);
    assert_eq!((lock.key(), lock.owner(), lock.comment(), lock.lock_id()), ("alone", "0.1.0", Some("kept"), "group"));
    let alone = client.get("alone").expect("an answer").expect("a row");
    assert_eq!(alone.holders().iter().map(|h| h.fencing_token()).collect::<Vec<_>>(), [lock.fencing_token()]);
    let together = client.get("together").expect("an answer").expect("a row");
    let holders: Vec<_> = together.holders().iter().map(|h| (h.mode(), h.lock_id(), h.leased_until())).collect();
    assert_eq!(holders, [(Mode::Shared, "group", None), (Mode::Shared, "other", None)]);
    let free = client.get("free").expect("an answer").expect("a row");
    assert!(free.is_free() && free.fencing_token() > 0);
    let daily = client.leases("reports").get("daily").expect("an answer").expect("it stands");
    assert_eq!(
        (daily.holder(), daily.pinned_by().iter().map(String::as_str).collect::<Vec<_>>()),
        ("node-1", vec!["auditor"])
    );

    assert!(
        client.try_lock("alone").expect("an answer").is_none()
            && client.try_lock("together").expect("an answer").is_none()
    );
    let renewed = client.heartbeat(&lock, Duration::from_secs(60)).expect("it stands");
    assert!(renewed.leased_until().is_some());
    let guard = client.adopt(renewed).expect("it stands");
    assert!(guard.is_held() && guard.fencing_token() > lock.fencing_token());
    guard.release().expect("it is released");
    assert_eq!(client.unlock("group").expect("an answer").len(), 1);
    assert!(client.try_lock_shared("together").expect("an answer").is_some());
    let again = client.lock("free").expect("it is free");
    assert!(again.fencing_token() > free.fencing_token());
    let leases = client.leases("reports");
    let pinned = leases.expire("daily").expect_err("it is pinned, or not over");
    assert_eq!(pinned.kind(), ErrorKind::InvalidLease);
    leases.unpin("daily", "auditor").expect("it is unpinned");
    leases.extend("daily", "node-1", Duration::from_secs(60)).expect("it stands");
    leases.revoke("daily", "node-1").expect("it stands");
    assert!(leases.get("daily").expect("an answer").is_none());
    assert!(client.purge(Duration::ZERO).is_ok());
}
