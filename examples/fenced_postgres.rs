//! The locks and the data are in one database of PostgreSQL. A holder is stopped past its lease, a rival takes the lock and
//! writes; when the first one wakes, its transaction asserts the lock, and so its late write is rolled back.
//!
//! ```sh
//! cargo run --features postgres --example fenced_postgres postgres://USER:PASSWORD@HOST/DATABASE
//! ```
//! The tables `locks` and `report` are made if they are missing. The connection of the data is plain here: a program of
//! yours gives `connect` what makes TLS. With the crate `postgres`, or another driver, use `AssertIn::assertion`.

mod stopped;

use std::error::Error;
use std::time::Duration;

use leasehold::postgres::run_fenced;
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls};
use leasehold::{ErrorKind, LockGuard};
use tokio::runtime::{Builder, Runtime};

/// A session as the driver has it, which is async.
struct Report {
    runtime: Runtime,
    session: Client,
}

impl Report {
    fn open(config: &Config) -> Result<Report, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (session, connection) = runtime.block_on(config.connect(NoTls))?;
        runtime.spawn(connection);
        runtime.block_on(session.batch_execute("CREATE TABLE IF NOT EXISTS report (id int PRIMARY KEY, text text)"))?;
        Ok(Report { runtime, session })
    }

    /// One transaction: the write, the assertion that the lock is held, and the commit, again if it is in conflict.
    fn write(&mut self, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
        let write = "INSERT INTO report VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET text = excluded.text";
        self.runtime.block_on(run_fenced(guard, &mut self.session, async |transaction| {
            transaction.execute(write, &[&text]).await?;
            Ok(())
        }))?;
        Ok(())
    }

    fn text(&self) -> Result<String, Box<dyn Error>> {
        let select = self.session.query_one("SELECT text FROM report WHERE id = 1", &[]);
        Ok(self.runtime.block_on(select)?.try_get(0)?)
    }
}

fn holder(report: &mut Report, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
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
    let url = args.next().ok_or("name a database: fenced_postgres postgres://USER:PASSWORD@HOST/DATABASE")?;
    let config: Config = url.parse()?;
    let client = leasehold::postgres::builder(config.clone(), "locks").lease(Duration::from_secs(1)).connect()?;
    client.create_schema()?;
    let mut report = Report::open(&config)?;
    if args.next().is_some() {
        return holder(&mut report, &client.lock("report")?);
    }

    let other = stopped::Other::start_and_stop(&[&url, "as the holder"])?;
    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    report.write(&rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());
    let woken = other.wake()?;

    assert!(woken == "holder: awake, refused: true" && report.text()? == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}
