//! A service that holds a lock and works in rounds. SIGTERM, or Ctrl-C, ends its wait for the lock or its pause at
//! once; it releases the lock and exits with success, so that the next service need not wait for the end of a lease. A
//! signal that comes a second or more after the first ends it without that.

#[cfg(unix)]
fn main() -> leasehold::Result<()> {
    use std::time::{Duration, Instant};

    use leasehold::{CancelToken, ErrorKind, LockClient, Slept};
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let client = LockClient::connect("memory:")?;
    let cancel = CancelToken::new();
    let mut signals = Signals::new([SIGTERM, SIGINT]).expect("the signals can be handled");
    let ends = cancel.clone();
    std::thread::spawn(move || {
        signals.forever().next();
        ends.cancel();
        // One stop may bring two at once: systemd's, to each process, and what a parent passes on. Who does not want to
        // wait comes later.
        std::thread::sleep(Duration::from_secs(1));
        signals.pending().for_each(drop);
        signals.forever().next();
        std::process::exit(1);
    });

    let guard = match client.request("service").cancel(&cancel).lock() {
        // A signal ended the wait for the lock, which is no failure.
        Err(error) if error.kind() == ErrorKind::Cancelled => return client.close(),
        granted => granted?,
    };
    let (began, mut rounds) = (Instant::now(), 0);
    let why = loop {
        guard.ensure_held()?;
        rounds += 1; // one round of the work
        if rounds == 3 {
            // As an operator, systemd or Kubernetes does.
            let raise = || signal_hook::low_level::raise(SIGTERM).expect("a process may signal itself");
            (0..2).for_each(|_| raise());
        }
        match guard.sleep(Duration::from_secs(if rounds < 3 { 0 } else { 60 }), &cancel) {
            Slept::TimeOver => {}
            Slept::Lost(loss) => panic!("stop the work at once: {loss}"),
            why => break why,
        }
    };
    assert!(matches!(why, Slept::Cancelled) && began.elapsed() < Duration::from_secs(60));
    let released = guard.release().map_err(leasehold::Error::from);
    client.close()?; // also if the release failed: it tries that once more
    released?;
    println!("proof: {rounds} rounds, then SIGTERM ended the pause, and the lock is released");
    Ok(())
}

#[cfg(not(unix))]
fn main() {}
