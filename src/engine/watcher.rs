//! One thread per client family. It declares losses at their deadline even if heartbeats hang, starts heartbeats when
//! they are due, notices a suspend, and starts the users' callbacks. It also tries again to start threads that could
//! not be started. Callbacks and reports that still have no thread when the watcher ends run on the watcher's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendError, Sender};
use parking_lot::Mutex;

use super::hold::Hold;
use super::undo::Undo;
use crate::model::error::{Error, ErrorKind, Result};
use crate::sys::aside;
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::far_from;
use crate::sys::log;
use crate::sys::observing::{contained, panic_logged};
use crate::sys::thread::{self, Thread};

/// It looks at least this often while something is held.
const LOOK: Duration = Duration::from_secs(1);
/// If the boot-time clock ran ahead of the monotonic one by more than this, the machine was suspended.
const JUMP: Duration = Duration::from_millis(200);
/// The pause after a thread could not be started.
pub(super) const START_RETRY: Duration = Duration::from_millis(100);
/// How long the last user of a watcher waits for its thread.
const STOP_BOUND: Duration = Duration::from_secs(1);

type Callback = Box<dyn FnOnce() + Send>;

enum Message {
    /// Something is held that may end before the next look.
    Look,
    Run(&'static str, Callback),
}

/// See the module. Its thread starts with the first hold and ends with the watcher.
pub struct Watcher {
    clock: Arc<Clock>,
    holds: Arc<Mutex<Vec<Weak<Hold>>>>,
    // `None` once it is closed.
    messages: Mutex<Option<Sender<Message>>>,
    inbox: Receiver<Message>,
    /// If its thread could not be started, the watcher tries again.
    undo: Arc<Undo>,
    sleep: Arc<Sleep>,
    thread: Mutex<Option<Thread>>,
}

impl Watcher {
    pub fn new(clock: Arc<Clock>, undo: Arc<Undo>) -> Self {
        let (messages, inbox) = crossbeam_channel::unbounded();
        let (holds, sleep) = (Arc::default(), Arc::new(Sleep::new()));
        let messages = Mutex::new(Some(messages));
        Watcher { clock, holds, messages, inbox, undo, sleep, thread: Mutex::default() }
    }

    /// Watches `hold` until it is gone.
    pub fn watch(&self, hold: &Arc<Hold>) -> Result<()> {
        let mut thread = self.thread.lock();
        if self.messages.lock().is_none() {
            return Err(Error::new(ErrorKind::Closed, "the client was closed"));
        }
        // A thread that died, for example because memory ran out, is replaced.
        if thread.as_ref().is_none_or(Thread::is_over) {
            let (clock, holds, inbox) = (self.clock.clone(), self.holds.clone(), self.inbox.clone());
            let (undo, sleep) = (self.undo.clone(), self.sleep.clone());
            let jumps = clock.jumps();
            // Counted from now on, not from when the thread first runs.
            let skew = Skew::new(&clock);
            *thread = Some(Thread::spawn("leasehold-watch", move || {
                thread::begin_to_keep_time();
                run(&clock, &holds, &inbox, jumps.receiver(), &undo, &sleep, skew);
            })?);
        }
        drop(thread);
        {
            let mut holds = self.holds.lock();
            if holds.len() == holds.capacity() {
                holds.retain(|hold| hold.strong_count() > 0);
            }
            holds.push(Arc::downgrade(hold));
        }
        // Most holds end before anything is due; the thread is not woken for those.
        let look_in = hold.first_look().since(self.clock.now());
        if self.sleep.lasts_beyond(far_from(Instant::now(), look_in)) {
            let _ = self.send(Message::Look);
        }
        Ok(())
    }

    /// Looks at everything at once.
    pub fn look_now(&self) {
        let _ = self.send(Message::Look);
    }

    /// Runs a user's callback on its own thread, even if the watcher was just closed.
    pub fn run(&self, what: &'static str, callback: Callback) {
        if let Some(Message::Run(what, callback)) = self.send(Message::Run(what, callback)) {
            start_or_run(what, callback);
        }
    }

