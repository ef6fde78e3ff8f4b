//! A user's own transaction commits only while the lock is held.

#![cfg(unix)]

mod harness;

use std::time::Duration;

use harness::process::Worker;
use harness::{Folder, PATIENCE, eventually, millis};
use leasehold::sqlite::{AssertIn, rusqlite::Connection};
use leasehold::{Error, ErrorKind, LockClient};

/// Not a test of its own: the other processes of these tests.
#[test]
fn worker() {
    harness::worker::run();
}

/// A file with locks and a row for each key.
struct Data {
    folder: Folder,
    client: LockClient,
}

impl Data {
    fn new(lease: Duration) -> Data {
        let folder = Folder::new();
        let client = LockClient::builder(folder.url()).lease(lease).poll(millis(1)..=millis(5)).connect().unwrap();
        let data = Data { folder, client };
        data.db().execute_batch("CREATE TABLE data (key TEXT PRIMARY KEY, text TEXT)").unwrap();
        data
    }

    fn db(&self) -> Connection {
        let db = Connection::open(self.folder.file()).unwrap();
        db.busy_timeout(PATIENCE).unwrap();
        db
    }

    fn text(&self, key: &str) -> Option<String> {
        self.db().query_row("SELECT text FROM data WHERE key = ?1", [key], |row| row.get(0)).ok()
    }
}

fn write(db: &mut Connection, held: &impl AssertIn, key: &str, text: &str) -> Result<(), Error> {
    let transaction = db.transaction().unwrap();
    transaction.execute("INSERT OR REPLACE INTO data VALUES (?1, ?2)", [key, text]).unwrap();
    held.assert_in(&transaction)?;
    transaction.commit().unwrap();
    Ok(())
}

#[track_caller]
fn lost(answer: Result<(), Error>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.key().is_some() && error.store().is_some());
}

#[test]
fn what_is_held_is_written_and_what_is_lost_is_not() {
    let data = Data::new(PATIENCE);
    let mut db = data.db();
    let guard = data.client.lock("a").unwrap();
    write(&mut db, &guard, "a", "held").unwrap();
    write(&mut db, &data.client.fence(&guard.info()), "a", "held as data").unwrap();
    assert_eq!(data.text("a").as_deref(), Some("held as data"));
    let next = data.client.adopt(guard.info()).unwrap();
    lost(write(&mut db, &guard, "a", "late"));
    lost(write(&mut db, &data.client.fence(&guard.info()), "a", "late"));
    write(&mut db, &next, "a", "adopted").unwrap();
    let released = next.info();
    next.release().unwrap();
    lost(write(&mut db, &data.client.fence(&released), "a", "late"));
    assert_eq!(data.text("a").as_deref(), Some("adopted"));
}

#[test]
fn shared_holders_and_leases_can_be_asserted() {
    let data = Data::new(PATIENCE);
    let mut db = data.db();
    let (one, two) = (data.client.lock_shared("s").unwrap(), data.client.lock_shared("s").unwrap());
    write(&mut db, &one, "s", "one").unwrap();
    let two_as_data = two.info();
    two.release().unwrap();
    lost(write(&mut db, &data.client.fence(&two_as_data), "s", "late"));
    let leases = data.client.leases("space");
    let lease = leases.claim("app", "unit/0", PATIENCE).unwrap();
    write(&mut db, &leases.fence(&lease), "l", "claimed").unwrap();
    let keeper = leases.keep("app", "unit/0", PATIENCE).unwrap();
    write(&mut db, &keeper, "l", "kept").unwrap();
    leases.revoke("app", "unit/0").unwrap();
    lost(write(&mut db, &leases.fence(&lease), "l", "late"));
    lost(write(&mut db, &keeper, "l", "late"));
    leases.claim("app", "unit/0", PATIENCE).unwrap();
    lost(write(&mut db, &leases.fence(&lease), "l", "late, though the holder is the same"));
    assert_eq!((data.text("s").unwrap(), data.text("l").unwrap()), ("one".to_owned(), "kept".to_owned()));
}

