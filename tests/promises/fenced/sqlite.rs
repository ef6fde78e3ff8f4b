//! On SQLite, where the user's table is in the lock file.

use std::any::Any;
use std::path::Path;

use leasehold::sqlite::{AssertIn, rusqlite};
use leasehold::{ClientBuilder, ErrorKind, LockClient};

use crate::fenced::cases::{expired, lost};
use crate::fenced::data::Data;
use crate::fenced::data::sqlite::Table;
use crate::fenced::{LONG, Open, Store};
use crate::support::harness::{Folder, millis};

pub struct Kind;

impl Store for Kind {
    type Data = Table;
    const NAME: &str = "sqlite";

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        let folder = Folder::new();
        // A client makes the file, with the file mode that it uses.
        LockClient::connect(&folder.url()).unwrap();
        Some((folder.url(), Box::new(folder)))
    }

    fn builder(url: &str) -> ClientBuilder {
        LockClient::builder(url).poll(millis(1)..=millis(5))
    }

    fn data(url: &str) -> Table {
        Table::new(Path::new(url.strip_prefix("sqlite:").unwrap()))
    }
}

crate::fenced::suite!(Kind);

#[test]
fn a_transaction_of_another_file_is_refused_by_name() {
    let (Some(open), Some(other)) = (Open::<Kind>::fresh(), Open::<Kind>::fresh()) else { return };
    let guard = open.client(LONG).lock("a").unwrap();
    let error = other.data.write(&guard, "a", "elsewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let path = |open: &Open<Kind>| open.url.strip_prefix("sqlite:").unwrap().to_owned();
    assert!(error.to_string().contains(&path(&other)), "{error}");
    // The same file by another path is accepted.
    let folder = Folder::new();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(path(&open), &link).unwrap();
    Table::new(&link).write(&guard, "a", "here").unwrap();
}

/// Under a second name SQLite writes to a second log, which no other process reads.
#[test]
fn a_transaction_by_a_hard_link_is_refused() {
    let folder = Folder::new();
    let client = LockClient::connect(&folder.url()).unwrap();
    let guard = client.lock("a").unwrap();
    let table = Table::new(&folder.file());
    table.write(&guard, "a", "here").unwrap();
    let link = folder.path().join("link.db");
    table.open().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    std::fs::hard_link(folder.file(), &link).unwrap();
    let error = Table::new(&link).write(&guard, "a", "elsewhere").unwrap_err();
    assert!(error.to_string().contains("hard link"), "{error}");
}

/// macOS refuses to make such a file.
#[cfg(target_os = "linux")]
#[test]
fn a_path_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let file = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff'.db"));
    let client = leasehold::sqlite::builder(&file).connect().unwrap();
    let guard = client.lock("a").unwrap();
    let other = folder.path().join(std::ffi::OsStr::from_bytes(b"\xfe.db"));
    let error = Table::new(&other).write(&guard, "a", "elsewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let table = Table::new(&file);
    table.write(&guard, "a", "here").unwrap();
    assert_eq!(table.text("a").as_deref(), Some("here"));
}

/// A rival that comes while the transaction is open waits for its end, and one that came before makes it fail.
#[test]
fn no_rival_comes_between_the_assertion_and_the_commit() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let locks = expired(&client, &["a".to_owned(), "b".to_owned()]);
    let mut db = open.data.open();
    let transaction = db.transaction().unwrap();
    transaction.execute("INSERT INTO data VALUES ('a', 'first')", []).unwrap();
    client.fence(&locks[0]).assert_in(&transaction).unwrap();
    std::thread::scope(|scope| {
        let rival = scope.spawn(|| {
            let rival = client.lock("a").unwrap();
            (open.data.text("a"), rival.fencing_token())
        });
        // The rival waits for the transaction, and the call here does so in vain.
        assert!(!matches!(client.try_lock_for("a", millis(200)), Ok(Some(_))), "a rival came before the commit");
        assert!(!rival.is_finished());
        transaction.commit().unwrap();
        let (seen, token) = rival.join().unwrap();
        assert_eq!(seen.as_deref(), Some("first"), "the rival came after the commit");
        assert!(token > locks[0].fencing_token());
    });
    // Here the assertion comes first, and what follows can still be written.
    let transaction = db.transaction().unwrap();
    client.fence(&locks[1]).assert_in(&transaction).unwrap();
    // The call waits for the transaction, or fails because the transaction did not end in time.
    assert!(!matches!(client.try_lock_for("b", millis(200)), Ok(Some(_))));
    transaction.execute("INSERT INTO data VALUES ('b', 'first')", []).unwrap();
    transaction.commit().unwrap();
    drop(client.lock("b").unwrap());
}

