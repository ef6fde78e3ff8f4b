//! The runtime for the raw requests: the library's own, so that only the requests differ.

use std::future::Future;
use std::time::Duration;

use leasehold::Error;
use leasehold::internals::sys::deadline::Deadline;
use leasehold::internals::sys::driver::Driver;

/// A runtime with the value that `make` creates on it.
pub fn hidden<C: 'static, Fut>(make: impl FnOnce() -> Fut + Send + 'static) -> Driver<C>
where
    Fut: Future<Output = Result<C, Error>> + 'static,
{
    Driver::start(&soon(), make, |stopped| panic!("{stopped:?}")).expect("a runtime")
}

/// Long enough for each request.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
