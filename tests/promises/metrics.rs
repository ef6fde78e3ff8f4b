//! What the feature `metrics` counts, by a recorder of the crate of that name.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::support::alone::alone;
use crate::support::bench::LONG;
use crate::support::harness::{Store, millis};
use crate::support::wait::wait_until;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::metrics::Metrics;
use leasehold::{LockClient, Mutex};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// Every series as `name{label=value,..}`: a counter's or gauge's value, or how often a histogram recorded.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, f64>>>);

struct Series(String, Book);

impl Series {
    fn add(&self, value: f64) {
        *self.1.0.lock().entry(self.0.clone()).or_default() += value;
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _: u64) {
        unreachable!("nothing sets a counter");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.add(value);
    }
    fn decrement(&self, value: f64) {
        self.add(-value);
    }
    fn set(&self, _: f64) {
        unreachable!("nothing sets a gauge");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{} of {value} s", self.0);
        self.add(1.0);
    }
}

impl Book {
    fn series(&self, key: &Key) -> Arc<Series> {
        let mut name = format!("{}{{", key.name());
        for label in key.labels() {
            write!(name, "{}={},", label.key(), label.value()).unwrap();
        }
        Arc::new(Series(name.trim_end_matches(',').to_owned() + "}", self.clone()))
    }

    fn get(&self, series: &str) -> f64 {
        self.0.lock().get(series).copied().unwrap_or_default()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

#[test]
fn each_event_is_counted_where_the_docs_say() {
    alone("metrics::each_event_is_counted_where_the_docs_say", || {
        let book = Book::default();
        metrics::set_global_recorder(book.clone()).expect("the only one of this process");
        let metrics = Metrics::new().label("store", "memory").key(|key| key.split('/').next().unwrap().to_owned());
        let client = LockClient::builder("memory:")
            .heartbeat(Duration::from_millis(20))
            // The end of a term waits for the thread that reports it.
            .drop_timeout(LONG)
            .observer(Arc::new(metrics))
            .connect()
            .unwrap();

        let guard = client.request("a/1").lock_id("group").lock().unwrap();
        assert!(client.try_lock_for("a/1", Duration::from_millis(50)).unwrap().is_none());
        wait_until("two heartbeats", || book.get("leasehold_renewed_total{store=memory,key=a}") >= 2.0);
        assert_eq!(book.get("leasehold_held{store=memory,key=a}"), 1.0);
        client.unlock("group").unwrap();
        guard.loss().wait().expect("the next heartbeat finds out");
        drop(guard);
        client.lock("a/2").unwrap().release().unwrap();
        let _ = client.lock("b").unwrap().into_lock();
        let election = client.election("e").build().unwrap();
        let leadership = election.campaign().unwrap();
        // A thread of its own reports terms.
        wait_until("the term is counted", || book.get("leasehold_leading{store=memory,key=e}") >= 1.0);
        leadership.resign().unwrap();
        client.close().unwrap();

        let counts = [
            ("leasehold_acquired_total{store=memory,key=a}", 2.0),
            ("leasehold_held{store=memory,key=a}", 0.0),
            ("leasehold_held{store=memory,key=b}", 0.0),
            ("leasehold_waiting{store=memory,key=a}", 0.0),
            ("leasehold_wait_seconds{store=memory,key=a,end=timed_out}", 1.0),
            ("leasehold_lost_total{store=memory,key=a,reason=released_by_other}", 1.0),
            ("leasehold_hold_seconds{store=memory,key=a,end=lost}", 1.0),
            ("leasehold_hold_seconds{store=memory,key=a,end=released}", 1.0),
            ("leasehold_hold_seconds{store=memory,key=b,end=handed_over}", 1.0),
            ("leasehold_leading{store=memory,key=e}", 0.0),
            ("leasehold_terms_total{store=memory,key=e}", 1.0),
            ("leasehold_term_seconds{store=memory,key=e,end=resigned}", 1.0),
        ];
        for (series, count) in counts {
            assert_eq!(book.get(series), count, "{series}: {:#?}", book.0.lock());
        }
        // Series of what did not happen are there, at zero: Prometheus can't see the increase of a series that begins with 1.
        let count = |name: &str| book.0.lock().keys().filter(|series| series.starts_with(name)).count();
        assert_eq!(count("leasehold_lost_total{store=memory,key=b,"), 6, "one for each reason");
        assert_eq!(count("leasehold_renewal_late_total{store=memory,key=b}"), 1);
        assert_eq!(count("leasehold_unanswered_total{store=memory,key=b,"), 3);
        assert_eq!(count("leasehold_request_errors_total{store=memory,key=b,operation=acquire,kind=store}"), 1);
        assert!(book.get("leasehold_refused_total{store=memory,key=a}") >= 1.0);
        assert!(book.get("leasehold_request_seconds{store=memory,key=a,operation=acquire}") >= 3.0);
        let renewed = book.get("leasehold_renewed_total{store=memory,key=a}");
        assert_eq!(book.get("leasehold_renewal_left_seconds{store=memory,key=a}"), renewed);
        // There must be no error, no other series, and no series without the user's labels.
        assert_eq!(book.get("leasehold_request_errors_total{store=memory,key=a,operation=acquire,kind=held}"), 0.0);
        let stray: Vec<String> = book.0.lock().keys().filter(|name| !name.contains("{store=memory")).cloned().collect();
        assert!(stray.is_empty(), "{stray:?}");
    });
}

#[test]
fn what_waits_fails_and_is_late_is_counted_while_it_is_so() {
    alone("metrics::what_waits_fails_and_is_late_is_counted_while_it_is_so", || {
        let book = Book::default();
        metrics::set_global_recorder(book.clone()).expect("the only one of this process");
        let store = Store::memory();
        let builder = store.builder().lease(LONG).heartbeat(millis(20)).observer(Arc::new(Metrics::new()));
        let client = builder.connect().unwrap();
        let soon = |series: &str| wait_until(series, || book.get(series) >= 1.0);
        let none = |series: &str| assert_eq!(book.get(series), 0.0, "{series}");

        let held = store.bystander().lock("a").unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| client.lock("a").map(drop));
            soon("leasehold_waiting{}");
            held.release().unwrap();
            waits.join().unwrap().unwrap();
        });
        wait_until("nobody waits", || book.get("leasehold_waiting{}") == 0.0);

        let failed = "leasehold_request_errors_total{operation=acquire,kind=store}";
        none(failed);
        store.plan.next(Call::Acquire, Fault::FailBefore);
        // Eight seconds of the lease are left until the first warning.
        let guard = client.request("b").warn_before(LONG / 2).lock().unwrap();
        soon(failed);
        none("leasehold_unanswered_total{operation=renew}");
        none("leasehold_renewal_late_total{}");
        store.plan.always(Call::Renew, Fault::LostBefore);
        soon("leasehold_unanswered_total{operation=renew}");
        soon("leasehold_renewal_late_total{}");
        assert!(guard.is_held());
    });
}

