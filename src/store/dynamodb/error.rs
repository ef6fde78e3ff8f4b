//! What can go wrong here: the one place that says what an answer of the service means.

use std::error::Error as StdError;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use super::send::Target;
use crate::lease::record::FORMAT_MAJOR;
use crate::model::error::{Error, ErrorKind};
use crate::store::cause::Cause;

/// What became of a request that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing was written, and a repeat may succeed: throttled, in conflict, or it never got there.
    NotDone,
    /// It may or may not have happened: no answer, or one that does not settle it.
    Unknown,
    /// Nothing was written, and a repeat is of no use.
    Refused,
}

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum DynamodbError {
    #[error(
        "the table {table:?} does not exist in this region and account; create_schema() makes it, or correct the \
         table, the region or the credentials"
    )]
    NoTable { table: String, cause: Cause },

    #[error(
        "access is denied; the credentials need dynamodb:GetItem, UpdateItem, DeleteItem and Scan on the table {table:?}"
    )]
    Denied { table: String, cause: Cause },

    #[error(
        "access is denied; to make the table {table:?} as it shall be the credentials need dynamodb:{right}; schema() \
         tells what to ask for"
    )]
    MayNotMake { table: String, right: &'static str, cause: Cause },

    #[error("the service has not made the table yet; repeat the call")]
    NotReady,

    #[error(
        "the service does not accept the credentials or the signature; renew or correct the credentials, and see that \
         this host's wall clock is not minutes off"
    )]
    Credentials { cause: Cause },

    #[error(
        "no AWS credentials were found, so nothing was sent; tried: environment, profile, web identity, container, \
         instance metadata (aws_config's default chain)"
    )]
    NoCredentials { cause: Cause },

    #[error(
        "the AWS credentials could not be loaded, so nothing was sent; a refresh may fail for a moment, else correct what \
         they come from"
    )]
    NotRefreshed { cause: Cause },

    #[error(
        "no request could be sent in the time that this call had; check the endpoint, the network and the credentials"
    )]
    NotSent,

    #[error("the service can't be reached; check the endpoint, the region and the network")]
    Unreachable { cause: Cause },

    #[error(
        "the service limits the rate of requests or was in conflict; nothing was written, and the call may be repeated"
    )]
    Throttled { cause: Cause },

    #[error("the request was sent, but no answer settled whether it happened")]
    Unanswered { cause: Cause },

    #[error(
        "the answer's time contradicts those before: the clock of this host or of the service has jumped; repeat the call"
    )]
    Jumped,

    #[error("no answer came; check the endpoint, the region and the network, or repeat the call")]
    Unread { cause: Cause },

    #[error(
        "the service refused the request as wrong; is the table's key the string {partition_key:?}, and nothing else?"
    )]
    Invalid { partition_key: String, cause: Cause },

    #[error("the row would be larger than the service allows (400 KB): too many shared holders, or too long texts")]
    TooLarge { cause: Cause },

    #[error("the request's condition would be longer than the service allows (4 KB): too many shared holders at once")]
    LongExpression { cause: Cause },

    #[error("the service refused the request")]
    Other { cause: Cause },

    #[error("the AWS SDK panicked, or its thread ended, during a request")]
    Panicked,

    #[error("the thread that talks to the service has ended; connect again")]
    Ended,

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

impl DynamodbError {
    /// The error of a call that took longer than it had.
    pub fn overdue(took: Duration) -> Self {
        DynamodbError::Unanswered { cause: Cause::from(format!("no answer in {} ms", took.as_millis())) }
    }

