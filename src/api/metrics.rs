//! Feeds the crate [`metrics`](https://docs.rs/metrics), and by its exporters Prometheus, StatsD and others.
//!
//! ```
//! use std::sync::Arc;
//! use leasehold::{LockClient, metrics::Metrics};
//!
//! let metrics = Metrics::new().label("store", "memory").key(|key| key.split('/').next().unwrap_or(key).to_owned());
//! let client = LockClient::builder("memory:").observer(Arc::new(metrics)).connect()?;
//! let _guard = client.lock("reports/nightly")?; // leasehold_acquired_total{store="memory",key="reports"}
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Install a recorder of that crate before the first lock, and one that keeps idle gauges: a gauge that misses the
//! beginning of a hold would fall below zero at its end. Each event costs what the recorder does. All series have the
//! labels that you give. They have no label for the key unless you set [`key`](Metrics::key): keys that are made from
//! ids would make series without end.
//!
//! | series | kind | further labels | |
//! |---|---|---|---|
//! | `leasehold_held` | gauge | | locks that guards and keepers hold |
//! | `leasehold_waiting` | gauge | | waits; a call for any of several keys waits for each of them |
//! | `leasehold_acquired_total` | counter | | grants |
//! | `leasehold_refused_total` | counter | | others held it: each answer, so a wait counts several |
//! | `leasehold_wait_seconds` | histogram | `end` | how long each wait took; `granted`, `timed_out`, .. ([`WaitEnd::name`](crate::WaitEnd::name)) |
//! | `leasehold_hold_seconds` | histogram | `end` | how long it was held; `released`, `lost`, `handed_over`, `left` |
//! | `leasehold_lost_total` | counter | `reason` | [`LossReason::name`](crate::LossReason::name) |
//! | `leasehold_renewed_total` | counter | | heartbeats that extended a lease |
//! | `leasehold_renewal_left_seconds` | histogram | | what was left of the hold when a heartbeat was answered |
//! | `leasehold_renewal_late_total` | counter | | a loss is near, since heartbeats fail |
//! | `leasehold_request_seconds` | histogram | `operation` | each request to the store ([`Operation::name`](crate::Operation::name)) |
//! | `leasehold_request_errors_total` | counter | `operation`, `kind` | those that failed ([`ErrorKind::name`](crate::ErrorKind::name)) |
//! | `leasehold_unanswered_total` | counter | `operation` | writes that may or may not have happened |
//! | `leasehold_leading` | gauge | | elections in which this process leads |
//! | `leasehold_terms_total` | counter | | terms of elections that this process won |
//! | `leasehold_term_seconds` | histogram | `end` | how long it led; `resigned`, `lost`, .. ([`TermEnd::name`](crate::TermEnd::name)) |
//!
//! Counters of what can go wrong with a lock (losses, late renewals, unanswered writes) exist from the first grant on,
//! at zero: of a counter that begins with its first event, Prometheus would not see the increase. Each grant costs some
//! ten increments for that.
//!
//! The names end as Prometheus wants them. Five alerts over them, for observers with a label `store` as above:
#![doc = concat!("```yaml\n", include_str!("guide/alerts.yml"), "```")]
//! A dashboard for Grafana, for exporters that make histograms with buckets: import the file
//! `src/api/guide/dashboard.json` of this crate. Requests take milliseconds, holds may take days, and a time above the
//! largest bucket is shown as that bucket. So give `metrics-exporter-prometheus` buckets for each
//! (`set_buckets_for_metric`), in seconds:
//!
//! | times | buckets |
//! |---|---|
//! | `request` | 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30 |
//! | `renewal_left` | 0.1, 0.5, 1, 2, 4, 6, 8, 10, 12, 15, 20, 30, 45, 60, 120, 300 |
//! | `wait`, `hold`, `term` | 0.01, 0.1, 1, 10, 60, 600, 3600, 21600, 86400, 604800 |
#![doc = concat!("<details><summary>The dashboard</summary>\n\n```json\n", include_str!("guide/dashboard.json"), "```\n\n</details>")]

use std::fmt;
use std::time::Duration;

use ::metrics::{Label, counter, gauge, histogram};

use crate::model::error::ErrorKind;
use crate::model::event::{Event, Observer, Operation};
use crate::model::loss::LossReason;

type KeyLabel = Box<dyn Fn(&str) -> String + Send + Sync>;

/// An [`Observer`] that feeds the crate `metrics`; see the [module](self).
#[derive(Default)]
pub struct Metrics {
    labels: Vec<Label>,
    key: Option<KeyLabel>,
}

