//! The errors of this store, and the one place that decides what an answer of the service means.

use google_cloud_gax::error::rpc::Status;
use google_cloud_spanner::Error as SdkError;

use crate::model::error::ErrorKind;
use crate::store::failure::{self, Cause, Failure, Fate, Words};

use super::open::ADMIN_ENDPOINT;

/// What the service says when it does not know a session.
pub(super) const NO_SESSION: &str = "Session not found";
/// What the service says when a text is too long for its column; the name of the column follows.
const TOO_LONG: &str = "exceeds the maximum size limit for this column:";
/// What the service says when a commit, which it has not done, would write a time that has not come by its own clock: a
/// repeat may come later than that time.
const TOO_EARLY: &str = "timestamps in the future";
/// What the service says, by status code, when it refuses the rows of a commit: nothing was written, and a repeat would
/// be refused as well. Each text has a space in it, which no name of a database or a session has.
const REFUSALS: [(&str, &str); 9] = [
    ("OUT_OF_RANGE", "Check constraint"),
    ("NOT_FOUND", "in parent table"),
    ("NOT_FOUND", "Row cannot be"),
    ("FAILED_PRECONDITION", "within the child table"),
    ("FAILED_PRECONDITION", "constraint violation"),
    ("FAILED_PRECONDITION", "key constraint"),
    ("FAILED_PRECONDITION", "generated column"),
    ("FAILED_PRECONDITION", "must not be NULL"),
    ("FAILED_PRECONDITION", "null value for"),
];

/// How far a transaction was when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its commit had not left this host.
    Reading,
    /// Its commit was sent once.
    Committing,
    /// An earlier commit of the transaction, whose answer is not known, may have happened.
    Repeating,
}

/// What went wrong with the database.
pub(super) type SpannerError = Failure<Own>;

/// The errors that only Cloud Spanner has.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Own {
    #[error("the database {database:?} does not exist; correct the path, or create the instance and the database")]
    NoDatabase { database: String },

    #[error("the database {database:?} has no table {table:?}; create_schema() makes it, or correct the table's name")]
    NoTable { database: String, table: String },

    #[error("access to {database:?} is denied; the credentials need the role roles/spanner.databaseUser on it")]
    Denied { database: String },

    #[error(
        "making the table in {database:?} is denied; the credentials need spanner.databases.updateDdl, which \
         roles/spanner.databaseAdmin has; schema() says what to ask for"
    )]
    MayNotMake { database: String },

    #[error(
        "no usable Google credentials were found, so nothing was sent; set GOOGLE_APPLICATION_CREDENTIALS, or correct the \
         file that it names, run `gcloud auth application-default login`, or set SPANNER_EMULATOR_HOST for the emulator"
    )]
    NoCredentials,

    #[error("there was no connection in the time that this call had; check the network and the credentials")]
    NotConnected,

    #[error("the service does not know the client's session any more; another one is being made")]
    NoSession,

    #[error(
        "the service does not accept the credentials any more, so nothing was written; a token may have ended while this host \
         was suspended: others are being asked for, unless the program has made them itself, and the call may be repeated"
    )]
    NotAccepted,

    #[error("the transaction was aborted again and again, or the service limits the rate; nothing was written")]
    Aborted,

    #[error("the commit has a time that has not come yet by the service's clock; nothing was written")]
    TooEarly,

    #[error(
        "the service refused the request as wrong; does the table {table:?} have all its columns and its index? \
         create_schema() adds what is missing"
    )]
    Invalid { table: String },

    #[error("the table {table:?} refuses the rows of locks; make it as schema() says")]
    Refused { table: String },

    #[error(
        "no answer came from {endpoint}, where the table is made by REST, which may have begun; repeat the call, correct \
         admin_endpoint=.. in the URL or the environment variable {ADMIN_ENDPOINT}, or check the network"
    )]
    NoAdmin { endpoint: String },

    #[error(
        "the key or another text is longer than its column takes ({column}); create_schema() makes the column \
         STRING(MAX)"
    )]
    TooLong { column: String },
}

