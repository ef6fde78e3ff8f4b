//! Makes events of the crate [`tracing`](https://docs.rs/tracing), which its subscribers turn into lines of a log, or
//! into events of OpenTelemetry.
//!
//! ```
//! use std::sync::Arc;
//! use leasehold::{LockClient, tracing::Tracing};
//!
//! let tracing = Tracing::new().system("memory").key(str::to_owned);
//! let client = LockClient::builder("memory:").observer(Arc::new(tracing)).connect()?;
//! let _guard = client.lock("reports/nightly")?; // INFO leasehold: granted leasehold.key="reports/nightly" ..
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! All events have the target `leasehold`, and no key unless you set [`key`](Tracing::key). They are in the span of the
//! call that they belong to. Events of heartbeats, of a close, of elections' terms, and of a loss that no call finds
//! come from a thread of the library, and are in no span. The lines of the crate `log` stay as they are: a subscriber
//! that receives those, too, gets each loss twice.
//!
//! | event | level | fields |
//! |---|---|---|
//! | `request` | trace; debug where it failed | `db.operation.name` ([`Operation::name`](crate::Operation::name)), `leasehold.took_s`, `error.type` |
//! | `unanswered` | debug | `db.operation.name`, `error.type` |
//! | `granted` | info | `leasehold.token`, `leasehold.waited_s` |
//! | `refused` | debug | `leasehold.holders`: how many |
//! | `wait_began` | debug | |
//! | `waited` | trace | `leasehold.waited_s` |
//! | `wait_ended` | debug | `leasehold.end` ([`WaitEnd::name`](crate::WaitEnd::name)), `leasehold.waited_s` |
//! | `renewed` | debug | `leasehold.token`, `leasehold.left_s`: before it was extended |
//! | `renewal_late` | warn | `leasehold.token`, `leasehold.left_s` |
//! | `lost` | warn | `leasehold.reason` ([`LossReason::name`](crate::LossReason::name)), `leasehold.token`, `leasehold.held_s` |
//! | `released`, `handed_over`, `left` | info | `leasehold.token`, `leasehold.held_s` |
//! | `released_data` | info | `leasehold.token` |
//! | `term_began` | info | `leasehold.token` |
//! | `term_ended` | info | `leasehold.token`, `leasehold.end` ([`TermEnd::name`](crate::TermEnd::name)), `leasehold.led_s` |
//!
//! Each event also has `leasehold.key` and `db.system.name` if they were set. Names that OpenTelemetry defines are used
//! as it defines them: `db.system.name`, `db.operation.name`, and `error.type` with
//! [`ErrorKind::name`](crate::ErrorKind::name). Times are in seconds.

use std::fmt;

use ::tracing::{Level, event};

use crate::model::event::{Event, Observer};

type KeyField = Box<dyn Fn(&str) -> String + Send + Sync>;

/// An [`Observer`] that makes events of the crate `tracing`; see the [module](self).
#[derive(Default)]
pub struct Tracing {
    system: Option<String>,
    key: Option<KeyField>,
}

impl Tracing {
    /// Without key and system.
    pub fn new() -> Self {
        Self::default()
    }

    /// The field `db.system.name` of all events. OpenTelemetry's names are `sqlite`, `aws.dynamodb`, `mongodb`,
    /// `postgresql` and `gcp.spanner`. Defaults to no such field.
    pub fn system(mut self, name: impl Into<String>) -> Self {
        self.system = Some(name.into());
        self
    }

    /// How to make the field `leasehold.key` from a key, for events that are about one. Defaults to no such field.
    pub fn key(mut self, of: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.key = Some(Box::new(of));
        self
    }
}

impl Observer for Tracing {
    fn event(&self, event: &Event<'_>) {
        let system = self.system.as_deref();
        let key = || self.key.as_ref().zip(event.key()).map(|(of, key)| of(key));
        // A macro, since level and fields must be literals. For an event without a subscriber `key` is not called.
        macro_rules! say {
            ($level:ident, $name:literal $(, $($field:literal = $value:expr),+)?) => {
                event!(target: "leasehold", Level::$level, "db.system.name" = system, "leasehold.key" = key(),
                    $($($field = $value,)+)? $name)
            };
        }
        match event {
            Event::Request { operation, took, error: None, .. } => {
                say!(TRACE, "request", "db.operation.name" = operation.name(), "leasehold.took_s" = took.as_secs_f64());
            }
            Event::Request { operation, took, error: Some(error), .. } => {
                say!(
                    DEBUG,
                    "request",
                    "db.operation.name" = operation.name(),
                    "leasehold.took_s" = took.as_secs_f64(),
                    "error.type" = error.kind().name()
                );
            }
            Event::Unknown { operation, error, .. } => {
                say!(DEBUG, "unanswered", "db.operation.name" = operation.name(), "error.type" = error.kind().name());
            }
            Event::Granted { fencing_token, waited, .. } => {
                say!(INFO, "granted", "leasehold.token" = *fencing_token, "leasehold.waited_s" = waited.as_secs_f64());
            }
            Event::Refused { holders, .. } => say!(DEBUG, "refused", "leasehold.holders" = holders.len()),
            Event::WaitBegan { .. } => say!(DEBUG, "wait_began"),
            Event::Waited { waited, .. } => say!(TRACE, "waited", "leasehold.waited_s" = waited.as_secs_f64()),
            Event::WaitEnded { waited, end, .. } => {
                say!(DEBUG, "wait_ended", "leasehold.end" = end.name(), "leasehold.waited_s" = waited.as_secs_f64());
            }
            Event::Renewed { fencing_token, left, .. } => {
                say!(DEBUG, "renewed", "leasehold.token" = *fencing_token, "leasehold.left_s" = left.as_secs_f64());
            }
            Event::RenewalLate { fencing_token, left, .. } => {
                say!(WARN, "renewal_late", "leasehold.token" = *fencing_token, "leasehold.left_s" = left.as_secs_f64());
            }
            Event::Lost { loss } => {
                say!(
                    WARN,
                    "lost",
                    "leasehold.reason" = loss.reason.name(),
                    "leasehold.token" = loss.fencing_token,
                    "leasehold.held_s" = loss.held_for.as_secs_f64()
                );
            }
            Event::Released { fencing_token, held_for, .. } => {
                say!(INFO, "released", "leasehold.token" = *fencing_token, "leasehold.held_s" = held_for.as_secs_f64());
            }
            Event::HandedOver { fencing_token, held_for, .. } => {
                say!(
                    INFO,
                    "handed_over",
                    "leasehold.token" = *fencing_token,
                    "leasehold.held_s" = held_for.as_secs_f64()
                );
            }
            Event::Left { fencing_token, held_for, .. } => {
                say!(INFO, "left", "leasehold.token" = *fencing_token, "leasehold.held_s" = held_for.as_secs_f64());
            }
            Event::ReleasedData { fencing_token, .. } => {
                say!(INFO, "released_data", "leasehold.token" = *fencing_token);
            }
            Event::TermBegan { fencing_token, .. } => say!(INFO, "term_began", "leasehold.token" = *fencing_token),
            Event::TermEnded { fencing_token, led_for, end, .. } => {
                say!(
                    INFO,
                    "term_ended",
                    "leasehold.token" = *fencing_token,
                    "leasehold.end" = *end,
                    "leasehold.led_s" = led_for.as_secs_f64()
                );
            }
        }
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").field("system", &self.system).finish_non_exhaustive()
    }
}
