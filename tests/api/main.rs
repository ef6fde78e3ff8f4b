//! The public API, the same on every store.

#[path = "../common/mod.rs"]
mod common;

mod any;
mod data;
mod groups;
mod guards;
mod listing;
mod told;
mod waiting;

use std::time::{Duration, Instant};

use common::stores::{Opened, stores};
use leasehold::internals::builder_over;
use leasehold::{ClientBuilder, LockClient};

/// Long enough for any event on a busy machine; no test waits for it when all is well.
const LONG: Duration = Duration::from_secs(20);
const MINUTE: Duration = Duration::from_secs(60);

impl Opened {
    fn builder(&self) -> ClientBuilder {
        builder_over(self.store.clone(), self.clock.clone())
    }

    fn client(&self) -> LockClient {
        self.builder().connect().unwrap()
    }

    /// Another client, as another process would have one.
    fn rival(&self) -> LockClient {
        builder_over(self.second.clone(), self.clock.clone()).owner("rival").connect().unwrap()
    }
}

/// Runs a case on an empty store of each kind.
fn on_every_store(case: impl Fn(&Opened)) {
    for store in stores() {
        // A failure names the store.
        println!("on {}", store.module);
        case(&(store.open)());
    }
}

/// Waits for what no channel tells.
fn wait_until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LONG, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<LockClient>();
    shared::<leasehold::LockGuard>();
    shared::<leasehold::LockRequest>();
    shared::<leasehold::LockAnyRequest>();
    shared::<leasehold::Filter>();
    shared::<leasehold::ClientBuilder>();
    shared::<leasehold::Lock>();
    shared::<leasehold::LossWatch>();
    shared::<leasehold::CancelToken>();
    shared::<leasehold::Error>();
    shared::<leasehold::ReleaseError>();
    shared::<leasehold::WithLockError<String>>();
    assert_eq!(size_of::<leasehold::Error>(), size_of::<usize>());
}
