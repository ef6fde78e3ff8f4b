//! The signals that this process is told, as a channel.

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

/// Passed on to the command.
pub const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];
/// They end a wait for the lock.
pub const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// What ends a wait, or a hold, before its time.
pub struct Interrupts {
    pub signals: Receiver<Signal>,
    /// Nobody needs the lock any more.
    pub gone: Receiver<Gone>,
    pub hangup: Hangup,
}

/// What a HUP means to who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It ends the wait.
    Ends,
    /// It asks what runs to reload, and here is nothing to reload, unless it comes from the end of the terminal.
    /// `says`: of each that came.
    Reloads { on_terminal: bool, says: bool },
}

impl Hangup {
    /// That of a node of an election.
    pub fn reloads(says: bool) -> Hangup {
        Hangup::Reloads { on_terminal: Terminal::open().is_some(), says }
    }
}

impl Interrupts {
    /// One that has come, and would have ended the wait. The others meant nothing to who waits, and mean nothing to a command
    /// that is yet to begin: one in its first moment would die by them.
    pub fn ended_wait(&self) -> Option<Signal> {
        self.signals.try_iter().find(|signal| self.end_wait(*signal))
    }

    /// Whether it ends a wait.
    pub fn end_wait(&self, signal: Signal) -> bool {
        match (signal, self.hangup) {
            (Signal::SIGHUP, Hangup::Reloads { on_terminal, says }) if !on_terminal || Terminal::open().is_some() => {
                if says {
                    tell("SIGHUP ends no wait of `elect`; SIGTERM and SIGINT do");
                }
                false
            }
            // Of what an earlier term has left behind.
            #[cfg(target_os = "linux")]
            (Signal::SIGCHLD, _) => {
                reap_adopted(|_| false);
                false
            }
            _ => is_ending(signal),
        }
    }
}

/// Says who does not need it any more, as `process 7 has ended`.
pub type Gone = String;

/// From now on the signals come by this channel. Those that whoever started us wanted to be ignored, as `nohup`
/// does, stay so, for the command too; but for SIGCHLD, which is needed here.
pub fn watch() -> io::Result<Receiver<Signal>> {
    let passed_on = PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal));
    let wanted: Vec<Signal> = passed_on.chain([Signal::SIGCHLD, Signal::SIGCONT]).collect();
    let mut signals = Signals::new(wanted.iter().map(|signal| *signal as i32))?;
    let (sender, receiver) = unbounded();
    stops::obey(sender.clone())?;
    // Also what whoever started us has blocked. The command, which is started by another thread, has it as it was.
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

/// Whether it tells who waits to end. Ctrl-Z is obeyed.
pub fn is_ending(signal: Signal) -> bool {
    if signal == stops::TOLD_AS {
        stops::stop_ourselves();
    }
    ENDING.contains(&signal)
}

/// Ctrl-C has ended what this process is for.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What this process is for was ended by this signal, which came to all of the terminal's foreground.
pub fn ended_by_key(signal: Signal) {
    IS_INTERRUPTED.fetch_or(signal == Signal::SIGINT, Ordering::Relaxed);
}

/// Ends by Ctrl-C where that is what the code says: bash goes on with its script if what it waited for has only exited.
pub fn end_as_interrupted(ends_with: u8) {
    // Process 1 would live through it.
    let is_said = ends_with == code::SIGNAL + Signal::SIGINT as u8 && getpid() != Pid::from_raw(1);
    if is_said && IS_INTERRUPTED.load(Ordering::Relaxed) {
        let _ = emulate_default_handler(Signal::SIGINT as i32);
    }
}

/// For what takes no signals itself: process 1, as that of a container, is spared what a signal does to any other one,
/// unless it says otherwise.
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

/// From now on a write beyond the limit of file size fails, as one to a full disk does, and does not end this process. The
/// signal is handled and not ignored, so that what is started from here has the system's default.
pub fn outlive_file_size_limit() {
    if !is_ignored(Signal::SIGXFSZ) {
        let _ = register(Signal::SIGXFSZ as i32, Arc::new(AtomicBool::new(false)));
    }
}

/// Whether it is ignored since before we started, as far as the system tells.
pub fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & (1 << (signal as u32 - 1)) != 0
}
