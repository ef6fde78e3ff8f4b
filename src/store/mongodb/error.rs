//! What can go wrong here: the one place that says what an answer of the server means.

use mongodb::error::{Error as DriverError, ErrorKind as DriverKind, SYSTEM_OVERLOADED_ERROR, WriteFailure};

use crate::model::error::ErrorKind;
use crate::store::failure::{self, Cause, Failure, Fate, Words};

/// What went wrong with the collection.
pub(super) type MongodbError = Failure<Own>;

/// What only MongoDB says.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Own {
    #[error(
        "access is denied; the user needs find, insert, update and remove on the collection (the role readWrite), and \
         createIndex to make it; the database's administrator can grant them"
    )]
    Denied,

    #[error(
        "the server's TLS certificate is not trusted; name the authority that vouches for it by tlsCAFile, and the \
         server as its certificate does"
    )]
    Certificate,

    #[error("the server was in conflict or not the primary; nothing was written, and the call may be repeated")]
    Conflict,

    #[error(
        "the server does not accept the credentials any more, so nothing was written; it or where its users are kept may be \
         down for a moment, and the call may be repeated, else correct user and password"
    )]
    NotLetIn,

    #[error("the server has no room left; nothing was written, and the call may be repeated once it has")]
    Full,

    #[error("the server has no change streams")]
    NoStreams,

    #[error("an earlier copy of this request was given up, and this one came too late")]
    GivenUp,

    #[error("{0}")]
    Invalid(String),
}

impl failure::Own for Own {
    const WORDS: Words = Words {
        server: "server",
        sdk: "the driver",
        row: "document",
        write: "request",
        not_sent: "no request could be sent in the time that this call had; check the hosts and the network",
        unreachable: "no server could be reached that may be written; check the hosts, the network, TLS and the replica set",
        check: "check the hosts and the network",
        credentials: "the server does not accept the credentials; correct user, password and authSource",
    };

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            Own::Denied => (ErrorKind::Permission, false),
            Own::Certificate => (ErrorKind::Config, false),
            Own::Conflict | Own::Full | Own::GivenUp | Own::NotLetIn => (ErrorKind::Store, true),
            Own::NoStreams => (ErrorKind::Store, false),
            Own::Invalid(_) => (ErrorKind::InvalidInput, false),
        }
    }
}

/// These interrupt a write that may have happened: time limits, a shutdown, a change of the primary. 217: the write was
/// done, but its answer is no longer known.
const INTERRUPTED: [i32; 17] =
    [24, 50, 91, 100, 189, 217, 262, 355, 450, 453, 471, 473, 11600, 11601, 11602, 91_331, 10_045_600];
/// Network errors. A router reports them about its connection to the shard, to which it may have passed the write on.
const CUT_OFF: [i32; 6] = [6, 7, 89, 202, 407, 9001];
/// These come before anything is written.
const NOT_DONE: [i32; 6] = [112, 133, 134, 246, 10107, 13435];
/// A stale or recovering node, sharding that moves, too many requests, a cache that is full, writes that an operator
/// blocks; an index or a database that is dropped meanwhile; a read for which no majority could be reached.
const NOT_DONE_EITHER: [i32; 15] = [13436, 13388, 63, 150, 193, 234, 462, 165, 365, 371, 402, 433, 449, 175, 215];
/// If no list here has the code, these labels say that nothing was written, or that a repeat may succeed, of what may
/// have been written.
const NOTHING_WRITTEN: &str = "NoWritesPerformed";
const MAY_BE_WRITTEN: [&str; 2] = ["RetryableWriteError", SYSTEM_OVERLOADED_ERROR];
const DENIED: i32 = 13;
/// Atlas uses this code for everything that it does not allow. Only the text says what it is.
const ATLAS: i32 = 8000;
const DISK_FULL: i32 = 14031;
const CREDENTIALS: [i32; 3] = [11, 18, 334];
const DUPLICATE: [i32; 3] = [11000, 11001, 12582];
const TOO_OLD: i32 = 225;
const NO_NAMESPACE: i32 = 26;
const INVALID_DOCUMENT: i32 = 121;
const NO_STREAMS: i32 = 40573;
const NO_COLLECTION: &str = "the collection does not exist; create_schema() makes it";
const VALIDATED: &str = "a validator of the collection refuses the documents of locks; take it off, or keep the locks in a \
                         collection of their own";

impl MongodbError {
    /// What an error of the driver means. `sends`: how often the request may have left this host, if that matters. The
    /// driver repeats a write once, with the same number, and the server does it at most once. After that only an
    /// answer settles the outcome, and no error does.
    pub fn classify(error: &DriverError, sends: Option<u32>) -> (Fate, Self) {
        let (fate, failure) = one(error);
        match fate {
            // The request had no connection, and the driver says why none could be made.
            Fate::Unknown if sends == Some(0) => (Fate::NotDone, MongodbError::Unreachable { cause: cause(error) }),
            Fate::Unknown => (fate, failure),
            // An error that refused the second copy says nothing about the first, which may still arrive.
            _ if sends > Some(1) => unanswered(cause(error)),
            // The request got no connection, or the driver closed its connection while it waited for the answer.
            _ if sends > Some(0) && matches!(*error.kind, DriverKind::ConnectionPoolCleared { .. }) => {
                unanswered(cause(error))
            }
            _ => (fate, failure),
        }
    }

