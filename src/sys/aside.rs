//! Reports to code of the user's (observers, loggers) from threads that locks depend on. Such a thread must not wait
//! for that code, so it puts its reports into a queue, an [`Aside`], and another thread makes them, in the same order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::model::error::Result;
use crate::sys::log;
use crate::sys::process::ProcessId;
use crate::sys::thread::{Thread, here, keeping_a_lock, keeps_a_lock};

/// A thread that has something to report about a key waits for a report about it that another thread is making, until
/// that has taken this long. So a report that hangs is waited for once, and not for each event of each call.
pub(crate) const TURN: Duration = Duration::from_millis(100);
/// At most this many reports may wait for a slow observer. From then on only beginnings and ends are kept, of which
/// there is one for each lock.
pub(crate) const MOST_WAITING: usize = 10_000;
/// When this many reports wait, no more are kept, not even beginnings and ends, which come in pairs.
pub(crate) const MOST_IN_PAIRS: usize = 10 * MOST_WAITING;

pub(crate) type Told = Box<dyn FnOnce() + Send>;

/// Asides for which no thread could be started, each with its process.
static LACKING: Mutex<Vec<(ProcessId, Aside)>> = Mutex::new(Vec::new());

/// Tries again to start a thread for each aside that lacks one; whether that fails. `or_here`: without a thread the
/// reports are made here.
pub(crate) fn start_again(or_here: bool) -> bool {
    // In a forked child it may be locked for ever.
    let Some(lacking) = LACKING.try_lock().map(|mut lacking| std::mem::take(&mut *lacking)) else { return true };
    let mut is_lacking = false;
    for (process, aside) in lacking {
        if !process.is_current() {
            // Its reports belong to the parent, and its mutex may be locked for ever.
            std::mem::forget(aside);
        } else if !aside.start_again() {
            if or_here {
                aside.tell_all(None);
            } else {
                aside.lacks_thread();
                is_lacking = true;
            }
        }
    }
    is_lacking
}

/// `Balance` if gauges would drift without the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Light,
    Balance,
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Aside(Arc<Inner>);

#[derive(Default)]
struct Inner {
    queue: Mutex<Queue>,
    told: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The reports that wait, each with the key that it is about.
    waiting: VecDeque<(Option<String>, Told)>,
    /// The reports that are being made, and the threads that make them.
    telling: Vec<Telling>,
    has_thread: bool,
    has_warned: bool,
    /// How many reports there was no place for.
    left_out: usize,
}

#[derive(Clone, PartialEq)]
struct Telling {
    key: Option<String>,
    thread: usize,
    since: Instant,
}

impl Aside {
    /// Has the report made soon, by a thread that does nothing else. If none can be started, it is made here; but if a
    /// lock depends on this thread, it waits until there is one.
    pub fn push(&self, key: Option<&str>, weight: Weight, tell: Told) {
        if !self.add(key, weight, tell) || self.start().is_ok() {
            return;
        }
        if keeps_a_lock() {
            return self.lacks_thread();
        }
        // The reports are made here for one turn; what then remains is left to the next thread.
        self.tell_all(Some(Instant::now() + TURN));
        if !self.start_again() {
            self.lacks_thread();
        }
    }

    /// The same for a caller that must not make the report itself.
    pub fn leave(&self, tell: Told) {
        keeping_a_lock(|| self.push(None, Weight::Light, tell));
    }

    /// The same for a report that nobody needs, and a caller that must not make it itself: if no thread can be started,
    /// it is left out, and so are those that wait.
    // Only events of MongoDB's driver are of that kind.
    #[cfg_attr(not(feature = "mongodb"), allow(dead_code))]
    pub fn offer(&self, tell: Told) {
        if !self.add(None, Weight::Light, tell) {
            return;
        }
        let Err(error) = self.start() else { return };
        let (left_out, has_warned) = {
            let mut queue = self.0.queue.lock();
            queue.has_thread = false;
            (std::mem::take(&mut queue.waiting), std::mem::replace(&mut queue.has_warned, true))
        };
        if !has_warned {
            log::warn!(target: "leasehold::callback", "{error}; until it can be, what happens is not reported to a callback");
        }
        drop(left_out);
        self.0.told.notify_all();
    }

