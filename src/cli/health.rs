//! `--health-cmd`: whether what works under a lock is well enough to keep it.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at};

use crate::beside::{Beside, Environment, Output};
use crate::on_loss::shell_command;
use crate::words::duration;

/// When the lock is given back although nothing is wrong with it.
#[derive(clap::Args, Clone, Debug)]
pub struct Checks {
    /// While the command runs, ask this shell command whether all is well: once it has failed --health-retries times in a
    /// row, the command is ended and the lock is given back
    ///
    /// It is well if it ends with 0. It runs for the first time --health-interval after the start, has the environment
    /// of the command and LEASEHOLD_PID, the command's process, and what it prints is not shown. The command gets TERM, and
    /// KILL after --kill-after; the lock is held until nothing of it is left. Then `run` ends with 80, and `elect` lets
    /// other nodes go first before it campaigns again. Checks pause while the command is stopped, and end when
    /// leasehold gets a TERM; after HUP, INT or QUIT, which the command may live through, they go on.
    #[arg(long, value_name = "COMMAND", value_parser = shell_command)]
    health_cmd: Option<String>,
    /// The time before the first check, and between the end of one and the next
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "10s", requires = "health_cmd", value_parser = duration)]
    health_interval: Duration,
    /// A check that takes longer than this has failed, and is killed
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "5s", requires = "health_cmd", value_parser = duration)]
    health_timeout: Duration,
    /// How many checks in a row must fail until the lock is given back
    #[arg(long, value_name = "N", default_value = "3", requires = "health_cmd", value_parser = clap::value_parser!(u32).range(1..))]
    health_retries: u32,
}

/// The checks of a command that runs.
pub struct Health<'a> {
    command: &'a str,
    checks: &'a Checks,
    environment: Environment,
    running: Option<Beside>,
    next: Instant,
    failed: u32,
}

impl Checks {
    /// `None`: there is no `--health-cmd`.
    pub fn begin(&self, environment: Environment) -> Option<Health<'_>> {
        let command = self.health_cmd.as_deref()?;
        let mut health = Health { command, checks: self, environment, running: None, next: Instant::now(), failed: 0 };
        health.rest();
        Some(health)
    }
}

impl Health<'_> {
    /// The check that is under way.
    pub fn running(&self) -> Option<&Beside> {
        self.running.as_ref()
    }

    /// Ready when there is something to look at other than the end of a process.
    pub fn timer(&self) -> Receiver<Instant> {
        self.running.as_ref().map_or_else(|| at(self.next), Beside::timer)
    }

    /// Begins anew: earlier results do not count any more.
    pub fn rest(&mut self) {
        self.failed = 0;
        self.end_of_one();
    }

    fn end_of_one(&mut self) {
        self.running = None;
        let now = Instant::now();
        self.next = now.checked_add(self.checks.health_interval).unwrap_or(now);
    }

    /// Goes on with the checks. Reports each success, and once why the lock must be given back.
    pub fn look(&mut self) -> Option<Result<(), String>> {
        let outcome = match &mut self.running {
            Some(running) => running.look()?,
            None => {
                if Instant::now() < self.next {
                    return None;
                }
                let output = Output::Nowhere;
                match Beside::start(self.command, &self.environment, output, self.checks.health_timeout) {
                    Ok(running) => {
                        self.running = Some(running);
                        return None;
                    }
                    Err(error) => Err(format!("it cannot be started: {error}")),
                }
            }
        };
        self.end_of_one();
        let Err(why) = outcome else {
            self.failed = 0;
            return Some(Ok(()));
        };
        self.failed += 1;
        let times = if self.failed == 1 { String::new() } else { format!(" {} times in a row", self.failed) };
        (self.failed == self.checks.health_retries).then(|| Err(format!("--health-cmd failed{times}: {why}")))
    }
}
