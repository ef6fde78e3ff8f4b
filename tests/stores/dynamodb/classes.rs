//! What each answer of a service in trouble means: repeat, unknown, or give up; and the message. The proxy gives the
//! answers of the service, and the other requests reach the real server.

use std::error::Error as _;

use leasehold::dynamodb::{Canceled, ConditionCheck};
use leasehold::internals::store::{Consistency, Purpose, Released, Renewed, Swapped};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{Error, ErrorKind, LockClient};

use crate::dynamodb::*;
use crate::network::{all_were_met, sent};
use crate::support::alone::alone;
use crate::support::harness::within;
use crate::support::logs;
use crate::support::proxy::{Mode as Network, Rule};

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    /// Nothing was written; a repeat may succeed.
    Repeat,
    /// It may have been written.
    Unknown,
    /// Nothing was written, and a repeat is of no use.
    Fatal(ErrorKind),
}

macro_rules! says {
    ($code:literal, $message:literal) => {
        concat!("{\"__type\":\"com.amazonaws.dynamodb.v20120810#", $code, "\",\"message\":\"", $message, "\"}")
    };
}

pub const DENIED: &str = says!("AccessDeniedException", "User: x is not authorized to perform: y on resource: z");
const THROTTLED: &str = says!("ThrottlingException", "Rate of requests exceeds the allowed throughput");
pub const EXPIRED: &str = says!("ExpiredTokenException", "The security token included in the request is expired");
const SKEWED: &str = says!("InvalidSignatureException", "Signature expired: 20261123T040000Z is now earlier than ..");
pub const UNKNOWN: &str =
    says!("UnrecognizedClientException", "The security token included in the request is invalid.");

/// For a client that was let in before. Status, answer, what it means, and what the message must say: what happened and
/// what would be right.
const ANSWERS: [(u16, &str, Means, &str); 27] = [
    (400, THROTTLED, Means::Repeat, "limits the rate"),
    (400, says!("ProvisionedThroughputExceededException", "x"), Means::Repeat, "limits the rate"),
    (400, says!("RequestLimitExceeded", "x"), Means::Repeat, "limits the rate"),
    (429, says!("SomethingNewAboutRates", "x"), Means::Repeat, "limits the rate"),
    (400, says!("TransactionConflictException", "Transaction is ongoing"), Means::Repeat, "was in conflict"),
    (400, says!("ReplicatedWriteConflictException", "x"), Means::Repeat, "was in conflict"),
    (500, says!("InternalServerError", "x"), Means::Unknown, "no answer settled"),
    (503, says!("ServiceUnavailable", "x"), Means::Unknown, "no answer settled"),
    (502, "<html>Bad Gateway</html>", Means::Unknown, "no answer settled"),
    (504, "{}", Means::Unknown, "no answer settled"),
    // Some proxies say so after they passed the request on.
    (408, "<html>Request Timeout</html>", Means::Unknown, "no answer settled"),
    (400, says!("ResourceNotFoundException", "x"), Means::Fatal(ErrorKind::Schema), "create_schema() makes it"),
    (
        400,
        says!("ValidationException", "The provided key element does not match the schema"),
        Means::Fatal(ErrorKind::Schema),
        "is the table's key HASH key (S)",
    ),
    (
        400,
        says!("ValidationException", "Item size to update has exceeded the maximum allowed size"),
        Means::Fatal(ErrorKind::InvalidInput),
        "400 KB",
    ),
    (
        400,
        says!(
            "ValidationException",
            "Invalid ConditionExpression: Expression size has exceeded the maximum allowed size; expression size: 4106"
        ),
        Means::Fatal(ErrorKind::InvalidInput),
        "4 KB",
    ),
    (
        400,
        says!("ValidationException", "Size of hashkey has exceeded the maximum size limit of 2048 bytes"),
        Means::Fatal(ErrorKind::Schema),
        "refused the request as wrong",
    ),
    (400, says!("ItemCollectionSizeLimitExceededException", "x"), Means::Fatal(ErrorKind::InvalidInput), "400 KB"),
    (400, DENIED, Means::Fatal(ErrorKind::Permission), "locks need dynamodb:GetItem and UpdateItem"),
    (400, EXPIRED, Means::Repeat, "any more"),
    (403, says!("ExpiredToken", "x"), Means::Repeat, "any more"),
    (400, says!("RequestExpired", "x"), Means::Repeat, "any more"),
    (400, UNKNOWN, Means::Repeat, "any more"),
    (400, SKEWED, Means::Repeat, "stood still"),
    // The service shows how it would have signed the request, which includes the token of the session.
    (
        400,
        says!(
            "InvalidSignatureException",
            "The signatures differ.\\n\\nThe Canonical String is 'POST\\nx-amz-security-token:secret-canary\\n'"
        ),
        Means::Repeat,
        "stood still",
    ),
    (400, says!("MissingAuthenticationToken", "x"), Means::Fatal(ErrorKind::Permission), "does not accept the cred"),
    (400, says!("SomethingNew", "x"), Means::Fatal(ErrorKind::Store), "refused the request"),
    (200, "no JSON", Means::Unknown, "no answer settled"),
];

