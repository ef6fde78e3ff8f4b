//! Why a call did not succeed, and the last failure of each thread.

use std::any::Any;
use std::cell::RefCell;

use super::code::Code;
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::Lock;
use crate::sys::caught::discard;

/// What the body of an exported function comes to.
pub type Outcome = Result<(), Failure>;

/// Why a guard does nothing any more where its release is under way, or was answered by an error.
pub const ENDING: &str = "the guard is about to end: its release has begun, and can be called again where it failed";
/// The same once it has ended, unless its lock was lost.
pub const ENDED: &str = "the guard has ended: it was released or handed over, or its client was closed";

/// Why a call did not succeed.
pub struct Failure {
    pub code: Code,
    message: String,
    /// What the library says, from which text and holders are taken when they are asked for.
    pub error: Option<Error>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), error: None }
    }

    /// The same error under another number.
    pub fn with_code(error: Error, code: Code) -> Self {
        Failure { code, message: String::new(), error: Some(error) }
    }

    pub fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
        let message = format!("a bug in the library: {}", said.unwrap_or("it panicked"));
        discard(panic);
        Failure::new(Code::Panic, message)
    }

    /// The message, and what lies beneath: C has no chain of causes.
    pub fn text(&self) -> String {
        let text = self.error.as_ref().map_or_else(|| self.message.clone(), Error::with_causes);
        // At its end no key, which stands in quotes, can look like that.
        match text.strip_suffix("or lease_forever()") {
            Some(before) => format!("{before}or without end"),
            None => text,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = error.kind().into();
        Failure::with_code(error, code)
    }
}

/// An error about a lock that was granted.
pub fn about(granted: &Lock, kind: ErrorKind, how: impl Into<String>) -> Error {
    Error::new(kind, how).with_key(granted.key()).with_store(granted.store().unwrap_or_default())
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Keeps it for this thread, and gives its number.
pub fn keep(failure: Failure) -> Code {
    let code = failure.code;
    // While the thread ends there is no place any more. The one before is dropped outside of the borrow.
    let _before = LAST.try_with(|last| last.borrow_mut().replace(failure));
    code
}

/// What of the last failure was asked for.
pub fn last<T>(take: impl FnOnce(&Failure) -> Option<T>) -> Option<T> {
    LAST.try_with(|last| last.borrow().as_ref().and_then(take)).ok().flatten()
}

#[cfg(test)]
pub fn message() -> String {
    last(|failure| Some(failure.text())).unwrap_or_default()
}
