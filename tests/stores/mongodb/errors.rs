//! Bad input and a server that is not there: told within the deadline, without a secret.

use std::error::Error as _;
use std::time::Duration;

use leasehold::{Error, ErrorKind, LockClient};

use crate::mongodb::*;
use crate::support::harness::within;
use crate::support::mongodb::{Rows, settings};
use crate::support::nobody;

pub fn text(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(" {source} {source:?}"));
        next = source.source();
    }
    assert!(!text.contains("canary"), "{text}");
    text
}

#[test]
fn what_is_wrong_in_a_url_is_said_before_anything_is_sent() {
    for (url, says) in [
        ("mongodb:", "wrong"),
        ("mongodb://", "wrong"),
        ("mongodb://localhost", "database"),
        ("mongodb://localhost/?collection=locks", "database"),
        ("mongodb://a,b:1/?replicaSet=rs0", "database"),
        ("mongodb://localhost/app?collecton=x", "collection"),
        ("mongodb://localhost/app?collection=a&collection=b", "twice"),
        ("mongodb://localhost/app?collection=", "name of a collection"),
        ("mongodb://localhost/app?collection=system.users", "name of a collection"),
        ("mongodb://localhost/app?collection=a%24b", "name of a collection"),
        ("mongodb://localhost/app?colour=red", "colour"),
        ("mongodb://localhost/app?w=-1", "wrong"),
        ("mongodb://me:canary@localhost/app?colour=red", "colour is an invalid option"),
        ("mongodb://me:invalid@localhost/app?colour=red", "cannot read it"),
        ("mongodb://me:can/ary@localhost/app", "wrong"),
        ("mongodb://me:c@nary:canary@localhost/app", "wrong"),
        ("mongodb+srv://me:canary@a,b/app", "wrong"),
        ("mongodbb://me:canary@localhost/app", "mongodb"),
    ] {
        let error = LockClient::connect(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        assert!(text(&error).contains(says), "{url}: {error}");
        println!("{url}: {error}");
    }
    let error = leasehold::mongodb::builder(Default::default()).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("database"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_said_within_the_deadline() {
    // Nobody listens; nobody answers; somebody accepts and says nothing.
    let (closed, mute, silent) = (nobody::Closed::new(), nobody::Mute::new(), nobody::silent());
    let silent = silent.local_addr().unwrap().to_string();
    for host in [&closed.address(), &mute.address(), &silent, nobody::NO_NAME] {
        for timeout in [1, 5] {
            let (url, timeout) = (format!("mongodb://me:canary@{host}/app"), Duration::from_secs(timeout));
            let builder = LockClient::builder(url).request_timeout(timeout);
            let error = within(host, timeout, || builder.connect()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Store, "{host}: {}", text(&error));
            assert!(error.is_retryable() && error.to_string().contains("hosts"), "{host}: {}", text(&error));
            assert_eq!(error.store(), Some(format!("mongodb://{}/app.locks", with_port(host)).as_str()));
            assert!(error.source().is_some_and(|why| why.to_string().contains("Error: ")), "{}", text(&error));
        }
    }
}

fn with_port(host: &str) -> String {
    if host.contains(':') { host.to_owned() } else { format!("{host}:27017") }
}

#[test]
fn a_url_and_settings_of_ones_own_lead_to_the_same_locks() {
    needs_server!();
    let rows = Rows::fresh();
    let by_url = LockClient::connect(&rows.url()).unwrap();
    let options = settings(&crate::support::servers::mongod().unwrap());
    let by_settings = leasehold::mongodb::builder_with(options, "leasehold", &rows.0).connect().unwrap();
    let guard = by_url.lock("k").unwrap();
    assert!(by_settings.try_lock("k").unwrap().is_none());
    guard.release().unwrap();
    assert!(by_settings.try_lock("k").unwrap().is_some());
}

#[test]
fn a_client_works_and_is_dropped_inside_async_tasks() {
    needs_server!();
    let rows = Rows::fresh();
    let work = || {
        let client = LockClient::connect(&rows.url()).unwrap();
        let guard = client.lock("k").unwrap();
        assert!(guard.is_held());
        drop((guard, client));
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async { work() });
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    many.block_on(async { work() });
}

#[test]
fn a_grant_of_another_store_is_told() {
    needs_server!();
    let store = Rows::fresh().open();
    let mut a = exclusive(&store, "k");
    a.ask.grant = leasehold::internals::store::GrantForm::Uuid.fresh();
    let error = store.acquire(&mut a, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("another"), "{error}");
}
