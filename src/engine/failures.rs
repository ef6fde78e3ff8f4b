//! Repeating what failed, until a call's time is over, and the error that says most about why it failed.

use std::time::Instant;

use super::queue::SILENT;
use crate::model::error::{Error, ErrorKind};
use crate::sys::deadline::Deadline;

/// The failures in a row of what is repeated.
#[derive(Debug)]
pub struct Failures {
    /// When the try that is under way began.
    asked: Instant,
    count: u32,
    known: Option<Error>,
}

impl Failures {
    /// The first try begins.
    pub fn none() -> Failures {
        Failures { asked: Instant::now(), count: 0, known: None }
    }

    /// Waits after a try that failed by `error`, until the next one begins.
    ///
    /// # Errors
    /// The error that says most, of all tries, once `by` is over.
    pub fn wait(&mut self, error: Error, by: &Deadline) -> Result<(), Error> {
        let known = match self.known.take() {
            // Only one of the two tries may have been done: its error counts, since the other one says nothing about
            // it.
            Some(known) if may_be_done(&known) != may_be_done(&error) => {
                if may_be_done(&known) {
                    known
                } else {
                    error
                }
            }
            known => tells_most(known, error, by.cut_off(self.asked, SILENT)),
        };
        self.count += 1;
        if !by.wait_to_repeat(self.count) {
            return Err(known);
        }
        (self.asked, self.known) = (Instant::now(), Some(known));
        Ok(())
    }

    /// The same as [`wait`](Self::wait), but what is final is not tried again.
    ///
    /// # Errors
    /// `error` itself if it is final, unless an earlier try may have been done: see `refused_at_last`.
    pub fn wait_if_retryable(&mut self, error: Error, by: &Deadline) -> Result<(), Error> {
        if error.is_retryable() {
            return self.wait(error, by);
        }
        Err(refused_at_last(self.known.take(), error))
    }
}

/// The error to report when a repeat was refused for good: that says nothing of an earlier try that may have been done.
pub fn refused_at_last(earlier: Option<Error>, refusal: Error) -> Error {
    match earlier.filter(may_be_done) {
        Some(done) => done.final_now().caused_by(refusal),
        None => refusal,
    }
}

/// The error of a transfer that was done, so that the old holder has lost the lock, but whose new grant can't be held.
pub fn handed_over_in_vain(error: Error) -> Error {
    let message = "it was handed over, but could not be held for its whole lease, and is given up";
    Error::new(ErrorKind::Ambiguous, message).caused_by(error)
}

fn may_be_done(error: &Error) -> bool {
    error.kind() == ErrorKind::Ambiguous
}

/// Which of two errors to report. One that the end of a call cut off right after it began says nothing about the store,
/// and must not replace one that does.
pub fn tells_most(known: Option<Error>, error: Error, is_cut_off: bool) -> Error {
    known.filter(|_| is_cut_off).unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn told(tries: [(ErrorKind, &str); 2], last_by: Duration) -> String {
        let mut failures = Failures::none();
        let [first, last] = tries.map(|(kind, message)| Error::new(kind, message));
        failures.wait(first, &Deadline::after(Duration::from_secs(60))).expect("time is left");
        failures.asked -= 2 * last_by;
        failures.wait(last, &Deadline::at(Instant::now())).expect_err("no time is left").to_string()
    }

    /// If the machine pauses for more than `SILENT`, the last one is told.
    fn hides_none(tries: [(ErrorKind, &str); 2], known: &str) -> bool {
        (0..5).any(|_| told(tries, Duration::ZERO) == known)
    }

    /// For example with a full disk, when the last try has hardly begun.
    #[test]
    fn what_the_end_cut_off_right_after_it_began_hides_no_error() {
        let tries = [(ErrorKind::Store, "the disk is full"), (ErrorKind::Store, "no answer in 1 ms")];
        assert!(hides_none(tries, "the disk is full"));
        assert_eq!(told(tries, SILENT), "no answer in 1 ms");
    }

    #[test]
    fn what_may_be_done_is_told() {
        let tries = [(ErrorKind::Ambiguous, "it may be done"), (ErrorKind::Store, "nothing was written")];
        assert_eq!(told(tries, SILENT), "it may be done");
        let [first, last] = tries;
        assert!(hides_none([last, first], "it may be done"));
    }

    #[test]
    fn what_is_refused_in_the_end_says_nothing_of_what_may_be_done() {
        for (kind, told) in [(ErrorKind::Ambiguous, "first"), (ErrorKind::Store, "it is refused")] {
            let by = Deadline::after(Duration::from_secs(60));
            let mut failures = Failures::none();
            failures.wait_if_retryable(Error::new(kind, "first").retryable(), &by).expect("time is left");
            let error =
                failures.wait_if_retryable(Error::new(ErrorKind::Permission, "it is refused"), &by).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.is_retryable()), (told, false));
            assert!(error.with_causes().contains("it is refused"), "{}", error.with_causes());
        }
    }
}
