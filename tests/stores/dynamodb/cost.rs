//! What the service charges for, as its answers report it.

use std::sync::Arc;

use leasehold::LockClient;
use leasehold::internals::lease::backoff;
use leasehold::internals::store::{Purpose, Released, Renewed};
use parking_lot::Mutex;

use crate::dynamodb::sdk::config::interceptors::{
    AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut,
};
use crate::dynamodb::sdk::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use crate::dynamodb::sdk::error::BoxError;
use crate::dynamodb::sdk::operation::get_item::{GetItemInput, GetItemOutput};
use crate::dynamodb::sdk::operation::update_item::{UpdateItemInput, UpdateItemOutput};
use crate::dynamodb::sdk::types::{ConsumedCapacity, ReturnConsumedCapacity};
use crate::dynamodb::*;
use crate::support::bench::{builder_over, waits_in_vain};
use crate::support::dynamodb::Table;
use crate::support::stores::soon;

/// Asks each request to say what it costs.
#[derive(Clone, Debug, Default)]
struct Meter(Arc<Mutex<Bill>>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bill {
    reads: u32,
    writes: u32,
    /// Writes that were refused. The service does not report what they cost: one unit, by its manual.
    refused: u32,
    strong_reads: u32,
    /// How many of the reads were answered: a waiter does not wait for its last one.
    answered: u32,
    read_units: f64,
    write_units: f64,
}

impl Meter {
    fn take(&self) -> Bill {
        std::mem::take(&mut self.0.lock())
    }
}

fn units(told: &Option<ConsumedCapacity>) -> f64 {
    told.as_ref().and_then(|told| told.capacity_units).expect("the answer says what it cost")
}

impl Intercept for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let mut bill = self.0.lock();
        let total = Some(ReturnConsumedCapacity::Total);
        if let Some(read) = context.input_mut().downcast_mut::<GetItemInput>() {
            read.return_consumed_capacity = total;
            bill.reads += 1;
            bill.strong_reads += u32::from(read.consistent_read == Some(true));
        } else if let Some(write) = context.input_mut().downcast_mut::<UpdateItemInput>() {
            write.return_consumed_capacity = total;
            bill.writes += 1;
        }
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let mut bill = self.0.lock();
        match context.output_or_error() {
            Ok(answer) => {
                if let Some(read) = answer.downcast_ref::<GetItemOutput>() {
                    bill.answered += 1;
                    bill.read_units += units(&read.consumed_capacity);
                } else if let Some(write) = answer.downcast_ref::<UpdateItemOutput>() {
                    bill.write_units += units(&write.consumed_capacity);
                }
            }
            Err(_) => bill.refused += 1,
        }
        Ok(())
    }
}

struct Metered {
    store: Arc<Dynamodb>,
    clock: Arc<Clock>,
    meter: Meter,
}

impl Metered {
    fn on(table: &Table) -> Metered {
        let (clock, meter) = (Clock::system(), Meter::default());
        // A client that still learns the time would make extra requests after slow answers.
        let mut options = knowing(table, &clock, Duration::ZERO);
        options.interceptors.push(SharedInterceptor::new(meter.clone()));
        let store = Arc::new(open(options, &clock));
        meter.take();
        Metered { store, clock, meter }
    }

    fn client(&self, lease: Duration) -> LockClient {
        let client = builder_over(self.store.clone(), self.clock.clone()).lease(lease).connect().unwrap();
        self.meter.take();
        client
    }
}

fn one_write() -> Bill {
    Bill { writes: 1, write_units: 1.0, ..Bill::default() }
}

fn docs_say(what: &str) {
    let docs = include_str!("../../../src/api/stores/dynamodb.rs");
    assert!(docs.contains(what), "src/api/stores/dynamodb.rs does not say {what:?}");
}

