//! The two lines that most programs need.

fn main() -> leasehold::Result<()> {
    // `memory:` serves this process only; `sqlite:locks.db` is shared by all processes of a host.
    let client = leasehold::LockClient::connect("memory:")?;
    let guard = client.lock("nightly-report")?; // waits; renewed by its own thread; released on drop

    println!("held: {}, fencing token {}", guard.is_held(), guard.fencing_token());
    let refused = client.try_lock("nightly-report")?.is_none();
    drop(guard);
    let granted = client.try_lock("nightly-report")?; // a guard, which must stay in a variable

    assert!(refused && granted.is_some());
    println!("proof: refused to a second while the guard lived, granted after it was dropped");
    Ok(())
}
