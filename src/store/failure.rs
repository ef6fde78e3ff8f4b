//! What can go wrong between this host and a server, as far as it is the same for all server stores. The `error` module
//! of each store says what an answer of its SDK means, and adds the errors that only its own server can report.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::lease::record::NewerFormat;
use crate::model::error::{Error, ErrorKind};
use crate::sys::driver::Stopped;

/// What became of a request that was not answered with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing was written, and a repeat may succeed: the request was in conflict with another one, was throttled, or
    /// never reached the server.
    NotDone,
    /// It may or may not have happened: no answer, or one that does not settle it.
    Unknown,
    /// Nothing was written, and a repeat is of no use.
    Refused,
    /// What the request would make exists already: another writer was faster.
    Duplicate,
}

/// Whether a request may have left this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    No,
    Maybe,
}

/// The words that a store's error texts use for its server and for what belongs to it.
pub(super) struct Words {
    pub server: &'static str,
    pub sdk: &'static str,
    /// What a record is stored in.
    pub row: &'static str,
    /// What a write sends.
    pub write: &'static str,
    pub not_sent: &'static str,
    pub unreachable: &'static str,
    /// What the user should look at if no answer came.
    pub check: &'static str,
    pub credentials: &'static str,
}

/// The errors that only the server of this store can report. Their `Display` is the message.
pub(super) trait Own: fmt::Debug + fmt::Display + Clone {
    const WORDS: Words;

    /// The kind, and whether a repeat may succeed.
    fn kind(&self) -> (ErrorKind, bool);
}

/// Why a request to a server failed.
#[derive(Clone, Debug)]
pub(super) enum Failure<S> {
    /// Nothing left this host in the time that the call had.
    NotSent,
    /// Nothing left this host: no server can be reached.
    Unreachable {
        cause: Cause,
    },
    /// A write may or may not have happened.
    Unanswered {
        cause: Option<Cause>,
    },
    /// A read was not answered.
    Unread {
        cause: Option<Cause>,
    },
    /// The server did not accept the credentials of this client.
    Credentials {
        cause: Cause,
    },
    /// The server refused, for a reason that is not known here.
    Other {
        cause: Cause,
    },
    /// The SDK panicked, or its thread ended, while a write was under way.
    Panicked,
    /// The SDK panicked before a write left this host.
    PanickedBefore,
    /// The thread of the SDK is gone.
    Ended,
    /// The server is still making the table.
    NotReady,
    /// The table is not as it must be.
    Schema(String),
    Damaged(String),
    NewerFormat(NewerFormat),
    /// The record to swap was read from another store.
    NotRead,
    Config(String),
    Own(S, Option<Cause>),
}

impl<S: Own> Failure<S> {
    /// The error of a write that took longer than its call had.
    pub fn overdue(took: Duration) -> Self {
        Failure::Unanswered { cause: Some(Cause::from(format!("no answer in {} ms", took.as_millis()))) }
    }

    /// The fate and the error of a write whose call was `stopped` after the time `took`.
    pub fn stopped(stopped: Stopped, left: Left, took: Duration) -> (Fate, Self) {
        match (stopped, left) {
            (Stopped::Over, Left::Maybe) => (Fate::Unknown, Self::overdue(took)),
            (Stopped::Panicked | Stopped::Ended, Left::Maybe) => (Fate::Unknown, Failure::Panicked),
            (Stopped::Over, Left::No) => (Fate::NotDone, Failure::NotSent),
            (Stopped::Panicked, Left::No) => (Fate::NotDone, Failure::PanickedBefore),
            (Stopped::Ended, Left::No) => (Fate::Refused, Failure::Ended),
        }
    }

    /// Makes this error of a later step `Unanswered`, for a write that is done, or of which an earlier copy may be
    /// done: the error says nothing about that write.
    #[cfg(any(feature = "dynamodb", feature = "mongodb"))]
    pub fn of_write(self) -> Self {
        let cause = match &self {
            // The text of `Damaged` says that the row is left as it is, which may not be true here.
            Failure::Damaged(what) => Cause::from(format!("the {} is damaged ({what})", S::WORDS.row)),
            error => Cause::from(error.to_string()),
        };
        Failure::Unanswered { cause: Some(self.cause().cloned().unwrap_or(cause)) }
    }

