//! Gives up, in the background, what nobody holds: acquisitions that were not answered, and grants whose release was
//! not. A lock without end whose guard has lost it gets an end here. There is one thread for a client family, which
//! ends when nothing is left to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::failures::Failures;
use super::queue::Queues;
use crate::lease::backoff;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::observed::Unknowable;
use crate::store::{Attempt, Backend, Purpose, Released, Renewal, Renewed};
use crate::sys::cancel::CancelToken;
use crate::sys::caught::caught;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::{Deadline, far_from, is_ready_by};
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::random;
use crate::sys::thread::{Thread, begin_to_keep_time, keeping_a_lock};

/// At most this many are kept, more than anybody takes at once. If there are more, the one whose lease ends first is
/// dropped: it ends by itself.
const MOST: usize = 16_384;
/// The text about those that are left at the end.
pub const LEFT: &str = "grants that nobody holds could not be given up; what stands in the store does so until its lease \
                        ends or it is released";

/// See the module.
pub struct Undo {
    backend: Arc<dyn Backend>,
    queues: Arc<Queues>,
    clock: Arc<Clock>,
    request_timeout: Duration,
    /// Ends the thread and its request.
    stop: CancelToken,
    state: Mutex<State>,
    /// There is more to give up.
    more: Sender<()>,
    mores: Receiver<()>,
    /// No thread could be started for what is left.
    lack: Sender<()>,
    lacks: Receiver<()>,
}

#[derive(Default)]
struct State {
    left: Vec<Left>,
    /// By when all of it must end, once that was asked for: what is due later is not waited for.
    ends_at: Option<Instant>,
    /// Whether a thread will continue with what is left.
    is_running: bool,
    thread: Option<Thread>,
    /// Cancelled when the call of `end` that is under way is over, for those that wait for it.
    ending: CancelToken,
}

/// What is not given up yet.
struct Left {
    attempt: Attempt,
    /// It gets this end instead of being given up.
    end: Option<Renewal>,
    /// By then the grant, if there was one, has ended by itself.
    stands_until: BootTime,
    /// No request before that.
    not_before: Instant,
    /// There is a minimum hold: nothing may end the grant before `not_before`. Any other may end at once.
    must_stand: bool,
    due: Instant,
    failures: u32,
}

impl Undo {
    pub fn new(backend: Arc<dyn Backend>, queues: Arc<Queues>, clock: Arc<Clock>, request_timeout: Duration) -> Self {
        let ((more, mores), (lack, lacks)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded(1));
        let (stop, state) = (CancelToken::new(), Mutex::default());
        Undo { backend, queues, clock, request_timeout, stop, state, more, mores, lack, lacks }
    }

    /// Tries to give up an acquisition for as long as its grant could last: one lease from now on, since the request may
    /// arrive only now.
    pub fn push(self: &Arc<Self>, attempt: Attempt) {
        self.push_after(attempt, Duration::ZERO);
    }

    /// The same for a grant that must remain for `delay` from now on.
    pub fn push_after(self: &Arc<Self>, attempt: Attempt, delay: Duration) {
        self.add(attempt, None, delay);
    }

    /// Gives the grant an end, so that it does not remain past that, even if its guard is never dropped.
    pub fn push_end(self: &Arc<Self>, attempt: Attempt, end: Renewal) {
        self.add(attempt, Some(end), Duration::ZERO);
    }

    fn add(self: &Arc<Self>, attempt: Attempt, end: Option<Renewal>, delay: Duration) {
        let key = attempt.key.clone();
        let stands_until = self.clock.now() + attempt.ask.lease;
        let not_before = far_from(Instant::now(), delay);
        let must_stand = !delay.is_zero();
        let left = Left { attempt, end, stands_until, not_before, must_stand, due: not_before, failures: 0 };
        let (surplus, started, is_late) = {
            let mut state = self.state.lock();
            state.left.push(left);
            let surplus = if state.left.len() > MOST { state.pop(|left| left.stands_until) } else { None };
            (surplus, self.start(&mut state), state.ends_at.is_some() && !state.is_running())
        };
        // A full channel holds one already.
        let _ = self.more.try_send(());
        if started.is_err() {
            let _ = self.lack.try_send(());
        }
        // Without waiting for the logger, which may hang: others may wait for the caller.
        keeping_a_lock(|| {
            if let Some(left) = surplus {
                log::warn!(target: "leasehold::client", key:? = left.attempt.key;
                    "a grant of lock {:?} that nobody holds is not given up, for too many wait for that; if it stands in \
                     the store, it does so until its lease ends or it is released", left.attempt.key);
            }
            if let Err(error) = started {
                log::warn!(target: "leasehold::client", key:?; "a grant of lock {key:?} that nobody holds is given up later: {error}");
            }
        });
        if is_late {
            warn_of_left(1);
        }
    }

