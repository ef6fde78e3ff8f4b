//! What can go wrong here: the one place that says what an answer of the service means.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use super::target::Target;
use crate::model::error::ErrorKind;
use crate::store::failure::{self, Cause, Failure, Fate, Left, Words};

/// What went wrong with the table.
pub(super) type DynamodbError = Failure<Own>;

/// What only DynamoDB says.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Own {
    #[error(
        "the table {table:?} does not exist in this region and account; create_schema() makes it, or correct the \
         table, the region or the credentials"
    )]
    NoTable { table: String },

    #[error(
        "access to the table {table:?} is denied; locks need dynamodb:GetItem and UpdateItem, lists and groups also Scan, a purge also \
         Scan and DeleteItem; the cause says which is missing"
    )]
    Denied { table: String },

    #[error(
        "access is denied; to make the table {table:?} as it must be the credentials need dynamodb:{right}; schema() \
         says what to ask for"
    )]
    MayNotMake { table: String, right: &'static str },

    #[error(
        "no AWS credentials were found, so nothing was sent; tried: environment, profile, web identity, container, \
         instance metadata (aws_config's default chain)"
    )]
    NoCredentials,

    #[error(
        "the AWS credentials could not be loaded, so nothing was sent; a refresh may fail for a moment, else correct what \
         they come from"
    )]
    NotRefreshed,

    #[error(
        "the service does not accept the credentials or the signature any more, so nothing was written; a token may just have \
         ended or a key been replaced, or this host have stood still for minutes: the call may be repeated"
    )]
    NotAccepted,

    #[error(
        "the service limits the rate of requests or was in conflict; nothing was written, and the call may be repeated"
    )]
    Throttled,

    #[error(
        "the service does not accept the credentials or the signature; renew or correct the credentials, or this host's \
         wall clock is minutes off and something on the way hides the service's Date, by which requests are signed"
    )]
    NotAcceptedUntold,

    #[error(
        "the answers have no headers Date and x-amzn-RequestId of the service's own, from which its time is known; a proxy \
         must pass them on (nginx: proxy_pass_header Date and Server) and cache nothing (Age)"
    )]
    Untold,

    #[error(
        "the answer's time contradicts those before: the clock of this host or of the service has jumped; repeat the call"
    )]
    Jumped,

    #[error(
        "the service refused the request as wrong; is the table's key {key}, and nothing else? Options are partition_key=.. and \
         sort_key=NAME:VALUE"
    )]
    Invalid { key: String },

    #[error("the row would be larger than the service allows (400 KB): too many shared holders, or too long texts")]
    TooLarge,

    #[error("the request's condition would be longer than the service allows (4 KB): too many shared holders at once")]
    LongExpression,
}

impl failure::Own for Own {
    const WORDS: Words = Words {
        server: "service",
        sdk: "the AWS SDK",
        row: "row",
        write: "request",
        not_sent: "no request could be sent in the time that this call had; check the endpoint, the network and the credentials",
        unreachable: "the service can't be reached; check the endpoint, the region and the network",
        check: "check the endpoint, the region and the network",
        credentials: "the service does not accept the credentials or the signature; renew or correct the credentials",
    };

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            Own::NoTable { .. } | Own::Invalid { .. } => (ErrorKind::Schema, false),
            Own::Denied { .. } | Own::MayNotMake { .. } | Own::NotAcceptedUntold => (ErrorKind::Permission, false),
            Own::NoCredentials => (ErrorKind::Config, false),
            Own::NotRefreshed | Own::NotAccepted | Own::Throttled | Own::Untold => (ErrorKind::Store, true),
            Own::Jumped => (ErrorKind::Ambiguous, true),
            Own::TooLarge | Own::LongExpression => (ErrorKind::InvalidInput, false),
        }
    }
}

