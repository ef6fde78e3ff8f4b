//! Panics that end where they are caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `run` gives; `None` after a panic.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(discard).ok()
}

/// Drops the value that was thrown. Its drop is unknown code, which may panic once more.
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    /// A value that is thrown, whose drop panics as well. `resume_unwind` calls no panic hook, which would print it.
    struct Worse;

    impl Drop for Worse {
        fn drop(&mut self) {
            resume_unwind(Box::new("again"));
        }
    }

    #[test]
    fn a_panic_with_what_panics_again_is_contained() {
        assert_eq!(caught(|| 1), Some(1));
        let panics = || resume_unwind(Box::new(Worse));
        assert!(catch_unwind(|| caught(panics)).is_ok_and(|value: Option<()>| value.is_none()));
        assert!(catch_unwind(|| crate::sys::observing::contained("test", panics)).is_ok());
        assert!(catch_unwind(|| crate::sys::log::contained(panics)).is_ok());
    }
}