impl Behind {
    fn client(&self) -> LockClient {
        patient(config_at(&self.proxy.url()), &self.table.0).connect().unwrap()
    }

    fn all_get(&self, status: u16, json: &'static str) {
        all_were_met(&self.proxy);
        self.proxy.add(Rule::always(Network::Say(status, json)));
    }
}

/// Asserts that the error says what it should and where, and shows nothing secret.
#[track_caller]
fn check(error: &Error, means: Means, says: &str, of: &str) {
    let text = format!("{error} {error:?} {:?}", error.source());
    assert!(error.to_string().contains(says), "{of}: {error}");
    assert!(!text.contains("secret-canary"), "{text}");
    assert!(error.source().is_some(), "{of}: what the service said is its cause: {error:?}");
    let right = match means {
        Means::Repeat => (ErrorKind::Store, true),
        Means::Unknown => (ErrorKind::Ambiguous, true),
        Means::Fatal(kind) => (kind, false),
    };
    assert_eq!((error.kind(), error.is_retryable()), right, "{of}: {error}");
}

#[test]
fn each_answer_of_the_service_means_one_thing_for_every_call() {
    let at = needs_server!(Behind::new());
    for (number, (status, json, means, says)) in ANSWERS.into_iter().enumerate() {
        let of = format!("{status} {json}");
        let mut held = exclusive(&format!("held {number}"));
        let holder = granted(&at.beside, &mut held);
        let seen = get(&at.store, &held.key);
        at.all_get(status, json);
        let mut free = exclusive(&format!("free {number}"));
        let answers = [
            at.store.acquire(&mut free, &soon()).map(|answer| match answer {
                Acquired::Unknown(error) => error,
                other => panic!("{of}: {other:?}"),
            }),
            at.store.renew(&mut held, renewal(LEASE), &soon()).map(|answer| match answer {
                Renewed::Unknown(error) => error,
                other => panic!("{of}: {other:?}"),
            }),
            at.store.release(&mut held, Purpose::Release, &soon()).map(|answer| match answer {
                Released::Unknown(error) => error,
                other => panic!("{of}: {other:?}"),
            }),
            at.store.release(&mut held, Purpose::GiveUp, &soon()).map(|answer| match answer {
                Released::Unknown(error) => error,
                other => panic!("{of}: {other:?}"),
            }),
            at.store.swap(&seen, None, &soon()).map(|answer| match answer {
                Swapped::Unknown(error) => error,
                other => panic!("{of}: {other:?}"),
            }),
        ];
        for answer in answers {
            match answer {
                Ok(unknown) => check(&unknown, Means::Unknown, says, &of),
                Err(error) => {
                    assert_ne!(means, Means::Unknown, "{of}: {error}");
                    check(&error, means, says, &of);
                }
            }
        }
        // For a read, an unanswered request is only trouble with the store, and not ambiguous.
        for which in [Which::Key(held.key.clone()), Which::Prefix(String::new())] {
            let error = at.store.read(&which, None, Consistency::Strong, &soon()).unwrap_err();
            match means {
                Means::Unknown => {
                    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{of}: {error}");
                }
                means => check(&error, means, says, &of),
            }
        }
        all_were_met(&at.proxy);
        assert_eq!(get(&at.store, &held.key).record.exclusive, Some(holder), "{of}: nothing was written");
        assert!(get(&at.store, &free.key).record.exclusive.is_none(), "{of}");
    }
}

/// A reason in the place of the lock's check. If the service had no room for the transaction, or refused it, the check
/// was never made.
#[test]
fn each_reason_of_a_cancelled_transaction_says_whether_to_repeat_it() {
    let at = needs_server!(Behind::new());
    let client = at.client();
    let guard = client.lock("k").unwrap();
    for (code, is_repeated) in [
        ("TransactionConflict", true),
        ("ThrottlingError", true),
        ("ProvisionedThroughputExceeded", true),
        ("None", false),
        ("ValidationError", false),
    ] {
        let reason = sdk::types::CancellationReason::builder().code(code).build();
        let said = guard.read_reason(&reason).unwrap();
        assert_eq!(matches!(said, Canceled::Conflict), is_repeated, "{code}: {said:?}");
        assert_eq!(matches!(said, Canceled::Other), !is_repeated, "{code}: {said:?}");
    }
}

