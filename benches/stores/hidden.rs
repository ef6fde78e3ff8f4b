//! The runtime behind the requests by hand: the library's own, so that what is compared is the request.

use std::future::Future;
use std::time::Duration;

use leasehold::Error;
use leasehold::internals::sys::deadline::Deadline;
use leasehold::internals::sys::driver::Driver;

/// A runtime with what `make` makes on it.
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
