//! The command that runs: its process, and the group that the process leads.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Child;
#[cfg(target_os = "linux")]
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
#[cfg(target_os = "linux")]
use nix::sys::wait::{Id, waitid};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
#[cfg(target_os = "linux")]
use nix::unistd::getpgid;
use nix::unistd::{Pid, getpgrp};

use crate::exec::Prepared;
use crate::failure::code;
use crate::keeper::{Keeper, Target};
#[cfg(target_os = "linux")]
use crate::processes::{INHERITED, children, stands_still, zombies};
use crate::processes::{asks_for_terminal, is_alive};
use crate::signals::ended_by_key;
use crate::stops;
use crate::terminal::{Terminal, is_shared};

/// How much time a command has to obey a Ctrl-Z that is passed on.
#[cfg(target_os = "linux")]
const OBEYED: Duration = Duration::from_secs(1);
/// How long after it stopped itself this process continues the command, if nobody has continued it before: the system
/// does not stop a process that nobody could continue.
const STOPPED: Duration = Duration::from_millis(200);
/// The signals that the terminal's keys send to its foreground, to end it.
const KEYS: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// See the module. Only the main thread may have one: on Linux the command dies with the thread that started it.
pub struct Job {
    child: Child,
    group: Pid,
    /// A process of the group that ran at the last look.
    member: Option<i32>,
    /// There is one until nothing of the group is left.
    keeper: Option<Keeper>,
    terminal: Option<Terminal>,
    /// The command was in the terminal's foreground until its end.
    had_terminal: bool,
    /// The code that the command ended with.
    ended: Option<u8>,
    /// The signal that ended it.
    ended_by: Option<Signal>,
    /// Nothing of the group is left. From then on another group may have its number.
    gone: bool,
    stopped: bool,
}