impl DynamodbError {
    /// What an error of the SDK means, for a request to this table.
    pub fn classify<E>(error: &SdkError<E, HttpResponse>, left: Left, target: &Target) -> (Fate, Self)
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let Some(answer) = error.as_service_error() else {
            return transport(error, left, target);
        };
        let code = answer.code().unwrap_or_default();
        let message = answer.message().unwrap_or("without a message");
        let status = error.raw_response().map_or(0, |response| response.status().as_u16());
        let cause = Cause::from(match code {
            // A page of some other server. Nothing of it is shown.
            "" => format!("HTTP {status}, which is no answer of DynamoDB: is there a proxy or portal on the way?"),
            // If a signature does not match, the message has, below its first line, the request as it should have been
            // signed, with the session's token.
            _ => format!("{code}: {}", message.lines().next().unwrap_or_default()),
        });
        let table = target.table.clone();
        match code {
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "LimitExceededException"
            | "TransactionConflictException"
            | "TransactionInProgressException"
            | "ReplicatedWriteConflictException" => (Fate::NotDone, DynamodbError::Own(Own::Throttled, Some(cause))),
            "ResourceNotFoundException" | "TableNotFoundException" => {
                (Fate::Refused, DynamodbError::Own(Own::NoTable { table }, Some(cause)))
            }
            "AccessDeniedException" => (Fate::Refused, DynamodbError::Own(Own::Denied { table }, Some(cause))),
            // The next request may succeed: it has other credentials, also if the service does not know these any more
            // or not yet, or it is signed by the time from this answer.
            "ExpiredTokenException"
            | "ExpiredToken"
            | "InvalidSignatureException"
            | "RequestExpired"
            | "UnrecognizedClientException"
                if target.was_accepted() =>
            {
                (Fate::NotDone, DynamodbError::Own(Own::NotAccepted, Some(cause)))
            }
            "ExpiredTokenException"
            | "ExpiredToken"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignature"
            | "InvalidClientTokenId"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "RequestExpired" => (Fate::Refused, DynamodbError::Credentials { cause }),
            "ItemCollectionSizeLimitExceededException" => {
                (Fate::Refused, DynamodbError::Own(Own::TooLarge, Some(cause)))
            }
            "ValidationException" if message.contains("Item size") => {
                (Fate::Refused, DynamodbError::Own(Own::TooLarge, Some(cause)))
            }
            "ValidationException" if message.contains("xpression size") => {
                (Fate::Refused, DynamodbError::Own(Own::LongExpression, Some(cause)))
            }
            "ValidationException" => {
                (Fate::Refused, DynamodbError::Own(Own::Invalid { key: target.described() }, Some(cause)))
            }
            _ if status == 429 => (Fate::NotDone, DynamodbError::Own(Own::Throttled, Some(cause))),
            // This includes a request that was done but whose answer can't be read, and one that a proxy passed on
            // without waiting for the answer.
            _ if status == 408 || !(300..500).contains(&status) => {
                (Fate::Unknown, DynamodbError::Unanswered { cause: Some(cause) })
            }
            _ => (Fate::Refused, DynamodbError::Other { cause }),
        }
    }
}

/// The service's code for this error.
pub(super) fn code<E>(error: &SdkError<E, HttpResponse>) -> Option<&str>
where
    E: ProvideErrorMetadata,
{
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}

/// What an error without an answer of the service means. If an earlier request was sent, there were credentials and a
/// right configuration then, and what is wrong now may pass.
fn transport<E>(error: &SdkError<E, HttpResponse>, left: Left, target: &Target) -> (Fate, DynamodbError)
where
    E: StdError + 'static,
{
    let cause = Cause::of(error);
    // A request counts as left before the SDK looks for a connection. Before that, only a source of credentials has
    // connected to something.
    if left == Left::Maybe {
        // Only connecting fails in these two ways, so nothing was sent; the second one is what the HTTP client says of
        // names, routes and TLS.
        let io = of_type::<std::io::Error>(error).map(std::io::Error::kind);
        let http = of_type::<hyper_util::client::legacy::Error>(error);
        if io == Some(std::io::ErrorKind::ConnectionRefused) || http.is_some_and(|http| http.is_connect()) {
            return (Fate::NotDone, DynamodbError::Unreachable { cause });
        }
        return (Fate::Unknown, DynamodbError::Unanswered { cause: Some(cause) });
    }
    let has_sent = target.has_sent();
    match (of_type::<CredentialsError>(error), error) {
        (Some(CredentialsError::CredentialsNotLoaded(_)), _) if !has_sent => {
            (Fate::Refused, DynamodbError::Own(Own::NoCredentials, Some(cause)))
        }
        (Some(CredentialsError::InvalidConfiguration(_)), _) if !has_sent => {
            (Fate::Refused, DynamodbError::Config(cause.to_string()))
        }
        (Some(_), _) => (Fate::NotDone, DynamodbError::Own(Own::NotRefreshed, Some(cause))),
        (None, SdkError::ConstructionFailure(_)) if !has_sent => {
            (Fate::Refused, DynamodbError::Config(cause.to_string()))
        }
        _ => (Fate::NotDone, DynamodbError::Unreachable { cause }),
    }
}

