//! Sources of credentials that take long, hang, or stop running: what that costs the locks.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::SystemTime;

use aws_credential_types::provider::{self, ProvideCredentials, future};
use leasehold::LockClient;
use leasehold::dynamodb::aws_config::SdkConfig;
use leasehold::dynamodb::aws_config::identity::IdentityCache;
use sdk::config::{Credentials, SharedCredentialsProvider};

use crate::dynamodb::classes::{DENIED, EXPIRED, UNKNOWN};
use crate::dynamodb::*;
use crate::network::all_were_met;
use crate::support::harness::PATIENCE;
use crate::support::proxy::{Mode, Rule};
use crate::support::wait::wait_until;

/// What a source does when it is asked.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// It never ends.
    Hangs,
    /// It takes the first duration, and its credentials end after the second one.
    Takes(Duration, Duration),
}

/// A source that behaves like this, load after load. The last entry applies to all later loads.
#[derive(Debug)]
struct Source {
    loads: Vec<Load>,
    begun: AtomicU32,
    ended: AtomicU32,
}

impl Source {
    fn new(loads: &[Load]) -> Arc<Source> {
        Arc::new(Source { loads: loads.to_vec(), begun: AtomicU32::new(0), ended: AtomicU32::new(0) })
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }

    async fn load(&self) -> provider::Result {
        let nth = self.begun.fetch_add(1, Ordering::SeqCst) as usize;
        match self.loads[nth.min(self.loads.len() - 1)] {
            Load::Hangs => std::future::pending().await,
            Load::Takes(time, until) => {
                tokio::time::sleep(time).await;
                self.ended.fetch_add(1, Ordering::SeqCst);
                let token = Some(format!("token of load {nth}"));
                Ok(Credentials::new("key", "secret-canary", token, Some(SystemTime::now() + until), "test"))
            }
        }
    }
}

/// Needed because a foreign trait can't be implemented for `Arc`.
#[derive(Clone, Debug)]
struct Of(Arc<Source>);

impl ProvideCredentials for Of {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.0.load())
    }
}

fn config_of(source: &Arc<Source>) -> SdkConfig {
    let provider = SharedCredentialsProvider::new(Of(source.clone()));
    // As `aws_config::load_defaults` makes it.
    config().into_builder().credentials_provider(provider).identity_cache(IdentityCache::lazy().build()).build()
}

fn client_of(source: &Arc<Source>, table: &Table) -> LockClient {
    leasehold::dynamodb::builder(config_of(source), &table.0).request_timeout(PATIENCE).connect().unwrap()
}

const DAY: Duration = Duration::from_secs(86_400);

/// The user's own client is loading credentials on a runtime that does not run while our call blocks it.
#[test]
fn a_load_of_the_users_own_client_holds_up_no_call() {
    needs_server!();
    let table = Table::fresh();
    let source = Source::new(&[Load::Hangs, Load::Takes(Duration::ZERO, DAY)]);
    let config = config_of(&source);
    let users = async {
        let own = sdk::Client::new(&config);
        let mut theirs = pin!(own.list_tables().send());
        while source.begun() == 0 {
            let polled = poll_fn(|context| Poll::Ready(theirs.as_mut().poll(context).is_pending())).await;
            assert!(polled);
            tokio::task::yield_now().await;
        }
        let client =
            leasehold::dynamodb::builder(config.clone(), &table.0).request_timeout(PATIENCE).connect().unwrap();
        assert!(client.try_lock("k").unwrap().is_some());
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(users);
    assert_eq!(source.begun(), 2);
}

/// A load takes longer than a heartbeat's time, which is a third of what is left of the lease, 3.8 s. Credentials end
/// after some seconds here, as they do after an hour elsewhere.
#[test]
fn a_load_that_takes_longer_than_a_heartbeat_has_costs_no_lock() {
    needs_server!();
    let (table, lease) = (Table::fresh(), Duration::from_secs(20));
    let source = Source::new(&[Load::Takes(Duration::from_secs(5), Duration::from_secs(16))]);
    let client = client_of(&source, &table);
    let guard = client.request("k").lease(lease).lock().unwrap();
    let ended = || source.ended.load(Ordering::SeqCst);
    let before = ended();
    wait_until("it is loaded anew, or the lock is lost", || ended() > before || !guard.is_held());
    // The lock is renewed with these credentials, if it was not yet.
    wait_until("it is renewed, or lost", || guard.remaining() > lease / 2 || !guard.is_held());
    assert!(guard.is_held(), "{:?} are left", guard.remaining());
    guard.release().unwrap();
}

/// As its source says, the token is valid for a day.
#[test]
fn a_token_that_has_ended_as_the_service_says_is_loaded_anew() {
    let at = needs_server!(Behind::new());
    let source = Source::new(&[Load::Takes(Duration::ZERO, DAY)]);
    let provider = SharedCredentialsProvider::new(Of(source.clone()));
    let config = config_at(&at.proxy.url()).into_builder().credentials_provider(provider).build();
    let client = leasehold::dynamodb::builder(config, &at.table.0).request_timeout(PATIENCE).connect().unwrap();
    at.proxy.add(Rule::always(Mode::Say(400, EXPIRED)).on("token of load 0"));
    client.try_lock("k").unwrap().unwrap().release().unwrap();
    assert_eq!(source.begun(), 2);
    // Nor are the credentials of a user that was deleted meanwhile used again.
    at.proxy.add(Rule::always(Mode::Say(400, UNKNOWN)).on("token of load 1"));
    client.try_lock("k").unwrap().unwrap().release().unwrap();
    assert_eq!(source.begun(), 3);
    // A refusal for another reason must not load them again.
    all_were_met(&at.proxy);
    at.proxy.add(Rule::next(1, Mode::Say(400, DENIED)));
    client.try_lock("k").unwrap_err();
    client.try_lock("k").unwrap().unwrap().release().unwrap();
    assert_eq!(source.begun(), 3);
}

/// Its last credentials are still valid for ten seconds by then.
#[test]
fn a_source_that_hangs_holds_up_nothing_while_its_last_credentials_serve() {
    needs_server!();
    let table = Table::fresh();
    let source = Source::new(&[Load::Takes(Duration::ZERO, Duration::from_secs(30)), Load::Hangs]);
    let client = client_of(&source, &table);
    wait_until("it is asked again", || {
        client.try_lock("k").unwrap().unwrap().release().unwrap();
        source.begun() == 2
    });
    client.try_lock("k").unwrap().unwrap().release().unwrap();
}
