//! The lock and the data are in one SQLite file. A holder is stopped past its lease, a rival takes the lock and
//! writes; when the first one wakes, its transaction asserts the lock, and so its late write is rolled back.

use std::error::Error;
use std::path::Path;

use leasehold::sqlite::{AssertIn, rusqlite::Connection};
use leasehold::{ErrorKind, LockClient, LockGuard};

fn client(folder: &Path) -> leasehold::Result<LockClient> {
    leasehold::sqlite::builder(folder.join("app.db")).lease(std::time::Duration::from_secs(1)).connect()
}

/// One transaction: the write, and the assertion that the lock is held. An error rolls it back.
fn write(db: &mut Connection, guard: &LockGuard, text: &str) -> Result<(), Box<dyn Error>> {
    let transaction = db.transaction()?;
    transaction.execute("UPDATE report SET text = ?1", [text])?;
    guard.assert_in(&transaction)?;
    Ok(transaction.commit()?)
}

#[cfg(unix)]
fn holder(folder: &Path) -> Result<(), Box<dyn Error>> {
    let guard = client(folder)?.lock("report")?;
    let mut db = Connection::open(folder.join("app.db"))?;
    write(&mut db, &guard, "from the holder")?;
    println!("holder: written with token {}", guard.fencing_token());
    // Everything of this process stands; the next line runs after SIGCONT.
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?;
    let late = write(&mut db, &guard, "too late").unwrap_err();
    let kind = late.downcast_ref::<leasehold::Error>().map(leasehold::Error::kind);
    println!("holder: awake, refused: {}", kind == Some(ErrorKind::Lost));
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
    let client = client(folder.path())?;
    let mut db = Connection::open(folder.path().join("app.db"))?;
    db.execute_batch("CREATE TABLE report (text TEXT); INSERT INTO report VALUES ('')")?;

    let mut child = std::process::Command::new(std::env::current_exe()?)
        .arg(folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("stdout is piped")?).lines();
    println!("{}", said.next().ok_or("the holder ended early")??);

    let pid = Pid::from_raw(child.id().try_into()?);
    waitpid(pid, Some(WaitPidFlag::WUNTRACED))?; // until it is stopped

    let rival = client.lock("report")?; // waits until the lease of the stopped holder ends
    write(&mut db, &rival, "from the rival")?;
    println!("rival:  written with token {}", rival.fencing_token());

    kill(pid, Signal::SIGCONT)?;
    let woken = said.next().ok_or("the holder ended early")??;
    println!("{woken}");
    let text: String = db.query_row("SELECT text FROM report", [], |row| row.get(0))?;
    assert!(child.wait()?.success() && woken == "holder: awake, refused: true" && text == "from the rival");
    println!("proof: the woken holder's transaction was refused, and the rival's text stands");
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    println!("this example stops a process by a signal, which only Unix has");
}
