//! The locks and the data are in one database of PostgreSQL. A holder is stopped past its lease, a rival takes the lock
//! and writes; when the first one wakes, its transaction asserts the lock, and so its late write is rolled back.
//!
//! ```sh
//! FENCED_POSTGRES=postgres://USER:PASSWORD@HOST/DATABASE cargo run --features postgres --example fenced_postgres
//! ```
//! The tables `locks` and `report` are made if they are missing. The connection for the data is without TLS here: your
//! own program gives `connect` its TLS connector. For another driver than the crate `postgres` see
//! `leasehold::postgres::AssertIn`.

mod stopped;

use std::error::Error;
use std::time::Duration;

use leasehold::postgres::blocking::postgres::{Client, NoTls};
use leasehold::postgres::blocking::run_fenced;
use leasehold::{ErrorKind, LockGuard};

/// One transaction: the write, the assertion that the lock is held, and the commit, again if it is in conflict.
fn write(database: &mut Client, guard: &LockGuard, text: &str) -> leasehold::Result<()> {
    run_fenced(guard, database, |transaction| {
        let write = "INSERT INTO report VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET text = excluded.text";
        transaction.execute(write, &[&text])?;
        Ok(())
    })
}

fn holder(database: &mut Client, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    write(database, guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    stopped::stop()?; // the next line runs when this process is woken
    let late = write(database, guard, "too late").unwrap_err();
    println!("holder: awake, refused: {}", late.kind() == ErrorKind::Lost);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Command lines are for all to see, and a URL may hold a password. The other process has the same environment.
    let url = std::env::var("FENCED_POSTGRES")
        .map_err(|_| "name a database: FENCED_POSTGRES=postgres://USER:PASSWORD@HOST/DATABASE")?;
    // Short, so that the rival need not wait long: a service leaves it out.
    let client = leasehold::postgres::builder(url.parse()?, "locks").lease(Duration::from_secs(1)).connect()?;
    client.create_schema()?;
    let mut database = Client::connect(&url, NoTls)?;
    database.batch_execute("CREATE TABLE IF NOT EXISTS report (id int PRIMARY KEY, text text)")?;
    if std::env::args().len() > 1 {
        return holder(&mut database, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&["as the holder"])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    write(&mut database, &rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    let text: String = database.query_one("SELECT text FROM report WHERE id = 1", &[])?.try_get(0)?;
    assert!(woken == "holder: awake, refused: true" && text == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
