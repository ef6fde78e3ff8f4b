//! The command that runs: its process, and the group that the process leads.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp};

use crate::failure::code;
use crate::keeper::Keeper;
use crate::processes::is_alive;
use crate::terminal::Terminal;

/// Only the main thread may have one: on Linux the command dies with the thread that started it.
pub struct Job {
    group: Pid,
    /// A process of it that ran at the last look.
    member: Option<i32>,
    /// Until nothing of the group is left.
    keeper: Option<Keeper>,
    terminal: Option<Terminal>,
    /// The code that the command ended with.
    ended: Option<u8>,
    /// The signal that ended it.
    ended_by: Option<Signal>,
    /// Nothing of the group is left. From then on its number may be that of a stranger.
    gone: bool,
    stopped: bool,
}

impl Job {
    /// Starts what `exec::prepared` made, in a group of its own.
    pub fn start(mut prepared: Command, terminal: Option<Terminal>) -> io::Result<Job> {
        // What the command leaves behind becomes our child, and so its end is reported.
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true)?;
        let mut keeper = Keeper::start()?;
        let child = prepared.process_group(0).spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        keeper.keep(group, None);
        Ok(Job {
            group,
            member: None,
            keeper: Some(keeper),
            terminal,
            ended: None,
            ended_by: None,
            gone: false,
            stopped: false,
        })
    }

    /// The code of the command, once it ended.
    pub fn ended(&self) -> Option<u8> {
        self.ended
    }

    /// Whether nothing of the group is left.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// When the group is killed if this process stands still.
    pub fn kill_at(&mut self, since_boot: Option<Duration>) {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(self.group, since_boot);
        }
    }

    /// Sends a signal to the whole group.
    pub fn signal(&self, signal: Signal) {
        if !self.gone {
            let _ = killpg(self.group, signal);
        }
    }

    /// Looks what became of the processes. True: the command stopped, and so shall we.
    #[must_use]
    pub fn look(&mut self) -> bool {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        let mut stop = None;
        loop {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, status)) if pid == self.group => {
                    self.ended = Some(u8::try_from(status & 0xff).unwrap_or(code::INTERNAL));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.group => {
                    self.ended = Some(code::SIGNAL + signal as u8);
                    self.ended_by = Some(signal);
                }
                Ok(WaitStatus::Stopped(pid, signal)) if pid == self.group => stop = Some(signal),
                Ok(WaitStatus::Continued(pid)) if pid == self.group => {
                    stop = None;
                    self.stopped = false;
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        // Asked only after the leader was waited for, in the one thread that also sends.
        self.gone = self.ended.is_some() && !is_alive(self.group, &mut self.member);
        if self.gone {
            self.keeper.take().into_iter().for_each(Keeper::dismiss);
        }
        self.stopped |= stop.is_some();
        stop.is_some_and(|signal| self.stop_with_it(signal))
    }

    /// Ctrl-Z, or a read of the terminal from the background: whoever started us shall see us stop too.
    fn stop_with_it(&mut self, signal: Signal) -> bool {
        let Some(terminal) = &self.terminal else { return false };
        // SIGTTOU is blocked here. A SIGSTOP comes from somebody who means the command alone.
        let ours = match signal {
            Signal::SIGTTOU => Signal::SIGTTIN,
            Signal::SIGTSTP | Signal::SIGTTIN => signal,
            _ => return false,
        };
        terminal.take_back_from(self.group);
        // What stands still does no harm, however long that is; who continues us finds the lock held or lost.
        self.kill_at(None);
        killpg(getpgrp(), ours).is_ok()
    }

    /// Lets a stopped command go on, in the foreground if we are there.
    pub fn go_on(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_ours()) {
            terminal.give_to(self.group);
        }
        self.stopped = false;
        self.signal(Signal::SIGCONT);
    }

    /// What is left to do once nothing of the group is left: the terminal is ours again.
    pub fn finish(self) {
        let Some(terminal) = &self.terminal else { return };
        let had_it = terminal.take_back_from(self.group);
        // Ctrl-C means all of the terminal's foreground: the script that we are part of, too.
        if let Some(signal) = self.ended_by.filter(|signal| [Signal::SIGINT, Signal::SIGQUIT].contains(signal))
            && had_it
        {
            let _ = kill(Pid::from_raw(0), signal);
        }
    }
}
