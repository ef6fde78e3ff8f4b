//! Why a call did not succeed, and the last failure of each thread.

use std::any::Any;
use std::cell::RefCell;

use super::code::Code;
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::Lock;
use crate::sys::caught::discard;

/// The result of the body of an exported function.
pub type Outcome = Result<(), Failure>;

/// Why a guard does nothing any more while its release is under way, or after its release failed.
pub const ENDING: &str = "the guard is about to end: its release has begun, and can be called again where it failed";
/// The same once the guard has ended, unless its lock was lost.
pub const ENDED: &str = "the guard has ended: it was released or handed over, or its client was closed";

/// Why a call did not succeed.
pub struct Failure {
    pub code: Code,
    message: String,
    /// The error of the Rust API. Text and holders are taken from it when C asks for them.
    pub error: Option<Error>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), error: None }
    }

    /// An error of the Rust API with another code than that of its kind.
    pub fn with_code(error: Error, code: Code) -> Self {
        Failure { code, message: String::new(), error: Some(error) }
    }

    pub fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
        let message = format!("a bug in the library: {}", said.unwrap_or("it panicked"));
        discard(panic);
        Failure::new(Code::Panic, message)
    }

    /// The message with all its causes: C has no chain of causes.
    pub fn text(&self) -> String {
        let text = self.error.as_ref().map_or_else(|| self.message.clone(), Error::with_causes);
        // C has no such function. A key at the end of the text can't look like this, because keys are in quotes.
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

/// Keeps the failure for this thread, and returns its code.
pub fn keep(failure: Failure) -> Code {
    let code = failure.code;
    // While the thread ends, `LAST` may be gone already. The previous failure is dropped outside of the borrow.
    let _before = LAST.try_with(|last| last.borrow_mut().replace(failure));
    code
}

/// What `take` returns for the last failure of this thread; `None` also when there is none.
pub fn last<T>(take: impl FnOnce(&Failure) -> Option<T>) -> Option<T> {
    LAST.try_with(|last| last.borrow().as_ref().and_then(take)).ok().flatten()
}

#[cfg(test)]
pub fn message() -> String {
    last(|failure| Some(failure.text())).unwrap_or_default()
}
