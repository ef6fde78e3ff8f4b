//! The lock and the data are in one SQLite file. A holder is stopped past its lease, a rival takes the lock and
//! writes; when the first one wakes, its transaction asserts the lock, and so its late write is rolled back.
//! For the other stores: `fenced_dynamodb`, `fenced_mongodb`, `fenced_postgres`, `fenced_spanner`.

mod stopped;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use leasehold::sqlite::{AssertIn, rusqlite::Connection};
use leasehold::{ErrorKind, LockGuard};

/// One transaction: the write, and the assertion that the lock is held. An error rolls it back.
fn write(db: &mut Connection, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
    let transaction = db.transaction()?;
    transaction.execute("INSERT OR REPLACE INTO report VALUES (1, ?1)", [text])?;
    guard.assert_in(&transaction)?;
    Ok(transaction.commit()?)
}

fn holder(db: &mut Connection, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    write(db, guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    stopped::stop()?; // the next line runs when this process is woken
    let late = write(db, guard, "too late").unwrap_err();
    let kind = late.downcast_ref::<leasehold::Error>().map(leasehold::Error::kind);
    println!("holder: awake, refused: {}", kind == Some(ErrorKind::Lost));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let told = std::env::args().nth(1);
    let folder = tempfile::tempdir()?;
    let folder = told.as_deref().map_or(folder.path(), Path::new);
    let file = folder.join("app.db");
    // Short, so that the rival need not wait long: a service leaves it out.
    let client = leasehold::sqlite::builder(&file).lease(Duration::from_secs(1)).connect()?;
    let mut db = Connection::open(&file)?;
    db.execute_batch("CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, text TEXT)")?;
    if told.is_some() {
        return holder(&mut db, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&[folder.to_str().ok_or("the folder's name is not UTF-8")?])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    write(&mut db, &rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    let text: String = db.query_row("SELECT text FROM report", [], |row| row.get(0))?;
    assert!(woken == "holder: awake, refused: true" && text == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
