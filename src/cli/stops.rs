//! The signals that stop a process: Ctrl-Z, and those that our group gets if another process of it uses the terminal
//! from the background.
//!
//! They have no handler. While they are blocked and pending, SIGCONT removes them, and when they are unblocked, the
//! system looks whether anybody could continue us. A handler could do neither later without a gap.

use std::io;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use crossbeam_channel::Sender;
use nix::sys::signal::{SigSet, Signal};

#[cfg(target_os = "linux")]
use crate::signals::is_ignored;

/// The signal that comes by the channel of signals for each of them.
pub const TOLD_AS: Signal = Signal::SIGTSTP;

/// Those of these signals that the program that started us has not set to be ignored.
fn stopping() -> SigSet {
    #[cfg(target_os = "linux")]
    return [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU]
        .into_iter()
        .filter(|signal| !is_ignored(*signal))
        .collect();
    #[cfg(not(target_os = "linux"))]
    SigSet::empty()
}

/// Blocks these signals and SIGTTOU. Called before any thread is started, since threads inherit that. A thread that has
/// not blocked SIGTTOU is stopped if it writes to the terminal, or gives the foreground to another group, while we are
/// not in the foreground.
pub fn spare_us() -> nix::Result<()> {
    with_ttou().thread_block()
}

/// Unblocks these signals, before this process becomes the command.
pub fn spare_no_more() -> nix::Result<()> {
    with_ttou().thread_unblock()
}

fn with_ttou() -> SigSet {
    let mut set = stopping();
    set.add(Signal::SIGTTOU);
    set
}

/// To the thread that waits for these signals. It takes a message only when it is idle, so sending waits for that.
#[cfg(target_os = "linux")]
static WATCHES: OnceLock<Sender<()>> = OnceLock::new();

/// Until [`watch`], these signals stop us at once. After that each of them is sent to `told`.
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
        // Each of them is reported once.
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

/// From now on they come by the channel: a receiver of one must call [`stop_ourselves`] or [`stay`].
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

/// Stops this process as Ctrl-Z does, unless nobody could continue it, or somebody has continued it already.
pub fn stop_ourselves() {
    let stops = stopping();
    if stops.thread_unblock().is_ok() {
        let _ = stops.thread_block();
    }
    #[cfg(target_os = "linux")]
    next();
}

/// Removes the pending signals, so that they do not stop this process.
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

/// On other systems these signals stop us at once.
#[cfg(not(target_os = "linux"))]
pub fn obey(_: Sender<Signal>) -> io::Result<()> {
    Ok(())
}