/// The transaction writes to an attached file, and a lock on that file would not keep a rival from a grant in the lock
/// file.
#[test]
fn no_rival_comes_where_the_data_is_in_an_attached_file() {
    let (Some(open), Some(other)) = (Open::<Kind>::fresh(), Open::<Kind>::fresh()) else { return };
    let client = open.client(LONG);
    let locks = expired(&client, &["a".to_owned(), "b".to_owned()]);
    let mut db = open.data.open();
    db.execute("ATTACH ?1 AS apart", [other.url.strip_prefix("sqlite:").unwrap()]).unwrap();
    let insert = "INSERT OR REPLACE INTO apart.data VALUES (?1, ?2)";
    let transaction = db.transaction().unwrap();
    transaction.execute(insert, ["a", "first"]).unwrap();
    client.fence(&locks[0]).assert_in(&transaction).unwrap();
    let rival = client.try_lock_for("a", millis(200));
    assert!(!matches!(rival, Ok(Some(_))), "a rival holds it, and the transaction can be committed");
    transaction.commit().unwrap();
    assert_eq!(other.data.text("a").as_deref(), Some("first"));
    drop(client.lock("a").unwrap());
    // This rival came after the transaction's first look at the file.
    let transaction = db.transaction().unwrap();
    let _: i64 = transaction.query_row("SELECT count(*) FROM main.data", [], |row| row.get(0)).unwrap();
    let _rival = client.lock("b").unwrap();
    transaction.execute(insert, ["b", "late"]).unwrap();
    let error = client.fence(&locks[1]).assert_in(&transaction).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(error.is_retryable() && error.to_string().contains("begin it again"), "{error}");
    drop(transaction);
    let transaction = db.transaction().unwrap();
    lost(client.fence(&locks[1]).assert_in(&transaction));
}

/// The transaction may see a log of its own, which does not contain the rival.
#[test]
fn nothing_is_asserted_where_the_log_was_removed() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut db = open.data.open();
    let transaction = db.transaction().unwrap();
    transaction.execute("INSERT INTO data VALUES ('a', 'late')", []).unwrap();
    std::fs::remove_file(format!("{}-wal", open.url.strip_prefix("sqlite:").unwrap())).unwrap();
    let error = guard.assert_in(&transaction).unwrap_err();
    assert!(error.to_string().contains("removed or replaced") && !error.is_retryable(), "{error}");
}

/// An assertion changes no row, nor the connection's count of changes, which the program may use.
#[test]
fn an_assertion_writes_no_row() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut db = open.data.open();
    db.execute_batch("CREATE TEMP TABLE locks (key TEXT)").unwrap();
    let rows = |db: &rusqlite::Connection| -> Vec<(Vec<u8>, i64)> {
        let mut select = db.prepare("SELECT key, version FROM main.locks").unwrap();
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    let (before, changes) = (rows(&db), db.total_changes());
    let transaction = db.transaction().unwrap();
    guard.assert_in(&transaction).unwrap();
    transaction.commit().unwrap();
    assert_eq!((rows(&db), db.total_changes()), (before, changes));
}
