//! A shell command beside the one that runs: that of `--health-cmd`, and that of `--on-loss cmd:..`.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, select};
use leasehold::Loss;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpid};

use crate::args::Global;
use crate::exec::prepared;
use crate::failure::Outcome;
use crate::held::Held;
use crate::signals::ENDING;
use crate::store::{self, Missing};
use crate::words::words;

/// What all that is started for a lock finds in its environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    json: bool,
    values: Vec<(&'static str, String)>,
}

impl Environment {
    /// That of these locks.
    pub fn of(global: &Global, locks: &Held) -> Outcome<Environment> {
        let mut values: Vec<_> = locks.environment().into_iter().collect();
        values.push(store::passed_on(store::url(global, Missing::Made)?));
        Ok(Environment { json: global.json, values })
    }

    /// With one more.
    pub fn with(&self, name: &'static str, value: impl ToString) -> Environment {
        let mut all = self.clone();
        all.values.push((name, value.to_string()));
        all
    }

    /// A command in it. `foreground`: it gets the terminal.
    pub fn prepared(&self, foreground: bool, command: &[OsString]) -> Command {
        let mut prepared = prepared(getpid(), foreground, self.json, command);
        prepared.env_remove("LEASEHOLD_STORE").env_remove(store::WITHHELD).envs(self.values.iter().cloned());
        prepared
    }
}

/// What becomes of what it prints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A standard error that nobody reads must not make it fail.
    Nowhere,
    StandardError,
}

/// See the module. Ended when dropped. Only the main thread may have one, see `Job`.
pub struct Beside {
    child: Child,
    time: Duration,
    until: Instant,
    has_ended: bool,
}

impl Beside {
    /// Starts it with `sh`, in a process group of its own, for so long at most.
    pub fn start(command: &str, environment: &Environment, output: Output, time: Duration) -> io::Result<Beside> {
        let mut shell = environment.prepared(false, &["sh".into(), "-c".into(), command.into()]);
        shell.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if output == Output::StandardError {
            let stderr = || io::stderr().as_fd().try_clone_to_owned().map(Stdio::from);
            shell.stdout(stderr()?).stderr(stderr()?);
        }
        let child = shell.spawn()?;
        let now = Instant::now();
        Ok(Beside { child, time, until: now.checked_add(time).unwrap_or(now), has_ended: false })
    }

    /// The command of `--on-loss`, with this time left. An error says why it is not run.
    pub fn for_loss(command: &str, environment: &Environment, loss: &Loss, time: Duration) -> Result<Beside, String> {
        if time.is_zero() {
            return Err("no time is left".to_owned());
        }
        let environment = environment.with("LEASEHOLD_LOSS", loss);
        Beside::start(command, &environment, Output::StandardError, time).map_err(|error| error.to_string())
    }

    /// Its process, which nobody else must wait for.
    pub fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().map(Pid::from_raw)
    }

    /// Ready when its time is over.
    pub fn timer(&self) -> Receiver<Instant> {
        at(self.until)
    }

    /// How it ended, once it has, or its time is over. An error says why it failed.
    pub fn look(&mut self) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                self.has_ended = true;
                Some(if status.success() { Ok(()) } else { Err(ended(status)) })
            }
            Ok(None) if Instant::now() >= self.until => Some(Err(format!("it took more than {}", words(self.time)))),
            Ok(None) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// Waits for its end, unless a signal tells to end.
    pub fn see_through(mut self, signals: &Receiver<Signal>) -> Result<(), String> {
        loop {
            if let Some(outcome) = self.look() {
                return outcome;
            }
            select! {
                recv(signals) -> signal => match signal {
                    Ok(signal) if !ENDING.contains(&signal) => {}
                    _ => return Err("it was not waited for".to_owned()),
                },
                recv(self.timer()) -> _ => {}
            }
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(group) = self.pid().filter(|_| !self.has_ended) {
            // Its number is its own while nobody has waited for it.
            let _ = killpg(group, Signal::SIGKILL);
            let _ = self.child.try_wait();
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("it ended with {code}"),
        (None, Some(Ok(signal))) => format!("{signal} ended it"),
        (None, _) => "a signal ended it".to_owned(),
    }
}
