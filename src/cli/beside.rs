//! A shell command that runs next to the main command: that of `--health-cmd`, and that of `--on-loss cmd:..`.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, select};
use leasehold::Loss;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid};

use crate::args::Global;
use crate::asked::Ask;
use crate::clock::since_boot;
use crate::exec::{Gate, Prepared, prepared};
use crate::failure::Outcome;
use crate::held::{Held, OUTER, outer_lock_ids};
use crate::keeper::{Keeper, Target};
use crate::signals::is_ending;
use crate::store::{self, Missing};
use crate::words::{ours, words};

/// The environment of every command that is started for a lock.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    json: bool,
    values: Vec<(&'static str, String)>,
}

impl Environment {
    /// The environment for these locks.
    pub fn of(global: &Global, locks: &Held) -> Outcome<Environment> {
        let mut values: Vec<_> = locks.environment().into_iter().collect();
        values.push(store::passed_on(store::url(global, Missing::Made)?));
        let outer = outer_lock_ids();
        if !outer.is_empty() {
            values.push((OUTER, outer.join("\n")));
        }
        Ok(Environment { json: global.json, values })
    }

    /// With one more variable.
    pub fn with(&self, name: &'static str, value: impl ToString) -> Environment {
        let mut all = self.clone();
        all.values.push((name, value.to_string()));
        all
    }

    /// A command with this environment. `foreground`: it gets the terminal.
    pub fn prepared(&self, foreground: bool, command: &[OsString]) -> io::Result<Prepared> {
        let mut prepared = prepared(getpid(), foreground, self.json, command)?;
        prepared.command.env_remove("LEASEHOLD_STORE").env_remove(store::WITHHELD).envs(self.values.iter().cloned());
        Ok(prepared)
    }
}

/// Where the command's output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Discarded. A standard error that nobody reads must not make the command fail.
    Nowhere,
    StandardError,
}

/// How often to look at a time since boot, for which a timer would be late after a suspend.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module. It is killed when dropped. Only the main thread may have one, see `Job`.
pub struct Beside {
    child: Child,
    time: Duration,
    until: Instant,
    /// The same as a time since boot, for a command that must end with a lease: that goes on while the machine is
    /// suspended.
    by: Option<Duration>,
    /// Kills such a command when this process can't.
    keeper: Option<Keeper>,
    has_ended: bool,
}

impl Beside {
    /// Starts it with `sh`, in a process group of its own, for at most this time.
    pub fn start(command: &str, environment: &Environment, output: Output, time: Duration) -> io::Result<Beside> {
        let (beside, gate) = Beside::start_before_gate(command, environment, output, time)?;
        gate.open();
        Ok(beside)
    }

    fn start_before_gate(
        command: &str,
        environment: &Environment,
        output: Output,
        time: Duration,
    ) -> io::Result<(Beside, Gate)> {
        let mut prepared = environment.prepared(false, &["sh".into(), "-c".into(), command.into()])?;
        let shell = &mut prepared.command;
        shell.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if output == Output::StandardError {
            let stderr = || io::stderr().as_fd().try_clone_to_owned().map(Stdio::from);
            shell.stdout(stderr()?).stderr(stderr()?);
        }
        let (child, gate) = prepared.start()?;
        let now = Instant::now();
        let until = now.checked_add(time).unwrap_or(now);
        Ok((Beside { child, time, until, by: None, keeper: None, has_ended: false }, gate))
    }

    /// Starts the command of `--on-loss`, which has this much time. An error says why it is not run.
    pub fn for_loss(
        command: &str,
        environment: &Environment,
        loss: &Loss,
        time: Duration,
        ask: &Ask,
    ) -> Result<Beside, String> {
        if time.is_zero() {
            return Err("no time is left".to_owned());
        }
        let environment =
            environment.with("LEASEHOLD_LOST_KEY", &loss.key).with("LEASEHOLD_LOSS", ours(&loss.to_string()));
        let start = || {
            let by = since_boot().saturating_add(time);
            // The keeper first: if it can't be started, the command has not run.
            let mut keeper = Keeper::start(None)?;
            let (mut beside, gate) = Beside::start_before_gate(command, &environment, Output::StandardError, time)?;
            // The keeper kills a little later than this process would.
            keeper.begin(
                Target::Group(group_of(&beside.child)?),
                Some(by.saturating_add(ask.after_kill() / 2)),
                gate,
                || since_boot() < by,
            )?;
            (beside.by, beside.keeper) = (Some(by), Some(keeper));
            Ok(beside)
        };
        start().map_err(|error: io::Error| error.to_string())
    }

