//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueHint};
use nix::sys::signal::Signal;

use crate::words::duration;

const AFTER: &str = "\
Exit codes:
  N     `run`, `elect`: what the command ended with
  64    wrong usage
  69    the store is out of reach
  74    the output could not be written
  75    the lock was not obtained in time; who holds it stands on standard error
  76    the lock was lost while the command ran
  77    the store denies it
  78    the store URL, the configuration or the store's schema is wrong
  126   the command cannot be run
  127   there is no such command
  128+N signal N ended the command, or the wait for the lock";

const STORES: &str = "\
The store, one of
  sqlite:PATH                                     the processes of one host
  dynamodb://TABLE?region=..                      a DynamoDB table
and others that are compiled in; the documentation of the library has their options. An URL with a password \
is better given in the environment.

[default: an SQLite file, $XDG_STATE_HOME/leasehold/locks.db or ~/.local/state/leasehold/locks.db]";

/// Holds a distributed lock while a command runs, and looks after the locks of a store.
#[derive(Parser, Debug)]
#[command(name = "leasehold", version, after_help = AFTER, max_term_width = 100, disable_help_subcommand = true)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Args, Debug)]
pub struct Global {
    /// The store [default: a file in the user's state folder]
    #[arg(long, global = true, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true, long_help = STORES)]
    pub store: Option<String>,
    /// Answers and errors as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Nothing on standard error but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// A line on standard error for each event; twice: also each request to the store
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Box<Run>),
}

/// Runs a command while holding a lock.
///
/// Waits for the lock, runs the command in a process group of its own, and releases the lock when every process of
/// that group is gone. The command gets LEASEHOLD_KEY, LEASEHOLD_TOKEN (the fencing token), LEASEHOLD_LOCK_ID and
/// LEASEHOLD_OWNER in its environment; LEASEHOLD_STORE is taken out of it.
///
/// INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on to the command's group. When leasehold is killed, the
/// command is killed with it (on Linux).
#[derive(clap::Args, Debug)]
pub struct Run {
    /// The name of the lock
    pub key: String,
    #[command(flatten)]
    pub ask: Ask,
    /// Together with other shared holders
    #[arg(long)]
    pub shared: bool,
    /// At most so many shared holders
    #[arg(long, value_name = "N", requires = "shared", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_holders: Option<u32>,
    /// Wait for at most so long [default: without limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Do not wait
    #[arg(long = "try", conflicts_with = "wait")]
    pub once: bool,
    /// The lock counts as lost after so long, for a command that hangs
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_hold: Option<Duration>,
    /// The exit code when the lock was not obtained in time
    #[arg(long, value_name = "N", default_value_t = crate::failure::code::CONFLICT)]
    pub conflict_exit_code: u8,
    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// What `run` and `elect` ask for alike.
#[derive(clap::Args, Debug)]
pub struct Ask {
    /// How long the lock outlives a leasehold that is cut off; it is renewed while the command runs
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub lease: Duration,
    /// Who holds it, for people [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,
    /// Whatever others should read about this hold
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// What is done to the command when the lock is lost
    ///
    /// `kill` sends TERM to its process group, and KILL after --kill-after if anything of it is left. `signal:NAME`
    /// sends that signal, and nothing else. `ignore` lets it go on: then only the fencing token protects.
    #[arg(long, value_name = "kill|signal:NAME|ignore", default_value = "kill", value_parser = on_loss)]
    pub on_loss: OnLoss,
    /// The time between TERM and KILL; with a second on top at most a third of the lease
    ///
    /// It ends before the store can grant the lock to another: the lock counts as lost so long, and a second more,
    /// before its lease ends.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::words::duration_or_zero)]
    pub kill_after: Duration,
}

/// What is done to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    Kill,
    Signal(Signal),
    Ignore,
}

fn on_loss(text: &str) -> Result<OnLoss, String> {
    match text {
        "kill" => Ok(OnLoss::Kill),
        "ignore" => Ok(OnLoss::Ignore),
        _ => {
            let name =
                text.strip_prefix("signal:").ok_or("it must be kill, ignore or signal:NAME, like signal:USR1")?;
            let name = name.to_ascii_uppercase();
            let full = if name.starts_with("SIG") { name.clone() } else { format!("SIG{name}") };
            full.parse()
                .map(OnLoss::Signal)
                .map_err(|_| format!("there is no signal {name}; write it like signal:USR1"))
        }
    }
}
