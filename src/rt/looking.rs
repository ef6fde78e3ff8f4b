//! What a waiter does between two requests for the lock: it looks at it, and tells that it waits.

use std::time::Duration;

use super::deadline::Deadline;
use super::queue::Ticket;
use super::waiters::Wait;
use super::want::Patience;
use crate::backend::Which;
use crate::lease::{backoff, transition};
use crate::lock::LockStatus;
use crate::observer::{Event, contained};
use crate::waiting::Waiting;

/// A wait that is longer is told to the log, and again after each minute.
pub(super) const FIRST_WARNING: Duration = Duration::from_secs(30);
const NEXT_WARNING: Duration = Duration::from_secs(60);

impl Wait<'_> {
    /// Looks at the lock from time to time until it seems free or is handed over; false when the call's time is
    /// over. `at_once`: begins with a look.
    pub(super) fn pause(&mut self, overall: &Deadline, at_once: bool) -> bool {
        // What was just refused is not asked for again at once, however free it looks.
        let mut looked_free = true;
        let mut look_now = at_once;
        loop {
            let Some(ticket) = &self.ticket else { return true };
            if ticket.place() > 0 || ticket.is_handed() {
                return true;
            }
            if !std::mem::take(&mut look_now) {
                self.tell();
                // Nor is what was seen before the store was in trouble taken for what is now.
                let known = self.free_in().filter(|_| self.last_error.is_none());
                let free_in = known.filter(|free| !(looked_free && free.is_zero()));
                looked_free = false;
                let poll = &self.family.options.poll;
                let delay = backoff::poll_delay(poll, self.started.elapsed(), free_in, fastrand::f64());
                let Some(ticket) = &self.ticket else { return true };
                if !overall.wait_for_or(delay, ticket.nudged()) {
                    return false;
                }
                if ticket.is_handed() {
                    return true;
                }
            }
            if self.look(overall) {
                return true;
            }
        }
    }

    /// Reads the lock; whether it is worth asking for.
    pub(super) fn look(&mut self, overall: &Deadline) -> bool {
        self.attempts += 1;
        let by = overall.clone().within(self.family.options.request_timeout);
        let which = Which::Key(self.want.wanted.key.clone());
        match self.family.backend.read(&which, None, false, &by) {
            Ok(mut page) => {
                self.last_error = None;
                self.refusal = page.records.pop().or(self.refusal.take());
                self.free_in() == Some(Duration::ZERO)
            }
            // The attempt that follows tells what is wrong.
            Err(error) if !error.is_retryable() => true,
            Err(error) => {
                self.last_error = Some(error);
                false
            }
        }
    }

    /// In what time the lock can be free if nobody releases it.
    pub(super) fn free_in(&self) -> Option<Duration> {
        let seen = self.refusal.as_ref()?;
        let cut = seen.now.minus(self.family.backend.info().grace);
        transition::free_in(&seen.record, self.want.wanted.mode, self.want.wanted.max_holders, cut)
    }

    /// Tells everyone who wants to know that the wait goes on.
    pub(super) fn tell(&mut self) {
        let waited = self.started.elapsed();
        let key = &self.want.wanted.key;
        self.family.options.observing.tell(&Event::Waited { key, waited });
        let warn = waited >= self.warn_after;
        if !warn && self.want.on_wait.is_none() {
            return;
        }
        let holders = self.refusal.as_ref().map(LockStatus::live).unwrap_or_default();
        if warn {
            self.warn_after = waited + NEXT_WARNING;
            let holder = holders.first().map(ToString::to_string).unwrap_or_default();
            let last_error = self.last_error.as_ref().map(ToString::to_string).unwrap_or_default();
            log::warn!(
                target: "leasehold::client",
                key:?, waited_s = waited.as_secs(), attempts = self.attempts, holder:%, last_error:%;
                "still waiting for the lock"
            );
        }
        let held_by_this_client = holders.iter().any(|holder| self.held_here(holder.fencing_token()));
        let waiting = Waiting {
            key: key.clone(),
            held_by_this_client,
            holders,
            waited,
            until: match self.patience {
                Patience::Until(at) => Some(at),
                _ => None,
            },
            attempts: self.attempts,
            place: self.ticket.as_ref().map_or(0, Ticket::place),
            last_error: self.last_error.clone(),
        };
        if let Some(on_wait) = &mut self.want.on_wait {
            contained("wait callback", || on_wait(&waiting));
        }
    }
}