    /// Puts a report into the queue; whether a thread must be started for it.
    fn add(&self, key: Option<&str>, weight: Weight, tell: Told) -> bool {
        let mut queue = self.0.queue.lock();
        let most = if weight == Weight::Balance { MOST_IN_PAIRS } else { MOST_WAITING };
        // The reports that wait need a thread, even if there is no place for one more.
        let needs_thread = !std::mem::replace(&mut queue.has_thread, true);
        if queue.waiting.len() < most {
            queue.waiting.push_back((key.map(str::to_owned), tell));
            return needs_thread;
        }
        queue.left_out += 1;
        if !std::mem::replace(&mut queue.has_warned, true) {
            drop(queue);
            // Logged by another thread: the logger may hang, and the thread for the reports must still be started.
            keeping_a_lock(
                || log::warn!(target: "leasehold::callback", "a callback or a logger is too slow: some of what happens is not reported to it"),
            );
        }
        needs_thread
    }

    /// Starts a thread for reports that wait without one. False if none can be started.
    fn start_again(&self) -> bool {
        {
            let mut queue = self.0.queue.lock();
            if queue.waiting.is_empty() || std::mem::replace(&mut queue.has_thread, true) {
                return true;
            }
        }
        self.start().is_ok()
    }

    /// Notes that there is no thread: the next look of a watcher tries again to start one.
    fn lacks_thread(&self) {
        self.0.queue.lock().has_thread = false;
        let Some(mut lacking) = LACKING.try_lock_for(TURN) else { return };
        if lacking.iter().all(|(_, known)| !Arc::ptr_eq(&known.0, &self.0)) {
            lacking.push((ProcessId::current(), self.clone()));
        }
    }

    fn start(&self) -> Result<Thread> {
        let aside = self.clone();
        Thread::spawn_for_user("leasehold-told", move || aside.tell_all(None))
    }

    /// Makes the reports that wait, until there are none or until `by`.
    pub fn tell_all(&self, by: Option<Instant>) {
        let mut queue = self.0.queue.lock();
        while !queue.waiting.is_empty() && by.is_none_or(|by| Instant::now() < by) {
            // In the order of each key: a report about it that another thread is making comes first.
            match queue.waiting.iter().position(|(key, _)| key.is_none() || !queue.is_telling_elsewhere(key.as_deref()))
            {
                Some(at) => match self.tell_one(queue, at) {
                    Some(after) => queue = after,
                    None => return,
                },
                None => drop(self.0.told.wait_for(&mut queue, TURN)),
            }
        }
        queue.has_thread = false;
        let is_all = queue.waiting.is_empty();
        queue.has_warned &= !is_all;
        let left_out = if is_all { std::mem::take(&mut queue.left_out) } else { 0 };
        drop(queue);
        self.0.told.notify_all();
        if left_out > 0 {
            // Logged by another thread: otherwise each thread that ends could hang in the logger, and the next one be
            // started.
            keeping_a_lock(
                || log::warn!(target: "leasehold::callback", "a callback or a logger was too slow: {left_out} reports or lines were left out"),
            );
        }
    }

    /// Makes one report. Returns `None` if code that it called has forked and this is the child: there the queue may be
    /// locked for ever.
    fn tell_one<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, at: usize) -> Option<MutexGuard<'a, Queue>> {
        let Some((key, tell)) = queue.waiting.remove(at) else { return Some(queue) };
        let (telling, process) = (Telling { key, thread: here(), since: Instant::now() }, ProcessId::current());
        queue.telling.push(telling.clone());
        drop(queue);
        tell();
        if !process.is_current() {
            return None;
        }
        let mut queue = self.0.queue.lock();
        if let Some(at) = queue.telling.iter().position(|told| *told == telling) {
            queue.telling.swap_remove(at);
        }
        self.0.told.notify_all();
        Some(queue)
    }

    /// Called by a thread that is about to make a report about `key` itself: first makes here those about that key that
    /// wait, so that all come in order. False if that takes longer than `most`, at most a [`TURN`]: then the thread's
    /// own report must wait behind them.
    pub fn tell_first(&self, key: &str, most: Duration) -> bool {
        let (mut queue, by) = (self.0.queue.lock(), Instant::now() + most);
        // Called from inside a report: the new one must wait behind those that wait already. Otherwise each of these
        // would be made inside the one before.
        if queue.is_telling_here() {
            return !queue.waiting.iter().any(|(of, _)| of.as_deref() == Some(key));
        }
        loop {
            if let Some(since) = queue.telling_elsewhere(Some(key)) {
                if self.0.told.wait_until(&mut queue, by.min(since + TURN)).timed_out() {
                    return false;
                }
                continue;
            }
            let Some(at) = queue.waiting.iter().position(|(of, _)| of.as_deref() == Some(key)) else { return true };
            if Instant::now() >= by {
                return false;
            }
            let Some(after) = self.tell_one(queue, at) else { return false };
            queue = after;
        }
    }

    /// Whether no report about `key` waits, and no other thread is making one.
    #[cfg(feature = "capi")]
    pub fn has_told(&self, key: &str) -> bool {
        let queue = self.0.queue.lock();
        !queue.is_telling_elsewhere(Some(key)) && queue.waiting.iter().all(|(of, _)| of.as_deref() != Some(key))
    }

    /// Whether no report waits or is being made.
    pub fn is_told(&self) -> bool {
        let queue = self.0.queue.lock();
        queue.waiting.is_empty() && queue.telling.is_empty()
    }

    /// Waits until all reports are made, at most until `by`. For reports that lack a thread it starts one, and does not
    /// make them here, where they might hang.
    pub fn wait_until_told(&self, by: Instant) {
        let mut queue = self.0.queue.lock();
        while (!queue.waiting.is_empty() || queue.is_telling_elsewhere(None)) && !queue.is_telling_here() {
            if !queue.has_thread && !queue.waiting.is_empty() {
                drop(queue);
                if !self.start_again() {
                    self.lacks_thread();
                }
                queue = self.0.queue.lock();
            }
            let is_timed_out = self.0.told.wait_until(&mut queue, by.min(Instant::now() + TURN)).timed_out();
            if is_timed_out && Instant::now() >= by {
                break;
            }
        }
    }
}

