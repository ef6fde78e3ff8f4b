//! What is said on standard error while a lock is held or waited for.
//!
//! A thread of its own writes it: if nobody reads standard error, as on a terminal after Ctrl-S, neither a heartbeat
//! nor the work under the lock may wait for that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use leasehold::Mutex;

use crate::args::Global;
use crate::show::{say, wait_line};

/// How many lines may wait to be written. Further lines are dropped.
const MOST: usize = 256;
/// How long the start of the command waits until earlier lines are written, and how long the end of this process waits
/// for them and for its last message. This is much longer than that takes if anybody reads.
const WHERE_ANYBODY_READS: Duration = Duration::from_secs(2);
/// The same for the last message, if nobody has read the lines before it.
const WHERE_NOBODY_READS: Duration = Duration::from_millis(500);

enum Message {
    Line(String),
    /// Draw the waiting line.
    Draw,
    /// Answered when all messages before it are written.
    Flush(Sender<()>),
}

/// To the thread that writes. `None` before the first line, and as long as no thread can be started.
static MESSAGES: Mutex<Option<Sender<Message>>> = Mutex::new(None);
/// The newest waiting line, until it is drawn.
static LINE: Mutex<Option<String>> = Mutex::new(None);

/// The warnings that were written since this process began to connect, see [`Once`].
static SAID: Mutex<Option<BTreeSet<String>>> = Mutex::new(None);

/// Until it is dropped, each warning of the library is written only once: every try to connect would repeat it.
pub struct Once;

impl Once {
    pub fn begin() -> Once {
        *SAID.lock() = Some(BTreeSet::new());
        Once
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        *SAID.lock() = None;
    }
}

fn was_said(text: &str) -> bool {
    let mut said = SAID.lock();
    let Some(said) = said.as_mut() else { return false };
    // A store may be away for months, with another text each time, so the set must not grow for ever.
    if said.len() == MOST {
        said.clear();
    }
    !said.insert(text.to_owned())
}

/// From now on the library's warnings are shown, with `-q` only errors, with `-vv` all. A command that `makes` the
/// schema gets no warnings about what is missing in the schema.
pub fn show(global: &Global, makes: bool) {
    let level = match global.verbose {
        _ if global.quiet => log::LevelFilter::Error,
        0 | 1 => log::LevelFilter::Warn,
        _ => log::LevelFilter::Debug,
    };
    let logger: &'static Log = Box::leak(Box::new(Log { makes }));
    let _ = log::set_logger(logger);
    log::set_max_level(level);
}

/// How long to wait for the last message, if this process must end sooner than after [`WHERE_ANYBODY_READS`].
static BOUND: OnceLock<Duration> = OnceLock::new();

/// Waits until all lines are written, unless nobody reads them, or that was waited for before.
pub fn flush() {
    if !flush_once(WHERE_ANYBODY_READS) {
        let _ = BOUND.set(WHERE_NOBODY_READS);
    }
}

/// The same, but waits for at most `bound`. The wait for the last message takes at most as long, too.
pub fn flush_within(bound: Duration) {
    let _ = BOUND.set(bound);
    flush_once(bound);
}

fn flush_once(bound: Duration) -> bool {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    MESSAGES.lock().is_none() || IS_DONE.swap(true, Ordering::Relaxed) || wait_until_written(bound)
}

/// Writes the last message, without waiting for long if nobody reads it.
pub fn last_words(say: impl Fn() + Send + Sync + 'static) {
    let (say, (done, said)) = (Arc::new(say), bounded(1));
    let theirs = say.clone();
    let thread = thread::Builder::new().name("leasehold-last".to_owned());
    let spawned = thread.spawn(move || {
        theirs();
        let _ = done.send(());
    });
    match spawned {
        Ok(_) => drop(said.recv_timeout(BOUND.get().map_or(WHERE_ANYBODY_READS, |bound| *bound))),
        Err(_) => say(),
    }
}

/// The same before the command gets standard error, too.
pub fn settle() {
    wait_until_written(WHERE_ANYBODY_READS);
}

fn wait_until_written(bound: Duration) -> bool {
    let Some(messages) = MESSAGES.lock().clone() else { return true };
    let (by, (done, written)) = (Instant::now() + bound, bounded(1));
    messages.send_deadline(Message::Flush(done), by).is_ok() && written.recv_deadline(by).is_ok()
}

/// Draws the waiting line anew, without waiting for that; an empty text removes it.
pub fn draw(text: String) {
    let before = LINE.lock().replace(text);
    if before.is_none() && messages().is_none_or(|to| to.try_send(Message::Draw).is_err()) {
        *LINE.lock() = None;
    }
}

/// Writes a line, without waiting for that unless there is no thread to write it.
pub fn tell(text: &str) {
    match messages() {
        Some(to) => drop(to.try_send(Message::Line(text.to_owned()))),
        None => say(text),
    }
}

fn messages() -> Option<Sender<Message>> {
    let mut known = MESSAGES.lock();
    if known.is_none() {
        let (to, messages) = bounded(MOST);
        let thread = thread::Builder::new().name("leasehold-log".to_owned()).spawn(move || {
            for message in messages {
                match message {
                    Message::Line(line) => say(&line),
                    Message::Draw => {
                        let line = LINE.lock().take();
                        line.iter().for_each(|line| wait_line(line));
                    }
                    Message::Flush(done) => drop(done.send(())),
                }
            }
        });
        *known = thread.is_ok().then_some(to);
    }
    known.clone()
}

struct Log {
    /// Whether the command makes the schema: then a warning that says how to make it is out of date soon.
    makes: bool,
}

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn log(&self, record: &log::Record<'_>) {
        // The command reports losses itself.
        let is_loss = record.target() == "leasehold::guard" && record.key_values().get("token".into()).is_some();
        let is_made = || self.makes && record.args().to_string().contains("create_schema()");
        if self.enabled(record.metadata()) && !is_loss && !is_made() {
            let (level, said) = (record.level().as_str().to_ascii_lowercase(), record.args().to_string());
            let key = record.key_values().get("key".into()).map(|key| key.to_string());
            let key = key.filter(|key| !said.contains(key)).map_or_else(String::new, |key| format!("{key}: "));
            let text = format!("{level}: {key}{said}");
            if record.level() > log::Level::Warn || !was_said(&text) {
                tell(&text);
            }
        }
    }

    fn flush(&self) {}
}