    /// The same error for a read. A read that was not answered leaves nothing in doubt.
    pub fn of_read(self) -> Self {
        match self {
            Failure::Unanswered { cause } => Failure::Unread { cause },
            Failure::Panicked => Failure::Unread { cause: Some(Cause::from(self.to_string())) },
            other => other,
        }
    }

    /// The error of a connect that was `stopped` before the client was made.
    pub fn unconnected(stopped: Stopped) -> Error {
        Self::stopped(stopped, Left::No, Duration::ZERO).1.into()
    }

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            Failure::NotSent
            | Failure::PanickedBefore
            | Failure::Unreachable { .. }
            | Failure::Unread { .. }
            | Failure::NotReady => (ErrorKind::Store, true),
            Failure::Unanswered { .. } | Failure::Panicked => (ErrorKind::Ambiguous, true),
            Failure::Credentials { .. } => (ErrorKind::Permission, false),
            Failure::Other { .. } | Failure::Ended => (ErrorKind::Store, false),
            Failure::Schema(_) | Failure::Damaged(_) | Failure::NewerFormat(_) => (ErrorKind::Schema, false),
            Failure::NotRead => (ErrorKind::InvalidInput, false),
            Failure::Config(_) => (ErrorKind::Config, false),
            Failure::Own(own, _) => own.kind(),
        }
    }

    /// Whether a repeat may help.
    pub fn may_pass(&self) -> bool {
        self.kind().1
    }

    /// What the SDK said.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Failure::Unreachable { cause } | Failure::Credentials { cause } | Failure::Other { cause } => Some(cause),
            Failure::Unanswered { cause } | Failure::Unread { cause } | Failure::Own(_, cause) => cause.as_ref(),
            _ => None,
        }
    }
}

impl<S: Own> fmt::Display for Failure<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words { server, sdk, row, write, not_sent, unreachable, check, credentials } = S::WORDS;
        match self {
            Failure::NotSent => f.write_str(not_sent),
            Failure::Unreachable { .. } => f.write_str(unreachable),
            Failure::Unanswered { .. } => {
                write!(f, "the {write} was sent, but no answer settled whether it happened")
            }
            Failure::Unread { .. } => write!(f, "no answer came; {check}, or repeat the call"),
            Failure::Credentials { .. } => f.write_str(credentials),
            Failure::Other { .. } => write!(f, "the {server} refused the request"),
            Failure::Panicked => write!(f, "{sdk} panicked, or its thread ended, during a request"),
            Failure::PanickedBefore => write!(f, "{sdk} panicked before a {write} was sent; repeat the call"),
            Failure::Ended => write!(f, "the thread that talks to the {server} has ended; connect again"),
            Failure::NotReady => write!(f, "the {server} has not made the table yet; repeat the call"),
            Failure::Damaged(what) => {
                let right = "it is left as it is: correct or delete it once nobody holds it";
                write!(f, "the {row} is damaged ({what}); {right}")
            }
            Failure::NewerFormat(found) => write!(f, "its {row} has {found}"),
            Failure::NotRead => f.write_str("the record to swap was not read from this store"),
            Failure::Schema(what) | Failure::Config(what) => f.write_str(what),
            Failure::Own(own, _) => write!(f, "{own}"),
        }
    }
}

impl<S: Own> StdError for Failure<S> {}

impl<S: Own> From<Failure<S>> for Error {
    fn from(failure: Failure<S>) -> Error {
        let (kind, retryable) = failure.kind();
        let error = Error::new(kind, failure.to_string());
        let error = if retryable { error.retryable() } else { error };
        match failure.cause() {
            Some(cause) => error.caused_by(cause.clone()),
            None => error,
        }
    }
}

impl<S> From<NewerFormat> for Failure<S> {
    fn from(found: NewerFormat) -> Self {
        Failure::NewerFormat(found)
    }
}

/// The text of an SDK's error, without requests and answers, because those hold grant ids.
#[derive(Clone)]
pub(super) struct Cause(String);

impl Cause {
    /// The texts of an error and of all its sources.
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            let told = source.to_string();
            if !text.contains(&told) {
                text.push_str(": ");
                text.push_str(&told);
            }
            next = source.source();
        }
        Cause(text)
    }

    pub fn says(&self, part: &str) -> bool {
        self.0.contains(part)
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Cause(text)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Cause {}
