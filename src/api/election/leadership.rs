//! One term as the leader: the guard of the leader's lock, and how the term ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::shared::Shared;
use crate::api::guard::LockGuard;
use crate::engine::loss_watch::LossWatch;
use crate::model::error::{ErrorKind, Result};
use crate::model::event::Event;
use crate::model::loss::Loss;
use crate::sys::drop_bound::DropBound;
use crate::sys::log;
use crate::sys::observing::Observing;
use crate::sys::thread::{Thread, keeping_a_lock};

/// How a term ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TermEnd {
    /// The leader's lock was lost: taken over, expired, or held for as long as `max_hold` allows.
    Lost(Loss),
    /// The leader resigned: its work was done, it was stopped, its leadership dropped, or the client closed.
    Resigned,
    /// The health check reported that the node is not healthy.
    Unhealthy,
    /// The health check did not return within a lease.
    HealthHangs,
    /// The leader's work ended with this error.
    Failed(String),
    /// The leader's closure panicked.
    Panicked,
}

impl TermEnd {
    /// A label for metrics, like `resigned`. It stays the same over versions.
    pub fn name(&self) -> &'static str {
        match self {
            TermEnd::Lost(_) => "lost",
            TermEnd::Resigned => "resigned",
            TermEnd::Unhealthy => "unhealthy",
            TermEnd::HealthHangs => "health_hangs",
            TermEnd::Failed(_) => "failed",
            TermEnd::Panicked => "panicked",
        }
    }
}

impl fmt::Display for TermEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermEnd::Lost(loss) => write!(f, "lost: {loss}"),
            TermEnd::Resigned => f.write_str("resigned"),
            TermEnd::Unhealthy => f.write_str("resigned, as the node is not healthy"),
            TermEnd::HealthHangs => f.write_str("resigned, as the health check hangs"),
            TermEnd::Failed(why) => write!(f, "resigned, as the leader's work failed: {why}"),
            TermEnd::Panicked => f.write_str("resigned, as the leader's closure panicked"),
        }
    }
}

/// One term, shared by everything that reads it or may end it.
pub(super) struct Term {
    pub guard: LockGuard,
    pub shared: Arc<Shared>,
    is_over: AtomicBool,
    won: Instant,
    told: Mutex<Told>,
}

/// What the observer knows of a term. Its end can come before its beginning was reported.
enum Told {
    Nothing,
    Began,
    EndWaits { led_for: Duration, end: &'static str },
}

impl Term {
    pub fn new(guard: LockGuard, shared: Arc<Shared>) -> Self {
        let (is_over, told) = (AtomicBool::new(false), Mutex::new(Told::Nothing));
        Term { guard, shared, is_over, won: Instant::now(), told }
    }

    /// Reports the beginning of the term to the observer. The caller must not hold a mutex.
    pub fn tell_begin(&self) {
        let (key, fencing_token) = (self.guard.key(), self.guard.fencing_token());
        self.observing().tell(&Event::TermBegan { key, fencing_token });
        let before = std::mem::replace(&mut *self.told.lock(), Told::Began);
        if let Told::EndWaits { led_for, end } = before {
            self.observing().tell(&Event::TermEnded { key, fencing_token, led_for, end });
        }
    }

    fn tell_end(&self, led_for: Duration, end: &'static str) {
        {
            let mut told = self.told.lock();
            if matches!(*told, Told::Nothing) {
                *told = Told::EndWaits { led_for, end };
                return;
            }
        }
        let (key, fencing_token) = (self.guard.key(), self.guard.fencing_token());
        self.observing().tell(&Event::TermEnded { key, fencing_token, led_for, end });
    }

    fn observing(&self) -> &Observing {
        &self.shared.node.client.family.options.observing
    }

    pub fn is_leader(&self) -> bool {
        self.guard.is_held() && !self.is_over.load(Ordering::SeqCst)
    }

    /// From now on this node does not lead, though its lock is held until it is released. False when the term was over
    /// already.
    pub fn end(&self, how: TermEnd) -> bool {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return false;
        }
        // After a suspend or a SIGSTOP the watcher may not have declared the loss yet.
        self.guard.hold.expire_when_due();
        let end = self.guard.loss().get().map_or(how, TermEnd::Lost);
        // The lock of this term can't be lost any more: this wakes every thread that waits for the loss.
        self.guard.loss().end(None);
        let token = self.guard.fencing_token();
        // Before the log, which may panic: this end must be reported before the next term.
        self.shared.news.dispatcher.over(token, end.clone());
        // The caller, on whatever thread, still has to release the lock, so it must not wait for a logger that hangs.
        keeping_a_lock(
            || log::info!(target: "leasehold::election", name:? = self.shared.node.name, token; "term {token} of {:?} is over: {end}", self.shared.node.name),
        );
        let led_for = match &end {
            // The loss may be long past: nothing may have ended the term since.
            TermEnd::Lost(loss) => loss.held_for.min(self.won.elapsed()),
            _ => self.won.elapsed(),
        };
        self.tell_end(led_for, end.name());
        true
    }
}

