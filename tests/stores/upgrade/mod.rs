//! This version reads and writes what version 0.1.0 stored: the rows of each store, and a `Lock` as JSON. The tests are
//! next to the others of their store.
//!
//! `LEASEHOLD_WRITE_GOLDEN=1` makes the files anew, which is for a new version in a folder of its own.
#![cfg(feature = "serde")]

#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
pub mod rows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{ErrorKind, Lock, LockClient, Mode};

/// The owner of what is stored.
pub const VERSION: &str = "0.1.0";
/// The lease of what must be over soon.
pub const BRIEF: Duration = Duration::from_secs(1);

/// The path of the golden file with this name.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(VERSION).join(name)
}

/// Whether the files must be made anew.
pub fn is_to_be_written() -> bool {
    std::env::var_os("LEASEHOLD_WRITE_GOLDEN").is_some()
}

/// Makes what every golden file contains. Returns the lock of the key `alone`.
pub fn fill(client: &LockClient) -> Lock {
    let request = |key: &str| client.request(key).comment("kept").lock_id("group").lease_forever();
    let lock = request("alone").acquire().expect("it is free");
    request("together").shared().acquire().expect("it is free");
    client.request("together").shared().lock_id("other").lease_forever().acquire().expect("it is shared");
    client.request("over").lease(BRIEF).acquire().expect("it is free");
    client.lock("free").expect("it is free").release().expect("it is released");
    let leases = client.leases("reports");
    leases.claim("daily", "node-1", BRIEF).expect("it is free");
    leases.pin("daily", "auditor").expect("it is pinned");
    lock
}

/// Asserts that all of it is read right, keeps others out, and goes on: it is renewed, handed over and released.
pub fn goes_on(client: &LockClient, lock: &Lock) {
    assert_eq!((lock.key(), lock.owner(), lock.comment(), lock.lock_id()), ("alone", VERSION, Some("kept"), "group"));
    let alone = client.get("alone").expect("an answer").expect("a row");
    let tokens: Vec<_> = alone.holders().iter().map(|h| (h.mode(), h.fencing_token(), h.leased_until())).collect();
    assert_eq!(tokens, [(Mode::Exclusive, lock.fencing_token(), None)]);
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
    let renewed = client.heartbeat(lock, Duration::from_secs(60)).expect("it stands");
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