#[test]
fn each_step_of_a_hold_is_one_write_unit() {
    let at = needs_server!(Metered::on(&Table::fresh()));
    // Texts longer than the defaults, and as many given-up grants as a row may keep.
    let mut a = exclusive("a key of the length that keys have, and then some more of it");
    for _ in 0..8 {
        at.store.release(&mut exclusive(&a.key), Purpose::GiveUp, &soon()).unwrap();
    }
    a.ask.labels.host = Some("a-host-with-a-rather-long-name.example.com".to_owned());
    at.meter.take();
    granted(&*at.store, &mut a);
    assert_eq!(at.meter.take(), one_write(), "acquire");
    assert!(matches!(at.store.renew(&mut a, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    assert_eq!(at.meter.take(), one_write(), "renew");
    assert!(matches!(at.store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
    assert_eq!(at.meter.take(), one_write(), "release");

    let client = at.client(Duration::from_secs(300));
    at.meter.take();
    client.lock("with a long lease").unwrap().release().unwrap();
    assert_eq!(at.meter.take().write_units, 3.0);

    let long = "with a lease above a minute 3, since a renewal sets it";
    docs_say(&format!("| a hold, however short | 2 write units: acquire, release; {long} |"));
    let heartbeats = 3_600.0 / (20.0 / 3.0);
    docs_say(&format!("| an hour held, lease 20 s | {heartbeats:.0} write units: a heartbeat in 6.7 s |"));
}

#[test]
fn a_guard_writes_only_its_heartbeats() {
    let at = needs_server!(Metered::on(&Table::fresh()));
    // A request has many seconds: an attempt that was not waited for would be repeated, and count twice. The next
    // heartbeat comes late for the same reason: a release cancels one that is under way, and its cost is never
    // reported.
    let client = builder_over(at.store.clone(), at.clock.clone()).lease(LEASE).heartbeat(Duration::from_secs(5));
    let client = client.connect().unwrap();
    at.meter.take();
    let guard = client.lock("k").unwrap();
    let renewed = guard.info().renewed();
    crate::support::wait::wait_until("it is renewed", || guard.info().renewed() != renewed);
    assert!(guard.is_held());
    guard.release().unwrap();
    let bill = at.meter.take();
    assert_eq!((bill.reads, bill.refused, bill.write_units), (0, 0, f64::from(bill.writes)), "{bill:?}");
    assert!(bill.writes >= 3, "{bill:?}");
}

/// What this many callers that wait in vain for `k` cost, and how long they waited: longer if the server stalled for so
/// long that a request got no answer.
fn waiting(table: &Table, threads: u32, least: Duration) -> (Duration, Bill) {
    let waited = [1, 2, 4, 8].into_iter().find_map(|times: u32| {
        let (at, waits) = (Metered::on(table), times * least);
        let client = at.client(Duration::from_secs(20));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| waits_in_vain(&client, "k", waits).unwrap());
            }
        });
        let bill = at.meter.take();
        println!("{threads} for {waits:?}: {bill:?}");
        // A waiter without an answer gives up its acquire, which is also a write.
        let none_gave_up = bill.writes <= threads && bill.write_units == 0.0;
        (none_gave_up && bill.refused > 0 && bill.answered > 0).then_some((waits, bill))
    });
    waited.expect("each asks once at most, one is refused, and a look is answered")
}

#[test]
fn an_idle_waiter_reads_eventually_consistent_and_writes_nothing() {
    let table = needs_server!(Table::fresh());
    let holder = Metered::on(&table).client(Duration::from_secs(20)).lock("k").unwrap();
    let (waits, bill) = waiting(&table, 1, Duration::from_secs(4));
    assert_eq!((bill.writes, bill.refused, bill.write_units), (1, 1, 0.0), "it asks once: {bill:?}");
    assert_eq!(bill.strong_reads, 0);
    assert_eq!(bill.read_units, f64::from(bill.answered) / 2.0, "{bill:?}");
    assert!(bill.answered + 1 >= bill.reads, "{bill:?}");
    // At the poll rate: never more often than its lower end allows, and at least once.
    assert!((1..=waits.as_millis() / 150).contains(&u128::from(bill.reads)), "{bill:?}");
    holder.release().unwrap();

    // One hour of waiting, at the middle of the default poll range.
    let (mut waited, mut reads) = (Duration::ZERO, 0_u32);
    let poll = Duration::from_millis(150)..=Duration::from_millis(350);
    while waited < Duration::from_secs(3_600) {
        waited += backoff::poll_delay(&poll, waited, None, 0.5);
        reads += 1;
    }
    docs_say(&format!("| the first hour waited | 1 write unit and at most {} read units:", f64::from(reads) / 2.0));
    let later = backoff::poll_delay(&poll, waited, None, 0.5).as_secs_f64();
    docs_say(&format!("| each further hour waited | at most {} read units", 3_600.0 / later / 2.0));
}

#[test]
fn all_waiters_of_a_client_cost_what_one_does() {
    let table = needs_server!(Table::fresh());
    let holder = Metered::on(&table).client(Duration::from_secs(20)).lock("k").unwrap();
    let (waits, bill) = waiting(&table, 10, Duration::from_secs(3));
    // Callers that came before there was a line asked once, and each that became its head looks once.
    assert!(bill.writes <= 10 && u128::from(bill.reads) <= waits.as_millis() / 150 + 10, "{bill:?}");
    assert_eq!(bill.write_units, 0.0);
    holder.release().unwrap();
}
