//! The start of the command: this binary starts itself once more, prepares what a process can only do to itself, and
//! then becomes the command.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, close, getpgid, getpid, getppid};

use crate::failure::{Failure, Outcome, code};
use crate::stops;
use crate::terminal::Terminal;

/// With this first argument, leasehold runs [`exec`].
pub const NAME: &str = "__exec";

/// Prepares the start of the command with the arguments `__exec PARENT foreground|background json|text GATE COMMAND
/// ARGS..`.
pub fn prepared(parent: Pid, foreground: bool, json: bool, command: &[OsString]) -> io::Result<Prepared> {
    let (waits, gate) = Gate::closed()?;
    let mut prepared = Command::new(own_binary());
    prepared.arg0("leasehold").arg(NAME).arg(parent.to_string());
    prepared.arg(if foreground { "foreground" } else { "background" });
    prepared.arg(if json { "json" } else { "text" }).arg(waits.as_raw_fd().to_string()).args(command);
    Ok(Prepared { command: prepared, waits, gate })
}

/// A command that can be started.
pub struct Prepared {
    pub command: Command,
    waits: PipeReader,
    gate: Gate,
}

impl Prepared {
    /// Starts the process, which waits at its gate: we may be stopped before everything is set up that ends it in time.
    pub fn start(mut self) -> io::Result<(Child, Gate)> {
        fcntl(&self.waits, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((self.command.spawn().map_err(not_ourselves)?, self.gate))
    }
}

/// The process waits at it before it becomes the command. If the gate is dropped unopened, the process ends.
pub struct Gate(PipeWriter);

impl Gate {
    /// A closed gate, and the pipe's end at which the process waits.
    pub fn closed() -> io::Result<(PipeReader, Gate)> {
        io::pipe().map(|(waits, gate)| (waits, Gate(gate)))
    }

    /// Lets it become the command.
    pub fn open(mut self) {
        let _ = self.0.write_all(b".");
    }
}

/// The path of this binary, to start it once more.
pub fn own_binary() -> PathBuf {
    // On Linux this is right even if the file was replaced meanwhile.
    let own = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    own.unwrap_or_else(|_| "leasehold".into())
}

/// The error if this binary could not be started once more: then it is not the user's command that is missing.
pub fn not_ourselves(error: io::Error) -> io::Error {
    let needs = match error.kind() {
        io::ErrorKind::NotFound if cfg!(target_os = "linux") => " (/proc and /dev/null must be there)",
        io::ErrorKind::NotFound => " (its own file and /dev/null must be there)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("leasehold cannot start itself{needs}: {error}"))
}

/// Becomes the command. It returns only with an error, and with whether to report that as JSON.
pub fn exec(mut args: impl Iterator<Item = OsString>) -> (bool, Outcome) {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok()).map(Pid::from_raw);
    let foreground = args.next().is_some_and(|how| how == "foreground");
    let json = args.next().is_some_and(|how| how == "json");
    let gate = args.next().and_then(|number| number.to_str()?.parse().ok());
    (json, become_it(parent, foreground, gate, args))
}

fn become_it(
    parent: Option<Pid>,
    foreground: bool,
    gate: Option<i32>,
    mut args: impl Iterator<Item = OsString>,
) -> Outcome {
    let (Some(parent), Some(gate), Some(program)) = (parent, gate, args.next()) else {
        return Err(Failure::usage(format!("{NAME} is not for people")));
    };
    die_with(parent)?;
    wait_at(gate)?;
    // If there was a Ctrl-Z since the start, the terminal is the shell's.
    let is_theirs = |terminal: &Terminal| getpgid(Some(parent)).is_ok_and(|group| terminal.is_with(group));
    if foreground && let Some(terminal) = Terminal::open().filter(is_theirs) {
        terminal.give_to(getpid());
    }
    // This process has inherited leasehold's signal mask, and the command would inherit it from this process.
    stops::spare_no_more().map_err(|error| Failure::Own(code::CANNOT_RUN, error.to_string()))?;
    let error = Command::new(&program).args(args).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { code::NOT_FOUND } else { code::CANNOT_RUN };
    let hint = if code == code::NOT_FOUND && is_for_a_shell(&program) { SHELL_HINT } else { "" };
    Err(Failure::Own(code, format!("cannot run {program:?}: {error}{hint}")))
}

const SHELL_HINT: &str = "; a shell's own words need sh -c '...'";

/// Whether it looks like a line, an assignment or a builtin of a shell, not like a program.
fn is_for_a_shell(program: &OsStr) -> bool {
    let program = program.to_string_lossy();
    let builtins = [".", ":", "cd", "eval", "exec", "exit", "export", "set", "source", "trap", "ulimit", "umask"];
    builtins.contains(&&*program) || program.contains([' ', '=', ';', '&', '|', '<', '>', '$'])
}

/// Waits until the parent opens the gate, whose descriptor has this number.
fn wait_at(gate: i32) -> Outcome<()> {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let opened = File::open(format!("{folder}/{gate}")).and_then(|mut gate| gate.read_exact(&mut [0]));
    // Otherwise the command would inherit it.
    let _ = close(gate);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::Silent(code::CANNOT_RUN),
        _ => Failure::Own(code::CANNOT_RUN, format!("the gate before the command: {error}")),
    })
}

/// Has the system send us KILL when the parent dies. That survives `exec`, unless the program has more rights.
fn die_with(parent: Pid) -> Outcome<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| Failure::Own(code::CANNOT_RUN, format!("the parent-death signal: {error}")))?;
    // The parent may have died before that.
    if getppid() == parent { Ok(()) } else { Err(Failure::Silent(code::CANNOT_RUN)) }
}