impl Job {
    /// Starts the command in a group of its own, which the keeper kills at this time since boot if this process stands
    /// still. The command begins only if it still may once that is set up.
    pub fn start(
        mut prepared: Prepared,
        terminal: Option<Terminal>,
        kill_at: Option<Duration>,
        may_begin: impl FnOnce() -> bool,
    ) -> io::Result<Job> {
        // Processes that the command leaves behind become our children, so that their end is reported to us.
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true)?;
        let mut keeper = Keeper::start(None)?;
        prepared.command.process_group(0);
        let (child, gate) = prepared.start()?;
        let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        keeper.begin(Target::Group(group), kill_at, gate, may_begin)?;
        Ok(Job {
            child,
            group,
            member: None,
            keeper: Some(keeper),
            terminal,
            had_terminal: false,
            ended: None,
            ended_by: None,
            gone: false,
            stopped: false,
        })
    }

    /// The exit code of the command, once it has ended.
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

    /// Sets when the keeper kills the group if this process stands still.
    pub fn kill_at(&mut self, since_boot: Option<Duration>) {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep_or_replace(Target::Group(self.group), since_boot, || Keeper::start(None));
        }
    }

    /// Ready when it is time to try to start another keeper.
    pub fn keeper_timer(&self) -> Receiver<Instant> {
        self.keeper.as_ref().map_or_else(never, Keeper::timer)
    }

    /// Sends a signal to the whole group. False: all of it has more rights than we have, like `sudo`.
    pub fn signal(&self, signal: impl Into<Option<Signal>>) -> bool {
        self.gone || killpg(self.group, signal) != Err(Errno::EPERM)
    }

    /// Whether no signal of ours reaches the group.
    pub fn is_out_of_reach(&self) -> bool {
        !self.signal(None)
    }

    /// Passes on a signal that came to us. False: it has not reached the group, and the next press of a key will not
    /// either.
    pub fn pass_on(&mut self, signal: Signal) -> bool {
        if self.signal(signal) {
            return true;
        }
        if KEYS.contains(&signal) {
            self.hand_over();
        }
        self.terminal.as_ref().is_some_and(|terminal| KEYS.contains(&signal) && terminal.is_with(self.group))
    }

    /// Gives the terminal to a group that we may not signal: then the next key reaches it directly.
    fn hand_over(&mut self) {
        self.terminal.iter_mut().for_each(|terminal| terminal.on_demand = false);
        self.give_terminal();
    }

    /// Gives the command the foreground, if we are there and the command may have it.
    fn give_terminal(&self) {
        let terminal = self.terminal.as_ref().filter(|terminal| !terminal.on_demand && terminal.is_ours());
        terminal.into_iter().for_each(|terminal| terminal.give_to(self.group));
    }

    /// Whether the command gets the terminal only once it asks for it.
    pub fn shares_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.on_demand)
    }

    /// Whether a part of the command asks for the terminal. The system reports that only to the parent of that part,
    /// which may not ask itself, like `timeout`. If so, the command may have the terminal from now on.
    pub fn has_asked_unseen(&mut self) -> bool {
        let is_free = |terminal: &&mut Terminal| terminal.on_demand && !self.stopped && terminal.is_ours();
        let Some(terminal) = self.terminal.as_mut().filter(is_free) else { return false };
        terminal.on_demand = !asks_for_terminal(self.group);
        !terminal.on_demand
    }

    /// The group, which has the number of the process that leads it.
    pub fn group(&self) -> Pid {
        self.group
    }

    /// Looks what happened to the processes. If it returns a time, the command stopped, and may be continued after that
    /// time, unless somebody stops us before. `beside`: processes that others wait for. `is_halted`: the stop is that
    /// of `--on-loss`. `rest`: how long nothing else has to be done.
    #[must_use]
    pub fn look(&mut self, beside: &[Pid], is_halted: bool, rest: Duration) -> Option<Duration> {
        #[cfg(not(target_os = "linux"))]
        let _ = beside;
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        let (mut stop, mut left_stopped) = (None, None);
        loop {
            self.look_at_leader();
            match waitpid(Pid::from_raw(-self.group.as_raw()), Some(flags)) {
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
                // A process that the leader has left behind, and that is our child since then. Others of the group may
                // run.
                Ok(WaitStatus::Stopped(_, signal)) if self.ended.is_some() => left_stopped = Some(signal),
                Ok(WaitStatus::StillAlive) => break,
                // EINVAL: the process that was waited for was ended by a signal that nix does not know.
                Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
                Err(_) => break,
            }
        }
        #[cfg(target_os = "linux")]
        reap_adopted(|pid| {
            pid == self.group || beside.contains(&pid) || self.keeper.as_ref().and_then(Keeper::pid) == Some(pid)
        });
        // Asked only after the leader was waited for, and in the same thread that sends the signals.
        self.gone = self.ended.is_some() && !is_alive(self.group, &mut self.member);
        if self.gone {
            self.keeper.take().into_iter().for_each(Keeper::dismiss);
            // At once, because from now on Ctrl-C is meant for us.
            self.had_terminal |= self.terminal.as_ref().is_some_and(|terminal| terminal.take_back_from(self.group));
            // A stop before that end does not matter any more.
            return None;
        }
        self.stopped |= stop.is_some();
        let goes_on_after = stop.or(left_stopped).and_then(|signal| self.stop_with_it(signal, is_halted, rest));
        self.stopped |= goes_on_after.is_some();
        goes_on_after
    }

    /// Notes the leader's end, also one by a real-time signal, which nix does not know.
    fn look_at_leader(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let ended = match self.child.try_wait() {
            Ok(Some(status)) => {
                self.ended_by = status.signal().and_then(|signal| Signal::try_from(signal).ok());
                status.code().or_else(|| Some(i32::from(code::SIGNAL) + status.signal()?))
            }
            Ok(None) => return,
            // It ended between the two calls: the wait for the group took its end, by a signal that nix does not know.
            Err(_) => None,
        };
        self.ended = Some(ended.and_then(|ended| u8::try_from(ended & 0xff).ok()).unwrap_or(code::INTERNAL));
    }

    /// After Ctrl-Z, or a read of the terminal from the background: stops this process, too, so that the shell that
    /// started us sees it.
    fn stop_with_it(&mut self, signal: Signal, is_halted: bool, rest: Duration) -> Option<Duration> {
        let terminal = self.terminal.as_mut()?;
        // SIGTTOU is blocked here. A SIGSTOP comes from somebody who means the command alone, or, in the foreground,
        // from the command itself, as `top` does at Ctrl-Z: if the terminal stayed with the stopped command, nobody
        // could use it.
        let ours = match signal {
            Signal::SIGTTOU => Signal::SIGTTIN,
            Signal::SIGSTOP if !is_halted && terminal.is_with(self.group) => Signal::SIGTSTP,
            Signal::SIGTSTP | Signal::SIGTTIN => signal,
            _ => return None,
        };
        // Also if the shell has brought us to the foreground, which nobody reports to the command.
        if !is_halted && ours == Signal::SIGTTIN && terminal.is_ours() {
            terminal.on_demand = false;
            return Some(Duration::ZERO);
        }
        // A part of the command may have something to do before it stops, like restoring the terminal, and another part
        // may ignore Ctrl-Z.
        if signal == Signal::SIGTSTP {
            self.wait_for_stop(rest);
        }
        let _ = self.terminal.as_ref().map(|terminal| terminal.take_back_from(self.group));
        self.signal(Signal::SIGSTOP);
        killpg(getpgrp(), ours).ok().map(|()| STOPPED)
    }

    /// The same if Ctrl-Z came to us, because the command is not in the foreground.
    pub fn stop(&mut self, rest: Duration) -> Option<Duration> {
        // Such signals are sent to servers, too, and the system stops no process without a shell.
        if self.terminal.is_none() {
            stops::stop_ourselves();
            return None;
        }
        if !self.stopped {
            // As the terminal does. Another leasehold, or sudo, passes this on.
            if !self.signal(Signal::SIGTSTP) {
                // A shell between us and the user's shell may be stopped by the same key. Then the user's shell takes
                // the terminal back, and we must not take it from that shell.
                thread::sleep(STOPPED);
                self.hand_over();
                stops::stay();
                return None;
            }
            self.stopped = true;
            self.wait_for_stop(rest);
        }
        self.signal(Signal::SIGSTOP);
        let _ = self.terminal.as_ref().map(|terminal| terminal.take_back_from(self.group));
        stops::stop_ourselves();
        // Otherwise these stops would be taken for another Ctrl-Z once we go on.
        #[cfg(target_os = "linux")]
        while let Ok(WaitStatus::Stopped(..)) =
            waitid(Id::PGid(self.group), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG)
        {}
        Some(STOPPED)
    }

    /// Waits until all of the group is stopped, but not for long: a part of it may not obey.
    #[cfg(target_os = "linux")]
    fn wait_for_stop(&self, rest: Duration) {
        // Another leasehold that has passed the signal on to us waits for us.
        let obeyed = if std::env::var_os("LEASEHOLD_LOCK_ID").is_some() { OBEYED / 4 } else { OBEYED };
        // If nobody stops us we go on, and must then be in time to act on a loss, or to report to the keeper that the
        // lock is held.
        let until = Instant::now() + obeyed.min(rest / 2);
        while !stands_still(self.group) && Instant::now() < until {
            thread::sleep(OBEYED / 100);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn wait_for_stop(&self, _: Duration) {}

    /// Called when we were stopped and go on: another part of the pipeline may read the terminal now.
    pub fn continued(&mut self) {
        self.terminal.iter_mut().for_each(|terminal| terminal.on_demand = is_shared());
    }

    /// Continues a stopped command, in the foreground if we are there.
    pub fn go_on(&mut self) {
        self.give_terminal();
        self.stopped = false;
        self.signal(Signal::SIGCONT);
    }

    /// Does what remains once nothing of the group is left, and the lock is released. `is_ours`: whether the command
    /// may have got a signal from us alone.
    pub fn finish(self, is_ours: impl Fn(Signal) -> bool) {
        // Ctrl-C is meant for the whole foreground of the terminal, also for the script that we are part of.
        if let Some(signal) = self.ended_by.filter(|signal| KEYS.contains(signal) && !is_ours(*signal))
            && (self.had_terminal || self.terminal.as_ref().is_some_and(Terminal::is_ours))
        {
            ended_by_key(signal);
            if self.had_terminal {
                let _ = kill(Pid::from_raw(0), signal);
            }
        }
    }
}

/// Waits for children that have ended and that nobody else waits for. Processes that left a command's group and lost
/// their parent become our children, too. A child in our own group was started by a library, which waits for it itself;
/// or by the program that became leasehold by `exec`, and does not wait any more; or by one of these children, and then
/// nobody waits. `is_known`: this child is waited for elsewhere.
#[cfg(target_os = "linux")]
pub fn reap_adopted(is_known: impl Fn(Pid) -> bool) {
    let inherited = || INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
    let has_our_group = |pid: Pid| getpgid(Some(pid)).is_ok_and(|group| group == getpgrp());
    let children = children();
    let ours = children.iter().flatten().copied().filter(|pid| has_our_group(*pid) && has_ended(*pid)).collect();
    let left = left_over(&mut ENDED.lock().unwrap_or_else(PoisonError::into_inner), ours, Instant::now());
    let is_other = |pid| !is_known(pid) && (inherited().contains(&pid) || left.contains(&pid) || !has_our_group(pid));
    reap(children, is_other, |pid| inherited().retain(|before| *before != pid));
}

/// Children of our own group that have ended, and since when that is known.
#[cfg(target_os = "linux")]
static ENDED: Mutex<Vec<(Pid, Instant)>> = Mutex::new(Vec::new());

/// How long after its end a child counts as left over: a library waits much sooner for what it has started.
#[cfg(target_os = "linux")]
const LEFT_OVER: Duration = Duration::from_secs(10);

/// Ready when such a child must be looked at again, since no signal reports that.
#[cfg(target_os = "linux")]
pub fn looks_again() -> Receiver<Instant> {
    let ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    ended.iter().map(|(_, since)| *since + LEFT_OVER).min().map_or_else(never, at)
}

#[cfg(not(target_os = "linux"))]
pub fn looks_again() -> Receiver<Instant> {
    never()
}

/// Those of the `ended` children that have ended long ago.
#[cfg(target_os = "linux")]
fn left_over(known: &mut Vec<(Pid, Instant)>, ended: Vec<Pid>, now: Instant) -> Vec<Pid> {
    known.retain(|(pid, _)| ended.contains(pid));
    for pid in ended {
        if known.iter().all(|(before, _)| *before != pid) {
            known.push((pid, now));
        }
    }
    known.iter().filter(|(_, since)| now.duration_since(*since) >= LEFT_OVER).map(|(pid, _)| *pid).collect()
}

#[cfg(target_os = "linux")]
fn has_ended(pid: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(pid), flags) != Ok(WaitStatus::StillAlive)
}

