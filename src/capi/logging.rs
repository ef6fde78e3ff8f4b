//! Messages of the library while it works: the records of the crate `log`.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use ::log::kv::{self, Key, Value, VisitSource};
use ::log::{Level, LevelFilter, Log, Metadata, Record};

use super::callback::{Aside, Callback, Gate, REST};
use super::code::Code;
use super::failure::{Failure, Outcome};
use super::{call, handle, out_arg};
use crate::sys::log::wait_until_written;
use crate::sys::thread::expect_users_code;

/// How important a message is.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something that must not happen, like a panic in a callback.
    Error = 1,
    /// A lock that is lost, or something that may become wrong, like a renewal that fails.
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

/// A message. Its texts end in a NUL that their length leaves out, and are only there during the callback. They name
/// keys, owners and stores, and never a secret.
#[repr(C)]
pub struct LogRecord {
    /// The size of this struct as the library has it: later versions may add fields at its end.
    pub size: usize,
    /// The part of the library that the message comes from, like "leasehold::heartbeat".
    pub target: *const c_char,
    pub target_len: usize,
    /// The message, for people.
    pub text: *const c_char,
    pub text_len: usize,
    /// How important it is.
    pub level: LogLevel,
    /// Always 0. Padding is named so that a later field can't take its place unnoticed.
    pub reserved: u32,
}

/// Called with the message and the `user` pointer that was given.
pub type OnLog = Option<unsafe extern "C" fn(record: *const LogRecord, user: *mut c_void)>;

type LogFn = unsafe extern "C" fn(record: *const LogRecord, user: *mut c_void);

/// A function that gets messages.
pub struct LogSink {
    most: LevelFilter,
    callback: Callback<LogFn>,
    gate: Gate,
    aside: Aside,
}

handle::object!(LogSink = 11, LogHandle, "log");

/// A function that gets the library's messages. Free it with leasehold_log_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogHandle {
    pub id: u64,
}

thread_local! {
    /// Whether this thread is inside a callback. Messages of the functions that a callback calls are passed to nobody.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The logger of this copy of the crate `log`.
struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || INSIDE.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        for sink in handle::all::<LogSink>() {
            if record.level() <= sink.most {
                let (level, target, text) = (record.level(), format!("{}\0", record.target()), text(record) + "\0");
                let telling = sink.clone();
                sink.aside.tell(move || telling.tell(level, &target, &text));
            }
        }
    }

    fn flush(&self) {}
}

/// The message, followed by its fields as text: C has none.
fn text(record: &Record<'_>) -> String {
    struct Fields(Vec<String>);
    impl<'a> VisitSource<'a> for Fields {
        fn visit_pair(&mut self, key: Key<'a>, value: Value<'a>) -> Result<(), kv::Error> {
            self.0.push(format!("{key}={value}"));
            Ok(())
        }
    }
    let mut fields = Fields(Vec::new());
    let _ = record.key_values().visit(&mut fields);
    let message = record.args();
    if fields.0.is_empty() { message.to_string() } else { format!("{message} ({})", fields.0.join(", ")) }
}

impl LogSink {
    /// Both texts end in a NUL.
    fn tell(&self, level: Level, target: &str, text: &str) {
        let info = LogRecord {
            size: size_of::<LogRecord>(),
            target: target.as_ptr().cast(),
            target_len: target.len() - 1,
            text: text.as_ptr().cast(),
            text_len: text.len() - 1,
            level: match level {
                Level::Error => LogLevel::Error,
                Level::Warn => LogLevel::Warn,
                Level::Info => LogLevel::Info,
                Level::Debug => LogLevel::Debug,
                Level::Trace => LogLevel::Trace,
            },
            reserved: 0,
        };
        let Callback { function, user } = self.callback;
        let before = INSIDE.with(|inside| inside.replace(true));
        // SAFETY: the program that set it promised that it may be called until it is freed; freeing closes the gate.
        self.gate.pass(|| unsafe { function(&info, user) });
        // Restored, not cleared: this callback may run inside another one.
        INSIDE.with(|inside| inside.set(before));
    }
}

