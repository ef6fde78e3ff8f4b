//! A service that refuses requests which are signed with a wrong time, and hosts whose wall clock is wrong.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use aws_credential_types::provider::{ProvideCredentials, future};
use leasehold::internals::store::Consistency;
use sdk::config::{Credentials, SharedCredentialsProvider};

use crate::dynamodb::*;
use crate::network::all_were_met;
use crate::support::proxy::{Mode as Network, Rule};

/// The time of the service is this far ahead of this host's wall clock.
const AHEAD: [i64; 2] = [3_600, -3_600];

impl Behind {
    /// A store whose requests go through the proxy.
    fn open(&self) -> Dynamodb {
        let settings = Settings::Given(Box::new(config_at(&self.proxy.url())));
        open(DynamodbOptions::new(&self.table.0, settings), &Clock::system())
    }

    fn refused(&self) -> usize {
        self.proxy.requests().iter().filter(|request| request.sent == 0).count()
    }
}

/// Each new connection is one of a new client of the SDK, which knows nothing of the time that an earlier one learned.
#[test]
fn only_the_first_request_of_a_host_whose_wall_clock_is_wrong_is_refused() {
    needs_server!();
    for ahead in AHEAD {
        let at = Behind::new();
        at.proxy.check_signing_times();
        at.proxy.shift_dates(ahead);
        let store = at.open();
        assert_eq!(at.refused(), 1, "{ahead}");
        // The answers contradict each other, so the next request goes over another connection.
        at.proxy.shift_dates_of_open(60);
        get(&store, "k");
        granted(&store, &mut exclusive("k"));
        assert_eq!(at.refused(), 1, "{ahead}");
    }
}

/// The first answer is by a host of the service whose clock is wrong, and says nothing about this host's.
#[test]
fn a_host_of_the_service_whose_clock_is_wrong_keeps_nobody_from_connecting() {
    needs_server!();
    for ahead in AHEAD {
        let at = Behind::new();
        at.proxy.check_signing_times();
        at.proxy.shift_dates_of_next(ahead);
        granted(&at.open(), &mut exclusive("k"));
        assert!(at.refused() > 0, "{ahead}: its clock was not met");
    }
}

/// The first answer is slow, so the time is asked for once more.
#[test]
fn a_second_look_at_the_time_may_be_refused_for_its_signature_too() {
    let at = needs_server!(Behind::new());
    at.proxy.add(Rule::next(1, Network::Delay(Duration::from_millis(1_200))));
    at.proxy.add(Rule::next(1, Network::Skewed));
    at.open();
    all_were_met(&at.proxy);
}

/// This host's wall clock agrees with what was known before, and the other hosts of the service do, too.
#[test]
fn a_wrong_date_signs_no_request_while_this_hosts_wall_clock_contradicts_it() {
    needs_server!();
    for ahead in AHEAD {
        let at = Behind::new();
        at.proxy.check_signing_times();
        let store = at.open();
        granted(&store, &mut exclusive("first"));
        at.proxy.add(Rule::next(1, Network::ShiftDate(ahead)));
        get(&store, "k");
        all_were_met(&at.proxy);
        assert_eq!(at.refused(), 0, "{ahead}");
        // A host whose own clock is wrong refuses the right time, and only that host.
        at.proxy.shift_dates_of_open(ahead);
        store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()).unwrap_err();
        granted(&store, &mut exclusive("k"));
        assert_eq!(at.refused(), 1, "{ahead}");
    }
}

/// Credentials that end an hour after the time of a service that is this far ahead. Counts how often they were loaded.
#[derive(Clone, Debug)]
struct Hourly {
    ahead: i64,
    loads: Arc<AtomicU32>,
}

impl ProvideCredentials for Hourly {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let end = jiff::Timestamp::now().as_second() + self.ahead + 3_600;
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(end).unwrap());
        future::ProvideCredentials::ready(Ok(Credentials::new("key", "secret-canary", None, Some(end), "test")))
    }
}

#[test]
fn credentials_end_by_the_services_time() {
    needs_server!();
    for ahead in AHEAD.map(|ahead| 2 * ahead) {
        let at = Behind::new();
        at.proxy.shift_dates(ahead);
        let source = Hourly { ahead, loads: Arc::default() };
        let provider = SharedCredentialsProvider::new(source.clone());
        let config = config_at(&at.proxy.url()).into_builder().credentials_provider(provider).build();
        let store = open(DynamodbOptions::new(&at.table.0, Settings::Given(Box::new(config))), &Clock::system());
        granted(&store, &mut exclusive("k"));
        get(&store, "k");
        assert_eq!(source.loads.load(Ordering::SeqCst), 1, "{ahead}");
    }
}