impl failure::Own for Own {
    const WORDS: Words = Words {
        server: "service",
        sdk: "the SDK",
        row: "row",
        write: "commit",
        not_sent: "no answer came in the time that this call had, and nothing was written; check the network",
        unreachable: "the service can't be reached; check the network",
        check: "check the network",
        credentials: "the service does not accept the credentials; renew or correct them",
    };

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            Own::NoTable { .. } | Own::Invalid { .. } | Own::Refused { .. } => (ErrorKind::Schema, false),
            Own::Denied { .. } | Own::MayNotMake { .. } => (ErrorKind::Permission, false),
            Own::NoDatabase { .. } | Own::NoCredentials => (ErrorKind::Config, false),
            Own::NotConnected
            | Own::NoAdmin { .. }
            | Own::NoSession
            | Own::NotAccepted
            | Own::Aborted
            | Own::TooEarly => (ErrorKind::Store, true),
            Own::TooLong { .. } => (ErrorKind::InvalidInput, false),
        }
    }
}

impl SpannerError {
    /// What an error of the SDK means. `has_worked`: whether the service has answered this client before.
    pub fn classify(error: &SdkError, stage: Stage, has_worked: bool, database: &str, table: &str) -> (Fate, Self) {
        let cause = Cause::of(error);
        let (database, table) = (database.to_owned(), table.to_owned());
        let code = error.status().map(|status| status.code.name());
        let own = match code {
            // The answer to a repeat does not say whether the commit before it happened.
            _ if stage == Stage::Repeating => return unanswered(cause),
            Some("ABORTED") => Own::Aborted,
            Some("FAILED_PRECONDITION") if cause.says(TOO_EARLY) => Own::TooEarly,
            None if stage == Stage::Committing => return unanswered(cause),
            // Only if the client never worked and the fault is not transient: otherwise a token may be obtained in a
            // moment, or by a new client.
            None if error.is_authentication() && !has_worked && !error.is_transient_and_before_rpc() => {
                Own::NoCredentials
            }
            None => return (Fate::NotDone, SpannerError::Unreachable { cause }),
            Some("PERMISSION_DENIED") => Own::Denied { database },
            Some("UNAUTHENTICATED") if has_worked => Own::NotAccepted,
            Some("UNAUTHENTICATED") => return (Fate::NotDone, SpannerError::Credentials { cause }),
            Some("INVALID_ARGUMENT") if cause.says("Table not found") => Own::NoTable { database, table },
            Some("INVALID_ARGUMENT" | "ALREADY_EXISTS") => Own::Invalid { table },
            Some("FAILED_PRECONDITION") if cause.says(TOO_LONG) => {
                let column = error.status().and_then(|status| status.message.split(TOO_LONG).nth(1));
                let column = column.and_then(|rest| rest.split(',').next()).unwrap_or_default().trim().to_owned();
                Own::TooLong { column }
            }
            _ if stage == Stage::Committing && error.status().is_some_and(refuses_rows) => Own::Refused { table },
            // Also for the answer that the transaction is gone: it may be gone because it was committed.
            _ if stage == Stage::Committing => return unanswered(cause),
            Some("RESOURCE_EXHAUSTED") => Own::Aborted,
            Some("OUT_OF_RANGE") => Own::Invalid { table },
            Some("NOT_FOUND") if cause.says(NO_SESSION) => Own::NoSession,
            Some("NOT_FOUND") if cause.says("Database") || cause.says("Instance") || cause.says("Project") => {
                Own::NoDatabase { database }
            }
            Some("NOT_FOUND" | "FAILED_PRECONDITION" | "UNIMPLEMENTED") => {
                return (Fate::NotDone, SpannerError::Other { cause });
            }
            Some(_) => return (Fate::NotDone, SpannerError::Unreachable { cause }),
        };
        (Fate::NotDone, SpannerError::Own(own, Some(cause)))
    }
}

/// Whether a commit was refused because of its rows. The message may contain names that the user chose.
pub(super) fn refuses_rows(status: &Status) -> bool {
    REFUSALS.iter().any(|(code, part)| status.code.name() == *code && status.message.contains(part))
}

fn unanswered(cause: Cause) -> (Fate, SpannerError) {
    (Fate::Unknown, SpannerError::Unanswered { cause: Some(cause) })
}

#[cfg(test)]
mod tests {
    use google_cloud_gax::error::CredentialsError;
    use google_cloud_gax::error::rpc::Code;

