//! Readers that overlap without end keep a writer of another process out for ever, unless they look at a gate: then the
//! writer waits only for the readers that hold the lock already.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold::LockClient;

mod gate;

use gate::readers::{Read, Readers};

const KEY: &str = "catalogue";
/// How long the writer without a gate waits.
const PATIENCE: Duration = Duration::from_millis(1500);

fn client(folder: &Path) -> leasehold::Result<LockClient> {
    leasehold::sqlite::builder(folder.join("locks.db")).connect()
}

/// The other process: prints its fencing token, or 0 when it got nothing.
fn writer(how: &str, folder: &Path) -> leasehold::Result<()> {
    let client = client(folder)?;
    let guard = match how {
        "plain" => client.try_lock_for(KEY, PATIENCE)?,
        _ => Some(gate::lock(&client, KEY)?),
    };
    println!("{}", guard.map_or(0, |guard| guard.fencing_token()));
    Ok(())
}

/// Whether the writer got the lock while readers went in and out, and how often they did.
fn behind_readers(how: &str, read: Read, patience: Duration, folder: &Path) -> Result<bool, Box<dyn Error>> {
    let readers = Readers::start(&client(folder)?, KEY, read, patience);
    readers.wait_for_more(1); // from here on they overlap
    let started = Instant::now();
    let output = Command::new(std::env::current_exe()?).arg(how).arg(folder).output()?;
    let (took, token) = (started.elapsed(), String::from_utf8(output.stdout)?.trim().parse::<u64>()?);
    let granted = readers.granted();
    let got = if token > 0 { "got the lock" } else { "got nothing" };
    println!("{how}: the writer {got} after {} ms, behind {granted} grants to readers", took.as_millis());
    readers.wait_for_more(granted + 1); // they have not ended
    readers.stop()?;
    Ok(token > 0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, how, folder] = args.as_slice() {
        return Ok(writer(how, Path::new(folder))?);
    }
    let folder = tempfile::tempdir()?;
    // A reader lets go only when the next one is in.
    let starves = !behind_readers("plain", LockClient::lock_shared, Duration::from_secs(60), folder.path())?;
    // Here a reader also lets go after a moment if no other one comes, because new readers wait at the gate.
    let gets_in = behind_readers("gate", gate::lock_shared, Duration::from_millis(200), folder.path())?;
    assert!(starves && gets_in);
    println!("proof: a writer starved behind overlapping readers, and got in through the gate");
    Ok(())
}