    /// Tries again to start a thread, if one is needed and could not be started; returns whether that fails.
    pub fn start_again(self: &Arc<Self>) -> bool {
        // It was logged before. The watcher and the next call try again, and `end` needs no thread.
        self.start(&mut self.state.lock()).is_err()
    }

    /// Becomes ready when a thread could not be started: then `start_again` must be called.
    pub fn lacks_thread(&self) -> &Receiver<()> {
        &self.lacks
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        // After an `end`, only another `end` tries again.
        if state.left.is_empty() || state.is_running() || state.ends_at.is_some() {
            return Ok(());
        }
        let undo = self.clone();
        let until = Deadline::after(Duration::MAX).or_cancel(&self.stop);
        let run = move || {
            // It must not wait for the user's code: every grant that nobody holds waits for this thread.
            begin_to_keep_time();
            undo.run(&until);
        };
        state.thread = Some(Thread::spawn("leasehold-undo", run)?);
        state.is_running = true;
        Ok(())
    }

    /// Waits until `soon` for the end of the work, then ends it. Of concurrent calls the first does so, the others
    /// wait. A later one tries what is left once more. Returns how many grants were not given up, and may remain.
    pub fn end(&self, soon: Instant, by: Instant) -> usize {
        let (thread, is_running, count, ending) = {
            let mut state = self.state.lock();
            let is_running = state.is_running();
            if !is_running || state.thread.is_some() {
                state.ending = CancelToken::new();
            }
            state.is_running = true;
            let before = state.left.len();
            // A minimum hold that lasts longer ends with its lease. What failed before is tried once more, even if it
            // is due only later: the store may be back.
            state.ends_at = Some(soon);
            state.left.retain(|left| !left.must_stand || left.not_before <= soon);
            state.left.iter_mut().for_each(|left| left.due = left.not_before);
            (state.thread.take(), is_running, before - state.left.len(), state.ending.clone())
        };
        if count > 0 {
            warn_of_left(count);
        }
        let _ = self.more.try_send(());
        if !is_running {
            // No thread could be started for what is left.
            keeping_a_lock(|| self.run(&Deadline::at(soon)));
        }
        match thread {
            Some(thread) => {
                thread.wait_until(soon);
                self.stop.cancel();
                thread.join_by(by);
                ending.cancel();
            }
            // Another call has begun this end, and its work must not be cut off.
            None if is_running => drop(is_ready_by(ending.cancelled(), soon)),
            None => ending.cancel(),
        }
        let state = self.state.lock();
        // Including what a thread that did not end in time has yet to do, or is doing.
        state.left.len().max(usize::from(state.is_running()))
    }

    fn run(&self, until: &Deadline) {
        while let Some(left) = self.next(until) {
            self.give_up(left, until);
        }
    }

    /// What must be given up now; `None` when nothing is left, or the time is over.
    fn next(&self, until: &Deadline) -> Option<Left> {
        loop {
            let due = {
                let mut state = self.state.lock();
                let now = self.clock.now();
                state.left.retain(|left| now < left.stands_until);
                let is_vain = |left: &Left| state.ends_at.is_some_and(|end| left.due > end);
                if state.left.iter().all(is_vain) || until.is_over() {
                    state.is_running = false;
                    let count = state.left.len();
                    drop(state);
                    if count > 0 {
                        warn_of_left(count);
                    }
                    return None;
                }
                let due = state.left.iter().map(|left| left.due).min()?;
                let now = Instant::now();
                if due <= now {
                    // One that fails must not delay those that were not tried yet.
                    return state.pop(|left| (left.due > now, left.failures, left.due));
                }
                due
            };
            until.wait_for_or(due.saturating_duration_since(Instant::now()), &self.mores);
        }
    }

    /// One request.
    fn give_up(&self, mut left: Left, until: &Deadline) {
        pause!("undo.sent");
        let by = until.clone().within(self.request_timeout);
        let attempt = &mut left.attempt;
        let failed = match left.end {
            None => try_give_up(&*self.backend, attempt, &by).err(),
            Some(end) => {
                let renewed = ends_hold(|| self.backend.renew(attempt, end, &by), Renewed::Unknown);
                renewed.and_then(Unknowable::known).err()
            }
        };
        let Some(error) = failed else {
            pause!("undo.answered");
            // Waiters of this process look at once.
            return self.queues.nudge(&left.attempt.key);
        };
        if left.failures == 0 {
            log::warn!(target: "leasehold::client", key:? = left.attempt.key;
                "a grant of lock {:?} that nobody holds could not be given up yet; if it stands in the store, it does so \
                 until its lease ends or it is released: {}", left.attempt.key, error.with_causes());
        }
        if error.is_gone() {
            // This client does not reach that file any more, unless it is moved back.
            return;
        }
        left.failures = left.failures.saturating_add(1);
        let delay = backoff::retry_delay(left.failures, Duration::MAX, random::fraction());
        // A lock without end is tried for ever, but less and less often.
        left.due = far_from(Instant::now(), delay * (left.failures / 60).clamp(1, 60));
        self.state.lock().left.push(left);
    }
}