    use super::*;
    use crate::model::error::Error;

    /// As when the metadata service of a host restarts while a token is renewed.
    #[test]
    fn a_token_that_can_not_be_had_for_a_moment_is_no_wrong_configuration() {
        let kind = |is_transient, has_worked| {
            let error = SdkError::authentication(CredentialsError::from_msg(is_transient, "no token"));
            let (fate, error) = SpannerError::classify(&error, Stage::Reading, has_worked, "d", "t");
            assert_eq!(fate, Fate::NotDone);
            let error = Error::from(error);
            (error.kind(), error.is_retryable())
        };
        assert_eq!(kind(true, false), (ErrorKind::Store, true));
        assert_eq!(kind(false, false), (ErrorKind::Config, false));
        // The SDK reports many passing faults as permanent, and does not try again: another client is made.
        assert_eq!(kind(false, true), (ErrorKind::Store, true));
    }

    #[test]
    fn what_the_table_refuses_for_good_was_not_written_by_the_first_commit() {
        let of = |stage, code, message: &str| {
            let error = SdkError::service(Status::default().set_code(code).set_message(message));
            let (fate, error) = SpannerError::classify(&error, stage, true, "d", "t");
            let error = Error::from(error);
            (fate, error.kind(), error.is_retryable())
        };
        for (code, message) in [
            (Code::OutOfRange, "Check constraint `t`.`c` is violated for key {String(\"k\")}"),
            (Code::NotFound, "Insert failed because key was not found in parent table:  Parent Table: par"),
            (Code::NotFound, "Parent row for row [k] in table t is missing. Row cannot be written."),
            (Code::FailedPrecondition, "Delete failed because one or more keys exist within the child table:  Parent"),
            (Code::FailedPrecondition, "Integrity constraint violation during DELETE/REPLACE. Found child row [k]"),
            (Code::FailedPrecondition, "Foreign key `f` constraint violation on table `t`. Cannot find referenced key"),
            (Code::FailedPrecondition, "Foreign key constraint `f` is violated on table `t`."),
            (Code::FailedPrecondition, "Cannot write into generated column `t.comment`."),
            (Code::FailedPrecondition, "A new row in table t does not specify a non-null value for NOT NULL column: x"),
            (Code::FailedPrecondition, "x must not be NULL in table t."),
        ] {
            let refused = (Fate::NotDone, ErrorKind::Schema, false);
            assert_eq!(of(Stage::Committing, code, message), refused, "{message}");
            assert_eq!(of(Stage::Repeating, code, message).0, Fate::Unknown, "{message}");
        }
        for (code, message) in [
            (Code::NotFound, "Transaction not found: 1"),
            (Code::NotFound, "Session not found: projects/p/instances/i/databases/constraint-parent/sessions/s"),
            (Code::FailedPrecondition, "This transaction has been invalidated by a later transaction in the session."),
            (Code::OutOfRange, "made by the proxy"),
            (Code::Unavailable, "Row cannot be written"),
            (Code::Internal, "Check constraint `t`.`c` is violated for key 1"),
        ] {
            assert_eq!(of(Stage::Committing, code, message).0, Fate::Unknown, "{message}");
        }
    }

    /// The SDK returns `ABORTED` where there is no time for another try. The other error is over when the service's clock
    /// has gone on.
    #[test]
    fn what_a_repeat_may_mend_says_that_nothing_was_written_of_the_first_commit_only() {
        for (code, message, says) in [
            (Code::Aborted, "", "aborted again and again"),
            (
                Code::FailedPrecondition,
                "Cannot write timestamps in the future, found: 2030-01-01T00:00:00Z",
                "has not come yet",
            ),
        ] {
            let error = SdkError::service(Status::default().set_code(code).set_message(message));
            let of = |stage| SpannerError::classify(&error, stage, true, "d", "t");
            let (fate, first) = of(Stage::Committing);
            assert_eq!([fate, of(Stage::Repeating).0], [Fate::NotDone, Fate::Unknown], "{message}");
            let first = Error::from(first);
            assert_eq!((first.kind(), first.is_retryable()), (ErrorKind::Store, true), "{message}");
            assert!(first.to_string().contains(says), "{first}");
        }
    }
}
