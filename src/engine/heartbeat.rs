//! The thread that renews one guard's lease. The watcher starts it when the first heartbeat is due. This thread only
//! sends; it is the watcher that declares a loss.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::select;

use super::hold::{Beat, Hold};
use crate::engine::options::Terms;
use crate::lease::{Lease, backoff};
use crate::model::error::{Error, Result};
use crate::model::key::shown;
use crate::model::loss::LossReason;
use crate::sys::caught::caught;
use crate::sys::log;
use crate::sys::pause::pause;
use crate::sys::thread::{self, Thread};

/// How often the guard of a lock without end checks whether it was released or replaced.
const ENDLESS_LOOK: Duration = Duration::from_secs(30);
/// The shortest time between repeats, however little of the lease is left.
const MIN_RETRY: Duration = Duration::from_millis(1);

/// How long after the grant the first heartbeat is due. A hold that is shorter needs no thread.
pub(super) fn first_after(terms: &Terms) -> Duration {
    backoff::with_jitter(interval(terms), fastrand::f64())
}

fn interval(terms: &Terms) -> Duration {
    match terms.lease {
        Lease::For(_) => terms.heartbeat,
        Lease::Forever => ENDLESS_LOOK,
    }
}

impl Hold {
    pub(super) fn warn_of_heartbeat(&self, left: Duration, error: &Error) {
        let key = shown(&self.grant.lock.key);
        log::warn!(target: "leasehold::heartbeat", key:?, left_ms = left.as_millis() as u64;
            "a heartbeat of lock {key:?} failed and is repeated, {:.1} s left: {error}", left.as_secs_f64());
    }
}

/// Starts the heartbeat of `hold`, which sends at once; it ends with the hold.
pub(super) fn spawn(hold: Arc<Hold>) -> Result<Thread> {
    Thread::spawn("leasehold-beat", move || {
        thread::begin_to_keep_a_lock();
        pause!("heartbeat.begins");
        if caught(|| run(&hold)).is_none() {
            hold.lose(LossReason::HeartbeatDied);
            let key = hold.grant.lock.key();
            log::error!(target: "leasehold::heartbeat", key:?; "the heartbeat thread of lock {key:?} panicked");
        }
    })
}

fn run(hold: &Hold) {
    let interval = interval(&hold.setup.terms);
    let mut failures = 0;
    let mut wait = Duration::ZERO;
    loop {
        select! {
            recv(hold.beats.stop.cancelled()) -> _ => return,
            recv(hold.beats.wishes) -> _ => {}
            default(wait) => {}
        }
        pause!("heartbeat.woken");
        wait = match hold.beat() {
            Beat::Over => return,
            Beat::Renewed => {
                failures = 0;
                backoff::with_jitter(interval, fastrand::f64())
            }
            Beat::Failed => {
                failures += 1;
                backoff::retry_delay(failures, hold.remaining(), fastrand::f64()).max(MIN_RETRY)
            }
        };
    }
}
