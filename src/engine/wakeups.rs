//! Makes the store report when a lock may be free, for all waiters of a client family at once.
//!
//! A thread asks [`Backend::wake`] for the keys that somebody waits for, and nudges the head of a key's line when the
//! store reports that key. The thread starts with the first wait and ends soon after the last one. Where the store
//! can't report, or fails, it ends at once, the waiters poll, and one of them starts it again later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use parking_lot::Mutex;

use super::queue::Queues;
use super::watcher::Skew;
use crate::lease::backoff;
use crate::model::error::Result;
use crate::store::Backend;
use crate::sys::cancel::CancelToken;
use crate::sys::caught::caught;
use crate::sys::clock::Clock;
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::random;
use crate::sys::thread::{Thread, begin_to_keep_a_lock, keeping_a_lock};

/// The thread lives this much longer than the last wait, in case somebody waits again.
const LINGER: Duration = Duration::from_millis(100);
/// How often it checks for a suspend, which by itself does not end anybody's sleep.
const TICK: Duration = Duration::from_secs(1);
/// A store that answered that it can't report is asked again after this time: its operator may have changed that.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// After a failure it is asked again after this time, doubled with each one ..
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// .. up to this.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// At most this part of the time is spent in calls, however fast the set of keys changes.
const SHARE: u32 = 10;

/// See the module.
pub struct Wakeups {
    backend: Arc<dyn Backend>,
    queues: Arc<Queues>,
    clock: Arc<Clock>,
    closing: CancelToken,
    request_timeout: Duration,
    state: Mutex<State>,
    /// Somebody waits for a key that the store does not watch yet.
    more: Sender<()>,
    mores: Receiver<()>,
}

#[derive(Default)]
struct State {
    /// The keys that the store watches now.
    watched: BTreeSet<String>,
    /// Keys that it does not watch any more, since nobody waited for them; a waiter that came for one right before that
    /// relies on being woken.
    let_go: BTreeSet<String>,
    thread: Option<Thread>,
    /// Until then waiters poll.
    polls_until: Option<Instant>,
    /// Failures in a row, and when the last one was.
    failures: u32,
    failed: Option<Instant>,
}

/// Why the thread ends.
enum End {
    /// Nobody waits any more, or the client is closed.
    Done,
    /// The store answered that it can't report.
    Deaf,
    /// It failed with this error, or stopped reporting.
    Broken(String),
    /// The same after it had reported for long.
    BrokenAnew(String),
}

impl State {
    /// From now on waiters poll, unless the thread ended because nobody waits. Returns whether to log that.
    fn poll(&mut self, end: &End) -> bool {
        // If the last failure is long ago, the store has not failed since, however short the waits were: the count
        // begins anew.
        let is_old = self.failed.is_some_and(|failed| failed.elapsed() > 3 * LAST_RETRY);
        if is_old || matches!(end, End::BrokenAnew(_)) {
            self.failures = 0;
        }
        let pause = match end {
            End::Done => return false,
            End::Deaf => ASK_AGAIN,
            End::Broken(_) | End::BrokenAnew(_) => {
                self.failures = self.failures.saturating_add(1);
                self.failed = Some(Instant::now());
                let doubled = FIRST_RETRY * (1 << self.failures.min(7)) / 2;
                backoff::with_jitter(doubled.min(LAST_RETRY), random::fraction())
            }
        };
        self.polls_until = Some(far_from(Instant::now(), pause));
        matches!(end, End::Deaf) || self.failures <= 1
    }
}

impl Wakeups {
    pub fn new(
        backend: Arc<dyn Backend>,
        queues: Arc<Queues>,
        clock: Arc<Clock>,
        closing: CancelToken,
        request_timeout: Duration,
    ) -> Self {
        let (more, mores) = crossbeam_channel::bounded(1);
        Wakeups { backend, queues, clock, closing, request_timeout, state: Mutex::default(), more, mores }
    }

