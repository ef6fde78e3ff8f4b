//! How a lock was lost.

use std::fmt;
use std::time::Duration;

use crate::model::error::Error;
use crate::model::lock::LockStatus;

/// A lock that was held and is not any more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// How it was lost.
    pub reason: LossReason,
    /// The name of the lock.
    pub key: String,
    /// The fencing token that is out of date now.
    pub fencing_token: u64,
    /// How long it had been held: at most until its lease or `max_hold` ended, however late the loss was noticed.
    pub held_for: Duration,
}

/// How a lock was lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LossReason {
    /// Somebody else has been granted the lock since.
    TakenOver {
        /// Who held it when the loss was found; `None` if nobody did any more.
        by: Option<LockStatus>,
    },
    /// The lease came to its end without a renewal.
    Expired {
        /// Why the last heartbeat failed, if one did. An attempt that had less than a second before the lease's end,
        /// and got no answer, does not replace an earlier error here.
        last_error: Option<Error>,
    },
    /// An operator or another process released it.
    ReleasedByOther,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The row is gone, alone or with its file, its collection or all rows. Or the log next to an SQLite file was
    /// removed or replaced: then the lock may still be held in the file, and a lock without end remains there until
    /// [`force_release`](crate::LockClient::force_release) frees it. If the table is gone, too, heartbeats fail until
    /// the lease is over, and the reason is [`Expired`](LossReason::Expired).
    Gone,
    /// The heartbeat thread ended by a panic.
    HeartbeatDied,
}

impl LossReason {
    /// A label for metrics, like `taken_over`. It stays the same over versions.
    pub fn name(&self) -> &'static str {
        match self {
            LossReason::TakenOver { .. } => "taken_over",
            LossReason::Expired { .. } => "expired",
            LossReason::ReleasedByOther => "released_by_other",
            LossReason::MaxHold => "max_hold",
            LossReason::Gone => "gone",
            LossReason::HeartbeatDied => "heartbeat_died",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, seconds) = (&self.reason, self.held_for.as_secs_f64());
        match reason {
            // Here the time also says how long `max_hold` is.
            LossReason::MaxHold => write!(f, "{reason}, {seconds:.1} s"),
            // The text names two things that may have happened; the brackets make the time apply to both.
            LossReason::Gone => write!(f, "{reason} (after {seconds:.1} s)"),
            _ => write!(f, "{reason} after {seconds:.1} s"),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::TakenOver { by: Some(by) } => write!(f, "taken over by {by}"),
            LossReason::TakenOver { by: None } => f.write_str("taken over"),
            LossReason::Expired { last_error: Some(error) } => write!(f, "expired ({})", error.with_causes()),
            LossReason::Expired { last_error: None } => f.write_str("expired"),
            LossReason::ReleasedByOther => f.write_str("released by another"),
            LossReason::MaxHold => f.write_str("held for as long as max_hold allows"),
            LossReason::Gone => {
                f.write_str("the row, table or file of the lock is gone, or the file's log was removed or replaced")
            }
            LossReason::HeartbeatDied => f.write_str("its heartbeat thread died"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error::ErrorKind;

    #[test]
    fn the_time_of_a_loss_is_told_of_all_that_may_have_happened() {
        let told = |reason| {
            let held_for = Duration::from_millis(1800);
            Loss { reason, key: "k".to_owned(), fencing_token: 1, held_for }.to_string()
        };
        assert!(told(LossReason::Gone).ends_with("was removed or replaced (after 1.8 s)"));
        assert_eq!(told(LossReason::ReleasedByOther), "released by another after 1.8 s");
        assert_eq!(told(LossReason::MaxHold), "held for as long as max_hold allows, 1.8 s");
    }

    #[test]
    fn the_text_of_a_loss_has_the_causes_of_its_error_on_one_line() {
        let refused = Error::new(ErrorKind::Store, "the server refused the request").caused_by(fmt::Error);
        let said = Error::new(ErrorKind::Store, "it ended").caused_by_any("my own trigger\nsays no".into());
        for (error, text) in [
            (refused, format!("expired (the server refused the request: {})", fmt::Error)),
            (said, "expired (it ended: my own trigger says no)".to_owned()),
            (Error::new(ErrorKind::Store, "no answer"), "expired (no answer)".to_owned()),
            (Error::new(ErrorKind::Store, "no folder a\nb"), "expired (no folder a b)".to_owned()),
        ] {
            assert_eq!(LossReason::Expired { last_error: Some(error) }.to_string(), text);
        }
    }
}
