//! What can go wrong here: the one place that says what an answer of the service means.

use google_cloud_spanner::Error as SdkError;

use crate::backend::cause::Cause;
use crate::error::{Error, ErrorKind};
use crate::lease::record::FORMAT_MAJOR;

/// What became of a transaction that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing was written.
    NotDone,
    /// Its commit was sent, and may or may not have happened.
    Unknown,
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

    #[error("the service can't be reached; check the network")]
    Unreachable { cause: Cause },

    #[error("the transaction was aborted again and again, or the service limits the rate; nothing was written")]
    Aborted { cause: Cause },

    #[error("the commit was sent, but no answer settled whether it happened")]
    Unanswered { cause: Option<Cause> },

    #[error("the service refused the request as wrong; does the table {table:?} have all its columns?")]
    Invalid { table: String, cause: Cause },

    #[error("the service refused the request")]
    Other { cause: Cause },

    #[error("the SDK panicked or was ended during a request, and what that did is not known")]
    Panicked,

    #[error("the thread that talks to the service has ended; connect again")]
    Ended,

    #[error("the service has not made the table yet; repeat the call")]
    NotReady,

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
    /// What an error of the SDK means. `committing`: the commit may have left this host.
    pub fn classify(error: &SdkError, committing: bool, database: &str, table: &str) -> (Fate, Self) {
        let cause = Cause::of(error);
        let (database, table) = (database.to_owned(), table.to_owned());
        let Some(status) = error.status() else {
            if committing {
                return (Fate::Unknown, SpannerError::Unanswered { cause: Some(cause) });
            }
            let told = if error.is_authentication() {
                SpannerError::NoCredentials { cause }
            } else {
                SpannerError::Unreachable { cause }
            };
            return (Fate::NotDone, told);
        };
        let told = match status.code.name() {
            "ABORTED" | "RESOURCE_EXHAUSTED" => SpannerError::Aborted { cause },
            "PERMISSION_DENIED" => SpannerError::Denied { database, cause },
            "UNAUTHENTICATED" => SpannerError::Credentials { cause },
            "INVALID_ARGUMENT" if cause.says("Table not found") => {
                SpannerError::NoTable { database, table, cause: Some(cause) }
            }
            "INVALID_ARGUMENT" | "OUT_OF_RANGE" | "ALREADY_EXISTS" => SpannerError::Invalid { table, cause },
            // Also what says that the transaction is gone: it may be gone because it happened.
            _ if committing => return (Fate::Unknown, SpannerError::Unanswered { cause: Some(cause) }),
            "NOT_FOUND" if cause.says("Database") || cause.says("Instance") || cause.says("Project") => {
                SpannerError::NoDatabase { database, cause }
            }
            "NOT_FOUND" | "FAILED_PRECONDITION" | "UNIMPLEMENTED" => SpannerError::Other { cause },
            _ => SpannerError::Unreachable { cause },
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
            | SpannerError::Unreachable { .. }
            | SpannerError::Aborted { .. } => (ErrorKind::Store, true),
            SpannerError::Unanswered { .. } | SpannerError::Panicked => (ErrorKind::Ambiguous, true),
            SpannerError::Other { .. } | SpannerError::Ended => (ErrorKind::Store, false),
            SpannerError::NotRead => (ErrorKind::InvalidInput, false),
        }
    }

    fn cause(&self) -> Option<&Cause> {
        match self {
            SpannerError::NoTable { cause, .. } | SpannerError::Unanswered { cause } => cause.as_ref(),
            SpannerError::NoDatabase { cause, .. }
            | SpannerError::Denied { cause, .. }
            | SpannerError::MayNotMake { cause, .. }
            | SpannerError::Credentials { cause }
            | SpannerError::NoCredentials { cause }
            | SpannerError::Unreachable { cause }
            | SpannerError::Aborted { cause }
            | SpannerError::Invalid { cause, .. }
            | SpannerError::Other { cause } => Some(cause),
            _ => None,
        }
    }
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
