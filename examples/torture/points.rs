//! Threads that are stopped at marks of the library, which exist only with its feature `_internals`.

use std::cell::RefCell;

use crate::checker::history::Line;
use crate::options::Options;

/// The fault of such threads.
pub const POINTS: &str = "points";
/// Why this build can't have it, if it can't.
pub const LACKING: Option<&str> = match cfg!(feature = "_internals") {
    true => None,
    false => {
        Some("but this build has no marks at which a thread can be stopped; build it with --features _internals, too")
    }
};

thread_local! {
    /// The ids of the worker's calls that this thread is in.
    static CALLS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Keeps `CALLS` up to date, by what this thread writes down.
pub fn follow(line: &Line) {
    CALLS.with_borrow_mut(|calls| match line {
        Line::Ask { id, .. } | Line::Ending { id, .. } => calls.push(*id),
        Line::Granted { id, .. }
        | Line::Part { of: id, .. }
        | Line::Refused { id, .. }
        | Line::Failed { id, .. }
        | Line::Ended { id, .. } => calls.retain(|call| call != id),
        _ => {}
    });
}

/// Has one thread after the other wait at a mark, for 0.2 to 3 leases, with some time between them.
#[cfg(feature = "_internals")]
pub fn stop_threads(options: &Options, seed: u64, write: impl Fn(&Line) + Send + Sync + 'static) {
    use std::collections::HashMap;
    use std::time::Duration;

    use leasehold::Mutex;

    use crate::clock::{nanos, now};

    struct Marks {
        random: fastrand::Rng,
        next: u64,
        /// How often each mark was passed.
        passed: HashMap<&'static str, usize>,
    }

    let (lease, begin) = (options.lease, options.marks.clone());
    let mut random = fastrand::Rng::with_seed(seed);
    let next = now() + nanos(lease.mul_f64(0.5 + 2.0 * random.f64()));
    let (process, marks) = (std::process::id(), Mutex::new(Marks { random, next, passed: HashMap::new() }));
    leasehold::internals::sys::pause::on_each(move |mark| {
        // In a forked child another thread may have the mutex for ever.
        if std::process::id() != process || !mark.starts_with(&begin) {
            return;
        }
        let (from, to) = {
            let mut marks = marks.lock();
            let Marks { random, next, passed } = &mut *marks;
            let passed = passed.entry(mark).or_default();
            *passed += 1;
            // However often a mark is passed, it has the same chance as any other.
            let (from, is_chosen) = (now(), random.usize(..*passed) == 0);
            if from < *next || !is_chosen {
                return;
            }
            let to = from + nanos(lease.mul_f64(0.2 + 2.8 * random.f64()));
            *next = to + nanos(lease.mul_f64(1.0 + 3.0 * random.f64()));
            (from, to)
        };
        let calls = CALLS.try_with(|calls| calls.borrow().clone()).unwrap_or_default();
        // Written before the sleep, because the process may be killed during it.
        write(&Line::Point { from, to, mark: mark.to_owned(), calls });
        std::thread::sleep(Duration::from_nanos(to.saturating_sub(now())));
    });
}

#[cfg(not(feature = "_internals"))]
pub fn stop_threads(_: &Options, _: u64, _: impl Fn(&Line) + Send + Sync + 'static) {}
