//! A service that holds a lock and works in rounds. SIGTERM, or Ctrl-C, ends its pause at once; it releases the lock
//! and exits with success, so that the next service need not wait for the end of a lease.

#[cfg(unix)]
fn main() -> leasehold::Result<()> {
    use std::time::{Duration, Instant};

    use leasehold::{CancelToken, LockClient, Slept};
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let client = LockClient::connect("memory:")?;
    let cancel = CancelToken::new();
    let mut signals = Signals::new([SIGTERM, SIGINT]).expect("the signals can be handled");
    let ends = cancel.clone();
    std::thread::spawn(move || {
        signals.forever().next();
        ends.cancel();
    });

    let guard = client.request("service").cancel(&cancel).lock()?;
    let (began, mut rounds) = (Instant::now(), 0);
    let why = loop {
        guard.ensure_held()?;
        rounds += 1; // one round of the work
        if rounds == 3 {
            // As an operator, systemd or Kubernetes does.
            signal_hook::low_level::raise(SIGTERM).expect("a process may signal itself");
        }
        match guard.sleep(Duration::from_secs(if rounds < 3 { 0 } else { 60 }), &cancel) {
            Slept::TimeOver => {}
            Slept::Lost(loss) => panic!("stop the work at once: {loss}"),
            why => break why,
        }
    };
    assert!(matches!(why, Slept::Cancelled) && began.elapsed() < Duration::from_secs(60));
    guard.release()?;
    client.close()?;
    println!("proof: {rounds} rounds, then SIGTERM ended the pause, and the lock is released");
    Ok(())
}

#[cfg(not(unix))]
fn main() {}
