//! A panic inside an SDK, caused by what a user put there. It ends its request, and the error of a call that only reads
//! says that nothing was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::internals::store::Backend;
use leasehold::internals::sys::clock::Clock;
use leasehold::{ErrorKind, Filter};

use crate::support::harness::millis;

/// Once `panics` is set, each request of the store panics.
fn only_writes_are_ambiguous(store: Arc<dyn Backend>, panics: &AtomicBool) {
    let builder = leasehold::internals::builder_over(store, Clock::system());
    let client = builder.request_timeout(millis(5_000)).connect().expect("a client");
    client.lock("k").expect("a lock").release().expect("a release");
    panics.store(true, Ordering::SeqCst);
    for error in [client.get("k").map(drop).unwrap_err(), client.list(&Filter::new()).map(drop).unwrap_err()] {
        assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
    }
    assert_eq!(client.try_lock("k").map(drop).unwrap_err().kind(), ErrorKind::Ambiguous);
    panics.store(false, Ordering::SeqCst);
    assert!(client.get("k").expect("a look").is_some());
}

#[cfg(feature = "dynamodb")]
#[test]
fn a_panic_in_the_aws_sdk_is_no_write_where_only_read() {
    use leasehold::internals::store::dynamodb::Dynamodb;

    use crate::support::dynamodb::{Table, on_answer, options};

    if crate::support::servers::dynamodb_local().is_none() {
        return;
    }
    let (table, clock, panics) = (Table::fresh(), Clock::system(), Arc::new(AtomicBool::new(false)));
    let mut options = options(&table.0, &clock);
    let asked = panics.clone();
    options.interceptors.push(on_answer(move |_| {
        assert!(!asked.load(Ordering::SeqCst), "as asked");
        Ok(())
    }));
    let store = Dynamodb::open(options, clock, &crate::support::stores::soon()).expect("a store");
    only_writes_are_ambiguous(Arc::new(store), &panics);
}

#[cfg(feature = "mongodb")]
#[test]
fn a_panic_in_the_driver_is_no_write_where_only_read() {
    use leasehold::internals::store::mongodb::Mongodb;
    use leasehold::mongodb::driver::event::EventHandler;
    use leasehold::mongodb::driver::event::command::CommandEvent;

    use crate::support::mongodb::Rows;

    if crate::support::servers::mongod().is_none() {
        return;
    }
    let (rows, panics) = (Rows::fresh(), Arc::new(AtomicBool::new(false)));
    let asked = panics.clone();
    let options = rows.options_with(|options| {
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            let is_sent = matches!(event, CommandEvent::Started(_));
            assert!(!(is_sent && asked.load(Ordering::SeqCst)), "as asked");
        }));
    });
    let store = Mongodb::open(options, &crate::support::stores::soon()).expect("a store");
    only_writes_are_ambiguous(Arc::new(store), &panics);
}
