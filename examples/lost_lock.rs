//! A holder is stopped for longer than its lease. When it wakes it knows at once that it lost the
//! lock, and the resource refuses what it writes all the same, since the token is too old.

use std::error::Error;
use std::path::Path;

use leasehold::LockClient;
use rusqlite::{Connection, params};

/// The resource: it remembers the highest token it has seen and takes no write with a lower one. So an earlier
/// holder is refused only once the new one has written. A holder that reads before it writes must store its token
/// first, where that is not lower than the stored one: see `claim` in the example `batch_job`.
fn write(resource: &Connection, text: &str, token: u64) -> Result<bool, Box<dyn Error>> {
    let token = i64::try_from(token)?;
    let changed =
        resource.execute("UPDATE report SET text = ?1, token = ?2 WHERE token <= ?2", params![text, token])?;
    Ok(changed == 1)
}

fn client(folder: &Path) -> leasehold::Result<LockClient> {
    // Short, so that the rival need not wait long: a service leaves it out.
    leasehold::sqlite::builder(folder.join("locks.db")).lease(std::time::Duration::from_secs(1)).connect()
}

#[cfg(unix)]
fn holder(folder: &Path) -> Result<(), Box<dyn Error>> {
    let guard = client(folder)?.lock("report")?;
    let resource = Connection::open(folder.join("report.db"))?;
    let first = write(&resource, "from the holder", guard.fencing_token())?;
    println!("holder: held {}, token {}, write taken: {first}", guard.is_held(), guard.fencing_token());
    // Its heartbeat stops as well; the next line runs after SIGCONT.
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?;
    let held = guard.is_held();
    let late = write(&resource, "too late", guard.fencing_token())?;
    println!("holder: awake, held {held}, late write taken: {late}");
    if let Some(loss) = guard.loss().wait() {
        println!("holder: lost: {loss}");
    }
    Ok(())
}

#[cfg(unix)]
fn main() -> Result<(), Box<dyn Error>> {
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader};

    if let Some(folder) = std::env::args_os().nth(1) {
        return holder(Path::new(&folder));
    }
    let folder = tempfile::tempdir()?;
    let resource = Connection::open(folder.path().join("report.db"))?;
    resource.execute_batch("CREATE TABLE report (text TEXT, token INTEGER); INSERT INTO report VALUES ('', 0)")?;

    let mut child = std::process::Command::new(std::env::current_exe()?)
        .arg(folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("stdout is piped")?).lines();
    println!("{}", said.next().ok_or("the holder ended early")??);

    let pid = Pid::from_raw(child.id().try_into()?);
    waitpid(pid, Some(WaitPidFlag::WUNTRACED))?; // until it is stopped

    // Waits until the lease of the stopped holder ends.
    let rival = client(folder.path())?.lock("report")?;
    let taken = write(&resource, "from the rival", rival.fencing_token())?;
    println!("rival:  held {}, token {}, write taken: {taken}", rival.is_held(), rival.fencing_token());

    kill(pid, Signal::SIGCONT)?;
    let woken: Vec<String> = said.collect::<Result<_, _>>()?;
    woken.iter().for_each(|line| println!("{line}"));
    let ended_well = child.wait()?.success();

    let text: String = resource.query_row("SELECT text FROM report", [], |row| row.get(0))?;
    assert!(ended_well && taken && text == "from the rival");
    assert_eq!(woken[0], "holder: awake, held false, late write taken: false");
    println!("proof: the woken holder knew of its loss, and its late write was refused");
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    println!("this example stops a process by a signal, which only Unix has");
}