/// A captive portal, a proxy that wants a password, one that accepts nothing large, and one that lost the service.
#[test]
fn an_answer_that_is_none_of_the_service_is_told_as_one() {
    let at = needs_server!(Behind::new());
    for status in [302, 403, 407, 413, 502] {
        for body in ["<html>secret-canary</html>", r#"{"message":"secret-canary"}"#] {
            at.all_get(status, body);
            let which = Which::Key("k".to_owned());
            let error = at.store.read(&which, None, Consistency::Strong, &soon()).unwrap_err();
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, status == 502), "{status}: {error}");
            let cause = error.source().unwrap().to_string();
            let is_told = cause.starts_with(&format!("HTTP {status}, which is no answer of DynamoDB"));
            assert!(is_told && cause.contains("a proxy or portal"), "{cause}");
            assert!(!format!("{error} {error:?} {cause}").contains("secret-canary"), "{error:?}");
        }
    }
}

#[test]
fn a_timeout_of_a_write_is_unknown_and_of_a_read_may_be_repeated() {
    let at = needs_server!(Behind::new());
    at.proxy.add(Rule::always(Network::HoleToServer));
    let by = || Deadline::after(Duration::from_secs(3));
    // On a busy machine the time of the call may be over before it is sent.
    match sent(|| at.store.acquire(&mut exclusive("k"), &by())) {
        Acquired::Unknown(error) => check(&error, Means::Unknown, "no answer settled", "a timeout"),
        other => panic!("{other:?}"),
    }
    let error = at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by()).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
}

/// A fatal answer ends a call at once, and any other does not end a wait.
#[test]
fn a_wait_outlasts_trouble_and_ends_at_once_where_waiting_is_of_no_use() {
    let at = needs_server!(Behind::new());
    let client = at.client();
    // A token that has ended, or a host that stood still: the next request is right. The same applies to credentials that
    // the service does not know yet, or no longer knows.
    let broken = says!("InternalServerError", "x");
    for (status, json) in [(400, THROTTLED), (500, broken), (400, EXPIRED), (400, SKEWED), (400, UNKNOWN)] {
        all_were_met(&at.proxy);
        at.proxy.add(Rule::next(3, Network::Say(status, json)));
        let guard = client.lock("k").unwrap();
        assert!(guard.is_held());
        guard.release().unwrap();
    }
    at.all_get(400, DENIED);
    let before = at.proxy.count();
    let error = within("the wait", Duration::from_secs(2), || client.lock("k")).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Permission, Some("k")), "{error}");
    assert_eq!(at.proxy.count() - before, 1, "it is not repeated");
}

#[test]
fn a_service_that_lets_nobody_in_is_told_at_connect() {
    let at = needs_server!(Behind::new());
    let refusals = [DENIED, EXPIRED, SKEWED, UNKNOWN].map(|json| (json, ErrorKind::Permission));
    for (json, kind) in refusals {
        at.all_get(400, json);
        let builder = patient(config_at(&at.proxy.url()), &at.table.0);
        let error = builder.connect().unwrap_err();
        assert_eq!(error.kind(), kind);
        // These answers have no request id, so they do not say the service's time.
        assert_eq!(error.to_string().contains("wall clock"), json != DENIED, "{error}");
    }
    all_were_met(&at.proxy);
    at.proxy.add(Rule::always(Network::Skewed));
    let error = patient(config_at(&at.proxy.url()), &at.table.0).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Permission && !error.to_string().contains("wall clock"), "{error}");
}

#[test]
fn where_nobody_may_describe_the_table_that_is_said_once() {
    needs_server!();
    alone("dynamodb::classes::where_nobody_may_describe_the_table_that_is_said_once", || {
        logs::keep();
        let at = Behind::new();
        at.proxy.add(Rule::always(Network::Say(400, DENIED)).on("DescribeTable"));
        for _ in 0..3 {
            at.client().lock("k").unwrap().release().unwrap();
        }
        let told = logs::kept("");
        assert!(told.len() == 1 && told[0].contains("replicas were not checked"), "{told:?}");
        // A client that makes the table must be able to see it.
        let error = at.client().create_schema().unwrap_err();
        check(&error, Means::Fatal(ErrorKind::Permission), "dynamodb:DescribeTable", "making the table");
        assert!(error.source().unwrap().to_string().contains("not authorized to perform"), "{error:?}");
    });
}
