//! What a metrics crate would get: an observer counts events and adds up times, by the first part of
//! the key or by kind of request. Four workers share one lock, and an operator unlocks one of them by its group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Event, LockClient, LossReason, Mutex, Observer};

/// The name of a series and its label.
type Series = (&'static str, String);

/// How often each thing happened, and how long that took; and what is held and waited for right now.
#[derive(Default)]
struct Metrics {
    series: Mutex<BTreeMap<Series, (u64, Duration)>>,
    held: AtomicI64,
    waits: AtomicI64,
}

/// Not the whole key: keys that are made from ids, like `order/17`, would make series without end.
fn label(key: &str) -> String {
    key.split('/').next().unwrap_or(key).to_owned()
}

impl Observer for Metrics {
    fn event(&self, event: &Event<'_>) {
        let (name, label, time) = match event {
            Event::Request { operation, took, error: None, .. } => ("requests", operation.name().to_owned(), *took),
            Event::Request { operation, took, .. } => ("failed_requests", operation.name().to_owned(), *took),
            Event::Granted { key, waited, .. } => ("granted", label(key), *waited),
            Event::Refused { key, .. } => ("refused", label(key), Duration::ZERO),
            Event::Waited { key, .. } => ("looked_again", label(key), Duration::ZERO),
            Event::Renewed { key, left, .. } => ("renewed", label(key), *left),
            Event::Lost { loss, .. } => ("lost", label(&loss.key), loss.held_for),
            Event::WaitEnded { end, waited, .. } => ("waits", end.name().to_owned(), *waited),
            Event::Released { key, held_for, .. } => ("released", label(key), *held_for),
            // Later versions may have more kinds.
            other => ("others", label(other.key().unwrap_or_default()), Duration::ZERO),
        };
        self.held.fetch_add(event.held_change(), Ordering::Relaxed);
        self.waits.fetch_add(event.waits_change(), Ordering::Relaxed);
        let mut series = self.series.lock();
        let (count, total) = series.entry((name, label)).or_default();
        (*count, *total) = (*count + 1, *total + time);
    }
}

impl Metrics {
    fn count(&self, name: &'static str, label: &str) -> u64 {
        self.series.lock().get(&(name, label.to_owned())).map_or(0, |(count, _)| *count)
    }
}

fn main() -> leasehold::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let client = LockClient::builder("memory:")
        .lease(Duration::from_secs(2))
        .heartbeat(Duration::from_millis(50))
        .poll(Duration::from_millis(5)..=Duration::from_millis(15))
        .observer(metrics.clone())
        .connect()?;

    thread::scope(|scope| -> leasehold::Result<()> {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> leasehold::Result<()> {
                    let _guard = client.lock("index")?;
                    thread::sleep(Duration::from_millis(80)); // long enough for a heartbeat
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;

    let stuck = client.request("report").lock_id("job-7").lock()?;
    let unlocked = client.unlock("job-7")?;
    println!("unlocked {:?}, held by {}", unlocked[0].key(), unlocked[0].owner());
    let loss = stuck.loss().wait().expect("the next heartbeat finds out");
    assert!(matches!(loss.reason, LossReason::ReleasedByOther));
    drop(stuck);
    client.close()?;

    for ((name, label), (count, total)) in &*metrics.series.lock() {
        println!("leasehold_{name}_total{{{label:?}}} {count}    seconds {:.6}", total.as_secs_f64());
    }
    let counts =
        ["granted", "released", "lost"].map(|name| (metrics.count(name, "index"), metrics.count(name, "report")));
    assert_eq!(counts, [(4, 1), (4, 0), (0, 1)]);
    let gauges = (metrics.held.load(Ordering::Relaxed), metrics.waits.load(Ordering::Relaxed));
    assert_eq!(gauges, (0, 0), "every hold and every wait has ended");
    // A heartbeat may come between the operator's read and write. Both are then tried again.
    assert!(metrics.count("renewed", "index") > 0 && metrics.count("requests", "swap") > 0);
    println!("proof: 5 locks granted, 4 released and 1 lost, as the observer was told");
    Ok(())
}
