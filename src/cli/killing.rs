//! When the work under a lock is killed, so that nothing of it runs any more when another may get the lock.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never};

use crate::asked::Ask;
use crate::clock::since_boot;
use crate::held::Held;

/// See the module. All times are since boot.
pub struct Killing {
    /// Until when the locks are surely held.
    held_until: Duration,
    /// When KILL is due, and the timer for it.
    due: Option<(Duration, Receiver<Instant>)>,
    /// It was reported that no signal reaches the process that must be killed.
    pub is_in_vain: bool,
}

impl Killing {
    pub fn new() -> Killing {
        // A hold that was never seen as held leaves no time for TERM.
        Killing { held_until: Duration::ZERO, due: None, is_in_vain: false }
    }

    /// For locks that are held.
    pub fn of(locks: &Held) -> Killing {
        let mut killing = Killing::new();
        killing.look(locks, &[]);
        killing
    }

    /// Looks until when the locks except these are held.
    pub fn look(&mut self, locks: &Held, but: &[String]) {
        self.held_until = locks.held_until(but).unwrap_or(self.held_until);
    }

    /// KILL after this time, or earlier if that was decided before.
    pub fn begin(&mut self, time: Duration) {
        let by = since_boot().saturating_add(time);
        if self.due.as_ref().is_none_or(|(before, _)| by < *before) {
            self.due = Some((by, after(time)));
        }
    }

    /// Whether KILL is decided.
    pub fn has_begun(&self) -> bool {
        self.due.is_some()
    }

    /// Whether KILL was sent, or is due now.
    pub fn is_due(&self) -> bool {
        self.due.as_ref().is_some_and(|(at, _)| *at <= since_boot())
    }

    /// Ready when KILL is due.
    pub fn timer(&self) -> Receiver<Instant> {
        self.due.as_ref().map_or_else(never, |(_, timer)| timer.clone())
    }

    /// How long nothing has to be done to the work under the locks.
    pub fn rest(&self) -> Duration {
        self.due.as_ref().map_or(self.held_until, |(at, _)| *at).saturating_sub(since_boot())
    }

    /// When the keeper kills: a little later than this process would do it.
    pub fn by_keeper(&self, ask: &Ask, is_ended_by_loss: bool) -> Option<Duration> {
        let by_loss = is_ended_by_loss.then(|| self.held_until.saturating_add(ask.kill_after()));
        let decided = self.due.as_ref().map(|(at, _)| *at);
        let kill_at = by_loss.into_iter().chain(decided).min();
        kill_at.map(|at| at.saturating_add(ask.after_kill() / 2))
    }

    /// What is left between TERM and KILL: nothing when we were stopped or suspended for longer than the lease.
    pub fn left(&self, ask: &Ask) -> Duration {
        let left = self.held_until.saturating_add(ask.kill_after()).saturating_sub(since_boot());
        left.min(ask.kill_after())
    }

    /// What is left of the lease: after that there is nothing to release. Even if the lock must stay in the store for
    /// longer, the release is not waited for longer than this.
    pub fn lease_left(&self, ask: &Ask) -> Duration {
        let left = self.held_until.saturating_add(ask.lease / 3).saturating_sub(since_boot());
        left.min(ask.lease.saturating_add(ask.lease / 3))
    }
}
