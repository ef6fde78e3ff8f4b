//! What the machine gives: clocks, deadlines, cancelling, threads, the hidden runtime.

pub(crate) mod aside;
pub(crate) mod cancel;
pub(crate) mod caught;
pub mod clock;
pub mod deadline;
#[cfg(feature = "_async")]
pub mod driver;
pub(crate) mod drop_bound;
pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod observing;
pub mod pause;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod thread;