/// Becomes the logger, unless the program is written in Rust and has set one.
fn install() -> Outcome {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    match IS_OURS.get_or_init(|| ::log::set_logger(&Logger).is_ok()) {
        true => Ok(()),
        false => {
            Err(Failure::new(Code::Config, "the program has a logger of the crate log already: it gets everything"))
        }
    }
}

/// Sets the level of the function that wants the most messages.
fn choose_level() {
    let most = || handle::all::<LogSink>().iter().map(|sink| sink.most).max().unwrap_or(LevelFilter::Off);
    // Repeated, because another thread may do the same, and set what it found earlier. No mutex, because a forked
    // child could find it held.
    loop {
        let found = most();
        ::log::set_max_level(found);
        if most() == found {
            return;
        }
    }
}

/// Passes the library's messages to a function, from now on and for all clients. Without such a function they go
/// nowhere. It is called on the thread that a message comes from, on several threads at once, or, if a lock depends on
/// that thread, on another one. It should return at once, may call every function of this header, and must return: no
/// exception, longjmp() or pthread_exit(). A function that takes long holds up the call that the message comes from,
/// but no renewal, no loss callback and no loss descriptor. Messages of the functions that it calls itself are passed
/// neither to it nor to another such function. A forked child has no such function until it sets one.
/// \param level The least important messages that are passed, one of leasehold_log_level.
/// \param on_log Any thread may call it with `user` until it is freed.
/// \param log Gets the handle.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_log_new(level: i32, on_log: OnLog, user: *mut c_void, log: *mut LogHandle) -> Code {
    call(|| {
        let most = LevelFilter::iter().find(|most| *most as i32 == level && *most != LevelFilter::Off);
        let wrong =
            || Failure::new(Code::InvalidInput, format!("level is {level}, but must be one of leasehold_log_level"));
        let most = most.ok_or_else(wrong)?;
        let function = on_log.ok_or_else(|| super::text::null("on_log"))?;
        let log = out_arg!(log);
        install()?;
        expect_users_code();
        let callback = Callback { function, user };
        let made = handle::insert(LogSink { most, callback, gate: Gate::default(), aside: Aside::default() })?;
        choose_level();
        log.write(made)
    })
}

