//! How a command ends when it does not end well: a message and an exit code.

use std::error::Error as _;
use std::io;

use leasehold::{Error, ErrorKind, Loss};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::show;
use crate::words::{ours, said};

/// The exit codes of our own, after sysexits.h and the shell.
pub mod code {
    pub const USAGE: u8 = 64;
    pub const UNAVAILABLE: u8 = 69;
    pub const INTERNAL: u8 = 70;
    pub const OUTPUT: u8 = 74;
    pub const CONFLICT: u8 = 75;
    pub const LOST: u8 = 76;
    pub const PERMISSION: u8 = 77;
    pub const CONFIG: u8 = 78;
    pub const NOT_DUE: u8 = 79;
    pub const UNHEALTHY: u8 = 80;
    pub const CANNOT_RUN: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
    /// Plus the number of the signal.
    pub const SIGNAL: u8 = 128;
}

/// What a refusal means.
pub const NOT_IN_TIME: &str = "not obtained in time";
pub const HELD: &str = "others hold it";
pub const NOT_DUE: &str = "not due, since it ran in this period or runs now";

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error of the library. The exit code is that of its kind.
    Library(Error),
    /// The lock was not obtained: the exit code that the user wants for that, what the refusal means, and the error.
    Refused(u8, &'static str, Error),
    /// A message of the command's own.
    Own(u8, String),
    /// Our output could not be written.
    Output(io::Error),
    /// An error of the library that is part of the printed answer already. Machines also look for it in the last line.
    Answered(Error),
    /// A failure that people know already, or that was reported to them in more words. Machines look for it in the last
    /// line.
    Told(u8, String),
    /// The same for a lock that was lost.
    Lost(Lost),
    /// Nobody would read a message, or another process writes it.
    Silent(u8),
}

/// What is reported of a loss to machines, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    pub key: Option<String>,
    pub store: Option<String>,
    pub reason: Option<&'static str>,
}

impl Lost {
    /// A loss on this store. If one of several locks was lost, the loss says which.
    pub fn new(key: Option<&str>, store: Option<&str>, loss: Option<&Loss>) -> Lost {
        let key = loss.map(|loss| loss.key.as_str()).or(key).map(str::to_owned);
        Lost { key, store: store.map(str::to_owned), reason: loss.map(|loss| loss.reason.name()) }
    }
}

pub type Outcome<T = u8> = Result<T, Failure>;

impl Failure {
    pub fn unhealthy() -> Failure {
        Failure::Told(code::UNHEALTHY, "--health-cmd failed, so the command was ended".to_owned())
    }

    /// A person who sends a signal needs no message. Machines do: the exit code alone may be that of a command.
    pub fn told_to_end(signal: Signal) -> Failure {
        Failure::Told(code::SIGNAL + signal as u8, format!("leasehold was told to end by {signal}"))
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::Own(code::USAGE, message.into())
    }

    pub fn config(message: impl Into<String>) -> Failure {
        Failure::Own(code::CONFIG, message.into())
    }

    pub fn code(&self) -> u8 {
        match self {
            Failure::Library(error) | Failure::Answered(error) => code_of(error.kind()),
            Failure::Refused(code, ..) | Failure::Own(code, _) | Failure::Silent(code) | Failure::Told(code, ..) => {
                *code
            }
            Failure::Lost(_) => code::LOST,
            // The reader has closed the output, so it has seen enough.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Output(_) => code::OUTPUT,
        }
    }

    /// The lines for people, without an end of line.
    pub fn text(&self) -> Option<String> {
        match self {
            Failure::Library(error) => Some(told(error, NOT_IN_TIME)),
            Failure::Refused(_, what, error) => Some(told(error, what)),
            Failure::Own(_, message) => Some(message.clone()),
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Failure::Output(error) => Some(format!("the output could not be written: {error}")),
            Failure::Silent(_) | Failure::Answered(_) | Failure::Told(..) | Failure::Lost(_) => None,
        }
    }

    /// The same for machines.
    pub fn json(&self) -> Option<Value> {
        let message = match self {
            Failure::Told(_, message) => message.clone(),
            Failure::Lost(_) => "the lock was lost".to_owned(),
            Failure::Answered(error) => told(error, NOT_IN_TIME),
            _ => self.text()?,
        };
        let mut told = json!({ "exit_code": self.code(), "message": message });
        if let Failure::Lost(Lost { key, store, reason }) = self {
            told["kind"] = json!(format!("{:?}", ErrorKind::Lost));
            told["key"] = json!(key);
            told["store"] = json!(store);
            told["reason"] = json!(reason);
        }
        if let Failure::Library(error) | Failure::Answered(error) | Failure::Refused(_, _, error) = self {
            told["kind"] = json!(format!("{:?}", error.kind()));
            told["key"] = json!(error.key());
            told["store"] = json!(error.store());
            told["holders"] = error.holders().iter().map(show::holder_json).collect();
            if let Some(lease) = error.lease() {
                told["lease"] = show::lease_json(lease);
            }
        }
        Some(json!({ "error": told }))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Held | ErrorKind::AlreadyHeld | ErrorKind::TimedOut | ErrorKind::InvalidLease => code::CONFLICT,
        ErrorKind::Lost => code::LOST,
        ErrorKind::InvalidInput => code::USAGE,
        ErrorKind::Config | ErrorKind::Schema => code::CONFIG,
        ErrorKind::Permission => code::PERMISSION,
        ErrorKind::Store | ErrorKind::Ambiguous | ErrorKind::ClockSkew => code::UNAVAILABLE,
        _ => code::INTERNAL,
    }
}

/// An error with its causes, one after the other.
pub fn chain(error: &Error) -> String {
    let whole = causes(error).fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    ours(&said(&whole))
}

fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The error, who holds the lock, and the causes. `timed_out`: what a wait that is over means.
fn told(error: &Error, timed_out: &str) -> String {
    let mut lines = match error.kind() {
        // The text of such an error would name the holders too, on one line.
        ErrorKind::TimedOut | ErrorKind::Held if !error.holders().is_empty() => {
            let what = if error.kind() == ErrorKind::Held { HELD } else { timed_out };
            let place = error.store().map_or_else(String::new, |store| format!(" on {store}"));
            vec![format!("lock {:?}{place}: {what}", error.key().unwrap_or_default())]
        }
        _ => vec![error.to_string()],
    };
    lines.extend(error.holders().iter().map(|holder| format!("  held by {}", show::holder(holder))));
    lines.extend(error.lease().map(|lease| format!("  held by {}", show::lease_holder(lease))));
    lines.extend(causes(error).map(|cause| format!("  because: {cause}")));
    ours(&said(&lines.join("\n")))
}
