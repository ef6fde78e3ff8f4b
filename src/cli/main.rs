//! The command `leasehold`: holds a lock while another command runs, and looks after the locks of a store.

#![forbid(unsafe_code)]

#[cfg(unix)]
mod about;
#[cfg(unix)]
mod args;
#[cfg(unix)]
mod asked;
#[cfg(unix)]
mod beside;
#[cfg(unix)]
mod clock;
#[cfg(unix)]
mod codes;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod exec;
#[cfg(unix)]
mod failure;
#[cfg(unix)]
mod give_back;
#[cfg(unix)]
mod health;
#[cfg(unix)]
mod held;
#[cfg(unix)]
mod hold;
#[cfg(unix)]
mod job;
#[cfg(unix)]
mod keeper;
#[cfg(unix)]
mod killing;
#[cfg(unix)]
mod leases;
#[cfg(unix)]
mod locks;
#[cfg(unix)]
mod on_behalf;
#[cfg(unix)]
mod on_loss;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod secret;
#[cfg(unix)]
mod session;
#[cfg(unix)]
mod show;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod steps;
#[cfg(unix)]
mod stops;
#[cfg(unix)]
mod store;
#[cfg(unix)]
mod store_care;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod wait;
#[cfg(unix)]
mod warnings;
#[cfg(unix)]
mod watched;
#[cfg(unix)]
mod words;

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    command::main()
}

/// Process groups and signals are those of Unix.
#[cfg(not(unix))]
fn main() -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "leasehold: the command runs on Unix only; the library also on Windows");
    ExitCode::from(78)
}