    /// The same for the answer of a router. A router repeats a numbered write by itself, and answers only for the last
    /// try. That try may have reached a server that was not the primary, after the first one was written.
    pub fn of_router((fate, failure): (Fate, Self)) -> (Fate, Self) {
        match failure {
            MongodbError::Own(Own::Conflict, cause) if fate == Fate::NotDone => {
                (Fate::Unknown, MongodbError::Unanswered { cause })
            }
            failure => (fate, failure),
        }
    }

    /// The same for a client that was let in before. Whatever goes wrong while the driver logs in, even a server that
    /// shuts down, it reports as wrong credentials.
    pub fn of_known_user((fate, failure): (Fate, Self)) -> (Fate, Self) {
        match failure {
            MongodbError::Credentials { cause } => (Fate::NotDone, MongodbError::Own(Own::NotLetIn, Some(cause))),
            failure => (fate, failure),
        }
    }

    /// Whether it says that there is no such collection.
    pub fn is_no_collection(&self) -> bool {
        matches!(self, MongodbError::Schema(text) if text == NO_COLLECTION)
    }

    /// Whether it says that there are no change streams, or none for this user.
    pub fn is_deaf(&self) -> bool {
        matches!(self, MongodbError::Own(Own::Denied | Own::NoStreams, _))
    }

    /// The error of an acquire that was refused while an earlier copy may still arrive.
    pub fn refused_after_copies() -> Self {
        MongodbError::Unanswered {
            cause: Some(Cause::from("the driver may have sent it twice, and the second was refused".to_owned())),
        }
    }
}

/// Whether this error came from a server, also while the driver logged in.
pub(super) fn is_answer(error: &DriverError) -> bool {
    matches!(*error.kind, DriverKind::Command(_) | DriverKind::Authentication { .. })
}

/// What the caller gave can't be stored here.
pub(super) fn invalid(what: String) -> MongodbError {
    MongodbError::Own(Own::Invalid(what), None)
}

fn unanswered(cause: Cause) -> (Fate, MongodbError) {
    (Fate::Unknown, MongodbError::Unanswered { cause: Some(cause) })
}

/// What one error means by itself.
fn one(error: &DriverError) -> (Fate, MongodbError) {
    let cause = cause(error);
    match error.kind.as_ref() {
        DriverKind::Command(command) => by_code(error, command.code, cause),
        DriverKind::Write(WriteFailure::WriteError(write)) => by_code(error, write.code, cause),
        // Also for a write that changed nothing, since it waits for the majority as well.
        DriverKind::Write(_) | DriverKind::InsertMany(_) | DriverKind::BulkWrite(_) => unanswered(cause),
        DriverKind::Authentication { .. } => (Fate::Refused, MongodbError::Credentials { cause }),
        DriverKind::ServerSelection { message, .. } if is_authentication(message) => {
            (Fate::Refused, MongodbError::Credentials { cause })
        }
        DriverKind::ServerSelection { message, .. } if is_certificate(message) => {
            (Fate::Refused, MongodbError::Own(Own::Certificate, Some(cause)))
        }
        DriverKind::ServerSelection { .. }
        | DriverKind::DnsResolve { .. }
        | DriverKind::ConnectionPoolCleared { .. } => (Fate::NotDone, MongodbError::Unreachable { cause }),
        DriverKind::InvalidArgument { .. }
        | DriverKind::InvalidTlsConfig { .. }
        | DriverKind::IncompatibleServer { .. } => (Fate::Refused, MongodbError::Config(cause.to_string())),
        DriverKind::SessionsNotSupported => (Fate::NotDone, MongodbError::Unreachable { cause }),
        DriverKind::Shutdown => (Fate::Refused, MongodbError::Ended),
        // A network error, or an answer that is not valid.
        _ => unanswered(cause),
    }
}

fn is_authentication(message: &str) -> bool {
    message.contains("Authentication failed") || message.contains("SCRAM failure")
}

/// Whether no server was trusted. If only some were not, they may be trusted later, or not be the next primary.
fn is_certificate(message: &str) -> bool {
    let untrusted = message.matches("invalid peer certificate").count();
    untrusted > 0 && untrusted >= message.matches("Address: ").count()
}