/// Waits for each of the children that has ended and for which `is_one` is true. If the children are not known, for
/// those that the system names, up to the first for which it is false.
#[cfg(target_os = "linux")]
fn reap(children: Option<Vec<Pid>>, is_one: impl Fn(Pid) -> bool, mut reaped: impl FnMut(Pid)) {
    let mut has_ended = |pid| {
        let has_ended = waitpid(pid, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive);
        if has_ended {
            reaped(pid);
        }
        has_ended
    };
    if let Some(children) = children {
        for pid in children.into_iter().filter(|pid| is_one(*pid)) {
            has_ended(pid);
        }
        return;
    }
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::All, flags) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) if is_one(pid) && has_ended(pid) => {}
            // The child was ended by a signal that nix does not know, so it is not known which child it is.
            Err(Errno::EINVAL) => {
                for pid in zombies().into_iter().filter(|pid| is_one(*pid)) {
                    has_ended(pid);
                }
                return;
            }
            _ => return,
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_nobody_waits_for_is_left_over_after_a_while() {
        let (mut known, began) = (Vec::new(), Instant::now());
        let [one, other] = [1, 2].map(Pid::from_raw);
        assert_eq!(left_over(&mut known, vec![one], began), []);
        assert_eq!(left_over(&mut known, vec![one, other], began + LEFT_OVER / 2), []);
        assert_eq!(left_over(&mut known, vec![one, other], began + LEFT_OVER), [one]);
        assert_eq!(left_over(&mut known, vec![other], began + 2 * LEFT_OVER), [other]);
        assert_eq!(left_over(&mut known, vec![], began + 2 * LEFT_OVER), []);
        assert!(known.is_empty());
    }

    /// Small kernels and some sandboxes do not list a process's children.
    #[test]
    fn what_ends_is_waited_for_also_where_nobody_lists_the_children() {
        for is_listed in [true, false] {
            // It is ended by a real-time signal, which nix does not know.
            let mut child = Command::new("sh").args(["-c", "kill -40 $$"]).spawn().unwrap();
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
            let until = Instant::now() + Duration::from_secs(60);
            // Children of other tests may come before it for a moment. A signal can be sent even to a zombie.
            while kill(pid, None).is_ok() {
                assert!(Instant::now() < until, "it is still there: {is_listed}");
                reap(children().filter(|_| is_listed), |ended| ended == pid, |_| ());
                thread::sleep(Duration::from_millis(5));
            }
            assert!(child.wait().is_err(), "somebody has waited for it");
        }
    }
}
