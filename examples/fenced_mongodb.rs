//! The locks and the data are in one MongoDB. A holder is stopped past its lease, a rival takes the lock and writes;
//! when the first one wakes, its transaction asserts the lock, and so its late write is aborted.
//!
//! ```sh
//! FENCED_MONGODB='mongodb://USER:PASSWORD@HOST/DATABASE?replicaSet=rs0' \
//!     cargo run --features mongodb --example fenced_mongodb
//! ```
//! The collections `locks` and `reports` are made if they are missing. Transactions need a replica set.

mod stopped;

use std::error::Error;
use std::time::Duration;

use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::options::ClientOptions;
use leasehold::mongodb::driver::sync::{Client, Collection};
use leasehold::mongodb::run_fenced;
use leasehold::{ErrorKind, LockGuard};

/// One transaction: the write, the assertion that the lock is held, and the commit, again if a heartbeat came between.
fn write(mongo: &Client, reports: &Collection<Document>, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
    let mut session = mongo.start_session().run()?;
    run_fenced(guard, &mut session, |session| {
        let write = reports.update_one(doc! { "_id": 1 }, doc! { "$set": { "text": text } });
        write.upsert(true).session(session).run()
    })?;
    Ok(())
}

fn holder(mongo: &Client, reports: &Collection<Document>, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    write(mongo, reports, guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    stopped::stop()?; // the next line runs when this process is woken
    let late = write(mongo, reports, guard, "too late").unwrap_err();
    let kind = late.downcast_ref::<leasehold::Error>().map(leasehold::Error::kind);
    println!("holder: awake, refused: {}", kind == Some(ErrorKind::Lost));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Command lines are for all to see, and a URL may hold a password. The other process has the same environment.
    let url = std::env::var("FENCED_MONGODB")
        .map_err(|_| "name a database: FENCED_MONGODB='mongodb://HOST/DATABASE?replicaSet=rs0'")?;
    let options = ClientOptions::parse(&url).run()?;
    // Short, so that the rival need not wait long: a service leaves it out.
    let client = leasehold::mongodb::builder(options.clone()).lease(Duration::from_secs(1)).connect()?;
    client.create_schema()?;
    let mongo = Client::with_options(options)?;
    let reports = mongo.default_database().ok_or("the URL names no database")?.collection("reports");
    if std::env::args().len() > 1 {
        return holder(&mongo, &reports, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&["as the holder"])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    write(&mongo, &reports, &rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    let report = reports.find_one(doc! { "_id": 1 }).run()?.ok_or("there is no report")?;
    assert!(woken == "holder: awake, refused: true" && report.get_str("text")? == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
