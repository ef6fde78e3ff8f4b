//! Two clients with an estimate each, services whose time is off, and hosts whose clock is.

use std::time::Instant;

use leasehold::LockClient;
use leasehold::internals::backend::dynamodb::Estimate;
use leasehold::internals::builder_over;

use crate::common::dynamodb::{Table, options};
use crate::sdk::config::interceptors::BeforeDeserializationInterceptorContextMut;
use crate::sdk::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use crate::sdk::error::BoxError;
use crate::*;

fn blocking(table: &Table, options: impl FnOnce(&mut DynamodbOptions)) -> LockClient {
    let clock = Clock::system();
    let mut all = crate::options(&table.0, &clock);
    options(&mut all);
    builder_over(Arc::new(open(all, &clock)), clock).connect().unwrap()
}

#[test]
fn a_takeover_waits_for_the_grace_and_not_longer_by_much() {
    needs_server!();
    let table = Table::fresh();
    let (a, b) = (blocking(&table, |_| {}), blocking(&table, |_| {}));
    let lease = Duration::from_secs(1);
    let started = Instant::now();
    let held = a.request("k").lease(lease).acquire().unwrap();
    let guard = b.request("k").wait(Duration::from_secs(20)).lock().unwrap();
    let took = started.elapsed();
    assert!(guard.fencing_token() > held.fencing_token());
    // The two estimates are up to half a second off, each.
    assert!(took >= lease && took < lease + Duration::from_millis(2_700), "{took:?}");
}

/// A store that reaches the server by way of this proxy, which moves the `Date` of the answers.
fn by_way_of(proxy: &Proxy, table: &Table) -> DynamodbOptions {
    let settings = Settings::Given(Box::new(config_at(&proxy.url())));
    DynamodbOptions::new(&table.0, settings)
}

#[test]
fn the_services_clock_decides_and_the_hosts_wall_clock_nothing() {
    needs_server!();
    let at = Behind::new();
    // To these two the service tells a time an hour ahead of this host's wall clock.
    at.proxy.shift_dates(3_600);
    let connect = || leasehold::dynamodb::builder(config_at(&at.proxy.url()), &at.table.0).connect().unwrap();
    let (a, b) = (connect(), connect());
    let held = a.lock("k").unwrap();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(held.fencing_token() > wall + 3_500_000_000, "the token is made from the service's time");
    assert!(b.try_lock("k").unwrap().is_none());
    assert!(held.is_held());
}

#[test]
fn a_step_of_the_services_clock_is_followed() {
    needs_server!();
    let at = Behind::new();
    let clock = Clock::system();
    let store = open(by_way_of(&at.proxy, &at.table), &clock);
    let before = get(&store, "k").now;
    at.proxy.shift_dates(-600);
    let after = get(&store, "k").now;
    let back = before.since(after);
    assert!(back > Duration::from_secs(595) && back < Duration::from_secs(605), "{back:?}");
}

/// Answers that say nothing of the time.
#[derive(Debug)]
pub struct Dateless;

impl Intercept for Dateless {
    fn name(&self) -> &'static str {
        "dateless"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        context.response_mut().headers_mut().remove("date");
        Ok(())
    }
}

#[test]
fn who_knows_the_time_badly_takes_nobody_over_and_holds_for_less() {
    needs_server!();
    let table = Table::fresh();
    let (store, clock) = client(&table);
    let mut a = exclusive("expired");
    granted(&store, &mut a);
    // With so small a grace, one answer that is cut to a second and took 200 ms tells too little.
    let mut all = options(&table.0, &clock);
    all.grace = Duration::from_millis(100);
    all.interceptors.push(SharedInterceptor::new(Dateless));
    let estimate = Arc::new(Estimate::default());
    let (around, now) = (Duration::from_millis(100), clock.now());
    estimate.learn(jiff::Timestamp::now().as_second(), now - around, now + around);
    all.estimate = Some(estimate);
    let unsure = open(all, &clock);
    clock.advance(LEASE + Duration::from_secs(10));
    refused(&unsure, &mut exclusive("expired"));
    match unsure.acquire(&mut exclusive("free"), &soon()).unwrap() {
        Acquired::Granted { holder, now, .. } => {
            assert!(now.since(holder.created) > Duration::from_millis(300), "it counts itself as lost earlier");
        }
        other => panic!("{other:?}"),
    }
    granted(&store, &mut exclusive("expired"));
}
