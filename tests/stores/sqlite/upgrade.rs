//! The file of version 0.1.0.

use leasehold::{Lock, LockClient};
use serde_json::Value as Json;

use crate::support::harness::Folder;
use crate::upgrade::{VERSION, fill, goes_on, golden, is_to_be_written};

fn client(folder: &Folder, owner: &str) -> LockClient {
    leasehold::sqlite::builder(folder.file()).owner(owner).connect().expect("it opens")
}

/// A lock that goes on has no end, because the clock of a golden file is that of another boot.
fn write() {
    let folder = Folder::new();
    let client = client(&folder, VERSION);
    let lock = fill(&client);
    client.close().expect("it closes");
    drop(client);
    let whole = rusqlite::Connection::open(folder.file()).expect("the file");
    // The boot is nobody's, so that the test is the same on every machine.
    let boot = "UPDATE locks SET holders = replace(holders, clock, 'd9a59108-958a-4689-9b03-000000000000:0.0')";
    whole.execute_batch(boot).expect("the shared holders");
    whole.execute_batch("UPDATE locks SET clock = 'd9a59108-958a-4689-9b03-000000000000:0.0'").expect("the others");
    whole.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in one file");
    drop(whole);
    std::fs::create_dir_all(golden("")).expect("a folder");
    std::fs::copy(folder.file(), golden("locks.db")).expect("a copy");
    let mut json = serde_json::to_value(&lock).expect("JSON");
    json["store"] = "sqlite:FILE".into();
    std::fs::write(golden("lock.json"), format!("{json:#}\n")).expect("a file");
}

/// The lock in the golden file, as if this file had granted it.
fn lock(folder: &Folder) -> (Json, Lock) {
    let text = std::fs::read_to_string(golden("lock.json")).expect("a file");
    let mut json: Json = serde_json::from_str(&text).expect("JSON");
    json["store"] = format!("sqlite:{}", folder.file().canonicalize().expect("a path").display()).into();
    let lock = serde_json::from_value(json.clone()).expect("a lock");
    (json, lock)
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    if is_to_be_written() {
        write();
    }
    let folder = Folder::new();
    std::fs::copy(golden("locks.db"), folder.file()).expect("a copy");
    let client = client(&folder, "this version");
    let (json, lock) = lock(&folder);
    // As it was, to the letter.
    assert_eq!(serde_json::to_value(&lock).expect("JSON"), json);
    goes_on(&client, &lock);
}