/// The leadership of one term: an exclusive lock on the election's name, renewed by its own thread.
///
/// Dropping it resigns within the client's `drop_timeout` and returns no error; [`resign`](Leadership::resign) does.
#[must_use = "dropping the leadership resigns at once"]
#[clippy::has_significant_drop]
pub struct Leadership {
    pub(super) term: Arc<Term>,
    /// One bound for the whole drop: for resigning and for what the client then has to clean up.
    drop_bound: DropBound,
}

impl Leadership {
    pub(super) fn new(term: Arc<Term>) -> Self {
        Leadership { term, drop_bound: DropBound::default() }
    }

    /// Ends the term at once and gives up the lock in the background, so that the caller need not wait for a release.
    pub(super) fn abandon(&self) {
        self.term.end(TermEnd::Resigned);
        self.term.guard.abandon();
    }

    /// The name of the election.
    pub fn name(&self) -> &str {
        self.term.guard.key()
    }

    /// Whether this node leads. Does no I/O and never waits. It turns false as soon as the node resigns, and before a rival
    /// can win, also right after a suspend, with the exceptions of [`is_held`](LockGuard::is_held).
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// The number of the term: greater than that of every earlier term of the election.
    pub fn fencing_token(&self) -> u64 {
        self.term.guard.fencing_token()
    }

    /// How long this node still leads if no further heartbeat succeeds, and no longer than `max_hold` allows; zero when it
    /// does not lead.
    pub fn remaining(&self) -> Duration {
        if self.is_leader() { self.term.guard.remaining() } else { Duration::ZERO }
    }

    /// Reports the end of the term: `wait` returns the loss, or `None` when the node resigns.
    pub fn loss(&self) -> LossWatch {
        self.term.guard.loss()
    }

    /// The guard of the leader's lock, for everything else that a guard can do. When the node no longer leads, the lock
    /// may still be held until a closure of [`lead`](crate::Election::lead) has returned. A minimum hold
    /// ([`hold_at_least`](LockGuard::hold_at_least)) outlasts the term: until its end nobody can lead, and
    /// [`leader`](crate::Election::leader) still returns this node.
    pub fn guard(&self) -> &LockGuard {
        &self.term.guard
    }

    /// Resigns, so that the next node need not [wait for the lease](crate::guide::tour#leader-election).
    ///
    /// # Errors
    /// `Lost` when the term was already over; otherwise the store's error for the release. The release is then tried
    /// once more on another thread; if that fails too, the lease runs out.
    pub fn resign(self) -> Result<()> {
        // Another node may have led since the end of the term.
        let over = self.term.shared.node.client.error(ErrorKind::Lost, self.name(), "the term was over already");
        if self.resigned()? { Ok(()) } else { Err(over) }
    }

    /// The same, but returns `false` if this node had resigned before, by a stop or a close.
    pub(crate) fn resigned(mut self) -> Result<bool> {
        self.term.shared.check_open_here()?;
        let by = self.term.guard.drop_by();
        let is_ended_here = self.term.end(TermEnd::Resigned);
        let outcome = self.term.guard.release_within(self.term.shared.bound());
        if outcome.as_ref().is_err_and(|error| error.kind() != ErrorKind::Lost) {
            // If no thread can be started, the second try is made here.
            let _ = Thread::spawn_for_user("leasehold-release", move || drop(self));
        } else {
            self.drop_bound.begin(by);
        }
        outcome.map(|()| is_ended_here)
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if !self.term.shared.node.client.family.is_own_process() {
            // In a forked child its threads do not exist, so it must not be dropped.
            std::mem::forget(self.term.clone());
            return;
        }
        self.drop_bound.begin(self.term.guard.quiet_drop_by());
        self.term.end(TermEnd::Resigned);
        // Another thread may be reading the term and so be the last to drop it; the release must still happen here.
        self.term.guard.end_quietly();
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name())
            .field("fencing_token", &self.fencing_token())
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