    /// Its processes, for which nobody else may wait.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        group_of(&self.child).into_iter().chain(self.keeper.as_ref().and_then(Keeper::pid))
    }

    /// Ready when its time is over, or may be.
    pub fn timer(&self) -> Receiver<Instant> {
        let again = self.by.and_then(|_| Instant::now().checked_add(AGAIN));
        at(again.map_or(self.until, |again| again.min(self.until)))
    }

    /// How it ended, once it has, or its time is over. An error says why it failed.
    pub fn look(&mut self) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                self.has_ended = true;
                // From now on another process may have its number.
                self.keeper.take().into_iter().for_each(Keeper::dismiss);
                Some(if status.success() { Ok(()) } else { Err(ended(status)) })
            }
            Ok(None) if self.is_over() => Some(Err(format!("it took more than {}", words(self.time)))),
            Ok(None) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.by.is_some_and(|by| since_boot() >= by)
    }

    /// Waits for its end, for no longer than its time: what must be done after a loss is not left half done. Also
    /// returns the signal that told us to end meanwhile.
    pub fn see_through(mut self, signals: &Receiver<Signal>) -> (Result<(), String>, Option<Signal>) {
        let mut told_to_end = None;
        loop {
            if let Some(outcome) = self.look() {
                return (outcome, told_to_end);
            }
            let timer = self.timer();
            select! {
                recv(signals) -> signal => match signal {
                    Ok(signal) if is_ending(signal) => told_to_end = told_to_end.or(Some(signal)),
                    Ok(_) => {}
                    Err(_) => return (Err("it was not waited for".to_owned()), told_to_end),
                },
                recv(timer) -> _ => {}
            }
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some(group) = group_of(&self.child).ok().filter(|_| !self.has_ended) else { return };
        // No other process has its number while nobody has waited for it.
        let _ = killpg(group, Signal::SIGKILL);
        self.keeper.take().into_iter().for_each(Keeper::dismiss);
        if matches!(self.child.try_wait(), Ok(None)) {
            // Otherwise each killed command would remain a zombie on systems where nothing here waits for all children.
            let reaper = thread::Builder::new().name("leasehold-reap".to_owned());
            let _ = reaper.spawn(move || while waitpid(group, None) == Err(Errno::EINTR) {});
        }
    }
}

fn group_of(child: &Child) -> io::Result<Pid> {
    i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("it ended with {code}"),
        (None, Some(Ok(signal))) => format!("{signal} ended it"),
        (None, _) => "a signal ended it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crossbeam_channel::unbounded;

    use super::*;

    fn sleeping() -> Beside {
        let mut shell = Command::new("sleep");
        let child = shell.arg("1000").process_group(0).spawn().unwrap();
        let time = Duration::from_secs(1000);
        Beside { child, time, until: Instant::now() + time, by: None, keeper: None, has_ended: false }
    }

    /// `Instant` does not count the time of a suspend.
    #[test]
    fn a_suspend_ends_what_must_end_with_the_lease() {
        let (_signal, signals) = unbounded();
        let mut beside = sleeping();
        beside.by = Some(since_boot() + Duration::from_millis(10));
        let until = beside.until;
        assert_eq!(beside.see_through(&signals), (Err("it took more than 16 min 40 s".to_owned()), None));
        assert!(Instant::now() < until, "its own time ended it");
        // A health check does not end with a lease, so a suspend does not end it.
        let mut beside = sleeping();
        assert_eq!(beside.look(), None);
    }

    #[test]
    fn what_is_killed_leaves_no_zombie() {
        let until = Instant::now() + Duration::from_secs(60);
        let beside = sleeping();
        let pid = group_of(&beside.child).unwrap();
        drop(beside);
        // A signal can be sent even to a zombie.
        while nix::sys::signal::kill(pid, None).is_ok() {
            assert!(Instant::now() < until, "it is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
