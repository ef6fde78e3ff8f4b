//! On SQLite, where the user's table is in the lock file.

use std::any::Any;
use std::path::Path;

use leasehold::sqlite::{AssertIn, rusqlite};
use leasehold::{ClientBuilder, ErrorKind, LockClient};
use rusqlite::ErrorCode;

use crate::cases::expired;
use crate::data::Data;
use crate::data::sqlite::Table;
use crate::harness::{Folder, millis};
use crate::{LONG, Open, Store};

pub struct Kind;

impl Store for Kind {
    type Data = Table;
    const NAME: &str = "sqlite";

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        let folder = Folder::new();
        // The file is made by a client, with its mode.
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

crate::suite!(Kind);

#[test]
fn a_transaction_of_another_file_is_refused_by_name() {
    let (Some(open), Some(other)) = (Open::<Kind>::fresh(), Open::<Kind>::fresh()) else { return };
    let guard = open.client(LONG).lock("a").unwrap();
    let error = other.data.write(&guard, "a", "elsewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let path = |open: &Open<Kind>| open.url.strip_prefix("sqlite:").unwrap().to_owned();
    assert!(error.to_string().contains(&path(&other)), "{error}");
    // One file by another path is the same.
    let folder = Folder::new();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(path(&open), &link).unwrap();
    Table::new(&link).write(&guard, "a", "here").unwrap();
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
        assert!(!rival.is_finished());
        transaction.commit().unwrap();
        let (seen, token) = rival.join().unwrap();
        assert_eq!(seen.as_deref(), Some("first"), "the rival came after the commit");
        assert!(token > locks[0].fencing_token());
    });
    // The assertion reads first, and the rival comes before the first write.
    let transaction = db.transaction().unwrap();
    client.fence(&locks[1]).assert_in(&transaction).unwrap();
    let _rival = client.lock("b").unwrap();
    let refused = transaction.execute("INSERT INTO data VALUES ('b', 'late')", []).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
}