    /// What an error of the SDK means. `sent`: the request may have left this host.
    pub fn classify<E>(error: &SdkError<E, HttpResponse>, sent: bool, place: &Target) -> (Fate, Self)
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let Some(answer) = error.as_service_error() else {
            return transport(error, sent, place.has_sent());
        };
        let code = answer.code().unwrap_or_default();
        let message = answer.message().unwrap_or("without a message");
        let cause = Cause::from(format!("{code}: {message}"));
        let status = error.raw_response().map_or(0, |response| response.status().as_u16());
        let table = place.table.clone();
        match code {
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "LimitExceededException"
            | "TransactionConflictException"
            | "TransactionInProgressException"
            | "ReplicatedWriteConflictException" => (Fate::NotDone, DynamodbError::Throttled { cause }),
            "ResourceNotFoundException" | "TableNotFoundException" => {
                (Fate::Refused, DynamodbError::NoTable { table, cause })
            }
            "AccessDeniedException" => (Fate::Refused, DynamodbError::Denied { table, cause }),
            "ExpiredTokenException"
            | "ExpiredToken"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignature"
            | "InvalidClientTokenId"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "RequestExpired" => (Fate::Refused, DynamodbError::Credentials { cause }),
            "ItemCollectionSizeLimitExceededException" => (Fate::Refused, DynamodbError::TooLarge { cause }),
            "ValidationException" if message.contains("Item size") => {
                (Fate::Refused, DynamodbError::TooLarge { cause })
            }
            "ValidationException" if message.contains("xpression size") => {
                (Fate::Refused, DynamodbError::LongExpression { cause })
            }
            "ValidationException" => {
                (Fate::Refused, DynamodbError::Invalid { partition_key: place.partition_key.clone(), cause })
            }
            _ if status == 429 => (Fate::NotDone, DynamodbError::Throttled { cause }),
            // Also what was done, but whose answer can't be read.
            _ if !(300..500).contains(&status) => (Fate::Unknown, DynamodbError::Unanswered { cause }),
            _ => (Fate::Refused, DynamodbError::Other { cause }),
        }
    }

    /// A read that was not answered is no more than that.
    pub fn of_read(self) -> Self {
        match self {
            DynamodbError::Unanswered { cause } => DynamodbError::Unread { cause },
            other => other,
        }
    }

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            DynamodbError::NoTable { .. }
            | DynamodbError::Invalid { .. }
            | DynamodbError::Table(_)
            | DynamodbError::Damaged(_)
            | DynamodbError::NewerFormat { .. } => (ErrorKind::Schema, false),
            DynamodbError::Denied { .. } | DynamodbError::MayNotMake { .. } | DynamodbError::Credentials { .. } => {
                (ErrorKind::Permission, false)
            }
            DynamodbError::NoCredentials { .. } | DynamodbError::Config(_) => (ErrorKind::Config, false),
            DynamodbError::NotSent
            | DynamodbError::NotRefreshed { .. }
            | DynamodbError::NotReady
            | DynamodbError::Unread { .. }
            | DynamodbError::Unreachable { .. }
            | DynamodbError::Throttled { .. } => (ErrorKind::Store, true),
            DynamodbError::Unanswered { .. } | DynamodbError::Jumped | DynamodbError::Panicked => {
                (ErrorKind::Ambiguous, true)
            }
            DynamodbError::Other { .. } | DynamodbError::Ended => (ErrorKind::Store, false),
            DynamodbError::NotRead | DynamodbError::TooLarge { .. } | DynamodbError::LongExpression { .. } => {
                (ErrorKind::InvalidInput, false)
            }
        }
    }

    fn cause(&self) -> Option<&Cause> {
        match self {
            DynamodbError::NoTable { cause, .. }
            | DynamodbError::Denied { cause, .. }
            | DynamodbError::MayNotMake { cause, .. }
            | DynamodbError::Unread { cause }
            | DynamodbError::Credentials { cause }
            | DynamodbError::NoCredentials { cause }
            | DynamodbError::NotRefreshed { cause }
            | DynamodbError::Unreachable { cause }
            | DynamodbError::Throttled { cause }
            | DynamodbError::Unanswered { cause }
            | DynamodbError::Invalid { cause, .. }
            | DynamodbError::TooLarge { cause }
            | DynamodbError::LongExpression { cause }
            | DynamodbError::Other { cause } => Some(cause),
            _ => None,
        }
    }
}

impl From<DynamodbError> for Error {
    fn from(error: DynamodbError) -> Error {
        let (kind, retryable) = error.kind();
        let told = Error::new(kind, error.to_string());
        let told = if retryable { told.retryable() } else { told };
        match error.cause() {
            Some(cause) => told.caused_by(cause.clone()),
            None => told,
        }
    }
}

/// No answer of the service. `has_sent`: an earlier request was sent, so there were credentials and a right
/// configuration, and what is wrong now may pass.
fn transport<E>(error: &SdkError<E, HttpResponse>, sent: bool, has_sent: bool) -> (Fate, DynamodbError)
where
    E: StdError + 'static,
{
    let cause = Cause::of(error);
    let refused = of_type::<std::io::Error>(error).is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
    if refused {
        // Only connecting fails so.
        return (Fate::NotDone, DynamodbError::Unreachable { cause });
    }
    if sent {
        return (Fate::Unknown, DynamodbError::Unanswered { cause });
    }
    match (of_type::<CredentialsError>(error), error) {
        (Some(CredentialsError::CredentialsNotLoaded(_)), _) if !has_sent => {
            (Fate::Refused, DynamodbError::NoCredentials { cause })
        }
        (Some(CredentialsError::InvalidConfiguration(_)), _) if !has_sent => {
            (Fate::Refused, DynamodbError::Config(cause.to_string()))
        }
        (Some(_), _) => (Fate::NotDone, DynamodbError::NotRefreshed { cause }),
        (None, SdkError::ConstructionFailure(_)) if !has_sent => {
            (Fate::Refused, DynamodbError::Config(cause.to_string()))
        }
        _ => (Fate::NotDone, DynamodbError::Unreachable { cause }),
    }
}

/// The error of this type, or the one beneath it.
fn of_type<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
