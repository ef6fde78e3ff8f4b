//! What follows a grant: its lease is set, where that is longer than an acquire may ask for.

use std::time::{Instant, SystemTime};

use super::acquire::{Before, Round, Wait};
use super::failures::{Failures, handed_over_in_vain};
use super::queue::SILENT;
use crate::engine::spec::Granted;
use crate::lease::MAX_ACQUIRE_LEASE;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::event::Event;
use crate::store::{Attempt, Renewal, Renewed};
use crate::sys::deadline::Deadline;
use crate::sys::log;
use crate::sys::observing::later;
use crate::sys::pause::pause;
use crate::sys::thread::keeping_a_lock;

impl Wait<'_> {
    /// A lease of more than a minute, or without end, is set by a first renewal, so that no unanswered acquire leaves a
    /// grant for more than a minute.
    pub(super) fn granted(&mut self, mut granted: Granted, overall: &Deadline) -> Result<Round> {
        let clock = &self.family.clock;
        let (mut failures, granted_at) = (Failures::none(), Instant::now());
        loop {
            let (sent, wall) = (clock.now(), SystemTime::now());
            let lease = self.spec.lock.terms.granted_lease_at(sent);
            if lease.longest() <= MAX_ACQUIRE_LEASE {
                break;
            }
            // The longest that the store may keep the grant, should this be given up.
            granted.attempt.ask.lease = lease.longest();
            pause!("lengthen.sent");
            let left = granted.held_until.since(sent);
            let end = overall.clone().within(left);
            let by = end.of_try().within(self.family.options.request_timeout);
            let renewal = Renewal::heartbeat(lease);
            let backend = &self.family.backend;
            let later = later();
            // No logger may hold up what nothing renews yet.
            let renew = |attempt: &mut Attempt| keeping_a_lock(|| backend.renew(attempt, renewal, &by));
            let renewed = self.family.unowned(&mut granted.attempt, renew);
            self.in_users_code(|| drop(later));
            let error = match renewed {
                Ok(Renewed::Until { until, now }) => {
                    pause!("lengthen.answered");
                    granted.holder.until = until;
                    (granted.now, granted.wall) = (now, wall);
                    granted.held_until = self.spec.lock.terms.held_until(lease, sent, until, now);
                    if clock.now() >= granted.held_until {
                        self.give_up(granted.attempt, overall);
                        let error = Error::new(ErrorKind::TimedOut, "it was granted too late to be held").retryable();
                        return self.not_had(error);
                    }
                    break;
                }
                Ok(Renewed::Lost(_)) => {
                    let message = "it was taken over before its lease could be set";
                    return self.not_had(Error::new(ErrorKind::Lost, message).retryable());
                }
                Ok(Renewed::Unknown(error)) | Err(error) => error,
            };
            // If the renewal may have been done, giving up the grant below undoes it.
            let waited = if error.is_retryable() { failures.wait(error, &end) } else { Err(error) };
            if let Err(error) = waited {
                // The grant came so late that the end of the call cut off the renewal at once.
                let is_late = overall.cut_off(granted_at, SILENT) && self.spec.lock.instead_of.is_none();
                if is_late && error.is_retryable() {
                    return self.void(granted.attempt, overall);
                }
                self.give_up(granted.attempt, overall);
                return self.not_had(error);
            }
        }
        pause!("acquire.granted");
        let waited = self.effort.started.elapsed();
        let (key, fencing_token) = (&self.spec.lock.key, granted.holder.token);
        self.in_users_code(|| {
            log::debug!(target: "leasehold::client", key:?, token = fencing_token; "granted");
            self.family.options.observing.tell(&Event::Granted { key, fencing_token, waited });
        });
        Ok(Round::Granted(granted))
    }

    /// Gives up a grant that came too late to be held.
    pub(super) fn void(&mut self, attempt: Attempt, overall: &Deadline) -> Result<Round> {
        self.give_up(attempt, overall);
        if self.spec.lock.instead_of.is_some() {
            let message = "it was handed over too late to be held, and is released";
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        self.effort.voids += 1;
        overall.wait_to_repeat(self.effort.voids);
        Ok(Round::Trouble)
    }

    /// The lock was granted, but not for as long as asked. An earlier refusal is out of date.
    fn not_had(&mut self, error: Error) -> Result<Round> {
        // The grant that a transfer replaced is gone: asking again would report as lost a lock that this call has
        // transferred itself.
        if self.spec.lock.instead_of.is_some() {
            self.check_goes_on()?;
            if matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut) {
                return Err(error.final_now());
            }
            return Err(handed_over_in_vain(error));
        }
        if !error.is_retryable() {
            return Err(error);
        }
        let before = if error.kind() == ErrorKind::Lost { Before::Counts } else { Before::IsOut };
        self.is_in_trouble(error, before);
        Ok(Round::Trouble)
    }
}
