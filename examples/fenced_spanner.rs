//! The locks and the data are in one database of Cloud Spanner. A holder is stopped past its lease, a rival takes the
//! lock and writes; when the first one wakes, its transaction asserts the lock, and so its late write is rolled back.
//!
//! ```sh
//! cargo run --features spanner --example fenced_spanner projects/P/instances/I/databases/D
//! ```
//! Credentials are found as by any program that uses Google's client; `SPANNER_EMULATOR_HOST` names an emulator. The
//! table `locks` is made if it is missing, and this one must be there:
//! `CREATE TABLE report (id INT64 NOT NULL, text STRING(MAX)) PRIMARY KEY (id)`

mod stopped;

use std::error::Error;
use std::time::Duration;

use leasehold::spanner::{google_cloud_spanner as sdk, run_fenced};
use leasehold::{ErrorKind, LockGuard};
use sdk::client::{DatabaseClient, Spanner};
use sdk::statement::Statement;
use tokio::runtime::Runtime;

/// A database, and what runs the calls of the SDK, which is async.
struct Report {
    runtime: Runtime,
    database: DatabaseClient,
}

impl Report {
    /// One transaction: the write, the assertion that the lock is held, and the commit, again if it is aborted.
    fn write(&self, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
        let write = "INSERT OR UPDATE INTO report (id, text) VALUES (1, @text)";
        let write = Statement::builder(write).add_param("text", text).build();
        let work =
            async |transaction: sdk::transaction::ReadWriteTransaction| transaction.execute_update(write.clone()).await;
        self.runtime.block_on(run_fenced(guard, &self.database, work))?;
        Ok(())
    }

    fn text(&self) -> Result<String, Box<dyn Error>> {
        self.runtime.block_on(async {
            let select = Statement::builder("SELECT text FROM report WHERE id = 1").build();
            let mut rows = self.database.single_use().build().execute_query(select).await?;
            Ok(rows.next().await.ok_or("there is no report")??.get(0)?)
        })
    }
}

fn holder(report: &Report, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    report.write(guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    stopped::stop()?; // the next line runs when this process is woken
    let late = report.write(guard, "too late").unwrap_err();
    let kind = late.downcast_ref::<leasehold::Error>().map(leasehold::Error::kind);
    println!("holder: awake, refused: {}", kind == Some(ErrorKind::Lost));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("name a database: fenced_spanner projects/P/instances/I/databases/D")?;
    // Short, so that the rival need not wait long: a service leaves it out.
    let client = leasehold::spanner::builder(Spanner::builder(), &path, "locks").lease(Duration::from_secs(1));
    let client = client.connect()?;
    client.create_schema()?;
    let runtime = Runtime::new()?;
    let spanner = runtime.block_on(Spanner::builder().build())?;
    let database = runtime.block_on(spanner.database_client(&path).build())?;
    let report = Report { runtime, database };
    if args.next().is_some() {
        return holder(&report, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&[&path, "as the holder"])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    report.write(&rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    assert!(woken == "holder: awake, refused: true" && report.text()? == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
