//! What the parent asks the store itself, so that a machine or a store that is too slow is known as such.

use std::time::Duration;

use leasehold::ErrorKind;

/// A store that takes longer for a lock and its release is a fault, too.
pub const SLOW: Duration = Duration::from_millis(500);

/// What one lock and its release, on a key that nobody else has, say of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    Well,
    /// It can't be expected to keep anybody's lease: that explains a lot.
    Late,
    /// It is not slow but wrong: that explains nothing.
    Broken(String),
}

/// Judges how a lock of this lease ended, after this time.
pub fn judge(failed: Option<ErrorKind>, took: Duration, lease: Duration) -> Finding {
    match failed {
        None if took <= SLOW => Finding::Well,
        None | Some(ErrorKind::Store | ErrorKind::Ambiguous | ErrorKind::TimedOut) => Finding::Late,
        // It has run out by itself.
        Some(ErrorKind::Lost) if took >= lease => Finding::Late,
        Some(kind) => Finding::Broken(kind.name().to_owned()),
    }
}
