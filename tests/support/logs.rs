//! The only logger of a test process. It keeps the library's warnings of all its tests.

use std::sync::Once;

use parking_lot::Mutex;

use super::wait::wait_until;

/// What each line is about (target, key and store), and its text.
static KEPT: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

struct Keep;

/// Starts to keep the lines, if it has not yet.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Keep).expect("the only logger of this process");
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// Waits until every pending line is written: the threads that keep a lock leave the writing to another thread.
pub fn wait_until_written() {
    wait_until("the log is written", leasehold::internals::sys::log_is_written);
}

/// The lines that contain `of`.
pub fn kept(of: &str) -> Vec<String> {
    wait_until_written();
    let lines = KEPT.lock().iter().map(|(about, text)| format!("{about} {text}")).collect::<Vec<_>>();
    lines.into_iter().filter(|line| line.contains(of)).collect()
}

/// Returns the texts of the lines that are about `of`, and forgets those lines.
pub fn take(of: &str) -> Vec<String> {
    keep();
    wait_until_written();
    let mut kept = KEPT.lock();
    let (theirs, others): (Vec<_>, _) =
        std::mem::take(&mut *kept).into_iter().partition(|(about, _)| about.contains(of));
    *kept = others;
    theirs.into_iter().map(|(_, text)| text).collect()
}

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // Other crates below the library write log lines, too.
        if record.target().starts_with("leasehold") {
            let field = |name: &str| record.key_values().get(name.into()).map(|value| format!(" {value}"));
            let fields: String = ["key", "store"].into_iter().filter_map(field).collect();
            KEPT.lock().push((format!("{}{fields}", record.target()), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}
