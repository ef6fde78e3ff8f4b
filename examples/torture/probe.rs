//! The parent's own requests to the store, which show whether the machine or the store is too slow.

use std::time::Duration;

use leasehold::ErrorKind;

/// A store that takes longer for a lock and its release counts as a fault, too.
pub const SLOW: Duration = Duration::from_millis(500);

/// What one lock and its release, on a key that nobody else uses, show about the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    Well,
    /// It was too slow to keep any lease: that explains failures of the workers.
    Late,
    /// It is not slow but wrong: that explains no failure of the workers.
    Broken(String),
}

/// Judges how a lock of this lease ended, after this time. `is_disturbed`: the run has made faults of the server or its
/// disk, which may have made it fail at once.
pub fn judge(failed: Option<ErrorKind>, took: Duration, lease: Duration, is_disturbed: bool) -> Finding {
    match failed {
        None if took <= SLOW => Finding::Well,
        None => Finding::Late,
        Some(ErrorKind::Store | ErrorKind::Ambiguous | ErrorKind::TimedOut) if is_disturbed || took > SLOW => {
            Finding::Late
        }
        // The lease has run out by itself.
        Some(ErrorKind::Lost) if took >= lease => Finding::Late,
        Some(kind) => Finding::Broken(kind.name().to_owned()),
    }
}
