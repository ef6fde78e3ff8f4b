//! The one error of the library.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::model::key;
use crate::model::lease_status::LeaseStatus;
use crate::model::lock::LockStatus;

/// The answer of every call that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with which key, on which store. Cheap to clone.
///
/// [`Display`](fmt::Display) shows this level only; its causes are in
/// [`source`](StdError::source). Neither ever holds a password or a grant id.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    retryable: bool,
    is_gone: bool,
    key: Option<String>,
    store: Option<String>,
    holders: Vec<LockStatus>,
    held_here: bool,
    lease: Option<LeaseStatus>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
///
/// The docs of a function name the kinds that its caller should handle. Every function that asks the store can also
/// fail with `Permission`, `Schema`, `Store` or `Ambiguous`, and with `Closed` once its client was closed, or in a
/// forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Others hold the lock; [`Error::holders`] says who.
    Held,
    /// This client holds the key already with the same lock id: it would wait for itself.
    AlreadyHeld,
    /// The wait ended before the lock was free; [`Error::holders`] says who held it last.
    TimedOut,
    /// The lock was held and is not any more.
    Lost,
    /// The wait was cancelled by a [`CancelToken`](crate::CancelToken).
    Cancelled,
    /// The client was closed, or belongs to the process that this one was forked from.
    Closed,
    /// An argument is out of bounds. Nothing was written.
    InvalidInput,
    /// The store URL is wrong, or what it leads to can't be used in this way.
    Config,
    /// The store denies the request.
    Permission,
    /// The table, the file or a row is not what this version can read.
    Schema,
    /// The store can't be reached or failed; [`Error::is_retryable`] says whether a repeat may help.
    Store,
    /// A write was sent, and no answer settled whether it happened.
    Ambiguous,
    /// Kept for clocks that differ by more than the guarantees allow. Nothing detects that yet, so no error is of this kind.
    ClockSkew,
    /// A lease is not in the state that the call needs.
    InvalidLease,
}

impl ErrorKind {
    /// A label for metrics, like `timed_out`. It stays the same over versions.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Held => "held",
            ErrorKind::AlreadyHeld => "already_held",
            ErrorKind::TimedOut => "timed_out",
            ErrorKind::Lost => "lost",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Closed => "closed",
            ErrorKind::InvalidInput => "invalid_input",
            ErrorKind::Config => "config",
            ErrorKind::Permission => "permission",
            ErrorKind::Schema => "schema",
            ErrorKind::Store => "store",
            ErrorKind::Ambiguous => "ambiguous",
            ErrorKind::ClockSkew => "clock_skew",
            ErrorKind::InvalidLease => "invalid_lease",
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            retryable: false,
            is_gone: false,
            key: None,
            store: None,
            holders: Vec::new(),
            held_here: false,
            lease: None,
            source: None,
        }))
    }

    /// The error for an argument: which field, its value, and what would be right.
    pub(crate) fn invalid(field: &str, value: impl fmt::Debug, right: &str) -> Self {
        Error::new(ErrorKind::InvalidInput, format!("{field} is {value:?}, but must be {right}"))
    }

    pub(crate) fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.caused_by_any(Box::new(source))
    }

    pub(crate) fn caused_by_any(mut self, source: Box<dyn StdError + Send + Sync>) -> Self {
        self.inner().source = Some(source.into());
        self
    }

    pub(crate) fn retryable(mut self) -> Self {
        self.inner().retryable = true;
        self
    }

    /// A file that the store has opened is not the one that others find at its path any more.
    // Only SQLite has use for it.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    pub(crate) fn gone(mut self) -> Self {
        self.inner().is_gone = true;
        self
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_gone
    }

    pub(crate) fn with_key(mut self, key: &str) -> Self {
        self.inner().key.get_or_insert_with(|| key.to_owned());
        self
    }

    pub(crate) fn with_store(mut self, store: &str) -> Self {
        self.inner().store.get_or_insert_with(|| store.to_owned());
        self
    }

    pub(crate) fn with_holders(mut self, holders: Vec<LockStatus>) -> Self {
        self.inner().holders = holders;
        self
    }

    /// One of the holders is a guard of the very client that asked.
    pub(crate) fn held_here(mut self) -> Self {
        self.inner().held_here = true;
        self
    }

    pub(crate) fn with_lease(mut self, lease: LeaseStatus) -> Self {
        self.inner().lease = Some(lease);
        self
    }

    /// The error of a call that only reads: without an answer, nothing is ambiguous.
    pub(crate) fn of_read(mut self) -> Self {
        if self.kind() == ErrorKind::Ambiguous {
            self.inner().kind = ErrorKind::Store;
        }
        self
    }

    /// The error of a write that may have been done, whatever the store says about it.
    pub(crate) fn of_unknown(mut self) -> Self {
        self.inner().kind = ErrorKind::Ambiguous;
        self
    }

    /// The same call can't succeed any more.
    pub(crate) fn final_now(mut self) -> Self {
        self.inner().retryable = false;
        self
    }

    /// The text, followed by the texts of all causes, on one line.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text += &format!(": {cause}");
            next = cause.source();
        }
        // A server's text may have several lines, and so may the name of a file.
        text.replace(char::is_control, " ")
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The key that the call was about, if it was about one; for a lease its name.
    pub fn key(&self) -> Option<&str> {
        let key = self.0.key.as_deref()?;
        Some(key::parts(key).map_or(key, |(_, name)| name))
    }

    /// The store as scheme, host and database, without credentials. Of the URL's options it has those that say which table
    /// it is: `table` on Cloud Spanner; on DynamoDB the region, host and port of an endpoint if one was given, `sort_key`.
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// Who held the lock when it was refused, or was found to be lost, as far as that is known; empty for other errors.
    /// Each comes with its [lock id](LockStatus::lock_id), which is not for logs.
    pub fn holders(&self) -> &[LockStatus] {
        &self.0.holders
    }

    /// Whether a guard of the very client that asked is among the [holders](Error::holders): a guard of another thread,
    /// or of this one, which waited for itself.
    pub fn held_by_this_client(&self) -> bool {
        self.0.held_here
    }

    /// The lease as it was found, when a call on it was impossible; `None` when nobody held it, and for other kinds.
    pub fn lease(&self) -> Option<&LeaseStatus> {
        self.0.lease.as_ref()
    }

    /// Whether the store was in trouble that may pass, so that the same call may succeed later without any change. False
    /// where others hold the lock: see [`kind`](Error::kind).
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.0.key {
            let what = if key::parts(key).is_some() { "lease" } else { "lock" };
            write!(f, "{what} {:?}", key::shown(key))?;
        }
        match (&self.0.key, &self.0.store) {
            (Some(_), Some(store)) => write!(f, " on {store}: {}", self.0.message),
            (Some(_), None) => write!(f, ": {}", self.0.message),
            (None, Some(store)) => write!(f, "{store}: {}", self.0.message),
            (None, None) => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(key) = &self.0.key {
            out.field("key", key);
        }
        if let Some(store) = &self.0.store {
            out.field("store", store);
        }
        if !self.0.holders.is_empty() {
            out.field("holders", &self.0.holders);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