/// Ends the passing of messages to the function. First it passes on the messages of other threads that still wait, for
/// up to 5 s. Once this has returned, the function is not running and is not called any more, unless it freed itself;
/// then `user` can be freed. Waits until other threads have left the function, however long that takes; but not for a
/// thread that waits for a callback in which this is called.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_log_free(log: LogHandle) -> Code {
    call(|| {
        handle::get::<LogSink>(log)?;
        // Messages about heartbeats and losses come by way of another thread.
        if !INSIDE.get() {
            wait_until_written(REST);
        }
        let sink = handle::remove::<LogSink>(log)?;
        choose_level();
        sink.aside.tell_rest();
        sink.gate.close();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    struct Talk {
        entered: Sender<String>,
        leave: Receiver<()>,
    }

    unsafe extern "C" fn talks(record: *const LogRecord, user: *mut c_void) {
        // SAFETY: the test leaks it, and the record is there during the call.
        let (talk, text) = unsafe { (&*user.cast::<Talk>(), std::ffi::CStr::from_ptr((*record).text)) };
        // Other tests cause messages, too.
        if text.to_string_lossy().contains("of this test") {
            let _ = talk.entered.send(text.to_string_lossy().into_owned());
            let _ = talk.leave.recv_timeout(Duration::from_secs(20));
            ::log::warn!(target: "leasehold::test", "said by the callback of this test");
        }
    }

    unsafe extern "C" fn ignores(_: *const LogRecord, _: *mut c_void) {}

    unsafe extern "C" fn tells_another(record: *const LogRecord, user: *mut c_void) {
        // SAFETY: the test leaks it, and the record is there during the call.
        let (entered, text) = unsafe { (&*user.cast::<Sender<()>>(), std::ffi::CStr::from_ptr((*record).text)) };
        if text.to_string_lossy().contains("of two logs") {
            let _ = entered.send(());
            let callback = Callback { function: ignores as LogFn, user: std::ptr::null_mut() };
            let (gate, aside) = (Gate::default(), Aside::default());
            let another = LogSink { most: LevelFilter::Warn, callback, gate, aside };
            // As when a log is freed for which messages still wait.
            another.tell(Level::Warn, "t\0", "text\0");
            ::log::warn!(target: "leasehold::test", "said inside a callback of two logs");
        }
    }

    #[test]
    fn what_a_callback_says_after_another_one_is_not_passed_to_it() {
        let (entered, enters) = bounded(9);
        let (entered, mut log): (&'static Sender<()>, _) = (Box::leak(Box::new(entered)), LogHandle::default());
        let user = (&raw const *entered).cast_mut().cast();
        // SAFETY: a place that can be written to, and a function that any thread may call.
        let code = unsafe { leasehold_log_new(LogLevel::Warn as i32, Some(tells_another), user, &mut log) };
        assert_eq!(code, Code::Ok);
        ::log::warn!(target: "leasehold::test", "the first of two logs");
        assert_eq!(leasehold_log_free(log), Code::Ok);
        assert_eq!(enters.len(), 1);
    }

    unsafe extern "C" fn takes_long(record: *const LogRecord, user: *mut c_void) {
        // SAFETY: the test leaks it, and the record is there during the call.
        let (told, text) = unsafe { (&*user.cast::<Sender<()>>(), std::ffi::CStr::from_ptr((*record).text)) };
        if text.to_string_lossy().contains("of a slow log") {
            std::thread::sleep(Duration::from_millis(100));
            let _ = told.send(());
        }
    }

    /// The last messages of a program say how its holds ended.
    #[test]
    fn freeing_a_log_waits_for_what_other_threads_had_to_say() {
        let (told, tells) = bounded(9);
        let (told, mut log): (&'static Sender<()>, _) = (Box::leak(Box::new(told)), LogHandle::default());
        let user = (&raw const *told).cast_mut().cast();
        // SAFETY: a place that can be written to, and a function that any thread may call.
        let code = unsafe { leasehold_log_new(LogLevel::Warn as i32, Some(takes_long), user, &mut log) };
        assert_eq!(code, Code::Ok);
        let says = || {
            crate::sys::thread::begin_to_keep_a_lock();
            (0..5).for_each(|n| crate::sys::log::warn!(target: "leasehold::test", "line {n} of a slow log"));
        };
        std::thread::scope(|scope| scope.spawn(says).join().unwrap_or_default());
        assert_eq!((leasehold_log_free(log), tells.len()), (Code::Ok, 5));
    }

    #[test]
    fn freeing_a_log_waits_for_its_callback() {
        let ((entered, enters), (leaves, leave)) = (bounded(9), bounded::<()>(0));
        let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
        let (mut log, user) = (LogHandle::default(), (&raw const *talk).cast_mut().cast());
        // SAFETY: a place that can be written to, and a function that any thread may call.
        let code = unsafe { leasehold_log_new(LogLevel::Warn as i32, Some(talks), user, &mut log) };
        assert_eq!(code, Code::Ok);
        ::log::warn!(target: "another", "of this test, and not of the library");
        let says = std::thread::spawn(|| ::log::warn!(target: "leasehold::test", key = "k"; "of this test"));
        assert_eq!(enters.recv().as_deref(), Ok("of this test (key=k)"));
        let (freed, frees) = bounded(1);
        std::thread::spawn(move || freed.send(leasehold_log_free(log)));
        assert!(frees.recv_timeout(Duration::from_secs(1)).is_err(), "`user` may be freed while it is used");
        drop(leaves);
        assert_eq!(frees.recv(), Ok(Code::Ok));
        assert!(says.join().is_ok());
        ::log::warn!(target: "leasehold::test", "of this test, too late");
        assert!(enters.is_empty());
    }
}