    /// Everything that is watched and still alive.
    pub fn holds(&self) -> Vec<Arc<Hold>> {
        self.holds.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A watcher that was closed gives the message back.
    fn send(&self, message: Message) -> Option<Message> {
        match &*self.messages.lock() {
            Some(messages) => messages.send(message).err().map(SendError::into_inner),
            None => Some(message),
        }
    }

    /// Ends its thread; callbacks that wait are started first. Nothing is watched afterwards.
    pub fn close(&self, by: Instant) {
        let thread = self.thread.lock().take();
        self.messages.lock().take();
        if let Some(thread) = thread {
            thread.join_by(by);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.close(far_from(Instant::now(), STOP_BOUND));
    }
}

fn run(
    clock: &Clock,
    holds: &Mutex<Vec<Weak<Hold>>>,
    inbox: &Receiver<Message>,
    jumps: &Receiver<()>,
    undo: &Arc<Undo>,
    sleep: &Sleep,
    mut skew: Skew,
) {
    // Callbacks for which no thread could be started. Run here, they would delay everybody's losses.
    let mut waiting: VecDeque<(&'static str, Callback)> = VecDeque::new();
    let mut was_moved = false;
    loop {
        sleep.is_over();
        let now = clock.now();
        let watched: Vec<Arc<Hold>> = {
            let mut holds = holds.lock();
            holds.retain(|hold| hold.strong_count() > 0);
            holds.iter().filter_map(Weak::upgrade).collect()
        };
        if skew.jumped(clock) | was_moved {
            log::info!(target: "leasehold::watcher", "the machine was suspended; all heartbeats are sent now");
            watched.iter().for_each(|hold| hold.beat_soon());
        }
        // Losses are declared first: starting threads takes time.
        let next_look = watched.iter().filter_map(|hold| hold.look(now)).min();
        let next_start = watched.iter().filter_map(|hold| hold.start_when_due(now)).min();
        let next = next_look.into_iter().chain(next_start).min();
        // This may drop the last handle, and the user's observer with it: no mutex may be held.
        panic_logged("drop of an observer", || drop(watched));
        while let Some((what, callback)) = waiting.pop_front() {
            if let Some((_, callback)) = start(what, callback) {
                waiting.push_front((what, callback));
                break;
            }
        }
        let lacks_thread = undo.start_again() | aside::start_again(false) || !waiting.is_empty();
        let wait = next.map_or(Duration::MAX, |next: BootTime| next.since(now).min(LOOK));
        let wait = if lacks_thread { wait.min(START_RETRY) } else { wait };
        let mut select = crossbeam_channel::Select::new();
        select.recv(inbox);
        select.recv(jumps);
        select.recv(undo.lacks_thread());
        let until = far_from(Instant::now(), wait);
        sleep.begins(until);
        let _ = select.ready_deadline(until);
        // By a test, which may move the clock by less than `JUMP`.
        was_moved = jumps.try_iter().count() > 0;
        undo.lacks_thread().try_iter().for_each(drop);
        loop {
            match inbox.try_recv() {
                Ok(Message::Look) => {}
                Ok(Message::Run(what, callback)) => {
                    if let Some((error, callback)) = start(what, callback) {
                        log::error!(target: "leasehold::watcher", "{error}; the {what} waits for one");
                        waiting.push_back((what, callback));
                    }
                }
                Err(crossbeam_channel::TryRecvError::Empty) => break,
                Err(crossbeam_channel::TryRecvError::Disconnected) => {
                    waiting.into_iter().for_each(|(what, callback)| start_or_run(what, callback));
                    aside::start_again(true);
                    return;
                }
            }
        }
    }
}

/// A callback for which no thread can be started any more runs here: late is better than never.
fn start_or_run(what: &'static str, callback: Callback) {
    if let Some((error, callback)) = start(what, callback) {
        log::error!(target: "leasehold::watcher", "{error}; the {what} runs without one of its own");
        contained(what, callback);
    }
}

/// Starts a callback on a thread of its own; gives it back if that can't be started.
fn start(what: &'static str, callback: Callback) -> Option<(Error, Callback)> {
    let slot = Arc::new(Mutex::new(Some(callback)));
    let on_thread = slot.clone();
    let body = move || {
        let callback = on_thread.lock().take();
        callback.into_iter().for_each(|callback| contained(what, callback));
    };
    let error = Thread::spawn_for_user("leasehold-call", body).err()?;
    let callback = slot.lock().take()?;
    Some((error, callback))
}

/// Until when the watcher sleeps if nobody wakes it. It is woken only for something that is due earlier.
///
/// A hold is added before this is read, and this says "awake" before the holds are looked at. So a thread that reads
/// an old sleep has added its hold early enough to be seen.
struct Sleep {
    origin: Instant,
    /// In nanoseconds after the origin.
    until: AtomicU64,
}

impl Sleep {
    fn new() -> Self {
        Sleep { origin: Instant::now(), until: AtomicU64::new(u64::MAX) }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    fn begins(&self, until: Instant) {
        self.until.store(self.nanos(until), Ordering::SeqCst);
    }

    fn is_over(&self) {
        self.until.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether it sleeps beyond `at`; true also while it is awake.
    fn lasts_beyond(&self, at: Instant) -> bool {
        self.until.load(Ordering::SeqCst) > self.nanos(at)
    }
}

/// The distance between the clock that counts suspend and the one that does not.
pub(super) struct Skew {
    boot: BootTime,
    monotonic: Instant,
}

impl Skew {
    pub(super) fn new(clock: &Clock) -> Self {
        let monotonic = Instant::now();
        Skew { boot: clock.now(), monotonic }
    }

    /// Whether the boot-time clock ran ahead since the last call.
    pub(super) fn jumped(&mut self, clock: &Clock) -> bool {
        let now = Skew::new(clock);
        // The old value's monotonic time was read before the boot times, and this one is read after them: a thread that
        // is paused in between makes no jump.
        let ahead = now.boot.since(self.boot).saturating_sub(self.monotonic.elapsed());
        *self = now;
        ahead > JUMP
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    /// A loss that is found while the client closes, or the last handle is dropped, is still reported.
    #[test]
    fn a_callback_that_comes_after_the_close_runs() {
        let clock = Clock::system();
        let store = Arc::new(Memory::open("", clock.clone()));
        let undo = Arc::new(Undo::new(store, Arc::default(), clock.clone(), LOOK));
        let watcher = Watcher::new(clock, undo);
        watcher.close(Instant::now());
        let (ran, runs) = crossbeam_channel::bounded(1);
        watcher.run("loss callback", Box::new(move || ran.send(()).unwrap_or_default()));
        assert_eq!(runs.recv(), Ok(()), "it was dropped");
    }
}
