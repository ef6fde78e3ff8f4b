//! What is said on standard error while a lock is held or waited for.
//!
//! A thread of its own writes it: where nobody reads standard error, as on a terminal after Ctrl-S, neither a heartbeat
//! nor what the lock is for must wait for that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use leasehold::Mutex;

use crate::args::Global;
use crate::show::{say, wait_line};

/// Lines that wait to be written; of more, the latest are left out.
const MOST: usize = 256;
/// How long the command waits for what was said before it, and the end of this process for that and for its last message:
/// much longer than it takes where anybody reads.
const WHERE_ANYBODY_READS: Duration = Duration::from_secs(2);
/// The same for the last message where nobody read what was said before it.
const WHERE_NOBODY_READS: Duration = Duration::from_millis(500);

enum Message {
    Line(String),
    /// The waiting line is to be drawn.
    Draw,
    /// Answered when all before it is written.
    Flush(Sender<()>),
}

/// None before the first line, and as long as no thread can be started.
static MESSAGES: Mutex<Option<Sender<Message>>> = Mutex::new(None);
/// The waiting line, until it is drawn: only the newest.
static LINE: Mutex<Option<String>> = Mutex::new(None);

/// The warnings that were said while it is connected, see [`Once`].
static SAID: Mutex<Option<BTreeSet<String>>> = Mutex::new(None);

/// Until its drop each of the library's warnings is said once: every try to connect would say it again.
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
    // A store may be away for months, and say something else each time.
    if said.len() == MOST {
        said.clear();
    }
    !said.insert(text.to_owned())
}

/// From now on the library's warnings are shown, with `-q` only errors, with `-vv` all. Who `makes` the schema is told nothing
/// of what is missing in it.
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

/// The bound of the last wait for the last message, where the end of this process must not come later.
static BOUND: OnceLock<Duration> = OnceLock::new();

/// Waits until what was said is written, unless nobody reads it, or that was waited for before.
pub fn flush() {
    if !flush_once(WHERE_ANYBODY_READS) {
        let _ = BOUND.set(WHERE_NOBODY_READS);
    }
}

/// The last wait for what was said. That for the last message takes as long at most.
pub fn flush_within(bound: Duration) {
    let _ = BOUND.set(bound);
    flush_once(bound);
}

fn flush_once(bound: Duration) -> bool {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    MESSAGES.lock().is_none() || IS_DONE.swap(true, Ordering::Relaxed) || wait_until_written(bound)
}

/// The last that is said, and not waited for if nobody reads it.
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

/// The same before a command has standard error, too.
pub fn settle() {
    wait_until_written(WHERE_ANYBODY_READS);
}

fn wait_until_written(bound: Duration) -> bool {
    let Some(messages) = MESSAGES.lock().clone() else { return true };
    let (by, (done, written)) = (Instant::now() + bound, bounded(1));
    messages.send_deadline(Message::Flush(done), by).is_ok() && written.recv_deadline(by).is_ok()
}

/// Draws the waiting line anew, which nobody waits for; an empty text removes it.
pub fn draw(text: String) {
    let before = LINE.lock().replace(text);
    if before.is_none() && messages().is_none_or(|to| to.try_send(Message::Draw).is_err()) {
        *LINE.lock() = None;
    }
}

/// A line that nobody waits for, unless there is no thread to write it.
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
    /// The schema, so of a warning that says what makes it there is nothing left.
    makes: bool,
}

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn log(&self, record: &log::Record<'_>) {
        // Those the command reports itself.
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
