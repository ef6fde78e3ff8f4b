//! What the feature `tracing` reports, as seen by a subscriber of that crate.

use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::alone::alone;
use crate::support::bench::LONG;
use crate::support::harness::{Store, millis};
use crate::support::wait::wait_until;
use leasehold::Mutex;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::tracing::Tracing;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Every event as `LEVEL message name=value ..` without times, and the names of all fields.
#[derive(Clone, Default)]
struct Book {
    lines: Arc<Mutex<Vec<String>>>,
    fields: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
    names: Vec<String>,
}

impl Line {
    fn put(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => {
                self.names.push(name.to_owned());
                if !name.ends_with("_s") && !name.ends_with("token") {
                    write!(self.fields, " {name}={value}").unwrap();
                }
            }
        }
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        assert!(field.name().ends_with("_s") && (0.0..60.0).contains(&value), "{field} is {value}");
        self.put(field, "");
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}"));
    }
}

impl Subscriber for Book {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.fields.lock().extend(line.names);
        self.lines.lock().push(format!("{} {}{}", event.metadata().level(), line.message, line.fields));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_event_has_the_level_and_the_fields_of_the_docs() {
    alone("tracing::each_event_has_the_level_and_the_fields_of_the_docs", || {
        let book = Book::default();
        tracing::subscriber::set_global_default(book.clone()).expect("the only one of this process");
        let store = Store::memory();
        let tracing = Tracing::new().system("memory").key(|key| key.split('/').next().unwrap().to_owned());
        let builder = store.builder().lease(LONG).heartbeat(millis(20)).observer(Arc::new(tracing));
        let client = builder.connect().unwrap();
        let has = |line: &str| book.lines.lock().iter().any(|said| said == line);
        let soon = |line: &str| {
            wait_until(line, || has(line));
        };
        let guard = client.lock("a/1").unwrap();
        assert!(client.try_lock_for("a/1", millis(50)).unwrap().is_none());
        soon("DEBUG renewed db.system.name=memory leasehold.key=a");
        guard.release().unwrap();
        for line in [
            "TRACE request db.system.name=memory leasehold.key=a db.operation.name=acquire",
            "TRACE request db.system.name=memory db.operation.name=schema",
            "INFO granted db.system.name=memory leasehold.key=a",
            "DEBUG refused db.system.name=memory leasehold.key=a leasehold.holders=1",
            "DEBUG wait_began db.system.name=memory leasehold.key=a",
            "DEBUG wait_ended db.system.name=memory leasehold.key=a leasehold.end=timed_out",
            "INFO released db.system.name=memory leasehold.key=a",
        ] {
            // Another thread may first report what a heartbeat did with the key.
            soon(line);
        }

        store.plan.next(Call::Acquire, Fault::FailBefore);
        let guard = client.request("b").warn_before(LONG * 17 / 20).lock().unwrap();
        soon("DEBUG request db.system.name=memory leasehold.key=b db.operation.name=acquire error.type=store");
        store.plan.always(Call::Renew, Fault::LostBefore);
        soon("DEBUG unanswered db.system.name=memory leasehold.key=b db.operation.name=renew error.type=ambiguous");
        soon("WARN renewal_late db.system.name=memory leasehold.key=b");
        store.plan.heal();
        let _ = guard.into_lock();
        let lost = client.request("c").max_hold(millis(1)).lock().unwrap();
        soon("WARN lost db.system.name=memory leasehold.key=c leasehold.reason=max_hold");
        drop(lost);
        let election = client.election("e").build().unwrap();
        election.campaign().unwrap().resign().unwrap();
        soon("INFO term_began db.system.name=memory leasehold.key=e");
        soon("INFO term_ended db.system.name=memory leasehold.key=e leasehold.end=resigned");
        soon("INFO handed_over db.system.name=memory leasehold.key=b");
        client.close().unwrap();
    });
}

#[test]
fn the_docs_name_the_events_and_fields_that_there_are() {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/api/tracing.rs")).unwrap();
    let (docs, code) = source.split_once("use std::fmt").unwrap();
    let made: Vec<&str> = code.split('"').skip(1).step_by(2).collect();
    assert!(made.len() > 40, "{made:?}");
    // The first part is the name of the event. It must be in the table, and so must all fields.
    let others = ["leasehold", "Tracing", "system"];
    for name in made.into_iter().filter(|name| !others.contains(name)) {
        assert!(docs.contains(&format!("`{name}`")), "the docs do not say {name}");
    }
}
