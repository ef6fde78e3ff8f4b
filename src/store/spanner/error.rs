//! What can go wrong here: the one place that says what an answer of the service means.

use google_cloud_spanner::Error as SdkError;

use crate::lease::record::FORMAT_MAJOR;
use crate::model::error::{Error, ErrorKind};
use crate::store::failure::Cause;

use super::open::ADMIN_ENDPOINT;

/// What the service says when it does not know a session.
pub(super) const NO_SESSION: &str = "Session not found";
/// What the service says of a text that its column is too short for; the column's name follows.
const TOO_LONG: &str = "exceeds the maximum size limit for this column:";

/// What became of a transaction that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing was written.
    NotDone,
    /// Its commit was sent, and may or may not have happened.
    Unknown,
}

/// How far a transaction was when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its commit had not left this host.
    Reading,
    /// Its commit was sent once.
    Committing,
    /// An earlier commit of it, whose answer is not known, may have happened.
    Repeating,
}

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum SpannerError {
    #[error("the database {database:?} does not exist; correct the path, or create the instance and the database")]
    NoDatabase { database: String, cause: Cause },

    #[error("the database {database:?} has no table {table:?}; create_schema() makes it, or correct the table's name")]
    NoTable { database: String, table: String, cause: Option<Cause> },

    #[error("access to {database:?} is denied; the credentials need the role roles/spanner.databaseUser on it")]
    Denied { database: String, cause: Cause },

    #[error(
        "making the table in {database:?} is denied; the credentials need spanner.databases.updateDdl, which \
         roles/spanner.databaseAdmin has; schema() tells what to ask for"
    )]
    MayNotMake { database: String, cause: Cause },

    #[error("the service does not accept the credentials; renew or correct them")]
    Credentials { cause: Cause },

    #[error(
        "no Google credentials were found, so nothing was sent; set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth \
         application-default login`, or set SPANNER_EMULATOR_HOST for the emulator"
    )]
    NoCredentials { cause: Cause },

    #[error("there was no connection in the time that this call had; check the network and the credentials")]
    NotConnected,

    #[error("no answer came in the time that this call had, and nothing was written; check the network")]
    NotSent,

    #[error("the service does not know the client's session any more; another one is being made")]
    NoSession { cause: Cause },

    #[error("the service can't be reached; check the network")]
    Unreachable { cause: Cause },

    #[error("the transaction was aborted again and again, or the service limits the rate; nothing was written")]
    Aborted { cause: Cause },

    #[error("the commit was sent, but no answer settled whether it happened")]
    Unanswered { cause: Option<Cause> },

    #[error(
        "the service refused the request as wrong; does the table {table:?} have all its columns and its index? \
         create_schema() adds what is missing"
    )]
    Invalid { table: String, cause: Cause },

    #[error("the service refused the request")]
    Other { cause: Cause },

    #[error("the SDK panicked, or its thread ended, during a request")]
    Panicked,

    #[error("the thread that talks to the service has ended; connect again")]
    Ended,

    #[error("the service has not made the table yet; repeat the call")]
    NotReady,

    #[error(
        "no answer came from {endpoint}, where the table is made by REST, which may have begun; repeat the call, correct \
         admin_endpoint=.. in the URL or the environment variable {ADMIN_ENDPOINT}, or check the network"
    )]
    NoAdmin { endpoint: String, cause: Option<Cause> },

    #[error(
        "the key or another text is longer than its column takes ({column}); create_schema() makes the column \
         STRING(MAX)"
    )]
    TooLong { column: String, cause: Cause },

    #[error("{0}")]
    Table(String),

    #[error("the row is damaged ({0}); it is left as it is: correct or delete it once nobody holds it")]
    Damaged(String),

    #[error("its row has format {found:?}; this version of leasehold reads up to {FORMAT_MAJOR}.x")]
    NewerFormat { found: (u32, u32) },

    #[error("the record to swap was not read from this store")]
    NotRead,

    #[error("{0}")]
    Config(String),
}