impl Queue {
    fn is_telling_here(&self) -> bool {
        self.telling.iter().any(|telling| telling.thread == here())
    }

    /// Whether another thread is making a report, about this key if one is given.
    fn is_telling_elsewhere(&self, key: Option<&str>) -> bool {
        self.telling_elsewhere(key).is_some()
    }

    /// Since when another thread has been making one.
    fn telling_elsewhere(&self, key: Option<&str>) -> Option<Instant> {
        let is_it = |told: &&Telling| (key.is_none() || told.key.as_deref() == key) && told.thread != here();
        self.telling.iter().filter(is_it).map(|told| told.since).min()
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn say(to: &Sender<u32>, what: u32) -> Told {
        let to = to.clone();
        Box::new(move || to.send(what).unwrap_or_default())
    }

    /// Lets the aside hang in a report about `key`, until the sender is dropped.
    fn hang(aside: &Aside, key: &str) -> Sender<()> {
        let (leave, left): (_, Receiver<()>) = bounded(0);
        let (enter, entered) = bounded(1);
        let tell = move || {
            enter.send(()).unwrap_or_default();
            let _ = left.recv();
        };
        let is_busy = !aside.0.queue.lock().telling.is_empty();
        aside.push(Some(key), Weight::Light, Box::new(tell));
        // If the aside's own thread hangs already, another one makes the report.
        let (calls, of) = (aside.clone(), key.to_owned());
        if entered.recv_timeout(if is_busy { TURN } else { LONG }).is_err() {
            // Repeated, since it may stand still for a whole turn before it makes the report.
            std::thread::spawn(move || while !calls.tell_first(&of, TURN) {});
            assert_eq!(entered.recv_timeout(LONG), Ok(()));
        }
        leave
    }

    #[test]
    fn what_waits_of_a_key_is_told_before_what_comes_later_of_it() {
        let ((said, says), aside) = (unbounded(), Aside::default());
        let leave = hang(&aside, "slow");
        aside.push(Some("a"), Weight::Light, say(&said, 1));
        aside.push(Some("b"), Weight::Light, say(&said, 2));
        aside.push(Some("a"), Weight::Balance, say(&said, 3));
        // Repeated, since a thread may stand still for a whole turn between the two reports.
        assert!((0..5).any(|_| aside.tell_first("a", TURN)));
        assert_eq!(says.try_iter().collect::<Vec<_>>(), [1, 3]);
        aside.wait_until_told(Instant::now());
        drop(leave);
        aside.wait_until_told(Instant::now() + LONG);
        assert_eq!(says.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn who_calls_tells_no_more_than_takes_its_turn_and_in_the_order_of_each_key() {
        let ((said, says), aside) = (unbounded(), Aside::default());
        let (leave, other) = (hang(&aside, "slow"), hang(&aside, "k"));
        aside.push(Some("k"), Weight::Light, say(&said, 1));
        assert!(!aside.tell_first("k", TURN), "it is told elsewhere, and takes long");
        // The aside's own thread makes no report about that key either.
        drop(leave);
        aside.push(Some("b"), Weight::Light, say(&said, 2));
        assert_eq!(says.recv_timeout(LONG), Ok(2));
        assert!(says.is_empty());
        drop(other);
        assert_eq!(says.recv_timeout(LONG), Ok(1));
        let leave = hang(&aside, "slow");
        for _ in 0..1_000 {
            let said = said.clone();
            let slow = move || {
                std::thread::sleep(TURN / 20);
                said.send(3).unwrap_or_default();
            };
            aside.push(Some("k"), Weight::Light, Box::new(slow));
        }
        assert!(!aside.tell_first("k", TURN));
        assert!(says.try_iter().count() < 1_000);
        drop(leave);
    }

    /// Each call has several events, and there may be many calls while one observer hangs.
    #[test]
    fn what_hangs_is_waited_for_once() {
        let aside = Aside::default();
        let leave = hang(&aside, "k");
        assert!(!aside.tell_first("k", TURN));
        let waits = || {
            let began = Instant::now();
            assert!(!aside.tell_first("k", TURN));
            began.elapsed() > TURN / 5
        };
        // A machine that stands still delays only some of them.
        assert!((0..500).filter(|_| waits()).count() < 50, "each event waits for it");
        drop(leave);
        aside.wait_until_told(Instant::now() + LONG);
        assert!(aside.tell_first("k", TURN), "nothing is told any more");
    }

    /// The report may be about a lock that nobody renews yet.
    #[test]
    fn who_has_no_time_does_not_wait_for_what_is_being_told() {
        let at_once = || {
            let aside = Aside::default();
            let _leave = hang(&aside, "k");
            let began = Instant::now();
            let was_told = aside.tell_first("k", Duration::ZERO);
            !was_told && began.elapsed() < TURN / 2
        };
        // A busy machine may stand still in each, but hardly in all.
        assert!((0..20).any(|_| at_once()));
    }

    #[test]
    fn what_is_being_told_is_waited_for_but_not_by_its_own_thread() {
        let ((said, says), aside) = (unbounded(), Aside::default());
        let (inside, own) = (aside.clone(), said.clone());
        let tell = move || {
            inside.push(Some("k"), Weight::Light, say(&own, 1));
            assert!(!inside.tell_first("k", TURN));
            inside.wait_until_told(Instant::now() + 100 * LONG);
            own.send(2).unwrap_or_default();
        };
        aside.push(Some("k"), Weight::Light, Box::new(tell));
        aside.wait_until_told(Instant::now() + LONG);
        assert_eq!(says.try_iter().collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_calls_back_is_not_told_what_waits_inside_itself() {
        thread_local! {
            static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        let ((said, says), aside) = (unbounded(), Aside::default());
        let leave = hang(&aside, "slow");
        for _ in 0..1_000 {
            let (inside, said) = (aside.clone(), said.clone());
            let tell = move || {
                DEPTH.set(DEPTH.get() + 1);
                said.send(DEPTH.get()).unwrap_or_default();
                inside.tell_first("k", TURN);
                DEPTH.set(DEPTH.get() - 1);
            };
            aside.push(Some("k"), Weight::Light, Box::new(tell));
        }
        drop(leave);
        aside.wait_until_told(Instant::now() + LONG);
        let depths: Vec<u32> = says.try_iter().collect();
        assert_eq!((depths.len(), depths.iter().max()), (1_000, Some(&1)));
    }

    /// Reports may have waited for long, since no thread could be started.
    #[test]
    fn what_waits_is_told_once_there_is_a_thread_however_much_it_is() {
        let ((said, says), aside) = (unbounded(), Aside::default());
        let many = (0..MOST_WAITING).map(|_| (None, say(&said, 1)));
        aside.0.queue.lock().waiting.extend(many);
        aside.leave(say(&said, 2));
        assert_eq!(says.recv_timeout(LONG), Ok(1));
        aside.wait_until_told(Instant::now() + LONG);
        assert_eq!(says.try_iter().collect::<Vec<_>>(), [1; MOST_WAITING - 1]);
    }

    #[test]
    fn an_observer_that_hangs_costs_only_so_much_memory() {
        let ((said, says), aside) = (unbounded(), Aside::default());
        let leave = hang(&aside, "slow");
        for _ in 0..MOST_WAITING + 5 {
            aside.push(None, Weight::Light, say(&said, 1));
        }
        for _ in 0..10 * MOST_WAITING {
            aside.push(Some("k"), Weight::Balance, say(&said, 2));
        }
        drop(leave);
        // Each has its own time limit: under the thread sanitizer, on a busy machine, all of them take minutes.
        let mut all: Vec<u32> = (0..10 * MOST_WAITING).map_while(|_| says.recv_timeout(LONG).ok()).collect();
        aside.wait_until_told(Instant::now() + LONG);
        all.extend(says.try_iter());
        let count = |what| all.iter().filter(|said| **said == what).count();
        assert_eq!([count(1), count(2)], [MOST_WAITING, 9 * MOST_WAITING]);
    }
}
