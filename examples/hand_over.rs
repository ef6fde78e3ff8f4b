//! A process hands its lock over to another one as data, without a gap: a rival that tries all the
//! time gets it only after the second process has released it.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use leasehold::{Lock, LockClient};

fn client(folder: &Path) -> leasehold::Result<LockClient> {
    leasehold::sqlite::builder(folder.join("locks.db")).connect()
}

/// Adopts the lock that comes by its standard input, and holds it until the input is closed.
fn heir(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut stdin = std::io::stdin().lock();
    let mut json = String::new();
    stdin.read_line(&mut json)?;
    let guard = client(folder)?.adopt(serde_json::from_str(&json)?)?;
    println!("{}", guard.fencing_token());
    stdin.read_to_string(&mut json)?;
    guard.ensure_held()?;
    // If it became a `Box<dyn Error>` directly, the error would keep the guard.
    Ok(guard.release().map_err(leasehold::Error::from)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(folder) = std::env::args_os().nth(1) {
        return heir(Path::new(&folder));
    }
    let folder = tempfile::tempdir()?;
    let guard = client(folder.path())?.lock("migration")?;
    let first = guard.fencing_token();
    println!("parent holds the lock with token {first}");

    let rival = client(folder.path())?;
    let (refusal, refused) = mpsc::channel();
    let rival = thread::spawn(move || -> leasehold::Result<u64> {
        loop {
            match rival.try_lock("migration")? {
                Some(guard) => return Ok(guard.fencing_token()),
                // If the parent has failed, nothing receives this any more.
                None => _ = refusal.send(()),
            }
        }
    });
    refused.recv()?; // from here on it tries all the time

    let mut child = Command::new(std::env::current_exe()?)
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut to, from) = (child.stdin.take().ok_or("no stdin")?, child.stdout.take().ok_or("no stdout")?);

    // Nobody renews the lock until the child adopts it, but its lease has most of its 20 s left.
    let lock: Lock = guard.into_lock();
    writeln!(to, "{}", serde_json::to_string(&lock)?)?;
    let mut answer = String::new();
    BufReader::new(from).read_line(&mut answer)?;
    let second: u64 = answer.trim().parse()?;
    println!("child adopted it with token {second}; so far the rival was refused {} times", refused.try_iter().count());
    // The second of these refusals was asked for after the adoption.
    refused.recv()?;
    refused.recv()?;

    drop(to); // the child releases
    let third = rival.join().expect("the rival does not panic")?;
    println!("the rival got it after the child's release, with token {third}");
    let held_to_the_end = child.wait()?.success();

    // A rival in between would have a token below the child's, and the child could not have adopted.
    assert!(first < second && second < third && held_to_the_end);
    println!("proof: handed over without a gap, tokens rose");
    Ok(())
}