impl SpannerError {
    /// What an error of the SDK means.
    pub fn classify(error: &SdkError, stage: Stage, database: &str, table: &str) -> (Fate, Self) {
        let cause = Cause::of(error);
        let (database, table) = (database.to_owned(), table.to_owned());
        let code = error.status().map(|status| status.code.name());
        let told = match code {
            // Of no other answer to a repeat is it known what the answer to the commit before it was.
            Some("ABORTED") => SpannerError::Aborted { cause },
            _ if stage == Stage::Repeating => return unanswered(cause),
            None if stage == Stage::Committing => return unanswered(cause),
            // Others may be had in a moment.
            None if error.is_authentication() && !error.is_transient_and_before_rpc() => {
                SpannerError::NoCredentials { cause }
            }
            None => SpannerError::Unreachable { cause },
            Some("PERMISSION_DENIED") => SpannerError::Denied { database, cause },
            Some("UNAUTHENTICATED") => SpannerError::Credentials { cause },
            Some("INVALID_ARGUMENT") if cause.says("Table not found") => {
                SpannerError::NoTable { database, table, cause: Some(cause) }
            }
            Some("INVALID_ARGUMENT" | "ALREADY_EXISTS") => SpannerError::Invalid { table, cause },
            Some("FAILED_PRECONDITION") if cause.says(TOO_LONG) => {
                let column = error.status().and_then(|status| status.message.split(TOO_LONG).nth(1));
                let column = column.and_then(|rest| rest.split(',').next()).unwrap_or_default().trim().to_owned();
                SpannerError::TooLong { column, cause }
            }
            // Also what says that the transaction is gone: it may be gone because it happened.
            _ if stage == Stage::Committing => return unanswered(cause),
            Some("RESOURCE_EXHAUSTED") => SpannerError::Aborted { cause },
            Some("OUT_OF_RANGE") => SpannerError::Invalid { table, cause },
            Some("NOT_FOUND") if cause.says(NO_SESSION) => SpannerError::NoSession { cause },
            Some("NOT_FOUND") if cause.says("Database") || cause.says("Instance") || cause.says("Project") => {
                SpannerError::NoDatabase { database, cause }
            }
            Some("NOT_FOUND" | "FAILED_PRECONDITION" | "UNIMPLEMENTED") => SpannerError::Other { cause },
            Some(_) => SpannerError::Unreachable { cause },
        };
        (Fate::NotDone, told)
    }

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            SpannerError::NoTable { .. }
            | SpannerError::Invalid { .. }
            | SpannerError::Table(_)
            | SpannerError::Damaged(_)
            | SpannerError::NewerFormat { .. } => (ErrorKind::Schema, false),
            SpannerError::Denied { .. } | SpannerError::MayNotMake { .. } | SpannerError::Credentials { .. } => {
                (ErrorKind::Permission, false)
            }
            SpannerError::NoDatabase { .. } | SpannerError::NoCredentials { .. } | SpannerError::Config(_) => {
                (ErrorKind::Config, false)
            }
            SpannerError::NotConnected
            | SpannerError::NotSent
            | SpannerError::NotReady
            | SpannerError::NoAdmin { .. }
            | SpannerError::NoSession { .. }
            | SpannerError::Unreachable { .. }
            | SpannerError::Aborted { .. } => (ErrorKind::Store, true),
            SpannerError::Unanswered { .. } | SpannerError::Panicked => (ErrorKind::Ambiguous, true),
            SpannerError::Other { .. } | SpannerError::Ended => (ErrorKind::Store, false),
            SpannerError::NotRead | SpannerError::TooLong { .. } => (ErrorKind::InvalidInput, false),
        }
    }

    fn cause(&self) -> Option<&Cause> {
        match self {
            SpannerError::NoTable { cause, .. }
            | SpannerError::NoAdmin { cause, .. }
            | SpannerError::Unanswered { cause } => cause.as_ref(),
            SpannerError::NoDatabase { cause, .. }
            | SpannerError::Denied { cause, .. }
            | SpannerError::MayNotMake { cause, .. }
            | SpannerError::Credentials { cause }
            | SpannerError::NoCredentials { cause }
            | SpannerError::NoSession { cause }
            | SpannerError::Unreachable { cause }
            | SpannerError::Aborted { cause }
            | SpannerError::Invalid { cause, .. }
            | SpannerError::TooLong { cause, .. }
            | SpannerError::Other { cause } => Some(cause),
            _ => None,
        }
    }
}

fn unanswered(cause: Cause) -> (Fate, SpannerError) {
    (Fate::Unknown, SpannerError::Unanswered { cause: Some(cause) })
}

impl From<SpannerError> for Error {
    fn from(error: SpannerError) -> Error {
        let (kind, retryable) = error.kind();
        let told = Error::new(kind, error.to_string());
        let told = if retryable { told.retryable() } else { told };
        match error.cause() {
            Some(cause) => told.caused_by(cause.clone()),
            None => told,
        }
    }
}

#[cfg(test)]
mod tests {
    use google_cloud_gax::error::CredentialsError;

    use super::*;

    /// As when the metadata service of a host restarts while a token is renewed.
    #[test]
    fn a_token_that_can_not_be_had_for_a_moment_is_no_wrong_configuration() {
        let kind = |is_transient| {
            let error = SdkError::authentication(CredentialsError::from_msg(is_transient, "no token"));
            let (fate, told) = SpannerError::classify(&error, Stage::Reading, "d", "t");
            assert_eq!(fate, Fate::NotDone);
            let told = Error::from(told);
            (told.kind(), told.is_retryable())
        };
        assert_eq!(kind(true), (ErrorKind::Store, true));
        assert_eq!(kind(false), (ErrorKind::Config, false));
    }
}
