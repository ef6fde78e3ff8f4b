//! On the emulator of Cloud Spanner.

use std::any::Any;
use std::error::Error;

use leasehold::spanner::{AssertIn, run_fenced};
use leasehold::{ClientBuilder, ErrorKind, LockGuard};

use crate::fenced::data::Data;
use crate::fenced::data::spanner::{SCHEMA, Table};
use crate::fenced::{LONG, Open, Store};
use crate::support::grpc::{Fault, Grpc};
use crate::support::servers::spanner::aborts_at_random;
use crate::support::servers::spanner_emulator;
use crate::support::spanner::{Database, TABLE, settings};

pub struct Kind;

impl Store for Kind {
    type Data = Table;
    const NAME: &str = "spanner";

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        spanner_emulator()?;
        let database = Database::fresh();
        database.ddl(SCHEMA);
        Some((format!("spanner:{}@{}", database.path, database.host), Box::new(())))
    }

    fn builder(url: &str) -> ClientBuilder {
        let (path, host) = named(url);
        leasehold::spanner::builder(settings(host), path, TABLE)
    }

    fn data(url: &str) -> Table {
        let (path, host) = named(url);
        Table::new(settings(host), path)
    }
}

fn named(url: &str) -> (&str, &str) {
    url.strip_prefix("spanner:").and_then(|rest| rest.split_once('@')).unwrap()
}

crate::fenced::suite!(Kind);

/// The docs say so: the closure has to return the error of the assertion.
#[test]
fn the_assertion_alone_gives_the_services_own_error() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let asserted = || {
        let runner = open.data.client.read_write_transaction().build();
        let run = runner.run(async |transaction| guard.assert_in(&transaction).await);
        open.data.wait(run).map(drop)
    };
    asserted().unwrap();
    let _next = client.adopt(guard.info()).unwrap();
    let error = asserted().unwrap_err();
    assert_eq!(error.status().map(|status| status.code.name()), Some("OUT_OF_RANGE"), "{error}");
}

/// The grant id proves who holds the lock, so no error may show it.
#[cfg(feature = "serde")]
fn hides_the_grant_of(guard: &LockGuard, error: &leasehold::Error) {
    let lock = serde_json::to_value(guard.info()).unwrap();
    let said = format!("{error} {error:?}");
    assert!(!said.contains(lock["grant_id"].as_str().unwrap()), "{said}");
}

/// The work needs two locks, and the other one was lost: the error must not say that the held one was.
#[test]
fn the_loss_of_another_lock_is_not_told_as_its_own() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let (guard, other) = (client.lock("a").unwrap(), client.lock("b").unwrap());
    client.force_release("b").unwrap();
    let run = run_fenced(&guard, &open.data.client, async |transaction| other.assert_in(&transaction).await);
    let error = open.data.wait(run).unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.source().is_some(), "{error:?}");
    hides_the_grant_of(&other, &error);
    assert!(error.source().is_some_and(|said| said.to_string().contains("lock \"b\" lost")), "{error:?}");
    assert!(guard.is_held());
    let run = run_fenced(&other, &open.data.client, async |transaction| other.assert_in(&transaction).await);
    assert_eq!(open.data.wait(run).unwrap_err().kind(), ErrorKind::Lost);
}

/// The task of a user may move from thread to thread.
#[test]
fn its_future_can_be_sent() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (guard, text) = (open.client(LONG).lock("a").unwrap(), "text".to_owned());
    let client = open.data.client.clone();
    let task = async move { run_fenced(&guard, &client, async move |_| Ok(text.len())).await };
    assert_eq!(open.data.wait(async { tokio::spawn(task).await }).unwrap().unwrap(), 4);
}

/// The service commits, and then reports that it does not know, that it took too long, or that it is broken.
#[test]
fn a_commit_that_may_have_happened_is_ambiguous() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (path, host) = named(&open.url);
    let grpc = Grpc::new(host);
    let behind = Table::new(settings(&grpc.host), path);
    let guard = open.client(LONG).lock("a").unwrap();
    let kind = |method, fault| {
        grpc.fault(method, 0, fault);
        let error = behind.write(&guard, "a", "text").unwrap_err();
        assert_eq!(grpc.clear(), 0, "{fault:?} was not met");
        error.kind()
    };
    for code in [2, 4, 13] {
        assert_eq!(kind("Commit", Fault::DoneThenRefused(code)), ErrorKind::Ambiguous, "{code}");
    }
    // A refused commit wrote nothing, for example because of a constraint (9). Nor did a transaction that never reached
    // its commit.
    for code in [7, 9] {
        assert_eq!(kind("Commit", Fault::Refused(code)), ErrorKind::Store, "{code}");
    }
    assert_eq!(kind("ExecuteStreamingSql", Fault::Refused(2)), ErrorKind::Store);
    // The service asks for the commit once more, and again. The SDK then calls it done.
    (0..2).for_each(|again| grpc.fault("Commit", again, Fault::Unfinished));
    let answer = behind.write(&guard, "a", "never committed");
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert_eq!(answer.map_err(|error| error.kind()), Err(ErrorKind::Ambiguous));
    // This ends what the failed one left open in the service, which would delay the release.
    behind.write(&guard, "a", "text").unwrap();
}

/// If the answer to a commit is lost, the SDK repeats it, and begins the work again if the repeat is aborted. But the
/// first one was done.
#[test]
fn after_a_repeat_of_a_commit_no_error_says_that_nothing_was_committed() {
    const ABORTED: u8 = 10;
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (path, host) = named(&open.url);
    let grpc = Grpc::new(host);
    let behind = Table::new(settings(&grpc.host), path);
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    // `begun_again` runs when the work begins again, before the assertion.
    let is_ambiguous = |text: &str, repeat, begun_again: &mut dyn FnMut()| {
        grpc.restart();
        grpc.fault("Commit", 0, Fault::CutAfter);
        grpc.fault("Commit", 1, Fault::Refused(repeat));
        let mut meanwhile = || {
            if grpc.methods().iter().filter(|method| *method == "Commit").count() == 2 {
                begun_again();
            }
        };
        let error = behind.transact(Some(&guard), "a", text, &mut meanwhile).unwrap_err();
        assert_eq!(grpc.clear(), 0, "{text}: the faults were not met");
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{text}: {error}");
        hides_the_grant_of(&guard, &error);
        assert!(aborts_at_random() || open.data.text("a").as_deref() == Some(text), "{text}: it was committed");
    };
    for code in [5, 7, 16] {
        is_ambiguous(&format!("the repeat was refused: {code}"), code, &mut || {});
    }
    is_ambiguous("then the assertion was refused", ABORTED, &mut || {
        grpc.fault("ExecuteStreamingSql", 0, Fault::Refused(7));
    });
    let mut next = None;
    is_ambiguous("then the lock was lost", ABORTED, &mut || {
        next.get_or_insert_with(|| client.adopt(guard.info()).unwrap());
    });
    assert!(next.is_some());
}