/// The first error of this type in the chain of sources.
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use aws_credential_types::Credentials;
    use aws_credential_types::provider::{ProvideCredentials, future};
    use aws_sdk_dynamodb::config::retry::RetryConfig;
    use aws_sdk_dynamodb::config::{BehaviorVersion, IdentityCache, Region};
    use aws_sdk_dynamodb::operation::get_item::GetItemError;
    use aws_sdk_dynamodb::types::AttributeValue;
    use aws_sdk_dynamodb::{Client, Config};

    use super::*;
    use crate::model::error::Error;
    use crate::sys::driver::Stopped;

    type Failed = SdkError<GetItemError, HttpResponse>;

    /// Why a request to this endpoint fails.
    fn failed(endpoint: &str, credentials: impl ProvideCredentials + 'static) -> Failed {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .credentials_provider(credentials)
            .identity_cache(IdentityCache::no_cache())
            .endpoint_url(endpoint)
            .retry_config(RetryConfig::disabled());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let key = AttributeValue::S("k".to_owned());
        let request = Client::from_conf(config.build()).get_item().table_name("locks").key("key", key);
        runtime.block_on(request.send()).unwrap_err()
    }

    fn told(error: &Failed, left: Left) -> (Fate, DynamodbError) {
        DynamodbError::classify(error, left, &Target::new("locks", "key", None))
    }

    /// What becomes of a request to this endpoint.
    fn asked(endpoint: &str) -> (Fate, DynamodbError) {
        told(&failed(endpoint, Credentials::new("key", "secret", None, None, "test")), Left::Maybe)
    }

    /// A source that fails in this way.
    #[derive(Debug)]
    struct Fails(fn() -> CredentialsError);

    impl ProvideCredentials for Fails {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::ready(Err((self.0)()))
        }
    }

    /// No label is as long, so the resolver asks nobody.
    fn nowhere() -> String {
        format!("http://{}", "a".repeat(70))
    }

    /// The same at a server that reads the first bytes and ends the connection.
    fn asked_and_cut(scheme: &str) -> (Fate, DynamodbError) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let endpoint = format!("{scheme}://{address}");
        let cuts = std::thread::spawn(move || server.accept().unwrap().0.read(&mut [0; 16]).unwrap());
        let told = asked(&endpoint);
        // If no connection came, the thread waits for one.
        drop(TcpStream::connect(address));
        assert!(cuts.join().unwrap() > 0, "{scheme}: nothing came");
        told
    }

    #[test]
    fn what_got_no_connection_was_not_sent_and_what_got_one_may_have_been() {
        let (fate, error) = asked_and_cut("https");
        assert!(fate == Fate::NotDone && matches!(error, DynamodbError::Unreachable { .. }), "TLS: {error:?}");
        let (fate, error) = asked(&nowhere());
        assert!(fate == Fate::NotDone && matches!(error, DynamodbError::Unreachable { .. }), "a name: {error:?}");
        let (fate, error) = asked_and_cut("http");
        assert!(fate == Fate::Unknown && matches!(error, DynamodbError::Unanswered { .. }), "HTTP: {error:?}");
    }

    /// The service itself may well be there.
    #[test]
    fn a_source_of_credentials_that_is_not_reached_is_told_as_that() {
        fn refused() -> std::io::Error {
            std::io::ErrorKind::ConnectionRefused.into()
        }
        let of: [fn() -> CredentialsError; 3] = [
            || CredentialsError::provider_error(refused()),
            // As of another service, like STS.
            || {
                let theirs =
                    std::thread::spawn(|| failed(&nowhere(), Credentials::new("key", "secret", None, None, "")));
                CredentialsError::provider_error(theirs.join().unwrap())
            },
            || CredentialsError::invalid_configuration(refused()),
        ];
        let [io, http, config] = of.map(|fails| told(&failed("http://127.0.0.1:1", Fails(fails)), Left::No));
        for (fate, error) in [io, http] {
            let is_theirs = matches!(error, DynamodbError::Own(Own::NotRefreshed, _));
            assert!(fate == Fate::NotDone && is_theirs, "{error:?}");
        }
        assert!(config.0 == Fate::Refused && matches!(config.1, DynamodbError::Config(_)), "{config:?}");
    }

    #[test]
    fn a_panic_before_anything_was_sent_is_no_lack_of_time() {
        let of_request = |stopped| {
            let (fate, error) = DynamodbError::stopped(stopped, Left::No, Duration::ZERO);
            assert_eq!(fate, Fate::NotDone);
            Error::from(error)
        };
        let each: [fn(Stopped) -> Error; 2] = [of_request, DynamodbError::unconnected];
        for told in each {
            for (stopped, says) in [(Stopped::Over, "time that this call had"), (Stopped::Panicked, "panicked")] {
                let error = told(stopped);
                assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}