#[cfg(test)]
impl Undo {
    /// How long what is left may remain at most, as far as is known.
    pub fn longest(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.left.iter().map(|left| left.stands_until.since(self.clock.now())).max()
    }
}

fn warn_of_left(count: usize) {
    // Without waiting for the logger: some of them may still be given up.
    keeping_a_lock(|| log::warn!(target: "leasehold::client", count; "{LEFT}"));
}

impl State {
    /// False if its thread died, for example because memory ran out.
    fn is_running(&self) -> bool {
        self.is_running && !self.thread.as_ref().is_some_and(Thread::is_over)
    }

    fn pop<K: Ord>(&mut self, first: impl Fn(&Left) -> K) -> Option<Left> {
        let at = (0..self.left.len()).min_by_key(|at| first(&self.left[*at]))?;
        Some(self.left.swap_remove(at))
    }
}

/// Makes a call that ends a hold. It waits for no logger that hangs, and a panic of the store counts as no answer.
pub fn ends_hold<T>(call: impl FnOnce() -> Result<T>, unknown: impl FnOnce(Error) -> T) -> Result<T> {
    let panicked = || Error::new(ErrorKind::Ambiguous, "the store panicked").retryable();
    keeping_a_lock(|| caught(call)).unwrap_or_else(|| Ok(unknown(panicked())))
}

/// Repeats the giving up until it is answered or `deadline` is over.
pub fn give_up(
    backend: &dyn Backend,
    attempt: &mut Attempt,
    deadline: &Deadline,
    request_timeout: Duration,
) -> Result<()> {
    let mut failures = Failures::none();
    loop {
        let by = deadline.of_try().within(request_timeout);
        let Err(error) = try_give_up(backend, attempt, &by) else { return Ok(()) };
        failures.wait(error, deadline)?;
    }
}