fn by_code(error: &DriverError, code: i32, cause: Cause) -> (Fate, MongodbError) {
    match code {
        TOO_OLD => (Fate::NotDone, MongodbError::Own(Own::GivenUp, Some(cause))),
        NO_STREAMS => (Fate::Refused, MongodbError::Own(Own::NoStreams, Some(cause))),
        NO_NAMESPACE => (Fate::Refused, MongodbError::Schema(NO_COLLECTION.to_owned())),
        INVALID_DOCUMENT => (Fate::Refused, MongodbError::Schema(VALIDATED.to_owned())),
        _ if INTERRUPTED.contains(&code) || CUT_OFF.contains(&code) => unanswered(cause),
        _ if DUPLICATE.contains(&code) => (Fate::Duplicate, MongodbError::Own(Own::Conflict, Some(cause))),
        _ if NOT_DONE.contains(&code) || NOT_DONE_EITHER.contains(&code) => {
            (Fate::NotDone, MongodbError::Own(Own::Conflict, Some(cause)))
        }
        DISK_FULL => (Fate::NotDone, MongodbError::Own(Own::Full, Some(cause))),
        ATLAS if text(error).contains("quota") => (Fate::NotDone, MongodbError::Own(Own::Full, Some(cause))),
        DENIED | ATLAS => (Fate::Refused, MongodbError::Own(Own::Denied, Some(cause))),
        _ if CREDENTIALS.contains(&code) => (Fate::Refused, MongodbError::Credentials { cause }),
        _ if error.contains_label(NOTHING_WRITTEN) => (Fate::NotDone, MongodbError::Own(Own::Conflict, Some(cause))),
        _ if MAY_BE_WRITTEN.iter().any(|label| error.contains_label(label)) => unanswered(cause),
        _ => (Fate::Refused, MongodbError::Other { cause }),
    }
}

/// What the server said about a command or a write.
fn text(error: &DriverError) -> &str {
    match error.kind.as_ref() {
        DriverKind::Command(command) => &command.message,
        DriverKind::Write(WriteFailure::WriteError(write)) => &write.message,
        _ => "",
    }
}

/// The server's code and words. Not the driver's whole text, which may quote a document.
fn cause(error: &DriverError) -> Cause {
    let told = match error.kind.as_ref() {
        DriverKind::Command(command) => {
            format!("{} ({}): {}", command.code_name, command.code, unquoted(&command.message))
        }
        DriverKind::Write(WriteFailure::WriteError(write)) if DUPLICATE.contains(&write.code) => {
            format!("write error {}: {}", write.code, unquoted(&write.message))
        }
        DriverKind::Write(WriteFailure::WriteError(write)) => format!("write error {}", write.code),
        DriverKind::Write(WriteFailure::WriteConcernError(concern)) => {
            format!("{} ({}): {}", concern.code_name, concern.code, concern.message)
        }
        DriverKind::InsertMany(_) | DriverKind::BulkWrite(_) => "the write failed".to_owned(),
        kind => kind.to_string(),
    };
    Cause::from(told)
}

/// The message without what it quotes: a denial quotes the whole command, and a duplicate-key error, after the name of
/// its index, the values of a document.
fn unquoted(message: &str) -> &str {
    let quotes = [" to execute command {", " collation: {", " dup key: {"];
    quotes.iter().fold(message, |rest, quote| rest.split(quote).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{doc, from_document};
    use mongodb::error::CommandError;

    use super::*;
    use crate::model::error::Error;

    #[test]
    fn a_router_never_says_that_nothing_was_written() {
        let of = |code: i32| {
            let answer: CommandError = from_document(doc! { "code": code }).unwrap();
            let told = MongodbError::classify(&DriverKind::Command(answer).into(), Some(1));
            (told.0, MongodbError::of_router(told).0)
        };
        // Not the primary, in conflict; a chunk that moved.
        for code in [10107, 13435, 112, 63, 371, 433, 449] {
            assert_eq!(of(code), (Fate::NotDone, Fate::Unknown), "{code}");
        }
        // Another made the document; a newer write of the session was done; access is denied.
        for (code, fate) in [(11000, Fate::Duplicate), (225, Fate::NotDone), (13, Fate::Refused)] {
            assert_eq!(of(code), (fate, fate), "{code}");
        }
        // Cut off on the way to the shard. An unknown code is what most damaged documents cause.
        assert_eq!(of(407), (Fate::Unknown, Fate::Unknown));
        assert_eq!(of(987_654), (Fate::Refused, Fate::Refused));
        // An error that refused the driver's second copy says nothing about the first.
        for code in [11000, 112, 13] {
            let answer: CommandError = from_document(doc! { "code": code }).unwrap();
            assert_eq!(MongodbError::classify(&DriverKind::Command(answer).into(), Some(2)).0, Fate::Unknown, "{code}");
        }
        // The router got no request.
        let (fate, _) = MongodbError::of_router((Fate::NotDone, MongodbError::NotSent));
        assert_eq!(fate, Fate::NotDone);
    }

    #[test]
    fn a_server_without_room_denies_nothing() {
        let of = |code: i32, text: &str| {
            let answer: CommandError =
                from_document(doc! { "code": code, "codeName": "AtlasError", "errmsg": text }).unwrap();
            MongodbError::classify(&DriverKind::Command(answer).into(), Some(1))
        };
        for (code, text) in [(8000, "you are over your space quota, using 513 MB of 512 MB"), (14031, "no disk space")]
        {
            let (fate, failure) = of(code, text);
            assert_eq!((fate, Error::from(failure).kind()), (Fate::NotDone, ErrorKind::Store), "{text}");
        }
        let (fate, failure) = of(8000, "user is not allowed to do action [find] on [test.locks]");
        assert_eq!((fate, Error::from(failure).kind()), (Fate::Refused, ErrorKind::Permission));
    }
}