#[test]
fn expired_and_not_taken_over_is_written_rightly() {
    let data = Data::new(millis(100));
    let lock = data.client.request("a").acquire().unwrap();
    eventually("the lease ends", || data.client.get("a").unwrap().unwrap().is_free());
    write(&mut data.db(), &data.client.fence(&lock), "a", "nobody else did").unwrap();
    let _rival = data.client.lock("a").unwrap();
    lost(write(&mut data.db(), &data.client.fence(&lock), "a", "late"));
}

#[test]
fn a_transaction_of_another_file_is_refused_by_name() {
    let (data, other) = (Data::new(PATIENCE), Data::new(PATIENCE));
    let guard = data.client.lock("a").unwrap();
    let error = write(&mut other.db(), &guard, "a", "elsewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(other.folder.file().to_str().unwrap()), "{error}");
    // One file by another path is the same.
    let link = data.folder.path().join("link.db");
    std::os::unix::fs::symlink(data.folder.file(), &link).unwrap();
    write(&mut Connection::open(link).unwrap(), &guard, "a", "here").unwrap();
}

/// Whichever comes first: a rival that comes while the transaction is open waits for its end, and one that came
/// before makes it fail.
#[test]
fn no_rival_comes_between_the_assertion_and_the_commit() {
    let data = Data::new(millis(100));
    let mut db = data.db();
    let lock = data.client.request("a").acquire().unwrap();
    eventually("the lease ends", || data.client.get("a").unwrap().unwrap().is_free());
    let transaction = db.transaction().unwrap();
    transaction.execute("INSERT INTO data VALUES ('a', 'first')", []).unwrap();
    data.client.fence(&lock).assert_in(&transaction).unwrap();
    std::thread::scope(|scope| {
        let rival = scope.spawn(|| {
            let rival = data.client.lock("a").unwrap();
            (data.text("a"), rival.fencing_token())
        });
        assert!(!rival.is_finished());
        transaction.commit().unwrap();
        let (seen, token) = rival.join().unwrap();
        assert_eq!(seen.as_deref(), Some("first"), "the rival came after the commit");
        assert!(token > lock.fencing_token());
    });
    // The assertion reads first, and the rival comes before the first write.
    let lock = data.client.request("b").acquire().unwrap();
    eventually("the lease ends", || data.client.get("b").unwrap().unwrap().is_free());
    let transaction = db.transaction().unwrap();
    data.client.fence(&lock).assert_in(&transaction).unwrap();
    let _rival = data.client.lock("b").unwrap();
    let refused = transaction.execute("INSERT INTO data VALUES ('b', 'late')", []).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(leasehold::sqlite::rusqlite::ErrorCode::DatabaseBusy));
}

/// Stops holders past their leases, lets rivals write, and wakes them; 200 times in all, four processes at once.
fn late_writes(how: &str) -> u32 {
    let data = Data::new(millis(100));
    let file = data.folder.file();
    std::thread::scope(|scope| {
        let rounds: Vec<_> = ["a", "b", "c", "d"]
            .map(|key| {
                let (data, file) = (&data, &file);
                scope.spawn(move || {
                    let mut holder = Worker::start(&data.folder.url(), millis(100));
                    let mut db = data.db();
                    let mut late = 0;
                    for round in 0..50 {
                        let token = holder.token(&format!("lock {key}"));
                        holder.stop();
                        let rival = data.client.lock(key).unwrap();
                        assert!(rival.fencing_token() > token);
                        write(&mut db, &rival, key, "rival").unwrap();
                        holder.go_on();
                        let answer = holder.ask(&format!("write {key} {} {how}", file.display()));
                        let through = data.text(key).as_deref() != Some("rival");
                        assert_eq!(answer, if through { "written" } else { "refused Lost" }, "round {round}");
                        late += u32::from(through);
                        holder.ask(&format!("release {key}"));
                        drop(rival);
                    }
                    late
                })
            })
            .into_iter()
            .collect();
        rounds.into_iter().map(|rounds| rounds.join().unwrap()).sum()
    })
}

#[test]
fn a_holder_that_wakes_too_late_never_writes() {
    assert_eq!(late_writes("fenced"), 0);
}

/// The negative control.
#[test]
fn without_the_assertion_the_late_write_gets_through() {
    assert_eq!(late_writes("bare"), 200);
}
