//! Several readers hold a lock together, up to a limit; a writer waits until the last one is gone.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;

use leasehold::{LockClient, LockGuard, Result, Waiting};

const READERS: u32 = 3;

/// One of at most three readers.
fn read(client: &LockClient) -> Result<Option<LockGuard>> {
    client.request("catalogue").max_holders(READERS).try_lock()
}

fn main() -> Result<()> {
    let client = LockClient::connect("memory:")?;
    // All threads meet at the first barrier when all readers hold the lock, and at the second before they let go.
    let (inside, leave) = (Arc::new(Barrier::new(4)), Arc::new(Barrier::new(4)));
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let (client, inside, leave) = (client.clone(), inside.clone(), leave.clone());
            thread::spawn(move || -> Result<u64> {
                let guard = read(&client)?.expect("there is room for three");
                println!("reader {number} holds it with token {}", guard.fencing_token());
                inside.wait();
                leave.wait();
                let token = guard.fencing_token();
                guard.release()?;
                Ok(token)
            })
        })
        .collect();
    inside.wait();

    let fourth_refused = read(&client)?.is_none();
    println!("a fourth reader: {}", if fourth_refused { "refused" } else { "granted" });

    let (waits, writer_waits) = mpsc::channel();
    let writer = {
        let client = client.clone();
        thread::spawn(move || -> Result<u64> {
            let on_wait = move |waiting: &Waiting| {
                // Only the first message is received: for later calls the receiver may be gone.
                let _ = waits.send(waiting.holders.len());
            };
            let guard = client.request("catalogue").on_wait(on_wait).lock()?;
            Ok(guard.fencing_token())
        })
    };
    let waited_for = writer_waits.recv().expect("the writer waits");
    println!("the writer waits for {waited_for} readers");
    leave.wait();

    let mut tokens = Vec::new();
    for reader in readers {
        tokens.push(reader.join().expect("a reader does not panic")?);
    }
    let writer_token = writer.join().expect("the writer does not panic")?;
    println!("the writer holds it with token {writer_token}");

    assert!(fourth_refused && waited_for == 3 && tokens.iter().all(|token| *token < writer_token));
    println!("proof: 3 readers at once, the fourth refused, the writer granted after the last reader");
    Ok(())
}
