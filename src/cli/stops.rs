//! The signals that stop a process: Ctrl-Z, and what another one of our group asks of the terminal in the background.
//!
//! They are never handled. While they wait in the system, SIGCONT takes them away, and when they are let in, the system
//! looks whether anybody is there who could continue us: neither could be told later without a gap.

use std::io;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use crossbeam_channel::Sender;
use nix::sys::signal::{SigSet, Signal};

#[cfg(target_os = "linux")]
use crate::signals::is_ignored;

/// What comes by the channel of signals for each of them.
pub const TOLD_AS: Signal = Signal::SIGTSTP;

/// Of those that whoever started us lets stop us.
fn stopping() -> SigSet {
    #[cfg(target_os = "linux")]
    return [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU]
        .into_iter()
        .filter(|signal| !is_ignored(*signal))
        .collect();
    #[cfg(not(target_os = "linux"))]
    SigSet::empty()
}

/// Before any thread is started, which inherits it. A thread that has SIGTTOU let in is stopped when it writes to the
/// terminal, or gives the foreground to another, while we are not there ourselves.
pub fn spare_us() -> nix::Result<()> {
    with_ttou().thread_block()
}

/// What the command inherits from us is let in again.
pub fn spare_no_more() -> nix::Result<()> {
    with_ttou().thread_unblock()
}

fn with_ttou() -> SigSet {
    let mut set = stopping();
    set.add(Signal::SIGTTOU);
    set
}

/// To the thread that sees them come. It takes what is sent only where it does nothing else.
#[cfg(target_os = "linux")]
static WATCHES: OnceLock<Sender<()>> = OnceLock::new();

/// They stop us at once, until [`watch`].
#[cfg(target_os = "linux")]
pub fn obey(told: Sender<Signal>) -> io::Result<()> {
    use std::os::fd::AsFd;
    use std::thread;

    use crossbeam_channel::bounded;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::signalfd::{SfdFlags, SignalFd};

    let (watches, next) = bounded(0);
    let stops = stopping();
    let comes = SignalFd::with_flags(&stops, SfdFlags::SFD_CLOEXEC)?;
    thread::Builder::new().name("leasehold-stops".to_owned()).spawn(move || {
        let _ = stops.thread_unblock();
        let _ = next.recv();
        let _ = stops.thread_block();
        // Each of them is told once.
        while next.recv().is_ok() {
            while poll(&mut [PollFd::new(comes.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).is_err() {}
            if told.send(TOLD_AS).is_err() {
                return;
            }
        }
    })?;
    let _ = WATCHES.set(watches);
    Ok(())
}

/// From now on they come by the channel: whoever gets one calls [`stop_ourselves`] or [`stay`].
pub fn watch() {
    #[cfg(target_os = "linux")]
    {
        static BEGUN: OnceLock<()> = OnceLock::new();
        BEGUN.get_or_init(|| {
            next();
            next();
        });
    }
}

/// Stops this process as Ctrl-Z does, unless nobody is there who could continue it, or somebody has done so already.
pub fn stop_ourselves() {
    let stops = stopping();
    if stops.thread_unblock().is_ok() {
        let _ = stops.thread_block();
    }
    #[cfg(target_os = "linux")]
    next();
}

/// What would stop us does not.
pub fn stay() {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::signalfd::{SfdFlags, SignalFd};

        let waiting = SignalFd::with_flags(&stopping(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        waiting.iter().for_each(|waiting| while let Ok(Some(_)) = waiting.read_signal() {});
        next();
    }
}

#[cfg(target_os = "linux")]
fn next() {
    let _ = WATCHES.get().map(|watches| watches.send(()));
}

/// Elsewhere they stop us at once.
#[cfg(not(target_os = "linux"))]
pub fn obey(_: Sender<Signal>) -> io::Result<()> {
    Ok(())
}