/// Releases what may have been granted, and makes the store refuse late copies: one request.
fn try_give_up(backend: &dyn Backend, attempt: &mut Attempt, by: &Deadline) -> Result<()> {
    ends_hold(|| backend.release(attempt, Purpose::GiveUp, by), Released::Unknown)?.known().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::orders::{LEASE, faulty, spec};
    use crate::store::fault::{Call, Fault, FaultPlan};
    use crate::store::memory::Memory;
    use crate::store::read_key;

    /// Longer than any step takes.
    const SLACK: Duration = Duration::from_secs(60);

    struct Bench {
        store: Arc<Memory>,
        faults: FaultPlan,
        undo: Arc<Undo>,
    }

    impl Bench {
        fn new() -> Bench {
            let (store, clock, faulty, faults) = faulty();
            Bench { store, faults, undo: Arc::new(Undo::new(faulty, Arc::default(), clock, SLACK)) }
        }

        /// A grant that nobody knows of, to be given up at `due`.
        fn left(&self, due: Instant, failures: u32) -> Left {
            let mut attempt = spec().attempt(self.store.info().grant_form.fresh(), LEASE);
            let _ = self.store.acquire(&mut attempt, &Deadline::after(SLACK)).expect("an answer");
            let (stands_until, not_before) = (self.undo.clock.now() + LEASE, Instant::now());
            Left { attempt, end: None, stands_until, not_before, must_stand: false, due, failures }
        }

        fn stands(&self) -> bool {
            read_key(&*self.store, "k", &Deadline::after(SLACK)).expect("an answer").live().count() > 0
        }

        fn push(&self, left: Left) {
            self.undo.state.lock().left.push(left);
        }
    }

    /// For example by a release that a close has cut off.
    #[test]
    fn what_comes_after_the_work_must_end_is_counted() {
        let bench = Bench::new();
        let soon = Instant::now();
        bench.push(bench.left(soon + SLACK, 0));
        let mut late = bench.left(soon, 0);
        late.not_before = soon + Duration::from_nanos(1);
        bench.push(late);
        assert_eq!(bench.undo.end(soon, soon), 2);
    }

    #[test]
    fn what_is_due_and_failed_least_is_next() {
        let bench = Bench::new();
        let now = Instant::now();
        for (due, failures) in [(now, 3), (now, 1), (now, 2), (now + SLACK, 0)] {
            bench.push(bench.left(due, failures));
        }
        let until = Deadline::after(SLACK);
        let next = || bench.undo.next(&until).map(|left| left.failures);
        assert_eq!([next(), next(), next()], [Some(1), Some(2), Some(3)]);
        assert_eq!(bench.undo.state.lock().left.len(), 1);
        bench.undo.state.lock().is_running = true;
        assert!(bench.undo.next(&Deadline::at(now)).is_none(), "the time is over");
        let mut state = bench.undo.state.lock();
        assert!(state.left.len() == 1 && !state.is_running, "it is kept for the next end");
        state.left.clear();
        state.is_running = true;
        drop(state);
        assert!(bench.undo.next(&until).is_none(), "nothing is left");
        assert!(!bench.undo.state.lock().is_running, "the next one finds no thread");
    }

    #[test]
    fn what_fails_is_tried_again_soon_and_after_many_failures_seldom() {
        let bench = Bench::new();
        bench.faults.always(Call::Release, Fault::LostBefore);
        let due_in = |failures| {
            let now = Instant::now();
            bench.undo.give_up(bench.left(now, failures), &Deadline::after(SLACK));
            let left = bench.undo.state.lock().left.pop().expect("it is kept");
            assert_eq!(left.failures, failures + 1);
            // The call itself takes part of that time.
            (left.due - now, now.elapsed())
        };
        let (soon, took) = due_in(0);
        assert!(soon <= Duration::from_millis(40) + took, "{soon:?}");
        let (late, took) = due_in(179);
        assert!(late >= Duration::from_millis(1500) && late <= Duration::from_secs(3) + took, "{late:?}");
        let (latest, _) = due_in(1_000_000);
        assert!(latest >= Duration::from_secs(30), "{latest:?}");
    }

    #[test]
    fn only_what_is_left_has_a_thread() {
        let bench = Bench::new();
        bench.undo.start_again();
        assert!(bench.undo.state.lock().thread.is_none(), "nothing is left");
        bench.push(bench.left(Instant::now() + SLACK, 0));
        bench.undo.start_again();
        assert!(bench.undo.state.lock().is_running());
        let thread = bench.undo.state.lock().thread.take().expect("a thread");
        bench.undo.start_again();
        let mut state = bench.undo.state.lock();
        assert!(state.is_running() && state.thread.is_none(), "one is at work");
        state.thread = Some(thread);
        assert!(state.is_running(), "it waits until it is time");
        drop(state);
        bench.undo.end(Instant::now(), Instant::now() + SLACK);
        assert!(bench.undo.state.lock().thread.is_none());
    }

    #[test]
    fn what_found_no_thread_is_given_up_at_the_end() {
        let bench = Bench::new();
        // It failed for an hour, and its next try is due after the end.
        bench.push(bench.left(Instant::now() + 2 * SLACK, 1_000));
        assert!(bench.stands());
        assert_eq!(bench.undo.end(Instant::now() + SLACK, Instant::now() + SLACK), 0);
        assert!(!bench.stands());
    }

    /// Two threads may close the client, for example a signal handler's and the main one.
    #[test]
    fn a_second_end_leaves_the_first_its_time() {
        let bench = Bench::new();
        let (goes_on, stuck) = crossbeam_channel::bounded(0);
        bench.faults.next(Call::Release, Fault::Stuck(stuck));
        bench.push(bench.left(Instant::now(), 0));
        bench.undo.start_again();
        let soon = Instant::now() + SLACK;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| bench.undo.end(soon, soon));
            while bench.undo.state.lock().thread.is_some() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| bench.undo.end(soon, soon));
            assert!(!bench.undo.stop.wait_timeout(Duration::from_millis(100)), "it was cut off");
            drop(goes_on);
            first.join().expect("the first");
            second.join().expect("the second");
        });
        assert!(!bench.stands());
    }

    #[test]
    fn an_end_does_not_wait_for_a_try_that_is_due_after_it() {
        let bench = Bench::new();
        bench.faults.always(Call::Release, Fault::LostBefore);
        // Its next pause is half a minute at the least.
        bench.push(bench.left(Instant::now(), 1_000_000));
        bench.undo.start_again();
        let (began, soon) = (Instant::now(), Duration::from_secs(25));
        assert_eq!(bench.undo.end(began + soon, began + soon), 1, "it may stand on");
        assert!(began.elapsed() < soon / 2, "it waited for {:?}", began.elapsed());
        assert!(bench.stands());
    }

    #[test]
    fn giving_up_is_repeated_while_there_is_time() {
        let bench = Bench::new();
        let mut attempt = bench.left(Instant::now(), 0).attempt;
        bench.faults.next(Call::Release, Fault::LostBefore);
        bench.faults.next(Call::Release, Fault::FailBefore);
        let store = &*bench.undo.backend;
        give_up(store, &mut attempt, &Deadline::after(SLACK), SLACK).expect("the third is answered");
        assert!(!bench.stands());
        bench.faults.always(Call::Release, Fault::LostBefore);
        assert!(give_up(store, &mut attempt, &Deadline::after(Duration::from_millis(50)), SLACK).is_err());
    }
}