impl Metrics {
    /// Without any label.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label that all series of this observer have, such as the store or the service. Defaults to none.
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(name, value.into()));
        self
    }

    /// How to make the label `key` from a key, for events that are about one. It should return few different texts: each
    /// has some twenty series. Defaults to no such label.
    pub fn key(mut self, of: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.key = Some(Box::new(of));
        self
    }

    /// The labels of an event's series.
    fn labels(&self, event: &Event<'_>, more: &[(&'static str, &'static str)]) -> Vec<Label> {
        let key = self.key.as_ref().zip(event.key()).map(|(of, key)| Label::new("key", of(key)));
        let more = more.iter().map(|(name, value)| Label::from_static_parts(name, value));
        self.labels.iter().cloned().chain(key).chain(more).collect()
    }

    /// Makes the series of what can go wrong with a lock, at zero, when it is granted. If a series began with its first
    /// event, Prometheus would not see that anything was added to it.
    fn begin_at_zero(&self, event: &Event<'_>) {
        let (taken, expired) = (LossReason::TakenOver { by: None }, LossReason::Expired { last_error: None });
        let others = [LossReason::ReleasedByOther, LossReason::MaxHold, LossReason::Gone, LossReason::HeartbeatDied];
        for reason in [taken, expired].iter().chain(&others) {
            counter!("leasehold_lost_total", self.labels(event, &[("reason", reason.name())])).increment(0);
        }
        counter!("leasehold_renewal_late_total", self.labels(event, &[])).increment(0);
        for operation in [Operation::Acquire, Operation::Renew, Operation::Release] {
            counter!("leasehold_unanswered_total", self.labels(event, &[("operation", operation.name())])).increment(0);
        }
    }
}

impl Observer for Metrics {
    fn event(&self, event: &Event<'_>) {
        if event.held_change() != 0 {
            gauge!("leasehold_held", self.labels(event, &[])).increment(event.held_change() as f64);
        }
        if event.waits_change() != 0 {
            gauge!("leasehold_waiting", self.labels(event, &[])).increment(event.waits_change() as f64);
        }
        if event.leading_change() != 0 {
            gauge!("leasehold_leading", self.labels(event, &[])).increment(event.leading_change() as f64);
        }
        let held = |end, time: Duration| {
            histogram!("leasehold_hold_seconds", self.labels(event, &[("end", end)])).record(time);
        };
        match event {
            Event::Request { operation, took, error, .. } => {
                let operation = ("operation", operation.name());
                histogram!("leasehold_request_seconds", self.labels(event, &[operation])).record(*took);
                let failed = |kind: ErrorKind, n| {
                    let labels = self.labels(event, &[operation, ("kind", kind.name())]);
                    counter!("leasehold_request_errors_total", labels).increment(n);
                };
                match error {
                    // These begin at zero: see `begin_at_zero`.
                    None => [ErrorKind::Store, ErrorKind::Ambiguous].into_iter().for_each(|kind| failed(kind, 0)),
                    Some(error) => failed(error.kind(), 1),
                }
            }
            Event::Unknown { operation, .. } => {
                let labels = self.labels(event, &[("operation", operation.name())]);
                counter!("leasehold_unanswered_total", labels).increment(1);
            }
            Event::Granted { .. } => {
                counter!("leasehold_acquired_total", self.labels(event, &[])).increment(1);
                self.begin_at_zero(event);
            }
            Event::Refused { .. } => counter!("leasehold_refused_total", self.labels(event, &[])).increment(1),
            Event::WaitEnded { waited, end, .. } => {
                histogram!("leasehold_wait_seconds", self.labels(event, &[("end", end.name())])).record(*waited);
            }
            Event::Renewed { left, .. } => {
                counter!("leasehold_renewed_total", self.labels(event, &[])).increment(1);
                histogram!("leasehold_renewal_left_seconds", self.labels(event, &[])).record(*left);
            }
            Event::RenewalLate { .. } => {
                counter!("leasehold_renewal_late_total", self.labels(event, &[])).increment(1);
            }
            Event::Lost { loss } => {
                held("lost", loss.held_for);
                let labels = self.labels(event, &[("reason", loss.reason.name())]);
                counter!("leasehold_lost_total", labels).increment(1);
            }
            Event::Released { held_for, .. } => held("released", *held_for),
            Event::HandedOver { held_for, .. } => held("handed_over", *held_for),
            Event::Left { held_for, .. } => held("left", *held_for),
            Event::TermBegan { .. } => counter!("leasehold_terms_total", self.labels(event, &[])).increment(1),
            Event::TermEnded { led_for, end, .. } => {
                histogram!("leasehold_term_seconds", self.labels(event, &[("end", end)])).record(*led_for);
            }
            Event::WaitBegan { .. } | Event::Waited { .. } | Event::ReleasedData { .. } => {}
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("labels", &self.labels).finish_non_exhaustive()
    }
}
