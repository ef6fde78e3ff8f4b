//! The signals that this process gets, as a channel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid};
use signal_hook::flag::{register, register_conditional_shutdown};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::code;
#[cfg(target_os = "linux")]
use crate::job::reap_adopted;
use crate::stops;
use crate::terminal::Terminal;
use crate::warnings::tell;

/// The signals that are passed on to the command.
pub const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];
/// The signals that end a wait for the lock.
pub const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// What ends a wait, or a hold, before its time.
pub struct Interrupts {
    pub signals: Receiver<Signal>,
    /// Nobody needs the lock any more.
    pub gone: Receiver<Gone>,
    pub hangup: Hangup,
}

/// What a HUP means to a process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It ends the wait.
    Ends,
    /// It asks a program to reload, and a waiting process has nothing to reload; unless it comes because the terminal
    /// is gone. `says`: whether each HUP is reported.
    Reloads { on_terminal: bool, says: bool },
}

impl Hangup {
    /// For a node of an election.
    pub fn reloads(says: bool) -> Hangup {
        Hangup::Reloads { on_terminal: Terminal::open().is_some(), says }
    }
}

impl Interrupts {
    /// A signal that has come and would have ended the wait. The other signals are dropped: they mean nothing to a
    /// process that waits, nor to a command that has not begun yet, which would die by them in its first moment. Whoever
    /// starts the command looks at its own children first.
    pub fn ended_wait(&self) -> Option<Signal> {
        self.signals.try_iter().find(|signal| *signal != Signal::SIGCHLD && self.end_wait(*signal))
    }

    /// Whether this signal ends a wait.
    pub fn end_wait(&self, signal: Signal) -> bool {
        match (signal, self.hangup) {
            (Signal::SIGHUP, Hangup::Reloads { on_terminal, says }) if !on_terminal || Terminal::open().is_some() => {
                if says {
                    tell("SIGHUP ends no wait of `elect`; SIGTERM and SIGINT do");
                }
                false
            }
            // From a process that the command of an earlier term has left behind.
            #[cfg(target_os = "linux")]
            (Signal::SIGCHLD, _) => {
                reap_adopted(|_| false);
                false
            }
            _ => is_ending(signal),
        }
    }
}

/// Says why nobody needs the lock any more, like `process 7 has ended`.
pub type Gone = String;

/// From now on the signals come by this channel. Signals that are ignored since before we started, as with `nohup`,
/// stay ignored, for the command too; except SIGCHLD, which is needed here.
pub fn watch() -> io::Result<Receiver<Signal>> {
    let passed_on = PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal));
    let wanted: Vec<Signal> = passed_on.chain([Signal::SIGCHLD, Signal::SIGCONT]).collect();
    let mut signals = Signals::new(wanted.iter().map(|signal| *signal as i32))?;
    let (sender, receiver) = unbounded();
    stops::obey(sender.clone())?;
    // Also signals that the program that started us has blocked. The command is started by another thread, so for it
    // they stay blocked.
    let let_in: SigSet = wanted.into_iter().collect();
    thread::Builder::new().name("leasehold-signal".to_owned()).spawn(move || {
        let _ = let_in.thread_unblock();
        for signal in signals.forever().filter_map(|number| Signal::try_from(number).ok()) {
            if sender.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Whether this signal tells a waiting process to end. If it is Ctrl-Z, this process stops.
pub fn is_ending(signal: Signal) -> bool {
    if signal == stops::TOLD_AS {
        stops::stop_ourselves();
    }
    ENDING.contains(&signal)
}

/// Whether Ctrl-C has ended what this process is for.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Notes that this signal, which came to all of the terminal's foreground, has ended what this process is for.
pub fn ended_by_key(signal: Signal) {
    IS_INTERRUPTED.fetch_or(signal == Signal::SIGINT, Ordering::Relaxed);
}

/// Ends this process by SIGINT if that is what the exit code says: bash goes on with its script if the process that it
/// waited for has only exited with that code.
pub fn end_as_interrupted(ends_with: u8) {
    // Process 1 would survive the signal.
    let is_said = ends_with == code::SIGNAL + Signal::SIGINT as u8 && getpid() != Pid::from_raw(1);
    if is_said && IS_INTERRUPTED.load(Ordering::Relaxed) {
        let _ = emulate_default_handler(Signal::SIGINT as i32);
    }
}

/// For commands that handle no signals: process 1, like that of a container, is not ended by a signal as any other
/// process is, unless it handles the signal.
pub fn end_process_1_by_signals() {
    if getpid() != Pid::from_raw(1) {
        return;
    }
    let always = Arc::new(AtomicBool::new(true));
    for signal in ENDING.into_iter().filter(|signal| !is_ignored(*signal)) {
        let code = i32::from(code::SIGNAL + signal as u8);
        let _ = register_conditional_shutdown(signal as i32, code, always.clone());
    }
}

/// From now on a write beyond the limit of file size fails, like a write to a full disk, and does not end this process.
/// The signal is handled and not ignored, so that programs that are started from here get the system's default.
pub fn outlive_file_size_limit() {
    if !is_ignored(Signal::SIGXFSZ) {
        let _ = register(Signal::SIGXFSZ as i32, Arc::new(AtomicBool::new(false)));
    }
}

/// Whether the signal is ignored since before we started, as far as the system shows that.
pub fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & (1 << (signal as u32 - 1)) != 0
}
