//! Releases many locks at the same time, within one bound, so that one that hangs does not keep the others locked.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::unbounded;
use parking_lot::Mutex;

use super::hold::Hold;
use crate::model::error::Result;
use crate::sys::deadline::is_ready_by;
use crate::sys::pause::pause;
use crate::sys::thread::{Thread, begin_to_keep_a_lock, keeping_a_lock, lives};

/// So many are released at the same time; more when these hang.
const THREADS: usize = 16;
/// Without threads each has at least one in so many parts of the time that is left: a slow store needs it.
const MOST_SHARES: usize = 4;

/// Releases these until `soon`, and waits for the answers until `by`: a store that hangs, against its contract, does not
/// block the caller for longer, unless no thread can be started. Passes on each answer with the index of its hold; returns how many did not come.
pub fn release_all(
    holds: &[Arc<Hold>],
    soon: Instant,
    by: Instant,
    mut answered: impl FnMut(usize, Result<()>),
) -> usize {
    holds.iter().for_each(|hold| hold.leave_own_heartbeat());
    let mut open = holds.len();
    // The first is taken first.
    let left: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(holds.iter().cloned().enumerate().rev().collect()));
    let next = |left: &Mutex<Vec<_>>| {
        let mut left = left.lock();
        left.pop().map(|(nth, hold): (usize, Arc<Hold>)| (nth, hold, left.len()))
    };
    let (done, answers) = unbounded();
    let work = |is_alone: bool| {
        let (left, done) = (left.clone(), done.clone());
        move || {
            while let Some((nth, hold, to_come)) = next(&left) {
                pause!("close.releases");
                // One that hangs must leave time for those that wait for this thread.
                let shares = if is_alone { (to_come + 1).min(MOST_SHARES) } else { 1 };
                let time = soon.saturating_duration_since(Instant::now()) / shares as u32;
                let _ = done.send((nth, hold.release(time)));
            }
        }
    };
    let start = || {
        let work = work(false);
        let run = move || {
            // This thread must not wait for the logger or the observer, which may hang: other locks are still to be
            // released.
            begin_to_keep_a_lock();
            work();
        };
        Thread::spawn("leasehold-close", run).ok()
    };
    let mut threads: Vec<Thread> = Vec::new();
    let more = |threads: &mut Vec<Thread>| {
        // In a thread's end, what it needs to start another one would be made anew, and never freed.
        let most = if lives() { threads.len().max(THREADS) } else { 0 };
        let wanted = most.min(left.lock().len());
        threads.extend((0..wanted).map_while(|_| start()));
    };
    more(&mut threads);
    if threads.is_empty() {
        // The observer may hang here, too.
        keeping_a_lock(work(true));
    }
    let patience = soon.saturating_duration_since(Instant::now()) / 20;
    while open > 0 {
        is_ready_by(&answers, by.min(Instant::now() + patience));
        match answers.try_recv() {
            Ok((nth, released)) => {
                open -= 1;
                answered(nth, released);
            }
            Err(_) if Instant::now() >= by => break,
            // These releases hang. More threads, so that the others get their turn.
            Err(_) => more(&mut threads),
        }
    }
    for thread in threads {
        thread.join_by(by);
    }
    open
}