#[test]
fn the_docs_and_the_alerts_name_the_series_that_there_are() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/api");
    let source = std::fs::read_to_string(format!("{folder}/metrics.rs")).unwrap();
    let alerts = std::fs::read_to_string(format!("{folder}/guide/alerts.yml")).unwrap();
    let (docs, code) = source.split_once("use std::fmt").unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = |text: &str| -> Vec<String> {
        text.split(|c| !is_name(c)).filter(|word| word.starts_with("leasehold_")).map(str::to_owned).collect()
    };
    let mut made = names(code);
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 16, "{made:?}");
    let tabled: Vec<String> = docs.lines().filter(|line| line.starts_with("//! | `")).flat_map(names).collect();
    assert!(made.iter().all(|name| tabled.contains(name)) && tabled.len() == made.len(), "{made:?} {tabled:?}");
    let dashboard = std::fs::read_to_string(format!("{folder}/guide/dashboard.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    let shown = names(&dashboard);
    for name in names(&alerts).iter().chain(&shown) {
        let name = name.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(made.iter().any(|made| made == name), "an alert or a panel asks for {name}");
    }
    for name in &made {
        assert!(shown.iter().any(|shown| shown.starts_with(name)), "no panel shows {name}");
    }
    assert_eq!(alerts.matches("- alert:").count(), 5);
}
