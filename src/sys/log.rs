//! The macros of the crate `log`, whose logger is code of the user's. A panic in the logger is caught where it is
//! called, since it must end neither a thread of ours nor a drop. A logger that hangs, as on a standard error that
//! nobody reads, costs no lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::log::kv::{Error, Key, ToValue, Value, VisitSource};
use ::log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

use super::aside::Aside;
use super::caught::caught;
use super::process::ProcessId;
use super::thread::{keeps_a_lock, keeps_time};

/// How long a thread that locks depend on waits for its line to be written, so that a line of the last moment is not
/// lost with the process. It does not wait if other lines are still to be written before its own.
const WRITTEN: Duration = Duration::from_millis(20);

/// The lines of threads that locks depend on.
fn aside() -> Aside {
    static ALL: Asides = Asides { places: [const { Mutex::new(None) }; 2], at: AtomicUsize::new(0) };
    ALL.get()
}

/// An aside for each process. In a forked child a place may be locked for ever: then the child uses the other one.
struct Asides {
    places: [Mutex<Option<(ProcessId, Aside)>>; 2],
    at: AtomicUsize,
}

impl Asides {
    fn get(&self) -> Aside {
        let first = self.at.load(Ordering::SeqCst);
        for at in [first, 1 - first] {
            let Some(mut place) = self.places[at].try_lock_for(WRITTEN) else { continue };
            self.at.store(at, Ordering::SeqCst);
            return match &*place {
                Some((process, aside)) if process.is_current() => aside.clone(),
                _ => place.insert((ProcessId::current(), Aside::default())).1.clone(),
            };
        }
        Aside::default()
    }
}

/// Waits for at most `most` until the lines that were left to another thread are written, but not if this thread is
/// writing one of them.
#[cfg(feature = "capi")]
pub(crate) fn wait_until_written(most: Duration) {
    aside().wait_until_told(Instant::now() + most);
}

/// The same, but waits only for a moment ([`WRITTEN`]), and at most until `by`.
pub(crate) fn write_rest(by: Instant) {
    aside().wait_until_told(by.min(Instant::now() + WRITTEN));
}

/// Lines that wait for a thread, in all of the process.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether no line waits for a thread to write it.
pub fn is_written() -> bool {
    WAITING.load(Ordering::SeqCst) == 0
}

/// Catches a panic of the logger. The panic hook has said what went wrong; to log it would only panic again.
pub(crate) fn contained(log: impl FnOnce()) {
    let _ = caught(log);
}

/// The program's logger. Threads that locks depend on leave their lines to another thread.
pub(crate) struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ::log::logger().enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !keeps_a_lock() {
            return ::log::logger().log(record);
        }
        let (aside, line) = (aside(), Line::of(record));
        let is_free = aside.is_told();
        aside.leave(Box::new(move || contained(|| line.log())));
        // A thread that everybody's deadlines depend on has no time to wait: its last line may be lost with the
        // process.
        if is_free && !keeps_time() {
            aside.wait_until_told(Instant::now() + WRITTEN);
        }
    }

    fn flush(&self) {
        ::log::logger().flush();
    }
}

/// A copy of a record, for another thread. It is dropped once it is written, or if too many wait.
struct Line {
    level: Level,
    target: String,
    module: Option<&'static str>,
    file: Option<&'static str>,
    line: Option<u32>,
    text: String,
    fields: Fields,
}

impl Drop for Line {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Line {
    fn of(record: &Record<'_>) -> Line {
        WAITING.fetch_add(1, Ordering::SeqCst);
        let mut fields = Fields::default();
        let _ = record.key_values().visit(&mut fields);
        Line {
            level: record.level(),
            target: record.target().to_owned(),
            module: record.module_path_static(),
            file: record.file_static(),
            line: record.line(),
            text: record.args().to_string(),
            fields,
        }
    }

    fn log(&self) {
        let fields: Vec<_> = self.fields.0.iter().map(|(key, field)| (&**key, field.to_value())).collect();
        let fields = fields.as_slice();
        let mut record = Record::builder();
        record.level(self.level).target(&self.target).module_path_static(self.module).file_static(self.file);
        record.line(self.line).key_values(&fields);
        ::log::logger().log(&record.args(format_args!("{}", self.text)).build());
    }
}

#[derive(Default)]
struct Fields(Vec<(String, Field)>);

enum Field {
    Number(u64),
    Text(String),
}

impl ToValue for Field {
    fn to_value(&self) -> Value<'_> {
        match self {
            Field::Number(number) => (*number).into(),
            Field::Text(text) => Value::from_display(text),
        }
    }
}

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        let field = value.to_u64().map_or_else(|| Field::Text(value.to_string()), Field::Number);
        self.0.push((key.as_str().to_owned(), field));
        Ok(())
    }
}

macro_rules! error_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::error!(logger: $crate::sys::log::Logger, $($arg)+)) } }
macro_rules! warn_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::warn!(logger: $crate::sys::log::Logger, $($arg)+)) } }
macro_rules! info_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::info!(logger: $crate::sys::log::Logger, $($arg)+)) } }
macro_rules! debug_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::debug!(logger: $crate::sys::log::Logger, $($arg)+)) } }
// Only SQLite has use for it.
#[allow(unused_macros)]
macro_rules! trace_ { ($($arg:tt)+) => { $crate::sys::log::contained(|| ::log::trace!(logger: $crate::sys::log::Logger, $($arg)+)) } }

// Not every store uses each of them.
#[allow(unused_imports)]
pub(crate) use {debug_ as debug, error_ as error, info_ as info, trace_ as trace, warn_ as warn};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_fork_left_its_place_locked_a_process_has_another_one_and_does_not_wait_each_time() {
        let asides = Asides { places: [const { Mutex::new(None) }; 2], at: AtomicUsize::new(0) };
        let _left = asides.places[0].lock();
        let (leave, left) = crossbeam_channel::bounded::<()>(0);
        asides.get().leave(Box::new(move || left.recv().unwrap_or_default()));
        let waits = || {
            let began = Instant::now();
            assert!(!asides.get().is_told(), "each line has one of its own");
            began.elapsed() > WRITTEN / 2
        };
        // A machine that stands still delays only some of them.
        assert!((0..1_000).filter(|_| waits()).count() < 100, "each line waits");
        drop(leave);
    }
}
