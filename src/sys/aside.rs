//! What threads that locks depend on have to tell code of the user's. They must not wait for it, so that another thread
//! tells it, in the same order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::model::error::Result;
use crate::sys::log;
use crate::sys::process::ProcessId;
use crate::sys::thread::{Thread, here, keeping_a_lock, keeps_a_lock};

/// Who has something to tell about a key waits for what is being told of it already until that has taken so long: what
/// hangs is waited for once, and not for each event of each call.
pub(crate) const TURN: Duration = Duration::from_millis(100);
/// So many may wait for a slow observer. From then on only beginnings and ends are kept, of which there is one for each
/// lock.
pub(crate) const MOST_WAITING: usize = 10_000;
/// From so many on nothing is kept, not even what comes in pairs.
pub(crate) const MOST_IN_PAIRS: usize = 10 * MOST_WAITING;

pub(crate) type Told = Box<dyn FnOnce() + Send>;

/// What found no thread, and in which process.
static LACKING: Mutex<Vec<(ProcessId, Aside)>> = Mutex::new(Vec::new());

/// Tries again to have told what found no thread; whether that fails. `or_here`: then it is told here.
pub(crate) fn start_again(or_here: bool) -> bool {
    // In a forked child it may be locked for ever.
    let Some(lacking) = LACKING.try_lock().map(|mut lacking| std::mem::take(&mut *lacking)) else { return true };
    let mut is_lacking = false;
    for (process, aside) in lacking {
        if !process.is_current() {
            // What it tells is the parent's, and its mutex may be locked for ever.
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

/// Whether gauges would drift without it.
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
    /// Each with the key that it is about.
    waiting: VecDeque<(Option<String>, Told)>,
    /// What is being told, and the threads that do it.
    telling: Vec<Telling>,
    has_thread: bool,
    has_warned: bool,
    /// How many there was no place for.
    left_out: usize,
}

#[derive(Clone, PartialEq)]
struct Telling {
    key: Option<String>,
    thread: usize,
    since: Instant,
}

impl Aside {
    /// Has it told soon, by a thread that does nothing else. Without one it is told here; where a lock depends on the caller
    /// it waits until there is one.
    pub fn push(&self, key: Option<&str>, weight: Weight, tell: Told) {
        if !self.add(key, weight, tell) || self.start().is_ok() {
            return;
        }
        if keeps_a_lock() {
            return self.lacks_thread();
        }
        // Late is better than never; what takes long is left to the next thread.
        self.tell_all(Some(Instant::now() + TURN));
        if !self.start_again() {
            self.lacks_thread();
        }
    }

    /// The same for a caller that must not tell it itself.
    pub fn leave(&self, tell: Told) {
        keeping_a_lock(|| self.push(None, Weight::Light, tell));
    }

    /// The same of what nobody needs to know, for a caller that must not tell it itself: without a thread it is left out.
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

    /// Has it wait; whether a thread must be started for it.
    fn add(&self, key: Option<&str>, weight: Weight, tell: Told) -> bool {
        let mut queue = self.0.queue.lock();
        let most = if weight == Weight::Balance { MOST_IN_PAIRS } else { MOST_WAITING };
        // What waits needs a thread also where there is no place for more.
        let needs_thread = !std::mem::replace(&mut queue.has_thread, true);
        if queue.waiting.len() < most {
            queue.waiting.push_back((key.map(str::to_owned), tell));
            return needs_thread;
        }
        queue.left_out += 1;
        if !std::mem::replace(&mut queue.has_warned, true) {
            drop(queue);
            // The thread is still to be started, and the logger may hang.
            keeping_a_lock(
                || log::warn!(target: "leasehold::callback", "a callback or a logger is too slow: some of what happens is not reported to it"),
            );
        }
        needs_thread
    }

    /// Starts a thread for what waits without one. False where there can be none.
    fn start_again(&self) -> bool {
        {
            let mut queue = self.0.queue.lock();
            if queue.waiting.is_empty() || std::mem::replace(&mut queue.has_thread, true) {
                return true;
            }
        }
        self.start().is_ok()
    }

    /// The next look of a watcher tries again.
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

    /// Tells what waits, until nothing does or until `by`.
    pub fn tell_all(&self, by: Option<Instant>) {
        let mut queue = self.0.queue.lock();
        while !queue.waiting.is_empty() && by.is_none_or(|by| Instant::now() < by) {
            // Each key in its order: what others tell of it comes first.
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
            // Else each thread that ends would hang in it, and the next one be started.
            keeping_a_lock(
                || log::warn!(target: "leasehold::callback", "a callback or a logger was too slow: {left_out} reports or lines were left out"),
            );
        }
    }

    /// Returns nothing in a child of a process that has forked in what was told: others may have the queue there for ever.
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

    /// Called by a thread that is about to tell something of `key` itself: tells here what waits of that key, so that it
    /// comes in its order. False where that takes longer than `most`, at most a [`TURN`]: then what comes next must wait
    /// behind it.
    pub fn tell_first(&self, key: &str, most: Duration) -> bool {
        let (mut queue, by) = (self.0.queue.lock(), Instant::now() + most);
        // Called by what is being told: it comes behind what waits, else each that waits would be told inside the one before.
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

    /// Whether nothing of `key` is left to be told, nor is by another thread.
    #[cfg(feature = "capi")]
    pub fn has_told(&self, key: &str) -> bool {
        let queue = self.0.queue.lock();
        !queue.is_telling_elsewhere(Some(key)) && queue.waiting.iter().all(|(of, _)| of.as_deref() != Some(key))
    }

    /// Whether nothing is left to be told.
    pub fn is_told(&self) -> bool {
        let queue = self.0.queue.lock();
        queue.waiting.is_empty() && queue.telling.is_empty()
    }

    /// Waits until all of it was told, at most until `by`. What found no thread is told by another one, and not here, where
    /// it might hang.
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

    /// Whether another thread is telling something, of this key if one is given.
    fn is_telling_elsewhere(&self, key: Option<&str>) -> bool {
        self.telling_elsewhere(key).is_some()
    }

    /// Since when.
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

    /// Lets the aside hang in what it tells of `key`, until the sender is dropped.
    fn hang(aside: &Aside, key: &str) -> Sender<()> {
        let (leave, left): (_, Receiver<()>) = bounded(0);
        let (enter, entered) = bounded(1);
        let tell = move || {
            enter.send(()).unwrap_or_default();
            let _ = left.recv();
        };
        let is_busy = !aside.0.queue.lock().telling.is_empty();
        aside.push(Some(key), Weight::Light, Box::new(tell));
        // Where its own thread hangs already: one that calls.
        let (calls, of) = (aside.clone(), key.to_owned());
        if entered.recv_timeout(if is_busy { TURN } else { LONG }).is_err() {
            // Again, where it stood still for a whole turn before it told anything.
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
        // Who stands still for a whole turn between the two begins another one.
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
        // The thread of its own tells nothing of that key either.
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
        // A machine that stands still holds up one of them.
        assert!((0..500).filter(|_| waits()).count() < 50, "each event waits for it");
        drop(leave);
        aside.wait_until_told(Instant::now() + LONG);
        assert!(aside.tell_first("k", TURN), "nothing is told any more");
    }

    /// Of a lock that nobody renews yet.
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

    /// What nobody could tell for long, since no thread could be had.
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
        // Each by itself: under the thread sanitizer, on a busy machine, all of them take minutes.
        let mut all: Vec<u32> = (0..10 * MOST_WAITING).map_while(|_| says.recv_timeout(LONG).ok()).collect();
        aside.wait_until_told(Instant::now() + LONG);
        all.extend(says.try_iter());
        let count = |what| all.iter().filter(|said| **said == what).count();
        assert_eq!([count(1), count(2)], [MOST_WAITING, 9 * MOST_WAITING]);
    }
}
