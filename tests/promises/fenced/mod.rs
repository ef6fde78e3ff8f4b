//! A user's own transaction commits only while the lock is held: the same cases on every store, and what only one store
//! has.

#![cfg(unix)]

mod cases;
mod data;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod late;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_cases;
#[cfg(feature = "spanner")]
mod spanner;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::any::Any;
use std::time::Duration;

use data::Data;
use leasehold::{ClientBuilder, LockClient};

use crate::support::harness::{PATIENCE, connected};

/// A lease that lasts longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// A lease that ends during a test: the shortest that every store accepts.
const SHORT: Duration = Duration::from_secs(1);

/// A kind of store, which also holds a user's data.
trait Store: 'static {
    type Data: Data;
    const NAME: &str;
    /// How long after its end a lease may still be respected.
    const GRACE: Duration = Duration::ZERO;

    /// A new store: a text by which other processes find it, and what must live as long; `None` if there is no server.
    fn fresh() -> Option<(String, Box<dyn Any + Sync>)>;
    fn builder(url: &str) -> ClientBuilder;
    fn data(url: &str) -> Self::Data;
}

/// A new store of that kind.
struct Open<S: Store> {
    url: String,
    data: S::Data,
    _room: Box<dyn Any + Sync>,
}

/// With timeouts that let a server answer on a busy machine.
fn builder<S: Store>(url: &str) -> ClientBuilder {
    S::builder(url).request_timeout(PATIENCE).drop_timeout(PATIENCE)
}

impl<S: Store> Open<S> {
    fn fresh() -> Option<Open<S>> {
        let (url, room) = crate::support::stores::is_wanted(S::NAME).then(S::fresh)??;
        Some(Open { data: S::data(&url), url, _room: room })
    }

    fn builder(&self) -> ClientBuilder {
        builder::<S>(&self.url)
    }

    fn client(&self, lease: Duration) -> LockClient {
        connected(|| self.builder().lease(lease))
    }
}

/// The cases as tests of a store.
macro_rules! suite {
    ($store:ty: $($module:ident :: $case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                if let Some(open) = crate::fenced::Open::<$store>::fresh() {
                    crate::fenced::$module::$case(&open);
                }
            }
        )*
    };
    ($store:ty) => {
        crate::fenced::suite! {
            $store:
            cases::what_is_held_is_written_and_what_is_lost_is_not,
            cases::a_lock_of_another_store_is_refused,
            cases::shared_holders_can_be_asserted,
            cases::leases_can_be_asserted,
            cases::a_leadership_can_be_asserted,
            cases::expired_and_not_taken_over_is_written_rightly,
            cases::whoever_comes_first_wins,
            cases::heartbeats_and_transactions_live_together,
            late::a_holder_that_wakes_too_late_never_writes,
            late::without_the_assertion_the_late_write_gets_through,
        }
    };
}
use suite;

/// Not a test of its own: the other processes of these tests run it.
#[test]
fn worker() {
    if std::env::var_os(crate::support::process::WORKER).is_none() {
        return;
    }
    let told = late::next_line().expect("what to connect to");
    let words: Vec<&str> = told.split(' ').collect();
    let ["connect", url, lease, _] = words[..] else { panic!("{told}") };
    let lease = crate::support::harness::millis(lease.parse().unwrap());
    match url.split_once(':').unwrap().0 {
        #[cfg(feature = "sqlite")]
        "sqlite" => late::holder::<sqlite::Kind>(url, lease),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => late::holder::<dynamodb::Kind>(url, lease),
        #[cfg(feature = "mongodb")]
        "mongodb" => late::holder::<mongodb::Kind>(url, lease),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => late::holder::<postgres::Kind<false>>(url, lease),
        #[cfg(feature = "spanner")]
        "spanner" => late::holder::<spanner::Kind>(url, lease),
        _ => panic!("no store has this URL: {url}"),
    }
}
