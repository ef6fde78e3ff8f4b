//! Bad input and a server that is not there: reported within the deadline, and without secrets.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error as _;

use leasehold::{ErrorKind, LockClient};

use crate::errors::{are_refused, no_server_is_told, text, with_port, works_inside_async_tasks};
use crate::mongodb::*;
use crate::support::mongodb::{Rows, settings};

#[test]
fn what_is_wrong_in_a_url_is_said_before_anything_is_sent() {
    are_refused([
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
        ("mongodb://me:p%40ss@localhost/app?colour=red", "colour is an invalid option"),
        ("mongodb://me:canary?x@localhost/app", "%3F"),
        ("mongodb://me:1?canary@localhost/app", "%3F"),
        ("mongodb://me?x:canary@localhost/app", "%3F"),
        ("mongodb://app:zq@ss?canary@localhost/app", "%3F"),
        ("mongodb:me:canary@localhost/app?appName=a://b", "must begin with mongodb://"),
        ("mongodb+srv:/me:canary@localhost/app", "must begin with mongodb://"),
        ("mongodb://localhost/app?authMechanismProperties=AWS_SESSION_TOKEN:ca&nary", "& as %26"),
        ("mongodb://localhost/app?authMechanismProperties=AWS_SESSION_TOKEN=canary", "authMechanismProperties"),
        ("mongodb://localhost/app?authmechanismproperties=A:b,AWS_SESSION_TOKEN%3Dcanary", "authMechanismProperties"),
        ("mongodb://me:canary%\u{e9}@localhost/app", "cannot read it"),
        ("mongodb://me%\u{10ffff}:canary@localhost/app", "cannot read it"),
        ("mongodb://me:canary%2@localhost/app", "cannot read it"),
        ("mongodb://me:can/ary@localhost/app", "wrong"),
        ("mongodb://me:canary%40localhost/app", "port of a host"),
        ("mongodb://me:a]canary%40localhost/app", "port of a host"),
        ("mongodb://a,[::1]:canary/app", "port of a host"),
        ("mongodb://me:c@nary:canary@localhost/app", "wrong"),
        ("mongodb+srv://me:canary@a,b/app", "wrong"),
        ("mongodbb://me:canary@localhost/app", "mongodb"),
    ]);
    let error = leasehold::mongodb::builder(Default::default()).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("database"), "{error}");
}

/// A driver that is built without compression says that there is no such option.
#[test]
fn compression_in_a_url_is_left_out() {
    let rows = needs_server!(Rows::fresh());
    let client = connect(&format!("{}&compressors=zlib,snappy&zlibCompressionLevel=3", rows.url()));
    client.lock("k").unwrap().release().unwrap();
}

#[test]
fn a_server_that_is_not_there_is_said_within_the_deadline() {
    let at = |host: &str| LockClient::builder(format!("mongodb://me:canary@{host}/app"));
    let told = RefCell::new(BTreeSet::new());
    no_server_is_told(&[1, 5], at, |host, error| {
        assert!(error.to_string().contains("hosts"), "{host}: {}", text(error));
        assert_eq!(error.store(), Some(format!("mongodb://{}/app.locks", with_port(host, 27_017)).as_str()));
        let is_told = |why: &dyn std::error::Error| why.to_string().contains("Error: ");
        let is_late = error.to_string().contains("no request could be sent");
        if error.source().map_or(is_late, is_told) {
            told.borrow_mut().insert(host.to_owned());
        }
    });
    // On a busy machine the time may be over before the driver has a reason, but not in both cases.
    let told = told.into_inner();
    assert_eq!(told.len(), 4, "a reason is told only of {told:?}");
}

#[test]
fn a_url_and_settings_of_ones_own_lead_to_the_same_locks() {
    let rows = needs_server!(Rows::fresh());
    let by_url = connect(&rows.url());
    let options = settings(&crate::support::servers::mongod().unwrap());
    let by_settings =
        sent(|| patient(leasehold::mongodb::builder_with(options.clone(), "leasehold", &rows.0)).connect());
    let guard = by_url.lock("k").unwrap();
    assert!(by_settings.try_lock("k").unwrap().is_none());
    guard.release().unwrap();
    assert!(by_settings.try_lock("k").unwrap().is_some());
}

#[test]
fn a_client_works_and_is_dropped_inside_async_tasks() {
    let rows = needs_server!(Rows::fresh());
    works_inside_async_tasks(|| LockClient::builder(rows.url()));
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