    /// Whether the store watches `key` now. If not, the thread makes it do so, and then nudges the head of the key's
    /// line, which must read what happened before that.
    pub fn covers(self: &Arc<Self>, key: &str) -> bool {
        let mut state = self.state.lock();
        if state.watched.contains(key) {
            return true;
        }
        if state.polls_until.is_some_and(|until| Instant::now() < until) || self.closing.is_cancelled() {
            return false;
        }
        if state.thread.as_ref().is_none_or(Thread::is_over) {
            let wakeups = self.clone();
            let run = move || {
                // It must not wait for the logger: otherwise each thread that a logger holds up would stay, and the
                // store with it.
                begin_to_keep_a_lock();
                wakeups.run();
            };
            match Thread::spawn("leasehold-wake", run) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    let end = End::Broken(error.to_string());
                    let is_news = state.poll(&end);
                    drop(state);
                    if is_news {
                        // The caller is the first in a line: if it waited for a logger that hangs, the others in the
                        // line would wait, too.
                        keeping_a_lock(|| self.say(&end));
                    }
                    return false;
                }
            }
        }
        // A full channel holds one already.
        let _ = self.more.try_send(());
        false
    }

    /// Waits for the end of the thread, which comes with the closing.
    pub fn close(&self, by: Instant) {
        let thread = self.state.lock().thread.take();
        if let Some(thread) = thread {
            thread.join_by(by);
        }
    }

    fn run(&self) {
        loop {
            let end = caught(|| self.watch()).unwrap_or_else(|| End::Broken("the store panicked".to_owned()));
            pause!("wake.ends");
            let mut state = self.state.lock();
            // Waiters that rely on being woken sleep long, so they are nudged below.
            let mut counted_on = std::mem::take(&mut state.watched);
            counted_on.append(&mut state.let_go);
            if matches!(end, End::Done) && !self.closing.is_cancelled() && !self.queues.keys().is_empty() {
                // A waiter came while the thread ended.
                drop(state);
                counted_on.iter().for_each(|key| self.queues.nudge(key));
                continue;
            }
            let is_news = state.poll(&end);
            // A `close` waits for the end of this thread, which is still to come: so the thread stays in `state`.
            if !self.closing.is_cancelled() {
                state.thread = None;
            }
            drop(state);
            // Before the log, which may hang.
            counted_on.iter().for_each(|key| self.queues.nudge(key));
            if is_news {
                self.say(&end);
            }
            return;
        }
    }

    /// Logs that waiters poll. The logger is the user's, so nothing is locked here.
    fn say(&self, end: &End) {
        let store = &self.backend.info().label;
        match end {
            End::Deaf => log::debug!(target: "leasehold::wake", store:%;
                "the store can't wake waiters when a lock is free: they poll"),
            End::Broken(error) | End::BrokenAnew(error) => log::warn!(target: "leasehold::wake", store:%;
                "the store does not wake waiters when a lock is free; they poll until it does again: {error}"),
            End::Done => {}
        }
    }

    /// Makes the store watch the keys that are waited for, and passes on its reports.
    fn watch(&self) -> End {
        let jumps = self.clock.jumps();
        let mut skew = Skew::new(&self.clock);
        let mut freed: Receiver<String> = crossbeam_channel::never();
        let mut watched = BTreeSet::new();
        let mut shrink_at: Option<Instant> = None;
        let (started, mut call_at) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            let wanted = if self.closing.is_cancelled() { BTreeSet::new() } else { self.queues.keys() };
            if wanted.is_empty() && watched.is_empty() {
                return End::Done;
            }
            let is_more = !wanted.is_subset(&watched);
            let is_less = !is_more && wanted.len() < watched.len();
            let shrink = is_less && (self.closing.is_cancelled() || shrink_at.is_some_and(|at| at <= now));
            // When many waiters leave one by one, each makes the set of keys smaller. That must not cost one call each:
            // a smaller set also waits until calls have had no more than their share of the time.
            shrink_at = if is_less { shrink_at.or(Some((now + LINGER).max(call_at))) } else { None };
            if (is_more && call_at <= now) || shrink {
                let (to, next) = crossbeam_channel::unbounded();
                {
                    let mut state = self.state.lock();
                    // A waiter that comes for one of the other keys from now on polls.
                    let watched = std::mem::take(&mut state.watched);
                    let (stay, mut go) = watched.into_iter().partition(|key| wanted.contains(key));
                    state.watched = stay;
                    state.let_go.append(&mut go);
                }
                let called = self.call(&wanted, to);
                pause!("wake.asked");
                call_at = Instant::now() + now.elapsed() * SHARE;
                // Reports that came on the old channel before the new one was in use.
                freed.try_iter().for_each(|key| self.queues.nudge(&key));
                match called {
                    _ if wanted.is_empty() => return End::Done,
                    Ok(true) => freed = next,
                    Ok(false) => return End::Deaf,
                    Err(error) => return End::Broken(error.with_causes()),
                }
                let before = std::mem::replace(&mut watched, wanted);
                {
                    let mut state = self.state.lock();
                    state.watched.clone_from(&watched);
                    state.polls_until = None;
                    let waited_for = self.queues.keys();
                    state.let_go.retain(|key| waited_for.contains(key) && !watched.contains(key));
                }
                pause!("wake.watches");
                // The store reports no earlier changes, so the new keys are nudged. It reports all keys where it could
                // not go on from the previous set.
                let mut news: BTreeSet<String> = freed.try_iter().collect();
                news.extend(watched.difference(&before).cloned());
                news.iter().for_each(|key| self.queues.nudge(key));
                continue;
            }
            let next = [shrink_at, is_more.then_some(call_at)].into_iter().flatten().min();
            let until = far_from(now, TICK).min(next.unwrap_or_else(|| far_from(now, TICK)));
            let ends = shrink_at.is_none().then(|| self.queues.ends());
            if !self.wait(until, &freed, jumps.receiver(), ends) {
                let why = "it stopped reporting".to_owned();
                return if started.elapsed() > LAST_RETRY { End::BrokenAnew(why) } else { End::Broken(why) };
            }
            if skew.jumped(&self.clock) | (jumps.receiver().try_iter().count() > 0) {
                // A lease may have ended before a sleeping waiter wakes.
                watched.iter().for_each(|key| self.queues.nudge(key));
            }
        }
    }

    fn call(&self, wanted: &BTreeSet<String>, to: Sender<String>) -> Result<bool> {
        let keys: Vec<String> = wanted.iter().cloned().collect();
        let by = Deadline::after(self.request_timeout);
        // The call that ends the watching must be made, and not cut off, also when the client is closed.
        let by = if keys.is_empty() { by } else { by.or_cancel(&self.closing) };
        self.backend.wake(&keys, to, &by)
    }

    /// Waits until there is something to do, and passes on what is reported; false when the store reports no more.
    fn wait(
        &self,
        until: Instant,
        freed: &Receiver<String>,
        jumps: &Receiver<()>,
        ends: Option<&Receiver<()>>,
    ) -> bool {
        let mut select = crossbeam_channel::Select::new();
        select.recv(freed);
        select.recv(jumps);
        select.recv(&self.mores);
        select.recv(self.closing.cancelled());
        if let Some(ends) = ends {
            select.recv(ends);
        }
        let _ = select.ready_deadline(until);
        let _ = self.mores.try_recv();
        let _ = ends.map(Receiver::try_recv);
        loop {
            match freed.try_recv() {
                Ok(key) => {
                    pause!("wake.told");
                    self.queues.nudge(&key);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_store_does_not_tell_the_longer_waiters_poll() {
        let mut state = State::default();
        let mut poll = |end| {
            let (now, is_first) = (Instant::now(), state.poll(&end));
            (is_first, state.polls_until.map(|until| until.saturating_duration_since(now).as_secs_f64().round()))
        };
        let broken = || End::Broken("it failed".to_owned());
        assert_eq!(poll(End::Done), (false, None));
        assert_eq!(poll(End::Deaf), (true, Some(600.0)));
        assert_eq!(poll(broken()), (true, Some(1.0)));
        assert_eq!(poll(broken()), (false, Some(2.0)));
        for _ in 0..10 {
            poll(broken());
        }
        let (is_first, longest) = poll(broken());
        assert!(!is_first && longest.is_some_and(|seconds| (54.0..=66.0).contains(&seconds)), "{longest:?}");
        assert_eq!(poll(End::BrokenAnew("after long".to_owned())), (true, Some(1.0)));
        assert_eq!(poll(broken()).1, Some(2.0));
        state.failed = state.failed.and_then(|failed| failed.checked_sub(4 * LAST_RETRY));
        assert!(state.poll(&broken()), "nothing has failed for long");
    }
}
