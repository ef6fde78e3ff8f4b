//! What a user's own transaction asserts: a grant, and the store that has it.

use super::{Backend, observed};
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::Lock;

/// The error text for a lock that is not held in what the transaction sees, which may be older than the grant.
#[cfg(any(feature = "mongodb", feature = "postgres"))]
pub(super) const NOT_SEEN: &str =
    "it is not held any more, or the transaction read something before it was granted: that must not be committed";

/// What is asserted, and on which store.
#[derive(Clone, Copy)]
pub struct Standing<'a> {
    pub(crate) lock: &'a Lock,
    pub(crate) backend: &'a dyn Backend,
}

impl<'a> Standing<'a> {
    /// The store, if it is one of this kind.
    pub(super) fn store<B: Backend>(self) -> Option<&'a B> {
        observed::native(self.backend)
    }

    pub(crate) fn error(self, kind: ErrorKind, message: impl Into<String>) -> Error {
        self.in_context(Error::new(kind, message))
    }

    /// An error that names the lock and its store.
    pub(super) fn in_context(self, error: impl Into<Error>) -> Error {
        error.into().with_key(&self.lock.key).with_store(&self.backend.info().label)
    }
}
